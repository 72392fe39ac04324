//! `mdfs emulate`: the J-Machine of 1996, with today's layers on it.

mod checkpoint;
mod figures;

use self::checkpoint::Checkpointing;
use self::figures::Drawing;
use crate::exit::Failure;
use crate::session::Session;

/// Run the layers on an emulated J-Machine: a checkpoint, or the figures of the MDFS thesis.
///
/// Without --figure: makes a volume on 8x8x8 nodes with disk nodes on their edge, lets programs on
/// application nodes write a file each, restarts all nodes, reads the files back and compares them. Time is
/// virtual; all messages go through the mesh, and the same seed does the same on any day and machine.
///
/// With --figure: does figures of chapter 4 again: block I/O, cache and files as they are today, on
/// processors, a mesh and disks that take the time of a profile. Printed are what the thesis says, what the
/// ideal profile gives and what the calibrated one gives, and which numbers were fitted.
/// docs/reproduction.md tells what agrees, what does not, and why.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mdfs emulate                                     a checkpoint on the mesh
  mdfs emulate --disk-nodes 2 --forwarders spread --movie load.html   then open load.html in a browser
  mdfs emulate --figure 4.2b                       a table
  mdfs emulate --figure all --out figures          tables, and a picture (SVG), CSV and JSON of each
  mdfs emulate --explain                           every number of the machine, with its source
  mdfs emulate --figure 4.1a --profile mine.toml   with other costs than those of 1996

A profile is a TOML file with a table for each number, as --explain names them:
  about = \"A faster copy.\"
  based_on = \"as-measured\"
  [disk_node.copy]
  value = 40
  unit = \"cycles per word\"
  confidence = \"I\"
  source = \"what if\"")]
pub(crate) struct Emulate {
    #[command(flatten, next_help_heading = "A checkpoint")]
    checkpointing: Checkpointing,
    #[command(flatten, next_help_heading = "Figures of the thesis")]
    drawing: Drawing,
}

impl Emulate {
    pub(super) fn run(&self, session: &mut Session) -> Result<(), Failure> {
        if self.drawing.is_meant() {
            self.drawing.run(session)
        } else {
            self.checkpointing.run(session)
        }
    }
}
