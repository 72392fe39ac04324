//! What each operation of the kernel asks of the volume. A leaf for each family of them.

mod attributes;
mod directories;
mod files;
mod names;

use std::cell::Cell;
use std::sync::Arc;

use client::protocol::{
    Attributes, CallId, Credentials, Error, FileIo, GetAttributes, Handle, Space,
};
use runtime::{Call, Spawn};

pub(crate) use self::attributes::Wanted;
pub(crate) use self::directories::Listed;
pub(crate) use self::files::{handle_of, joined};
pub(crate) use self::names::{Node, Place};
use crate::caller::Caller;
use crate::known::Known;
use crate::translate::Failure;

/// A node that is busy or away is asked again for so many rounds of [`client::ask`], each of almost a
/// second: a program cannot be expected to ask again.
const BUSY_ROUNDS_MAX: u32 = 20;

/// The operations at one seat.
#[derive(Debug)]
pub(crate) struct Operations<S> {
    machine: S,
    client: u64,
    calls: Cell<u64>,
    known: Arc<Known>,
}

impl<S: Spawn> Operations<S> {
    /// Operations that ask from `machine`; `client` marks their calls.
    pub(crate) fn new(machine: S, client: u64, known: Arc<Known>) -> Self {
        Self { machine, client, calls: Cell::new(0), known }
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
        for _ in 1..BUSY_ROUNDS_MAX {
            match client::ask(&self.machine, call.clone()).await {
                Err(error) if error.is_undone() => {}
                answer => return answer,
            }
        }
        client::ask(&self.machine, call).await
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
        let number = self.calls.get();
        self.calls.set(number + 1);
        CallId { client: self.client, number }
    }
}
