//! Tampered volumes: any bytes on any disk give an error, never a panic or a hang.

use sim::enumerate::hostile;

/// Images, if the variable [`IMAGES_VARIABLE`] does not say.
const IMAGES: u64 = 1_000;
/// How many images are tried.
const IMAGES_VARIABLE: &str = "MDFS_HOSTILE";
/// Where they begin.
const SEED_VARIABLE: &str = "MDFS_HOSTILE_SEED";

fn number(variable: &str, otherwise: u64) -> u64 {
    let text = std::env::var(variable).ok();
    text.map_or(otherwise, |text| text.parse().expect("a number"))
}

#[test]
fn a_tampered_volume_is_opened_or_refused_and_checked_but_never_a_panic_or_a_hang() {
    let images = number(IMAGES_VARIABLE, IMAGES);
    let tally = hostile(number(SEED_VARIABLE, 1), images).unwrap_or_else(|error| panic!("{error}"));
    println!("{tally:?}");
    // Tampering that nothing notices, or that nothing survives, would test nothing.
    assert!(tally.flawed > images / 8 && tally.mounted > images / 20, "{tally:?}");
    assert!(tally.mounted < images, "{tally:?}");
}
