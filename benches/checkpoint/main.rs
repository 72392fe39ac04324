//! What checkpoints and restarts ask of a file system, done by three sides in turn: ours, the host's file
//! system on the same disk (ext4, say) through its page cache, and a file system in memory as the limit.
//!
//! `cargo bench -p benches --bench checkpoint` prints the table and writes it as JSON and as a chart
//! (SVG) below `target/tmp`. Each round does all works on all sides; figures are medians of the rounds,
//! ratios those of the rounds, so that what all sides suffer in a round cancels out.
//!
//! Ours is a volume of 64 nodes in this process, asked by ordinary threads through the blocking client.
//! Durable means: synced at the end, the time of that included. The side in memory is never durable.
//!
//! | file | holds |
//! | --- | --- |
//! | `sides.rs` | the three sides, behind the same few calls |
//! | `works.rs` | what is done, one function for each row |
//! | `report.rs` | table, JSON, chart |

mod report;
mod sides;
mod works;

use benches::{in_earnest, sized};

use crate::report::Row;
use crate::sides::Side;
use crate::works::{Scale, WORKS};

const ROUNDS: usize = 5;
const ROUNDS_IN_TEST: usize = 1;

fn main() {
    let named: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    if in_earnest() && !named.is_empty() && !named.iter().any(|name| name == "checkpoint") {
        return;
    }
    let scale = sized(Scale::EARNEST, Scale::TEST);
    let mut sides = Side::all(&scale);
    let mut rows: Vec<Row> = WORKS.iter().map(Row::new).collect();
    for _ in 0..sized(ROUNDS, ROUNDS_IN_TEST) {
        for (work, row) in WORKS.iter().zip(&mut rows) {
            for side in &mut sides {
                let rate = (work.run)(side, &scale);
                row.note(side.kind(), rate);
            }
        }
        sides.iter_mut().for_each(Side::clear);
    }
    report::print(&rows);
    report::write(&rows, env!("CARGO_TARGET_TMPDIR"));
}
