//! The network: what crosses nodes is only bytes, and any of it may be late, doubled or lost.
//!
//! A request is encoded, travels as a frame, is decoded and answered by the other node's host; the
//! reply comes back in the same way. Frames of one class between two nodes keep their order unless
//! a fault says otherwise; control frames and replies do not wait for bulk frames.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use bytes::Bytes;
use runtime::mail::{Envelope, Message};
use runtime::seed::Rng;
use runtime::wire::{BULK_LENGTH_MAX, Decoder, Encoder, HEAD_LENGTH_MAX};
use runtime::{Caller, Class, Table, Undelivered, hash};

use crate::events::WorldEvent;
use crate::kernel::{Kernel, rng_for};
use crate::slab::{KeyedSlab, SlabKey};
use crate::tasks::TaskKind;
use crate::trace::{FaultKind, TraceTag};
use crate::window::{TcpTiming, TcpWindow};

/// Frames on their way to one node, at most; past it a request is refused with `Busy`.
const INBOUND_FRAMES_MAX: u32 = 65_536;

/// Bytes of a frame besides head and payload: addresses, lengths, checksum.
const FRAME_HEADER_BYTES: usize = 64;

/// How long messages take. The delay of a frame is `latency_ns`, plus its bytes at
/// `picoseconds_per_byte` one after the other on each link, plus up to `jitter_ns`.
#[derive(Clone, Copy, Debug)]
pub struct NetworkTiming {
    /// What the first byte takes.
    pub latency_ns: u64,
    /// The inverse of the bandwidth of a link: 1000 is 1 GB/s.
    pub picoseconds_per_byte: u64,
    /// A random addition, at most.
    pub jitter_ns: u64,
    /// After this time the caller of a lost message gets `Lost`.
    pub lost_after_ns: u64,
}

impl Default for NetworkTiming {
    /// A good cluster: 2 us, 10 GB/s.
    fn default() -> Self {
        Self {
            latency_ns: 2_000,
            picoseconds_per_byte: 100,
            jitter_ns: 1_000,
            lost_after_ns: 500_000_000,
        }
    }
}

/// How long messages take on one link, in place of what holds for all.
#[derive(Clone, Copy, Debug)]
pub struct LinkTiming {
    /// See [`NetworkTiming::latency_ns`].
    pub latency_ns: u64,
    /// See [`NetworkTiming::picoseconds_per_byte`].
    pub picoseconds_per_byte: u64,
    /// The link is a TCP connection, whose window opens and closes.
    pub tcp: Option<TcpTiming>,
}

/// How often frames suffer, in parts per million.
#[derive(Clone, Copy, Debug, Default)]
pub struct NetworkFaults {
    /// The frame never arrives.
    pub loss_ppm: u32,
    /// The frame arrives twice: a handler runs twice.
    pub duplicate_ppm: u32,
    /// The frame does not keep its place in the order of its link.
    pub reorder_ppm: u32,
    /// Bytes change in transit; the checksum of the frame detects it, and the frame is dropped.
    pub corrupt_ppm: u32,
    /// The frame is late.
    pub delay_ppm: u32,
    /// For how long at most.
    pub delay_max_ns: u64,
}

/// A request that waits for its reply.
struct WaitingCall {
    from: u32,
    to: u32,
    /// The request and its reply.
    tolerance: FaultTolerance,
    message: Box<dyn Message>,
}

#[derive(Clone)]
enum FrameBody {
    Request { caller: Caller, protocol: u8 },
    Reply,
}

/// What travels.
#[derive(Clone)]
struct EmulatedFrame {
    from: u32,
    to: u32,
    class: Class,
    call: SlabKey,
    body: FrameBody,
    head: Vec<u8>,
    bulk: Bytes,
    /// See [`WaitingCall::tolerance`].
    tolerance: FaultTolerance,
    /// Computed where it matters: for frames that are going to be damaged.
    checksum: Option<u32>,
}

impl EmulatedFrame {
    fn bytes(&self) -> usize {
        FRAME_HEADER_BYTES + self.head.len() + self.bulk.len()
    }

