//! The gate of the simulator: fresh seeds for a while, and every seed that ever failed.
//!
//! `SEED=... WORKLOAD=... cargo test -p sim --test gate one_seed -- --ignored --nocapture` repeats
//! one run, with `RUST_LOG=sim=debug` telling each request; `SEEDS=1000 WORKLOAD=... ... many_seeds -- --ignored --nocapture` runs many.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use machine_emu::Fault;
use runtime::seed::with_seed;
use sim::{Case, Planted, Report, Workload, run, shrink};

/// Fresh seeds of each workload in the gate.
const SEEDS_PER_WORKLOAD: u64 = 16;
/// One run in so many is done twice, and must leave the same trace.
const TWICE_IN: u64 = 8;

/// Seeds that fail without the fix of one bug each; `docs/bugs.md` tells which.
const FAILED_ONCE: &[(Workload, u64)] = &[
    (Workload::Entries, 5024),
    (Workload::Entries, 5001),
    (Workload::Files, 5003),
    (Workload::Full, 5003),
    (Workload::Full, 6),
    (Workload::Damage, 5020),
];

/// What many runs did, in sum.
#[derive(Default)]
struct Sum {
    runs: u64,
    operations: u64,
    events: u64,
    virtual_time: Duration,
    faults: BTreeMap<Fault, u64>,
}

impl Sum {
    fn add(&mut self, report: &Report) {
        self.runs += 1;
        self.operations += report.operations;
        self.events += report.counters.events;
        self.virtual_time += report.virtual_time;
        for (&fault, count) in &report.counters.faults {
            *self.faults.entry(fault).or_default() += count;
        }
    }

    fn tell(&self, what: &str) {
        println!(
            "{what}: {} runs, {} operations, {} events, {:?} of virtual time, faults {:?}",
            self.runs, self.operations, self.events, self.virtual_time, self.faults
        );
    }
}

fn gate(workload: Workload) {
    let mut sum = Sum::default();
    with_seed(|rng| {
        for number in 0..SEEDS_PER_WORKLOAD {
            let seed = rng.bits() >> 32;
            let report = run(workload, seed);
            if number % TWICE_IN == 0 {
                assert_eq!(report.trace_hash, run(workload, seed).trace_hash, "seed {seed} twice");
            }
            sum.add(&report);
        }
    });
    sum.tell(workload.name());
}

#[test]
fn sectors_of_the_disks_are_as_written() {
    gate(Workload::Disks);
}

#[test]
fn sectors_behind_the_cache_are_as_written() {
    gate(Workload::Cache);
}

#[test]
fn files_are_as_written_and_keep_what_was_committed() {
    gate(Workload::Files);
}

#[test]
fn a_full_volume_hurts_nothing_and_gives_its_space_back() {
    gate(Workload::Full);
}

#[test]
fn names_are_the_models() {
    gate(Workload::Names);
}

#[test]
fn names_survive_power_cuts() {
    gate(Workload::Entries);
}

#[test]
fn checkpoints_survive_power_cuts() {
    gate(Workload::Burst);
}

#[test]
fn damaged_disks_cost_errors_and_never_wrong_bytes() {
    gate(Workload::Damage);
}

#[test]
fn what_failed_once_does_not_fail_again() {
    for &(workload, seed) in FAILED_ONCE {
        run(workload, seed);
    }
}

#[test]
fn disks_that_lie_about_flushes_are_noticed() {
    let noticed = |workload| {
        (0..10).any(|seed| {
            let planted = Some(Planted::LyingDisks);
            Case { planted, ..Case::new(workload, seed) }.run().is_err()
        })
    };
    assert!(noticed(Workload::Cache), "the oracle of sectors sees nothing");
    assert!(noticed(Workload::Files), "the oracle of files sees nothing");
}

#[test]
fn a_schedule_that_was_printed_repeats_the_run_it_came_from() {
    for workload in [Workload::Cache, Workload::Entries] {
        let drawn = run(workload, 3);
        let schedule = drawn.schedule.to_string().parse().unwrap();
        let case = Case { schedule: Some(schedule), ..Case::new(workload, 3) };
        let given = case.run().unwrap();
        assert_eq!(given.trace_hash, drawn.trace_hash);
        assert_eq!(given.schedule, drawn.schedule);
    }
}

#[test]
fn a_failure_shrinks_to_the_faults_that_it_needs() {
    let planted = Some(Planted::LyingDisks);
    let cases = (0..20).map(|seed| Case { planted, ..Case::new(Workload::Files, seed) });
    let (case, violation) = cases
        .into_iter()
        .find_map(|case| case.run().err().map(|violation| (case.clone(), violation)))
        .expect("lying disks are noticed");
    let before = violation.schedule.items.len();
    let shrunk = shrink(&case, violation, 200, |_| {});
    let left = &shrunk.violation.schedule.items;
    assert!(left.len() <= 6 && left.len() < before, "{before} faults, then {left:?}");
    assert!(left.iter().any(|item| item.strike.word() == "power"), "{left:?}");
    assert!(shrunk.case.run().is_err(), "the shorter schedule fails again");
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().and_then(|text| text.parse().ok())
}

fn workloads() -> Vec<Workload> {
    let name = std::env::var("WORKLOAD").unwrap_or_default();
    Workload::from_name(&name).map_or(Workload::ALL.to_vec(), |workload| vec![workload])
}

#[test]
#[ignore = "repeats one run by hand"]
fn one_seed() {
    let seed = number("SEED").expect("SEED=...");
    let filter = tracing_subscriber::EnvFilter::from_default_env();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    for workload in workloads() {
        let mut sum = Sum::default();
        sum.add(&run(workload, seed));
        sum.tell(workload.name());
    }
}

#[test]
#[ignore = "takes as long as it is told to"]
fn many_seeds() {
    let first = number("SEED").unwrap_or(0);
    let seeds = number("SEEDS").unwrap_or(100);
    let mut failed = Vec::new();
    let mut hit = BTreeSet::new();
    for workload in workloads() {
        let mut sum = Sum::default();
        for seed in first..first + seeds {
            match Case::new(workload, seed).run() {
                Ok(report) => sum.add(&report),
                Err(violation) => {
                    println!("{} {seed}: {}", workload.name(), violation.message);
                    failed.push((workload, seed));
                }
            }
        }
        sum.tell(workload.name());
        hit.extend(sum.faults.into_keys());
    }
    let missed: Vec<Fault> = Fault::ALL.into_iter().filter(|fault| !hit.contains(fault)).collect();
    println!("faults that never hit: {missed:?}");
    let whole_mix = workloads().len() == Workload::ALL.len();
    assert!(
        missed.is_empty() || !whole_mix || seeds * (Workload::ALL.len() as u64) < 1_000,
        "1,000 seeds hit all faults"
    );
    assert!(failed.is_empty(), "failed: {failed:?}");
}

#[test]
#[ignore = "shortens one failure by hand"]
fn shrink_seed() {
    let case = Case::new(workloads()[0], number("SEED").expect("SEED=..."));
    let violation = case.run().expect_err("a seed that fails");
    let shrunk = shrink(&case, violation, 1_000, |_| {});
    println!("after {} runs:\n{}", shrunk.runs, shrunk.violation);
}
