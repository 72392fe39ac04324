//! The context of one call: its caller, the rights that the export grants, and the outcome so far.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;

use bytes::Bytes;
use fileio::client;
use fileio::protocol::{CallId, Commit, Credentials, Error, FileIo, Handle, WriteResult};
use nfs3_types::nfs3::{nfs_fh3, nfsstat3};
use runtime::{Call, Context};

use crate::callback_link::CallbackLink;
use crate::exported_volume::ExportedVolume;
use crate::exports::{ANONYMOUS, Clients, Export, ExportRoots, Exports};
use crate::groups::HostGroups;
use crate::handle::{self, ExportFile};
use crate::handle_keys::HandleKeys;
use crate::peer::RpcPeer;
use crate::rpc::AuthSys;
use crate::translate;

/// The context of one call.
#[derive(Debug)]
pub(crate) struct CallContext {
    pub(crate) volume: Rc<ExportedVolume>,
    /// The keys of file handles, or the status if the volume did not return them.
    keys: Result<Rc<HandleKeys>, nfsstat3>,
    pub(crate) exports: Rc<Exports>,
    /// Where nested exports are, or the status if the nodes did not say so.
    roots: Result<Rc<ExportRoots>, nfsstat3>,
    address: Option<SocketAddr>,
    credential: Option<AuthSys>,
    groups: HostGroups,
    /// Calls to the peer over the connection of this call.
    pub(crate) callbacks: Rc<CallbackLink>,
    /// The procedure changes something.
    changes: bool,
    /// The number of the call, the same for all its transmissions.
    pub(crate) id: CallId,
    /// The rights in the export that the first handle names.
    grant: RefCell<Option<ExportGrant>>,
    outcome: Rc<Cell<RequestOutcome>>,
    /// The outcome of an earlier transmission is unknown.
    is_retransmission: Rc<Cell<bool>>,
}

/// The outcome of a non-idempotent [request](CallContext::request_once) of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum RequestOutcome {
    /// Nothing was changed.
    #[default]
    NotApplied,
    /// Something was changed.
    Applied,
    /// The reply was lost, so the change may or may not have been made.
    Unknown,
}

/// What one export grants to a peer.
#[derive(Clone, Debug)]
struct ExportGrant {
    export: u32,
    clients: Clients,
    credentials: Credentials,
}

/// What a [`CallContext`] is made of.
#[derive(Debug)]
pub(crate) struct CallParts<'a> {
    pub(crate) volume: Rc<ExportedVolume>,
    /// The keys of file handles.
    pub(crate) keys: Result<Rc<HandleKeys>, nfsstat3>,
    pub(crate) exports: Rc<Exports>,
    /// Where nested exports are.
    pub(crate) roots: Result<Rc<ExportRoots>, nfsstat3>,
    /// The caller's host.
    pub(crate) peer: &'a RpcPeer,
    /// The credential of `AUTH_SYS`, if there is one.
    pub(crate) credential: Option<AuthSys>,
    /// The groups of this user that the host knows, if it was asked.
    pub(crate) groups: HostGroups,
    /// The procedure changes something.
    pub(crate) changes: bool,
    /// The same for all transmissions of the call; [`CallId::NONE`] if it is idempotent.
    pub(crate) id: CallId,
}

impl CallContext {
    /// The context of a call outside all exports.
    pub(crate) fn new(parts: CallParts<'_>) -> Self {
        let CallParts { volume, keys, exports, roots, peer, .. } = parts;
        let CallParts { credential, groups, changes, id, .. } = parts;
        let is_retransmission = Rc::new(Cell::new(volume.is_outcome_unknown(id)));
        Self {
            volume,
            keys,
            exports,
            roots,
            address: peer.address,
            credential,
            groups,
            callbacks: peer.callbacks.clone(),
            changes,
            id,
            grant: RefCell::default(),
            outcome: Rc::default(),
            is_retransmission,
        }
    }

    /// The same call outside all exports, with these keys.
    pub(crate) fn outside_exports(&self, keys: Result<Rc<HandleKeys>, nfsstat3>) -> Self {
        Self {
            volume: self.volume.clone(),
            keys,
            exports: self.exports.clone(),
            roots: self.roots.clone(),
            address: self.address,
            credential: self.credential.clone(),
            groups: self.groups.clone(),
            callbacks: self.callbacks.clone(),
            changes: false,
            id: self.id,
            grant: RefCell::default(),
            outcome: self.outcome.clone(),
            is_retransmission: self.is_retransmission.clone(),
        }
    }

