//! The mesh at worm level: one event per channel that a head crosses.
//!
//! A worm reaches from its head back to its tail over the channels that it holds. Its head asks for
//! the next channel `d` cycles after it crossed the last one, and crosses it when it is free; who
//! asked first goes first. When the tail has crossed a channel follows in closed form from the
//! heads' times (references: wormhole routing with B flits of buffer and credit delay c): of F
//! flits the last crosses channel q at
//!
//! `R(q) = max over j = q ..= q + floor((F-1)/B) of h(j) + (F-1 - (j-q) B) + (j-q) c`
//!
//! because that many flits still have to pass j when the buffers between are full. It is known as
//! soon as the head has crossed the last j, often long before it happens: then the channel goes to
//! the first that waits, at `R(q) + 1` plus the gap. So no event is needed for tails.
//!
//! Into the queue at its end a worm goes only if the whole message has room there; else it stays
//! where it is, with all its channels. A forwarder sends the second leg on while the first comes
//! in.
//!
//! | file | holds |
//! | --- | --- |
//! | `worms.rs` | messages and channels |
//! | `queue.rs` | queues that fill |
//! | `share.rs` | wires that priorities or directions share |

mod queue;
mod share;
mod worms;

use super::calendar::Calendar;
use super::forward::Forwarders;
use super::geometry::{Direction, MeshGeometry};
use super::record::Recorder;
use super::timing::{
    Delivery, LETTER_WORDS_MAX, Letter, MeshCounters, MeshTiming, Priority, ROW_WORDS, Wires,
};
use super::{ForwardPolicy, SendError};
use queue::WormQueues;
use worms::{Hop, Worm, WormChannel, WormTable};

/// Channels of a node: eight of each priority.
const CHANNELS_PER_NODE: u32 = 16;
/// No worm.
const NONE: u32 = u32::MAX;
/// Messages in the mesh or waiting to enter it, at most.
pub const LETTERS_MAX: usize = 1 << 22;

/// What happens in a cycle, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CycleStep {
    /// A forwarder's queue gets room.
    Room,
    /// A queue has been spilled.
    Spilled,
    /// A head requests its next channel.
    Ask,
    /// A tail is in its queue.
    Deliver,
}

/// Kind above, then 38 bits that order, then 24 bits of a place.
fn entry(kind: CycleStep, order: u64, place: u32) -> u64 {
    debug_assert!(place < 1 << 24);
    (kind as u64) << 62 | (order & ((1 << 38) - 1)) << 24 | u64::from(place)
}

fn parse(entry: u64) -> (CycleStep, u64, u32) {
    let kind = match entry >> 62 {
        0 => CycleStep::Room,
        1 => CycleStep::Spilled,
        2 => CycleStep::Ask,
        _ => CycleStep::Deliver,
    };
    (kind, entry >> 24 & ((1 << 38) - 1), (entry & ((1 << 24) - 1)) as u32)
}

fn channel_of(node: u32, level: Priority, direction: Direction) -> u32 {
    node * CHANNELS_PER_NODE + level as u32 * 8 + direction as u32
}

/// The node, priority and direction of a channel.
pub(super) fn describe(channel: u32) -> (u32, Priority, Direction) {
    let level = if channel & 8 == 0 { Priority::Normal } else { Priority::High };
    (channel / CHANNELS_PER_NODE, level, Direction::ALL[(channel & 7) as usize])
}

fn queue_of(node: u32, level: Priority) -> u32 {
    node * 2 + level as u32
}

/// The words that a message takes in a queue.
pub(super) fn rows(words: u32) -> u32 {
    words.next_multiple_of(ROW_WORDS)
}

/// The mesh, its messages and its queues. Time is in cycles.
#[derive(Debug)]
pub struct Mesh {
    geometry: MeshGeometry,
    timing: MeshTiming,
    forwarders: Forwarders,
    calendar: Calendar,
    pub(super) channels: Vec<WormChannel>,
    pub(super) worms: WormTable,
    pub(super) queues: WormQueues,
    numbers: u64,
    counters: MeshCounters,
    /// Channels that go to worms: work of one event.
    grants: Vec<(u32, u32, u64)>,
    due: Vec<u64>,
    pub(super) recorder: Option<Box<Recorder>>,
}

