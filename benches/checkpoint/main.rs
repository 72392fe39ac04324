//! What checkpoints and restarts ask of a file system, done by several sides in turn: ours, the
//! host's file system on the same disk (ext4, say) through its page cache and past it, and a file
//! system in memory as the limit.
//!
//! `cargo bench -p benches --bench checkpoint` prints the table. Each round does all works on all
//! sides; figures are medians of the rounds, ratios those of the rounds, so that what all sides
//! suffer in a round cancels out. A word after it chooses the works with this word in their names
//! (`-- restart`), a number the rounds (`-- restart 3`).
//!
//! Ours is a volume of 64 nodes in this process, asked by ordinary threads through the blocking
//! client. Durable means: synced at the end, the time of that included. The side in memory is never
//! durable.
//!
//! | file | holds |
//! | --- | --- |
//! | `sides.rs` | the sides, behind the same few calls |
//! | `works.rs` | what is done, one function for each row |
//! | `inside.rs` | the row that is done by programs inside the machine |
//! | `report.rs` | the table |

mod inside;
mod report;
mod sides;
mod works;

use benches::{in_earnest, sized};

use crate::report::CheckpointBenchRow;
use crate::sides::CheckpointSide;
use crate::works::{CheckpointScale, CheckpointWork, WORKS};

/// As the program `mdfs` has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const ROUNDS: usize = 5;
const ROUNDS_IN_TEST: usize = 1;

/// The words of the command line: which works, and how many rounds.
fn asked() -> (Vec<&'static CheckpointWork>, usize) {
    let words: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let rounds = words.iter().find_map(|word| word.parse().ok());
    let names: Vec<&String> = words.iter().filter(|word| word.parse::<usize>().is_err()).collect();
    let is_chosen = |work: &&CheckpointWork| {
        let is_named = |name: &&String| name.as_str() == "checkpoint" || work.name.contains(*name);
        !in_earnest() || names.is_empty() || names.iter().any(is_named)
    };
    (WORKS.iter().filter(is_chosen).collect(), rounds.unwrap_or(sized(ROUNDS, ROUNDS_IN_TEST)))
}

fn main() {
    let (works, rounds) = asked();
    if works.is_empty() {
        return;
    }
    let scale = sized(CheckpointScale::EARNEST, CheckpointScale::TEST);
    let mut sides = CheckpointSide::all(&scale);
    let mut rows: Vec<CheckpointBenchRow> =
        works.iter().map(|work| CheckpointBenchRow::new(work)).collect();
    for _ in 0..rounds {
        for (work, row) in works.iter().zip(&mut rows) {
            for side in &mut sides {
                if work.is_for(side.kind()) {
                    let rate = (work.run)(side, &scale);
                    row.note(side.kind(), rate);
                }
            }
        }
        sides.iter_mut().for_each(CheckpointSide::clear);
    }
    report::print(&rows);
}
