//! `mdfs partition create`, `limit` and `remove`.

use std::str::FromStr;
use std::thread::sleep;
use std::time::Duration;

use client::VolumeAddress;
use client::blocking::Volume;
use client::protocol::{Name, PartitionChange};

use crate::connection::{ConnectionArguments, volume_address};
use crate::exit::CommandFailure;
use crate::session::CommandSession;
use crate::size::{BadByteSize, ByteSize};

/// How often a removal is looked at.
const REMOVAL_LOOK: Duration = Duration::from_millis(200);

/// What all changes of a partition name.
#[derive(Debug, clap::Args)]
struct PartitionArguments {
    #[command(flatten)]
    connection: ConnectionArguments,
    /// The volume: its directory, or `mdfs://HOST[:PORT]/VOLUME`.
    #[arg(value_name = "VOL", value_parser = volume_address())]
    volume: VolumeAddress,
    /// The name of the partition, and of its root in the root directory of the volume.
    #[arg(value_name = "NAME", value_parser = partition_name)]
    name: Name,
}

impl PartitionArguments {
    /// Opens the volume, and asks for a change there.
    fn change(
        &self,
        session: &mut CommandSession,
        change: PartitionChange,
    ) -> Result<Volume, CommandFailure> {
        session.connect_with(&self.connection);
        let volume = session.open(&self.volume)?;
        volume.change_partitions(change).map_err(|error| self.failed(error))?;
        Ok(volume)
    }

    fn failed(&self, error: client::Error) -> CommandFailure {
        CommandFailure::inside(&self.volume, error)
    }
}

/// Make a partition.
///
/// Files get space in its blocks, and have one checksum for each. Large blocks make the metadata of
/// large files small; a small file takes a whole block, and a change of a part of a block writes
/// all of it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mdfs partition create scratch home
  mdfs partition create scratch checkpoints --block 64KiB --limit 2TiB")]
pub(super) struct CreatePartition {
    /// Bytes of a block: 4KiB or 2, 4, 8, ... times as much, at most a stripe of the volume.
    #[arg(long, value_name = "SIZE", default_value = "4KiB")]
    block: ByteSize,
    /// Bytes that its files may have together; without it as much as the volume has.
    #[arg(long, value_name = "SIZE")]
    limit: Option<ByteSize>,
    #[command(flatten)]
    partition: PartitionArguments,
}

impl CreatePartition {
    pub(super) fn run(&self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        // One that is larger than a number of 32 bits divides no stripe.
        let block_bytes = u32::try_from(self.block.0).unwrap_or(u32::MAX);
        let limit_bytes = self.limit.map(|limit| limit.0);
        let name = self.partition.name.clone();
        let change = PartitionChange::Create { name, block_bytes, limit_bytes };
        self.partition.change(session, change).map(drop)
    }
}

/// A size, or none.
#[derive(Clone, Copy, Debug)]
struct SizeLimit(Option<ByteSize>);

impl FromStr for SizeLimit {
    type Err = BadByteSize;

    fn from_str(text: &str) -> Result<Self, BadByteSize> {
        if text == "none" { Ok(Self(None)) } else { Ok(Self(Some(text.parse()?))) }
    }
}

/// Give a partition another size limit.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mdfs partition limit scratch home 500GiB
  mdfs partition limit scratch home none")]
pub(super) struct LimitPartition {
    #[command(flatten)]
    partition: PartitionArguments,
    /// Bytes that its files may have together, or `none`. Below what they have nothing grows.
    #[arg(value_name = "SIZE")]
    limit: SizeLimit,
}

impl LimitPartition {
    pub(super) fn run(&self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        let (name, limit_bytes) = (self.partition.name.clone(), self.limit.0.map(|limit| limit.0));
        let change = PartitionChange::SetLimit { name, limit_bytes };
        self.partition.change(session, change).map(drop)
    }
}

/// Remove a partition, and wait until it is gone.
///
/// The servers go on with it after a crash, and when this command is interrupted.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mdfs partition remove scratch home
  mdfs partition remove --with-content --no-wait scratch checkpoints")]
pub(super) struct RemovePartition {
    /// Remove all files in it, too.
    #[arg(long)]
    with_content: bool,
    /// Do not wait.
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    partition: PartitionArguments,
}

impl RemovePartition {
    #[allow(clippy::disallowed_methods, reason = "a command waits for the servers")]
    pub(super) fn run(&self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        let (name, with_content) = (self.partition.name.clone(), self.with_content);
        let remove = PartitionChange::Remove { name, with_content };
        let volume = self.partition.change(session, remove.clone())?;
        let failed = |error| self.partition.failed(error);
        if self.no_wait {
            return Ok(());
        }
        loop {
            match volume.partitions().map_err(failed)?.named(&self.partition.name) {
                None => return Ok(()),
                Some(partition) if partition.is_going() => sleep(REMOVAL_LOOK),
                // Something came to be in it meanwhile.
                Some(_) => volume.change_partitions(remove.clone()).map_err(failed)?,
            }
        }
    }
}

/// For the argument parser: the name of a partition.
fn partition_name(text: &str) -> Result<Name, String> {
    Name::new(text.as_bytes().to_vec()).map_err(|error| error.to_string())
}
