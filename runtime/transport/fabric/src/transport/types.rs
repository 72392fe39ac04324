//! The types of the interface of a transport, and of its queues.

use std::time::{Duration, Instant};

use bytes::Bytes;

use super::frame::{HEAD_IN_BULK, PacketHeader, PacketKind, TICKET_SIZE, encode_segments};
use super::seal::TAG_SIZE;
use crate::FabricError;
use crate::link::{EndpointOptions, FabricBuffer, RemoteSegment};
use crate::policy::Policy;

/// Bytes of head and bulk of one message, at most: those of the plain transport.
pub const MESSAGE_MAX: usize = (16 << 20) + (4 << 20);
/// Connections of one transport, at most.
pub const CONNECTIONS_MAX: usize = 1024;
/// Messages of one connection that wait to be sent, at most; past it the answer is `Busy`.
pub const QUEUE_MAX: usize = 1024;
/// Tickets that were not shown yet, at most.
pub(super) const TICKETS_MAX: usize = CONNECTIONS_MAX;
/// Events that were not taken yet, at most: past it nothing more is received.
pub(super) const EVENTS_MAX: usize = 4096;
/// Transfers of bulk in each direction, at most.
pub(super) const TRANSFERS_MAX: usize = 16 << 10;
/// Polls between two looks at the clock.
pub(super) const POLLS_PER_LOOK: u32 = 64;
/// Receive buffers beyond those of connections, for greetings and strangers.
pub(super) const RECEIVES_BASE: usize = 16;

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
    /// Bytes of head and bulk of one message, at most; of a half of `inbound` or less there is
    /// always room for one.
    pub longest: usize,
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
            longest: MESSAGE_MAX,
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
pub struct ConnectionId(pub(super) u64);

/// A part of a bulk.
#[derive(Debug)]
pub enum BulkPart {
    /// Shared bytes.
    Bytes(Bytes),
    /// A buffer of an `Arena`, registered once with its mapping.
    FabricBuffer(FabricBuffer),
}

impl BulkPart {
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::FabricBuffer(buffer) => buffer.bytes(),
        }
    }

    pub(super) fn into_buffer(self) -> FabricBuffer {
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
pub(super) enum PendingOperation {
    Frame { connection: u64 },
    Fast { connection: u64, buffer: FabricBuffer },
    Read { transfer: u64, length: usize },
    Write { transfer: u64, length: usize },
}

/// Cookies of receives; all others are numbers of `pending`, which are larger.
pub(super) const RECEIVE: u64 = 0;

/// Why a connection is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Loss {
    /// One of both sides closed it.
    Left,
    /// Nothing was heard of the peer for too long.
    Silent,
    /// An operation failed.
    Failed(FabricError),
    /// Frames were lost on the way.
    Gap,
    /// A bulk arrived with a wrong checksum, or was not sealed by the peer.
    Corrupt,
    /// Its key has sealed as much as it should.
    Worn,
    /// The peer breaks the rules.
    Violation(&'static str),
    /// The epoch it belonged to is over.
    Epoch,
    /// Its user knows that it is over.
    Forsaken,
}

/// A message that waits for its turn.
pub(super) struct QueuedMessage {
    pub(super) head: Bytes,
    pub(super) bulk: Vec<BulkPart>,
}

/// A frame without a message.
pub(super) struct ControlFrame {
    pub(super) header: PacketHeader,
    pub(super) body: Vec<u8>,
}

impl ControlFrame {
    pub(super) fn new(kind: PacketKind, transfer: u64) -> Self {
        Self { header: PacketHeader { transfer, ..PacketHeader::new(kind) }, body: Vec::new() }
    }

    pub(super) fn greeting(kind: PacketKind, body: Vec<u8>) -> Self {
        Self {
            header: PacketHeader { head_length: body.len() as u32, ..PacketHeader::new(kind) },
            body,
        }
    }

    /// A grant of `piece`, as the transfer `own` of ours, for the peer's `transfer`.
    pub(super) fn grant(transfer: u64, own: u64, piece: RemoteSegment) -> Self {
        let mut body = own.to_le_bytes().to_vec();
        body.extend(encode_segments([piece].into_iter()));
        let header = PacketHeader {
            transfer,
            head_length: 8,
            segments: 1,
            ..PacketHeader::new(PacketKind::Grant)
        };
        Self { header, body }
    }
}

/// A transfer with a piece to be moved.
#[derive(Clone, Copy, Debug)]
pub(super) enum TransferRef {
    In(u64),
    Out(u64),
}

/// A bulk that a peer wants to send.
pub(super) struct RendezvousRequest {
    pub(super) header: PacketHeader,
    pub(super) head: Bytes,
    pub(super) segments: Vec<RemoteSegment>,
}

impl RendezvousRequest {
    /// Bytes that move.
    pub(super) fn total(&self) -> usize {
        let head = if self.header.flags & HEAD_IN_BULK != 0 { self.header.head_length } else { 0 };
        let tag = if self.header.is_sealed() { TAG_SIZE } else { 0 };
        self.header.bulk_length as usize + head as usize + tag
    }
}

impl FabricCounters {
    pub(super) fn count_copy(&mut self, length: usize) {
        if length > 0 {
            self.copies += 1;
            self.copied_bytes += length as u64;
        }
    }
}

#[allow(clippy::disallowed_methods, reason = "the machine itself looks at the clock")]
pub(super) fn clock() -> Instant {
    Instant::now()
}
