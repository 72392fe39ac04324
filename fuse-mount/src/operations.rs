//! What each operation of the kernel asks of the volume. A leaf for each family of them.

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

pub(crate) use self::attributes::Wanted;
pub(crate) use self::directories::Listed;
pub(crate) use self::files::joined;
pub(crate) use self::locks::{LockAsked, LockFound};
pub(crate) use self::names::{Node, Place};
pub(crate) use self::space::Fallocation;
use crate::caller::Caller;
use crate::known::Known;
use crate::translate::Failure;

/// The operations at one seat.
#[derive(Debug)]
pub(crate) struct Operations<S> {
    machine: S,
    leases: Arc<Leases>,
    known: Arc<Known>,
}

impl<S: Spawn> Operations<S> {
    /// Operations that ask from `machine`; what they open is held by `leases`.
    pub(crate) fn new(machine: S, leases: Arc<Leases>, known: Arc<Known>) -> Self {
        Self { machine, leases, known }
    }

    /// What the kernel has numbers for.
    pub(crate) fn known(&self) -> &Known {
        &self.known
    }

    /// Asks the node that owns `call`, with patience.
    async fn ask<C>(&self, call: C) -> Result<C::Reply, Error>
    where
        C: Call<Protocol = FileIo> + Clone,
    {
        client::ask_patiently(&self.machine, call).await
    }

    /// Asks what a process may ask that has opened `file` for writing, also if the mode has changed
    /// since.
    async fn ask_opened<C>(
        &self,
        caller: Caller,
        file: Handle,
        call: impl Fn(Credentials) -> C,
    ) -> Result<C::Reply, Error>
    where
        C: Call<Protocol = FileIo> + Clone,
    {
        match self.ask(call(caller.credentials())).await {
            Err(Error::AccessDenied {}) if !caller.is_root() => {
                // Root's change would leave these bits, which a change by anybody else takes.
                self.drop_setid(file).await?;
                self.ask(call(Credentials::root())).await
            }
            answer => answer,
        }
    }

    /// Waits until the nodes have heard what was closed, or do not answer.
    pub(crate) async fn last_words(&self) {
        self.leases.last_words(&self.machine).await;
    }

    /// The file that the kernel means by a number.
    fn handle(&self, ino: u64) -> Result<Handle, Failure> {
        self.known.handle(ino).ok_or(Failure(libc::ESTALE))
    }

    /// The attributes of a file.
    pub(crate) async fn get_attributes(&self, ino: u64) -> Result<Attributes, Failure> {
        Ok(self.ask(GetAttributes { file: self.handle(ino)? }).await?)
    }

    /// The space of the volume.
    pub(crate) async fn space(&self) -> Result<Space, Failure> {
        Ok(self.ask(client::protocol::GetSpace {}).await?)
    }

    fn call(&self) -> CallId {
        self.leases.call()
    }
}