    /// The keys of file handles.
    pub(crate) fn keys(&self) -> Result<Rc<HandleKeys>, nfsstat3> {
        self.keys.clone()
    }

    /// The credential of `AUTH_SYS`, if the caller sent one.
    pub(crate) fn credential(&self) -> Option<&AuthSys> {
        self.credential.as_ref()
    }

    /// Where nested exports are.
    pub(crate) fn roots(&self) -> Result<&ExportRoots, nfsstat3> {
        self.roots.as_deref().map_err(|status| *status)
    }

    /// The rights of this peer in the export with this number.
    pub(crate) fn clients_of(&self, export: u32) -> Result<&Clients, nfsstat3> {
        let export = self.exports.of_id(export).ok_or(nfsstat3::NFS3ERR_STALE)?;
        export.clients_of(self.address).ok_or(nfsstat3::NFS3ERR_ACCES)
    }

    /// May this peer use `export`?
    pub(crate) fn may_enter(&self, export: &Export) -> bool {
        export.clients_of(self.address).is_some()
    }

    /// The node of the gateway.
    pub(crate) fn ctx(&self) -> &Context {
        &self.volume.ctx
    }

    /// The user whose rights count: anonymous before an export was [entered](Self::enter).
    pub(crate) fn credentials(&self) -> Credentials {
        let anonymous = || Credentials { uid: ANONYMOUS, gid: ANONYMOUS, groups: Vec::new() };
        self.grant.borrow().as_ref().map_or_else(anonymous, |grant| grant.credentials.clone())
    }

    /// Is the export writable for this peer?
    pub(crate) fn may_write(&self) -> bool {
        self.grant.borrow().as_ref().is_some_and(|grant| grant.clients.writable)
    }

    /// Must a change of names or attributes be durable before the reply?
    pub(crate) fn is_sync(&self) -> bool {
        self.grant.borrow().as_ref().is_none_or(|grant| grant.clients.sync)
    }

    /// The export that was entered.
    pub(crate) fn export(&self) -> Option<&Export> {
        let id = self.grant.borrow().as_ref().map(|grant| grant.export)?;
        self.exports.of_id(id)
    }

    /// Enters `export`, if this peer may use it.
    pub(crate) fn enter(&self, export: &Export) -> Result<(), nfsstat3> {
        let clients = export.clients_of(self.address).ok_or(nfsstat3::NFS3ERR_ACCES)?.clone();
        let credentials = clients.credentials(self.credential(), self.groups.as_deref());
        *self.grant.borrow_mut() = Some(ExportGrant { export: export.id, clients, credentials });
        Ok(())
    }

    /// The file handle of `file` in the export that was entered, or in the nested export whose root
    /// it is, if this peer may use that.
    pub(crate) fn handle(&self, file: Handle) -> Result<nfs_fh3, nfsstat3> {
        let entered = self.export().ok_or(nfsstat3::NFS3ERR_STALE)?.id;
        match self.roots()?.export_of(file) {
            Some(export) if export != entered => {
                self.clients_of(export)?;
                self.handle_in(export, file)
            }
            _ => self.handle_in(entered, file),
        }
    }

