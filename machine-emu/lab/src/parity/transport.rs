//! One-sided writes between ring buffers: credits, tails, completions, and what a dead node loses.
//!
//! Actors name a slot and a receiver. The transport holds a block back until the receiver has a
//! slot free, copies the words when the last byte has arrived, and passes the tails. It is the only
//! place that copies: over a wire, or into a medium. Processors write only what they XOR.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use super::block::{ShardKey, xor_into};
use super::kernel::{ParityTiming, PortId, PortTraffic, UnitId, VirtualTime};
use super::ring::{ReceiveRing, SendCredit, SlotTail};

/// An actor, by its number in the world.
pub(super) type ActorId = usize;

/// What the blocks of a ring are for. Each has credits of its own, and a block waits only for a
/// later kind: so pipelines that turn round a circle cannot wait for one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RingKind {
    /// To be encoded by the receiver.
    Deposit,
    /// A block of data that takes part in a pipeline.
    Pipeline,
    /// Partial parity before this place of its pipeline.
    Relay(usize),
    /// To be stored, and no more.
    Store,
}

/// A ring, at its receiver. Another epoch has other rings: what is left of the old is void.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RingKey {
    pub(super) writer: usize,
    pub(super) epoch: u32,
    pub(super) from: ActorId,
    pub(super) kind: RingKind,
}

/// A slot of a ring, as long as it holds this block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotRef {
    pub(super) actor: ActorId,
    pub(super) ring: RingKey,
    pub(super) serial: u64,
}

/// Where the words of a block are.
#[derive(Clone, Debug)]
pub(super) enum PutSource {
    Slot(SlotRef),
    /// Memory that nothing writes any more.
    Memory(Rc<[u64]>),
}

/// What an actor may learn.
pub(super) enum Occurrence<M> {
    /// A block has come. The receiver gives its slot tails at once.
    Arrived {
        slot: SlotRef,
        key: ShardKey,
    },
    /// A block has left the port of the actor.
    Departed {
        actor: ActorId,
    },
    /// The actor has got a credit.
    Credited {
        actor: ActorId,
    },
    Message {
        to: ActorId,
        message: M,
    },
    /// The processor has had the time for `work`.
    Computed {
        actor: ActorId,
        work: XorWork,
    },
    /// The medium has taken a block.
    Stored {
        actor: ActorId,
        epoch: u32,
        key: ShardKey,
        words: Rc<[u64]>,
    },
    Timer {
        actor: ActorId,
        id: u64,
    },
    /// Of the schedule of the world.
    Fault {
        number: usize,
    },
}

/// An XOR that a processor does.
#[derive(Clone, Copy, Debug)]
pub(super) struct XorWork {
    /// Partial parity; the result goes in its place.
    pub(super) partial: Option<SlotRef>,
    /// The other operand, unless it is memory of the actor.
    pub(super) data: Option<SlotRef>,
    pub(super) key: ShardKey,
}

struct BlockPut {
    source: PutSource,
    sender: (ActorId, u32),
    receiver_boot: u32,
    slot: SlotRef,
    key: ShardKey,
}

enum TransportEvent<M> {
    Departed { actor: ActorId },
    Put(Box<BlockPut>),
    Completed { source: SlotRef },
    Credit { receiver: ActorId, ring: RingKey, tail: u64 },
    Message { to: ActorId, message: M },
    Computed { actor: ActorId, boot: u32, work: XorWork },
    Stored { actor: ActorId, boot: u32, epoch: u32, key: ShardKey, source: PutSource },
    Timer { actor: ActorId, boot: u32, id: u64 },
    Fault { number: usize },
}

struct RingEndpoint {
    boot: u32,
    is_up: bool,
    ports: Vec<PortId>,
    processor: UnitId,
    medium: UnitId,
    rings: BTreeMap<RingKey, ReceiveRing>,
    /// The epoch of each writer that the actor knows; blocks of earlier ones are dropped.
    epochs: BTreeMap<usize, u32>,
}

/// The way to one ring of one receiver.
struct Outlet {
    credit: SendCredit,
    receiver_boot: u32,
    queue: VecDeque<(PutSource, ShardKey)>,
}

/// Bytes that were written to memory, by what wrote them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct MemoryCounters {
    pub(super) by_wires: u64,
    pub(super) by_processors: u64,
    pub(super) by_media: u64,
    /// Writes to slots that were in use, and reads of blocks that were not there any more.
    pub(super) violations: u64,
}

