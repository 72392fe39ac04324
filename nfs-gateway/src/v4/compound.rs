//! The context of a COMPOUND: its session, the current and the saved file handle and stateid.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use client::leases::Leases;
use fileio::protocol::{CallId, Handle};

use super::current_fh::CurrentFh;
use super::exactly_once::{self, RemoveTarget, SessionRequestId};
use super::limits::OPERATIONS_MAX;
use super::server::Nfs4Server;
use super::state::{ChannelAttrs, Nfs4State, READ, SlotLookup, StateTables, UnknownOutcome, WRITE};
use super::status::Status;
use super::types::{SessionId, SessionRequest, Stateid};
use crate::call_context::CallContext;
use crate::xdr::{CallArguments, ReplyBody, XdrEncoder};

/// The slot of a session that processes a COMPOUND.
#[derive(Clone, Debug)]
pub(super) struct CompoundSlot {
    pub(super) id: SessionId,
    slot: u32,
    pub(super) client: u64,
    /// The client's open files and locks at the nodes.
    pub(super) leases: Arc<Leases>,
    channel: ChannelAttrs,
    /// The reply is to be cached.
    cached: bool,
}

/// What is known of earlier transmissions of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EarlierTransmission {
    /// There is none.
    None,
    /// Its outcome is unknown.
    Unknown,
    /// The session is lost: only operations that were applied may be answered.
    SessionLost {
        /// An operation was applied.
        was_applied: bool,
    },
}

/// The arguments of a COMPOUND that its operations have not taken yet, and their results so far.
pub(super) struct OperationXdr {
    pub(super) arguments: CallArguments,
    pub(super) out: XdrEncoder,
}

/// The context of a COMPOUND.
pub(super) struct Compound<'a> {
    pub(super) server: &'a Nfs4Server,
    /// The call, outside all exports.
    pub(super) context: &'a CallContext,
    /// The minor version.
    pub(super) minor: u32,
    /// A hash of the arguments.
    fingerprint: u64,
    request_bytes: usize,
    /// The number of operations.
    pub(super) operations: u32,
    request_id: Option<SessionRequestId>,
    slot: Option<CompoundSlot>,
    /// The index of the current operation.
    pub(super) index: u32,
    /// What is known of earlier transmissions.
    pub(super) earlier: EarlierTransmission,
    open_call: Cell<Option<CallId>>,
    /// The outcome is unknown, and the reply makes the client retransmit the call.
    pub(super) is_undecided: bool,
    /// The cached reply, if the call is a retransmission.
    pub(super) replay: Option<Vec<u8>>,
    /// The current file handle.
    pub(super) current: Option<CurrentFh>,
    /// The saved file handle.
    pub(super) saved: Option<CurrentFh>,
    /// The current stateid.
    pub(super) stateid: Option<Stateid>,
    pub(super) saved_stateid: Option<Stateid>,
}

impl<'a> Compound<'a> {
    /// The context of a call with `operations` operations, before the first of them.
    pub(super) fn new(
        server: &'a Nfs4Server,
        context: &'a CallContext,
        (request_bytes, fingerprint): (usize, u64),
        (minor, operations): (u32, u32),
    ) -> Self {
        Self {
            server,
            context,
            minor,
            fingerprint,
            request_bytes,
            operations,
            request_id: None,
            slot: None,
            index: 0,
            earlier: EarlierTransmission::None,
            open_call: Cell::default(),
            is_undecided: false,
            replay: None,
            current: None,
            saved: None,
            stateid: None,
            saved_stateid: None,
        }
    }

