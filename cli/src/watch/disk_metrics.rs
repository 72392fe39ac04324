//! The disks of the volume as text (the text format 0.0.4 of Prometheus): how they are, what is
//! left to move or to make anew, and what scrubs found.

use client::protocol::{DiskList, DiskReport};
use runtime::metrics::{MetricKind, MetricsPage};

use crate::disk_report::{CONDITIONS, is_worn, left_bytes, record, state};

/// The redundancy of the volume, and each disk.
pub(super) fn of(list: &DiskList) -> String {
    let mut page = MetricsPage::new("mdfs_");
    redundancy(list, &mut page);
    conditions(list, &mut page);
    moves(list, &mut page);
    for (name, kind, help, column) in COLUMNS {
        // Without a node's share a counter would go down, and look as if it began anew.
        if kind == MetricKind::Counter && list.silent_nodes > 0 {
            continue;
        }
        let mut metric = page.metric(name, kind, help);
        for disk in &list.disks {
            metric.of(format_args!("{}", labels(disk)), column(disk));
        }
    }
    page.finish()
}

fn labels(disk: &DiskReport) -> String {
    format!("node=\"{}\",disk=\"{}\"", disk.disk_node, disk.disk)
}

fn redundancy(list: &DiskList, page: &mut MetricsPage) {
    let help = "1 for the class of redundancy of the volume.";
    let mut class = page.metric("redundancy_class", MetricKind::Gauge, help);
    class.of(format_args!("class=\"{}\"", list.redundancy), 1);
    let help = "Disks that may be lost now, beside those that are, without loss of data.";
    page.metric("redundancy_losses_left", MetricKind::Gauge, help).is(list.losses_left);
    let help = "Pieces of files that wait to be stored as their class says.";
    page.metric("redundancy_waiting_pieces", MetricKind::Gauge, help).is(list.waiting_pieces);
    let help = "File-system nodes that did not say what they have on the disks.";
    page.metric("redundancy_silent_nodes", MetricKind::Gauge, help).is(list.silent_nodes);
}

fn conditions(list: &DiskList, page: &mut MetricsPage) {
    let help = "Disks by condition, as `mdfs disk list` shows it.";
    let mut disks = page.metric("disks", MetricKind::Gauge, help);
    for condition in CONDITIONS {
        let count = list.disks.iter().filter(|disk| disk.condition == condition).count();
        disks.of(format_args!("condition=\"{}\"", state(condition)), count);
    }
    let help = "1 for the condition that the disk is in.";
    let mut disks = page.metric("disk_condition", MetricKind::Gauge, help);
    for disk in &list.disks {
        let condition = state(disk.condition);
        disks.of(format_args!("{},condition=\"{condition}\"", labels(disk)), 1);
    }
}

fn moves(list: &DiskList, page: &mut MetricsPage) {
    let told = record(String::new(), list.clone());
    let help = "Bytes on disks that are lost, offline or returning: each lacks a copy or a shard.";
    page.metric("degraded_bytes", MetricKind::Gauge, help).is(told.degraded_bytes);
    let help = "Bytes left to move off drained disks, and to make anew of lost ones.";
    page.metric("move_left_bytes", MetricKind::Gauge, help).is(told.left_bytes);
    let help = "Bytes that move between disks, or are made anew, per second.";
    page.metric("move_bytes_per_second", MetricKind::Gauge, help).is(told.moved_per_second);
    if let Some(seconds) = told.seconds_left {
        let help = "Time until all has moved at this rate; not there if nothing moves.";
        page.metric("move_left_seconds", MetricKind::Gauge, help).is(seconds);
    }
    if let Some(bytes) = told.scrubbed_bytes {
        let help = "Bytes that the scrub under way has read; not there if there is none.";
        page.metric("scrub_read_bytes", MetricKind::Gauge, help).is(bytes);
    }
}

/// A column that is one number per disk.
type DiskColumn = (&'static str, MetricKind, &'static str, fn(&DiskReport) -> u64);