/// The shape of a transport.
#[derive(Clone, Copy, Debug)]
pub(super) struct RingShape {
    pub(super) block: usize,
    /// Slots of a ring.
    pub(super) slots: usize,
    /// Senders ignore the tails of their receivers: a planted fault.
    pub(super) ignores_tails: bool,
}

/// All wires, rings and processors.
pub(super) struct RingTransport<M> {
    time: VirtualTime<TransportEvent<M>>,
    shape: RingShape,
    endpoints: Vec<RingEndpoint>,
    outlets: BTreeMap<(ActorId, ActorId, RingKey), Outlet>,
    /// The ports of a link that is not between the first ports of two actors.
    routes: BTreeMap<(ActorId, ActorId), (usize, usize)>,
    counters: MemoryCounters,
}

impl<M> RingTransport<M> {
    pub(super) fn new(timing: ParityTiming, shape: RingShape) -> Self {
        Self {
            time: VirtualTime::new(timing),
            shape,
            endpoints: Vec::new(),
            outlets: BTreeMap::new(),
            routes: BTreeMap::new(),
            counters: MemoryCounters::default(),
        }
    }

    /// The next actor, with some ports.
    pub(super) fn add(&mut self, ports: usize) {
        let ports = (0..ports).map(|_| self.time.add_port()).collect();
        let (processor, medium) = (self.time.add_unit(), self.time.add_unit());
        let (rings, epochs) = (BTreeMap::new(), BTreeMap::new());
        let (boot, is_up) = (1, true);
        self.endpoints.push(RingEndpoint { boot, is_up, ports, processor, medium, rings, epochs });
    }

    /// Blocks from one actor to the other use these of their ports.
    pub(super) fn route(&mut self, from: ActorId, to: ActorId, ports: (usize, usize)) {
        self.routes.insert((from, to), ports);
    }

    pub(super) fn now_ps(&self) -> u64 {
        self.time.now_ps()
    }

    pub(super) fn timing(&self) -> ParityTiming {
        self.time.timing
    }

    pub(super) fn counters(&self) -> MemoryCounters {
        self.counters
    }

    pub(super) fn boot(&self, actor: ActorId) -> u32 {
        self.endpoints[actor].boot
    }

    pub(super) fn traffic(&self, actor: ActorId) -> Vec<PortTraffic> {
        self.endpoints[actor].ports.iter().map(|port| self.time.traffic(*port)).collect()
    }

    /// May a block leave now?
    pub(super) fn has_credit(&mut self, from: ActorId, to: ActorId, ring: RingKey) -> bool {
        let ignores_tails = self.shape.ignores_tails;
        let outlet = self.outlet(from, to, ring);
        outlet.queue.is_empty() && (outlet.credit.is_open() || ignores_tails)
    }

    fn outlet(&mut self, from: ActorId, to: ActorId, ring: RingKey) -> &mut Outlet {
        let (slots, receiver_boot) = (self.shape.slots, self.boot(to));
        self.outlets.entry((from, to, ring)).or_insert_with(|| Outlet {
            credit: SendCredit::new(slots),
            receiver_boot,
            queue: VecDeque::new(),
        })
    }

    /// Sends a block as soon as the receiver has a free slot. A slot that is its source has a tail
    /// of the relay, which passes when the block has arrived.
    pub(super) fn send(
        &mut self,
        from: ActorId,
        to: ActorId,
        ring: RingKey,
        key: ShardKey,
        source: PutSource,
    ) {
        self.outlet(from, to, ring).queue.push_back((source, key));
        self.pump(from, to, ring);
    }

    fn pump(&mut self, from: ActorId, to: ActorId, ring: RingKey) {
        let ignores_tails = self.shape.ignores_tails;
        let bytes = self.shape.block as u64;
        let sender = (from, self.boot(from));
        loop {
            let outlet = self.outlet(from, to, ring);
            if !(outlet.credit.is_open() || ignores_tails) {
                return;
            }
            let Some((source, key)) = outlet.queue.pop_front() else { return };
            let slot = SlotRef { actor: to, ring, serial: outlet.credit.take() };
            let receiver_boot = outlet.receiver_boot;
            let (out, into) = self.routes.get(&(from, to)).copied().unwrap_or_default();
            let ports = (self.endpoints[from].ports[out], self.endpoints[to].ports[into]);
            let put = BlockPut { source, sender, receiver_boot, slot, key };
            let departed = TransportEvent::Departed { actor: from };
            let arrived = TransportEvent::Put(Box::new(put));
            self.time.transmit(ports.0, ports.1, bytes, departed, arrived);
        }
    }

