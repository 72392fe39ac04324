//! The mesh flit by flit, cycle by cycle: slow, and plain enough to be believed.
//!
//! It judges [`super::Mesh`]: with a wire of its own for every channel both deliver every message
//! in the same cycle. Where priorities or directions share a wire only this one is exact. It knows
//! no forwarders and no spilling: each leg is a message.
//!
//! Flit k of F crosses channel j of its way in the first cycle t in which: the worm holds j; flit
//! k-1 has crossed; the flit has crossed j-1 at least d before; flit k-B has crossed j+1 at least c
//! before; and the wire is free, or the flit has the better claim to it.

use std::collections::VecDeque;

use super::SendError;
use super::calendar::Calendar;
use super::geometry::{Direction, MeshGeometry};
use super::timing::{Delivery, Letter, MeshTiming, Priority, Wires};
use super::worm::rows;

/// Channels of a node, as in [`super::Mesh`].
const CHANNELS_PER_NODE: u32 = 16;
const SLOT_BITS: u32 = 24;

#[derive(Debug, Default)]
struct FlitChannel {
    owner: Option<u32>,
    free_at: u64,
    waiting: VecDeque<u32>,
}

#[derive(Debug)]
struct FlitWorm {
    letter: Letter,
    number: u64,
    sent: u64,
    flits: usize,
    way: Vec<u32>,
    /// Channels that it got, and how many of them its tail has crossed.
    granted: usize,
    released: usize,
    /// Flits that have crossed each channel.
    crossed: Vec<usize>,
    /// When each did: `flits` for each channel of the way.
    times: Vec<u64>,
}

impl FlitWorm {
    /// Whether its next flit may cross channel `index` in `cycle`, if the wire is free.
    fn ready(&self, index: usize, cycle: u64, timing: &MeshTiming) -> bool {
        let flit = self.crossed[index];
        if flit == self.flits {
            return false;
        }
        let here = |channel: usize, flit: usize| self.times[channel * self.flits + flit];
        let comes = index == 0
            || self.crossed[index - 1] > flit && here(index - 1, flit) + timing.hop_cycles <= cycle;
        let buffer = timing.buffer_flits as usize;
        let fits = index + 1 == self.way.len()
            || flit < buffer
            || self.crossed[index + 1] > flit - buffer
                && here(index + 1, flit - buffer) + timing.credit_cycles <= cycle;
        comes && fits
    }
}

/// A flit that could cross a shared wire: its wire, whether it is of low priority, whether its
/// direction had the wire last, its worm and the channel of its way.
type WireClaim = (u32, bool, bool, u32, usize);

/// The mesh by flits. Time is in cycles.
#[derive(Debug)]
pub struct FlitMesh {
    geometry: MeshGeometry,
    timing: MeshTiming,
    calendar: Calendar,
    channels: Vec<FlitChannel>,
    worms: Vec<Option<FlitWorm>>,
    free: Vec<u32>,
    active: Vec<u32>,
    /// Channels with waiters.
    wanted: Vec<u32>,
    /// Words in each queue.
    queues: Vec<u32>,
    /// The direction that had each shared wire last.
    turn: Vec<u32>,
    claims: Vec<WireClaim>,
    due: Vec<u64>,
    numbers: u64,
}

impl FlitMesh {
    /// An empty mesh.
    pub fn new(geometry: MeshGeometry, timing: MeshTiming) -> Self {
        timing.check();
        let channels = (geometry.nodes() * CHANNELS_PER_NODE) as usize;
        Self {
            timing,
            calendar: Calendar::new(),
            channels: (0..channels).map(|_| FlitChannel::default()).collect(),
            worms: Vec::new(),
            free: Vec::new(),
            active: Vec::new(),
            wanted: Vec::new(),
            queues: vec![0; geometry.nodes() as usize * 2],
            turn: vec![0; channels],
            claims: Vec::new(),
            due: Vec::new(),
            numbers: 0,
            geometry,
        }
    }

    /// Messages under way.
    pub fn in_flight(&self) -> u64 {
        (self.worms.len() - self.free.len()) as u64
    }

    /// The first cycle in which anything may happen.
    pub fn next_cycle(&self) -> Option<u64> {
        if self.active.is_empty() { self.calendar.next() } else { Some(self.calendar.now()) }
    }

    /// Sends a single message in `cycle`, or in the first that is not over; its number.
    pub fn send(&mut self, cycle: u64, letter: Letter) -> Result<u64, SendError> {
        let steps = self.geometry.route(letter.from, letter.to)?;
        let mut at = letter.from;
        let mut way = Vec::with_capacity(steps.len() + 2);
        let level = letter.priority as u32 * 8;
        let mut add = |node: u32, step: Direction| {
            way.push(node * CHANNELS_PER_NODE + level + step as u32);
        };
        add(at, Direction::In);
        for step in steps {
            add(at, step);
            at = self.geometry.neighbour(at, step).unwrap_or(at);
        }
        add(at, Direction::Out);
        let flits = self.timing.flits(letter.last_words) as usize;
        let cycle = cycle.max(self.calendar.now());
        let number = self.numbers;
        self.numbers += 1;
        let worm = FlitWorm {
            letter,
            number,
            sent: cycle,
            flits,
            granted: 0,
            released: 0,
            crossed: vec![0; way.len()],
            times: vec![0; way.len() * flits],
            way,
        };
        let slot = if let Some(slot) = self.free.pop() {
            self.worms[slot as usize] = Some(worm);
            slot
        } else {
            self.worms.push(Some(worm));
            self.worms.len() as u32 - 1
        };
        self.calendar.push(cycle, number << SLOT_BITS | u64::from(slot));
        Ok(number)
    }

