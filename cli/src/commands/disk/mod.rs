//! `mdfs disk`: the disks of a volume, while it is in use.

mod add;
mod change;
mod list;
mod lost;
mod moving;
pub(super) mod rebalance;
mod replace;

pub(super) use self::change::change;
pub(super) use self::moving::{DiskArgument, MoveArguments, Pace, drain, retire, retired};
use self::moving::{Drain, Retire};
use crate::exit::CommandFailure;
use crate::session::CommandSession;

/// List, add, drain, retire and replace the disks of a volume, while it is in use; go on without
/// one that is lost.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mdfs disk list scratch
  mdfs disk add scratch /dev/sdd
  mdfs disk replace scratch n0d1 /dev/sdd")]
pub(crate) struct DiskCommand {
    #[command(subcommand)]
    action: DiskAction,
}

#[derive(Debug, clap::Subcommand)]
enum DiskAction {
    List(list::ListDisks),
    Add(add::AddDisks),
    Drain(Drain),
    Retire(Retire),
    Replace(replace::Replace),
    Lost(lost::LostDisk),
}

impl DiskCommand {
    pub(super) fn run(&self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        match &self.action {
            DiskAction::List(list) => list.run(session),
            DiskAction::Add(add) => add.run(session),
            DiskAction::Drain(drain) => drain.run(session),
            DiskAction::Retire(retire) => retire.run(session),
            DiskAction::Replace(replace) => replace.run(session),
            DiskAction::Lost(lost) => lost.run(session),
        }
    }
}
