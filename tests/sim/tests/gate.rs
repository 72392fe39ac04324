//! The gate of the simulator: fresh seeds for a while, and every seed that ever failed.
//!
//! `SEED=... WORKLOAD=... cargo test -p sim --test gate one_seed -- --ignored --nocapture` repeats
//! one run, with `RUST_LOG=sim=debug` telling each request; `SEEDS=1000 WORKLOAD=... ... many_seeds -- --ignored --nocapture` runs many.

use std::collections::BTreeMap;
use std::panic::catch_unwind;
use std::time::Duration;

use machine_emu::Fault;
use runtime::seed::with_seed;
use sim::{Planted, Report, Workload, run, run_with};

/// Fresh seeds of each workload in the gate.
const SEEDS_PER_WORKLOAD: u64 = 16;
/// One run in so many is done twice, and must leave the same trace.
const TWICE_IN: u64 = 8;

/// Seeds that fail without the fix of one bug each; `docs/bugs.md` tells which.
const FAILED_ONCE: &[(Workload, u64)] = &[
    (Workload::Entries, 5024),
    (Workload::Entries, 5001),
    (Workload::Files, 9),
    (Workload::Full, 5003),
    (Workload::Full, 6),
    (Workload::Rivals, 0),
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
fn who_wins_a_name_has_it_alone() {
    gate(Workload::Rivals);
}

#[test]
fn checkpoints_survive_power_cuts() {
    gate(Workload::Burst);
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
            catch_unwind(|| run_with(workload, seed, Some(Planted::LyingDisks))).is_err()
        })
    };
    assert!(noticed(Workload::Cache), "the oracle of sectors sees nothing");
    assert!(noticed(Workload::Files), "the oracle of files sees nothing");
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
    let mut failed = Vec::new();
    for workload in workloads() {
        let mut sum = Sum::default();
        for seed in first..first + number("SEEDS").unwrap_or(100) {
            match catch_unwind(|| run(workload, seed)) {
                Ok(report) => sum.add(&report),
                Err(_) => failed.push((workload, seed)),
            }
        }
        sum.tell(workload.name());
    }
    assert!(failed.is_empty(), "failed: {failed:?}");
}
