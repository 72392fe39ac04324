//! Sessions: slots with the reply cache, so that a request is applied once however often and over
//! whichever connection it comes (RFC 8881 section 2.10.6).

use std::collections::BTreeMap;

use fileio::protocol::CallId;

use super::back_channel::{BackChannel, CB_PATH_DOWN, SlotOutcome, TakenSlot};
use crate::v4::limits::{
    CACHED_BYTES_MAX, FEW_SLOTS, OPERATIONS_MAX, REPLY_BYTES_MAX, REQUEST_BYTES_MAX,
    SESSIONS_WITH_MANY_SLOTS, SLOTS_MAX,
};
use crate::v4::status::Status;
use crate::v4::types::{SessionId, SessionRequest};

/// The smallest channel: a reply to a READ of one byte fits.
const BYTES_MIN: u32 = 256;
/// Bytes of a callback: a recall with a file handle fits.
const BACK_BYTES_MIN: u32 = 512;
/// Operations of a callback: `CB_SEQUENCE`, and what it is for.
const BACK_OPERATIONS_MIN: u32 = 2;

/// The limits of a session's requests (`channel_attrs4`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChannelAttrs {
    pub(crate) request_bytes_max: u32,
    pub(crate) reply_bytes_max: u32,
    /// Bytes of a cached reply.
    pub(crate) cached_bytes_max: u32,
    /// Operations of a request.
    pub(crate) operations_max: u32,
    /// Concurrent requests.
    pub(crate) slots: u32,
}

/// A session.
#[derive(Debug)]
pub(crate) struct Nfs4Session {
    client: u64,
    /// Its limits.
    pub(crate) channel: ChannelAttrs,
    /// Callbacks to the client.
    pub(crate) back: BackChannel,
    slots: Vec<SessionSlot>,
}

/// A slot: one request at a time.
#[derive(Debug, Default)]
struct SessionSlot {
    /// The sequence id of the last request.
    sequence: u32,
    /// The request is being processed.
    busy: bool,
    /// A hash of its arguments.
    fingerprint: u64,
    /// The cached reply.
    reply: Option<Vec<u8>>,
    /// The outcome of the request is unknown, so a retransmission repeats its requests to the
    /// nodes.
    unknown: Option<UnknownOutcome>,
}

/// A request whose outcome is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnknownOutcome {
    /// The call id of its OPEN: such ids are in the order in which a client opens and closes files.
    pub(crate) open_call: Option<CallId>,
}

/// What a SEQUENCE finds in its slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SlotLookup {
    /// A request to process.
    Process {
        client: u64,
        /// The limits.
        channel: ChannelAttrs,
        /// It is a retransmission, and the outcome of the first transmission is unknown.
        unknown: Option<UnknownOutcome>,
    },
    /// A retransmission, with the cached reply.
    Replay(Vec<u8>),
}

impl ChannelAttrs {
    //= rfc8881 18.36.3: "the server cannot use the backchannel": NFS4ERR_TOOSMALL
    /// Could callbacks be sent over a back channel with these limits?
    pub(crate) fn check_back(&self) -> Result<(), Status> {
        let bytes = self.request_bytes_max.min(self.reply_bytes_max);
        let is_enough = bytes >= BACK_BYTES_MIN && self.operations_max >= BACK_OPERATIONS_MIN;
        if is_enough { Ok(()) } else { Err(Status::TOOSMALL) }
    }
}

impl Nfs4Session {
    /// A session of `client`, with the requested limits as far as they are allowed.
    pub(super) fn new(
        client: u64,
        (requested, slots_max): (ChannelAttrs, u32),
        back: BackChannel,
    ) -> Result<Self, Status> {
        let channel = ChannelAttrs {
            request_bytes_max: requested.request_bytes_max.min(REQUEST_BYTES_MAX),
            reply_bytes_max: requested.reply_bytes_max.min(REPLY_BYTES_MAX),
            cached_bytes_max: requested.cached_bytes_max.min(CACHED_BYTES_MAX),
            operations_max: requested.operations_max.min(OPERATIONS_MAX),
            slots: requested.slots.min(slots_max),
        };
        //= rfc8881 18.36.3: NFS4ERR_TOOSMALL for a channel with which nothing can be done
        if channel.request_bytes_max.min(channel.reply_bytes_max) < BYTES_MIN {
            return Err(Status::TOOSMALL);
        }
        if channel.slots == 0 || channel.operations_max == 0 {
            return Err(Status::INVAL);
        }
        let slots = (0..channel.slots).map(|_| SessionSlot::default()).collect();
        Ok(Self { client, channel, back, slots })
    }
}

/// All sessions.
#[derive(Debug, Default)]
pub(crate) struct SessionTable {
    sessions: BTreeMap<SessionId, Nfs4Session>,
}

impl SessionTable {
    /// Returns a session.
    pub(crate) fn get(&self, id: &SessionId) -> Result<&Nfs4Session, Status> {
        self.sessions.get(id).ok_or(Status::BADSESSION)
    }

    /// The back channel of a session.
    pub(crate) fn back(&mut self, id: &SessionId) -> Result<&mut BackChannel, Status> {
        self.sessions.get_mut(id).map(|session| &mut session.back).ok_or(Status::BADSESSION)
    }

    /// The sessions of `client`.
    fn of(&self, client: u64) -> impl Iterator<Item = &Nfs4Session> {
        self.sessions.values().filter(move |session| session.client == client)
    }

