//! Requests of one user to the nodes of a volume.

use std::sync::Arc;

use fileio::protocol::{CallId, FileIo, Handle, ROOT, SetAttributes, handle_of};
use runtime::client_handle::CallNumbers;
use runtime::{Call, Spawn};

use crate::error::Cause;
use crate::leases::Leases;
use crate::unsynced::{RETAINED_BYTES_MAX, UnsyncedWrites};
use crate::wide::{WideMode, WideSession};
use crate::{Attributes, Change, Credentials};

/// A machine, a user, and the leases of their open files. Clones share the leases.
#[derive(Clone, Debug)]
pub(crate) struct ClientSession<S> {
    machine: S,
    who: Arc<Credentials>,
    leases: Arc<Leases>,
    unsynced: Arc<UnsyncedWrites>,
    wide: Arc<WideSession>,
}

/// The root directory of the volume, or of the subtree to which the client is limited.
pub fn root_of<S: Spawn>(machine: &S) -> Handle {
    machine.root().map_or(ROOT, |(ino, generation)| Handle { ino, generation })
}

impl<S: Spawn> ClientSession<S> {
    pub(crate) fn new(machine: S, who: Credentials, calls: Arc<CallNumbers>) -> Self {
        let leases = Arc::new(Leases::new(calls));
        let unsynced = Arc::new(UnsyncedWrites::new(RETAINED_BYTES_MAX, leases.clone()));
        let wide = Arc::new(WideSession::new(WideMode::Off));
        Self { machine, who: Arc::new(who), leases, unsynced, wide }
    }

    pub(crate) fn machine(&self) -> &S {
        &self.machine
    }

    /// The directory at which paths begin.
    pub(crate) fn root(&self) -> Handle {
        root_of(&self.machine)
    }

    /// Sends `call` to the node that owns it, again if need be: a program cannot be expected to
    /// repeat it.
    pub(crate) async fn ask<C>(&self, call: C) -> Result<C::Reply, Cause>
    where
        C: Call<Protocol = FileIo> + Clone,
    {
        Ok(fileio::client::send_with_retries(&self.machine, call).await?)
    }

    pub(crate) async fn change(
        &self,
        attributes: &Attributes,
        change: Change,
    ) -> Result<Attributes, Cause> {
        let (who, file) = (self.who(), handle_of(attributes));
        let durable = self.unsynced.cuts_durably(&change);
        let changed = self.ask(SetAttributes { who, file, change, only_if_ctime: None, durable });
        let changed = changed.await;
        self.wide.note_change(file);
        changed
    }

    /// Must a new or changed name be durable when it is answered? A server that dies takes with it
    /// what is not, and its clients live on: they would find neither the file that they have open
    /// nor the checkpoint that they have just given its name. A removal may be undone.
    pub(crate) fn names_durably(&self) -> bool {
        self.machine.restarts().is_some()
    }

    /// Keeps at most `bytes_max` bytes of unsynced writes.
    pub(crate) fn retain(&mut self, bytes_max: usize) {
        self.unsynced = Arc::new(UnsyncedWrites::new(bytes_max, self.leases.clone()));
    }

    /// Reads over links with delay in this way.
    pub(crate) fn set_wide(&mut self, mode: WideMode) {
        self.wide = Arc::new(WideSession::new(mode));
    }

    pub(crate) fn wide(&self) -> &Arc<WideSession> {
        &self.wide
    }

    pub(crate) fn unsynced(&self) -> &Arc<UnsyncedWrites> {
        &self.unsynced
    }

    /// The user, shared.
    pub(crate) fn user(&self) -> &Arc<Credentials> {
        &self.who
    }

    pub(crate) fn leases(&self) -> &Arc<Leases> {
        &self.leases
    }

    pub(crate) fn who(&self) -> Credentials {
        (*self.who).clone()
    }

    /// A new call's id.
    pub(crate) fn call(&self) -> CallId {
        self.leases.call()
    }
}
