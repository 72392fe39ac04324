//! What every procedure needs: the volume, the asker's rights, and attributes afterwards.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;

use bytes::Bytes;
use fileio::client;
use fileio::protocol::{
    Attributes, CallId, Credentials, Error, FileIo, GetAttributes, Handle, Kind, Name, Time,
    WccAttr,
};
use nfs3_types::nfs3::{
    NFS3_FHSIZE, Nfs3Option, Nfs3Result, cookieverf3, fattr3, nfs_fh3, nfsstat3, post_op_attr,
    post_op_fh3, wcc_attr, wcc_data,
};
use nfs3_types::xdr_codec::Pack;
use runtime::{Call, Context, Undelivered, VolumeId};

use crate::dispatch::Peer;
use crate::exports::{Clients, Export, Exports, NOBODY};
use crate::handle::Named;
use crate::keys::Keys;
use crate::rpc::{Claim, Question};
use crate::xdr::{Arguments, Body, Fault};
use crate::{handle, translate};

/// By so much the number of a directory's state goes on with an epoch: more than a crash takes back of its
/// time, so it only grows.
const EPOCH_NANOS: u64 = 1 << 33;
/// So many epochs in a row tell other times of a directory: whole microseconds, by which its times grow at least.
const NANOS_OF_EPOCHS: u32 = 1000;

/// Calls in doubt that a gateway knows, at most. Their clients send them again at once.
const DOUBTS_MAX: usize = 1024;

/// The volume that is served.
#[derive(Debug)]
pub(crate) struct Volume {
    ctx: Context,
    id: VolumeId,
    cookie_verifier: cookieverf3,
    /// Calls of which nobody knows whether they were done, the oldest first.
    doubts: RefCell<VecDeque<CallId>>,
}

impl Volume {
    /// The volume `id`.
    pub(crate) fn new(ctx: Context, id: VolumeId) -> Self {
        let id_bytes = id.0.to_le_bytes();
        Self {
            ctx,
            id,
            // Cookies stay valid for ever, so their verifier does too.
            cookie_verifier: cookieverf3(runtime::hash::xxh3(&id_bytes).to_be_bytes()),
            doubts: RefCell::default(),
        }
    }

    /// It is not known whether this call was done, or it is.
    fn note_doubt(&self, call: CallId, in_doubt: bool) {
        let mut doubts = self.doubts.borrow_mut();
        if !doubts.is_empty() {
            doubts.retain(|known| *known != call);
        }
        if in_doubt && call != CallId::NONE {
            if doubts.len() == DOUBTS_MAX {
                doubts.pop_front();
            }
            doubts.push_back(call);
        }
    }

    /// Was that not known when a copy of the call had been tried?
    fn is_in_doubt(&self, call: CallId) -> bool {
        self.doubts.borrow().contains(&call)
    }

    /// Its identity.
    pub(crate) fn id(&self) -> VolumeId {
        self.id
    }

    /// Comes with every directory cookie.
    pub(crate) fn cookie_verifier(&self) -> cookieverf3 {
        self.cookie_verifier
    }

    //= rfc8881 5.8.1.4: another one whenever data or metadata change
    /// Another number after every change, and for a directory in every epoch: a crash may take back its
    /// time, which is not durable with the names that other nodes keep of it. Who goes by the time alone
    /// would take what it knows of the names for the truth.
    pub(crate) fn change(&self, attributes: &Attributes) -> u64 {
        let Time { seconds, nanos } = attributes.ctime;
        let time = seconds.cast_unsigned().wrapping_mul(1_000_000_000).wrapping_add(nanos.into());
        match attributes.kind {
            Kind::Directory {} => time.wrapping_add(self.ctx.epoch().0.wrapping_mul(EPOCH_NANOS)),
            _ => time,
        }
    }

    //= rfc1813 2.6: ctime, "the last time when the attributes of the file were changed", by which clients know
    //= that what they keep of it is as it was
    /// Attributes as clients are told them. Below the microseconds of its `ctime` a directory tells the epoch:
    /// what [`change`](Self::change) says of a crash is also so here.
    pub(crate) fn fattr(&self, attributes: &Attributes) -> fattr3 {
        let mut told = translate::fattr(self.id, attributes);
        if attributes.kind == (Kind::Directory {}) {
            let nanos = &mut told.ctime.nseconds;
            *nanos = *nanos - *nanos % NANOS_OF_EPOCHS
                + (self.ctx.epoch().0 % u64::from(NANOS_OF_EPOCHS)) as u32;
        }
        told
    }
}