    fn compute_checksum(&self) -> u32 {
        hash::crc32c(&self.head) ^ hash::crc32c(&self.bulk).rotate_left(1)
    }

    fn intact(&self) -> bool {
        self.checksum.is_none_or(|checksum| checksum == self.compute_checksum())
    }

    /// Flips one bit in transit.
    fn damage(&mut self, rng: &mut Rng) {
        self.checksum = Some(self.compute_checksum());
        let place = rng.index(self.head.len() + self.bulk.len());
        let flip = 1 << rng.below(8);
        if let Some(byte) = self.head.get_mut(place) {
            *byte ^= flip;
        } else {
            let mut bulk = self.bulk.to_vec();
            bulk[place - self.head.len()] ^= flip;
            self.bulk = bulk.into();
        }
    }

    fn digest(&self) -> u64 {
        hash::xxh3(&self.head) ^ hash::xxh3(&self.bulk).rotate_left(32)
    }
}

/// One direction between two nodes. Indexed by class: control, bulk.
#[derive(Clone, Copy, Default)]
struct NodeLink {
    /// When the wire is free again.
    free_ns: [u64; 2],
    /// When the last frame arrives.
    last_ns: [u64; 2],
    window: TcpWindow,
}

impl NodeLink {
    /// When the last byte of a frame has left. Bulk waits for everything, control for control.
    fn transmit(&mut self, class: Class, now_ns: u64, duration_ns: u64) -> u64 {
        let [control, bulk] = &mut self.free_ns;
        match class {
            Class::Control => {
                *control = now_ns.max(*control) + duration_ns;
                *control
            }
            Class::Bulk => {
                *bulk = now_ns.max(*control).max(*bulk) + duration_ns;
                *bulk
            }
        }
    }
}

/// The random faults that a request, and its reply, tolerate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultTolerance {
    /// None but delays.
    Nothing,
    /// That it is lost or damaged.
    Loss,
    /// That it is doubled, too.
    All,
}

/// The tolerance of a request, by its protocol and tag.
pub(crate) type ToleranceOf = Box<dyn Fn(u8, u8) -> FaultTolerance>;

/// What happens to one frame.
enum FrameFate {
    Arrives { at_ns: u64, twin_at_ns: Option<u64> },
    Lost,
}

/// All links, and what is on them.
pub(crate) struct NetworkState {
    pub(crate) timing: NetworkTiming,
    pub(crate) faults: NetworkFaults,
    /// The tolerance of requests; by default all faults.
    pub(crate) tolerance_of: Option<ToleranceOf>,
    /// Frames take their time in a mesh.
    is_mesh: bool,
    rng: Rng,
    links: Table<u64, NodeLink>,
    /// Links with a timing of their own.
    timings: BTreeMap<(u32, u32), LinkTiming>,
    cut: BTreeSet<(u32, u32)>,
    clogged: BTreeSet<u32>,
    /// Frames from or to a clogged node, in the order in which they were sent.
    blocked: Vec<EmulatedFrame>,
    frames: KeyedSlab<EmulatedFrame>,
    calls: KeyedSlab<WaitingCall>,
    inbound: Vec<u32>,
}

impl NetworkState {
    fn new(rng: Rng) -> Self {
        Self {
            timing: NetworkTiming::default(),
            faults: NetworkFaults::default(),
            tolerance_of: None,
            is_mesh: false,
            rng,
            links: Table::default(),
            timings: BTreeMap::new(),
            cut: BTreeSet::new(),
            clogged: BTreeSet::new(),
            blocked: Vec::new(),
            frames: KeyedSlab::default(),
            calls: KeyedSlab::default(),
            inbound: Vec::new(),
        }
    }

    /// One direction between two nodes has a timing of its own from now on.
    pub(crate) fn set_link_timing(&mut self, from: u32, to: u32, timing: LinkTiming) {
        self.timings.insert((from, to), timing);
    }

    pub(crate) fn forget_link_timings(&mut self) {
        self.timings.clear();
    }

