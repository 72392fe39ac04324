//! Inodes in memory, and which of them stay. What is clean may go, since the store has it; what is
//! dirty, open or pinned stays.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use runtime::Context;
use runtime::sync::KeyedLock;

use super::open_file_table::OpenFileTable;
use super::partition_use::PartitionUses;
use super::record_log::decode;
use crate::active::ActiveInode;
use crate::attributes::Attributes;
use crate::information::Inodes;
use crate::keys;
use crate::memory::{MemoryKind, MemoryShare};
use crate::partition::{PartitionNumber, ino_in};
use crate::protocol::{Error, Inode};
use crate::shared_attrs::publisher::Publisher;
use crate::store::{Store, StoreError};

/// Chunks of all files that are kept in memory though the store has them too, at most: 256 MiB of
/// content in chunks of 64 KiB, in about 1 MB.
const REMEMBERED_MAX: usize = 4096;
/// Inodes that are examined for eviction when one is inserted, at most.
const EVICT_SCAN_MAX: usize = 32;

/// Inodes that requests are working on, and how many requests.
#[derive(Clone, Debug, Default)]
struct Pins(Rc<RefCell<BTreeMap<u64, u32>>>);

/// Keeps an inode in memory until it is dropped.
#[derive(Debug)]
pub(super) struct Pinned {
    pins: Pins,
    ino: u64,
}

impl Pins {
    fn has(&self, ino: u64) -> bool {
        self.0.borrow().contains_key(&ino)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let mut pins = self.pins.0.borrow_mut();
        if let Some(count) = pins.get_mut(&self.ino) {
            *count -= 1;
            if *count == 0 {
                pins.remove(&self.ino);
            }
        }
    }
}

/// The inodes of one node that are in memory.
pub(super) struct InodeCache {
    context: Context,
    /// This node's index.
    node: u32,
    store: Rc<Store>,
    /// The part of the memory that this node has.
    share: Rc<MemoryShare>,
    /// What the node shows to all threads of its process.
    publisher: Rc<Publisher>,
    open_files: Rc<OpenFileTable>,
    inodes: Inodes,
    /// Those that a request is working on.
    pins: Pins,
    /// The inode at which the search for one to evict continues.
    clock_hand: Cell<u64>,
    /// Chunks remembered since all were forgotten.
    remembered: Cell<usize>,
    /// Inodes with changes that no record names.
    dirty: RefCell<BTreeSet<u64>>,
    /// One reader of the store per inode.
    loading: KeyedLock<u64>,
    /// Inodes of this node, in memory or not.
    count: Cell<u64>,
    uses: Rc<PartitionUses>,
}

impl InodeCache {
    /// An empty cache in front of `store`, which says how many inodes the node has.
    pub(super) async fn open(
        context: Context,
        node: u32,
        store: Rc<Store>,
        share: Rc<MemoryShare>,
        publisher: Rc<Publisher>,
        open_files: Rc<OpenFileTable>,
    ) -> Result<Self, StoreError> {
        let count = store.get(&keys::inode_count()).await?;
        let count = count.and_then(|count| decode(&count).ok()).unwrap_or(0);
        let uses = Rc::new(PartitionUses::load(&store).await?);
        Ok(Self {
            context,
            node,
            store,
            share,
            publisher,
            open_files,
            inodes: Inodes::default(),
            pins: Pins::default(),
            clock_hand: Cell::default(),
            remembered: Cell::default(),
            dirty: RefCell::default(),
            loading: KeyedLock::default(),
            count: Cell::new(count),
            uses,
        })
    }

    /// The table of inodes, for reading by the file layer of this node.
    pub(super) fn table(&self) -> Inodes {
        self.inodes.clone()
    }

    /// Inodes of this node, in memory or not.
    pub(super) fn count(&self) -> u64 {
        self.count.get()
    }

