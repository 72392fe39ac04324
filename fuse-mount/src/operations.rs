//! The requests to the volume of each FUSE operation, one file per family.

mod attributes;
mod directories;
mod files;
mod locks;
mod names;
mod space;
mod xattrs;

use std::sync::Arc;

use client::leases::Leases;
use client::protocol::{
    Attributes, CallId, Credentials, Error, FileIo, GetAttributes, Handle, Space,
};
use runtime::{Call, Spawn};

pub(crate) use self::attributes::AccessMask;
pub(crate) use self::directories::ListedEntry;
pub(crate) use self::files::joined;
pub(crate) use self::locks::{ConflictingLock, LockRequest};
pub(crate) use self::names::{EntryName, NewInodeKind};
pub(crate) use self::space::Fallocation;
use crate::caller::CallerProcess;
use crate::inode_table::InodeTable;
use crate::translate::KernelError;

/// The operations of one worker.
#[derive(Debug)]
pub(crate) struct MountOperations<S> {
    machine: S,
    leases: Arc<Leases>,
    inodes: Arc<InodeTable>,
}

impl<S: Spawn> MountOperations<S> {
    /// Operations that send requests from `machine`; `leases` has their open files.
    pub(crate) fn new(machine: S, leases: Arc<Leases>, inodes: Arc<InodeTable>) -> Self {
        Self { machine, leases, inodes }
    }

    /// The inode table.
    pub(crate) fn inodes(&self) -> &InodeTable {
        &self.inodes
    }

    /// Sends a request to the node that owns it, with retries.
    async fn request<C>(&self, call: C) -> Result<C::Reply, Error>
    where
        C: Call<Protocol = FileIo> + Clone,
    {
        client::ask_patiently(&self.machine, call).await
    }

    /// Sends a request with the rights of a process that has opened `file` for writing, also if the
    /// mode has changed since.
    async fn request_as_opener<C>(
        &self,
        caller: CallerProcess,
        file: Handle,
        call: impl Fn(Credentials) -> C,
    ) -> Result<C::Reply, Error>
    where
        C: Call<Protocol = FileIo> + Clone,
    {
        match self.request(call(caller.credentials())).await {
            Err(Error::AccessDenied {}) if !caller.is_root() => {
                // A change by root would keep these bits, which a change by another user clears.
                self.drop_setid(file).await?;
                self.request(call(Credentials::root())).await
            }
            answer => answer,
        }
    }

    /// Waits until the nodes have received all closes, or do not answer.
    pub(crate) async fn flush_closes(&self) {
        self.leases.last_words(&self.machine).await;
    }

    /// The file with an inode number of the kernel.
    fn handle(&self, ino: u64) -> Result<Handle, KernelError> {
        self.inodes.handle(ino).ok_or(KernelError(libc::ESTALE))
    }

    /// The attributes of a file.
    pub(crate) async fn get_attributes(&self, ino: u64) -> Result<Attributes, KernelError> {
        Ok(self.request(GetAttributes { file: self.handle(ino)? }).await?)
    }

    /// The space of the volume.
    pub(crate) async fn space(&self) -> Result<Space, KernelError> {
        Ok(self.request(client::protocol::GetSpace {}).await?)
    }

    fn call(&self) -> CallId {
        self.leases.call()
    }
}
