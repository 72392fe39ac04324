//! Connections: how they begin and end, and what each has.

use std::collections::VecDeque;
use std::time::Instant;

use super::bulk::RendezvousRequest;
use super::frame::{HEADER_SIZE, PacketGreeting, PacketHeader, PacketKind, SealKey, TICKET_SIZE};
use super::seal::{Seal, SealUse};
use super::sending::{ControlFrame, QueuedMessage};
use super::{
    CONNECTIONS_MAX, ConnectionId, FabricEvent, POLLS_PER_LOOK, RECEIVES_BASE, TICKETS_MAX,
    Transport, clock,
};
use crate::FabricError;
use crate::link::{Arena, Exposure, FabricBuffer, PeerAddress, RegionOwner, RemoteSegment};

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

/// A peer, and all that belongs to it.
pub(super) struct PeerConnection {
    pub(super) peer: PeerAddress,
    pub(super) owner: RegionOwner,
    /// Where its bulk arrives: nothing else lies there.
    pub(super) arena: Arena,
    pub(super) ticket: [u8; TICKET_SIZE],
    /// Seals all of it, if it is sealed.
    pub(super) seal: Option<Seal>,
    pub(super) is_open: bool,
    pub(super) is_busy: bool,
    epoch: u64,
    /// By which the peer knows us, and we know the peer.
    pub(super) token: u64,
    pub(super) their_token: u64,
    pub(super) their_number: u32,
    pub(super) their_eager: usize,
    /// Messages that we may send.
    pub(super) credits: u16,
    /// Credits to be given back.
    pub(super) owed: u16,
    pub(super) sequence_out: u32,
    pub(super) sequence_in: u32,
    /// Slots of theirs, which are used in turn.
    pub(super) their_slots: Vec<RemoteSegment>,
    pub(super) free_slots: u16,
    pub(super) slot_out: usize,
    pub(super) fast_out: u32,
    /// Slots of ours: exposed, but for the moment in which one is read.
    pub(super) our_slots: Vec<(FabricBuffer, Option<Exposure>)>,
    pub(super) owed_slots: u16,
    pub(super) fast_in: u32,
    pub(super) control: VecDeque<ControlFrame>,
    pub(super) waiting: VecDeque<QueuedMessage>,
    /// Bulks that wait for memory.
    pub(super) asks: VecDeque<RendezvousRequest>,
    heard: Instant,
    spoke: Instant,
}

impl PeerConnection {
    pub(super) fn hears(&mut self, now: Instant) {
        self.heard = now;
    }

    pub(super) fn speaks(&mut self, now: Instant) {
        self.spoke = now;
    }
}

impl Transport {
    /// Lets a peer in that shows `ticket`, once. With a `key` all of its connection is sealed.
    pub fn admit(&mut self, ticket: [u8; TICKET_SIZE], key: SealKey) -> Result<(), FabricError> {
        if self.tickets.len() >= TICKETS_MAX {
            return Err(FabricError::Busy { what: "the table of tickets" });
        }
        self.tickets.insert(ticket, key);
        Ok(())
    }

    /// Takes back a ticket that was not shown.
    pub fn revoke(&mut self, ticket: &[u8; TICKET_SIZE]) {
        self.tickets.remove(ticket);
    }

    /// Begins a connection to the endpoint at `address`, which has admitted `ticket` with the same
    /// `key`. It is open with [`FabricEvent::Opened`].
    pub fn connect(
        &mut self,
        address: &[u8],
        ticket: [u8; TICKET_SIZE],
        key: SealKey,
    ) -> Result<ConnectionId, FabricError> {
        let seal = key.map(|key| Seal::new(&key, true));
        let number = self.add_connection(address, ticket, seal)?;
        let greeting = self.greeting(number);
        self.control(number, ControlFrame::greeting(PacketKind::Hello, greeting));
        self.pump(number)?;
        Ok(ConnectionId(number))
    }

    /// Ends a connection, and tells the peer.
    pub fn close(&mut self, connection: ConnectionId) -> Result<(), FabricError> {
        self.control(connection.0, ControlFrame::new(PacketKind::Leave, 0));
        self.pump(connection.0)?;
        self.lose(connection.0, Loss::Left)
    }

    /// Ends a connection whose peer hears of it by other ways, or is dead: nothing is sent to it
    /// any more.
    pub fn forsake(&mut self, connection: ConnectionId) -> Result<(), FabricError> {
        self.lose(connection.0, Loss::Forsaken)
    }

    /// Begins a new epoch: connections of earlier ones are over, and all their regions closed, when
    /// this returns. Only then the epoch may be acknowledged. Says how many regions there were.
    pub fn advance_epoch(&mut self, epoch: u64) -> Result<usize, FabricError> {
        self.setup.epoch = self.setup.epoch.max(epoch);
        let mut closed = 0;
        for number in self.connections.numbers() {
            let old = self.connections.get(number).filter(|open| open.epoch < self.setup.epoch);
            let Some(owner) = old.map(|open| open.owner) else { continue };
            closed += self.link.close_regions(owner);
            self.lose(number, Loss::Epoch)?;
        }
        Ok(closed)
    }