/// Who asks for what: one call.
#[derive(Debug)]
pub(crate) struct Asker {
    volume: Rc<Volume>,
    /// Why there are none: the volume could not be asked for them.
    keys: Result<Rc<Keys>, nfsstat3>,
    exports: Rc<Exports>,
    address: Option<SocketAddr>,
    claim: Claim,
    /// The procedure changes something.
    changes: bool,
    call: CallId,
    /// What the export allows that the first handle names.
    grant: RefCell<Option<Grant>>,
    fate: Rc<Cell<Fate>>,
    /// Nobody knows whether an earlier copy of the call was done.
    is_copy: Rc<Cell<bool>>,
}

/// What is known of that which a call has asked for [once](Asker::ask_once).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Fate {
    /// Nothing was done.
    #[default]
    Undone,
    /// Something was done.
    Done,
    /// Nobody knows whether it was.
    InDoubt,
}

/// What one export allows to a peer.
#[derive(Clone, Debug)]
struct Grant {
    export: u32,
    clients: Clients,
    who: Credentials,
}

impl Asker {
    /// The call `call` of `peer`.
    pub(crate) fn new(
        volume: Rc<Volume>,
        keys: Result<Rc<Keys>, nfsstat3>,
        exports: Rc<Exports>,
        peer: &Peer,
        question: &Question,
        call: CallId,
    ) -> Self {
        let is_copy = Rc::new(Cell::new(volume.is_in_doubt(call)));
        Self {
            volume,
            keys,
            exports,
            address: peer.address,
            claim: question.claim.clone(),
            changes: super::changes(question),
            call,
            grant: RefCell::default(),
            fate: Rc::default(),
            is_copy,
        }
    }

    /// The same asker before it entered an export, with these keys.
    pub(crate) fn apart(&self, keys: Result<Rc<Keys>, nfsstat3>) -> Self {
        Self {
            volume: self.volume.clone(),
            keys,
            exports: self.exports.clone(),
            address: self.address,
            claim: self.claim.clone(),
            changes: false,
            call: self.call,
            grant: RefCell::default(),
            fate: self.fate.clone(),
            is_copy: self.is_copy.clone(),
        }
    }

    /// The keys that it has.
    pub(crate) fn keys(&self) -> Result<Rc<Keys>, nfsstat3> {
        self.keys.clone()
    }

    /// Who the client says is asking.
    pub(crate) fn claim(&self) -> &Claim {
        &self.claim
    }

    /// May this peer use `export`?
    pub(crate) fn may_enter(&self, export: &Export) -> bool {
        export.clients_of(self.address).is_some()
    }

    /// The volume.
    pub(crate) fn volume(&self) -> &Volume {
        &self.volume
    }

    /// All exports.
    pub(crate) fn exports(&self) -> &Exports {
        &self.exports
    }

    /// With whose rights: nobody's before an export was [entered](Self::enter).
    pub(crate) fn who(&self) -> Credentials {
        let nobody = || Credentials { uid: NOBODY, gid: NOBODY, groups: Vec::new() };
        self.grant.borrow().as_ref().map_or_else(nobody, |grant| grant.who.clone())
    }

    /// May the asker change anything here?
    pub(crate) fn may_write(&self) -> bool {
        self.grant.borrow().as_ref().is_some_and(|grant| grant.clients.writable)
    }

    /// Is a change of names or attributes durable before it is answered?
    pub(crate) fn syncs(&self) -> bool {
        self.grant.borrow().as_ref().is_none_or(|grant| grant.clients.sync)
    }

    /// The export that was entered.
    pub(crate) fn export(&self) -> Option<&Export> {
        let id = self.grant.borrow().as_ref().map(|grant| grant.export)?;
        self.exports.of_id(id)
    }

    /// Uses `export` from now on, if it is for this peer.
    pub(crate) fn enter(&self, export: &Export) -> Result<(), nfsstat3> {
        let clients = export.clients_of(self.address).ok_or(nfsstat3::NFS3ERR_ACCES)?.clone();
        let who = clients.credentials(&self.claim);
        *self.grant.borrow_mut() = Some(Grant { export: export.id(), clients, who });
        Ok(())
    }