    /// Sends a control message. Messages to the dead are lost.
    pub(super) fn tell(&mut self, to: ActorId, message: M) {
        self.time.control(TransportEvent::Message { to, message });
    }

    pub(super) fn timer(&mut self, actor: ActorId, delay_ps: u64, id: u64) {
        let boot = self.boot(actor);
        self.time.after(delay_ps, TransportEvent::Timer { actor, boot, id });
    }

    pub(super) fn fault(&mut self, delay_ps: u64, number: usize) {
        self.time.after(delay_ps, TransportEvent::Fault { number });
    }

    /// Lets the processor of an actor take the time of an XOR over one block.
    pub(super) fn compute(&mut self, actor: ActorId, work: XorWork) {
        let rate = self.timing().xor_rate;
        let duration_ps = ParityTiming::duration_ps(self.shape.block as u64, rate);
        let (unit, boot) = (self.endpoints[actor].processor, self.boot(actor));
        self.time.work(unit, duration_ps, TransportEvent::Computed { actor, boot, work });
    }

    /// Lets the medium take a block.
    pub(super) fn store(&mut self, actor: ActorId, epoch: u32, key: ShardKey, source: PutSource) {
        let rate = self.timing().medium_rate;
        let duration_ps = ParityTiming::duration_ps(self.shape.block as u64, rate);
        let (unit, boot) = (self.endpoints[actor].medium, self.boot(actor));
        let stored = TransportEvent::Stored { actor, boot, epoch, key, source };
        self.time.work(unit, duration_ps, stored);
    }

    fn ring(&mut self, slot: SlotRef) -> Option<&mut ReceiveRing> {
        self.endpoints[slot.actor].rings.get_mut(&slot.ring)
    }

    /// Gives tails to a slot.
    pub(super) fn hold(&mut self, slot: SlotRef, tails: &[SlotTail]) {
        let Some(ring) = self.ring(slot) else { return };
        let before = ring.tail();
        ring.hold(slot.serial, tails);
        let tail = ring.tail();
        if tail != before {
            self.report_tail(slot, tail);
        }
    }

    /// A tail passes a slot; the sender learns of it.
    pub(super) fn pass(&mut self, slot: SlotRef, tail: SlotTail) {
        let moved = self.ring(slot).and_then(|ring| ring.pass(slot.serial, tail));
        if let Some(tail) = moved {
            self.report_tail(slot, tail);
        }
    }

    fn report_tail(&mut self, slot: SlotRef, tail: u64) {
        let credit = TransportEvent::Credit { receiver: slot.actor, ring: slot.ring, tail };
        self.time.control(credit);
    }

    /// The words of a block, if its ring is still there.
    pub(super) fn words(&mut self, slot: SlotRef) -> Option<Rc<[u64]>> {
        let (words, is_there) = self.ring(slot)?.words(slot.serial);
        let words = Rc::from(words.as_slice());
        self.counters.violations += u64::from(!is_there);
        Some(words)
    }

    /// XORs a block into the slot of another, which no reader but the XOR may need.
    pub(super) fn xor_slots(&mut self, target: SlotRef, other: SlotRef) {
        let Some((words, is_there)) = self.ring(other).map(|ring| {
            let (words, is_there) = ring.words(other.serial);
            (std::mem::take(words), is_there)
        }) else {
            return;
        };
        let mut is_sound = is_there;
        if let Some(ring) = self.ring(target) {
            is_sound &= ring.readers(target.serial) == 1;
            let (into, is_there) = ring.words(target.serial);
            is_sound &= is_there;
            xor_into(into, &words);
        }
        if let Some(ring) = self.ring(other) {
            *ring.words(other.serial).0 = words;
        }
        self.counters.violations += u64::from(!is_sound);
        self.count_xor();
    }

    /// One block has been written by a processor.
    pub(super) fn count_xor(&mut self) {
        self.counters.by_processors += self.shape.block as u64;
    }