    /// From now on a mesh says how long frames take; jitter is for networks that are not known as
    /// well.
    pub(crate) fn use_mesh(&mut self) {
        self.is_mesh = true;
        self.forget_link_timings();
        let lost_after_ns = self.timing.lost_after_ns;
        self.timing =
            NetworkTiming { latency_ns: 0, picoseconds_per_byte: 0, jitter_ns: 0, lost_after_ns };
    }

    fn timing_of(&self, frame: &EmulatedFrame) -> LinkTiming {
        let NetworkTiming { latency_ns, picoseconds_per_byte, .. } = self.timing;
        let own = self.timings.get(&(frame.from, frame.to));
        own.copied().unwrap_or(LinkTiming { latency_ns, picoseconds_per_byte, tcp: None })
    }

    pub(crate) fn cut(&mut self, from: u32, to: u32) {
        self.cut.insert((from, to));
    }

    pub(crate) fn mend_all(&mut self) {
        self.cut.clear();
    }

    pub(crate) fn clog(&mut self, node: u32) {
        self.clogged.insert(node);
    }

    fn is_clogged(&self, frame: &EmulatedFrame) -> bool {
        self.clogged.contains(&frame.from) || self.clogged.contains(&frame.to)
    }

    /// The frames that are free to go.
    fn unclog(&mut self, node: u32) -> Vec<EmulatedFrame> {
        self.clogged.remove(&node);
        let (blocked, free) =
            std::mem::take(&mut self.blocked).into_iter().partition(|frame| self.is_clogged(frame));
        self.blocked = blocked;
        free
    }

    /// Calls that wait for their replies, as (from, to).
    pub(crate) fn waiting(&self) -> impl Iterator<Item = (u32, u32)> {
        self.calls.iter().map(|(_, call)| (call.from, call.to))
    }

    /// From whom, to whom, in what class, and how many bytes: what a mesh needs to know of a frame.
    pub(crate) fn envelope_of(&mut self, frame: SlabKey) -> Option<(u32, u32, Class, usize)> {
        let frame = self.frames.get_mut(frame)?;
        Some((frame.from, frame.to, frame.class, frame.head.len() + frame.bulk.len()))
    }

    fn inbound(&mut self, node: u32) -> &mut u32 {
        let node = node as usize;
        if self.inbound.len() <= node {
            self.inbound.resize(node + 1, 0);
        }
        &mut self.inbound[node]
    }

    fn hits(&mut self, ppm: u32) -> bool {
        ppm > 0 && self.rng.chance(u64::from(ppm), 1_000_000)
    }

    /// When a frame arrives that leaves now; `hit` is called for faults.
    fn arrival_ns(
        &mut self,
        frame: &EmulatedFrame,
        now_ns: u64,
        slowness: u64,
        hit: &mut dyn FnMut(FaultKind),
    ) -> u64 {
        let LinkTiming { latency_ns, picoseconds_per_byte, tcp } = self.timing_of(frame);
        let jitter_ns = self.timing.jitter_ns;
        let NetworkFaults { reorder_ppm, delay_ppm, delay_max_ns, .. } = self.faults;
        let wire_ns = frame.bytes() as u64 * picoseconds_per_byte / 1000;
        let mut travel_ns = latency_ns + self.rng.below(jitter_ns + 1);
        if self.hits(delay_ppm) {
            travel_ns += self.rng.below(delay_max_ns + 1);
            hit(FaultKind::MessageDelayed);
        }
        let overtaken = self.hits(reorder_ppm);
        let detour_ns = if overtaken { self.rng.below(8 * latency_ns + 1) } else { 0 };
        let class = usize::from(frame.class == Class::Bulk);
        let link = self.links.entry(u64::from(frame.from) << 32 | u64::from(frame.to)).or_default();
        let mut left_ns = link.transmit(frame.class, now_ns, wire_ns * slowness);
        if let Some(tcp) = tcp {
            let start_ns = left_ns - wire_ns * slowness;
            let bytes = frame.bytes() as u64;
            left_ns = link.window.send(&tcp, start_ns, bytes, picoseconds_per_byte * slowness);
            link.free_ns[class] = left_ns;
        }
        let arrival_ns = left_ns + travel_ns * slowness;
        if overtaken {
            hit(FaultKind::MessageReordered);
            return arrival_ns + detour_ns;
        }
        link.last_ns[class] = link.last_ns[class].max(arrival_ns);
        link.last_ns[class]
    }

