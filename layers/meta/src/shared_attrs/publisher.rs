//! The side of the node: publishes to the shared cache of the process.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::{Arc, PoisonError, RwLockWriteGuard};

use runtime::{Context, ValidityToken};

use super::{Shard, SharedAttrCache};
use crate::active::ActiveInode;
use crate::attributes::Attributes;
use crate::memory::{MemoryKind, MemoryShare};
use crate::protocol::Dentry;

/// Bytes of the attributes of one inode, with their slot in the table.
const ATTRIBUTES_BYTES: usize = size_of::<(u64, Attributes)>() * 3 / 2;
/// Bytes of a name besides its key, with its slot and its allocation.
const NAME_BYTES: usize = size_of::<(Box<[u8]>, Dentry)>() * 3 / 2 + 16;

/// Publishes what one node has, until the node ends. Does nothing where there is no shared cache.
#[derive(Debug, Default)]
pub(crate) struct Publisher {
    own: Option<OwnShard>,
    /// Counts how often all was taken down.
    round: Cell<PublishRound>,
}

/// When something was put up: it is still there if that is the present round. 0 if it never was.
pub(crate) type PublishRound = u64;

#[derive(Debug)]
struct OwnShard {
    shared_attrs: Arc<SharedAttrCache>,
    node: u32,
    boot_id: Arc<ValidityToken>,
    share: Rc<MemoryShare>,
}

impl Publisher {
    /// For the life of the node of `context` that has just begun. Shows nothing before
    /// [`begin`](Self::begin).
    pub(crate) fn new(
        context: &Context,
        node: u32,
        shared_attrs: Option<Arc<SharedAttrCache>>,
        share: Rc<MemoryShare>,
    ) -> Self {
        let own = shared_attrs.zip(context.validity()).map(|(shared_attrs, validity)| OwnShard {
            shared_attrs,
            node,
            boot_id: Arc::new(validity),
            share,
        });
        Self { own, round: Cell::new(1) }
    }

    /// From now on the node answers for what it has.
    pub(crate) fn begin(&self) {
        if let Some(own) = &self.own {
            *own.write() = Shard { boot_id: Some(own.boot_id.clone()), ..Shard::default() };
            self.note_empty(own);
        }
    }

    /// Takes all down if that is more than the node may have. Called now and then: its allowance
    /// changes with what others use.
    pub(crate) fn give_back(&self) {
        let Some(own) = &self.own else { return };
        if own.share.used(MemoryKind::Publisher) <= own.share.notices_max() {
            return;
        }
        if let Some(mut shard) = self.shard() {
            let past = self.invalidate_all(own, &mut shard);
            drop(shard); // freeing it all takes a while
            drop(past);
        }
    }

    fn invalidate_all(&self, own: &OwnShard, shard: &mut Shard) -> Shard {
        self.note_empty(own);
        let boot_id = shard.boot_id.clone();
        std::mem::replace(shard, Shard { boot_id, ..Shard::default() })
    }

    fn note_empty(&self, own: &OwnShard) {
        own.share.set(MemoryKind::Publisher, 0);
        self.round.set(self.round.get() + 1);
    }

    /// Shows the attributes of an inode in use, as they are now.
    pub(crate) fn show(&self, active: &ActiveInode) {
        if !self.shows(active) && self.publish(&active.inode.attributes) {
            active.shown.set(self.round.get());
        }
    }

    /// Shows these attributes of an inode; false if that is not possible.
    pub(crate) fn publish(&self, attributes: &Attributes) -> bool {
        self.add(ATTRIBUTES_BYTES, |shard| {
            shard.attributes.insert(attributes.ino, *attributes).is_none()
        })
    }

    /// An inode comes into use again, as the store has it. It may have been shown since it was in
    /// use before: until it comes back nothing of it changes.
    pub(crate) fn reloaded(&self, active: &ActiveInode) {
        let is_shown = |shard: RwLockWriteGuard<'_, Shard>| {
            shard.attributes.contains_key(&active.inode.attributes.ino)
        };
        let is_shown = self.shard().is_some_and(is_shown);
        active.shown.set(if is_shown { self.round.get() } else { 0 });
    }

    /// Are the attributes of this inode shown?
    pub(crate) fn shows(&self, active: &ActiveInode) -> bool {
        active.shown.get() == self.round.get()
    }

    /// The attributes of an inode that are shown have changed.
    pub(crate) fn renew(&self, attributes: &Attributes) {
        let Some(mut shard) = self.shard() else { return };
        if let Some(shown) = shard.attributes.get_mut(&attributes.ino) {
            *shown = *attributes;
        }
    }

    /// An inode is gone.
    pub(crate) fn invalidate(&self, ino: u64) {
        let Some(mut shard) = self.shard() else { return };
        if shard.attributes.remove(&ino).is_some() {
            self.count(-ATTRIBUTES_BYTES.cast_signed());
        }
    }

    /// Shows what a name names now; `key` is its key in the store.
    pub(crate) fn publish_name(&self, key: &[u8], dentry: Dentry) {
        self.add(NAME_BYTES + key.len(), |shard| shard.names.insert(key.into(), dentry).is_none());
    }

    /// The name with this key is about to change.
    pub(crate) fn invalidate_name(&self, key: &[u8]) {
        let Some(mut shard) = self.shard() else { return };
        if shard.names.remove(key).is_some() {
            self.count(-(NAME_BYTES + key.len()).cast_signed());
        }
    }

    /// Publishes something of `bytes` bytes by `insert`, which returns whether it is new. False if
    /// it was not published.
    fn add(&self, bytes: usize, insert: impl FnOnce(&mut Shard) -> bool) -> bool {
        let Some(own) = &self.own else { return false };
        let Ok(mut shard) = own.shared_attrs.shards[own.node as usize].try_write() else {
            return false;
        };
        if !own.is_shown(&shard) {
            return false;
        }
        let is_full = own.share.used(MemoryKind::Publisher) + bytes > own.share.notices_max();
        // Takes a constant time for each, and what is asked for comes back.
        let past = is_full.then(|| self.invalidate_all(own, &mut shard));
        if insert(&mut shard) {
            self.count(bytes.cast_signed());
        }
        drop(shard); // freeing it all takes a while
        drop(past);
        true
    }

    fn count(&self, bytes: isize) {
        if let Some(own) = &self.own {
            own.share.add(MemoryKind::Publisher, bytes);
        }
    }

    /// The sheet of the node, if there is one that this life shows.
    fn shard(&self) -> Option<RwLockWriteGuard<'_, Shard>> {
        let own = self.own.as_ref()?;
        let shard = own.write();
        own.is_shown(&shard).then_some(shard)
    }
}

impl OwnShard {
    fn write(&self) -> RwLockWriteGuard<'_, Shard> {
        let shard = &self.shared_attrs.shards[self.node as usize];
        shard.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// A later life of the node may have begun already.
    fn is_shown(&self, shard: &Shard) -> bool {
        shard.boot_id.as_ref().is_some_and(|shown| Arc::ptr_eq(shown, &self.boot_id))
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        if let Some(mut shard) = self.shard() {
            *shard = Shard::default();
        }
    }
}