    /// One inode more.
    pub(super) fn count_added(&self) {
        self.count.set(self.count.get().saturating_add(1));
    }

    /// One inode less.
    pub(super) fn count_removed(&self) {
        self.count.set(self.count.get().saturating_sub(1));
    }

    /// The attributes of an inode, if it is in memory.
    pub(super) fn attributes(&self, ino: u64) -> Option<Attributes> {
        self.inodes.borrow().get(&ino).map(|active| active.inode.attributes)
    }

    /// Reads an inode, if it is in memory.
    pub(super) fn peek<T>(&self, ino: u64, read: impl FnOnce(&ActiveInode) -> T) -> Option<T> {
        self.inodes.borrow().get(&ino).map(|active| read(active))
    }

    /// No change of this inode waits for a record any more.
    pub(super) fn clear_dirty(&self, ino: u64) {
        self.dirty.borrow_mut().remove(&ino);
    }

    /// The inodes with changes that no record names, those of them that `is_due` selects.
    pub(super) fn dirty(&self, is_due: impl Fn(&ActiveInode) -> bool) -> Vec<u64> {
        let inodes = self.inodes.borrow();
        let is_due = |ino: &u64| inodes.get(ino).is_some_and(|active| is_due(active));
        self.dirty.borrow().iter().copied().filter(is_due).collect()
    }

    /// The number of a new inode: in its [order](crate::partition::order_of) above all that this
    /// node has given before.
    pub(super) fn next_ino(&self, partition: PartitionNumber) -> u64 {
        ino_in(partition, self.store.next_number(), self.node, self.context.fs_nodes())
    }

    /// What partitions use at this node.
    pub(super) fn uses(&self) -> &Rc<PartitionUses> {
        &self.uses
    }

    /// Brings an inode into memory; checks its incarnation unless `generation` is 0. It may leave
    /// at the next await, unless it is [kept](Self::keep).
    pub(super) async fn load(&self, ino: u64, generation: u64) -> Result<(), Error> {
        self.share.note_use();
        if !self.inodes.borrow().contains_key(&ino) {
            // One at a time: a late answer of the store must not replace a newer state.
            let _alone = self.loading.exclusive(ino).await;
            if !self.inodes.borrow().contains_key(&ino) {
                let value = self.store.get(&keys::inode(ino)).await?.ok_or(Error::Stale {})?;
                let inode = Inode::from_stored(&value).map_err(|_| Error::Damaged {})?;
                self.insert_active(ino, ActiveInode::new(inode));
            }
        }
        let inodes = self.inodes.borrow();
        let found = inodes.get(&ino).map(|active| {
            active.used.set(true);
            active.inode.attributes.generation
        });
        if generation == 0 || found == Some(generation) { Ok(()) } else { Err(Error::Stale {}) }
    }

    /// Is it in memory?
    pub(super) fn contains(&self, ino: u64) -> bool {
        self.inodes.borrow().contains_key(&ino)
    }

    /// Looks at or changes an inode that was [loaded](Self::load) just before, without an await
    /// in between, or that is [kept](Self::keep).
    pub(super) fn with<T>(
        &self,
        ino: u64,
        look: impl FnOnce(&mut ActiveInode) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut inodes = self.inodes.borrow_mut();
        let active = inodes.get_mut(&ino).ok_or(Error::Stale {})?;
        let shown = self.publisher.shows(active).then_some(active.inode.attributes);
        let (before, used_before) = (active.memory_bytes(), active.inode.attributes.used_bytes);
        let looked = look(active);
        self.uses.note_seen(ino, used_before, active.inode.attributes.used_bytes);
        self.share
            .add(MemoryKind::Inodes, active.memory_bytes().wrapping_sub(before).cast_signed());
        if shown.is_some_and(|shown| shown != active.inode.attributes) {
            self.publisher.renew(&active.inode.attributes);
        }
        looked
    }