    /// Returns an encoder for handles of many entries of `directory`: of their names and files. It
    /// returns `None` for the root of a nested export that this peer may not use.
    pub(crate) fn handle_encoder(
        &self,
        directory: Handle,
    ) -> Result<impl Fn(&[u8], Handle) -> Option<[u8; handle::HANDLE_BYTES]> + '_, nfsstat3> {
        let keys = self.keys.as_ref().map_err(|status| *status)?;
        let roots = self.roots()?;
        let entered = self.export().ok_or(nfsstat3::NFS3ERR_STALE)?.id;
        Ok(move |name: &[u8], file| {
            let nested = roots.export_of_entry(directory, name, file);
            let export = nested.unwrap_or(entered);
            let is_permitted = export == entered || self.clients_of(export).is_ok();
            let target = ExportFile { export, file };
            is_permitted.then(|| handle::bytes(keys, self.volume.id, target))
        })
    }

    /// The file handle of `file` in the export with this number.
    pub(crate) fn handle_in(&self, export: u32, file: Handle) -> Result<nfs_fh3, nfsstat3> {
        let keys = self.keys.as_ref().map_err(|status| *status)?;
        Ok(handle::encode(keys, self.volume.id, ExportFile { export, file }))
    }

    /// The file that a handle names, if a gateway of the volume made the handle. The root of a
    /// nested export is in that export, whichever one the handle names.
    pub(crate) fn decode_handle(&self, handle: &[u8]) -> Result<ExportFile, nfsstat3> {
        let keys = self.keys.as_ref().map_err(|status| *status)?;
        let target = handle::decode(keys, self.volume.id, handle)?;
        if target.export == handle::PSEUDO {
            // It shows only the names that lead to usable exports.
            return Ok(target);
        }
        let export = self.roots()?.export_of(target.file).unwrap_or(target.export);
        Ok(ExportFile { export, ..target })
    }

    /// The file of a handle, if the export allows what the procedure does.
    pub(crate) fn file(&self, handle: &Bytes) -> Result<Handle, nfsstat3> {
        let file = self.readable_file(handle)?;
        if self.changes && !self.may_write() {
            return Err(nfsstat3::NFS3ERR_ROFS);
        }
        Ok(file)
    }

    /// The file of a handle, if this peer may use its export. Enters the export of the first
    /// handle; a call with handles of two exports is refused.
    pub(crate) fn readable_file(&self, handle: &Bytes) -> Result<Handle, nfsstat3> {
        let ExportFile { export, file } = self.decode_handle(handle)?;
        let entered = self.grant.borrow().as_ref().map(|grant| grant.export);
        match entered {
            None => {
                let export = self.exports.of_id(export).ok_or(nfsstat3::NFS3ERR_STALE)?;
                self.enter(export)?;
            }
            Some(entered) if entered == export => {}
            Some(_) => return Err(nfsstat3::NFS3ERR_XDEV),
        }
        Ok(file)
    }

    /// Sends an idempotent request to file I/O.
    pub(crate) async fn request<C>(&self, call: C) -> Result<C::Reply, nfsstat3>
    where
        C: Call<Protocol = FileIo> + Clone,
    {
        self.send(call).await.map_err(translate::status)
    }

    /// The same with the error of file I/O.
    pub(crate) async fn send<C>(&self, call: C) -> Result<C::Reply, Error>
    where
        C: Call<Protocol = FileIo> + Clone,
    {
        client::ask(self.ctx(), call).await
    }

    /// Makes a file durable.
    pub(crate) async fn commit(&self, file: Handle) -> Result<WriteResult, nfsstat3> {
        self.request(Commit { file }).await
    }

    /// Sends a request that must be applied once, and records its outcome.
    pub(crate) async fn request_once<C>(&self, call: C) -> Result<C::Reply, nfsstat3>
    where
        C: Call<Protocol = FileIo> + Clone,
    {
        self.send_once(call).await.map_err(translate::status)
    }

    /// The same with the error of file I/O.
    pub(crate) async fn send_once<C>(&self, call: C) -> Result<C::Reply, Error>
    where
        C: Call<Protocol = FileIo> + Clone,
    {
        let is_retransmission = self.is_retransmission.get();
        let answer = if is_retransmission {
            client::send_with_retries(self.ctx(), call).await
        } else {
            client::ask(self.ctx(), call).await
        };
        match &answer {
            Ok(_) => self.outcome.set(RequestOutcome::Applied),
            Err(Error::Undelivered { why }) if why.is_lost() => {
                self.outcome.set(RequestOutcome::Unknown);
            }
            // This transmission was not applied; an earlier one may have been.
            Err(Error::Undelivered { why }) if why.is_transient() && is_retransmission => {
                self.outcome.set(RequestOutcome::Unknown);
            }
            Err(_) => {}
        }
        self.volume.set_outcome_unknown(self.id, self.is_outcome_unknown());
        answer
    }

    /// The outcome is unknown, but there is a reply that says so.
    pub(crate) fn clear_outcome(&self) {
        self.outcome.set(RequestOutcome::NotApplied);
    }

    /// The outcome of an earlier transmission is unknown. Requests are retried for longer then: if
    /// this one failed too, the client would hear nothing for as long.
    pub(crate) fn mark_retransmission(&self) {
        self.is_retransmission.set(true);
    }

    /// Is the outcome of a [request](Self::request_once) unknown? Then the call gets no reply: the
    /// client must retransmit it unchanged, not send a new one.
    pub(crate) fn is_outcome_unknown(&self) -> bool {
        self.outcome.get() == RequestOutcome::Unknown
    }

    /// Was a [request](Self::request_once) applied?
    pub(crate) fn has_applied(&self) -> bool {
        self.outcome.get() == RequestOutcome::Applied
    }
}
