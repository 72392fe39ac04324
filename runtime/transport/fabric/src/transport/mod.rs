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
mod frame_io;
mod peer;
mod receiving;
mod seal;
mod sending;
mod slots;
mod transfers;
mod types;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use bytes::Bytes;

use self::frame_io::FrameIo;
use self::peer::ConnectionTable;
use self::slots::Slots;
use self::transfers::BulkTransfers;
use self::types::{EVENTS_MAX, POLLS_PER_LOOK, PendingOperation, QueuedMessage, clock};
use crate::FabricError;
use crate::link::{Arena, Completion, Fabric, FabricBuffer, OperationKind};
use crate::policy::Policy;

pub use self::frame::{HEADER_SIZE, SealKey, TICKET_SIZE, VERSION};
pub use self::seal::KEY_SIZE;
pub use self::types::{
    BulkPart, CONNECTIONS_MAX, ConnectionId, FabricCounters, FabricEvent, Loss, MESSAGE_MAX,
    QUEUE_MAX, TransportOptions,
};

/// All connections of one endpoint.
pub struct Transport {
    io: FrameIo,
    /// Decides how messages move; may be changed at any time.
    pub policy: Policy,
    address: Vec<u8>,
    peers: ConnectionTable,
    /// Peers that got the end: forgotten a little later, so that it reaches them.
    leaving: VecDeque<(Instant, crate::link::PeerAddress)>,
    tickets: BTreeMap<[u8; TICKET_SIZE], SealKey>,
    transfers: BulkTransfers,
    events: VecDeque<FabricEvent>,
    /// Some bulk waits for memory.
    starved: bool,
    completions: Vec<Completion>,
    looked: Instant,
    owners: u64,
}

/// Bytes of messages that were given to a connection and that still lie here.
pub fn held_bytes(transport: &Transport, connection: ConnectionId) -> usize {
    let number = connection.0;
    let waiting = transport.peers.slots.get(number).map_or(0, |open| {
        let waiting = open.waiting.iter();
        let length = |one: &QueuedMessage| {
            one.head.len() + one.bulk.iter().map(|part| part.bytes().len()).sum::<usize>()
        };
        waiting.map(length).sum::<usize>()
    });
    let moving = transport.transfers.outgoing.values().filter(|out| out.connection == number);
    waiting + moving.map(|out| out.total).sum::<usize>()
}

