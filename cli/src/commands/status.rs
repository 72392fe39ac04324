//! `mdfs status`: how a volume is, in a few lines.

use client::VolumeAddress;
use client::protocol::{DiskList, Space};
use serde::Serialize;

use crate::connection::{ConnectionArguments, volume_address};
use crate::disk_report::{DisksRecord, ListedDisk, record, rest, scrubbed_text, states};
use crate::exit::CommandFailure;
use crate::session::CommandSession;
use crate::size::human;

/// Show how a volume is, in a few lines: its redundancy, its space, its disks by state, what lacks
/// a copy, how long that takes to be made anew, the last scrub, and what to do.
///
/// `mdfs disk list` shows each disk, `mdfs cluster status` the processes of a cluster.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mdfs status scratch
  mdfs status --json scratch | jq .degraded_bytes")]
pub(crate) struct VolumeSummary {
    /// As JSON, in bytes: what `mdfs disk list` and `mdfs df` show.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: ConnectionArguments,
    /// The volume: its directory, or `mdfs://HOST[:PORT]/VOLUME`.
    #[arg(value_name = "VOL", value_parser = volume_address())]
    volume: VolumeAddress,
}

#[derive(Debug, Serialize)]
struct SummaryRecord {
    #[serde(flatten)]
    disks: DisksRecord,
    total_bytes: u64,
    available_bytes: u64,
    raw_total_bytes: u64,
    raw_free_bytes: u64,
}

impl VolumeSummary {
    pub(super) fn run(&self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        session.connect_with(&self.connection);
        let volume = session.open(&self.volume)?;
        let inside = |error| CommandFailure::inside(&self.volume, error);
        let list = volume.disks().map_err(inside)?;
        let space = volume.space().map_err(inside)?;
        let told = record(self.volume.to_string(), list.clone());
        if self.json {
            return session.print_json(&SummaryRecord {
                disks: told,
                total_bytes: space.total_bytes,
                available_bytes: space.available_bytes,
                raw_total_bytes: space.raw_total_bytes,
                raw_free_bytes: space.raw_free_bytes,
            });
        }
        session.print(lines(&list, &told, &space))
    }
}

/// Each with what it is about.
fn lines(list: &DiskList, told: &DisksRecord, space: &Space) -> String {
    let used_bytes = space.total_bytes.saturating_sub(space.free_bytes);
    let raw_used_bytes = space.raw_total_bytes.saturating_sub(space.raw_free_bytes);
    let space = format!(
        "{} of {} used, {} available; raw {} of {} used",
        human(used_bytes),
        human(space.total_bytes),
        human(space.available_bytes),
        human(raw_used_bytes),
        human(space.raw_total_bytes),
    );
    let degraded = match told.degraded_bytes {
        0 => "nothing".to_owned(),
        bytes => format!("{} on disks that are not there", human(bytes)),
    };
    let moving = match rest(list) {
        Some(rest) => rest,
        None if told.left_bytes > 0 => {
            format!("{} are left to move; the rate is not known", human(told.left_bytes))
        }
        None => "nothing is left to move".to_owned(),
    };
    let sum = |of: fn(&ListedDisk) -> u64| told.disks.iter().map(of).sum();
    let (in_day, in_all): (u64, u64) = (sum(|disk| disk.repairs_in_day), sum(|disk| disk.repairs));
    let damaged: u64 = sum(|disk| disk.damaged);
    let summary = told.summary.strip_prefix("redundancy ").unwrap_or(&told.summary);
    let mut lines = vec![
        ("volume", told.volume.clone()),
        ("redundancy", summary.to_owned()),
        ("space", space),
        ("disks", states(list)),
        ("degraded", degraded),
        ("moving", moving),
        ("scrubbed", scrubbed_text(list)),
        ("repairs", format!("{in_day} in 24 h, {in_all} in all; {damaged} damaged blocks")),
    ];
    for disk in &told.disks {
        let notes = [&disk.meaning, &disk.advice].into_iter().filter(|note| !note.is_empty());
        lines.extend(notes.map(|note| (&disk.disk[..], note.clone())));
    }
    if told.silent_nodes > 0 {
        let count = told.silent_nodes;
        lines.push(("", format!("{count} nodes do not answer: what they have is not counted")));
    }
    if !told.trouble.is_empty() {
        lines.push(("", format!("something could not be moved: {}", told.trouble)));
    }
    let lines = lines.iter().map(|(head, text)| format!("{head:>10}  {text}"));
    lines.collect::<Vec<_>>().join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use client::protocol::{DiskCondition, DiskReport};

    use super::*;
    use crate::disk_report::samples::{disk, list_of};

    #[test]
    fn the_summary_has_what_an_operator_acts_on() {
        const GIB: u64 = 1 << 30;
        let gone = DiskReport { used_bytes: GIB, ..disk(0, DiskCondition::Lost {}) };
        let online = disk(1, DiskCondition::Online {});
        let worn = DiskReport { repairs: 20, repairs_in_day: 14, scrubbed: 86_400, ..online };
        let new = disk(2, DiskCondition::Online {});
        let list = DiskList {
            losses_left: 0,
            moved_per_second: GIB / 64,
            ..list_of(vec![gone, worn, new])
        };
        let space = Space {
            total_bytes: 10 * GIB,
            free_bytes: 9 * GIB,
            available_bytes: 8 * GIB,
            inodes: 1,
            raw_total_bytes: 20 * GIB,
            raw_free_bytes: 18 * GIB,
        };
        let text = lines(&list, &record("V".to_owned(), list.clone()), &space);
        for line in [
            "    volume  V",
            "redundancy  2x: data is at risk, no further disk may be lost; hosts that are away are \
             given up after 600 s",
            "     space  1 GiB of 10 GiB used, 8 GiB available; raw 2 GiB of 20 GiB used",
            "     disks  2 online, 1 lost",
            "  degraded  1 GiB on disks that are not there",
            "    moving  1 GiB are left to move at 16 MiB/s: about 64 s",
            "  scrubbed  never: n2d2; the others since 1970-01-02 00:00",
            "   repairs  14 in 24 h, 20 in all; 0 damaged blocks",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        assert!(text.contains("      n1d2  14 repairs in 24 h: replace it"), "{text}");
        assert!(text.contains("      n0d2  1 GiB that were on it are left to make anew"), "{text}");
        let still = list_of(vec![disk(2, DiskCondition::Online {})]);
        let text = lines(&still, &record("V".to_owned(), still.clone()), &space);
        assert!(text.contains("  degraded  nothing\n    moving  nothing is left"), "{text}");
        assert_eq!(text.lines().count(), 8, "{text}");
    }
}