const COLUMNS: [DiskColumn; 8] = [
    ("disk_size_bytes", MetricKind::Gauge, "Bytes of the disk.", |disk| disk.bytes),
    ("disk_used_bytes", MetricKind::Gauge, "Of these, in use.", |disk| disk.used_bytes),
    (
        "disk_move_left_bytes",
        MetricKind::Gauge,
        "Bytes left to move off the disk, or to make anew on others.",
        left_bytes,
    ),
    (
        "disk_scrubbed_timestamp_seconds",
        MetricKind::Gauge,
        "When all of the disk was last compared with its checksums; 0 for never.",
        |disk| disk.scrubbed,
    ),
    ("disk_repairs_total", MetricKind::Counter, "Bad blocks made anew elsewhere.", |disk| {
        disk.repairs
    }),
    ("disk_repairs_in_day", MetricKind::Gauge, "Of these, in the last 24 hours.", |disk| {
        disk.repairs_in_day
    }),
    ("disk_damaged_blocks", MetricKind::Gauge, "Bad blocks without a good copy.", |disk| {
        disk.damaged
    }),
    (
        "disk_replacement_advised",
        MetricKind::Gauge,
        "1 if the repairs in 24 hours are a reason to replace the disk.",
        |disk| is_worn(disk).into(),
    ),
];

#[cfg(test)]
mod tests {
    use client::protocol::DiskCondition;

    use super::*;
    use crate::disk_report::samples::{disk, list_of};

    #[test]
    fn each_disk_is_shown_with_what_is_left_and_what_scrubs_found() {
        let gone = DiskReport { used_bytes: 4000, ..disk(0, DiskCondition::Lost {}) };
        let online = disk(1, DiskCondition::Online {});
        let worn = DiskReport {
            scrubbed: 1_790_000_000,
            repairs: 20,
            repairs_in_day: 14,
            damaged: 3,
            ..online
        };
        let list = DiskList { losses_left: 0, moved_per_second: 40, ..list_of(vec![gone, worn]) };
        let list = DiskList { scrubbed_bytes: Some(77), ..list };
        let text = of(&list);
        for line in [
            "# TYPE mdfs_disk_repairs_total counter",
            "mdfs_redundancy_class{class=\"2x\"} 1",
            "mdfs_redundancy_losses_left 0",
            "mdfs_disks{condition=\"lost\"} 1",
            "mdfs_disks{condition=\"online\"} 1",
            "mdfs_disks{condition=\"offline\"} 0",
            "mdfs_disk_condition{node=\"0\",disk=\"2\",condition=\"lost\"} 1",
            "mdfs_degraded_bytes 4000",
            "mdfs_move_left_bytes 4000",
            "mdfs_move_bytes_per_second 40",
            "mdfs_move_left_seconds 100",
            "mdfs_scrub_read_bytes 77",
            "mdfs_disk_used_bytes{node=\"1\",disk=\"2\"} 1",
            "mdfs_disk_move_left_bytes{node=\"0\",disk=\"2\"} 4000",
            "mdfs_disk_move_left_bytes{node=\"1\",disk=\"2\"} 0",
            "mdfs_disk_scrubbed_timestamp_seconds{node=\"0\",disk=\"2\"} 0",
            "mdfs_disk_scrubbed_timestamp_seconds{node=\"1\",disk=\"2\"} 1790000000",
            "mdfs_disk_repairs_total{node=\"1\",disk=\"2\"} 20",
            "mdfs_disk_repairs_in_day{node=\"1\",disk=\"2\"} 14",
            "mdfs_disk_damaged_blocks{node=\"1\",disk=\"2\"} 3",
            "mdfs_disk_replacement_advised{node=\"0\",disk=\"2\"} 0",
            "mdfs_disk_replacement_advised{node=\"1\",disk=\"2\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn what_is_not_known_is_not_there() {
        let text = of(&list_of(vec![disk(0, DiskCondition::Online {})]));
        assert!(!text.contains("move_left_seconds") && !text.contains("scrub_read"), "{text}");
        assert!(text.contains("disk_repairs_total"), "{text}");
        let partial = DiskList { silent_nodes: 1, ..list_of(Vec::new()) };
        let text = of(&partial);
        assert!(!text.contains("disk_repairs_total"), "a counter never goes down: {text}");
        assert!(text.lines().any(|line| line == "mdfs_redundancy_silent_nodes 1"), "{text}");
    }
}