    /// Begins a request of a session, or finds its cached reply.
    pub(super) fn begin(
        &mut self,
        id: SessionId,
        (slot, sequence): (u32, u32),
        cached: bool,
    ) -> Result<(), Status> {
        let fingerprint = self.fingerprint;
        self.request_id = Some(SessionRequestId { session: id, slot, sequence, fingerprint });
        let now = self.state().ctx.now();
        let mut tables = self.state().tables_mut();
        let Ok(channel) = tables.sessions.get(&id).map(|session| session.channel) else {
            drop(tables);
            // There is no channel with a limit of its own.
            if self.operations > OPERATIONS_MAX {
                return Err(Status::BADSESSION);
            }
            self.earlier = EarlierTransmission::SessionLost { was_applied: false };
            return Ok(());
        };
        //= rfc8881 18.46.3: TOO_MANY_OPS, REQ_TOO_BIG
        if self.operations > channel.operations_max {
            return Err(Status::TOO_MANY_OPS);
        }
        if self.request_bytes > channel.request_bytes_max as usize {
            return Err(Status::REQ_TOO_BIG);
        }
        match tables.sessions.begin(&id, slot, sequence, self.fingerprint)? {
            SlotLookup::Replay(reply) => {
                drop(tables);
                self.replay = Some(reply);
            }
            SlotLookup::Process { client, channel, unknown } => {
                tables.renew(client, now);
                let leases = tables.client(client)?.leases.clone();
                drop(tables);
                if let Some(UnknownOutcome { open_call }) = unknown {
                    self.earlier = EarlierTransmission::Unknown;
                    self.context.mark_retransmission();
                    self.open_call.set(open_call);
                }
                self.slot = Some(CompoundSlot { id, slot, client, leases, channel, cached });
            }
        }
        Ok(())
    }

    /// Ends the request: the slot caches the reply, or waits for a retransmission.
    pub(super) fn end(&self, body: &ReplyBody) {
        let Some(CompoundSlot { id, slot, channel, cached, .. }) = &self.slot else { return };
        let mut tables = self.state().tables_mut();
        if self.is_undecided || self.context.is_outcome_unknown() {
            let unknown = UnknownOutcome { open_call: self.open_call.get() };
            return tables.sessions.end_unknown(id, *slot, unknown);
        }
        let fits = body.tail.is_empty() && body.head.len() <= channel.cached_bytes_max as usize;
        tables.sessions.end(id, *slot, (*cached && fits).then(|| body.head.clone()));
    }

    /// May there have been an earlier transmission of the call?
    pub(super) fn is_retransmission(&self) -> bool {
        self.earlier != EarlierTransmission::None
    }

    /// Has an earlier transmission of this REMOVE removed a directory?
    pub(super) async fn has_removed_directory(&self) -> Result<bool, Status> {
        if !self.is_retransmission() {
            return Ok(false);
        }
        exactly_once::was_applied(self.context, self.call(RemoveTarget::Directory)?).await
    }

    /// May the reply have `bytes` bytes?
    pub(super) fn check_reply_bytes(&self, bytes: usize) -> Result<(), Status> {
        let Some(CompoundSlot { channel, cached, .. }) = &self.slot else { return Ok(()) };
        if bytes > channel.reply_bytes_max as usize {
            return Err(Status::REP_TOO_BIG);
        }
        if *cached && bytes > channel.cached_bytes_max as usize {
            return Err(Status::REP_TOO_BIG_TO_CACHE);
        }
        Ok(())
    }

    /// Bytes that the reply may still grow by.
    pub(super) fn reply_bytes_left(&self, out: &XdrEncoder) -> usize {
        let most = self.slot.as_ref().map_or(0, |slot| slot.channel.reply_bytes_max);
        (most as usize).saturating_sub(out.length())
    }

    /// The request of the session.
    pub(super) fn session_request(&self) -> Result<SessionRequest, Status> {
        let SessionRequestId { session, slot, sequence, .. } =
            self.request_id.ok_or(Status::OP_NOT_IN_SESSION)?;
        Ok(SessionRequest { session, slot, sequence })
    }

    pub(super) fn slot(&self) -> Result<&CompoundSlot, Status> {
        self.slot.as_ref().ok_or(Status::OP_NOT_IN_SESSION)
    }

    /// The state of all clients.
    pub(super) fn state(&self) -> &Rc<Nfs4State> {
        &self.server.state
    }

    /// The current file handle.
    pub(super) fn current_fh(&self) -> Result<&CurrentFh, Status> {
        self.current.as_ref().ok_or(Status::NOFILEHANDLE)
    }

