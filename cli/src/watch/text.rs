//! The volume as text (the text format 0.0.4 of Prometheus).

use std::collections::BTreeMap;

use runtime::buffer::Pool;
use runtime::metrics::{MetricKind, MetricsPage};
use volume::{CacheStatus, DiskStatus, VolumeStatus};

/// The sums over all caches, and each disk.
pub(super) fn of(figures: &VolumeStatus) -> String {
    let mut page = MetricsPage::new("mdfs_");
    let states = |down: usize, all: usize| [("up", all - down), ("down", down)];
    let down = figures.caches.iter().filter(|cache| cache.is_none()).count();
    let help = "File-system nodes of the volume, as this process reaches them.";
    let mut nodes = page.metric("nodes", MetricKind::Gauge, help);
    for (state, count) in states(down, figures.caches.len()) {
        nodes.of(format_args!("state=\"{state}\""), count);
    }
    let down = figures.disks.iter().filter(|disks| disks.is_none()).count();
    let help = "Disk nodes of the volume, as this process reaches them.";
    let mut nodes = page.metric("disk_nodes", MetricKind::Gauge, help);
    for (state, count) in states(down, figures.disks.len()) {
        nodes.of(format_args!("state=\"{state}\""), count);
    }
    if let Some(space) = figures.space {
        let help = "Bytes that can be written.";
        page.metric("space_available_bytes", MetricKind::Gauge, help).is(space.available_bytes);
        let used_bytes = space.total_bytes.saturating_sub(space.free_bytes);
        page.metric("space_used_bytes", MetricKind::Gauge, "Bytes in use.").is(used_bytes);
    }
    processes(figures, &mut page);
    caches(figures, &mut page);
    disks(figures, &mut page);
    page.finish()
}

/// The memory of this process.
pub(super) fn of_buffers(pool: &Pool) -> String {
    let mut page = MetricsPage::new("mdfs_buffer_");
    let used =
        page.metric("used_bytes", MetricKind::Gauge, "Memory of cached stripes and transfers.");
    used.is(pool.used_bytes());
    let help = "Memory that the process keeps for them, and nothing is in.";
    page.metric("kept_bytes", MetricKind::Gauge, help).is(pool.kept_bytes());
    let help = "Bytes of files copied from one buffer to another.";
    page.metric("copied_bytes_total", MetricKind::Counter, help).is(pool.copied_bytes());
    let help = "Bytes copied only because a disk could not take them where they were.";
    page.metric("bounced_bytes_total", MetricKind::Counter, help).is(pool.bounced_bytes());
    page.finish()
}

/// Of a volume of several processes only.
fn processes(figures: &VolumeStatus, page: &mut MetricsPage) {
    let mut nodes: BTreeMap<u32, usize> = BTreeMap::new();
    for process in figures.cache_processes.iter().flatten() {
        *nodes.entry(*process).or_default() += 1;
    }
    if nodes.is_empty() {
        return;
    }
    let help = "File-system nodes that a process has, by the node map.";
    let mut metric = page.metric("process_nodes", MetricKind::Gauge, help);
    for (process, count) in nodes {
        metric.of(format_args!("process=\"{process}\""), count);
    }
}

fn caches(figures: &VolumeStatus, page: &mut MetricsPage) {
    let all =
        figures.caches.iter().flatten().fold(CacheStatus::default(), |sum, cache| sum + *cache);
    let CacheStatus { lines, dirty_lines, hits, misses, evictions, write_backs } = all;
    for (name, kind, help, value) in [
        ("cache_lines", MetricKind::Gauge, "Stripes held by all caches.", lines),
        (
            "cache_dirty_lines",
            MetricKind::Gauge,
            "Of these, with bytes that no disk has yet.",
            dirty_lines,
        ),
        ("cache_hits_total", MetricKind::Counter, "Reads answered from memory.", hits),
        ("cache_misses_total", MetricKind::Counter, "Reads sent to disks.", misses),
        ("cache_evictions_total", MetricKind::Counter, "Stripes dropped to make room.", evictions),
        ("cache_write_backs_total", MetricKind::Counter, "Writes sent to disks.", write_backs),
    ] {
        page.metric(name, kind, help).is(value);
    }
}

