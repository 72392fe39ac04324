//! The gate of the simulator in a debug build, where arithmetic that overflows panics: a few fresh
//! seeds, and every case that ever failed. `cargo xtask test` runs many more in release.
//!
//! `mdfs-lab sim` repeats one run, runs many, and shortens a failure.

use std::collections::BTreeMap;
use std::time::Duration;

use machine_emu::FaultKind;
use runtime::seed::with_seed;
use sim::{Case, Planted, REGRESSIONS, RunReport, Workload, run, shrink};

/// Fresh seeds of each workload in the gate.
const SEEDS_PER_WORKLOAD: u64 = 4;

/// What many runs did, in sum.
#[derive(Default)]
struct Sum {
    runs: u64,
    operations: u64,
    events: u64,
    virtual_time: Duration,
    faults: BTreeMap<FaultKind, u64>,
}

impl Sum {
    fn add(&mut self, report: &RunReport) {
        self.runs += 1;
        self.operations += report.operations;
        self.events += report.counters.events;
        self.virtual_time += report.virtual_time;
        for (&fault, count) in &report.counters.faults {
            *self.faults.entry(fault).or_default() += count;
        }
    }

    fn print(&self, what: &str) {
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
            if number == 0 {
                assert_eq!(report.trace_hash, run(workload, seed).trace_hash, "seed {seed} twice");
            }
            sum.add(&report);
        }
    });
    sum.print(workload.name());
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
    gate(Workload::Contention);
}

#[test]
fn an_open_file_outlives_its_names_and_nothing_else_does() {
    gate(Workload::OpenUnlinked);
}

#[test]
fn who_holds_a_file_sees_each_change_that_was_answered() {
    gate(Workload::Delegated);
}

#[test]
fn checkpoints_survive_power_cuts() {
    gate(Workload::Burst);
}

#[test]
fn programs_on_the_client_see_what_was_written_and_keep_what_was_synced() {
    gate(Workload::Client);
}

#[test]
fn nfs_clients_see_what_was_written_and_keep_what_was_answered_as_stable() {
    gate(Workload::Nfs);
}

#[test]
fn nfs_clients_with_sessions_are_answered_once_and_have_their_locks_alone() {
    gate(Workload::Nfs4);
}

#[test]
fn clients_on_other_hosts_survive_broken_links() {
    gate(Workload::Remote);
}

#[test]
fn clients_send_again_what_a_node_has_lost() {
    gate(Workload::Retention);
}

#[test]
fn damaged_disks_cost_errors_and_never_wrong_bytes() {
    gate(Workload::Damage);
}

#[test]
fn disks_come_and_go() {
    gate(Workload::Elastic);
}

#[test]
fn partitions_come_and_go() {
    gate(Workload::Partitions);
}

#[test]
fn processes_take_over_from_each_other_and_never_serve_a_node_twice() {
    gate(Workload::Members);
}

/// Every other case, from number `first` on: two tests share them, and run side by side.
fn fail_no_more(first: usize) {
    for kept in REGRESSIONS.iter().skip(first).step_by(2) {
        let outcome = kept.case().expect("a kept case can be read").run();
        outcome.unwrap_or_else(|violation| panic!("{kept:?} fails again: {violation}"));
    }
}

#[test]
fn what_failed_once_does_not_fail_again() {
    fail_no_more(0);
}

#[test]
fn what_else_failed_once_does_not_fail_again() {
    fail_no_more(1);
}

/// Does one of a few seeds fail with the bug?
fn is_noticed(workload: Workload, bug: Planted) -> bool {
    let cases = (0..10).map(|seed| Case { planted: Some(bug), ..Case::new(workload, seed) });
    cases.into_iter().any(|case| case.run().is_err())
}

#[test]
fn disks_that_lie_about_flushes_are_noticed() {
    let all = [Workload::Cache, Workload::Files, Workload::Client, Workload::Nfs, Workload::Nfs4];
    for workload in all {
        let name = workload.name();
        assert!(is_noticed(workload, Planted::LyingDisks), "the oracle of {name} sees nothing");
    }
}

#[test]
fn a_server_that_drops_writes_or_commits_is_noticed() {
    for workload in [Workload::Client, Workload::Nfs] {
        for bug in [Planted::DroppedWrites, Planted::IdleCommits] {
            assert!(
                is_noticed(workload, bug),
                "{bug:?}: the oracle of {} sees nothing",
                workload.name()
            );
        }
    }
}

#[test]
fn a_schedule_that_was_printed_repeats_the_run_it_came_from() {
    for workload in [Workload::Cache, Workload::Entries, Workload::Members] {
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
    let shrunk = shrink(&case, violation, 200, |_| true);
    let left = &shrunk.violation.schedule.items;
    assert!(left.len() <= 6 && left.len() < before, "{before} faults, then {left:?}");
    assert!(left.iter().any(|item| item.fault.word() == "power-cut"), "{left:?}");
    assert!(shrunk.case.run().is_err(), "the shorter schedule fails again");
}
