//! One call: its operations in order, its reply (RFC 8881 section 16.2).

use std::cell::Cell;
use std::sync::Arc;

use bytes::Bytes;
use client::leases::Leases;
use fileio::protocol::{CallId, Credentials, FileIo};
use runtime::Call;

use super::Service;
use super::here::Here;
use super::limits::{
    CHANGE_RESULT_BYTES_MAX, LOCK_RESULT_BYTES_MAX, OPERATIONS_MAX, TAG_BYTES_MAX,
};
use super::once::{self, Identity, What};
use super::ops;
use super::state::{Begun, Channel, Doubt, Kept, Session, Tables};
use super::status::{Failed, Status};
use super::table::{Class, ILLEGAL, Operation, is_known};
use super::words::{SessionId, Stateid};
use crate::metrics::{Counted, Outcome};
use crate::nfs3::Asker;
use crate::xdr::{Arguments, Body, Fault, Out};

/// So many bytes of the arguments tell a retransmission from another request.
const FINGERPRINT_BYTES: usize = 512;

/// The request of a session that a call is.
#[derive(Clone, Debug)]
pub(super) struct InSession {
    /// The session.
    pub(super) id: SessionId,
    /// Its slot.
    pub(super) slot: u32,
    /// Its client.
    pub(super) client: u64,
    /// What the client has open.
    pub(super) leases: Arc<Leases>,
    channel: Channel,
    /// The reply is to be kept.
    cached: bool,
}

/// A call that is being done.
pub(super) struct Compound<'a> {
    pub(super) service: &'a Service,
    /// Who asks, in no export yet.
    pub(super) asker: &'a Asker,
    fingerprint: u64,
    request_bytes: usize,
    operations: u32,
    /// Which request of which session it is.
    identity: Option<Identity>,
    session: Option<InSession>,
    /// The operation that is being done.
    index: u32,
    /// What may have been done of it before.
    past: Past,
    /// The call of its OPEN.
    opening: Cell<Option<CallId>>,
    /// Nobody knows yet what is to be answered.
    is_undecided: bool,
    /// The whole reply, if the call was answered before.
    again: Option<Vec<u8>>,
    /// The current file handle.
    pub(super) current: Option<Here>,
    /// The saved one.
    pub(super) saved: Option<Here>,
    /// The current state id.
    pub(super) stateid: Option<Stateid>,
    /// The saved one.
    pub(super) saved_stateid: Option<Stateid>,
}

/// What is known of earlier copies of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Past {
    /// There are none.
    None,
    /// Nobody knows whether one was done.
    InDoubt,
    /// Its session is not known: only what was done of it is answered.
    Forgotten {
        /// Something of it was done.
        was_done: bool,
    },
}

/// Does a call; a reply that the slot keeps is sent again as it was.
pub(super) async fn answer(
    service: &Service,
    asker: &Asker,
    mut arguments: Arguments,
) -> Result<Body, Fault> {
    let request_bytes = arguments.length();
    let fingerprint = runtime::hash::xxh3(&arguments.first(FINGERPRINT_BYTES));
    let tag = arguments.opaque(TAG_BYTES_MAX)?;
    let minor = arguments.take::<u32>()?;
    let operations = arguments.take::<u32>()?;
    //= rfc8881 16.2.3: an unknown minor version is MINOR_VERS_MISMATCH, with no results
    if !(1..=2).contains(&minor) {
        return Ok(reply(Status::MINOR_VERS_MISMATCH, &tag, 0, Out::default()));
    }
    let mut compound = Compound {
        service,
        asker,
        fingerprint,
        request_bytes,
        operations,
        identity: None,
        session: None,
        index: 0,
        past: Past::None,
        opening: Cell::default(),
        is_undecided: false,
        again: None,
        current: None,
        saved: None,
        stateid: None,
        saved_stateid: None,
    };
    let mut out = Out::default();
    let (mut status, mut done) = compound.run(minor, &mut arguments, &mut out).await;
    if let Some(again) = compound.again.take() {
        return Ok(Body { head: again, tail: Vec::new() });
    }
    if let Some(all) = compound.status_of_all(status) {
        (out, done, status) = (Out::default(), 1, all);
        out.u32(Operation::Sequence as u32);
        out.u32(status.0);
    }
    let body = reply(status, &tag, done, out);
    compound.end(&body);
    Ok(body)
}