    /// The queue of `node` has `words` more words free.
    pub fn consume(&mut self, node: u32, priority: Priority, words: u32) {
        if self.timing.queue_words.is_some() {
            self.queues[node as usize * 2 + priority as usize] -= rows(words);
        }
    }

    /// Lets time pass up to the end of `cycle`.
    pub fn advance(&mut self, cycle: u64, out: &mut Vec<Delivery>) {
        while let Some(next) = self.next_cycle().filter(|&next| next <= cycle) {
            self.step(next, out);
        }
        if cycle >= self.calendar.now() {
            self.step(cycle, out);
        }
    }

    fn step(&mut self, cycle: u64, out: &mut Vec<Delivery>) {
        let mut due = std::mem::take(&mut self.due);
        self.calendar.take(cycle, &mut due);
        for entry in due.drain(..) {
            let slot = (entry & ((1 << SLOT_BITS) - 1)) as u32;
            let Some(worm) = &self.worms[slot as usize] else { continue };
            let channel = worm.way[worm.granted];
            if worm.granted == 0 {
                self.active.push(slot);
            }
            let waiting = &mut self.channels[channel as usize].waiting;
            waiting.push_back(slot);
            if waiting.len() == 1 {
                self.wanted.push(channel);
            }
        }
        self.due = due;
        self.grant(cycle);
        self.cross(cycle, out);
    }

    /// Free channels go to the first that wait for them.
    fn grant(&mut self, cycle: u64) {
        let mut wanted = std::mem::take(&mut self.wanted);
        wanted.retain(|&index| {
            let channel = &mut self.channels[index as usize];
            let Some(&slot) = channel.waiting.front() else { return false };
            let free = channel.owner.is_none() && channel.free_at <= cycle;
            if let Some(worm) = self.worms[slot as usize].as_mut().filter(|_| free) {
                let last = worm.granted + 1 == worm.way.len();
                let words = rows(worm.letter.last_words);
                let Letter { to, priority, .. } = worm.letter;
                let queue = &mut self.queues[to as usize * 2 + priority as usize];
                let limit = self.timing.queue_words.unwrap_or(u32::MAX);
                if !last || *queue + words <= limit {
                    *queue += if last && limit < u32::MAX { words } else { 0 };
                    worm.granted += 1;
                    channel.owner = Some(slot);
                    channel.waiting.pop_front();
                }
            }
            !channel.waiting.is_empty()
        });
        self.wanted = wanted;
    }

    /// Every flit that can cross does, one for each wire.
    fn cross(&mut self, cycle: u64, out: &mut Vec<Delivery>) {
        let mut claims = std::mem::take(&mut self.claims);
        claims.clear();
        for &slot in &self.active {
            let Some(worm) = &self.worms[slot as usize] else { continue };
            for index in worm.released..worm.granted {
                if worm.ready(index, cycle, &self.timing) {
                    claims.push(self.claim(worm, slot, index));
                }
            }
        }
        if self.timing.wires != Wires::Own {
            claims.sort_unstable();
            claims.dedup_by_key(|claim| claim.0);
        }
        for &(wire, _, _, slot, index) in &claims {
            let Some(worm) = &self.worms[slot as usize] else { continue };
            self.turn[wire as usize] = worm.way[index] & !8;
            self.move_flit(slot, index, cycle, out);
        }
        self.claims = claims;
        self.active.retain(|&slot| self.worms[slot as usize].is_some());
    }

    fn claim(&self, worm: &FlitWorm, slot: u32, index: usize) -> WireClaim {
        let channel = worm.way[index];
        let low = worm.letter.priority == Priority::Normal;
        let one = channel & !8;
        let wire = match self.timing.wires {
            Wires::Own => channel,
            Wires::Priorities => one,
            Wires::Links => {
                let (node, direction) = (channel / CHANNELS_PER_NODE, channel & 7);
                let direction = Direction::ALL[direction as usize];
                let back = self.geometry.neighbour(node, direction);
                let back =
                    back.map(|other| other * CHANNELS_PER_NODE + direction.opposite() as u32);
                back.map_or(one, |back| back.min(one))
            }
        };
        (wire, low, self.turn[wire as usize] == one, slot, index)
    }

    fn move_flit(&mut self, slot: u32, index: usize, cycle: u64, out: &mut Vec<Delivery>) {
        let Some(worm) = &mut self.worms[slot as usize] else { return };
        let flit = worm.crossed[index];
        worm.crossed[index] += 1;
        worm.times[index * worm.flits + flit] = cycle;
        let last = index + 1 == worm.way.len();
        if flit == 0 && !last {
            let entry = worm.number << SLOT_BITS | u64::from(slot);
            self.calendar.push(cycle + self.timing.hop_cycles, entry);
        }
        if flit + 1 < worm.flits {
            return;
        }
        worm.released = index + 1;
        let channel = &mut self.channels[worm.way[index] as usize];
        channel.owner = None;
        channel.free_at = cycle + 1 + self.timing.gap_cycles;
        if !last {
            return;
        }
        let Letter { from, to, priority, last_words: words, tag, .. } = worm.letter;
        let body = worm.flits as u64 - u64::from(self.timing.header_flits);
        let (number, sent) = (worm.number, worm.sent);
        let cycle = cycle + 1 + self.timing.interface_cycles;
        let (head, via, last) = (cycle - body, None, true);
        let delivery =
            Delivery { cycle, number, from, to, priority, words, sent, head, tag, via, last };
        out.push(delivery);
        self.worms[slot as usize] = None;
        self.free.push(slot);
    }
}
