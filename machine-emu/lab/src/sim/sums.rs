//! What many runs did, in sum: tables for people, a document for programs.

use std::collections::BTreeMap;
use std::time::Duration;

use machine_emu::FaultKind;
use serde::Serialize;
use sim::Workload;

use super::failure::FailureRecord;
use super::plan::RunPlan;
use super::runner::{RunOutcome, SimRun};
use mdfs_cli::output::table;

/// All runs so far.
#[derive(Debug, Default)]
pub(super) struct RunTotals {
    seed: Option<u64>,
    workloads: BTreeMap<Workload, WorkloadTotals>,
    faults: BTreeMap<FaultKind, FaultHits>,
    /// Runs of which more is known than that they failed.
    passed: u64,
    /// Lines of their schedules.
    scheduled: u64,
    elapsed: Duration,
}

/// Runs of one workload.
#[derive(Clone, Copy, Debug, Default)]
struct WorkloadTotals {
    runs: u64,
    operations: u64,
    events: u64,
    virtual_time: Duration,
    real: Duration,
}

/// One kind of fault.
#[derive(Clone, Copy, Debug, Default)]
struct FaultHits {
    hits: u64,
    runs: u64,
}

impl WorkloadTotals {
    fn and(self, other: Self) -> Self {
        Self {
            runs: self.runs + other.runs,
            operations: self.operations + other.operations,
            events: self.events + other.events,
            virtual_time: self.virtual_time + other.virtual_time,
            real: self.real + other.real,
        }
    }

    fn cells(&self, name: &str) -> Vec<Vec<u8>> {
        let ratio = self.virtual_time.as_secs_f64() / self.real.as_secs_f64().max(1e-9);
        let cells = [
            name.to_owned(),
            grouped(self.runs),
            grouped(self.operations),
            grouped(self.events),
            format!("{:.1}", self.virtual_time.as_secs_f64()),
            format!("{:.1}", self.real.as_secs_f64()),
            format!("{ratio:.1}"),
        ];
        cells.map(String::into_bytes).to_vec()
    }
}

impl RunTotals {
    /// Of `plan`, before its first run.
    pub(super) fn new(plan: &RunPlan) -> Self {
        Self { seed: plan.seed(), ..Self::default() }
    }

    /// One more; of a run that failed nothing is known but that it was.
    pub(super) fn add(&mut self, run: &SimRun) {
        let sum = self.workloads.entry(run.case.workload).or_default();
        sum.runs += 1;
        sum.real += run.elapsed;
        let RunOutcome::Fine(report) = &run.outcome else { return };
        sum.operations += report.operations;
        sum.events += report.counters.events;
        sum.virtual_time += report.virtual_time;
        self.passed += 1;
        self.scheduled += report.schedule.items.len() as u64;
        for (&fault, &hits) in &report.counters.faults {
            let sum = self.faults.entry(fault).or_default();
            sum.hits += hits;
            sum.runs += u64::from(hits > 0);
        }
    }

    /// Elapsed time of all runs.
    pub(super) fn took(&mut self, elapsed: Duration) {
        self.elapsed = elapsed;
    }

    /// Runs so far.
    pub(super) fn runs(&self) -> u64 {
        self.workloads.values().map(|sum| sum.runs).sum()
    }

    /// Faults that hit so far.
    pub(super) fn faults(&self) -> u64 {
        self.faults.values().map(|sum| sum.hits).sum()
    }

    fn hits(&self, fault: FaultKind) -> FaultHits {
        self.faults.get(&fault).copied().unwrap_or_default()
    }