fn reply(status: Status, tag: &Bytes, results: u32, out: Out) -> Body {
    let mut head = Out::default();
    head.u32(status.0);
    head.opaque(tag);
    head.u32(results);
    out.body(head.body(Vec::new()).head)
}

impl Compound<'_> {
    /// Does all operations up to the first that fails: its status, and how many have a result.
    async fn run(&mut self, minor: u32, arguments: &mut Arguments, out: &mut Out) -> (Status, u32) {
        for index in 0..self.operations {
            self.index = index;
            let Ok(number) = arguments.take::<u32>() else { return (Status::BADXDR, index) };
            let before = out.mark();
            out.u32(number);
            out.u32(Status::OK.0);
            let failed = match self.operation(index, number, minor) {
                Ok(operation) => self.counted_step(operation, arguments, out).await.err(),
                Err(status) => Some(status.into()),
            };
            if self.again.is_some() || self.asker.is_in_doubt() {
                return (Status::OK, 0);
            }
            if let Some(Failed { status, body }) = failed {
                out.cut(before);
                //= rfc8881 18.30.2: the result of SETATTR tells what was set, also if it failed
                let body = if number == Operation::Setattr as u32 { vec![0; 4] } else { body };
                out.u32(if status == Status::OP_ILLEGAL { ILLEGAL } else { number });
                out.u32(status.0);
                out.fixed(&body);
                return (status, index + 1);
            }
        }
        (Status::OK, self.operations)
    }

    /// Which operation this is, if it may stand here.
    //= rfc8881 2.10.6.4, 16.2.3, 18.46.3
    fn operation(&self, index: u32, number: u32, minor: u32) -> Result<Operation, Status> {
        let Some(operation) = Operation::of(number, minor) else {
            let known = is_known(number, minor);
            return Err(match (known, index) {
                (false, _) => Status::OP_ILLEGAL,
                (true, 0) => Status::OP_NOT_IN_SESSION,
                (true, _) => Status::NOTSUPP,
            });
        };
        match (operation.class(), index) {
            (Class::First, 0) => Ok(operation),
            (Class::First, _) => Err(Status::SEQUENCE_POS),
            (Class::Alone, 0) if self.operations > 1 => Err(Status::NOT_ONLY_OP),
            (Class::Alone, _) => Ok(operation),
            (_, 0) => Err(Status::OP_NOT_IN_SESSION),
            _ => Ok(operation),
        }
    }

    async fn counted_step(
        &mut self,
        operation: Operation,
        arguments: &mut Arguments,
        out: &mut Out,
    ) -> Result<(), Failed> {
        let ctx = self.asker.ctx();
        let (began, bytes_in, bytes_out) = (ctx.now(), arguments.length(), out.length());
        let done = self.step(operation, arguments, out).await;
        let outcome = Outcome {
            took: ctx.now().saturating_sub(began),
            bytes_in: bytes_in - arguments.length(),
            bytes_out: out.length() - bytes_out,
            failed: done.is_err(),
        };
        self.service.metrics.note(Counted::Nfs4(operation), outcome);
        done
    }

    async fn step(
        &mut self,
        operation: Operation,
        arguments: &mut Arguments,
        out: &mut Out,
    ) -> Result<(), Failed> {
        let changes = matches!(operation.class(), Class::Changes | Class::Keeps);
        if changes {
            // It must not be done if it could not be told.
            let result_bytes_max = match operation {
                Operation::Lock => LOCK_RESULT_BYTES_MAX,
                _ => CHANGE_RESULT_BYTES_MAX,
            };
            self.check_room(out.length() + result_bytes_max)?;
        }
        if operation.class() == Class::Changes {
            self.here()?.check_writable()?;
        }
        if let Past::Forgotten { .. } = self.past {
            self.check_past(operation).await?;
        }
        ops::serve(self, operation, arguments, out).await?;
        if changes { Ok(()) } else { Ok(self.check_room(out.length())?) }
    }

    /// May this be answered, though the session is not known? Not what would be done only now.
    async fn check_past(&mut self, operation: Operation) -> Result<(), Status> {
        let is_done = !once::is_of_names(operation) || self.was_done(operation).await?;
        if !is_done || !once::needs_no_session(operation) {
            self.past = Past::Forgotten { was_done: false };
            return Err(Status::BADSESSION);
        }
        if once::is_of_names(operation) {
            self.past = Past::Forgotten { was_done: true };
            self.asker.note_copy();
        }
        Ok(())
    }

    async fn was_done(&self, operation: Operation) -> Result<bool, Status> {
        Ok(once::was_done(self.asker, self.call(What::File)?).await?
            || operation == Operation::Remove && self.has_removed_directory().await?)
    }

    /// An earlier copy may have been done.
    pub(super) fn is_copy(&self) -> bool {
        self.past != Past::None
    }

    /// An earlier copy of this REMOVE has removed a directory, not a file.
    pub(super) async fn has_removed_directory(&self) -> Result<bool, Status> {
        if !self.is_copy() {
            return Ok(false);
        }
        once::was_done(self.asker, self.call(What::Directory)?).await
    }

    /// May the reply have so many bytes?
    fn check_room(&self, bytes: usize) -> Result<(), Status> {
        let Some(InSession { channel, cached, .. }) = &self.session else { return Ok(()) };
        if bytes > channel.reply_bytes_max as usize {
            return Err(Status::REP_TOO_BIG);
        }
        if *cached && bytes > channel.cached_bytes_max as usize {
            return Err(Status::REP_TOO_BIG_TO_CACHE);
        }
        Ok(())
    }

    /// Bytes that the reply may still have.
    pub(super) fn room(&self, out: &Out) -> usize {
        let most = self.session.as_ref().map_or(0, |session| session.channel.reply_bytes_max);
        (most as usize).saturating_sub(out.length())
    }

    /// Begins a request of a session; nothing more is to be done if it was answered before.
    pub(super) fn begin(
        &mut self,
        id: SessionId,
        (slot, sequence): (u32, u32),
        cached: bool,
    ) -> Result<(), Status> {
        let fingerprint = self.fingerprint;
        self.identity = Some(Identity { session: id, slot, sequence, fingerprint });
        let now = self.kept().now();
        let mut tables = self.kept().change();
        let Ok(channel) = tables.session(&id).map(Session::channel) else {
            drop(tables);
            // There is no channel with a limit of its own.
            if self.operations > OPERATIONS_MAX {
                return Err(Status::BADSESSION);
            }
            self.past = Past::Forgotten { was_done: false };
            return Ok(());
        };
        //= rfc8881 18.46.3: TOO_MANY_OPS, REQ_TOO_BIG
        if self.operations > channel.operations_max {
            return Err(Status::TOO_MANY_OPS);
        }
        if self.request_bytes > channel.request_bytes_max as usize {
            return Err(Status::REQ_TOO_BIG);
        }
        match tables.begin(&id, slot, sequence, self.fingerprint)? {
            Begun::Again(reply) => {
                drop(tables);
                self.again = Some(reply);
            }
            Begun::New { client, channel, doubt } => {
                tables.hear(client, now);
                let leases = tables.client(client)?.leases.clone();
                drop(tables);
                if let Some(Doubt { opening }) = doubt {
                    self.past = Past::InDoubt;
                    self.asker.note_copy();
                    self.opening.set(opening);
                }
                self.session = Some(InSession { id, slot, client, leases, channel, cached });
            }
        }
        Ok(())
    }

    /// The status of SEQUENCE, if that is all there is to answer to a request that came to `status`.
    fn status_of_all(&mut self, status: Status) -> Option<Status> {
        if self.past == (Past::Forgotten { was_done: false }) {
            //= rfc8881 2.10.13.1.4: the client makes a new session, and asks in that
            return Some(if status == Status::DELAY { status } else { Status::BADSESSION });
        }
        if !self.must_come_again(status) {
            return None;
        }
        // The client would ask for all of it by another request, and meet what this one has done.
        self.is_undecided = true;
        self.asker.answer_in_doubt();
        Some(Status::DELAY)
    }

    //= rfc8881 2.10.6.2, 15.1.1.3: a request that is answered DELAY by its SEQUENCE comes again as it is
    /// Shall the same request come again? What it asks for was done, or may have been, by this copy or by one before,
    /// and cannot be told now. (After a copy that is the first one to be lost the connection is closed instead: then
    /// it comes at once.)
    fn must_come_again(&self, status: Status) -> bool {
        let is_put_off = status == Status::DELAY;
        is_put_off && self.asker.has_done_something()
            || self.is_copy() && (is_put_off || self.asker.is_in_doubt())
    }

    /// The slot waits for the next request, or for this one again.
    fn end(&self, body: &Body) {
        let Some(InSession { id, slot, channel, cached, .. }) = &self.session else { return };
        let mut tables = self.kept().change();
        if self.is_undecided || self.asker.is_in_doubt() {
            return tables.doubt(id, *slot, Doubt { opening: self.opening.get() });
        }
        let fits = body.tail.is_empty() && body.head.len() <= channel.cached_bytes_max as usize;
        tables.end(id, *slot, (*cached && fits).then(|| body.head.clone()));
    }

    /// The session.
    pub(super) fn session(&self) -> Result<&InSession, Status> {
        self.session.as_ref().ok_or(Status::OP_NOT_IN_SESSION)
    }

    /// What is kept for clients.
    pub(super) fn kept(&self) -> &std::rc::Rc<Kept> {
        &self.service.kept
    }

    /// The current file.
    pub(super) fn here(&self) -> Result<&Here, Status> {
        self.current.as_ref().ok_or(Status::NOFILEHANDLE)
    }

    /// The saved file.
    pub(super) fn there(&self) -> Result<&Here, Status> {
        self.saved.as_ref().ok_or(Status::NOFILEHANDLE)
    }

    /// Another file is the current one.
    pub(super) fn go(&mut self, here: Here) {
        self.current = Some(here);
        //= rfc8881 16.2.3.1.2: the current state id belongs to the file handle before
        self.stateid = None;
    }

    /// The number of a call to the nodes below that is done once: copies of this request have the same.
    pub(super) fn call(&self, what: What) -> Result<CallId, Status> {
        let identity = self.identity.ok_or(Status::OP_NOT_IN_SESSION)?;
        Ok(identity.call(self.index, what))
    }

    /// The same for an OPEN: a number in the order in which the client's files are held and let go of.
    pub(super) fn opening_call(&self) -> Result<CallId, Status> {
        let call = match self.opening.get() {
            Some(call) => call,
            None => self.session()?.leases.call(),
        };
        self.opening.set(Some(call));
        Ok(call)
    }

    /// Changes and looks at what is kept for the session's client.
    pub(super) fn tables<T>(
        &self,
        change: impl FnOnce(&mut Tables, u64) -> Result<T, Status>,
    ) -> Result<T, Status> {
        let client = self.session()?.client;
        change(&mut self.kept().change(), client)
    }

    /// A state id of the arguments: the current one, if that is meant.
    pub(super) fn meant(&self, stateid: Stateid) -> Result<Stateid, Status> {
        if stateid == Stateid::CURRENT {
            return self.stateid.ok_or(Status::BAD_STATEID);
        }
        Ok(stateid)
    }

    /// May bytes be read, or written, under a state id? True if the file is open for that, so that its
    /// mode does not matter any more.
    //= rfc8881 8.2.3, 18.22.3 and 18.32.3
    pub(super) fn check_access(&self, stateid: Stateid, access: u32) -> Result<bool, Status> {
        let file = self.here()?.file;
        let stateid = self.meant(stateid)?;
        if stateid == Stateid::ANONYMOUS || stateid == Stateid::BYPASS {
            let denied = self.kept().tables().denies(file, access);
            return if denied { Err(Status::LOCKED) } else { Ok(false) };
        }
        let (client, leases) = self.session().map(|session| (session.client, &session.leases))?;
        let tables = self.kept().tables();
        let number = tables.find(client, &stateid)?;
        let (opened, open_for) = tables.opened(number)?;
        if opened != file {
            return Err(Status::BAD_STATEID);
        }
        if tables.is_of_locks(number) && leases.has_lost_locks(file) {
            // Others may have changed what the lock guarded.
            return Err(Status::EXPIRED);
        }
        // Who writes parts of pages reads the others.
        let allowed =
            if access == super::state::READ { access | super::state::WRITE } else { access };
        if open_for & allowed == 0 {
            return Err(Status::OPENMODE);
        }
        Ok(true)
    }

    /// Asks for something with the rights of whoever asks; if the file is `open` for it, its mode
    /// does not count any more.
    pub(super) async fn ask_opened<C>(
        &self,
        open: bool,
        call: impl Fn(Credentials) -> C,
    ) -> Result<C::Reply, Status>
    where
        C: Call<Protocol = FileIo> + Clone,
    {
        let here = self.here()?;
        match here.asker.ask(call(here.asker.who())).await.map_err(Status::from) {
            Err(Status::ACCESS) if open => Ok(here.asker.ask(call(Credentials::root())).await?),
            answer => answer,
        }
    }
}