impl Mesh {
    /// An empty mesh.
    pub fn new(geometry: MeshGeometry, timing: MeshTiming, policy: ForwardPolicy) -> Self {
        timing.check();
        let nodes = geometry.nodes();
        let empty = WormChannel {
            free_at: 0,
            owner: NONE,
            occupied: false,
            first_waiter: NONE,
            last_waiter: NONE,
        };
        Self {
            // Into the mesh, out of it, and the links between.
            worms: WormTable::new(geometry.diameter() as usize + 2),
            timing,
            forwarders: Forwarders::new(policy),
            calendar: Calendar::new(),
            channels: vec![empty; (nodes * CHANNELS_PER_NODE) as usize],
            queues: WormQueues::new(nodes),
            numbers: 0,
            counters: MeshCounters::default(),
            grants: Vec::new(),
            due: Vec::new(),
            recorder: None,
            geometry,
        }
    }

    /// Its nodes and links.
    pub fn geometry(&self) -> &MeshGeometry {
        &self.geometry
    }

    /// Its parameters.
    pub fn timing(&self) -> &MeshTiming {
        &self.timing
    }

    /// What it has done.
    pub fn counters(&self) -> MeshCounters {
        self.counters
    }

    /// Messages that were sent and have not been delivered. Those of a row count once their turn
    /// has come.
    pub fn in_flight(&self) -> u64 {
        self.worms.len() as u64
    }

    /// The first cycle that is not over.
    pub fn now(&self) -> u64 {
        self.calendar.now()
    }

    /// The next cycle in which anything happens.
    pub fn next_cycle(&self) -> Option<u64> {
        self.calendar.next()
    }

    /// Records load and messages from now on.
    pub fn record(&mut self, mut recorder: Recorder) {
        recorder.begin(self.calendar.now(), self.numbers);
        self.recorder = Some(Box::new(recorder));
    }

    /// Who passes on what cannot be sent directly.
    pub fn policy(&self) -> ForwardPolicy {
        self.forwarders.policy()
    }

    /// The handlers take a delivered message out of its queue in `cycle`.
    pub fn take(&mut self, delivery: &Delivery, cycle: u64) {
        if let Some(recorder) = &mut self.recorder {
            recorder.taken(delivery, cycle);
        }
        self.consume(delivery.to, delivery.priority, delivery.words, cycle);
    }

    /// What was recorded.
    pub fn recorder(&self) -> Option<&Recorder> {
        self.recorder.as_deref()
    }

    /// Sends a letter in `cycle`, or in the first that is not over; the number of its (first)
    /// message.
    pub fn send(&mut self, cycle: u64, letter: Letter) -> Result<u64, SendError> {
        let via = self.forwarders.via(&self.geometry, letter.from, letter.to)?;
        self.check(&letter, via.is_some())?;
        let cycle = cycle.max(self.calendar.now());
        if let Some(recorder) = &mut self.recorder {
            recorder.sent(cycle, self.numbers, &letter, via);
        }
        let worm = self.make(cycle, letter, via);
        self.start(cycle, worm);
        Ok(worm.number)
    }

    /// Limits that hold for every machine, and those of this one's queues.
    pub(crate) fn check(&self, letter: &Letter, forwarded: bool) -> Result<(), SendError> {
        let words = letter.words.max(letter.last_words);
        let least = letter.words.min(letter.last_words);
        // A forwarded message has a header of its own with the true destination.
        let whole = words + u32::from(forwarded);
        if least == 0 || letter.count == 0 || whole > LETTER_WORDS_MAX {
            return Err(SendError::Words { words: whole });
        }
        match self.timing.queue_words {
            Some(queue_words) if rows(whole) > queue_words => {
                Err(SendError::QueueTooSmall { words: whole, queue_words })
            }
            _ if self.worms.len() >= LETTERS_MAX => Err(SendError::Busy),
            _ => Ok(()),
        }
    }

    /// The next message of a letter.
    fn make(&mut self, cycle: u64, letter: Letter, via: Option<u32>) -> Worm {
        let number = self.numbers;
        self.numbers += 1;
        self.counters.injected += 1;
        self.counters.forwarded += u64::from(via.is_some());
        let words = if letter.count == 1 { letter.last_words } else { letter.words };
        let (to, flits, level) = match via {
            // The handler of a forwarder runs at high priority.
            Some(via) => (via, self.timing.flits(words + 1), Priority::High),
            None => (letter.to, self.timing.flits(words), letter.priority),
        };
        Worm {
            at: letter.from,
            to,
            flits,
            window: (flits - 1) / self.timing.buffer_flits,
            crossed: 0,
            next: NONE,
            asked: cycle,
            stolen: 0,
            rival: u64::MAX,
            level,
            number,
            letter,
            sent: cycle,
            via,
            room: None,
        }
    }

    /// A worm will request its first channel.
    fn start(&mut self, cycle: u64, worm: Worm) {
        let number = worm.number;
        let slot = self.worms.insert(worm);
        self.calendar.push(cycle, entry(CycleStep::Ask, number, slot));
    }