    fn missed(&self) -> Vec<&'static str> {
        let missed = FaultKind::ALL.iter().filter(|&&fault| self.hits(fault).hits == 0);
        missed.map(|fault| fault.name()).collect()
    }

    fn per_run(&self, count: u64) -> f64 {
        per(count, per(self.passed, 1.0))
    }

    fn runs_per_second(&self) -> f64 {
        per(self.runs(), self.elapsed.as_secs_f64())
    }

    /// In a few words, after `elapsed`.
    pub(super) fn line(&self, elapsed: Duration) -> String {
        let per_second = per(self.runs(), elapsed.as_secs_f64());
        let (runs, faults) = (grouped(self.runs()), grouped(self.faults()));
        format!("{runs} runs, {per_second:.1}/s, {faults} faults")
    }

    /// For people.
    pub(super) fn tables(&self) -> Vec<u8> {
        let mut text = [b"\n".to_vec(), self.workload_table()].concat();
        // A run that failed tells nothing about its faults.
        if self.passed > 0 {
            text.extend([b"\n".to_vec(), self.fault_table()].concat());
        }
        let (runs, seconds) = (grouped(self.runs()), self.elapsed.as_secs_f64());
        let line =
            format!("\nruns: {runs} in {seconds:.1} s, {:.2} per second\n", self.runs_per_second());
        text.extend(line.bytes());
        if self.passed > 0 {
            let (hits, lines) = (self.per_run(self.faults()), self.per_run(self.scheduled));
            let line =
                format!("a run on average: {hits:.0} faults hit, {lines:.0} lines of schedule\n");
            text.extend([line, self.missed_line()].concat().bytes());
        }
        text
    }

    fn workload_table(&self) -> Vec<u8> {
        let heads =
            ["workload", "runs", "operations", "events", "virtual s", "real s", "virtual/real"];
        let mut rows = vec![heads.map(|head| head.as_bytes().to_vec()).to_vec()];
        rows.extend(self.workloads.iter().map(|(workload, sum)| sum.cells(workload.name())));
        if self.workloads.len() > 1 {
            let all =
                self.workloads.values().fold(WorkloadTotals::default(), |all, sum| all.and(*sum));
            rows.push(all.cells("all"));
        }
        table(&rows, &[false, true, true, true, true, true, true])
    }

    fn fault_table(&self) -> Vec<u8> {
        let mut rows =
            vec![["fault", "hits", "runs"].map(|head| head.as_bytes().to_vec()).to_vec()];
        rows.extend(FaultKind::ALL.iter().map(|&fault| {
            let FaultHits { hits, runs } = self.hits(fault);
            let cells = [fault.name().to_owned(), grouped(hits), grouped(runs)];
            cells.map(String::into_bytes).to_vec()
        }));
        table(&rows, &[false, true, true])
    }

    fn missed_line(&self) -> String {
        let missed = self.missed();
        if missed.is_empty() {
            return "every kind of fault hit\n".to_owned();
        }
        wrapped(&format!("never hit: {}", missed.join(", ")))
    }

    /// For programs.
    pub(super) fn document(&self, failures: Vec<FailureRecord>) -> SimReport {
        let workloads = self.workloads.iter().map(|(workload, sum)| WorkloadRecord {
            workload: workload.name(),
            runs: sum.runs,
            operations: sum.operations,
            events: sum.events,
            virtual_seconds: sum.virtual_time.as_secs_f64(),
            real_seconds: sum.real.as_secs_f64(),
        });
        let faults = FaultKind::ALL.iter().map(|&fault| FaultRecord {
            fault: fault.name(),
            hits: self.hits(fault).hits,
            runs: self.hits(fault).runs,
        });
        SimReport {
            seed: self.seed,
            runs: self.runs(),
            seconds: self.elapsed.as_secs_f64(),
            runs_per_second: self.runs_per_second(),
            faults_per_run: self.per_run(self.faults()),
            schedule_lines_per_run: self.per_run(self.scheduled),
            workloads: workloads.collect(),
            faults: faults.collect(),
            failures,
        }
    }
}

/// All of it.
#[derive(Debug, Serialize)]
pub(super) struct SimReport {
    /// Of the first run; not there if each run has its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    seed: Option<u64>,
    runs: u64,
    seconds: f64,
    runs_per_second: f64,
    faults_per_run: f64,
    schedule_lines_per_run: f64,
    workloads: Vec<WorkloadRecord>,
    faults: Vec<FaultRecord>,
    failures: Vec<FailureRecord>,
}

#[derive(Debug, Serialize)]
struct WorkloadRecord {
    workload: &'static str,
    runs: u64,
    operations: u64,
    events: u64,
    virtual_seconds: f64,
    /// Of all threads together.
    real_seconds: f64,
}

#[derive(Debug, Serialize)]
struct FaultRecord {
    fault: &'static str,
    hits: u64,
    runs: u64,
}

/// `count` for each of `whole`, which may be zero.
#[allow(clippy::cast_precision_loss, reason = "people read three digits of it")]
fn per(count: u64, whole: f64) -> f64 {
    if whole > 0.0 { count as f64 / whole } else { 0.0 }
}

/// `1,234,567`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Columns of a line, at most.
const WIDTH: usize = 79;

/// In lines that fit; those after the first stand a bit to the right.
fn wrapped(text: &str) -> String {
    let (mut out, mut width) = (String::new(), 0);
    for word in text.split(' ') {
        let length = word.chars().count();
        if width > 0 && width + 1 + length > WIDTH {
            out += "\n ";
            width = 1;
        }
        if !out.is_empty() {
            out.push(' ');
            width += 1;
        }
        out += word;
        width += length;
    }
    out + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_by_thousands() {
        let written = [0, 999, 1000, 1_234_567].map(grouped);
        assert_eq!(written, ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn long_lines_are_broken_between_words() {
        let text = "never hit: ".to_owned() + &["disk write lost"; 12].join(", ");
        let lines = wrapped(&text);
        assert!(lines.lines().count() > 2 && lines.lines().all(|line| line.len() <= WIDTH));
        assert_eq!(lines.split_whitespace().collect::<Vec<_>>().join(" "), text);
    }
}
