//! `mdfs partition list`.

use client::VolumeAddress;
use client::blocking::Volume;
use client::protocol::Partition;
use serde::Serialize;

use crate::connection::{ConnectionArguments, volume_address};
use crate::exit::CommandFailure;
use crate::output::table;
use crate::session::CommandSession;
use crate::size::human;

/// Show the partitions of a volume.
///
/// The first one, `/`, is all that is in no other partition; its space is that of the volume.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mdfs partition list scratch
  mdfs partition list --json scratch | jq '.[] | {name, used_bytes}'")]
pub(super) struct ListPartitions {
    /// As JSON, in bytes.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: ConnectionArguments,
    /// The volume: its directory, or `mdfs://HOST[:PORT]/VOLUME`.
    #[arg(value_name = "VOL", value_parser = volume_address())]
    volume: VolumeAddress,
}

/// A partition as JSON has it.
#[derive(Debug, Serialize)]
struct ListedPartition {
    name: String,
    number: u16,
    /// `online`, or `removing`.
    state: &'static str,
    block_bytes: u32,
    limit_bytes: Option<u64>,
    used_bytes: u64,
    available_bytes: u64,
    inodes: u64,
}

impl ListPartitions {
    pub(super) fn run(&self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        session.connect_with(&self.connection);
        let volume = session.open(&self.volume)?;
        let listed = list(&volume).map_err(|error| CommandFailure::inside(&self.volume, error))?;
        if self.json {
            return session.print_json(&listed);
        }
        let row = |cells: [String; 7]| cells.map(String::into_bytes).to_vec();
        let heads =
            ["Partition", "State", "Block", "Limit", "Used", "Avail", "Files"].map(str::to_owned);
        let mut rows = vec![row(heads)];
        rows.extend(listed.iter().map(|partition| {
            row([
                partition.name.clone(),
                partition.state.to_owned(),
                human(u64::from(partition.block_bytes)),
                partition.limit_bytes.map_or_else(|| "-".to_owned(), human),
                human(partition.used_bytes),
                human(partition.available_bytes),
                partition.inodes.to_string(),
            ])
        }));
        session.print(table(&rows, &[false, false, true, true, true, true, true]))
    }
}

/// Partition 0 first.
fn list(volume: &Volume) -> Result<Vec<ListedPartition>, client::Error> {
    let whole = volume.partition_space(0)?;
    let mut listed = vec![ListedPartition {
        name: "/".to_owned(),
        number: 0,
        state: "online",
        block_bytes: client::protocol::BLOCK_SIZE as u32,
        limit_bytes: None,
        used_bytes: whole.total_bytes.saturating_sub(whole.free_bytes),
        available_bytes: whole.available_bytes,
        inodes: whole.inodes,
    }];
    for partition in volume.partitions()?.partitions {
        let space = match volume.partition_space(partition.number) {
            Ok(space) => space,
            // It has just been removed.
            Err(error) if error.cause.is_stale() => continue,
            Err(error) => return Err(error),
        };
        let is_going = partition.is_going();
        let Partition { number, name, block_bytes, limit_bytes, .. } = partition;
        listed.push(ListedPartition {
            name: name.to_string(),
            number,
            state: if is_going { "removing" } else { "online" },
            block_bytes,
            limit_bytes,
            used_bytes: space.total_bytes.saturating_sub(space.free_bytes),
            available_bytes: space.available_bytes,
            inodes: space.inodes,
        });
    }
    Ok(listed)
}
