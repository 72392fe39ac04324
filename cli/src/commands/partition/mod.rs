//! `mdfs partition`: file systems of their own on the disks of one volume.

mod change;
mod list;

use self::change::{CreatePartition, LimitPartition, RemovePartition};
use crate::exit::CommandFailure;
use crate::session::CommandSession;

/// Create, list, limit and remove the partitions of a volume.
///
/// A partition is a file system of its own on the disks of the volume, with its own block size, and
/// a size limit if it is given one. Its root is the directory of its name in the root directory of
/// the volume. A file has names in one partition only.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mdfs partition create scratch checkpoints --block 64KiB
  mdfs partition list scratch
  mdfs mount scratch /mnt/scratch        has it as /mnt/scratch/checkpoints")]
pub(crate) struct PartitionCommand {
    #[command(subcommand)]
    action: PartitionAction,
}

#[derive(Debug, clap::Subcommand)]
enum PartitionAction {
    Create(CreatePartition),
    List(list::ListPartitions),
    Limit(LimitPartition),
    Remove(RemovePartition),
}

impl PartitionCommand {
    pub(super) fn run(&self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        match &self.action {
            PartitionAction::Create(create) => create.run(session),
            PartitionAction::List(list) => list.run(session),
            PartitionAction::Limit(limit) => limit.run(session),
            PartitionAction::Remove(remove) => remove.run(session),
        }
    }
}
