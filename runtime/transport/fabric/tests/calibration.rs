//! The calibrator over real libfabric: a table comes out, is stored, and is read again.

use fabric::link::{EndpointOptions, Provider};
use fabric::policy::{Calibration, Costs, Mechanism, calibrate_alone};

#[test]
fn a_provider_is_measured_once_and_its_table_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    for provider in [Provider::Tcp, Provider::Shm] {
        let path = folder.path().join(provider.name());
        let options = EndpointOptions::new(provider);
        let how = Calibration { rounds: 1, largest: 256 << 10 };
        let costs = calibrate_alone(&options, Some(&path), how).unwrap();
        println!("{}", costs.to_text());
        // The smallest message, with its header, may be more than the provider injects.
        for mechanism in &Mechanism::ALL[1..] {
            let cost = costs.of(*mechanism, 1000);
            assert!(cost > 0.0 && cost < 1e12, "{} was measured", mechanism.name());
        }
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(Costs::from_text(&text).unwrap().to_text(), costs.to_text());
        // A table that is there counts, whatever it says.
        let changed = text.replace("piece ", "piece 1");
        std::fs::write(&path, &changed).unwrap();
        let again = calibrate_alone(&options, Some(&path), how).unwrap();
        assert_eq!(again.to_text(), changed);
        std::fs::write(&path, "no table").unwrap();
        let error = calibrate_alone(&options, Some(&path), how).unwrap_err();
        assert!(error.to_string().contains("measured anew"), "{error}");
    }
}
