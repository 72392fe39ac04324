//! `mdfs disk list`.

use std::time::Duration;

use client::VolumeAddress;
use client::protocol::{DiskCondition, DiskList, DiskReport, NEVER_LOST};
use serde::Serialize;

use crate::connection::{ConnectionArguments, volume_address};
use crate::exit::CommandFailure;
use crate::output::table;
use crate::session::CommandSession;
use crate::size::human;
use crate::time::date_of;

/// A disk with this number of repairs within a day should be replaced.
const REPAIRS_MAX: u64 = 10;

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

/// A disk as JSON has it.
#[derive(Debug, Serialize)]
struct ListedDisk {
    disk: String,
    state: &'static str,
    meaning: String,
    bytes: u64,
    used_bytes: u64,
    path: String,
    /// Since 1970, in seconds; 0 for never.
    scrubbed: u64,
    repairs: u64,
    repairs_in_day: u64,
    damaged: u64,
}

#[derive(Debug, Serialize)]
struct DisksRecord {
    volume: String,
    version: u64,
    pace: String,
    balancing: bool,
    redundancy: String,
    losses_left: u32,
    /// With none they are not given up.
    loss_delay_seconds: Option<u32>,
    moved_bytes: u64,
    moved_per_second: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    scrubbed_bytes: Option<u64>,
    #[serde(skip_serializing_if = "String::is_empty")]
    trouble: String,
    silent_nodes: u32,
    disks: Vec<ListedDisk>,
}