    /// The handle by which clients of this export know `file`.
    pub(crate) fn handle(&self, file: Handle) -> Result<nfs_fh3, nfsstat3> {
        let export = self.export().ok_or(nfsstat3::NFS3ERR_STALE)?.id();
        self.handle_in(export, file)
    }

    /// The bytes of the handle of each of many files of the export that was entered.
    pub(super) fn handles(
        &self,
    ) -> Result<impl Fn(Handle) -> [u8; handle::HANDLE_BYTES] + '_, nfsstat3> {
        let keys = self.keys.as_ref().map_err(|status| *status)?;
        let export = self.export().ok_or(nfsstat3::NFS3ERR_STALE)?.id();
        Ok(move |file| handle::bytes(keys, self.volume.id, Named { export, file }))
    }

    /// The handle of `file` in the export of this number.
    pub(crate) fn handle_in(&self, export: u32, file: Handle) -> Result<nfs_fh3, nfsstat3> {
        let keys = self.keys.as_ref().map_err(|status| *status)?;
        Ok(handle::encode(keys, self.volume.id, Named { export, file }))
    }

    /// What a handle names, if a gateway of the volume made it.
    pub(crate) fn open_handle(&self, handle: &[u8]) -> Result<Named, nfsstat3> {
        let keys = self.keys.as_ref().map_err(|status| *status)?;
        handle::decode(keys, self.volume.id, handle)
    }

    /// All exports, to be kept.
    pub(crate) fn exports_shared(&self) -> Rc<Exports> {
        self.exports.clone()
    }

    /// Which call.
    pub(super) fn call(&self) -> CallId {
        self.call
    }

    /// The file of a handle, if the asker may do with it what it asks.
    pub(super) fn file(&self, handle: &Bytes) -> Result<Handle, nfsstat3> {
        let file = self.seen(handle)?;
        if self.changes && !self.may_write() {
            return Err(nfsstat3::NFS3ERR_ROFS);
        }
        Ok(file)
    }

    /// The file of a handle, if the asker may see it. Enters the export of the first one; a call
    /// about two files of different exports is refused.
    fn seen(&self, handle: &Bytes) -> Result<Handle, nfsstat3> {
        let Named { export, file } = self.open_handle(handle)?;
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

    /// Asks file I/O.
    pub(crate) async fn ask<C>(&self, call: C) -> Result<C::Reply, nfsstat3>
    where
        C: Call<Protocol = FileIo> + Clone,
    {
        client::ask(&self.volume.ctx, call).await.map_err(translate::status)
    }

    /// The node of the gateway.
    pub(crate) fn ctx(&self) -> &Context {
        &self.volume.ctx
    }

    /// Asks for what is done once.
    pub(crate) async fn ask_once<C>(&self, call: C) -> Result<C::Reply, nfsstat3>
    where
        C: Call<Protocol = FileIo> + Clone,
    {
        let (context, is_copy) = (&self.volume.ctx, self.is_copy.get());
        let answer = if is_copy {
            client::ask_patiently(context, call).await
        } else {
            client::ask(context, call).await
        };
        match &answer {
            Ok(_) => self.fate.set(Fate::Done),
            Err(Error::Undelivered { why: Undelivered::Lost }) => self.fate.set(Fate::InDoubt),
            // This copy was not done; one before it may have been.
            Err(Error::Undelivered { why }) if why.is_transient() && is_copy => {
                self.fate.set(Fate::InDoubt);
            }
            Err(_) => {}
        }
        self.volume.note_doubt(self.call, self.is_in_doubt());
        answer.map_err(translate::status)
    }

    /// There is an answer though it is in doubt: one that says so.
    pub(crate) fn answer_in_doubt(&self) {
        self.fate.set(Fate::Undone);
    }

    /// This is a copy of a call that is in doubt. It is asked for with patience: if it closes its connection too, or
    /// is put off, its client hears nothing for as long.
    pub(crate) fn note_copy(&self) {
        self.is_copy.set(true);
    }

    /// Nobody knows whether what was [asked once](Self::ask_once) was done. There is no answer to this
    /// call then: the client must send it again as it is, not a new one.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.fate.get() == Fate::InDoubt
    }

    /// Something that was [asked once](Self::ask_once) was done.
    pub(crate) fn has_done_something(&self) -> bool {
        self.fate.get() == Fate::Done
    }

    /// Attributes as a reply tells them.
    pub(super) fn told(&self, attributes: &Attributes) -> post_op_attr {
        Nfs3Option::Some(self.volume.fattr(attributes))
    }

    /// The handle of the file of `attributes`, as a reply tells it.
    pub(super) fn told_handle(&self, attributes: &Attributes) -> post_op_fh3 {
        let file = Handle { ino: attributes.ino, generation: attributes.generation };
        match self.handle(file) {
            Ok(handle) => Nfs3Option::Some(handle),
            Err(_) => Nfs3Option::None,
        }
    }

    //= rfc1813 3.1: attributes after the operation "on success or failure", where there are any
    /// The attributes of the file of `handle` as they are now.
    pub(super) async fn after(&self, handle: &Bytes) -> post_op_attr {
        let Ok(file) = self.seen(handle) else { return Nfs3Option::None };
        match self.ask(GetAttributes { file }).await {
            Ok(attributes) => self.told(&attributes),
            Err(_) => Nfs3Option::None,
        }
    }

    /// The same as weak cache consistency data of a call that has `changed` the file, or nothing.
    pub(super) async fn wcc(&self, handle: &Bytes, changed: bool) -> wcc_data {
        let after = self.after(handle).await;
        if changed { wcc(after) } else { unchanged(after) }
    }
}

