//! `mdfs disk lost`.

use std::path::Path;
use std::str::FromStr;

use client::VolumeAddress;
use client::protocol::{DiskChange, NEVER_LOST};
use serde::Serialize;
use volume::{DataLoss, DiskName};

use super::change::change;
use super::moving::{ChangeReport, DiskArgument};
use crate::connection::{ConnectionArguments, volume_address};
use crate::exit::{CommandFailure, ServeError};
use crate::session::CommandSession;

/// How many seconds a host may be away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LossDelay(u32);

impl FromStr for LossDelay {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "never" {
            return Ok(Self(NEVER_LOST));
        }
        let seconds = text.parse().ok().filter(|seconds| *seconds < NEVER_LOST);
        seconds.map(Self).ok_or("write a number of seconds, or `never`")
    }
}

/// Go on without a disk that is lost, where all data is on others, too.
///
/// All that was on it is made anew on other disks from the other copies, while files are read and
/// written. The lost disk cannot come back. While the volume is served, a disk that fails is given
/// up by itself, and so are those of a host that is away for 10 minutes (`--after`); this command
/// does not wait for that. Else the volume can be served without the disk from then on. Every block
/// needs as many disks as it has copies: if fewer are left, add others while it is served.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mdfs disk lost scratch n0d1 && mdfs serve scratch
  mdfs disk list scratch                       how much is left to make anew
  mdfs disk lost --after 3600 mdfs://db1/scratch")]
pub(super) struct LostDisk {
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
    /// Go on although data is nowhere else: files that have some of it on the disk fail to be read
    /// there, also when the disk is found again. `mdfs check --files` names them.
    #[arg(long, conflicts_with = "after")]
    accept_data_loss: bool,
    /// From now on, give up the disks of a host that is away for this long, or `never`.
    #[arg(long, value_name = "SECONDS", conflicts_with = "disk")]
    after: Option<LossDelay>,
    #[command(flatten)]
    connection: ConnectionArguments,
    /// The volume: its directory, or `mdfs://HOST[:PORT]/VOLUME`.
    #[arg(value_name = "VOL", value_parser = volume_address())]
    volume: VolumeAddress,
    /// The disk, as `mdfs disk list` names it: n0d1 is disk 1 of disk node 0.
    #[arg(value_name = "DISK", required_unless_present = "after")]
    disk: Option<DiskArgument>,
}

#[derive(Debug, Serialize)]
struct LostReport {
    disk: String,
    disks_left: usize,
    disks_needed: u32,
}

impl LostDisk {
    pub(super) fn run(&self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        session.connect_with(&self.connection);
        if let Some(LossDelay(seconds)) = self.after {
            change(session, &self.volume, DiskChange::SetLossDelay { seconds })?;
            let report = ChangeReport::new(&self.volume, None, "set");
            return if self.json { session.print_json(&report) } else { Ok(()) };
        }
        let Some(disk) = self.disk else { return Ok(()) };
        match (session.open_served(&self.volume)?, &self.volume) {
            (None, VolumeAddress::Directory(volume)) => self.give_up(session, volume, disk),
            _ if self.accept_data_loss => Err(CommandFailure::Usage(
                "--accept-data-loss is for volumes of one process that are not served".to_owned(),
            )),
            _ => self.give_up_served(session, disk),
        }
    }

    fn give_up_served(
        &self,
        session: &mut CommandSession,
        lost: DiskArgument,
    ) -> Result<(), CommandFailure> {
        let DiskArgument { disk_node, disk } = lost;
        change(session, &self.volume, DiskChange::DeclareLost { disk_node, disk })?;
        if self.json {
            return session.print_json(&ChangeReport::new(&self.volume, Some(lost), "lost"));
        }
        let volume = &self.volume;
        session.print(format!(
            "{volume} goes on without {lost}, and makes anew what was on it. Next: mdfs disk list \
             {volume}\n"
        ))
    }

    /// In a volume that is not served.
    fn give_up(
        &self,
        session: &mut CommandSession,
        volume: &Path,
        lost: DiskArgument,
    ) -> Result<(), CommandFailure> {
        let DiskArgument { disk_node, disk } = lost;
        let policy = if self.accept_data_loss { DataLoss::Accepted } else { DataLoss::Refused };
        let given_up = volume::give_up_disk(volume, DiskName { disk_node, disk }, policy);
        let map = given_up.map_err(|error| CommandFailure::Serve {
            operation: "give up a disk of",
            volume: volume.to_path_buf(),
            error: ServeError::Stack(error),
        })?;
        let (disks_left, disks_needed) = (map.disks().len(), map.redundancy().copies());
        if self.json {
            let disk = lost.to_string();
            return session.print_json(&LostReport { disk, disks_left, disks_needed });
        }
        let volume = volume.display();
        let others = if self.accept_data_loss { " and elsewhere; the rest is lost" } else { "" };
        session.print(format!(
            "{volume} goes on without {lost}. Next: mdfs serve {volume}, which makes anew what was \
             on it{others}\n"
        ))?;
        if disks_left < disks_needed as usize {
            session.print(format!(
                "data need {disks_needed} disks, and there is {disks_left}: mdfs disk add \
                 {volume}, while it is served; until then nothing can be written\n"
            ))?;
        }
        Ok(())
    }
}
