//! The table.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::sides::CheckpointFileKind;
use crate::works::CheckpointWork;

/// One work with its rates, round by round.
pub(crate) struct CheckpointBenchRow {
    name: &'static str,
    unit: &'static str,
    durable: &'static str,
    rates: BTreeMap<CheckpointFileKind, Vec<f64>>,
}

impl CheckpointBenchRow {
    pub(crate) fn new(work: &CheckpointWork) -> Self {
        let CheckpointWork { name, unit, durable, .. } = *work;
        Self { name, unit, durable, rates: BTreeMap::new() }
    }

    /// Adds a round of one side; `None` if the side cannot do the work.
    pub(crate) fn note(&mut self, kind: CheckpointFileKind, rate: Option<f64>) {
        self.rates.entry(kind).or_default().extend(rate);
    }

    fn median(&self, kind: CheckpointFileKind) -> Option<f64> {
        median(self.rates.get(&kind)?.clone())
    }

    /// The median over the rounds of ours / theirs.
    fn ratio(&self, other: CheckpointFileKind) -> Option<f64> {
        let (ours, theirs) = (self.rates.get(&CheckpointFileKind::Ours)?, self.rates.get(&other)?);
        median(ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect())
    }
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

fn shown(value: Option<f64>, digits: usize) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.digits$}"))
}

pub(crate) fn print(rows: &[CheckpointBenchRow]) {
    println!(
        "\nours: a volume in this process on 4 disk files; disk: the file system that holds them; \
         memory: /dev/shm, never durable; direct: as disk, past its page cache; peer: another file \
         system, mounted. 1 MB = 1,000,000 bytes; medians; higher is better"
    );
    let present = |kind: &CheckpointFileKind| rows.iter().any(|row| row.median(*kind).is_some());
    let kinds: Vec<CheckpointFileKind> =
        CheckpointFileKind::ALL.into_iter().filter(present).collect();
    let mut line = format!("{:<26} {:<7} {:<8}", "work", "unit/s", "durable");
    for kind in &kinds {
        let _ = write!(line, " {:>9}", kind.name());
    }
    for other in kinds.iter().filter(|kind| **kind != CheckpointFileKind::Ours) {
        let _ = write!(line, " {:>11}", format!("ours/{}", other.name()));
    }
    println!("{line}");
    for row in rows {
        let mut line = format!("{:<26} {:<7} {:<8}", row.name, row.unit, row.durable);
        for kind in &kinds {
            let _ = write!(line, " {:>9}", shown(row.median(*kind), 0));
        }
        for other in kinds.iter().filter(|kind| **kind != CheckpointFileKind::Ours) {
            let _ = write!(line, " {:>11}", shown(row.ratio(*other), 2));
        }
        println!("{line}");
    }
}
