//! `mdfs-lab parity`: who makes parity, as in chapters 2 and 3 of Ohtsuji's thesis.
//!
//! Writers, storage nodes and a switch move real blocks over links in virtual time. What they store
//! is compared with what was written, and parity with a reference.
//!
//! | file | holds |
//! | --- | --- |
//! | `kernel.rs` | virtual time, links, processors |
//! | `ring.rs`, `transport.rs` | ring buffers with tails; one-sided writes with credits |
//! | `layout.rs`, `block.rs` | where blocks are; their bytes |
//! | `writer.rs`, `window.rs` | writers; what they wait for |
//! | `storage.rs`, `encoder.rs`, `switch.rs` | storage nodes; who gets whole stripes; the switch |
//! | `world.rs`, `message.rs` | one run, and its control messages |
//! | `update/`, `rebuild.rs` | updates of parts of a stripe; rebuilding a node |
//! | `model.rs`, `setup.rs` | formulas; the machine |
//! | `plant.rs`, `planted.rs` | faults in the code, and runs that find them |
//! | `chapter2.rs`, `chapter3.rs`, `safety.rs`, `table.rs` | experiments, and their tables |

#![allow(clippy::cast_precision_loss, reason = "rates and parts, printed with four digits")]

mod block;
mod chapter2;
mod chapter3;
mod encoder;
mod kernel;
mod layout;
mod message;
mod model;
mod plant;
mod planted;
mod rebuild;
mod ring;
mod safety;
mod setup;
mod storage;
mod switch;
mod table;
#[cfg(test)]
mod tests;
mod transport;
mod update;
mod window;
mod world;
mod writer;

use mdfs_cli::exit::CommandFailure;
use mdfs_cli::session::CommandSession;

use self::plant::ParityPlant;
use self::setup::ExperimentScale;
use self::table::ParityTable;

/// Compare makers of parity, as chapters 2 and 3 of Ohtsuji's thesis do.
///
/// Writers send real blocks over links of 6,000 MB/s in virtual time. Parity is made by the writer,
/// by a ring of storage nodes, by one process of the storage for each stripe (as MDFS does) or by a
/// switch. Numbers stand beside those of the thesis and of formulas. The command fails if a goal is
/// missed.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mdfs-lab parity                          the tables
  mdfs-lab parity --json                   for programs
  mdfs-lab parity --plant wrong-partner    a fault that must be found")]
pub(crate) struct Parity {
    /// As JSON
    #[arg(long)]
    json: bool,
    /// The seed of all runs
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Plant a fault, and fail if it shows
    #[arg(long)]
    plant: Option<ParityPlant>,
}

impl Parity {
    pub(crate) fn run(&self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        if let Some(plant) = self.plant {
            return match planted::flaws(plant, true, self.seed) {
                0 => session.print("nothing was found\n"),
                count => {
                    Err(CommandFailure::Wrong(format!("the planted fault shows: {count} flaws")))
                }
            };
        }
        let tables = tables(ExperimentScale::full(self.seed));
        if self.json {
            session.print_json(&tables)?;
        } else {
            let mut text = String::new();
            for table in &tables {
                table.print(&mut text);
            }
            session.print(text)?;
        }
        match tables.iter().map(ParityTable::missed).sum() {
            0_usize => Ok(()),
            count => Err(CommandFailure::Wrong(format!("{count} goals are missed: see above"))),
        }
    }
}

/// All experiments.
fn tables(scale: ExperimentScale) -> Vec<ParityTable> {
    vec![
        chapter2::pipes(scale),
        chapter2::raid4(scale),
        chapter2::raid5(scale),
        chapter2::scaling(scale),
        chapter2::order(scale),
        chapter2::traffic(scale),
        safety::updates(scale),
        safety::acknowledgements(scale),
        chapter3::gain(scale),
        chapter3::fall_back(scale),
        chapter3::rebuild(scale),
    ]
}