    /// Draws what happens to a frame.
    fn fate(
        &mut self,
        frame: &mut EmulatedFrame,
        now_ns: u64,
        slowness: u64,
        hit: &mut dyn FnMut(FaultKind),
    ) -> FrameFate {
        if self.cut.contains(&(frame.from, frame.to)) {
            hit(FaultKind::MessageCut);
            return FrameFate::Lost;
        }
        let NetworkFaults { loss_ppm, duplicate_ppm, corrupt_ppm, .. } = match frame.tolerance {
            FaultTolerance::Nothing => NetworkFaults::default(),
            FaultTolerance::Loss => NetworkFaults { duplicate_ppm: 0, ..self.faults },
            FaultTolerance::All => self.faults,
        };
        if self.hits(loss_ppm) {
            hit(FaultKind::MessageLost);
            return FrameFate::Lost;
        }
        let at_ns = self.arrival_ns(frame, now_ns, slowness, hit);
        let twin_at_ns = self.hits(duplicate_ppm).then(|| {
            hit(FaultKind::MessageDuplicated);
            self.arrival_ns(frame, now_ns, slowness, hit)
        });
        if self.hits(corrupt_ppm) {
            hit(FaultKind::MessageCorrupted);
            frame.damage(&mut self.rng);
        }
        FrameFate::Arrives { at_ns, twin_at_ns }
    }
}

/// The network of a world.
pub(crate) struct EmulatedNetwork {
    kernel: Rc<Kernel>,
    pub(crate) state: RefCell<NetworkState>,
}

impl EmulatedNetwork {
    pub(crate) fn new(kernel: Rc<Kernel>) -> Self {
        let rng = rng_for(kernel.seed, "network", 0);
        Self { kernel, state: RefCell::new(NetworkState::new(rng)) }
    }

    /// Sends a request of `from`.
    pub(crate) fn send(&self, from: u32, envelope: Envelope) {
        let Envelope { to, caller, class, message, .. } = envelope;
        let place = self.kernel.nodes.borrow().index(to);
        let Some(to) = place else { return message.refuse(Undelivered::Unreachable) };
        let mut out = Encoder::new();
        message.encode(&mut out);
        let (head, bulk) = out.finish();
        let bulk = join(&bulk);
        if head.len() > HEAD_LENGTH_MAX || bulk.len() > BULK_LENGTH_MAX {
            return message.refuse(Undelivered::ProtocolMismatch);
        }
        let body = FrameBody::Request { caller, protocol: message.protocol() };
        let (call, tolerance) = {
            let mut network = self.state.borrow_mut();
            let tag = head.first().copied().unwrap_or_default();
            let tolerance_of = network.tolerance_of.as_ref();
            let tolerance = tolerance_of
                .map_or(FaultTolerance::All, |tolerance| tolerance(message.protocol(), tag));
            if *network.inbound(to) >= INBOUND_FRAMES_MAX {
                drop(network);
                return message.refuse(Undelivered::Busy);
            }
            (network.calls.insert(WaitingCall { from, to, tolerance, message }), tolerance)
        };
        let frame =
            EmulatedFrame { from, to, class, call, body, head, bulk, tolerance, checksum: None };
        self.kernel.trace.request(frame.bytes());
        self.kernel.note(from, TraceTag::Request, frame.digest());
        self.transmit(frame);
    }