impl ListDisks {
    pub(super) fn run(&self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        session.connect_with(&self.connection);
        let volume = session.open(&self.volume)?;
        let list = volume.disks().map_err(|error| CommandFailure::inside(&self.volume, error))?;
        if self.json {
            return session.print_json(&record(&self.volume, list));
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

fn record(address: &VolumeAddress, list: DiskList) -> DisksRecord {
    let volume = address.to_string();
    let of = |disk: &DiskReport| ListedDisk {
        disk: name(disk),
        state: state(disk.condition),
        meaning: meaning(&volume, disk).unwrap_or_default(),
        bytes: disk.bytes,
        used_bytes: disk.used_bytes,
        path: disk.path.clone(),
        scrubbed: disk.scrubbed,
        repairs: disk.repairs,
        repairs_in_day: disk.repairs_in_day,
        damaged: disk.damaged,
    };
    let disks = list.disks.iter().map(of).collect();
    DisksRecord {
        volume,
        version: list.version,
        loss_delay_seconds: loss_delay(&list),
        pace: list.pace,
        balancing: list.balancing,
        redundancy: list.redundancy,
        losses_left: list.losses_left,
        moved_bytes: list.moved_bytes,
        moved_per_second: list.moved_per_second,
        scrubbed_bytes: list.scrubbed_bytes,
        trouble: list.trouble,
        silent_nodes: list.silent_nodes,
        disks,
    }
}

fn loss_delay(list: &DiskList) -> Option<u32> {
    Some(list.loss_delay_seconds).filter(|seconds| *seconds != NEVER_LOST)
}

/// What a loss of disks would cost now.
fn redundancy(list: &DiskList) -> String {
    let DiskList { redundancy, losses_left, .. } = list;
    let delay = match loss_delay(list) {
        Some(seconds) => format!("given up after {seconds} s"),
        None => "waited for".to_owned(),
    };
    match (&redundancy[..], losses_left) {
        ("none", _) => {
            "redundancy none: a disk that is lost takes data with it, but for what has a class \
                        of its own"
                .to_owned()
        }
        (_, 0) => format!(
            "redundancy {redundancy}: data is at risk, no further disk may be lost; hosts that are \
             away are {delay}"
        ),
        (_, left) => format!(
            "redundancy {redundancy}: {left} more {} may be lost without loss of data; hosts that \
             are away are {delay}",
            if *left == 1 { "disk" } else { "disks" }
        ),
    }
}

/// As `n0d1`.
pub(super) fn name(disk: &DiskReport) -> String {
    format!("n{}d{}", disk.disk_node, disk.disk)
}

/// The word for it.
pub(super) fn state(condition: DiskCondition) -> &'static str {
    match condition {
        DiskCondition::Online {} => "online",
        DiskCondition::Offline {} => "offline",
        DiskCondition::Draining {} => "draining",
        DiskCondition::Drained {} => "drained",
        DiskCondition::Retired {} => "retired",
        DiskCondition::Lost {} => "lost",
        DiskCondition::Returning {} => "returning",
    }
}

fn percent(disk: &DiskReport) -> u128 {
    (u128::from(disk.used_bytes) * 100).div_ceil(u128::from(disk.bytes.max(1)))
}

/// What there is to say of a disk that is not simply in use, and what to do.
fn meaning(volume: &str, disk: &DiskReport) -> Option<String> {
    let name = name(disk);
    if let Some(obstacle) = disk.obstacle {
        return Some(format!(
            "the host file system below it is {obstacle}: nothing is written until that ends"
        ));
    }
    match disk.condition {
        DiskCondition::Online {} => None,
        DiskCondition::Offline {} => Some(format!(
            "its server does not answer, or the disk has failed; see to that host. If it never \
                 comes back, and data have copies: mdfs disk lost {volume} {name}"
        )),
        DiskCondition::Draining {} => Some(format!(
            "{} are left to move to other disks; `mdfs disk drain --cancel {volume} {name}` uses \
             it again",
            human(disk.used_bytes)
        )),
        DiskCondition::Drained {} => Some(format!(
            "nothing is on it any more; keep it in its place until `mdfs disk retire {volume} \
             {name}` has taken it out"
        )),
        DiskCondition::Retired {} => {
            Some("it is not part of the volume any more; it can be removed".to_owned())
        }
        DiskCondition::Lost {} => Some(format!(
            "{} that were on it are left to make anew on other disks, from other copies; it is \
             retired by itself then. If too few disks are left: mdfs disk add {volume}",
            human(disk.used_bytes)
        )),
        DiskCondition::Returning {} => Some(
            "its host was away and is back: it is online once it has all that it missed".to_owned(),
        ),
    }
}

/// When all that is on a disk was compared with its checksums.
fn scrubbed(disk: &DiskReport) -> String {
    if disk.scrubbed == 0 {
        return "never".to_owned();
    }
    let date = date_of(Duration::from_secs(disk.scrubbed));
    date.chars().take("2026-01-31 23:59".len()).collect()
}

/// What the blocks that were bad say of a disk.
fn advice(volume: &str, disk: &DiskReport) -> Option<String> {
    let DiskReport { repairs, repairs_in_day, damaged, .. } = *disk;
    let name = name(disk);
    if damaged > 0 {
        return Some(format!(
            "{damaged} blocks on it are bad and have no good copy: `mdfs check --files {volume}` \
             names the files, which are to be restored from a backup"
        ));
    }
    if repairs_in_day >= REPAIRS_MAX {
        return Some(format!(
            "{repairs_in_day} repairs in 24 h: replace it; add another one with `mdfs disk add`, \
             then empty it with `mdfs disk drain {volume} {name}`"
        ));
    }
    (repairs > 0).then(|| format!("{repairs} bad blocks on it were made anew on other disks"))
}

/// How long data still moves off disks.
fn rest(list: &DiskList) -> Option<String> {
    let is_left = |disk: &&DiskReport| {
        matches!(disk.condition, DiskCondition::Draining {} | DiskCondition::Lost {})
    };
    let left: u64 = list.disks.iter().filter(is_left).map(|disk| disk.used_bytes).sum();
    let seconds = left.checked_div(list.moved_per_second)?;
    (left > 0).then(|| {
        let (left, rate) = (human(left), human(list.moved_per_second));
        format!("{left} are left to move at {rate}/s: about {}", duration(seconds))
    })
}

/// As `90 s`, `15 min` or `7 h`.
fn duration(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        _ => format!("{} h", seconds / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_how_many_disks_may_be_lost() {
        let list = |redundancy: &str, losses_left, loss_delay_seconds| DiskList {
            version: 1,
            disks: Vec::new(),
            next: Vec::new(),
            pace: String::new(),
            balancing: false,
            redundancy: redundancy.to_owned(),
            classes: Vec::new(),
            waiting_pieces: 0,
            losses_left,
            loss_delay_seconds,
            moved_bytes: 0,
            moved_per_second: 0,
            scrubbed_bytes: None,
            trouble: String::new(),
            silent_nodes: 0,
        };
        let two = redundancy(&list("8+2", 2, 600));
        assert!(two.contains("8+2: 2 more disks may be lost"), "{two}");
        assert!(two.contains("given up after 600 s"), "{two}");
        let none_left = redundancy(&list("2x", 0, NEVER_LOST));
        assert!(none_left.contains("at risk") && none_left.contains("waited for"), "{none_left}");
        assert!(redundancy(&list("none", 0, 600)).contains("takes data with it"));
    }

    #[test]
    fn each_state_but_online_says_what_it_means() {
        let disk = |condition| DiskReport {
            disk_node: 1,
            disk: 2,
            condition,
            bytes: 1000,
            used_bytes: 1,
            has_roots: false,
            path: String::new(),
            obstacle: None,
            scrubbed: 0,
            repairs: 0,
            repairs_in_day: 0,
            damaged: 0,
        };
        assert_eq!(meaning("V", &disk(DiskCondition::Online {})), None);
        let drained = meaning("V", &disk(DiskCondition::Drained {})).unwrap();
        assert!(drained.contains("`mdfs disk retire V n1d2`"), "{drained}");
        for condition in [
            DiskCondition::Offline {},
            DiskCondition::Draining {},
            DiskCondition::Retired {},
            DiskCondition::Lost {},
            DiskCondition::Returning {},
        ] {
            assert!(meaning("V", &disk(condition)).is_some(), "{condition:?}");
        }
        assert_eq!(percent(&disk(DiskCondition::Online {})), 1, "rounded up");
    }
}