    /// As [`with`](Self::with), for a change that waits for a commit.
    pub(super) fn with_dirty<T>(
        &self,
        ino: u64,
        change: impl FnOnce(&mut ActiveInode) -> T,
    ) -> Result<T, Error> {
        let now = self.context.now();
        let changed = self.with(ino, |active| {
            active.dirty_since.get_or_insert(now);
            Ok(change(active))
        })?;
        self.dirty.borrow_mut().insert(ino);
        Ok(changed)
    }

    /// Pins an inode: for requests that use it across an await.
    pub(super) fn keep(&self, ino: u64) -> Pinned {
        *self.pins.0.borrow_mut().entry(ino).or_default() += 1;
        Pinned { pins: self.pins.clone(), ino }
    }

    /// An inode is in use from now on.
    pub(super) fn insert_active(&self, ino: u64, active: Box<ActiveInode>) {
        self.evict(EVICT_SCAN_MAX);
        self.share.add(MemoryKind::Inodes, active.memory_bytes().cast_signed());
        self.publisher.reloaded(&active);
        if let Some(before) = self.inodes.borrow_mut().insert(ino, active) {
            self.share.add(MemoryKind::Inodes, -before.memory_bytes().cast_signed());
        }
    }

    /// An inode is not in use any more.
    pub(super) fn remove_active(&self, ino: u64) -> Option<Box<ActiveInode>> {
        let gone = self.inodes.borrow_mut().remove(&ino)?;
        self.share.add(MemoryKind::Inodes, -gone.memory_bytes().cast_signed());
        Some(gone)
    }

    /// Looks at up to `most` inodes, in the order of their numbers, round and round, and evicts
    /// those that were not used since the last round.
    fn evict(&self, most: usize) {
        let mut excess = self.share.excess(MemoryKind::Inodes);
        for _ in 0..most {
            if excess == 0 {
                return;
            }
            let next =
                self.inodes.borrow().range(self.clock_hand.get()..).next().map(|(&ino, _)| ino);
            let Some(ino) = next else {
                self.clock_hand.set(0);
                continue;
            };
            self.clock_hand.set(ino.saturating_add(1));
            if self.can_evict(ino) {
                let gone = self.remove_active(ino);
                if gone.as_ref().is_some_and(|gone| gone.inode != gone.stored) {
                    // What is shown is as it comes back.
                    self.publisher.invalidate(ino);
                }
                excess = excess.saturating_sub(gone.map_or(0, |gone| gone.memory_bytes()));
            }
        }
    }

    fn can_evict(&self, ino: u64) -> bool {
        let inodes = self.inodes.borrow();
        let Some(active) = inodes.get(&ino) else { return false };
        let is_wanted = active.used.take() || !active.is_clean() || active.lost;
        !is_wanted && !self.pins.has(ino) && !self.open_files.has(ino)
    }

    /// `count` chunks are about to be remembered. At the limit all are forgotten: that costs each
    /// of them a constant time, and those in use come back.
    pub(super) fn note_remembered(&self, count: usize) {
        let remembered = self.remembered.get() + count;
        self.remembered.set(remembered);
        if remembered > REMEMBERED_MAX {
            self.forget_chunks();
            self.remembered.set(count);
        }
    }

    /// Forgets the chunks that the store has too.
    pub(super) fn forget_chunks(&self) {
        for active in self.inodes.borrow_mut().values_mut() {
            let before = active.memory_bytes();
            active.forget_recent();
            let less = active.memory_bytes().wrapping_sub(before).cast_signed();
            self.share.add(MemoryKind::Inodes, less);
        }
        self.remembered.set(0);
    }

    /// Evicts what is beyond the part of this node.
    pub(super) fn give_back(&self) {
        let count = self.inodes.borrow().len();
        if self.share.excess(MemoryKind::Inodes) > 0 {
            self.forget_chunks();
        }
        // The first round finds most of them used.
        self.evict(2 * count);
    }
}