    /// The status flags of SEQUENCE about the callbacks of a session, and of its client.
    pub(crate) fn callback_flags(&self, id: &SessionId) -> u32 {
        let Some(session) = self.sessions.get(id) else { return 0 };
        let flags = session.back.status_flags();
        let is_reachable = flags == 0 || self.of(session.client).any(|other| other.back.has_path());
        if is_reachable { flags } else { flags | CB_PATH_DOWN }
    }

    /// Has `client` answered a call over a connection that is open? Its session `id` is looked at
    /// first, since there may be many.
    pub(crate) fn has_proven_path(&self, client: u64, id: &SessionId) -> bool {
        self.sessions.get(id).is_some_and(|session| session.back.is_proven())
            || self.of(client).any(|session| session.back.is_proven())
    }

    /// Can callbacks be sent to `client`?
    pub(crate) fn has_path(&self, client: u64) -> bool {
        self.of(client).any(|session| session.back.has_path())
    }

    /// Takes a free slot for a callback to `client`.
    pub(crate) fn take_callback_slot(&mut self, client: u64) -> Option<(SessionId, TakenSlot)> {
        let sessions = self.sessions.iter_mut().filter(|(_, session)| session.client == client);
        sessions
            .filter(|(_, session)| session.back.has_path())
            .find_map(|(id, session)| Some((*id, session.back.take_slot()?)))
    }

    /// Records what came of the callback in a slot.
    pub(crate) fn end_callback(&mut self, id: &SessionId, slot: u32, outcome: SlotOutcome) {
        if let Ok(back) = self.back(id) {
            back.end_callback(slot, outcome);
        }
    }

    /// Is it the last request of its slot? Then the client may not have its reply yet.
    pub(crate) fn is_last_request(&self, request: &SessionRequest) -> bool {
        let session = self.sessions.get(&request.session);
        let slot = session.and_then(|session| session.slots.get(request.slot as usize));
        slot.is_some_and(|slot| slot.sequence == request.sequence)
    }

    /// Adds a session.
    pub(super) fn insert(&mut self, id: SessionId, session: Nfs4Session) {
        self.sessions.insert(id, session);
    }

    /// How many slots the next session may have.
    pub(super) fn slots_max(&self) -> u32 {
        if self.sessions.len() < SESSIONS_WITH_MANY_SLOTS { SLOTS_MAX } else { FEW_SLOTS }
    }

    /// The number of sessions.
    pub(super) fn len(&self) -> usize {
        self.sessions.len()
    }

    /// The number of sessions of `client`.
    pub(super) fn count_of(&self, client: u64) -> usize {
        self.of(client).count()
    }

    /// Ends all sessions of `client`.
    pub(super) fn remove_of(&mut self, client: u64) {
        self.sessions.retain(|_, session| session.client != client);
    }

    /// Ends a session and its reply cache; the client's open files stay.
    pub(crate) fn destroy(&mut self, id: &SessionId) -> Result<(), Status> {
        self.sessions.remove(id).map(|_| ()).ok_or(Status::BADSESSION)
    }

    //= rfc8881 2.10.6.1: the next number is a new request, the same one the same request again
    /// Begins the request `sequence` in a slot.
    pub(crate) fn begin(
        &mut self,
        id: &SessionId,
        slot: u32,
        sequence: u32,
        fingerprint: u64,
    ) -> Result<SlotLookup, Status> {
        let session = self.sessions.get_mut(id).ok_or(Status::BADSESSION)?;
        let (client, channel) = (session.client, session.channel);
        let slot = session.slots.get_mut(slot as usize).ok_or(Status::BADSLOT)?;
        if sequence == slot.sequence && slot.busy {
            // The first transmission is still being processed.
            return Err(Status::DELAY);
        }
        if sequence == slot.sequence && sequence != 0 && slot.unknown.is_none() {
            if fingerprint != slot.fingerprint {
                return Err(Status::SEQ_FALSE_RETRY);
            }
            let reply = slot.reply.clone();
            return reply.map(SlotLookup::Replay).ok_or(Status::RETRY_UNCACHED_REP);
        }
        let is_new = sequence == slot.sequence.wrapping_add(1);
        if slot.busy || !(is_new || slot.unknown.is_some() && sequence == slot.sequence) {
            return Err(Status::SEQ_MISORDERED);
        }
        let unknown = slot.unknown.take().filter(|_| !is_new && fingerprint == slot.fingerprint);
        *slot = SessionSlot { sequence, busy: true, fingerprint, reply: None, unknown: None };
        Ok(SlotLookup::Process { client, channel, unknown })
    }

    /// Ends the request of a slot, with the reply to cache.
    pub(crate) fn end(&mut self, id: &SessionId, slot: u32, reply: Option<Vec<u8>>) {
        if let Some(slot) = self.slot(id, slot) {
            slot.busy = false;
            slot.reply = reply;
        }
    }

    /// Ends the request of a slot with an unknown outcome: the slot waits for a retransmission.
    pub(crate) fn end_unknown(&mut self, id: &SessionId, slot: u32, unknown: UnknownOutcome) {
        if let Some(slot) = self.slot(id, slot) {
            slot.busy = false;
            slot.unknown = Some(unknown);
        }
    }

    fn slot(&mut self, id: &SessionId, slot: u32) -> Option<&mut SessionSlot> {
        self.sessions.get_mut(id)?.slots.get_mut(slot as usize)
    }
}