    /// Sends the reply of the node `from` to a call of the node `to`.
    pub(crate) fn reply(&self, from: u32, to: u32, call: SlabKey, reply: Encoder) {
        if self.kernel.living(from).is_none() {
            return;
        }
        let (head, bulk) = reply.finish();
        let bulk = join(&bulk);
        let body = FrameBody::Reply;
        // A call that no longer exists has been answered: its other reply may have any fate.
        let waiting = self.state.borrow_mut().calls.get_mut(call).map(|call| call.tolerance);
        let tolerance = waiting.unwrap_or(FaultTolerance::All);
        let class = Class::Control;
        let frame =
            EmulatedFrame { from, to, class, call, body, head, bulk, tolerance, checksum: None };
        self.kernel.trace.reply(frame.bytes());
        self.kernel.note(from, TraceTag::Reply, frame.digest());
        self.transmit(frame);
    }

    fn transmit(&self, mut frame: EmulatedFrame) {
        let now_ns = self.feed(&frame);
        let slowness = {
            let nodes = self.kernel.nodes.borrow();
            nodes.get(frame.from).slowness * nodes.get(frame.to).slowness
        };
        let mut network = self.state.borrow_mut();
        if network.is_clogged(&frame) {
            network.blocked.push(frame);
            return;
        }
        let to = frame.to;
        let fate =
            network.fate(&mut frame, now_ns, slowness, &mut |fault| self.kernel.fault(to, fault));
        let arrives = if network.is_mesh { WorldEvent::Enter } else { WorldEvent::Arrive };
        let mut events = self.kernel.events.borrow_mut();
        match fate {
            FrameFate::Lost => {
                let known_ns = now_ns + network.timing.lost_after_ns;
                events.push(known_ns, WorldEvent::Refuse(frame.call, Undelivered::Lost));
            }
            FrameFate::Arrives { at_ns, twin_at_ns } => {
                if let Some(twin_at_ns) = twin_at_ns {
                    *network.inbound(to) += 1;
                    let twin = network.frames.insert(frame.clone());
                    events.push(twin_at_ns, arrives(twin));
                }
                *network.inbound(to) += 1;
                events.push(at_ns, arrives(network.frames.insert(frame)));
            }
        }
    }

    /// The processor of the sender feeds a frame into the network; from when on it can be there as
    /// fast as the network goes. A processor that costs no time is done at once.
    fn feed(&self, frame: &EmulatedFrame) -> u64 {
        let now_ns = self.kernel.now_ns();
        let bytes = frame.head.len() + frame.bulk.len();
        let mut nodes = self.kernel.nodes.borrow_mut();
        let sender = &mut nodes.get_mut(frame.from).cpu;
        let fed_ns = sender.send(now_ns, bytes);
        if self.state.borrow().is_mesh {
            // Into a mesh goes each message of the row as soon as it has been fed.
            let first_ns = sender.pace_ns(bytes);
            return (fed_ns + first_ns).saturating_sub(sender.send_ns(bytes)).max(now_ns);
        }
        // Words leave while others are still fed, and never faster than the wire takes them.
        let timing = self.state.borrow().timing_of(frame);
        let wire_ns = frame.bytes() as u64 * timing.picoseconds_per_byte / 1000;
        fed_ns.saturating_sub(wire_ns).max(now_ns)
    }

    /// The processor of the receiver takes a frame in.
    fn take_in(&self, frame: &EmulatedFrame) {
        let Some(machine) = &*self.kernel.machine.borrow() else { return };
        let bytes = frame.head.len() + frame.bulk.len();
        let handler_ns = match frame.body {
            FrameBody::Request { .. } => machine.costs.handler_ns(),
            FrameBody::Reply => 0,
        };
        let mut nodes = self.kernel.nodes.borrow_mut();
        let receiver = &mut nodes.get_mut(frame.to).cpu;
        let now_ns = self.kernel.now_ns();
        if self.state.borrow().is_mesh {
            receiver.handle(now_ns, frame.class, handler_ns);
        } else {
            receiver.receive(now_ns, frame.class, bytes, handler_ns);
        }
    }

    /// Frames that waited for a clogged node are sent on.
    pub(crate) fn unclog(&self, node: u32) {
        let free = self.state.borrow_mut().unclog(node);
        for frame in free {
            self.transmit(frame);
        }
    }

