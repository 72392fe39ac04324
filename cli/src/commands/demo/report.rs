//! What was measured.

use std::time::Duration;

use crate::output::table;
use crate::size::human;

/// One line of the table.
pub(super) struct DemoRow {
    what: String,
    bytes: u64,
    operations: u64,
    elapsed: Duration,
}

impl DemoRow {
    /// `bytes` moved by `operations` calls.
    pub(super) fn new(what: &str, bytes: u64, operations: u64, elapsed: Duration) -> Self {
        Self { what: what.to_owned(), bytes, operations, elapsed }
    }
}

/// The table.
#[derive(Default)]
pub(super) struct DemoReport {
    rows: Vec<DemoRow>,
}

impl DemoReport {
    /// Adds a line.
    pub(super) fn add(&mut self, row: DemoRow) {
        self.rows.push(row);
    }

    /// The table as text.
    pub(super) fn table(&self) -> Vec<u8> {
        let heads = ["what", "bytes", "seconds", "rate", "calls/s"].map(Into::into);
        let mut lines: Vec<Vec<Vec<u8>>> = vec![heads.to_vec()];
        for DemoRow { what, bytes, operations, elapsed } in &self.rows {
            let seconds = elapsed.as_secs_f64().max(1e-9);
            let cells = [
                what.clone(),
                human(*bytes),
                format!("{seconds:.2}"),
                rate(*bytes, *elapsed),
                per_second(*operations, *elapsed).to_string(),
            ];
            lines.push(cells.map(String::into_bytes).to_vec());
        }
        table(&lines, &[false, true, true, true, true])
    }
}

/// Bytes per second as people read them.
fn rate(bytes: u64, elapsed: Duration) -> String {
    format!("{}/s", human(per_second(bytes, elapsed)))
}

fn per_second(count: u64, elapsed: Duration) -> u64 {
    let per_second = u128::from(count) * 1_000_000_000 / elapsed.as_nanos().max(1);
    u64::try_from(per_second).unwrap_or(u64::MAX)
}