/// A column that is one number per disk.
type Column = (&'static str, MetricKind, &'static str, fn(&DiskStatus) -> u64);

const COLUMNS: [Column; 10] = [
    ("disk_healthy", MetricKind::Gauge, "0 once the disk has failed for good.", |disk| {
        disk.healthy.into()
    }),
    (
        "disk_writable",
        MetricKind::Gauge,
        "0 while the disk takes no writes: failed, or its host file system is full or read-only.",
        |disk| (disk.healthy && disk.obstacle.is_none()).into(),
    ),
    ("disk_queued", MetricKind::Gauge, "Requests that wait.", |disk| disk.queued.into()),
    ("disk_reads_total", MetricKind::Counter, "Reads done.", |disk| disk.reads),
    ("disk_writes_total", MetricKind::Counter, "Writes done.", |disk| disk.writes),
    ("disk_syncs_total", MetricKind::Counter, "Flushes of the disk's own cache done.", |disk| {
        disk.syncs
    }),
    ("disk_read_bytes_total", MetricKind::Counter, "Bytes read.", |disk| disk.read_bytes),
    ("disk_written_bytes_total", MetricKind::Counter, "Bytes written.", |disk| disk.written_bytes),
    ("disk_merged_total", MetricKind::Counter, "Requests that went with a neighbour.", |disk| {
        disk.merged
    }),
    ("disk_busy_total", MetricKind::Counter, "Requests refused since too many waited.", |disk| {
        disk.busy
    }),
];

fn disks(figures: &VolumeStatus, page: &mut MetricsPage) {
    for (name, kind, help, column) in COLUMNS {
        let mut metric = page.metric(name, kind, help);
        for (node, disks) in figures.disks.iter().enumerate() {
            for (index, disk) in disks.iter().flatten().enumerate() {
                metric.of(format_args!("node=\"{node}\",disk=\"{index}\""), column(disk));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use fileio::protocol::Space;
    use runtime::wire::Wire as _;
    use volume::WriteObstacle;

    use super::*;

    #[test]
    fn the_text_sums_the_caches_and_shows_each_disk() {
        let cache = CacheStatus { lines: 3, dirty_lines: 1, hits: 7, ..CacheStatus::default() };
        let disk = DiskStatus::sample(&mut runtime::seed::Rng::new(1));
        let disk = DiskStatus { healthy: true, queued: 5, obstacle: None, ..disk };
        let full = Some(WriteObstacle::Full {});
        let blocked = DiskStatus { obstacle: full, ..disk.clone() };
        let figures = VolumeStatus {
            caches: vec![Some(cache), None, Some(cache)],
            disks: vec![
                None,
                Some(vec![disk.clone(), DiskStatus { healthy: false, ..disk }, blocked]),
            ],
            cache_processes: vec![Some(2), None, Some(1)],
            disk_processes: vec![None, Some(2)],
            space: Some(Space {
                total_bytes: 90,
                free_bytes: 70,
                available_bytes: 60,
                inodes: 1,
                raw_total_bytes: 180,
                raw_free_bytes: 140,
            }),
        };
        let text = of(&figures);
        for line in [
            "# TYPE mdfs_cache_lines gauge",
            "mdfs_nodes{state=\"up\"} 2",
            "mdfs_nodes{state=\"down\"} 1",
            "mdfs_process_nodes{process=\"1\"} 1",
            "mdfs_process_nodes{process=\"2\"} 1",
            "mdfs_disk_nodes{state=\"down\"} 1",
            "mdfs_space_available_bytes 60",
            "mdfs_space_used_bytes 20",
            "mdfs_cache_lines 6",
            "mdfs_cache_hits_total 14",
            "mdfs_disk_healthy{node=\"1\",disk=\"0\"} 1",
            "mdfs_disk_healthy{node=\"1\",disk=\"1\"} 0",
            "mdfs_disk_writable{node=\"1\",disk=\"0\"} 1",
            "mdfs_disk_writable{node=\"1\",disk=\"1\"} 0",
            "mdfs_disk_writable{node=\"1\",disk=\"2\"} 0",
            "mdfs_disk_queued{node=\"1\",disk=\"1\"} 5",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }
}
