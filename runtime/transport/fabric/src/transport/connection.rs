//! Connections: how they begin and end, and what each has.

use std::collections::VecDeque;

use super::Transport;
use super::frame::{HEADER_SIZE, PacketGreeting, PacketHeader, PacketKind, SealKey, TICKET_SIZE};
use super::peer::PeerConnection;
use super::seal::{Seal, SealUse};
use super::types::{
    CONNECTIONS_MAX, ConnectionId, ControlFrame, FabricEvent, Loss, TICKETS_MAX, clock,
};
use crate::FabricError;
use crate::link::{Arena, RegionOwner};

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
        let greeting = self.peers.greeting(number, &self.io.setup, &self.address);
        self.peers.control(number, ControlFrame::greeting(PacketKind::Hello, greeting));
        self.pump(number)?;
        Ok(ConnectionId(number))
    }

    /// Ends a connection, and tells the peer.
    pub fn close(&mut self, connection: ConnectionId) -> Result<(), FabricError> {
        self.peers.control(connection.0, ControlFrame::new(PacketKind::Leave, 0));
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
        self.io.setup.epoch = self.io.setup.epoch.max(epoch);
        let mut closed = 0;
        for number in self.peers.slots.numbers() {
            let old = self.peers.slots.get(number).filter(|open| open.epoch < self.io.setup.epoch);
            let Some(owner) = old.map(|open| open.owner) else { continue };
            closed += self.io.link.close_regions(owner);
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
        if self.peers.slots.len() >= CONNECTIONS_MAX {
            return Err(FabricError::Busy { what: "the table of connections" });
        }
        self.owners += 1;
        let owner = RegionOwner(self.owners);
        let arena = Arena::new(self.io.setup.inbound);
        let our_slots = self.io.make_slots(owner, &arena)?;
        let peer = self.io.link.insert(address)?;
        let now = clock();
        let connection = PeerConnection {
            peer,
            owner,
            arena,
            ticket,
            seal,
            is_open: false,
            is_busy: false,
            epoch: self.io.setup.epoch,
            token: crate::link::random()?,
            their_token: 0,
            their_number: 0,
            their_eager: self.io.setup.eager,
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
        let number = self.peers.slots.insert(connection).map_err(full)?;
        self.io.post_receives(self.peers.slots.len())?;
        Ok(number)
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
            self.io.counters.garbage += 1;
            return Ok(());
        };
        let Some(key) = self.tickets.get(&ticket).copied() else {
            self.io.counters.strangers += 1;
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
            self.io.counters.wrong_seals += 1;
            return Ok(());
        }
        let Some(greeting) = PacketGreeting::decode(&frame[HEADER_SIZE..HEADER_SIZE + body]) else {
            self.io.counters.garbage += 1;
            return Ok(());
        };
        if greeting.epoch < self.io.setup.epoch {
            self.io.counters.stale += 1;
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
        let answer = self.peers.greeting(number, &self.io.setup, &self.address);
        self.peers.control(number, ControlFrame::greeting(PacketKind::Welcome, answer));
        let opened = self.peers.open(number, greeting, &self.io.setup, self.io.now);
        self.events.extend(opened);
        self.pump(number)
    }

    /// The peer has let us in.
    pub(super) fn take_welcome(&mut self, number: u64, body: &[u8]) -> Result<(), FabricError> {
        let known = self.peers.slots.get(number).filter(|open| !open.is_open);
        match (known.map(|open| open.ticket), PacketGreeting::decode(body)) {
            (Some(ticket), Some(greeting)) if greeting.ticket == ticket => {
                let opened = self.peers.open(number, greeting, &self.io.setup, self.io.now);
                self.events.extend(opened);
                self.pump(number)
            }
            _ => self.lose(number, Loss::Violation("a second or a wrong welcome")),
        }
    }

    /// Ends a connection: its regions are closed, its transfers given up, its memory freed as soon
    /// as no operation works on it any more.
    #[allow(clippy::unnecessary_wraps, reason = "it ends calls that return the same")]
    pub(super) fn lose(&mut self, number: u64, loss: Loss) -> Result<(), FabricError> {
        let Some(mut gone) = self.peers.slots.remove(number) else { return Ok(()) };
        self.io.link.close_regions(gone.owner);
        if loss == Loss::Left {
            for (_, exposure) in &mut gone.our_slots {
                exposure.take().into_iter().for_each(|exposure| self.io.link.conceal(exposure));
            }
        } else {
            self.io.counters.lost += 1;
        }
        self.transfers.drop_transfers(number);
        // tcp of 1.17 crashes in a later poll if the address of a killed peer is removed amid
        // transfers (seen, ADR 34): there it stays until the endpoint is closed.
        if loss == Loss::Left || self.io.link.provider() == crate::link::Provider::Shm {
            self.leaving.push_back((clock(), gone.peer));
        }
        drop(gone);
        let connection = ConnectionId(number);
        self.events.push_back(FabricEvent::Closed { connection, loss });
        Ok(())
    }

    /// Beats for those that we were silent to, and the end for those that are silent.
    pub(super) fn look_at_the_clock(&mut self) -> Result<(), FabricError> {
        self.io.polls = 0;
        self.io.now = clock();
        let beat = self.io.setup.silence / 8;
        if self.io.now.duration_since(self.looked) < beat / 4 {
            return Ok(());
        }
        // A process that did not poll for that long has heard no peer: the time of all peers begins
        // anew.
        let slept = self.io.now.duration_since(self.looked) > self.io.setup.silence / 4;
        self.looked = self.io.now;
        while let Some((since, peer)) = self.leaving.front().copied() {
            if self.io.now.duration_since(since) < beat {
                break;
            }
            self.leaving.pop_front();
            if let Err(error) = self.io.link.remove(peer) {
                tracing::debug!(%error, "a peer that is gone could not be forgotten");
            }
        }
        for number in self.peers.slots.numbers() {
            let Some(open) = self.peers.slots.get_mut(number) else { continue };
            if slept {
                open.heard = self.io.now;
            }
            if self.io.now.duration_since(open.heard) > self.io.setup.silence {
                self.lose(number, Loss::Silent)?;
            } else if open.is_open && self.io.now.duration_since(open.spoke) > beat {
                if open.control.is_empty() {
                    self.peers.control(number, ControlFrame::new(PacketKind::Alive, 0));
                }
                self.pump(number)?;
            }
        }
        self.io.post_receives(self.peers.slots.len())
    }
}