    fn add_connection(
        &mut self,
        address: &[u8],
        ticket: [u8; TICKET_SIZE],
        seal: Option<Seal>,
    ) -> Result<u64, FabricError> {
        if self.connections.len() >= CONNECTIONS_MAX {
            return Err(FabricError::Busy { what: "the table of connections" });
        }
        self.owners += 1;
        let owner = RegionOwner(self.owners);
        let arena = Arena::new(self.setup.inbound);
        let our_slots = self.make_slots(owner, &arena)?;
        let peer = self.link.insert(address)?;
        let now = clock();
        let connection = PeerConnection {
            peer,
            owner,
            arena,
            ticket,
            seal,
            is_open: false,
            is_busy: false,
            epoch: self.setup.epoch,
            token: crate::link::random()?,
            their_token: 0,
            their_number: 0,
            their_eager: self.setup.eager,
            credits: 0,
            owed: 0,
            sequence_out: 0,
            sequence_in: 0,
            their_slots: Vec::new(),
            free_slots: 0,
            slot_out: 0,
            fast_out: 0,
            our_slots,
            owed_slots: 0,
            fast_in: 0,
            control: VecDeque::new(),
            waiting: VecDeque::new(),
            asks: VecDeque::new(),
            heard: now,
            spoke: now,
        };
        let full = |_| FabricError::Busy { what: "the table of connections" };
        let number = self.connections.insert(connection).map_err(full)?;
        self.post_receives()?;
        Ok(number)
    }

    /// The memory that a peer may write at any time: one slot per message, nothing else in it.
    fn make_slots(
        &mut self,
        owner: RegionOwner,
        arena: &Arena,
    ) -> Result<Vec<(FabricBuffer, Option<Exposure>)>, FabricError> {
        // The number that a write brings along names connection, slot and sequence.
        let count = if self.link.limits().immediate >= 4 { self.setup.slots } else { 0 };
        let mut slots = Vec::new();
        for _ in 0..count {
            let mut buffer = arena.take(self.setup.slot)?;
            let exposure = self.link.expose_to_write(owner, &mut buffer)?;
            slots.push((buffer, Some(exposure)));
        }
        Ok(slots)
    }

    fn greeting(&self, number: u64) -> Vec<u8> {
        let Some(connection) = self.connections.get(number) else { return Vec::new() };
        let slots = connection.our_slots.iter().filter_map(|(_, exposure)| exposure.as_ref());
        PacketGreeting {
            ticket: connection.ticket,
            connection: number as u32,
            token: connection.token,
            epoch: self.setup.epoch,
            credits: self.setup.credits,
            eager: self.setup.eager as u32,
            slots: slots.map(|exposure| exposure.remote).collect(),
            address: self.address.clone(),
        }
        .encode()
    }

    /// A peer asks to be let in.
    pub(super) fn take_hello(
        &mut self,
        header: &PacketHeader,
        frame: &mut [u8],
        body: usize,
    ) -> Result<(), FabricError> {
        let shown =
            frame[HEADER_SIZE..].first_chunk::<TICKET_SIZE>().filter(|_| body > TICKET_SIZE);
        let Some(ticket) = shown.copied() else {
            self.counters.garbage += 1;
            return Ok(());
        };
        let Some(key) = self.tickets.get(&ticket).copied() else {
            self.counters.strangers += 1;
            return Ok(());
        };
        let seal = key.map(|key| Seal::new(&key, false));
        let is_its = match &seal {
            Some(seal) => {
                header.is_sealed() && PacketHeader::open(frame, body, seal, SealUse::Hello, 0)
            }
            None => !header.is_sealed(),
        };
        if !is_its {
            // A ticket is no secret on its way: who shows it without the key does not use it up.
            self.counters.wrong_seals += 1;
            return Ok(());
        }
        let Some(greeting) = PacketGreeting::decode(&frame[HEADER_SIZE..HEADER_SIZE + body]) else {
            self.counters.garbage += 1;
            return Ok(());
        };
        if greeting.epoch < self.setup.epoch {
            self.counters.stale += 1;
            return Ok(());
        }
        self.tickets.remove(&ticket);
        let number = match self.add_connection(&greeting.address, ticket, seal) {
            Ok(number) => number,
            Err(error) => {
                tracing::warn!(%error, "a peer with a ticket could not be let in");
                return Ok(());
            }
        };
        let answer = self.greeting(number);
        self.control(number, ControlFrame::greeting(PacketKind::Welcome, answer));
        self.is_greeted(number, greeting);
        self.pump(number)
    }

