//! `mdfs disk list`.

use client::VolumeAddress;

use crate::connection::{ConnectionArguments, volume_address};
use crate::disk_report::{
    advice, meaning, name, percent, record, redundancy, rest, scrubbed, state,
};
use crate::exit::CommandFailure;
use crate::output::table;
use crate::session::CommandSession;
use crate::size::human;

/// Show the disks of a volume: how they are, what is on them, and what to do next.
///
/// online: in use. offline: its server does not answer, or it has failed. draining: what it holds
/// moves to others. drained: nothing is on it any more. retired: it is not part of the volume.
/// lost: what was on it is being made anew on others. Scrubbed: when all that is on it was last
/// compared with its checksums (`mdfs serve --scrub-days`).
/// Where the disks are only root and the owner of the volume's root directory see.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mdfs disk list scratch
  mdfs disk list --json scratch | jq '.disks[] | select(.state != \"online\")'")]
pub(super) struct ListDisks {
    /// As JSON, in bytes.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: ConnectionArguments,
    /// The volume: its directory, or `mdfs://HOST[:PORT]/VOLUME`.
    #[arg(value_name = "VOL", value_parser = volume_address())]
    volume: VolumeAddress,
}

impl ListDisks {
    pub(super) fn run(&self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        session.connect_with(&self.connection);
        let volume = session.open(&self.volume)?;
        let list = volume.disks().map_err(|error| CommandFailure::inside(&self.volume, error))?;
        if self.json {
            return session.print_json(&record(self.volume.to_string(), list));
        }
        let address = self.volume.to_string();
        let row = |cells: [String; 7]| cells.map(String::into_bytes).to_vec();
        let heads =
            ["Disk", "State", "Size", "Used", "Use%", "Scrubbed", "Where"].map(str::to_owned);
        let mut rows = vec![row(heads)];
        rows.extend(list.disks.iter().map(|disk| {
            row([
                name(disk),
                state(disk.condition).to_owned(),
                human(disk.bytes),
                human(disk.used_bytes),
                format!("{}%", percent(disk)),
                scrubbed(disk),
                disk.path.clone(),
            ])
        }));
        session.print(table(&rows, &[false, false, true, true, true, false, false]))?;
        session.print(format!("{}\n", redundancy(&list)))?;
        for disk in &list.disks {
            if let Some(meaning) = meaning(&address, disk) {
                session.print(format!("{}: {meaning}\n", name(disk)))?;
            }
            if let Some(advice) = advice(&address, disk) {
                session.print(format!("{}: {advice}\n", name(disk)))?;
            }
        }
        if let Some(rest) = rest(&list) {
            session.print(format!("{rest}\n"))?;
        }
        if let Some(bytes) = list.scrubbed_bytes {
            let read = human(bytes);
            session
                .print(format!("data is compared with its checksums: {read} were read so far\n"))?;
        }
        if list.balancing {
            session.print("data moves from fuller disks to emptier ones\n")?;
        }
        if list.silent_nodes > 0 {
            session.print(format!(
                "{} of the volume's nodes do not answer: what they have is not counted\n",
                list.silent_nodes
            ))?;
        }
        if !list.trouble.is_empty() {
            session.print(format!("something could not be moved: {}\n", list.trouble))?;
        }
        Ok(())
    }
}
