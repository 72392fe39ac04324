//! The requests to the volume of each FUSE operation, one file per family.

mod attributes;
mod directories;
mod files;
mod locks;
mod names;
mod space;
mod xattrs;

use client::hash::partition_of;
use client::protocol::GetSpace;
use std::sync::Arc;

use client::protocol::{Attributes, Handle, Space};
use client::unsynced::UnsyncedWrites;
use runtime::Spawn;

pub(crate) use self::attributes::AccessMask;
pub(crate) use self::directories::ListedEntry;
pub(crate) use self::files::{OpenedNumber, WriteSource, joined};
pub(crate) use self::locks::{ConflictingLock, LockRequest};
pub(crate) use self::names::{EntryName, NewInodeKind};
pub(crate) use self::space::Fallocation;
use crate::caller_watch::CallerWatch;
use crate::inode_table::InodeTable;
use crate::translate::{KernelError, KernelResult};
use crate::volume_client::VolumeClient;
use crate::write_behind::CollectedWrites;

/// The operations of one worker.
#[derive(Debug)]
pub(crate) struct MountOperations<S> {
    /// The requests of the mount.
    pub(crate) volume: VolumeClient<S>,
    pub(crate) inodes: Arc<InodeTable>,
    /// Gives up what killed programs wait for.
    pub(crate) callers: CallerWatch,
}

impl<S: Spawn> MountOperations<S> {
    /// Operations that send requests from `machine`; `unsynced` has the writes of the mount, and
    /// its open files.
    pub(crate) fn new(machine: S, unsynced: Arc<UnsyncedWrites>, inodes: Arc<InodeTable>) -> Self {
        inodes.set_root(client::root_of(&machine));
        let callers = CallerWatch::default();
        let leases = unsynced.leases().clone();
        let collected = CollectedWrites { unsynced: unsynced.clone(), inodes: inodes.clone() };
        Self { volume: VolumeClient { machine, leases, unsynced, collected }, inodes, callers }
    }

    /// The file with an inode number of the kernel.
    fn handle(&self, ino: u64) -> KernelResult<Handle> {
        self.inodes.handle(ino).ok_or(KernelError(libc::ESTALE))
    }

    /// The attributes of a file.
    pub(crate) async fn get_attributes(&self, ino: u64) -> KernelResult<Attributes> {
        Ok(self.volume.attributes(self.handle(ino)?).await?)
    }

    /// The space of the partition of a file.
    pub(crate) async fn space(&self, ino: u64) -> KernelResult<Space> {
        let partition = partition_of(self.handle(ino)?.ino);
        Ok(self.volume.request(GetSpace { partition }).await?)
    }
}