    /// Drops what an actor has of a writer's epochs before this one.
    pub(super) fn leave_epochs_before(&mut self, actor: ActorId, writer: usize, epoch: u32) {
        let is_old = |ring: &RingKey| ring.writer == writer && ring.epoch < epoch;
        self.endpoints[actor].rings.retain(|ring, _| !is_old(ring));
        self.endpoints[actor].epochs.insert(writer, epoch);
        self.outlets.retain(|(from, _, ring), _| *from != actor || !is_old(ring));
    }

    /// The actor dies: what it has in memory is lost, its connections break.
    pub(super) fn kill(&mut self, actor: ActorId) {
        let endpoint = &mut self.endpoints[actor];
        endpoint.is_up = false;
        endpoint.boot += 1;
        endpoint.rings.clear();
        endpoint.epochs.clear();
        self.outlets.retain(|(from, _, _), _| *from != actor);
    }

    pub(super) fn restart(&mut self, actor: ActorId) {
        self.endpoints[actor].is_up = true;
    }

    /// The next thing that an actor learns.
    pub(super) fn next(&mut self) -> Option<Occurrence<M>> {
        loop {
            let event = self.time.next()?;
            if let Some(occurrence) = self.handle(event) {
                return Some(occurrence);
            }
        }
    }

    fn handle(&mut self, event: TransportEvent<M>) -> Option<Occurrence<M>> {
        let is_current = |transport: &Self, actor: ActorId, boot| {
            transport.endpoints[actor].is_up && transport.boot(actor) == boot
        };
        match event {
            TransportEvent::Departed { actor } => Some(Occurrence::Departed { actor }),
            TransportEvent::Put(put) => self.land(*put),
            TransportEvent::Completed { source } => {
                self.pass(source, SlotTail::Relay);
                None
            }
            TransportEvent::Credit { receiver, ring, tail } => {
                let outlet = self.outlets.get_mut(&(ring.from, receiver, ring))?;
                outlet.credit.learn(tail);
                self.pump(ring.from, receiver, ring);
                Some(Occurrence::Credited { actor: ring.from })
            }
            TransportEvent::Message { to, message } => {
                self.endpoints[to].is_up.then_some(Occurrence::Message { to, message })
            }
            TransportEvent::Computed { actor, boot, work } => {
                is_current(self, actor, boot).then_some(Occurrence::Computed { actor, work })
            }
            TransportEvent::Stored { actor, boot, epoch, key, source } => {
                if !is_current(self, actor, boot) {
                    return None;
                }
                let words = match source {
                    PutSource::Memory(words) => words,
                    PutSource::Slot(slot) => {
                        let words = self.words(slot)?;
                        self.pass(slot, SlotTail::Medium);
                        words
                    }
                };
                self.counters.by_media += self.shape.block as u64;
                Some(Occurrence::Stored { actor, epoch, key, words })
            }
            TransportEvent::Timer { actor, boot, id } => {
                is_current(self, actor, boot).then_some(Occurrence::Timer { actor, id })
            }
            TransportEvent::Fault { number } => Some(Occurrence::Fault { number }),
        }
    }

    /// The last byte of a block has come. The words are read only now: a source that was
    /// overwritten meanwhile sends what is there now, as hardware would.
    fn land(&mut self, put: BlockPut) -> Option<Occurrence<M>> {
        let BlockPut { source, sender, receiver_boot, slot, key } = put;
        let receiver = &self.endpoints[slot.actor];
        let is_connected = receiver.is_up && receiver.boot == receiver_boot;
        let epoch = receiver.epochs.get(&slot.ring.writer).copied().unwrap_or_default();
        if !is_connected || self.boot(sender.0) != sender.1 || slot.ring.epoch < epoch {
            return None;
        }
        let words = match &source {
            PutSource::Memory(words) => Rc::clone(words),
            PutSource::Slot(source) => self.words(*source)?,
        };
        let slots = self.shape.slots;
        let rings = &mut self.endpoints[slot.actor].rings;
        let ring = rings.entry(slot.ring).or_insert_with(|| ReceiveRing::new(slots));
        self.counters.violations += u64::from(!ring.land(slot.serial, &words));
        self.counters.by_wires += self.shape.block as u64;
        if let PutSource::Slot(source) = source {
            // The sender learns of the arrival one delay later.
            self.time.control(TransportEvent::Completed { source });
        }
        Some(Occurrence::Arrived { slot, key })
    }
}
