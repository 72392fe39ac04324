//! `mdfs disk drain` and `retire`, and waiting while data moves.

use std::str::FromStr;
use std::time::{Duration, Instant};

use client::VolumeAddress;
use client::protocol::{DiskChange, DiskCondition, DiskList, DiskReport};
use serde::Serialize;

use super::change::change;
use crate::connection::{ConnectionArguments, volume_address};
use crate::disk_report::name;
use crate::exit::CommandFailure;
use crate::progress::Progress;
use crate::session::CommandSession;
use crate::size::human;

/// How often it is looked how far it is.
const LOOK_PAUSE: Duration = Duration::from_millis(250);

/// A disk, as in n0d1: disk 1 of disk node 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DiskArgument {
    pub(crate) disk_node: u32,
    pub(crate) disk: u32,
}

impl FromStr for DiskArgument {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts = text.strip_prefix('n').and_then(|rest| rest.split_once('d'));
        let numbers = parts.and_then(|(node, disk)| Some((node.parse().ok()?, disk.parse().ok()?)));
        let (disk_node, disk) =
            numbers.ok_or("write a disk as `mdfs disk list` does, as in n0d1")?;
        Ok(Self { disk_node, disk })
    }
}

impl std::fmt::Display for DiskArgument {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "n{}d{}", self.disk_node, self.disk)
    }
}

/// How fast data moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Pace {
    /// Hardly noticed: 8 MiB/s for each process that is busy, up to 256 MiB/s as it is less so.
    Gentle,
    /// 32 MiB/s for each process that is busy, more as it is less so.
    Balanced,
    /// As fast as it goes.
    Fast,
}

/// The options of all that moves data.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct MoveArguments {
    /// How fast data moves; as it was set last without this, and balanced at first.
    #[arg(long, value_name = "PACE")]
    pace: Option<Pace>,
    /// Do not wait for the end; it goes on while the volume is served.
    #[arg(long)]
    no_wait: bool,
    /// Print the result as JSON.
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    connection: ConnectionArguments,
}

/// What has moved, and how long that took.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Moved {
    bytes: u64,
    seconds: f64,
}

/// What a command has come to, as JSON.
#[derive(Debug, Serialize)]
pub(super) struct ChangeReport {
    volume: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) disk: Option<String>,
    pub(super) state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) added: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    moved_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    seconds: Option<f64>,
}

impl ChangeReport {
    /// Of a disk, or of all.
    pub(super) fn new(
        volume: &VolumeAddress,
        disk: Option<DiskArgument>,
        state: &'static str,
    ) -> Self {
        let (volume, disk) = (volume.to_string(), disk.map(|disk| disk.to_string()));
        Self { volume, disk, state, added: None, moved_bytes: None, seconds: None }
    }

    /// With what has moved up to now: nothing, if the command did not wait.
    pub(super) fn with_moved(self, moved: Option<Moved>) -> Self {
        let Moved { bytes, seconds } = moved.unwrap_or_default();
        Self { moved_bytes: Some(bytes), seconds: Some(seconds), ..self }
    }
}

impl MoveArguments {
    /// Of a command that waits, and reports to people.
    pub(crate) fn new(pace: Option<Pace>, connection: &ConnectionArguments) -> Self {
        Self { pace, no_wait: false, json: false, connection: connection.clone() }
    }

    /// Opens volumes, and sets the pace.
    pub(crate) fn begin(
        &self,
        session: &mut CommandSession,
        volume: &VolumeAddress,
    ) -> Result<(), CommandFailure> {
        session.connect_with(&self.connection);
        let Some(pace) = self.pace else { return Ok(()) };
        let pace = match pace {
            Pace::Gentle => "gentle",
            Pace::Balanced => "balanced",
            Pace::Fast => "fast",
        };
        change(session, volume, DiskChange::SetPace { pace: pace.to_owned() })
    }

    /// Makes a change by which data moves, waits while `left` tells how many bytes are left to
    /// move, and tells people what was done to `disk`, or to all. `None` if it does not wait.
    /// Fails if `left` says why it never ends.
    #[allow(clippy::disallowed_methods, reason = "a command waits for the servers")]
    pub(super) fn carry_out(
        &self,
        session: &mut CommandSession,
        address: &VolumeAddress,
        (asked, disk, done): (DiskChange, Option<DiskArgument>, &str),
        left: impl Fn(&DiskList) -> Result<Option<u64>, CommandFailure>,
    ) -> Result<Option<Moved>, CommandFailure> {
        if self.no_wait {
            change(session, address, asked)?;
            return Ok(None);
        }
        let volume = session.open(address)?;
        let look = || volume.disks().map_err(|error| CommandFailure::inside(address, error));
        // Data begins to move before the change is answered.
        let (begun, first) = (Instant::now(), look()?);
        change(session, address, asked)?;
        let mut now = look()?;
        let most = left(&now)?.unwrap_or(0);
        let progress = Progress::of_work(most);
        let mut shown_trouble = String::new();
        while let Some(left_bytes) = left(&now)? {
            let moved = now.moved_bytes.saturating_sub(first.moved_bytes);
            let rate = u128::from(moved) * 1000 / begun.elapsed().as_millis().max(1);
            let text = format!("{} left, {}/s", human(left_bytes), human(rate as u64));
            progress.at(most.saturating_sub(left_bytes), text);
            if !now.trouble.is_empty() && now.trouble != shown_trouble {
                shown_trouble.clone_from(&now.trouble);
                progress.print_above(&format!("something could not be moved yet: {shown_trouble}"));
            }
            std::thread::sleep(LOOK_PAUSE);
            now = look()?;
        }
        progress.finish();
        let moved_bytes = now.moved_bytes.saturating_sub(first.moved_bytes);
        let seconds = begun.elapsed().as_secs_f64();
        if !self.json {
            let what = disk.map_or_else(|| address.to_string(), |disk| disk.to_string());
            session.print(format!(
                "{what} {done}; {} moved in {seconds:.1} s\n",
                human(moved_bytes)
            ))?;
        }
        Ok(Some(Moved { bytes: moved_bytes, seconds }))
    }
}

