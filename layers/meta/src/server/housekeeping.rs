//! What a node does now and then: it names the files whose changes wait for a commit, and gives
//! memory back ([`GetDirty`](crate::protocol::GetDirty)).

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use super::base::NodeBase;
use super::locks::directories::DirectoryLocks;
use crate::active::ActiveInode;
use crate::memory::MemoryKind;

/// Uncommitted chunks after which a file counts as dirty however young they are.
const UNCOMMITTED_MAX: usize = 1024;

/// A node that has recorded nothing for this long writes a checkpoint: the pages of what was
/// removed are free only then.
const IDLE_TIME: Duration = Duration::from_secs(5);
/// Changed keys from which on that is worth it.
const IDLE_KEYS_MIN: u64 = 64;

/// Everything of one node that takes memory, and space that is not needed any more.
pub(super) struct Housekeeping {
    base: Rc<NodeBase>,
    directories: Rc<DirectoryLocks>,
    /// The last record when this was looked at, and when it was a new one.
    last_record: Cell<(u64, Duration)>,
}

impl Housekeeping {
    pub(super) fn new(base: &Rc<NodeBase>, directories: Rc<DirectoryLocks>) -> Self {
        Self { base: base.clone(), directories, last_record: Cell::default() }
    }

    /// Files with changes that have waited for a commit for `age_ms`, or with very many; with age 0
    /// also those whose commit is under way, since they are not in the log yet. Called regularly,
    /// so this is also when the node gives memory back.
    pub(super) fn dirty(&self, age_ms: u64) -> Vec<u64> {
        let now = self.base.context.now();
        self.give_back();
        self.checkpoint_if_idle(now);
        // What is not committed cannot be given back.
        let age_ms = if self.base.share.is_short() { 0 } else { age_ms };
        let age = Duration::from_millis(age_ms);
        self.base.inodes.dirty(|active: &ActiveInode| {
            let old = active.dirty_since.is_some_and(|since| since + age <= now);
            let under_way = age_ms == 0 && active.is_being_committed;
            old || under_way || active.uncommitted() > UNCOMMITTED_MAX
        })
    }

    fn checkpoint_if_idle(&self, now: Duration) {
        let (last, since) = self.last_record.get();
        let newest = self.base.store.space().newest_record();
        if newest != last {
            self.last_record.set((newest, now));
        } else if now >= since + IDLE_TIME {
            self.base.store.space().checkpoint_if_changed(IDLE_KEYS_MIN);
        }
    }

    /// Gives back what is beyond the part of this node, as far as it is not needed.
    fn give_back(&self) {
        self.base.share.age();
        self.base.share.set(MemoryKind::Replies, self.base.replies.memory_bytes());
        self.base.inodes.give_back();
        self.directories.evict(&self.base.store, &self.base.share);
        self.base.publisher.give_back();
        self.base.store.give_back();
    }
}
