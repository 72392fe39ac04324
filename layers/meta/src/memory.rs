//! Memory of the metadata of one process: one budget in bytes for all nodes that it hosts.
//!
//! A node may take what others leave. Once all together have more than the budget, each gives back
//! what is beyond its allowance: a part of the budget in proportion to how much the node was used
//! of late. What is counted is what is there (the sizes of what is held, with what the tables and
//! the allocator need for it), not what was reserved. Uncommitted changes, open files, pinned
//! inodes and intents stay, whatever the budget: they are bounded by limits of their own, and by
//! checkpoints and commits, which come earlier when memory is short.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Bytes that a node has in any case: less does not hold the way from the top of a tree to a leaf.
pub const NODE_BYTES_MIN: usize = 256 << 10;
/// The part of a node's allowance that tree pages have in any case: they hold most keys per byte.
const PAGES_SHARE: usize = 4;
/// The part that inodes in use have in any case, with the chunks remembered of them.
const INODES_SHARE: usize = 8;
/// The part that changes may have that are not in the tree yet, before a checkpoint is due.
const CHANGES_SHARE: usize = 2;
/// What a running checkpoint writes and what has come since may have this many times that part
/// together: past it commits are `Busy`.
const CHANGES_TIMES_MAX: usize = 2;
/// The part that filters of leaves may have, which tell what these have not. They are a hundredth
/// of the leaves.
const FILTERS_SHARE: usize = 16;
/// The part that what is shown to all threads of the process may have.
const NOTICES_SHARE: usize = 8;
/// Changes of a node below this let no checkpoint start, however little memory there is.
const CHANGES_BYTES_MIN: usize = 64 << 10;
/// Uses of a node that are counted together, so that threads seldom meet.
const USES_BATCH: u64 = 64;

/// What the memory of a node holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryKind {
    /// Pages of the tree.
    Pages,
    /// Inodes in use, and chunks remembered of them.
    Inodes,
    /// Changes that are not in the tree.
    Changes,
    /// What is known of directories.
    Directories,
    /// Stored replies.
    Replies,
    /// What is shown to all threads of the process.
    Publisher,
}

/// Kinds of what is held.
const KINDS: usize = 6;

/// The budget of a process.
#[derive(Debug)]
pub struct MemoryBudget {
    limit_bytes: usize,
    used_bytes: AtomicUsize,
    /// How much all nodes were used of late.
    uses: AtomicU64,
    nodes: AtomicUsize,
}

impl MemoryBudget {
    /// A budget of `limit_bytes`. The minimum of each node is granted even if it exceeds the
    /// budget.
    pub fn new(limit_bytes: usize) -> Arc<Self> {
        Arc::new(Self {
            limit_bytes,
            used_bytes: AtomicUsize::new(0),
            uses: AtomicU64::new(0),
            nodes: AtomicUsize::new(0),
        })
    }

    /// The budget that goes with `cache_bytes` of cached stripes: half as much again.
    pub fn beside_cache(cache_bytes: usize) -> Arc<Self> {
        Self::new(cache_bytes / 2)
    }

    /// Bytes that the nodes hold now.
    pub fn used_bytes(&self) -> usize {
        self.used_bytes.load(Relaxed)
    }
}

/// The part of one node.
#[derive(Debug)]
pub(crate) struct MemoryShare {
    memory: Arc<MemoryBudget>,
    used_bytes: [Cell<usize>; KINDS],
    uses: Cell<u64>,
    uncounted: Cell<u64>,
}

impl MemoryShare {
    /// The part of one more node.
    pub(crate) fn new(memory: Arc<MemoryBudget>) -> Rc<Self> {
        memory.nodes.fetch_add(1, Relaxed);
        Rc::new(Self {
            memory,
            used_bytes: Default::default(),
            uses: Cell::default(),
            uncounted: Cell::default(),
        })
    }

    /// The node holds more, or less if `bytes` is negative, of a kind.
    pub(crate) fn add(&self, kind: MemoryKind, bytes: isize) {
        let used = &self.used_bytes[kind as usize];
        used.set(used.get().wrapping_add_signed(bytes));
        // Adding the complement takes away.
        self.memory.used_bytes.fetch_add(bytes.cast_unsigned(), Relaxed);
    }

    /// The node holds `bytes` bytes of a kind from now on.
    pub(crate) fn set(&self, kind: MemoryKind, bytes: usize) {
        self.add(kind, bytes.wrapping_sub(self.used(kind)).cast_signed());
    }

    /// Bytes that the node holds of a kind.
    pub(crate) fn used(&self, kind: MemoryKind) -> usize {
        self.used_bytes[kind as usize].get()
    }

    /// The node was asked for something.
    pub(crate) fn note_use(&self) {
        let uncounted = self.uncounted.get() + 1;
        self.uncounted.set(uncounted % USES_BATCH);
        if uncounted == USES_BATCH {
            self.uses.set(self.uses.get() + USES_BATCH);
            self.memory.uses.fetch_add(USES_BATCH, Relaxed);
        }
    }

    /// What was used long ago counts less: called now and then.
    pub(crate) fn age(&self) {
        let gone = self.uses.get() / 2;
        self.uses.set(self.uses.get() - gone);
        self.memory.uses.fetch_sub(gone, Relaxed);
    }