    /// The peer has let us in.
    pub(super) fn take_welcome(&mut self, number: u64, body: &[u8]) -> Result<(), FabricError> {
        let known = self.connections.get(number).filter(|open| !open.is_open);
        match (known.map(|open| open.ticket), PacketGreeting::decode(body)) {
            (Some(ticket), Some(greeting)) if greeting.ticket == ticket => {
                self.is_greeted(number, greeting);
                self.pump(number)
            }
            _ => self.lose(number, Loss::Violation("a second or a wrong welcome")),
        }
    }

    fn is_greeted(&mut self, number: u64, greeting: PacketGreeting) {
        let Some(open) = self.connections.get_mut(number) else { return };
        open.is_open = true;
        open.epoch = greeting.epoch.min(self.setup.epoch);
        open.their_number = greeting.connection;
        open.their_token = greeting.token;
        open.their_eager = (greeting.eager as usize).min(self.setup.eager);
        open.credits = greeting.credits;
        open.free_slots = greeting.slots.len() as u16;
        open.their_slots = greeting.slots;
        open.heard = self.now;
        let (connection, ticket) = (ConnectionId(number), greeting.ticket);
        self.events.push_back(FabricEvent::Opened { connection, ticket });
    }

    /// Ends a connection: its regions are closed, its transfers given up, its memory freed as soon
    /// as no operation works on it any more.
    #[allow(clippy::unnecessary_wraps, reason = "it ends calls that return the same")]
    pub(super) fn lose(&mut self, number: u64, loss: Loss) -> Result<(), FabricError> {
        let Some(mut gone) = self.connections.remove(number) else { return Ok(()) };
        self.link.close_regions(gone.owner);
        if loss == Loss::Left {
            for (_, exposure) in &mut gone.our_slots {
                exposure.take().into_iter().for_each(|exposure| self.link.conceal(exposure));
            }
        } else {
            self.counters.lost += 1;
        }
        self.drop_transfers(number);
        // tcp of 1.17 crashes in a later poll if the address of a killed peer is removed amid
        // transfers (seen, ADR 34): there it stays until the endpoint is closed.
        if loss == Loss::Left || self.link.provider() == crate::link::Provider::Shm {
            self.leaving.push_back((clock(), gone.peer));
        }
        drop(gone);
        let connection = ConnectionId(number);
        self.events.push_back(FabricEvent::Closed { connection, loss });
        Ok(())
    }

    /// Beats for those that we were silent to, and the end for those that are silent.
    pub(super) fn look_at_the_clock(&mut self) -> Result<(), FabricError> {
        self.polls = 0;
        self.now = clock();
        let beat = self.setup.silence / 8;
        if self.now.duration_since(self.looked) < beat / 4 {
            return Ok(());
        }
        // A process that did not poll for that long has heard no peer: the time of all peers begins
        // anew.
        let slept = self.now.duration_since(self.looked) > self.setup.silence / 4;
        self.looked = self.now;
        while let Some((since, peer)) = self.leaving.front().copied() {
            if self.now.duration_since(since) < beat {
                break;
            }
            self.leaving.pop_front();
            if let Err(error) = self.link.remove(peer) {
                tracing::debug!(%error, "a peer that is gone could not be forgotten");
            }
        }
        for number in self.connections.numbers() {
            let Some(open) = self.connections.get_mut(number) else { continue };
            if slept {
                open.heard = self.now;
            }
            if self.now.duration_since(open.heard) > self.setup.silence {
                self.lose(number, Loss::Silent)?;
            } else if open.is_open && self.now.duration_since(open.spoke) > beat {
                if open.control.is_empty() {
                    self.control(number, ControlFrame::new(PacketKind::Alive, 0));
                }
                self.pump(number)?;
            }
        }
        self.post_receives()
    }

    /// As many receive buffers as all peers together may fill: a message costs its sender a credit,
    /// and each may be followed by two frames that cost none. Where the provider's queue is
    /// shorter, it holds back the senders itself (`FI_RM_ENABLED`).
    pub(super) fn post_receives(&mut self) -> Result<(), FabricError> {
        let each = 3 * usize::from(self.setup.credits) + 8;
        let most = (self.setup.link.operations / 2).min(self.link.limits().queue);
        let wanted = (RECEIVES_BASE + each * self.connections.len()).min(most);
        while self.receives < wanted {
            let mut buffer = self.arena.take(self.setup.eager)?;
            buffer.set_len(self.setup.eager);
            match self.link.receive(buffer, super::RECEIVE) {
                Ok(()) => self.receives += 1,
                Err((FabricError::Busy { .. }, _)) => {
                    self.polls = POLLS_PER_LOOK;
                    return Ok(());
                }
                Err((error, _)) => return Err(error),
            }
        }
        Ok(())
    }
}