/// Weak cache consistency data of what was changed. What was before is not known if others may have
/// changed the file since it was looked at: a client that is told otherwise keeps what is stale.
pub(super) fn wcc(after: post_op_attr) -> wcc_data {
    wcc_data { before: Nfs3Option::None, after }
}

//= rfc1813 2.6: wcc_data, "before" only if it is known in the same step as "after"
/// The same of what was `before` when it was changed, if the node that changed it knows.
pub(super) fn changed(before: Option<WccAttr>, after: post_op_attr) -> wcc_data {
    let told = |WccAttr { size, mtime, ctime }| wcc_attr {
        size,
        mtime: translate::time(mtime),
        ctime: translate::time(ctime),
    };
    wcc_data {
        before: before.map_or(Nfs3Option::None, |before| Nfs3Option::Some(told(before))),
        after,
    }
}

//= rfc1813 2.6: wcc_attr, "before" the operation
/// The same of what was not changed: it was before as it is now.
pub(super) fn unchanged(after: post_op_attr) -> wcc_data {
    let before = match &after {
        Nfs3Option::Some(fattr3 { size, mtime, ctime, .. }) => {
            Nfs3Option::Some(wcc_attr { size: *size, mtime: *mtime, ctime: *ctime })
        }
        Nfs3Option::None => Nfs3Option::None,
    };
    wcc_data { before, after }
}

/// A file handle among the arguments.
pub(super) fn take_handle(arguments: &mut Arguments) -> Result<Bytes, Fault> {
    arguments.opaque(NFS3_FHSIZE)
}

/// Encodes what came of a call.
pub(super) fn pack<T: Pack, E: Pack>(result: Result<T, (nfsstat3, E)>) -> Result<Body, Fault> {
    Body::pack(&match result {
        Ok(done) => Nfs3Result::Ok(done),
        Err(failed) => Nfs3Result::Err(failed),
    })
}

/// A name in a directory among the arguments (RFC 1813 section 2.6, `diropargs3`).
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// The handle of the directory.
    pub(super) directory: Bytes,
    /// The name as it came.
    pub(super) name: Bytes,
}

impl Place {
    /// Takes both from `arguments`.
    pub(super) fn take(arguments: &mut Arguments) -> Result<Self, Fault> {
        let directory = take_handle(arguments)?;
        // Any length may come: a name that is too long is an error of NFS, not of XDR.
        let name = arguments.opaque(usize::MAX)?;
        Ok(Self { directory, name })
    }

    /// The directory and the name of an entry; `dots` is the error for `.` and `..`.
    pub(super) fn entry(&self, asker: &Asker, dots: nfsstat3) -> Result<(Handle, Name), nfsstat3> {
        let directory = asker.file(&self.directory)?;
        Ok((directory, translate::entry_name(self.name.clone(), dots)?))
    }
}
