//! Sessions: slots, and the replies that are kept in them, so that a request is done once however often it
//! comes, over whichever connection (RFC 8881 section 2.10.6).

use super::Tables;
use crate::v4::limits::{
    CACHED_BYTES_MAX, OPERATIONS_MAX, REPLY_BYTES_MAX, REQUEST_BYTES_MAX, SLOTS_MAX,
};
use crate::v4::status::Status;
use crate::v4::words::SessionId;
use fileio::protocol::CallId;

/// A reply to a READDIR or a READ of one byte fits at least.
const BYTES_MIN: u32 = 512;

/// How large and how many requests of a session may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Channel {
    /// Bytes of a request.
    pub(crate) request_bytes_max: u32,
    /// Bytes of a reply.
    pub(crate) reply_bytes_max: u32,
    /// Bytes of a reply that is kept.
    pub(crate) cached_bytes_max: u32,
    /// Operations of a request.
    pub(crate) operations_max: u32,
    /// Requests at a time.
    pub(crate) slots: u32,
}

/// What a client wants its session to be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted(pub(crate) Channel);

/// A session.
#[derive(Debug)]
pub(crate) struct Session {
    client: u64,
    channel: Channel,
    slots: Vec<Slot>,
}

/// One request at a time.
#[derive(Debug, Default)]
struct Slot {
    /// The number of the last request.
    sequence: u32,
    /// It is being done.
    busy: bool,
    /// What its arguments were like.
    fingerprint: u64,
    /// What it was answered, if it could be kept.
    reply: Option<Vec<u8>>,
    /// Nobody knows whether it was done, so the same calls below have to be made again.
    doubt: Option<Doubt>,
}

/// A request of which nobody knows whether it was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Doubt {
    /// The call of its OPEN: such calls are in the order in which a client's files are held and let go of.
    pub(crate) opening: Option<CallId>,
}

/// What a SEQUENCE has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Begun {
    /// A new request.
    New {
        /// Whose.
        client: u64,
        /// Its limits.
        channel: Channel,
        /// It has come before, and nobody knows whether it was done.
        doubt: Option<Doubt>,
    },
    /// One that was answered before.
    Again(Vec<u8>),
}

impl Session {
    /// A session of `client`, as far as possible as it wants it.
    pub(super) fn new(client: u64, Wanted(wanted): Wanted) -> Result<Self, Status> {
        let channel = Channel {
            request_bytes_max: wanted.request_bytes_max.min(REQUEST_BYTES_MAX),
            reply_bytes_max: wanted.reply_bytes_max.min(REPLY_BYTES_MAX),
            cached_bytes_max: wanted.cached_bytes_max.min(CACHED_BYTES_MAX),
            operations_max: wanted.operations_max.min(OPERATIONS_MAX),
            slots: wanted.slots.min(SLOTS_MAX),
        };
        //= rfc8881 18.36.3: NFS4ERR_TOOSMALL for a channel with which nothing can be done
        if channel.request_bytes_max.min(channel.reply_bytes_max) < BYTES_MIN {
            return Err(Status::TOOSMALL);
        }
        if channel.slots == 0 || channel.operations_max == 0 {
            return Err(Status::INVAL);
        }
        let slots = (0..channel.slots).map(|_| Slot::default()).collect();
        Ok(Self { client, channel, slots })
    }

    /// Whose it is.
    pub(crate) fn client(&self) -> u64 {
        self.client
    }

    /// Its limits.
    pub(crate) fn channel(&self) -> Channel {
        self.channel
    }
}

impl Tables {
    /// The session.
    pub(crate) fn session(&self, id: &SessionId) -> Result<&Session, Status> {
        self.sessions.get(id).ok_or(Status::BADSESSION)
    }

    /// Ends a session. Its replies are gone; what its client has open is not.
    pub(crate) fn destroy_session(&mut self, id: &SessionId) -> Result<(), Status> {
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
    ) -> Result<Begun, Status> {
        let session = self.sessions.get_mut(id).ok_or(Status::BADSESSION)?;
        let (client, channel) = (session.client, session.channel);
        let slot = session.slots.get_mut(slot as usize).ok_or(Status::BADSLOT)?;
        if sequence == slot.sequence && slot.busy {
            // The first copy of it is still being done.
            return Err(Status::DELAY);
        }
        if sequence == slot.sequence && sequence != 0 && slot.doubt.is_none() {
            if fingerprint != slot.fingerprint {
                return Err(Status::SEQ_FALSE_RETRY);
            }
            let reply = slot.reply.clone();
            return reply.map(Begun::Again).ok_or(Status::RETRY_UNCACHED_REP);
        }
        let is_new = sequence == slot.sequence.wrapping_add(1);
        if slot.busy || !(is_new || slot.doubt.is_some() && sequence == slot.sequence) {
            return Err(Status::SEQ_MISORDERED);
        }
        let doubt = slot.doubt.take().filter(|_| !is_new && fingerprint == slot.fingerprint);
        *slot = Slot { sequence, busy: true, fingerprint, reply: None, doubt: None };
        Ok(Begun::New { client, channel, doubt })
    }

    /// The request of a slot was answered; what of the reply is to be kept.
    pub(crate) fn end(&mut self, id: &SessionId, slot: u32, reply: Option<Vec<u8>>) {
        if let Some(slot) = self.slot(id, slot) {
            slot.busy = false;
            slot.reply = reply;
        }
    }

    /// Nobody knows whether the request of a slot was done: it is waited for again.
    pub(crate) fn doubt(&mut self, id: &SessionId, slot: u32, doubt: Doubt) {
        if let Some(slot) = self.slot(id, slot) {
            slot.busy = false;
            slot.doubt = Some(doubt);
        }
    }

    fn slot(&mut self, id: &SessionId, slot: u32) -> Option<&mut Slot> {
        self.sessions.get_mut(id)?.slots.get_mut(slot as usize)
    }
}
