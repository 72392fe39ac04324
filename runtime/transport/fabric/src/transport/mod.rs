//! Messages between processes, over one endpoint: a head, and a bulk that is moved by whichever
//! mechanism the [`policy`](crate::policy) finds cheapest.
//!
//! A connection begins with a ticket that both sides got over the control connection, and ends with
//! `close`, silence, or an error: then all that belonged to it is freed, and its regions are
//! closed. Processes come and go; their number is not known beforehand (PVFS2 over Quadrics,
//! section 3).
//!
//! All of it works by polling, on one thread: [`Transport::poll`], then [`Transport::next_event`]
//! until there is none. Remote reads over TCP need the target's polls, too.

mod bulk;
mod connection;
mod frame;
mod receiving;
mod seal;
mod sending;
mod slots;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::FabricError;
use crate::link::{Arena, Completion, EndpointOptions, Fabric, FabricBuffer, OperationKind};
use crate::policy::Policy;
use bulk::{IncomingBulk, OutgoingBulk, TransferRef};
pub use connection::Loss;
use connection::PeerConnection;
use slots::Slots;

pub use frame::{HEADER_SIZE, SealKey, TICKET_SIZE, VERSION};
pub use seal::KEY_SIZE;

/// Bytes of head and bulk of one message, at most: those of the plain transport.
pub const MESSAGE_MAX: usize = (16 << 20) + (4 << 20);
/// Connections of one transport, at most.
pub const CONNECTIONS_MAX: usize = 1024;
/// Messages of one connection that wait to be sent, at most; past it the answer is `Busy`.
pub const QUEUE_MAX: usize = 1024;
/// Tickets that were not shown yet, at most.
const TICKETS_MAX: usize = CONNECTIONS_MAX;
/// Events that were not taken yet, at most: past it nothing more is received.
const EVENTS_MAX: usize = 4096;
/// Transfers of bulk in each direction, at most.
const TRANSFERS_MAX: usize = 16 << 10;
/// Polls between two looks at the clock.
const POLLS_PER_LOOK: u32 = 64;
/// Receive buffers beyond those of connections, for greetings and strangers.
const RECEIVES_BASE: usize = 16;

/// How a transport works.
#[derive(Clone, Debug)]
pub struct TransportOptions {
    /// The endpoint.
    pub link: EndpointOptions,
    /// Costs of mechanisms.
    pub policy: Policy,
    /// Bytes of a receive buffer: a page and more, header included.
    pub eager: usize,
    /// Messages that a peer may send before one of them was handled.
    pub credits: u16,
    /// Slots that a peer may write into, and their bytes.
    pub slots: u16,
    /// See `slots`.
    pub slot: usize,
    /// Bytes of bulk on their way in, per connection. What is handed out while half of them are in
    /// use is copied, so that a receiver that keeps it delays no other.
    pub inbound: usize,
    /// Whether bulk outside of frames has a checksum of its own.
    pub check_bulk: bool,
    /// This process serves others: under heavy load they move the data.
    pub is_server: bool,
    /// A peer is lost after this silence; it is also the longest time between two polls.
    pub silence: Duration,
    /// The epoch of the node map.
    pub epoch: u64,
}

impl TransportOptions {
    /// What fits most; the policy should be a measured one.
    pub fn new(link: EndpointOptions, policy: Policy) -> Self {
        Self {
            link,
            policy,
            eager: 16 << 10,
            credits: 32,
            slots: 4,
            slot: 64 << 10,
            inbound: 64 << 20,
            check_bulk: true,
            is_server: false,
            silence: Duration::from_secs(2),
            epoch: 0,
        }
    }
}

