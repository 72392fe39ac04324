//! Which runs are done: a list, long or without an end, in which each run has its number.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use sim::{Case, Planted, Schedule, Workload};

/// All runs.
#[derive(Debug)]
pub(super) struct RunPlan {
    pub(super) cases: RunCases,
    pub(super) limit: RunLimit,
    /// Every n-th run of each workload is repeated; 0 for none.
    pub(super) twice_in: u64,
}

/// Where they come from.
#[derive(Debug)]
pub(super) enum RunCases {
    /// Workloads in turn, each run with the next seed.
    Mix {
        workloads: Vec<Workload>,
        /// The first one.
        seed: u64,
        schedule: Option<Schedule>,
        faults: Option<BTreeSet<String>>,
        planted: Option<Planted>,
    },
    /// Those that failed once.
    RegressionCase(Vec<Case>),
}

/// When the runs end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RunLimit {
    /// After this number of runs.
    Runs(u64),
    /// After this time none begins.
    Time(Duration),
}

impl RunPlan {
    /// The run of this number, counted from 0.
    pub(super) fn case(&self, number: u64) -> Case {
        match &self.cases {
            RunCases::Mix { workloads, seed, schedule, faults, planted } => Case {
                workload: workloads[(number % workloads.len() as u64) as usize],
                seed: seed.wrapping_add(number),
                schedule: schedule.clone(),
                faults: faults.clone(),
                planted: *planted,
            },
            RunCases::RegressionCase(cases) => cases[number as usize].clone(),
        }
    }

    /// Whether it is repeated: the first run of each workload, then every n-th.
    pub(super) fn is_twice(&self, number: u64) -> bool {
        let turn = match &self.cases {
            RunCases::Mix { workloads, .. } => number / workloads.len() as u64,
            RunCases::RegressionCase(_) => number,
        };
        self.twice_in > 0 && turn.is_multiple_of(self.twice_in)
    }

    /// True if no run with this number begins at this time after the first.
    pub(super) fn is_over(&self, number: u64, elapsed: Duration) -> bool {
        match self.limit {
            RunLimit::Runs(runs) => number >= runs,
            RunLimit::Time(time) => elapsed >= time,
        }
    }

    /// Its length, in runs or seconds.
    pub(super) fn length(&self) -> u64 {
        match self.limit {
            RunLimit::Runs(runs) => runs,
            RunLimit::Time(time) => time.as_secs(),
        }
    }

    /// How much of its length is done.
    pub(super) fn position(&self, runs: u64, elapsed: Duration) -> u64 {
        match self.limit {
            RunLimit::Runs(_) => runs,
            RunLimit::Time(_) => elapsed.as_secs(),
        }
    }

    /// The first seed, if it decides all others.
    pub(super) fn seed(&self) -> Option<u64> {
        match self.cases {
            RunCases::Mix { seed, .. } => Some(seed),
            RunCases::RegressionCase(_) => None,
        }
    }
}

impl fmt::Display for RunPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.limit {
            RunLimit::Runs(1) => f.write_str("1 run")?,
            RunLimit::Runs(runs) => write!(f, "{runs} runs")?,
            RunLimit::Time(time) => write!(f, "runs for {} s", time.as_secs())?,
        }
        match &self.cases {
            RunCases::Mix { workloads, seed, .. } => {
                let names: Vec<&str> = workloads.iter().map(|workload| workload.name()).collect();
                write!(f, " of {} from seed {seed}", names.join(", "))
            }
            RunCases::RegressionCase(_) => f.write_str(" that failed once"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mix(workloads: &[Workload]) -> RunPlan {
        let workloads = workloads.to_vec();
        let cases = RunCases::Mix {
            workloads,
            seed: u64::MAX,
            schedule: None,
            faults: None,
            planted: None,
        };
        RunPlan { cases, limit: RunLimit::Runs(5), twice_in: 2 }
    }

    #[test]
    fn workloads_take_turns_and_each_run_has_a_seed_of_its_own() {
        let plan = mix(&[Workload::Files, Workload::Burst]);
        let runs: Vec<_> = (0..4).map(|number| plan.case(number)).collect();
        let runs: Vec<_> = runs.iter().map(|case| (case.workload, case.seed)).collect();
        let (files, burst) = (Workload::Files, Workload::Burst);
        assert_eq!(runs, [(files, u64::MAX), (burst, 0), (files, 1), (burst, 2)]);
        assert_eq!(plan.to_string(), format!("5 runs of files, burst from seed {}", u64::MAX));
    }

    #[test]
    fn of_each_workload_the_first_run_is_done_twice() {
        let plan = mix(&[Workload::Files, Workload::Burst, Workload::Names]);
        let twice: Vec<_> = (0..9).filter(|&number| plan.is_twice(number)).collect();
        assert_eq!(twice, [0, 1, 2, 6, 7, 8]);
        assert!(!RunPlan { twice_in: 0, ..plan }.is_twice(0));
    }

    #[test]
    fn runs_end_by_number_or_by_time() {
        let plan = mix(&[Workload::Files]);
        assert!(!plan.is_over(4, Duration::MAX) && plan.is_over(5, Duration::ZERO));
        let plan = RunPlan { limit: RunLimit::Time(Duration::from_secs(3)), ..plan };
        assert!(
            !plan.is_over(9, Duration::from_secs(2)) && plan.is_over(0, Duration::from_secs(3))
        );
    }
}
