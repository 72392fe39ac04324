//! What a node does now and then: it names the files whose changes wait for a commit, and gives
//! memory back ([`GetDirty`](crate::protocol::GetDirty)).

use std::rc::Rc;
use std::time::Duration;

use runtime::Context;

use super::base::NodeBase;
use super::inode_cache::InodeCache;
use super::locks::directories::DirectoryLocks;
use super::replies::ReplyTable;
use crate::active::ActiveInode;
use crate::memory::{MemoryKind, MemoryShare};
use crate::shared_attrs::publisher::Publisher;
use crate::store::Store;

/// Uncommitted chunks after which a file counts as dirty however young they are.
const UNCOMMITTED_MAX: usize = 1024;

/// Everything of one node that takes memory.
pub(super) struct Housekeeping {
    context: Context,
    store: Rc<Store>,
    share: Rc<MemoryShare>,
    publisher: Rc<Publisher>,
    inodes: Rc<InodeCache>,
    directories: Rc<DirectoryLocks>,
    replies: Rc<ReplyTable>,
}

impl Housekeeping {
    pub(super) fn new(base: &NodeBase, directories: Rc<DirectoryLocks>) -> Self {
        Self {
            context: base.context.clone(),
            store: base.store.clone(),
            share: base.share.clone(),
            publisher: base.publisher.clone(),
            inodes: base.inodes.clone(),
            directories,
            replies: base.replies.clone(),
        }
    }

    /// Files with changes that have waited for a commit for `age_ms`, or with very many; with age 0
    /// also those whose commit is under way, since they are not in the log yet. Called regularly,
    /// so this is also when the node gives memory back.
    pub(super) fn dirty(&self, age_ms: u64) -> Vec<u64> {
        let now = self.context.now();
        self.give_back();
        // What is not committed cannot be given back.
        let age_ms = if self.share.is_short() { 0 } else { age_ms };
        let age = Duration::from_millis(age_ms);
        self.inodes.dirty(|active: &ActiveInode| {
            let old = active.dirty_since.is_some_and(|since| since + age <= now);
            let under_way = age_ms == 0 && active.is_being_committed;
            old || under_way || active.uncommitted() > UNCOMMITTED_MAX
        })
    }

    /// Gives back what is beyond the part of this node, as far as it is not needed.
    fn give_back(&self) {
        self.share.age();
        self.share.set(MemoryKind::Replies, self.replies.memory_bytes());
        self.inodes.give_back();
        self.directories.evict(&self.store, &self.share);
        self.publisher.give_back();
        self.store.give_back();
    }
}