    /// Lets time pass up to the end of `cycle`; what is delivered is added to `out`.
    pub fn advance(&mut self, cycle: u64, out: &mut Vec<Delivery>) {
        while let Some(next) = self.calendar.next().filter(|&next| next <= cycle) {
            self.advance_one(next, out);
        }
        if cycle >= self.calendar.now() {
            self.advance_one(cycle, out);
        }
    }

    /// The same, but ends with the first cycle in which something is delivered.
    pub fn advance_to_delivery(&mut self, cycle: u64, out: &mut Vec<Delivery>) {
        while let Some(next) = self.calendar.next().filter(|&next| next <= cycle) {
            self.advance_one(next, out);
            if !out.is_empty() {
                return;
            }
        }
    }

    fn advance_one(&mut self, cycle: u64, out: &mut Vec<Delivery>) {
        let mut due = std::mem::take(&mut self.due);
        self.calendar.take(cycle, &mut due);
        for &entry in &due {
            let (kind, order, place) = parse(entry);
            match kind {
                CycleStep::Ask => self.ask(place, cycle),
                CycleStep::Deliver => self.deliver(place, cycle, out),
                CycleStep::Room => self.make_room(place, order as u32, cycle),
                CycleStep::Spilled => self.spilled(place, cycle),
            }
        }
        self.due = due;
    }

    /// The head of a worm requests its next channel.
    fn ask(&mut self, slot: u32, cycle: u64) {
        let worm = self.worms.get_mut(slot);
        worm.asked = cycle;
        let channel = if worm.crossed == 0 {
            channel_of(worm.at, worm.level, Direction::In)
        } else {
            let (direction, next) = self.geometry.step(worm.at, worm.to);
            let channel = channel_of(worm.at, worm.level, direction);
            worm.at = next;
            channel
        };
        let state = &mut self.channels[channel as usize];
        if !state.occupied {
            let cycle = cycle.max(state.free_at);
            self.grants.push((slot, channel, cycle));
            return self.settle();
        }
        worm.next = NONE;
        let last = std::mem::replace(&mut state.last_waiter, slot);
        if last == NONE {
            state.first_waiter = slot;
        } else {
            self.worms.get_mut(last).next = slot;
        }
    }

    /// Gives away all channels that can be, which may free others.
    fn settle(&mut self) {
        while let Some((slot, channel, cycle)) = self.grants.pop() {
            let state = &mut self.channels[channel as usize];
            state.occupied = true;
            state.owner = slot;
            if channel & 7 == Direction::Out as u32 {
                self.admit(slot, channel, cycle);
            } else {
                self.cross(slot, channel, cycle);
            }
        }
    }

    /// The head crosses a channel that is its own now.
    fn cross(&mut self, slot: u32, channel: u32, cycle: u64) {
        let cycle = match self.timing.wires {
            Wires::Own => cycle,
            wires => self.share(slot, channel, cycle, wires),
        };
        let worm = self.worms.get_mut(slot);
        let index = worm.crossed;
        worm.crossed += 1;
        let (flits, window, asked) = (worm.flits, worm.window, worm.asked);
        // While the head waits the flits behind it catch up.
        worm.stolen = worm.stolen.saturating_sub(cycle - asked);
        let hop = Hop { cycle: cycle + worm.stolen, channel };
        self.worms.hops_mut(slot)[index as usize] = hop;
        self.counters.crossings += 1;
        self.counters.stalled_cycles += cycle - asked;
        if let Some(recorder) = &mut self.recorder {
            recorder.crossed(cycle, channel, flits, cycle - asked);
            if channel & 7 == Direction::Out as u32 {
                let (node, level, _) = describe(channel);
                let queue = queue_of(node, level);
                recorder.queued(cycle, queue, self.queues.all[queue as usize].used);
            }
        }
        if index == 0 {
            self.continue_row(slot, channel, cycle);
        }
        if channel & 7 == Direction::Out as u32 {
            return self.finish(slot);
        }
        let number = self.worms.get(slot).number;
        self.calendar.push(cycle + self.timing.hop_cycles, entry(CycleStep::Ask, number, slot));
        if index >= window {
            self.release(slot, index - window);
        }
    }

    /// The next message of a row waits for the one before, ahead of all others: a handler sends its
    /// messages before the next one of its level runs.
    fn continue_row(&mut self, slot: u32, channel: u32, cycle: u64) {
        let Worm { letter, via, room, .. } = *self.worms.get(slot);
        // The second leg starts at a forwarder: the row goes on where it began.
        if letter.count == 1 || room.is_some() {
            return;
        }
        let before = self.worms.get(slot).number;
        let next = self.make(cycle + 1, Letter { count: letter.count - 1, ..letter }, via);
        if let Some(recorder) = &mut self.recorder {
            recorder.continued(cycle + 1, next.number, before, &next.letter);
        }
        let next = self.worms.insert(next);
        let state = &mut self.channels[channel as usize];
        self.worms.get_mut(next).next = std::mem::replace(&mut state.first_waiter, next);
        if state.last_waiter == NONE {
            state.last_waiter = next;
        }
    }

