//! Boot IDs: they detect the loss of volatile writes (ADR 8).
//!
//! A disk node that restarts may have lost bytes that it received and did not flush. The cache
//! writes back again what it still has. If it has dropped any of those bytes they are lost, and the
//! cache takes a new boot ID for this disk node: the next sync of a writer with the old ID fails.
//! Not so where the volume goes on without the host of the disk, or without its disks: further
//! copies have those bytes.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use blockio::protocol::{Error, Unsynced};
use blockio::volume_map::last_absent;
use blockio::{BootId, DROPPED, VolumeMap};
use runtime::{Context, NodeId};

/// The boot IDs of one cache and of the disk nodes below it.
#[derive(Debug)]
pub(super) struct BootIds {
    context: Context,
    map: VolumeMap,
    by_disk_node: RefCell<BTreeMap<NodeId, DiskNodeBootIds>>,
    /// Restarts of disk nodes that this cache has noticed.
    restarts: Cell<u64>,
}

#[derive(Debug)]
struct DiskNodeBootIds {
    /// The cache's own, for stripes of this disk node.
    own: BootId,
    /// The disk node's, once something was written back to it.
    below: Option<BootId>,
    /// Bytes that were written back under `below` are no longer cached.
    dropped: bool,
    /// The version of the volume's record when `below` was told last.
    version: u64,
}

runtime::record! {
    /// A boot ID of a cache that continues in another process.
    #[derive(Copy)]
    pub struct HandedBootId {
        /// Of stripes of this disk node.
        disk_node: NodeId,
        /// The cache's own.
        own: u64,
        /// The disk node's, once something was written back to it.
        below: Option<u64>,
    }
}

impl BootIds {
    pub(super) fn new(context: Context, map: VolumeMap) -> Self {
        Self { context, map, by_disk_node: RefCell::default(), restarts: Cell::default() }
    }

    /// The boot IDs for the server that continues this one.
    pub(super) fn handed(&self) -> Vec<HandedBootId> {
        let by_disk_node = self.by_disk_node.borrow();
        let handed = by_disk_node.iter().map(|(&disk_node, ids)| HandedBootId {
            disk_node,
            own: ids.own,
            below: ids.below,
        });
        handed.collect()
    }

    /// Continues with boot IDs of another server. What was written back under them is not cached
    /// here.
    pub(super) fn resume(&self, handed: &[HandedBootId]) {
        for &HandedBootId { disk_node, own, below } in handed {
            let version = self.map.version();
            let ids = DiskNodeBootIds { own, below, dropped: true, version };
            self.by_disk_node.borrow_mut().insert(disk_node, ids);
        }
    }

    fn with<T>(&self, stripe: u64, look: impl FnOnce(&mut DiskNodeBootIds) -> T) -> T {
        let mut by_disk_node = self.by_disk_node.borrow_mut();
        let fresh = || DiskNodeBootIds {
            own: self.context.random(),
            below: None,
            dropped: false,
            version: self.map.version(),
        };
        let disk_node = self.map.disk_node(stripe);
        look(by_disk_node.entry(disk_node).or_insert_with(fresh))
    }

    /// The boot ID that a write of `stripe` returns now.
    pub(super) fn own(&self, stripe: u64) -> BootId {
        self.with(stripe, |ids| ids.own)
    }

    /// Fails if any of these writes may be lost.
    pub(super) fn check(&self, written: &[Unsynced]) -> Result<(), Error> {
        written.iter().try_for_each(|&Unsynced { stripe, boot_id }| {
            let own = self.own(stripe);
            if own == boot_id { Ok(()) } else { Err(Error::LostWrites { stripe, boot_id: own }) }
        })
    }

    /// For each disk node that these stripes were written back to, one of the stripes and the disk
    /// node's boot ID.
    pub(super) fn below(&self, stripes: &BTreeSet<u64>) -> Vec<Unsynced> {
        let mut below = BTreeMap::new();
        for &stripe in stripes {
            let boot_id = self.with(stripe, |ids| ids.below);
            if let Some(boot_id) = boot_id.filter(|boot_id| *boot_id != DROPPED) {
                let disk_node = self.map.disk_node(stripe);
                below.entry(disk_node).or_insert(Unsynced { stripe, boot_id });
            }
        }
        below.into_values().collect()
    }

    /// Notes the boot ID that the disk node of `stripe` has returned; true if the node has
    /// restarted, and takes what it is given.
    pub(super) fn note_below(&self, stripe: u64, boot_id: BootId) -> bool {
        let own = self.context.random();
        let (version, absent) = (self.map.version(), last_absent(&self.map, stripe));
        let restarted = self.with(stripe, |ids| {
            let before = ids.below.replace(boot_id);
            let has_changed = before.is_some_and(|before| before != boot_id);
            let was_away = absent.is_some_and(|absent| absent >= ids.version);
            let has_copies = was_away || before == Some(DROPPED) || boot_id == DROPPED;
            ids.version = version;
            if has_changed && std::mem::take(&mut ids.dropped) && !has_copies {
                ids.own = own;
            }
            has_changed && boot_id != DROPPED
        });
        self.restarts.set(self.restarts.get() + u64::from(restarted));
        restarted
    }

    /// Restarts of disk nodes that this cache has noticed.
    pub(super) fn restarts(&self) -> u64 {
        self.restarts.get()
    }

    /// Notes that bytes of `stripe` that were written back are no longer cached.
    pub(super) fn note_dropped(&self, stripe: u64) {
        self.with(stripe, |ids| ids.dropped = true);
    }
}