    /// A frame has reached its node.
    pub(crate) fn arrive(&self, frame: SlabKey) {
        let frame = {
            let mut network = self.state.borrow_mut();
            let Some(frame) = network.frames.remove(frame) else { return };
            *network.inbound(frame.to) -= 1;
            frame
        };
        self.kernel.note(
            frame.to,
            TraceTag::Arrive,
            u64::from(frame.from) << 32 | frame.bytes() as u64,
        );
        self.take_in(&frame);
        if !frame.intact() {
            return self.lose(frame.call);
        }
        match frame.body {
            FrameBody::Reply => self.arrive_reply(&frame),
            FrameBody::Request { caller, protocol } => self.arrive_request(frame, caller, protocol),
        }
    }

    fn arrive_request(&self, frame: EmulatedFrame, caller: Caller, protocol: u8) {
        let instance = self.kernel.living(frame.to);
        let living = instance.and_then(|instance| Some((instance.living_host()?, instance)));
        let Some((host, instance)) = living else {
            self.kernel.fault(frame.to, FaultKind::MessageToDeadNode);
            let refused = self.state.borrow_mut().rng.chance(1, 2);
            if !refused {
                return self.lose(frame.call);
            }
            let latency_ns = self.state.borrow().timing.latency_ns;
            let refusal = WorldEvent::Refuse(frame.call, Undelivered::Unreachable);
            return self.kernel.push_in(latency_ns, refusal);
        };
        self.kernel.request_arrived(frame.to);
        let bulk = instance.take_in(frame.bulk);
        let handler = host.run_bytes(caller, protocol, &frame.head, bulk);
        let work = TaskKind::Answer { handler, caller: frame.from, call: frame.call };
        self.kernel.tasks.borrow_mut().spawn(frame.to, frame.class, work);
    }

    fn arrive_reply(&self, frame: &EmulatedFrame) {
        // The call no longer exists if this is a duplicate's reply, or if its caller gave up or
        // died.
        let call = self.state.borrow_mut().calls.remove(frame.call);
        if let Some(call) = call {
            let bulk = match self.kernel.living(frame.to) {
                Some(instance) => instance.take_in(frame.bulk.clone()),
                None => frame.bulk.clone(),
            };
            call.message.answer_bytes(Decoder::new(&frame.head, bulk));
        }
    }

    /// The frame is lost, or the other node is dead: the caller gets `Lost` in time.
    fn lose(&self, call: SlabKey) {
        let lost_after_ns = self.state.borrow().timing.lost_after_ns;
        self.kernel.push_in(lost_after_ns, WorldEvent::Refuse(call, Undelivered::Lost));
    }

    /// The call fails now, unless it has been answered.
    pub(crate) fn refuse(&self, call: SlabKey, why: Undelivered) {
        let call = self.state.borrow_mut().calls.remove(call);
        if let Some(call) = call {
            self.kernel.note(call.from, TraceTag::Refuse, u64::from(call.to));
            call.message.refuse(why);
        }
    }

    /// A node dies: its callers get no answer, and its own calls are abandoned. The latter are for
    /// the caller to drop, once nothing is borrowed.
    pub(crate) fn abandon_calls(&self, node: u32) -> Vec<Box<dyn Message>> {
        let mut network = self.state.borrow_mut();
        let mut own = Vec::new();
        let mut orphans = Vec::new();
        for (key, call) in network.calls.iter() {
            if call.from == node {
                own.push(key);
            } else if call.to == node {
                orphans.push(key);
            }
        }
        for call in orphans {
            let event = WorldEvent::Refuse(call, Undelivered::Lost);
            self.kernel.push_in(network.timing.lost_after_ns, event);
        }
        let own = own.into_iter().filter_map(|key| network.calls.remove(key));
        own.map(|call| call.message).collect()
    }
}

/// The payloads in one piece of their own: nodes share no memory.
fn join(parts: &[Bytes]) -> Bytes {
    match parts {
        [] => Bytes::new(),
        [one] => Bytes::copy_from_slice(one),
        many => many.concat().into(),
    }
}