    /// The saved file handle.
    pub(super) fn saved_fh(&self) -> Result<&CurrentFh, Status> {
        self.saved.as_ref().ok_or(Status::NOFILEHANDLE)
    }

    /// Replaces the current file handle.
    pub(super) fn set_current(&mut self, fh: CurrentFh) {
        self.current = Some(fh);
        //= rfc8881 16.2.3.1.2: the current state id belongs to the file handle before
        self.stateid = None;
    }

    /// The call id of a non-idempotent request of the current operation: retransmissions have the
    /// same.
    pub(super) fn call(&self, target: RemoveTarget) -> Result<CallId, Status> {
        let request_id = self.request_id.ok_or(Status::OP_NOT_IN_SESSION)?;
        Ok(request_id.call(self.index, target))
    }

    /// The call id of an OPEN: such ids are in the order in which the client opens and closes
    /// files.
    pub(super) fn open_call(&self) -> Result<CallId, Status> {
        let call = match self.open_call.get() {
            Some(call) => call,
            None => self.slot()?.leases.call(),
        };
        self.open_call.set(Some(call));
        Ok(call)
    }

    /// Calls `access` with the state tables and the session's client.
    pub(super) fn tables<T>(
        &self,
        access: impl FnOnce(&mut StateTables, u64) -> Result<T, Status>,
    ) -> Result<T, Status> {
        let client = self.slot()?.client;
        access(&mut self.state().tables_mut(), client)
    }

    /// Has the client completed its reclaims?
    pub(super) fn is_reclaim_complete(&self) -> Result<bool, Status> {
        self.tables(|tables, client| Ok(tables.client(client)?.reclaim_complete))
    }

    /// Has the client answered a call over a connection that is open?
    pub(super) fn has_proven_path(&self) -> Result<bool, Status> {
        let CompoundSlot { id, client, .. } = self.slot()?;
        Ok(self.state().tables().sessions.has_proven_path(*client, id))
    }

    /// The stateid that `stateid` stands for.
    pub(super) fn resolve_stateid(&self, stateid: Stateid) -> Result<Stateid, Status> {
        if stateid == Stateid::CURRENT {
            return self.stateid.ok_or(Status::BAD_STATEID);
        }
        Ok(stateid)
    }

    /// May bytes be read or written under a stateid? True if the file is open for that, so that its
    /// mode does not matter.
    //= rfc8881 8.2.3, 18.22.3 and 18.32.3
    pub(super) fn check_access(&self, stateid: Stateid, access: u32) -> Result<bool, Status> {
        self.check_access_to(self.current_fh()?.file, self.resolve_stateid(stateid)?, access)
    }

    /// The same of the saved file; the current stateid is that which was saved with it.
    pub(super) fn check_saved_access(&self, stateid: Stateid, access: u32) -> Result<bool, Status> {
        let stateid = match stateid {
            Stateid::CURRENT => self.saved_stateid.ok_or(Status::BAD_STATEID)?,
            stateid => stateid,
        };
        self.check_access_to(self.saved_fh()?.file, stateid, access)
    }

    fn check_access_to(&self, file: Handle, stateid: Stateid, access: u32) -> Result<bool, Status> {
        if stateid == Stateid::ANONYMOUS || stateid == Stateid::BYPASS {
            let denied = self.state().tables().states.denies(file, access);
            return if denied { Err(Status::LOCKED) } else { Ok(false) };
        }
        let CompoundSlot { client, leases, .. } = self.slot()?;
        let tables = self.state().tables();
        let number = tables.states.find(*client, &stateid)?;
        let (open_file, open_for) = tables.states.open_file(number)?;
        if open_file != file {
            return Err(Status::BAD_STATEID);
        }
        if tables.states.is_of_locks(number) && leases.has_lost_locks(file) {
            // Others may have changed what the lock guarded.
            return Err(Status::EXPIRED);
        }
        // A client that writes parts of pages reads the rest of them.
        let allowed = if access == READ { READ | WRITE } else { access };
        if open_for & allowed == 0 {
            return Err(Status::OPENMODE);
        }
        Ok(true)
    }
}
