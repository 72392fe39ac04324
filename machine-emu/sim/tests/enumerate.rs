//! The crash enumerator: a part of it in each run of the tests. `mdfs-lab crashes` does more.

use std::time::Instant;

use sim::Planted;
use sim::enumerate::{EnumerationOptions, EnumerationReport, replay, run, workloads};

fn print(report: &EnumerationReport) {
    println!(
        "{} workloads, {} crash points, {} states, {} of them distinct; wrong {}",
        report.workloads, report.points, report.states, report.distinct, report.wrong
    );
}

fn check(options: &EnumerationOptions) -> EnumerationReport {
    #[allow(clippy::disallowed_methods, reason = "a test measures the real clock")]
    let start = Instant::now();
    let report = run(options, |_| {});
    println!("of {} workloads in {:?}:", workloads(options.operations), start.elapsed());
    print(&report);
    report
}

fn assert_sound(report: &EnumerationReport) {
    for violation in &report.violations {
        println!("\n{}", violation.text);
    }
    assert!(report.wrong == 0, "{} states are wrong", report.wrong);
}

/// All workloads of one operation.
#[test]
fn what_was_durable_survives_every_crash_of_one_operation() {
    let report = check(&EnumerationOptions { operations: 1, ..EnumerationOptions::default() });
    assert_sound(&report);
}

/// The canary: disks that forget what they have flushed must be found out, or nothing is looked at.
#[test]
fn disks_that_lie_about_flushes_are_found_out() {
    let planted = Some(Planted::LyingDisks);
    let options = EnumerationOptions {
        operations: 1,
        states_max: 500,
        planted,
        ..EnumerationOptions::default()
    };
    let report = run(&options, |_| {});
    assert!(report.wrong > 0, "nothing was found: {report:?}");
    let output = &report.violations[0].text;
    assert!(output.contains("--state ") && output.contains("workload:"), "{output}");
    let again = replay(&report.violations[0].state).expect("it is a state");
    assert!(again.starts_with(output), "{again}");
}

#[test]
fn the_same_options_find_the_same_on_any_number_of_threads() {
    let options =
        |threads| EnumerationOptions { states_max: 300, threads, ..EnumerationOptions::default() };
    let [one, three] = [1, 3].map(|threads| run(&options(threads), |_| {}));
    assert_eq!(
        (one.workloads, one.points, one.states, one.distinct, one.wrong),
        (three.workloads, three.points, three.states, three.distinct, three.wrong)
    );
}
