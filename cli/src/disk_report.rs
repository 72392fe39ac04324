//! What there is to say of the disks of a volume, and of what their loss would cost: the same in
//! `mdfs disk list`, in `mdfs status`, on the status page and in the metrics.

use std::time::Duration;

use client::protocol::{DiskCondition, DiskList, DiskReport, NEVER_LOST};
use serde::Serialize;

use crate::size::human;
use crate::time::date_of;

/// A disk with this number of repairs within a day should be replaced.
const REPAIRS_MAX: u64 = 10;

/// A disk as JSON has it.
#[derive(Debug, Serialize)]
pub(crate) struct ListedDisk {
    /// As `n0d1`.
    pub(crate) disk: String,
    pub(crate) state: &'static str,
    /// Empty if there is nothing to say.
    pub(crate) meaning: String,
    /// What to do about blocks that were bad; empty if there were none.
    pub(crate) advice: String,
    pub(crate) bytes: u64,
    pub(crate) used_bytes: u64,
    /// Bytes that are left to move, or to make anew on other disks.
    pub(crate) left_bytes: u64,
    pub(crate) path: String,
    /// Since 1970, in seconds; 0 for never.
    pub(crate) scrubbed: u64,
    pub(crate) repairs: u64,
    pub(crate) repairs_in_day: u64,
    /// It has too many of them.
    pub(crate) replacement_advised: bool,
    pub(crate) damaged: u64,
}

/// The disks of a volume as JSON has them.
#[derive(Debug, Serialize)]
pub(crate) struct DisksRecord {
    pub(crate) volume: String,
    pub(crate) version: u64,
    pub(crate) pace: String,
    pub(crate) balancing: bool,
    pub(crate) redundancy: String,
    /// What directories and files may have in place of it.
    pub(crate) classes: Vec<String>,
    pub(crate) losses_left: u32,
    /// The redundancy in a sentence.
    pub(crate) summary: String,
    /// With none they are not given up.
    pub(crate) loss_delay_seconds: Option<u32>,
    /// Bytes on disks that are lost, offline or returning: each lacks a copy or a shard until it is
    /// made anew or the disk is back.
    pub(crate) degraded_bytes: u64,
    /// Bytes that are left to move, or to make anew.
    pub(crate) left_bytes: u64,
    /// How long that takes at the present rate; none if nothing is left, or nothing moves.
    pub(crate) seconds_left: Option<u64>,
    pub(crate) moved_bytes: u64,
    pub(crate) moved_per_second: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) scrubbed_bytes: Option<u64>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) trouble: String,
    pub(crate) silent_nodes: u32,
    pub(crate) disks: Vec<ListedDisk>,
}

/// What `list` says of the disks of `volume`, as commands name it.
pub(crate) fn record(volume: String, list: DiskList) -> DisksRecord {
    let of = |disk: &DiskReport| ListedDisk {
        disk: name(disk),
        state: state(disk.condition),
        meaning: meaning(&volume, disk).unwrap_or_default(),
        advice: advice(&volume, disk).unwrap_or_default(),
        bytes: disk.bytes,
        used_bytes: disk.used_bytes,
        left_bytes: left_bytes(disk),
        path: disk.path.clone(),
        scrubbed: disk.scrubbed,
        repairs: disk.repairs,
        repairs_in_day: disk.repairs_in_day,
        replacement_advised: is_worn(disk),
        damaged: disk.damaged,
    };
    let disks = list.disks.iter().map(of).collect();
    DisksRecord {
        volume,
        version: list.version,
        summary: redundancy(&list),
        loss_delay_seconds: loss_delay(&list),
        degraded_bytes: degraded_bytes(&list),
        left_bytes: list.disks.iter().map(left_bytes).sum(),
        seconds_left: seconds_left(&list),
        pace: list.pace,
        balancing: list.balancing,
        redundancy: list.redundancy,
        classes: list.classes,
        losses_left: list.losses_left,
        moved_bytes: list.moved_bytes,
        moved_per_second: list.moved_per_second,
        scrubbed_bytes: list.scrubbed_bytes,
        trouble: list.trouble,
        silent_nodes: list.silent_nodes,
        disks,
    }
}

/// Can what is on the disk not be read from it now, or only in part?
fn is_missing(condition: DiskCondition) -> bool {
    matches!(
        condition,
        DiskCondition::Lost {} | DiskCondition::Offline {} | DiskCondition::Returning {}
    )
}

/// Bytes on disks that are not there, or not up to date.
pub(crate) fn degraded_bytes(list: &DiskList) -> u64 {
    let missing = list.disks.iter().filter(|disk| is_missing(disk.condition));
    missing.map(|disk| disk.used_bytes).sum()
}