impl std::fmt::Debug for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let connections = self.peers.slots.len();
        f.debug_struct("Transport").field("connections", &connections).finish_non_exhaustive()
    }
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
            peers: ConnectionTable { slots: Slots::new(CONNECTIONS_MAX), busy: VecDeque::new() },
            leaving: VecDeque::new(),
            tickets: BTreeMap::new(),
            transfers: BulkTransfers::new(),
            events: VecDeque::new(),
            starved: false,
            completions: Vec::new(),
            looked: now,
            owners: 0,
            io: FrameIo {
                arena: Arena::new(1 << 30),
                spare: Vec::new(),
                scratch: Vec::new(),
                pending: Slots::new(setup.link.operations),
                receives: 0,
                moving: 0,
                counters: FabricCounters::default(),
                polls: 0,
                now,
                link,
                setup,
            },
        };
        transport.io.post_receives(0)?;
        Ok(transport)
    }

    /// The endpoint's address, for the peer's [`Transport::connect`].
    pub fn address(&self) -> &[u8] {
        &self.address
    }

    /// The endpoint.
    pub fn link(&self) -> &Fabric {
        &self.io.link
    }

    /// What was counted.
    pub fn counters(&self) -> FabricCounters {
        self.io.counters
    }

    /// A buffer of `length` bytes that needs no registration of its own when it is sent.
    pub fn buffer(&self, length: usize) -> Result<FabricBuffer, FabricError> {
        self.io.arena.take(length)
    }

    /// Bytes of buffers that are out, and operations that have not completed: to see that nothing
    /// is left.
    pub fn in_use(&self) -> (usize, usize) {
        let transfers = self.transfers.incoming.len() + self.transfers.outgoing.len();
        (transfers + self.peers.slots.len(), self.io.link.open_operations() - self.io.receives)
    }

    /// Sends a message. It is on its way when this returns, or waits for its turn.
    pub fn send(
        &mut self,
        connection: ConnectionId,
        head: Bytes,
        bulk: Vec<BulkPart>,
    ) -> Result<(), FabricError> {
        let length = head.len() + bulk.iter().map(|part| part.bytes().len()).sum::<usize>();
        let limit = self.io.setup.longest;
        if length > limit {
            return Err(FabricError::TooLong { what: "a message", length, limit });
        }
        let Some(open) = self.peers.slots.get_mut(connection.0) else {
            return Err(FabricError::NotConnected { connection: connection.0 as u32 });
        };
        if open.waiting.len() >= QUEUE_MAX {
            return Err(FabricError::Busy { what: "the queue of a connection" });
        }
        open.waiting.push_back(QueuedMessage { head, bulk });
        self.io.counters.bytes_out += length as u64;
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
            self.io.link.poll(&mut completions)?;
            for completion in completions.drain(..) {
                self.complete(completion)?;
            }
            self.completions = completions;
        }
        self.io.polls += 1;
        if self.io.polls >= POLLS_PER_LOOK {
            self.look_at_the_clock()?;
        }
        if std::mem::take(&mut self.starved) {
            for number in self.peers.slots.numbers() {
                self.begin_asks(number)?;
            }
        }
        self.move_pieces()?;
        for _ in 0..self.peers.busy.len() {
            let Some(connection) = self.peers.busy.pop_front() else { break };
            if let Some(open) = self.peers.slots.get_mut(connection) {
                open.is_busy = false;
            }
            self.pump(connection)?;
        }
        Ok(())
    }

    /// Sleeps until something may have happened, at most for `at_most`; polls again after it.
    /// `idle` is how many polls before were in vain.
    pub fn wait(&mut self, idle: u32, at_most: Duration) {
        if self.events.is_empty() && self.peers.busy.is_empty() && self.transfers.ready.is_empty() {
            let beat = self.io.setup.silence / 8;
            self.io.link.wait(idle, at_most.min(beat));
            self.io.polls = POLLS_PER_LOOK;
        }
    }

    /// Whether nothing is to be done now, so that one may sleep on [`Fabric::waitable`], at most
    /// for an eighth of [`TransportOptions::silence`]; if the provider has nothing to sleep on, one
    /// looks again by oneself.
    pub fn may_rest(&mut self) -> bool {
        let idle = self.events.is_empty()
            && self.peers.busy.is_empty()
            && self.transfers.ready.is_empty()
            && !self.starved
            && (!self.io.link.limits().can_wait || self.io.link.may_sleep());
        if idle {
            self.io.polls = POLLS_PER_LOOK;
        }
        idle
    }

    fn complete(&mut self, completion: Completion) -> Result<(), FabricError> {
        match completion.what {
            OperationKind::Immediate(number) => return self.take_fast(number),
            OperationKind::Receive => {
                self.io.receives -= 1;
                let Some(buffer) = completion.buffer else { return Ok(()) };
                return self.take_received(buffer, completion.result);
            }
            OperationKind::Send | OperationKind::Read | OperationKind::Write => {}
        }
        if let Some(buffer) = completion.buffer {
            self.io.keep(buffer);
        }
        let Some(pending) = self.io.pending.remove(completion.cookie) else { return Ok(()) };
        let (connection, buffer) = match pending {
            PendingOperation::Frame { connection } => (connection, None),
            PendingOperation::Fast { connection, buffer } => (connection, Some(buffer)),
            PendingOperation::Read { transfer, length } => {
                self.io.moving -= 1;
                return self.read_done(transfer, length, completion.result);
            }
            PendingOperation::Write { transfer, length } => {
                self.io.moving -= 1;
                return self.write_done(transfer, length, completion.result);
            }
        };
        if let Some(buffer) = buffer {
            self.io.keep(buffer);
        }
        match completion.result {
            Ok(_) => Ok(()),
            Err(error) => self.lose(connection, Loss::Failed(error)),
        }
    }
}
