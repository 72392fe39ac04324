//! Inodes: reading and changing one ([`GetInode`], [`ChangeInode`]).

use std::rc::Rc;

use runtime::Context;
use runtime::protocol::Undelivered;

use super::base::NodeBase;
use super::space::disk_mover::DiskMover;
use super::space::encode_queue::EncodeQueue;
use crate::attributes::{Attributes, Kind, Time};
use crate::hash::ino_node;
use crate::keys;
use crate::protocol::{ChangeInode, CommitMark, Error, GetInode, Inode, InodeChange};
use crate::store::Batch;

/// The size of a directory in its attributes: names are in the store, not in blocks of its own.
pub(super) const DIRECTORY_SIZE: u64 = blockio::BLOCK_SIZE as u64;

/// The number of the root directory.
const ROOT_INO: u64 = 1;

/// To whom the root directory of a new volume belongs; to root by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RootOwner {
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
}

/// The root directory of a new volume, if this is its node.
pub(super) fn root_inode(context: &Context, owner: RootOwner) -> Option<Inode> {
    if ino_node(ROOT_INO, context.fs_nodes()) != context.node() {
        return None;
    }
    let now = Time::from_unix(context.unix_time());
    let attributes = Attributes {
        mode: 0o755,
        uid: owner.uid,
        gid: owner.gid,
        links: 2,
        size: DIRECTORY_SIZE,
        ..Attributes::blank(ROOT_INO, 1, Kind::Directory {}, now)
    };
    Some(Inode {
        attributes,
        parent: ROOT_INO,
        verifier: None,
        target: Vec::new(),
        committed: CommitMark::default(),
    })
}

/// The inodes of one node, as requests see them.
pub(super) struct InodeRequests {
    base: Rc<NodeBase>,
    /// Hears of files whose content is to survive in another way.
    queue: Rc<EncodeQueue>,
    disks: Rc<DiskMover>,
}

impl InodeRequests {
    pub(super) fn new(
        base: &Rc<NodeBase>,
        (queue, disks): (Rc<EncodeQueue>, Rc<DiskMover>),
    ) -> Self {
        Self { base: base.clone(), queue, disks }
    }

    /// Answers [`GetInode`], if the inode is in memory.
    pub(super) fn try_inode_now(&self, request: &GetInode) -> Option<Inode> {
        let &GetInode { ino, generation } = request;
        self.base.inodes.peek(ino, |active| {
            let inode = &active.inode;
            active.used.set(true);
            let is_meant = generation == 0 || inode.attributes.generation == generation;
            if is_meant {
                // The request comes from another node, and perhaps from another thread.
                self.base.publisher.show(active);
            }
            is_meant.then(|| inode.clone())
        })?
    }

    pub(super) async fn get_inode(&self, request: GetInode) -> Result<Inode, Error> {
        self.base.inodes.load(request.ino, request.generation).await?;
        self.try_inode_now(&request).ok_or(Error::Stale {})
    }

    pub(super) async fn change_inode(&self, request: ChangeInode) -> Result<Attributes, Error> {
        let ChangeInode { ino, generation, change, redundancy, only_if_ctime, durable } = request;
        // A disk that does not know of the class would be used by programs that know none.
        if redundancy.is_some() && !self.disks.is_recorded() {
            return Err(Undelivered::Busy.into());
        }
        let apply = |inode: &mut Inode| {
            apply(&change, inode);
            let own = &mut inode.attributes.redundancy;
            *own = redundancy.or(*own);
        };
        let _kept = self.base.inodes.keep(ino);
        self.base.inodes.load(ino, generation).await?;
        let make = || {
            self.base.inodes.with(ino, |active| {
                let ctime = active.inode.attributes.ctime;
                if only_if_ctime.is_some_and(|expected| expected != ctime) {
                    return Err(Error::Changed {});
                }
                let mut after = active.inode.clone();
                apply(&mut after);
                let mut batch = Batch::new();
                let mut stored = active.stored.clone();
                apply(&mut stored);
                batch.put(keys::inode(ino), stored.to_stored());
                Ok((batch, (after, stored)))
            })
        };
        let recorded = if redundancy.is_none() && notes_access(&change) {
            // No reader of a full volume waits for what other nodes may have.
            self.base.records.record_within(make).await
        } else {
            self.base.records.record(make).await
        };
        let (position, attributes) = recorded.and_then(|(position, (after, stored))| {
            self.base.inodes.with(ino, |active| {
                active.inode = after;
                active.stored = stored;
                Ok((position, active.inode.attributes))
            })
        })?;
        if redundancy.is_some() && attributes.kind == (Kind::File {}) {
            self.queue.note_file(ino);
        }
        self.base.records.ensure_durable(position, durable).await?;
        Ok(attributes)
    }
}

/// Does it change no more than the time of the last access, as a read does?
fn notes_access(change: &InodeChange) -> bool {
    *change == InodeChange { atime: change.atime, ..InodeChange::default() }
}

pub(super) fn apply(change: &InodeChange, inode: &mut Inode) {
    let attributes = &mut inode.attributes;
    attributes.mode = change.mode.unwrap_or(attributes.mode);
    attributes.uid = change.uid.unwrap_or(attributes.uid);
    attributes.gid = change.gid.unwrap_or(attributes.gid);
    attributes.atime = change.atime.unwrap_or(attributes.atime);
    attributes.mtime = change.mtime.unwrap_or(attributes.mtime);
    attributes.ctime = change.ctime.unwrap_or(attributes.ctime);
    // Notes of several nodes about one directory may overtake each other: the sum is right in the
    // end.
    attributes.links = attributes.links.wrapping_add_signed(change.links as i32);
    inode.parent = change.parent.unwrap_or(inode.parent);
}