/// What was counted since the start. Counts do not depend on what else the machine does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FabricCounters {
    /// Frames sent and received.
    pub frames_out: u64,
    /// See `frames_out`.
    pub frames_in: u64,
    /// Messages by mechanism, in the order of [`Mechanism::ALL`](crate::policy::Mechanism::ALL):
    /// sent ones; a rendezvous counts where its data is moved.
    pub by_mechanism: [u64; 5],
    /// Bytes of heads and bulks sent, and received.
    pub bytes_out: u64,
    /// See `bytes_out`.
    pub bytes_in: u64,
    /// Copies of message bytes by us, and how many bytes.
    pub copies: u64,
    /// See `copies`.
    pub copied_bytes: u64,
    /// Calls that moved remote memory.
    pub moves: u64,
    /// What was no frame, or had a wrong checksum.
    pub garbage: u64,
    /// Frames that belong to no connection, and greetings without a valid ticket.
    pub strangers: u64,
    /// Frames that had come before: dropped.
    pub duplicates: u64,
    /// Frames that came after others were lost: the connection is over.
    pub gaps: u64,
    /// Bulks with a wrong checksum, or that were not sealed by the peer: the connection is over.
    pub corrupt: u64,
    /// Frames that claim a connection, and were not sealed by its peer.
    pub wrong_seals: u64,
    /// Frames that break the rules: the connection is over.
    pub violations: u64,
    /// Connections lost for whatever reason.
    pub lost: u64,
    /// Greetings of an epoch that is over.
    pub stale: u64,
    /// Times that a message had to wait for a credit.
    pub credit_waits: u64,
}

impl std::ops::AddAssign for FabricCounters {
    fn add_assign(&mut self, other: Self) {
        self.frames_out += other.frames_out;
        self.frames_in += other.frames_in;
        for (own, its) in self.by_mechanism.iter_mut().zip(other.by_mechanism) {
            *own += its;
        }
        self.bytes_out += other.bytes_out;
        self.bytes_in += other.bytes_in;
        self.copies += other.copies;
        self.copied_bytes += other.copied_bytes;
        self.moves += other.moves;
        self.garbage += other.garbage;
        self.strangers += other.strangers;
        self.duplicates += other.duplicates;
        self.gaps += other.gaps;
        self.corrupt += other.corrupt;
        self.wrong_seals += other.wrong_seals;
        self.violations += other.violations;
        self.lost += other.lost;
        self.stale += other.stale;
        self.credit_waits += other.credit_waits;
    }
}

/// A connection, by a number that is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnectionId(u64);

/// A part of a bulk.
#[derive(Debug)]
pub enum BulkPart {
    /// Shared bytes.
    Bytes(Bytes),
    /// A buffer of an [`Arena`], registered once with its mapping.
    FabricBuffer(FabricBuffer),
}

impl BulkPart {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::FabricBuffer(buffer) => buffer.bytes(),
        }
    }

    fn into_buffer(self) -> FabricBuffer {
        match self {
            Self::Bytes(bytes) => FabricBuffer::holding(bytes),
            Self::FabricBuffer(buffer) => buffer,
        }
    }
}

/// What happened.
#[derive(Debug)]
pub enum FabricEvent {
    /// Messages can be sent.
    Opened {
        /// The connection, new if the peer began it.
        connection: ConnectionId,
        /// The ticket that it began with.
        ticket: [u8; TICKET_SIZE],
    },
    /// A message came.
    Received {
        /// From whom.
        connection: ConnectionId,
        /// Its head.
        head: Bytes,
        /// Its bulk, in one run.
        bulk: Bytes,
    },
    /// The connection is over; what was not answered is lost, and all of it is freed.
    Closed {
        /// Which one.
        connection: ConnectionId,
        /// Why.
        loss: Loss,
    },
}

/// What an operation of the link was for.
enum PendingOperation {
    Frame { connection: u64 },
    Fast { connection: u64, buffer: FabricBuffer },
    Read { transfer: u64, length: usize },
    Write { transfer: u64, length: usize },
}

/// Cookies of receives; all others are numbers of `pending`, which are larger.
const RECEIVE: u64 = 0;