/// Move all that a disk holds to other disks, so that it can be taken out.
///
/// Nothing new comes to it. It goes on by itself, also after a crash or a restart.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mdfs disk drain scratch n0d1
  mdfs disk drain --pace gentle --no-wait scratch n0d1
  mdfs disk drain --cancel scratch n0d1        use it again")]
pub(super) struct Drain {
    /// Use the disk again; what has moved stays where it is.
    #[arg(long, conflicts_with_all = ["pace", "no_wait"])]
    cancel: bool,
    #[command(flatten)]
    moves: MoveArguments,
    /// The volume: its directory, or `mdfs://HOST[:PORT]/VOLUME`.
    #[arg(value_name = "VOL", value_parser = volume_address())]
    volume: VolumeAddress,
    /// The disk, as `mdfs disk list` names it.
    #[arg(value_name = "DISK")]
    disk: DiskArgument,
}

impl Drain {
    pub(super) fn run(&self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        self.moves.begin(session, &self.volume)?;
        if self.cancel {
            return self.cancel(session);
        }
        let moved = drain(session, &self.volume, self.disk, &self.moves)?;
        let (volume, disk) = (&self.volume, self.disk);
        if self.moves.json {
            let state = if moved.is_some() { "drained" } else { "draining" };
            let report = ChangeReport::new(volume, Some(disk), state).with_moved(moved);
            return session.print_json(&report);
        }
        session.print(if moved.is_some() {
            format!("next: mdfs disk retire {volume} {disk}\n")
        } else {
            format!("{disk} is being drained; next, once it is: mdfs disk retire {volume} {disk}\n")
        })
    }

    fn cancel(&self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        let DiskArgument { disk_node, disk } = self.disk;
        change(session, &self.volume, DiskChange::Keep { disk_node, disk })?;
        if self.moves.json {
            let report = ChangeReport::new(&self.volume, Some(self.disk), "online");
            return session.print_json(&report);
        }
        session.print(format!("the drain of {} is cancelled: it is in use\n", self.disk))
    }
}

/// Drains a disk. `None` if it does not wait for it.
pub(crate) fn drain(
    session: &mut CommandSession,
    volume: &VolumeAddress,
    of: DiskArgument,
    moves: &MoveArguments,
) -> Result<Option<Moved>, CommandFailure> {
    let DiskArgument { disk_node, disk } = of;
    let asked = DiskChange::Drain { disk_node, disk };
    moves.carry_out(session, volume, (asked, Some(of), "is drained"), |list| {
        let report = list.disks.iter().find(|report| is(report, of));
        match report.map(|report| (report.condition, report.used_bytes)) {
            Some((
                DiskCondition::Draining {}
                | DiskCondition::Offline {}
                | DiskCondition::Lost {}
                | DiskCondition::Returning {},
                left,
            )) => Ok(Some(left)),
            Some((DiskCondition::Drained {} | DiskCondition::Retired {}, _)) => Ok(None),
            Some((DiskCondition::Online {}, _)) | None => Err(CommandFailure::Wrong(format!(
                "the drain of {of} was cancelled: another command has put it to use again"
            ))),
        }
    })
}

pub(super) fn is(report: &DiskReport, disk: DiskArgument) -> bool {
    name(report) == disk.to_string()
}

/// Take a disk that was drained out of the volume, for good. It can be removed then.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mdfs disk retire scratch n0d1")]
pub(super) struct Retire {
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: ConnectionArguments,
    /// The volume: its directory, or `mdfs://HOST[:PORT]/VOLUME`.
    #[arg(value_name = "VOL", value_parser = volume_address())]
    volume: VolumeAddress,
    /// The disk, as `mdfs disk list` names it.
    #[arg(value_name = "DISK")]
    disk: DiskArgument,
}

impl Retire {
    pub(super) fn run(&self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        session.connect_with(&self.connection);
        retire(session, &self.volume, self.disk)?;
        if !self.json {
            return session.print(retired(self.disk));
        }
        session.print_json(&ChangeReport::new(&self.volume, Some(self.disk), "retired"))
    }
}

/// Retires a disk that was drained.
pub(crate) fn retire(
    session: &mut CommandSession,
    volume: &VolumeAddress,
    of: DiskArgument,
) -> Result<(), CommandFailure> {
    let DiskArgument { disk_node, disk } = of;
    change(session, volume, DiskChange::Retire { disk_node, disk })
}

/// What is said of a disk that was retired.
pub(crate) fn retired(disk: DiskArgument) -> String {
    format!("{disk} is retired: disks/{disk} of the volume can be removed\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_are_written_as_they_are_listed() {
        let disk = DiskArgument { disk_node: 12, disk: 3 };
        assert_eq!("n12d3".parse(), Ok(disk));
        assert_eq!(disk.to_string(), "n12d3");
        for bad in ["", "n1", "d1", "n1d", "nd", "1d2", "n-1d0", "/dev/sdb"] {
            assert!(bad.parse::<DiskArgument>().is_err(), "{bad}");
        }
    }
}