    /// The part of the budget that this node has by its use, in bytes.
    fn allowance(&self) -> usize {
        let nodes = self.memory.nodes.load(Relaxed) as u128;
        // Half of the budget is spread evenly: who was away must be able to begin.
        let even = self.memory.limit_bytes as u128 / (2 * nodes);
        let uses = u128::from(self.memory.uses.load(Relaxed)).max(1);
        let by_use = self.memory.limit_bytes as u128 / 2 * u128::from(self.uses.get()) / uses;
        ((even + by_use) as usize).max(NODE_BYTES_MIN)
    }

    /// Bytes of what is remembered of leaves that have left memory, at most.
    pub(crate) fn filters_max(&self) -> usize {
        self.allowance() / FILTERS_SHARE
    }

    /// Bytes of what is shown to all threads of the process, at most.
    pub(crate) fn notices_max(&self) -> usize {
        self.allowance() / NOTICES_SHARE
    }

    fn total(&self) -> usize {
        self.used_bytes.iter().map(Cell::get).sum()
    }

    /// Bytes of a kind that the node has to give back, if it can.
    pub(crate) fn excess(&self, kind: MemoryKind) -> usize {
        if self.memory.used_bytes() <= self.memory.limit_bytes {
            return 0;
        }
        let allowance = self.allowance();
        let part = match kind {
            MemoryKind::Pages => allowance / PAGES_SHARE,
            MemoryKind::Inodes => allowance / INODES_SHARE,
            MemoryKind::Changes
            | MemoryKind::Directories
            | MemoryKind::Replies
            | MemoryKind::Publisher => 0,
        };
        let beyond = self.total().saturating_sub(allowance);
        self.used(kind).saturating_sub(part).min(beyond)
    }

    /// Bytes of changes past which a checkpoint is due.
    pub(crate) fn changes_due(&self) -> usize {
        (self.allowance() / CHANGES_SHARE).max(CHANGES_BYTES_MIN)
    }

    /// Bytes of changes, those included that a checkpoint is writing, past which none are taken.
    pub(crate) fn changes_max(&self) -> usize {
        CHANGES_TIMES_MAX * self.changes_due()
    }

    /// Have all nodes together more than the budget, and this one more than its part?
    pub(crate) fn is_short(&self) -> bool {
        self.memory.used_bytes() > self.memory.limit_bytes && self.total() > self.allowance()
    }
}

impl Drop for MemoryShare {
    fn drop(&mut self) {
        self.memory.used_bytes.fetch_sub(self.total(), Relaxed);
        self.memory.uses.fetch_sub(self.uses.get(), Relaxed);
        self.memory.nodes.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn used(share: &MemoryShare, uses: u64) {
        (0..uses).for_each(|_| share.note_use());
    }

    #[test]
    fn a_node_alone_may_have_all_of_the_budget() {
        let memory = MemoryBudget::new(64 * MIB);
        let shares: Vec<_> = (0..8).map(|_| MemoryShare::new(memory.clone())).collect();
        shares[0].set(MemoryKind::Inodes, 60 * MIB);
        assert_eq!((shares[0].excess(MemoryKind::Inodes), shares[0].is_short()), (0, false));
        shares[0].set(MemoryKind::Inodes, 65 * MIB);
        assert!(shares[0].excess(MemoryKind::Inodes) > 0 && shares[0].is_short());
        assert_eq!(shares[1].excess(MemoryKind::Inodes), 0, "it has nothing");
    }

    #[test]
    fn who_is_used_more_keeps_more_and_what_was_used_long_ago_counts_less() {
        let memory = MemoryBudget::new(64 * MIB);
        let (busy, idle) = (MemoryShare::new(memory.clone()), MemoryShare::new(memory.clone()));
        used(&busy, 64 * 64);
        used(&idle, 64);
        assert!(busy.allowance() > 2 * idle.allowance());
        assert!(busy.allowance() + idle.allowance() <= 64 * MIB);
        (0..12).for_each(|_| busy.age());
        assert!(idle.allowance() > busy.allowance());
    }

    #[test]
    fn nodes_that_are_gone_count_no_longer() {
        let memory = MemoryBudget::new(MIB);
        let stays = MemoryShare::new(memory.clone());
        let gone = MemoryShare::new(memory.clone());
        gone.set(MemoryKind::Pages, 5 * MIB);
        used(&gone, 1000);
        stays.set(MemoryKind::Pages, MIB);
        assert_eq!(memory.used_bytes(), 6 * MIB);
        drop(gone);
        assert_eq!((memory.used_bytes(), memory.uses.load(Relaxed)), (MIB, 0));
        assert!(!stays.is_short());
        stays.add(MemoryKind::Pages, -MIB.cast_signed());
        assert_eq!(memory.used_bytes(), 0);
    }

    #[test]
    fn all_that_is_beyond_the_allowances_can_be_given_back() {
        let memory = MemoryBudget::new(8 * MIB);
        let shares: Vec<_> = (0..4).map(|_| MemoryShare::new(memory.clone())).collect();
        for share in &shares {
            share.set(MemoryKind::Pages, 3 * MIB);
            share.set(MemoryKind::Inodes, 3 * MIB);
        }
        for share in &shares {
            for kind in [MemoryKind::Inodes, MemoryKind::Pages] {
                share.add(kind, -share.excess(kind).cast_signed());
            }
        }
        assert!(memory.used_bytes() <= 8 * MIB, "{}", memory.used_bytes());
    }
}
