//! A peer, and what belongs to its connection.

use std::collections::VecDeque;
use std::time::Instant;

use super::frame::{PacketGreeting, PacketHeader, SUM_IS_HERE, TICKET_SIZE};
use super::seal::Seal;
use super::slots::Slots;
use super::types::{
    ConnectionId, ControlFrame, FabricEvent, QueuedMessage, RendezvousRequest, TransportOptions,
};
use crate::link::{Arena, Exposure, FabricBuffer, PeerAddress, RegionOwner, RemoteSegment};

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
    pub(super) epoch: u64,
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
    pub(super) heard: Instant,
    pub(super) spoke: Instant,
}

impl PeerConnection {
    pub(super) fn hears(&mut self, now: Instant) {
        self.heard = now;
    }

    pub(super) fn speaks(&mut self, now: Instant) {
        self.spoke = now;
    }

    /// The greeting for the peer, by which it knows us as `number`.
    fn greeting(&self, number: u64, options: &TransportOptions, address: &[u8]) -> Vec<u8> {
        let slots = self.our_slots.iter().filter_map(|(_, exposure)| exposure.as_ref());
        PacketGreeting {
            ticket: self.ticket,
            connection: number as u32,
            token: self.token,
            epoch: options.epoch,
            credits: options.credits,
            eager: options.eager as u32,
            slots: slots.map(|exposure| exposure.remote).collect(),
            address: address.to_vec(),
        }
        .encode()
    }

    /// The peer has greeted: messages can be sent.
    fn open(&mut self, greeting: PacketGreeting, options: &TransportOptions) {
        self.is_open = true;
        self.epoch = greeting.epoch.min(options.epoch);
        self.their_number = greeting.connection;
        self.their_token = greeting.token;
        self.their_eager = (greeting.eager as usize).min(options.eager);
        self.credits = greeting.credits;
        self.free_slots = greeting.slots.len() as u16;
        self.their_slots = greeting.slots;
    }

    /// Takes what the peer gives back; false if it is more than it had.
    #[must_use]
    pub(super) fn take_credits(&mut self, header: &PacketHeader) -> bool {
        let slots = self.free_slots.saturating_add(header.slots);
        if usize::from(slots) > self.their_slots.len() {
            return false;
        }
        self.free_slots = slots;
        self.credits = self.credits.saturating_add(header.credits);
        true
    }

    /// A checksum for a bulk that waits for memory; false if there is none.
    #[must_use]
    pub(super) fn take_sum(&mut self, theirs: u64, sum: u32) -> bool {
        let waiting = self.asks.iter_mut().find(|ask| ask.header.transfer == theirs);
        let Some(ask) = waiting else { return false };
        ask.header.bulk_checksum = sum;
        ask.header.flags |= SUM_IS_HERE;
        true
    }

    /// Whether the peer must get credits back before it runs out of them, and nothing else brings
    /// them.
    pub(super) fn must_give_back(&self, options: &TransportOptions) -> bool {
        let is_due = self.owed >= options.credits.div_ceil(2)
            || self.owed_slots >= options.slots.div_ceil(2).max(1);
        // What waits for credits itself brings none back.
        let nothing_follows = self.waiting.is_empty() || self.credits == 0;
        is_due && nothing_follows && self.control.is_empty()
    }
}

/// The connections of a transport.
pub(super) struct ConnectionTable {
    pub(super) slots: Slots<PeerConnection>,
    /// Those that have something to send.
    pub(super) busy: VecDeque<u64>,
}

impl ConnectionTable {
    /// The greeting for a peer.
    pub(super) fn greeting(
        &self,
        number: u64,
        options: &TransportOptions,
        address: &[u8],
    ) -> Vec<u8> {
        let open = self.slots.get(number);
        open.map_or_else(Vec::new, |open| open.greeting(number, options, address))
    }

    /// A peer has greeted: messages can be sent to it.
    pub(super) fn open(
        &mut self,
        number: u64,
        greeting: PacketGreeting,
        options: &TransportOptions,
        now: Instant,
    ) -> Option<FabricEvent> {
        let open = self.slots.get_mut(number)?;
        let (connection, ticket) = (ConnectionId(number), greeting.ticket);
        open.open(greeting, options);
        open.hears(now);
        Some(FabricEvent::Opened { connection, ticket })
    }

    /// Queues a control frame.
    pub(super) fn control(&mut self, number: u64, control: ControlFrame) {
        if let Some(open) = self.slots.get_mut(number) {
            open.control.push_back(control);
            self.make_busy(number);
        }
    }

    pub(super) fn make_busy(&mut self, number: u64) {
        if let Some(open) = self.slots.get_mut(number)
            && !open.is_busy
        {
            open.is_busy = true;
            self.busy.push_back(number);
        }
    }
}
