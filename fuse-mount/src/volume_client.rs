//! The requests and leases of a mount at the volume.

use std::sync::Arc;

use client::leases::{LeaseReply, Leases, OpenFileGuard};
use client::protocol::{
    Attributes, CallId, Credentials, Error, FileIo, GetAttributes, Handle, Kind, OpenHandle,
    access, handle_of,
};
use client::unsynced::UnsyncedWrites;
use runtime::{Call, Spawn};

use crate::operations::AccessMask;
use crate::page_version::ContentVersion;
use crate::translate::{KernelError, KernelResult};
use crate::write_behind::CollectedWrites;

/// What is opened.
#[derive(Clone, Copy, Debug)]
pub(crate) enum OpenTarget {
    /// A regular file, for this access.
    File(AccessMask),
    /// A directory, to list it.
    Directory,
}

impl OpenTarget {
    fn access(self) -> u32 {
        match self {
            Self::File(AccessMask(access)) => access,
            Self::Directory => access::READ,
        }
    }
}

/// Sends the requests of a mount, and has the leases of its open files and locks.
#[derive(Debug)]
pub(crate) struct VolumeClient<S> {
    pub(crate) machine: S,
    pub(crate) leases: Arc<Leases>,
    /// Writes that are not durable yet.
    pub(crate) unsynced: Arc<UnsyncedWrites>,
    /// Writes that were answered and not sent yet.
    pub(crate) collected: CollectedWrites,
}

impl<S: Spawn> VolumeClient<S> {
    /// Sends a request to the node that owns it, with retries.
    pub(crate) async fn request<C>(&self, call: C) -> Result<C::Reply, Error>
    where
        C: Call<Protocol = FileIo> + Clone,
    {
        client::send_with_retries(&self.machine, call).await
    }

    /// Must a new or changed name be durable when it is answered? A server that dies takes with it
    /// what is not, and the programs of the mount live on.
    pub(crate) fn names_durably(&self) -> bool {
        self.machine.restarts().is_some()
    }

    /// Sends the writes of this mount to a file again if they were lost. What fails is tried again
    /// by the next request.
    pub(crate) async fn refresh(&self, file: Handle) {
        if let Some(writer) = self.unsynced.last_writer(file)
            && let Err(error) = self.unsynced.refresh(&self.machine, file, &writer).await
        {
            tracing::warn!(%error, ino = file.ino, "lost writes are not sent again yet");
        }
    }

    /// Attributes that were found by a name, with all writes of this mount: after a loss the kernel
    /// would take the size from before them for the end.
    pub(crate) async fn with_own_writes(&self, found: Attributes) -> Attributes {
        let file = handle_of(&found);
        if !self.send_collected(file.ino).await && self.unsynced.last_writer(file).is_none() {
            return found;
        }
        self.attributes(file).await.unwrap_or(found)
    }

    /// Sends what is collected of writes to a file; true if there was any.
    pub(crate) async fn send_collected(&self, ino: u64) -> bool {
        self.collected.send(&self.machine, ino).await
    }

    /// Sends what is collected of writes to all files, before others are shown that there is more.
    pub(crate) async fn send_all_collected(&self) {
        self.collected.send_all(&self.machine).await;
    }

    /// The attributes of a file, with all writes of this mount.
    pub(crate) async fn attributes(&self, file: Handle) -> Result<Attributes, Error> {
        if let Some(writer) = self.unsynced.last_writer(file)
            && let Ok(Some(known)) = self.unsynced.refresh(&self.machine, file, &writer).await
        {
            return Ok(known.attributes);
        }
        self.request(GetAttributes { file }).await
    }

    /// The version of a file with these attributes.
    pub(crate) fn version(&self, file: &Attributes) -> ContentVersion {
        ContentVersion::of(file, self.machine.restarts())
    }

    /// The same for the answer to a request; `restarts` were counted when it was sent. `None` if a
    /// server has restarted meanwhile.
    pub(crate) fn version_since(
        &self,
        restarts: Option<u64>,
        file: &Attributes,
    ) -> Option<ContentVersion> {
        (self.machine.restarts() == restarts).then(|| self.version(file))
    }

    /// Opens a file or directory at its node, for what the user may do with it now. Returns also
    /// the version that it has; `None` if that may be lost with a server.
    pub(crate) async fn open(
        &self,
        opener: &Credentials,
        file: Handle,
        target: OpenTarget,
    ) -> KernelResult<(OpenFileGuard<S>, Option<ContentVersion>)> {
        let (who, call, access) = (opener.clone(), self.call(), target.access());
        let _opening = self.leases.opening();
        let restarts = self.machine.restarts();
        let reply = self.request(OpenHandle { who, call, file, access }).await?;
        let version = self.version_since(restarts, &reply.attributes);
        let answered = LeaseReply { call, lease: reply.lease };
        let granted = (opener, access);
        let holding = self.leases.opened_for(&self.machine, file, answered, granted).await?;
        match (reply.attributes.kind, target) {
            (Kind::File {}, OpenTarget::File(_)) | (Kind::Directory {}, OpenTarget::Directory) => {
                Ok((holding, version))
            }
            (Kind::Directory {}, _) => Err(KernelError(libc::EISDIR)),
            (_, OpenTarget::Directory) => Err(KernelError(libc::ENOTDIR)),
            // The kernel opens all others itself.
            _ => Err(KernelError(libc::EINVAL)),
        }
    }

    /// Records that a node has made or found the file and opened it by `call`, under its `lease`.
    pub(crate) async fn record_new(
        &self,
        file: &Attributes,
        call: CallId,
        lease: u64,
    ) -> KernelResult<OpenFileGuard<S>> {
        let answered = LeaseReply { call, lease };
        Ok(self.leases.opened(&self.machine, handle_of(file), answered).await?)
    }

    /// Waits until the nodes have received all closes, or do not answer.
    pub(crate) async fn flush_closes(&self) {
        self.leases.wait_for_closes(&self.machine).await;
    }

    /// Makes everything durable, if a server has the volume: a process that has it itself does so
    /// when it closes it. Waits for servers as long as any request.
    pub(crate) async fn sync_all(&self) {
        if self.machine.restarts().is_some()
            && let Err(error) = client::sync_all(&self.machine, &self.unsynced).await
        {
            tracing::error!(%error, "what was changed through the mount may not be durable");
        }
    }

    /// The id of the next call.
    pub(crate) fn call(&self) -> CallId {
        self.leases.call()
    }
}