/// All connections of one endpoint.
pub struct Transport {
    link: Fabric,
    /// Decides how messages move; may be changed at any time.
    pub policy: Policy,
    setup: TransportOptions,
    address: Vec<u8>,
    arena: Arena,
    /// Buffers for frames, at hand.
    spare: Vec<FabricBuffer>,
    scratch: Vec<u8>,
    connections: Slots<PeerConnection>,
    /// Those that have something to send.
    busy: VecDeque<u64>,
    /// Peers that were told of the end: forgotten a little later, so that they hear of it.
    leaving: VecDeque<(Instant, crate::link::PeerAddress)>,
    tickets: BTreeMap<[u8; TICKET_SIZE], SealKey>,
    pending: Slots<PendingOperation>,
    incoming: Slots<IncomingBulk>,
    /// Those of `incoming` by connection and the sender's number.
    asked: BTreeMap<(u64, u64), u64>,
    outgoing: Slots<OutgoingBulk>,
    /// Transfers that have pieces to be moved.
    ready: VecDeque<TransferRef>,
    /// Pieces being moved.
    moving: u32,
    events: VecDeque<FabricEvent>,
    counters: FabricCounters,
    receives: usize,
    /// Some bulk waits for memory.
    starved: bool,
    completions: Vec<Completion>,
    polls: u32,
    now: Instant,
    looked: Instant,
    owners: u64,
}

impl std::fmt::Debug for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let connections = self.connections.len();
        f.debug_struct("Transport").field("connections", &connections).finish_non_exhaustive()
    }
}

#[allow(clippy::disallowed_methods, reason = "the machine itself looks at the clock")]
fn clock() -> Instant {
    Instant::now()
}

impl Transport {
    /// Opens an endpoint, and lets greetings come in.
    pub fn open(setup: TransportOptions) -> Result<Self, FabricError> {
        let link = Fabric::open(&setup.link)?;
        let address = link.address()?;
        let now = clock();
        let mut setup = setup;
        if !link.limits().can_wait {
            // Shared memory: a longer send stays open until its receiver has copied it, so for
            // good if that one is dead.
            setup.eager = setup.eager.min(link.limits().inject);
        }
        let mut transport = Self {
            policy: setup.policy.clone(),
            address,
            arena: Arena::new(1 << 30),
            spare: Vec::new(),
            scratch: Vec::new(),
            connections: Slots::new(CONNECTIONS_MAX),
            busy: VecDeque::new(),
            leaving: VecDeque::new(),
            tickets: BTreeMap::new(),
            pending: Slots::new(setup.link.operations),
            incoming: Slots::new(TRANSFERS_MAX),
            asked: BTreeMap::new(),
            outgoing: Slots::new(TRANSFERS_MAX),
            ready: VecDeque::new(),
            moving: 0,
            events: VecDeque::new(),
            counters: FabricCounters::default(),
            receives: 0,
            starved: false,
            completions: Vec::new(),
            polls: 0,
            now,
            looked: now,
            owners: 0,
            link,
            setup,
        };
        transport.post_receives()?;
        Ok(transport)
    }

    /// The endpoint's address, for the peer's [`Transport::connect`].
    pub fn address(&self) -> &[u8] {
        &self.address
    }

    /// The endpoint.
    pub fn link(&self) -> &Fabric {
        &self.link
    }

    /// What was counted.
    pub fn counters(&self) -> FabricCounters {
        self.counters
    }

    /// A buffer of `length` bytes that needs no registration of its own when it is sent.
    pub fn buffer(&self, length: usize) -> Result<FabricBuffer, FabricError> {
        self.arena.take(length)
    }

    /// Bytes of buffers that are out, and operations that have not completed: to see that nothing
    /// is left.
    pub fn in_use(&self) -> (usize, usize) {
        let transfers = self.incoming.len() + self.outgoing.len();
        (transfers + self.connections.len(), self.link.open_operations() - self.receives)
    }

