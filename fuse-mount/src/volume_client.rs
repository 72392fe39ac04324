//! The requests and leases of a mount at the volume.

use std::sync::Arc;

use bytes::Bytes;
use client::leases::{LeaseReply, Leases, OpenFileGuard};
use client::protocol::{
    Appended, Attributes, CallId, Change, Credentials, Error, FileIo, GetAttributes, Handle, Kind,
    SetAttributes,
};
use client::unsynced::{UnsyncedMark, UnsyncedWrites, Verified};
use runtime::{Call, Spawn};

use crate::translate::{KernelError, KernelResult};

const ROOT_UID: u32 = 0;
const SETUID: u32 = 0o4000;
const SETGID: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o010;

/// Sends the requests of a mount, and has the leases of its open files and locks.
#[derive(Debug)]
pub(crate) struct VolumeClient<S> {
    pub(crate) machine: S,
    pub(crate) leases: Arc<Leases>,
    /// Writes that are not durable yet.
    pub(crate) unsynced: Arc<UnsyncedWrites>,
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

    /// Sends a request with the rights of the one who opened the file, also if its mode has changed
    /// since.
    pub(crate) async fn request_as_opener<C>(
        &self,
        opener: &Credentials,
        call: impl Fn(Credentials) -> C,
    ) -> Result<C::Reply, Error>
    where
        C: Call<Protocol = FileIo> + Clone,
    {
        match self.request(call(opener.clone())).await {
            Err(Error::AccessDenied {}) if opener.uid != ROOT_UID => {
                self.request(call(Credentials::root())).await
            }
            answer => answer,
        }
    }

    /// The same for a read of `file`, which shows all writes of this mount.
    pub(crate) async fn read_as_opener<C>(
        &self,
        opener: &Credentials,
        file: Handle,
        call: impl Fn(Credentials) -> C,
    ) -> Result<C::Reply, Error>
    where
        C: Call<Protocol = FileIo> + Clone,
        C::Reply: Verified,
    {
        match self.unsynced.read(&self.machine, file, call(opener.clone())).await {
            Err(Error::AccessDenied {}) if opener.uid != ROOT_UID => {
                self.unsynced.read(&self.machine, file, call(Credentials::root())).await
            }
            answer => answer,
        }
    }

    /// The same for a `change` of the content of `file`.
    pub(crate) async fn change_as_opener<T>(
        &self,
        opener: &Arc<Credentials>,
        file: Handle,
        change: impl AsyncFn(&Arc<Credentials>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        match change(opener).await {
            Err(Error::AccessDenied {}) if opener.uid != ROOT_UID => {
                // A change by root would keep these bits, which a change by another user clears.
                self.drop_setid(file).await?;
                change(&Arc::new(Credentials::root())).await
            }
            answer => answer,
        }
    }

    /// The attributes of a file, with all writes of this mount.
    pub(crate) async fn attributes(&self, file: Handle) -> Result<Attributes, Error> {
        let root = Arc::new(Credentials::root());
        match self.unsynced.refresh(&self.machine, file, &root).await {
            Ok(Some(known)) => Ok(known.attributes),
            _ => self.request(GetAttributes { file }).await,
        }
    }

    /// Appends `data` to `file` with the rights of the one who opened it; returns where it is.
    pub(crate) async fn append_as_opener(
        &self,
        opener: &Arc<Credentials>,
        (file, mark): (Handle, &UnsyncedMark),
        data: Bytes,
    ) -> Result<Appended, Error> {
        let append = async |who: &Arc<Credentials>| {
            let place = (file, vec![data.clone()]);
            client::append(&self.machine, &self.unsynced, mark, who, place).await
        };
        self.change_as_opener(opener, file, append).await
    }

    /// Clears the set-user-id and set-group-id bits of a regular file.
    pub(crate) async fn drop_setid(&self, file: Handle) -> Result<(), Error> {
        let Attributes { kind, mode, .. } = self.request(GetAttributes { file }).await?;
        // Without group execute permission set-group-id means mandatory locking.
        let group = if mode & GROUP_EXECUTE != 0 { SETGID } else { 0 };
        let remaining = mode & !(SETUID | group);
        if kind == (Kind::File {}) && remaining != mode {
            let change = Change { mode: Some(remaining), ..Change::default() };
            let who = Credentials::root();
            let call = SetAttributes { who, file, change, only_if_ctime: None, durable: false };
            self.request(call).await?;
        }
        Ok(())
    }

    /// Records that a node has opened the file by `call`, under its `lease`.
    pub(crate) async fn record_open(
        &self,
        file: &Attributes,
        call: CallId,
        lease: u64,
    ) -> KernelResult<OpenFileGuard<S>> {
        match file.kind {
            Kind::File {} => {
                let answered = LeaseReply { call, lease };
                Ok(self.leases.opened(&self.machine, handle_of(file), answered).await?)
            }
            Kind::Directory {} => Err(KernelError(libc::EISDIR)),
            // The kernel opens all others itself.
            _ => Err(KernelError(libc::EINVAL)),
        }
    }

    /// Waits until the nodes have received all closes, or do not answer.
    pub(crate) async fn flush_closes(&self) {
        self.leases.wait_for_closes(&self.machine).await;
    }

    /// The id of the next call.
    pub(crate) fn call(&self) -> CallId {
        self.leases.call()
    }
}

fn handle_of(file: &Attributes) -> Handle {
    Handle { ino: file.ino, generation: file.generation }
}