/// Bytes that are left to move off the disk, or to make anew on others.
pub(crate) fn left_bytes(disk: &DiskReport) -> u64 {
    match disk.condition {
        DiskCondition::Draining {} | DiskCondition::Lost {} => disk.used_bytes,
        _ => 0,
    }
}

fn seconds_left(list: &DiskList) -> Option<u64> {
    let left: u64 = list.disks.iter().map(left_bytes).sum();
    left.checked_div(list.moved_per_second).filter(|_| left > 0)
}

fn loss_delay(list: &DiskList) -> Option<u32> {
    Some(list.loss_delay_seconds).filter(|seconds| *seconds != NEVER_LOST)
}

/// What a loss of disks would cost now.
pub(crate) fn redundancy(list: &DiskList) -> String {
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
pub(crate) fn name(disk: &DiskReport) -> String {
    format!("n{}d{}", disk.disk_node, disk.disk)
}

/// All conditions of a disk.
pub(crate) const CONDITIONS: [DiskCondition; 7] = [
    DiskCondition::Online {},
    DiskCondition::Offline {},
    DiskCondition::Draining {},
    DiskCondition::Drained {},
    DiskCondition::Retired {},
    DiskCondition::Lost {},
    DiskCondition::Returning {},
];

/// The word for it.
pub(crate) fn state(condition: DiskCondition) -> &'static str {
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

pub(crate) fn percent(disk: &DiskReport) -> u128 {
    (u128::from(disk.used_bytes) * 100).div_ceil(u128::from(disk.bytes.max(1)))
}

/// What there is to say of a disk that is not simply in use, and what to do.
pub(crate) fn meaning(volume: &str, disk: &DiskReport) -> Option<String> {
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

/// How many disks are in each state, as `3 online, 1 lost`.
pub(crate) fn states(list: &DiskList) -> String {
    let of = |condition: &DiskCondition| {
        let count = list.disks.iter().filter(|disk| disk.condition == *condition).count();
        (count > 0).then(|| format!("{count} {}", state(*condition)))
    };
    CONDITIONS.iter().filter_map(of).collect::<Vec<_>>().join(", ")
}

/// Since when all data of the volume was compared with its checksums.
pub(crate) fn scrubbed_text(list: &DiskList) -> String {
    let is_used = |disk: &&DiskReport| {
        !matches!(disk.condition, DiskCondition::Retired {} | DiskCondition::Lost {})
    };
    let (new, old): (Vec<_>, Vec<_>) =
        list.disks.iter().filter(is_used).partition(|disk| disk.scrubbed == 0);
    let since = old.iter().min_by_key(|disk| disk.scrubbed).map(|disk| scrubbed(disk));
    let names = || new.iter().map(|disk| name(disk)).collect::<Vec<_>>().join(" ");
    let text = match since {
        None => "never".to_owned(),
        Some(since) if new.is_empty() => format!("all disks since {since}"),
        Some(since) => format!("never: {}; the others since {since}", names()),
    };
    match list.scrubbed_bytes {
        Some(bytes) => format!("{text}; under way, {} were read", human(bytes)),
        None => text,
    }
}

/// When all that is on a disk was compared with its checksums.
pub(crate) fn scrubbed(disk: &DiskReport) -> String {
    if disk.scrubbed == 0 {
        return "never".to_owned();
    }
    let date = date_of(Duration::from_secs(disk.scrubbed));
    date.chars().take("2026-01-31 23:59".len()).collect()
}

/// Should the disk be replaced, for the blocks that were bad?
pub(crate) fn is_worn(disk: &DiskReport) -> bool {
    disk.repairs_in_day >= REPAIRS_MAX
}

/// What the blocks that were bad say of a disk.
pub(crate) fn advice(volume: &str, disk: &DiskReport) -> Option<String> {
    let DiskReport { repairs, repairs_in_day, damaged, .. } = *disk;
    let name = name(disk);
    if damaged > 0 {
        return Some(format!(
            "{damaged} blocks on it are bad and have no good copy: `mdfs check --files {volume}` \
             names the files, which are to be restored from a backup"
        ));
    }
    if is_worn(disk) {
        return Some(format!(
            "{repairs_in_day} repairs in 24 h: replace it; add another one with `mdfs disk add`, \
             then empty it with `mdfs disk drain {volume} {name}`"
        ));
    }
    (repairs > 0).then(|| format!("{repairs} bad blocks on it were made anew on other disks"))
}

/// How long data still moves off disks.
pub(crate) fn rest(list: &DiskList) -> Option<String> {
    let left: u64 = list.disks.iter().map(left_bytes).sum();
    let (seconds, rate) = (seconds_left(list)?, human(list.moved_per_second));
    Some(format!("{} are left to move at {rate}/s: about {}", human(left), duration(seconds)))
}

/// As `90 s`, `15 min` or `7 h`.
fn duration(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        _ => format!("{} h", seconds / 3600),
    }
}

/// Disks for tests.
#[cfg(test)]
pub(crate) mod samples {
    use super::*;

    /// Disk 2 of a disk node, of 1000 bytes of which one is in use.
    pub(crate) fn disk(disk_node: u32, condition: DiskCondition) -> DiskReport {
        DiskReport {
            disk_node,
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
        }
    }

    /// A volume of two copies with these disks, where nothing moves.
    pub(crate) fn list_of(disks: Vec<DiskReport>) -> DiskList {
        DiskList {
            version: 1,
            disks,
            next: Vec::new(),
            pace: String::new(),
            balancing: false,
            redundancy: "2x".to_owned(),
            classes: Vec::new(),
            waiting_pieces: 0,
            losses_left: 1,
            loss_delay_seconds: 600,
            moved_bytes: 0,
            moved_per_second: 0,
            scrubbed_bytes: None,
            trouble: String::new(),
            silent_nodes: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::samples::{disk, list_of};
    use super::*;

    #[test]
    fn it_says_how_many_disks_may_be_lost() {
        let list = |redundancy: &str, losses_left, loss_delay_seconds| DiskList {
            redundancy: redundancy.to_owned(),
            losses_left,
            loss_delay_seconds,
            ..list_of(Vec::new())
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
        assert_eq!(meaning("V", &disk(1, DiskCondition::Online {})), None);
        let drained = meaning("V", &disk(1, DiskCondition::Drained {})).unwrap();
        assert!(drained.contains("`mdfs disk retire V n1d2`"), "{drained}");
        for condition in [
            DiskCondition::Offline {},
            DiskCondition::Draining {},
            DiskCondition::Retired {},
            DiskCondition::Lost {},
            DiskCondition::Returning {},
        ] {
            assert!(meaning("V", &disk(1, condition)).is_some(), "{condition:?}");
        }
        assert_eq!(percent(&disk(1, DiskCondition::Online {})), 1, "rounded up");
    }
    #[test]
    fn a_disk_with_bad_blocks_comes_with_advice() {
        let with = |repairs, repairs_in_day, damaged| {
            let online = disk(1, DiskCondition::Online {});
            advice("V", &DiskReport { repairs, repairs_in_day, damaged, ..online })
        };
        assert_eq!(with(0, 0, 0), None, "nothing was bad");
        let few = with(12, 9, 0).unwrap();
        assert_eq!(few, "12 bad blocks on it were made anew on other disks");
        let worn = with(20, REPAIRS_MAX, 0).unwrap();
        assert!(worn.starts_with("10 repairs in 24 h: replace it"), "{worn}");
        assert!(worn.ends_with("`mdfs disk drain V n1d2`"), "{worn}");
        // What cannot be read comes first: it is not made good by another disk.
        let damaged = with(20, REPAIRS_MAX, 3).unwrap();
        assert!(damaged.starts_with("3 blocks on it are bad and have no good copy"), "{damaged}");
        assert!(damaged.contains("`mdfs check --files V`"), "{damaged}");
    }

    #[test]
    fn what_is_left_to_move_is_on_disks_that_are_drained_or_lost() {
        let with = |condition, used_bytes| DiskReport { used_bytes, ..disk(1, condition) };
        let disks = vec![
            with(DiskCondition::Online {}, 1),
            with(DiskCondition::Offline {}, 20),
            with(DiskCondition::Draining {}, 300),
            with(DiskCondition::Lost {}, 4000),
            with(DiskCondition::Returning {}, 50_000),
        ];
        let list = DiskList { moved_per_second: 43, ..list_of(disks) };
        let told = record("V".to_owned(), list.clone());
        assert_eq!(told.left_bytes, 4300);
        assert_eq!(told.degraded_bytes, 54_020);
        assert_eq!(told.seconds_left, Some(100));
        assert!(rest(&list).unwrap().ends_with("43 B/s: about 100 s"), "{:?}", rest(&list));
        let still = DiskList { moved_per_second: 0, ..list.clone() };
        assert_eq!((rest(&still), record("V".to_owned(), still).seconds_left), (None, None));
        let done = DiskList { disks: Vec::new(), ..list };
        assert_eq!((rest(&done), record("V".to_owned(), done).seconds_left), (None, None));
    }
}