    /// Sends a message. It is on its way when this returns, or waits for its turn.
    pub fn send(
        &mut self,
        connection: ConnectionId,
        head: Bytes,
        bulk: Vec<BulkPart>,
    ) -> Result<(), FabricError> {
        let length = head.len() + bulk.iter().map(|part| part.bytes().len()).sum::<usize>();
        if length > MESSAGE_MAX {
            return Err(FabricError::TooLong { what: "a message", length, limit: MESSAGE_MAX });
        }
        let Some(open) = self.connections.get_mut(connection.0) else {
            return Err(FabricError::NotConnected { connection: connection.0 as u32 });
        };
        if open.waiting.len() >= QUEUE_MAX {
            return Err(FabricError::Busy { what: "the queue of a connection" });
        }
        open.waiting.push_back(sending::QueuedMessage { head, bulk });
        self.counters.bytes_out += length as u64;
        self.pump(connection.0)
    }

    /// What happened, oldest first.
    pub fn next_event(&mut self) -> Option<FabricEvent> {
        self.events.pop_front()
    }

    /// Makes progress. An error is one of the endpoint as a whole, which is of no use then.
    pub fn poll(&mut self) -> Result<(), FabricError> {
        if self.events.len() < EVENTS_MAX {
            let mut completions = std::mem::take(&mut self.completions);
            self.link.poll(&mut completions)?;
            for completion in completions.drain(..) {
                self.complete(completion)?;
            }
            self.completions = completions;
        }
        self.polls += 1;
        if self.polls >= POLLS_PER_LOOK {
            self.look_at_the_clock()?;
        }
        if std::mem::take(&mut self.starved) {
            for number in self.connections.numbers() {
                self.begin_asks(number)?;
            }
        }
        self.move_pieces()?;
        for _ in 0..self.busy.len() {
            let Some(connection) = self.busy.pop_front() else { break };
            if let Some(open) = self.connections.get_mut(connection) {
                open.is_busy = false;
            }
            self.pump(connection)?;
        }
        Ok(())
    }

    /// Sleeps until something may have happened, at most for `at_most`; polls again after it.
    /// `idle` is how many polls before were in vain.
    pub fn wait(&mut self, idle: u32, at_most: Duration) {
        if self.events.is_empty() && self.busy.is_empty() && self.ready.is_empty() {
            let beat = self.setup.silence / 8;
            self.link.wait(idle, at_most.min(beat));
            self.polls = POLLS_PER_LOOK;
        }
    }

    /// Whether nothing is to be done now, so that one may sleep on [`Fabric::waitable`], at most
    /// for an eighth of [`TransportOptions::silence`]; if the provider has nothing to sleep on, one
    /// looks again by oneself.
    pub fn may_rest(&mut self) -> bool {
        let idle = self.events.is_empty()
            && self.busy.is_empty()
            && self.ready.is_empty()
            && !self.starved
            && (!self.link.limits().can_wait || self.link.may_sleep());
        if idle {
            self.polls = POLLS_PER_LOOK;
        }
        idle
    }

    fn complete(&mut self, completion: Completion) -> Result<(), FabricError> {
        match completion.what {
            OperationKind::Immediate(number) => return self.take_fast(number),
            OperationKind::Receive => {
                self.receives -= 1;
                let Some(buffer) = completion.buffer else { return Ok(()) };
                return self.take_received(buffer, completion.result);
            }
            OperationKind::Send | OperationKind::Read | OperationKind::Write => {}
        }
        if let Some(buffer) = completion.buffer {
            self.keep(buffer);
        }
        let Some(pending) = self.pending.remove(completion.cookie) else { return Ok(()) };
        match pending {
            PendingOperation::Frame { connection } => {
                self.check_sent(connection, completion.result)
            }
            PendingOperation::Fast { connection, buffer } => {
                self.keep(buffer);
                self.check_sent(connection, completion.result)
            }
            PendingOperation::Read { transfer, length } => {
                self.moving -= 1;
                self.read_done(transfer, length, completion.result)
            }
            PendingOperation::Write { transfer, length } => {
                self.moving -= 1;
                self.write_done(transfer, length, completion.result)
            }
        }
    }

    fn check_sent(
        &mut self,
        connection: u64,
        result: Result<usize, FabricError>,
    ) -> Result<(), FabricError> {
        match result {
            Ok(_) => Ok(()),
            Err(error) => self.lose(connection, Loss::Failed(error)),
        }
    }
}
