//! Inodes: finding, changing, losing links.

use runtime::Context;
use runtime::wire::to_bytes;

use super::{MetaServer, decode};
use crate::active::Active;
use crate::attributes::{Attributes, Kind, Time};
use crate::hash::ino_node;
use crate::keys;
use crate::memory::Kind as Memory;
use crate::protocol::{ChangeInode, Error, GetInode, Inode, InodeChange};
use crate::store::Batch;

/// The number of the root directory.
const ROOT_INO: u64 = 1;

/// The root directory of a new volume, if this is its node.
pub(super) fn root_inode(context: &Context) -> Option<Inode> {
    if ino_node(ROOT_INO, context.fs_nodes()) != context.node() {
        return None;
    }
    let now = Time::from_unix(context.unix_time());
    let attributes = Attributes {
        mode: 0o755,
        links: 2,
        size: super::names::DIRECTORY_SIZE,
        ..Attributes::blank(ROOT_INO, 1, Kind::Directory {}, now)
    };
    Some(Inode { attributes, parent: ROOT_INO, verifier: None, target: Vec::new() })
}

impl MetaServer {
    /// The number of a new inode: higher than all that this node has given before.
    pub(super) fn next_ino(&self) -> u64 {
        self.store.next_number() * u64::from(self.context.fs_nodes()) + u64::from(self.node)
    }

    /// Brings an inode into memory; checks its incarnation unless `generation` is 0. It may leave at the
    /// next await, unless it is [kept](Self::keep).
    pub(super) async fn load(&self, ino: u64, generation: u64) -> Result<(), Error> {
        self.share.note_use();
        if !self.inodes.borrow().contains_key(&ino) {
            // One at a time: a late answer of the store must not replace a newer state.
            let _alone = self.loading.exclusive(ino).await;
            if !self.inodes.borrow().contains_key(&ino) {
                let value = self.store.get(&keys::inode(ino)).await?.ok_or(Error::Stale {})?;
                let inode: Inode = decode(&value)?;
                self.put_in_use(ino, Active::new(inode));
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
    pub(super) fn is_in_use(&self, ino: u64) -> bool {
        self.inodes.borrow().contains_key(&ino)
    }

    /// Looks at or changes an inode that was [loaded](Self::load) just before, without an await
    /// in between, or that is [kept](Self::keep).
    pub(super) fn with<T>(
        &self,
        ino: u64,
        look: impl FnOnce(&mut Active) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut inodes = self.inodes.borrow_mut();
        let active = inodes.get_mut(&ino).ok_or(Error::Stale {})?;
        let shown = self.publisher.shows(active).then_some(active.inode.attributes);
        let before = active.memory_bytes();
        let looked = look(active);
        self.share.add(Memory::Inodes, active.memory_bytes().wrapping_sub(before).cast_signed());
        if shown.is_some_and(|shown| shown != active.inode.attributes) {
            self.publisher.renew(&active.inode.attributes);
        }
        looked
    }

    /// As [`with`](Self::with), for a change that waits for a commit.
    pub(super) fn with_dirty<T>(
        &self,
        ino: u64,
        change: impl FnOnce(&mut Active) -> T,
    ) -> Result<T, Error> {
        let now = self.context.now();
        let changed = self.with(ino, |active| {
            active.dirty_since.get_or_insert(now);
            Ok(change(active))
        })?;
        self.dirty.borrow_mut().insert(ino);
        Ok(changed)
    }

    /// Answers [`GetInode`], if the inode is in use.
    pub(super) fn try_inode_now(&self, request: &GetInode) -> Option<Inode> {
        let &GetInode { ino, generation } = request;
        let inodes = self.inodes.borrow();
        let active = inodes.get(&ino)?;
        let inode = &active.inode;
        active.used.set(true);
        let is_meant = generation == 0 || inode.attributes.generation == generation;
        if is_meant {
            // Whoever asks is at another node, and perhaps on another thread.
            self.publisher.show(active);
        }
        is_meant.then(|| inode.clone())
    }

    pub(super) async fn get_inode(&self, request: GetInode) -> Result<Inode, Error> {
        self.load(request.ino, request.generation).await?;
        self.try_inode_now(&request).ok_or(Error::Stale {})
    }

    pub(super) async fn change_inode(&self, request: ChangeInode) -> Result<Attributes, Error> {
        let ChangeInode { ino, generation, change, only_if_ctime, durable } = request;
        let _kept = self.keep(ino);
        self.load(ino, generation).await?;
        let (position, attributes) = self
            .record(|| {
                self.with(ino, |active| {
                    let ctime = active.inode.attributes.ctime;
                    if only_if_ctime.is_some_and(|expected| expected != ctime) {
                        return Err(Error::Changed {});
                    }
                    let mut after = active.inode.clone();
                    apply(&change, &mut after);
                    let mut batch = Batch::new();
                    let mut stored = active.stored.clone();
                    apply(&change, &mut stored);
                    batch.put(keys::inode(ino), to_bytes(&stored));
                    Ok((batch, (after, stored)))
                })
            })
            .await
            .and_then(|(position, (after, stored))| {
                self.with(ino, |active| {
                    active.inode = after;
                    active.stored = stored;
                    Ok((position, active.inode.attributes))
                })
            })?;
        self.settle_record(position, durable).await?;
        Ok(attributes)
    }
}

/// Applies a change to an inode.
pub(super) fn apply(change: &InodeChange, inode: &mut Inode) {
    let attributes = &mut inode.attributes;
    attributes.mode = change.mode.unwrap_or(attributes.mode);
    attributes.uid = change.uid.unwrap_or(attributes.uid);
    attributes.gid = change.gid.unwrap_or(attributes.gid);
    attributes.atime = change.atime.unwrap_or(attributes.atime);
    attributes.mtime = change.mtime.unwrap_or(attributes.mtime);
    attributes.ctime = change.ctime.unwrap_or(attributes.ctime);
    // Notes of several nodes about one directory may overtake each other: the sum is right in the end.
    attributes.links = attributes.links.wrapping_add_signed(change.links as i32);
    inode.parent = change.parent.unwrap_or(inode.parent);
}
