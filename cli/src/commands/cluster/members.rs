//! `mdfs cluster remove` and `mdfs cluster add`: who is of a cluster.

use std::path::{Path, PathBuf};

use ::cluster::membership::ProcessId;
use client::VolumeAddress;
use client::protocol::{DiskChange, DiskCondition, DiskReport};
use volume::cluster::{self, Engine};
use volume::{DRAINING_MAX, DiskName};

use super::file::MachineFile;
use crate::commands::disk::{DiskArgument, MoveArguments, Pace, change, drain, retire, retired};
use crate::connection::ConnectionArguments;
use crate::exit::CommandFailure;
use crate::session::CommandSession;
use crate::size::human;

/// Take a process out of a cluster: its nodes go to the others, and it does not come back.
///
/// Waits until the process has no nodes; no request fails meanwhile. Then end it (SIGTERM, or
/// `systemctl disable --now`): it refuses to start again until `mdfs cluster add` takes it in. A
/// process with disks in use is refused; with --drain what they hold moves to the disks of others
/// first, and they are retired. That needs a process of the cluster on this host.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mdfs cluster remove cluster.toml 3
  mdfs cluster remove --drain cluster.toml 2  one with disks
  mdfs cluster status cluster.toml            its state is \"removed\"")]
pub(super) struct Remove {
    /// Move what is on its disks to others, and retire them.
    #[arg(long)]
    drain: bool,
    /// How fast data moves; as it was set last without this, and balanced at first.
    #[arg(long, value_name = "PACE", requires = "drain")]
    pace: Option<Pace>,
    #[command(flatten)]
    connection: ConnectionArguments,
    /// The machine file.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Which process of it.
    #[arg(value_name = "NUMBER")]
    number: u32,
}

/// Take a process in that was removed.
///
/// It gets nodes as soon as it runs. A process that is new needs only its place at the end of the
/// machine file, and its keys (`mdfs cluster certify`): it is taken in when it starts, with its
/// disks.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mdfs cluster add cluster.toml 3
  mdfs cluster serve cluster.toml 3           on its host")]
pub(super) struct Add {
    /// The machine file.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Which process of it.
    #[arg(value_name = "NUMBER")]
    number: u32,
}

impl Remove {
    pub(super) fn run(&self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        let (engine, process) = find(&self.file, self.number)?;
        let failed = |error: &dyn std::fmt::Display| {
            CommandFailure::Wrong(format!("{process} is not removed: {error}"))
        };
        let status = cluster::status(&engine).map_err(|error| failed(&error))?;
        let disks = cluster::disks_in_use(&status, process);
        if !disks.is_empty() {
            session.connect_with(&self.connection);
            let volume = self.served(session)?;
            let reports = volume.as_ref().map(|volume| reports(session, volume, &disks));
            match (volume, reports) {
                (Some(volume), Some(Ok(reports))) if self.drain => {
                    self.drain_all(session, &volume, &reports)?;
                }
                (_, Some(Err(error))) if self.drain => {
                    let why = format!(
                        "not all nodes of the volume answer ({error}); all processes with disks \
                         have to run: mdfs cluster status {}",
                        self.file.display()
                    );
                    return Err(failed(&why));
                }
                (_, reports) => {
                    let reports = reports.and_then(Result::ok).unwrap_or_default();
                    return Err(failed(&self.refusal(&disks, &reports)));
                }
            }
        }
        cluster::remove(&engine, process).map_err(|error| failed(&error))?;
        session.print(format!(
            "{process} has no nodes, and does not start again; end it if it still runs\n"
        ))
    }

    /// The volume by way of a process on this host.
    fn served(
        &self,
        session: &mut CommandSession,
    ) -> Result<Option<VolumeAddress>, CommandFailure> {
        let file = MachineFile::read(&self.file)?;
        let mut directories: Vec<(bool, PathBuf)> = Vec::new();
        for process in &file.processes {
            directories.push((process.number == self.number, process.directory.clone()));
        }
        // The one that leaves last.
        directories.sort_by_key(|(leaves, _)| *leaves);
        let addresses = directories.iter().map(|(_, path)| VolumeAddress::from(path.as_path()));
        for address in addresses {
            if let Ok(Some(_)) = session.open_served(&address) {
                return Ok(Some(address));
            }
        }
        Ok(None)
    }

    /// Why a process with these disks is not removed, and what to do.
    fn refusal(&self, disks: &[DiskName], reports: &[DiskReport]) -> String {
        let names: Vec<String> = disks.iter().map(ToString::to_string).collect();
        let (names, file, number) = (names.join(", "), self.file.display(), self.number);
        let used: u64 = reports.iter().map(|report| report.used_bytes).sum();
        let what = if reports.is_empty() {
            format!("its disks {names} are in use")
        } else {
            format!("{} are on its disks {names}", human(used))
        };
        format!(
            "{what}; on a host where a process of the cluster runs, this moves all to other disks \
             and takes it out: mdfs cluster remove --drain {file} {number}"
        )
    }

    /// Drains and retires disks.
    fn drain_all(
        &self,
        session: &mut CommandSession,
        volume: &VolumeAddress,
        reports: &[DiskReport],
    ) -> Result<(), CommandFailure> {
        let number = self.number;
        if let Some(report) = reports.iter().find(|it| it.condition == DiskCondition::Offline {}) {
            return Err(CommandFailure::Wrong(format!(
                "process {number} is not removed: its disk n{}d{} cannot be reached, from which data \
                 would move; on its host: mdfs cluster serve {} {number}",
                report.disk_node,
                report.disk,
                self.file.display()
            )));
        }
        let moves = MoveArguments::new(self.pace, &self.connection);
        moves.begin(session, volume)?;
        for some in reports.chunks(DRAINING_MAX) {
            for &DiskReport { disk_node, disk, .. } in some {
                change(session, volume, DiskChange::Drain { disk_node, disk })?;
            }
            for &DiskReport { disk_node, disk, .. } in some {
                let disk = DiskArgument { disk_node, disk };
                drain(session, volume, disk, &moves)?;
                retire(session, volume, disk)?;
                session.print(retired(disk))?;
            }
        }
        Ok(())
    }
}

/// What the volume says of these disks.
fn reports(
    session: &mut CommandSession,
    volume: &VolumeAddress,
    disks: &[DiskName],
) -> Result<Vec<DiskReport>, String> {
    let volume = session.open(volume).map_err(|error| error.to_string())?;
    let list = volume.disks().map_err(|error| error.to_string())?;
    let is_its = |report: &DiskReport| {
        disks.contains(&DiskName { disk_node: report.disk_node, disk: report.disk })
    };
    Ok(list.disks.into_iter().filter(is_its).collect())
}

impl Add {
    pub(super) fn run(&self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        let (engine, process) = find(&self.file, self.number)?;
        cluster::add(&engine, process)
            .map_err(|error| CommandFailure::Wrong(format!("{process} is not added: {error}")))?;
        session.print(format!(
            "{process} is of the cluster; if it does not run, start it: mdfs cluster serve {} {}\n",
            self.file.display(),
            self.number
        ))
    }
}

fn find(file: &Path, number: u32) -> Result<(Engine, ProcessId), CommandFailure> {
    let file = MachineFile::read(file)?;
    file.process(number)?;
    Ok((file.engine()?, ProcessId(number)))
}