    /// When the tail crosses channel `index` of the way is known now: see the module.
    fn release(&mut self, slot: u32, index: u32) {
        let worm = self.worms.get(slot);
        let start = index as usize;
        let last = start + (worm.crossed - 1 - index).min(worm.window) as usize;
        let mut rest = u64::from(worm.flits - 1);
        let mut tail = 0;
        for hop in &self.worms.hops(slot)[start..=last] {
            tail = tail.max(hop.cycle + rest);
            // Wraps at the end of the window only, when it is not used any more.
            rest = rest
                .wrapping_add(self.timing.credit_cycles)
                .wrapping_sub(u64::from(self.timing.buffer_flits));
        }
        self.free_channel(slot, index, tail);
    }

    fn free_channel(&mut self, slot: u32, index: u32, tail: u64) {
        if index == 0
            && let Some(queue) = self.worms.get(slot).room
        {
            // All of it has left the forwarder.
            let words = rows(self.worms.get(slot).letter_words() + 1);
            self.calendar.push(tail + 1, entry(CycleStep::Room, u64::from(words), queue));
        }
        let channel = self.worms.hops(slot)[index as usize].channel;
        let state = &mut self.channels[channel as usize];
        let free_at = tail + 1 + self.timing.gap_cycles;
        state.free_at = free_at;
        let first = state.first_waiter;
        if first == NONE {
            state.occupied = false;
            return;
        }
        state.first_waiter = self.worms.get(first).next;
        if state.first_waiter == NONE {
            state.last_waiter = NONE;
        }
        self.grants.push((first, channel, free_at));
    }

    /// The head is in the queue: from now on nothing stops the tail.
    fn finish(&mut self, slot: u32) {
        let worm = *self.worms.get(slot);
        let last = worm.crossed - 1;
        let flits = u64::from(worm.flits - 1);
        let mut tail = 0;
        for index in (last.saturating_sub(worm.window)..=last).rev() {
            let buffered = tail + self.timing.credit_cycles;
            tail = (self.worms.hops(slot)[index as usize].cycle + flits)
                .max(buffered.saturating_sub(u64::from(self.timing.buffer_flits)));
            self.free_channel(slot, index, tail);
        }
        let head = self.worms.hops(slot)[last as usize].cycle;
        let in_queue = head + u64::from(self.timing.header_flits) + self.timing.interface_cycles;
        match worm.via {
            Some(via) if worm.room.is_none() => {
                self.worms.free(slot);
                self.pass_on(worm, via, in_queue + self.timing.forward_cycles);
            }
            _ => {
                let tail = head + flits + 1 + self.timing.interface_cycles;
                self.calendar.push(tail, entry(CycleStep::Deliver, worm.number, slot));
            }
        }
    }

    /// The second leg, from a forwarder. Its flits come in as fast as they go out.
    ///
    /// It has normal priority whatever the message had: then first legs wait for second legs and
    /// those for nothing but handlers. With second legs of high priority the forwarders of two disk
    /// nodes soon wait for each other: checkpoints of seven writers on eight disk nodes stood
    /// still.
    fn pass_on(&mut self, worm: Worm, via: u32, cycle: u64) {
        let flits = self.timing.flits(worm.letter_words());
        let leg = Worm {
            at: via,
            to: worm.letter.to,
            flits,
            window: (flits - 1) / self.timing.buffer_flits,
            crossed: 0,
            stolen: 0,
            rival: u64::MAX,
            level: Priority::Normal,
            room: Some(queue_of(via, Priority::High)),
            ..worm
        };
        self.start(cycle, leg);
    }

    fn deliver(&mut self, slot: u32, cycle: u64, out: &mut Vec<Delivery>) {
        let worm = *self.worms.get(slot);
        self.worms.free(slot);
        self.counters.delivered += 1;
        let body = u64::from(worm.flits - self.timing.header_flits);
        let delivery = Delivery {
            cycle,
            number: worm.number,
            from: worm.letter.from,
            to: worm.letter.to,
            priority: worm.level,
            words: worm.letter_words(),
            sent: worm.sent,
            head: cycle - body,
            tag: worm.letter.tag,
            via: worm.via,
            last: worm.letter.count == 1,
        };
        if let Some(recorder) = &mut self.recorder {
            recorder.delivered(&delivery);
        }
        out.push(delivery);
    }
}
