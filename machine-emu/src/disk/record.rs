//! The commands to the disks of a world, in order: from them every crash that was possible can be
//! put together afterwards, without running the world again.

use std::collections::BTreeMap;

use bytes::Bytes;

/// One thing that happened to a disk. Disks are counted in the order in which they were created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiskEvent {
    /// A write was handed over: from now on any of its sectors may be there after a power cut.
    Write {
        /// The disk.
        disk: u32,
        /// Its first byte.
        offset: u64,
        /// The bytes.
        data: Bytes,
    },
    /// A flush is done. Right before, the power may take any of these writes away; right after, it
    /// takes none of them.
    Flushed {
        /// The disk.
        disk: u32,
        /// The writes that are durable now and were not before, as indexes of their events, in the
        /// order in which the disk did them.
        writes: Vec<usize>,
    },
}

/// The record of a world whose disks are recorded.
#[derive(Debug, Default)]
pub(crate) struct DiskRecord {
    pub(crate) events: Vec<DiskEvent>,
    /// Writes in the volatile caches, by disk and number there, as indexes of their events.
    cached: BTreeMap<(u32, u64), usize>,
}

impl DiskRecord {
    /// A write begins; its index.
    pub(crate) fn write(&mut self, disk: u32, offset: u64, data: &Bytes) -> usize {
        self.events.push(DiskEvent::Write { disk, offset, data: data.clone() });
        self.events.len() - 1
    }

    /// The write `index` is in the cache of its disk, as number `sequence`.
    pub(crate) fn cached(&mut self, disk: u32, sequence: u64, index: usize) {
        self.cached.insert((disk, sequence), index);
    }

    /// Everything in the cache up to number `sequence` is durable.
    pub(crate) fn flushed(&mut self, disk: u32, sequence: u64) {
        let covered = (disk, 0)..=(disk, sequence);
        let writes: Vec<usize> = self.cached.range(covered.clone()).map(|(_, &i)| i).collect();
        self.cached.retain(|place, _| !covered.contains(place));
        self.events.push(DiskEvent::Flushed { disk, writes });
    }
}
