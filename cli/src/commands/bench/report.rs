//! What was measured.

use std::time::Duration;

use serde::Serialize;

use crate::output::table;

const MIB: f64 = 1_048_576.0;

/// One operation on one side, of all repetitions.
#[derive(Debug, Serialize)]
pub(super) struct BenchRow {
    operation: &'static str,
    on: String,
    /// Of one repetition; 0 where no bytes are moved.
    bytes: u64,
    operations: u64,
    seconds: Vec<f64>,
}

#[derive(Debug, Default)]
pub(super) struct BenchReport {
    rows: Vec<BenchRow>,
}

/// Smallest, middle and largest.
fn spread(values: impl Iterator<Item = f64>) -> [f64; 3] {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    let median = if values.len() % 2 == 1 {
        values[half]
    } else {
        f64::midpoint(values[half - 1], values[half])
    };
    [values[0], median, values[values.len() - 1]]
}

#[allow(clippy::cast_precision_loss, reason = "rates have three digits that count")]
impl BenchRow {
    /// Of `amount` a second.
    fn rates(&self, amount: f64) -> [f64; 3] {
        spread(self.seconds.iter().map(|seconds| amount / seconds.max(1e-9)))
    }

    fn cells(&self) -> Vec<String> {
        let mut cells = vec![self.operation.to_owned(), self.on.clone()];
        let [min, median, max] = self.rates(self.bytes as f64 / MIB);
        match self.bytes {
            0 => cells.extend(["-", "-", "-"].map(str::to_owned)),
            _ => cells.extend([min, median, max].map(|rate| format!("{rate:.1}"))),
        }
        cells.extend(self.rates(self.operations as f64).map(|rate| format!("{rate:.0}")));
        let [_, median, _] = spread(self.seconds.iter().copied());
        cells.push(format!("{median:.4}"));
        cells
    }
}

impl BenchReport {
    /// One repetition more of an operation.
    pub(super) fn add(
        &mut self,
        (operation, on): (&'static str, &str),
        (bytes, operations): (u64, u64),
        elapsed: Duration,
    ) {
        let seconds = elapsed.as_secs_f64();
        let found = self.rows.iter_mut().find(|row| row.operation == operation && row.on == on);
        if let Some(row) = found {
            row.seconds.push(seconds);
        } else {
            let (on, seconds) = (on.to_owned(), vec![seconds]);
            self.rows.push(BenchRow { operation, on, bytes, operations, seconds });
        }
    }

    pub(super) fn rows(&self) -> &[BenchRow] {
        &self.rows
    }

    /// The table, an operation's sides below one another.
    pub(super) fn table(&self) -> Vec<u8> {
        let heads =
            ["operation", "on", "MiB/s min", "median", "max", "ops/s min", "median", "max", "s"];
        let mut lines = vec![heads.map(|head| head.as_bytes().to_vec()).to_vec()];
        let mut printed: Vec<&str> = Vec::new();
        for BenchRow { operation, .. } in &self.rows {
            if printed.contains(operation) {
                continue;
            }
            printed.push(operation);
            let same = self.rows.iter().filter(|row| row.operation == *operation);
            lines.extend(same.map(|row| row.cells().into_iter().map(String::into_bytes).collect()));
        }
        table(&lines, &[false, false, true, true, true, true, true, true, true])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_least_median_and_most() {
        let mut report = BenchReport::default();
        for seconds in [4, 1, 2] {
            report.add(("write", "V:"), (8 << 20, 16), Duration::from_secs(seconds));
        }
        report.add(("stat", "V:"), (0, 10), Duration::from_secs(2));
        let text = String::from_utf8(report.table()).unwrap();
        let lines: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["write", "V:", "2.0", "4.0", "8.0", "4", "8", "16", "2.0000"]);
        assert_eq!(lines[2], ["stat", "V:", "-", "-", "-", "5", "5", "5", "2.0000"]);
        assert_eq!(format!("{:?}", spread([4.0, 1.0].into_iter())), "[1.0, 2.5, 4.0]");
    }
}
