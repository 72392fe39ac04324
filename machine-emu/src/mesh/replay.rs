//! A trace sent again, through another machine or another model of the network, and both compared.
//!
//! Sends happen when they happened in the recording, whatever becomes of them: the layers are not
//! there to wait. Each message stays in its queue as long as it did there. So on the machine of the
//! recording every message comes in the same cycle; elsewhere one sees what the network alone
//! changes.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use thiserror::Error;

use super::SendError;
use super::flit::FlitMesh;
use super::forward::{ForwardPolicy, Forwarders};
use super::geometry::{Coordinates, MeshGeometry, Role};
use super::record::{Recorder, TraceEvent, TraceKind};
use super::timing::{Delivery, Letter, MeshTiming, Priority};
use super::trace::MeshTrace;
use super::worm::Mesh;

/// Cycles of a bucket of load, which is not used.
const BUCKET_CYCLES: u64 = 1 << 20;

/// In how much detail the network is modelled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NetworkModel {
    /// The formula: no message meets another.
    Formula,
    /// Worms: exact unless wires are shared.
    #[default]
    Worm,
    /// Every flit. At this level only, forwarders pass a message on once they have all of it, and
    /// have room for any number of them.
    Flit,
}

impl NetworkModel {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Formula, Self::Worm, Self::Flit];

    /// In a word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Formula => "formula",
            Self::Worm => "worm",
            Self::Flit => "flit",
        }
    }
}

/// Where a trace is sent again.
#[derive(Clone, Debug)]
pub struct ReplayTarget {
    /// Nodes and links.
    pub geometry: MeshGeometry,
    /// Parameters.
    pub timing: MeshTiming,
    /// Who passes on what cannot be sent directly.
    pub policy: ForwardPolicy,
    /// In how much detail.
    pub level: NetworkModel,
}

impl ReplayTarget {
    /// Where it was recorded.
    pub fn of(trace: &MeshTrace) -> Self {
        let MeshTrace { geometry, timing, policy, .. } = trace;
        Self {
            geometry: geometry.clone(),
            timing: *timing,
            policy: *policy,
            level: NetworkModel::Worm,
        }
    }
}

/// A trace cannot be sent on this machine.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ReplayError {
    /// A node has no place.
    #[error(
        "{place} of the recording, {what} {index}, has no place on a machine with {there} of them: \
         take a machine with as many"
    )]
    NoPlace {
        /// Where it stood.
        place: Coordinates,
        /// What it is for.
        what: &'static str,
        /// The how manieth of its kind, from 0.
        index: u32,
        /// How many the other machine has.
        there: u32,
    },
    /// A message is not taken.
    #[error("message {number} is not taken: {error}")]
    Send {
        /// Of the recording.
        number: u64,
        /// Why.
        error: SendError,
    },
    /// The row of a message is not in the trace.
    #[error("the trace names message {0}, and not its sending: it is not whole")]
    Orphan(u64),
}

/// One message: which of which letter, when it was sent, and came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Journey {
    /// The letter, and which message of its row.
    pub message: (u32, u32),
    /// When its turn to be sent came.
    pub sent: u64,
    /// When its last word had come.
    pub came: u64,
    /// Through a forwarder.
    pub forwarded: bool,
}

impl Journey {
    /// How long it took.
    pub fn latency(&self) -> u64 {
        self.came - self.sent
    }
}

/// The messages of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Journeys(pub Vec<Journey>);

impl Journeys {
    /// As they are in a trace.
    pub fn of(trace: &MeshTrace) -> Result<Self, ReplayError> {
        Ok(Self(collect(&trace.events)?.into_iter().map(|(journey, _)| journey).collect()))
    }

    /// The latency that `percent` of the messages do not exceed.
    pub fn percentile(&self, percent: usize) -> u64 {
        let mut all: Vec<u64> = self.0.iter().map(Journey::latency).collect();
        all.sort_unstable();
        let last = all.len().saturating_sub(1);
        all.get(last * percent / 100).copied().unwrap_or_default()
    }

    /// The mean latency.
    #[allow(clippy::cast_precision_loss, reason = "cycles are far below 2^52")]
    pub fn mean(&self) -> f64 {
        let sum: u64 = self.0.iter().map(Journey::latency).sum();
        sum as f64 / self.0.len().max(1) as f64
    }

    /// When the last one came.
    pub fn end(&self) -> u64 {
        self.0.iter().map(|journey| journey.came).max().unwrap_or_default()
    }

    /// Messages that took another time than in `other`, and the first of them in both.
    pub fn differ(&self, other: &Self) -> (usize, Option<[Journey; 2]>) {
        let there: BTreeMap<_, _> = other.0.iter().map(|j| (j.message, *j)).collect();
        let pairs = self.0.iter().filter_map(|here| Some([*here, *there.get(&here.message)?]));
        let mut differing = pairs.filter(|[here, there]| here.latency() != there.latency());
        let first = differing.next();
        (differing.count() + usize::from(first.is_some()), first)
    }
}

/// The journeys of events, each with how long the message stayed in its queue, if that is known.
fn collect(events: &[TraceEvent]) -> Result<Vec<(Journey, Option<u64>)>, ReplayError> {
    let mut named: BTreeMap<u64, ((u32, u32), u64)> = BTreeMap::new();
    let mut arrived: BTreeMap<u64, usize> = BTreeMap::new();
    let mut all = Vec::new();
    let mut letters = 0;
    for event in events {
        let TraceEvent { cycle, number, via, .. } = *event;
        let orphan = ReplayError::Orphan(number);
        match event.kind {
            TraceKind::Sent => {
                named.insert(number, ((letters, 0), cycle));
                letters += 1;
            }
            TraceKind::Continued => {
                let before = number.checked_sub(event.count.into());
                let ((letter, place), _) =
                    *before.and_then(|before| named.get(&before)).ok_or(orphan)?;
                named.insert(number, ((letter, place + 1), cycle));
            }
            TraceKind::Delivered => {
                let (message, _) = *named.get(&number).ok_or(orphan)?;
                // The recording says how long it took.
                let sent = cycle.saturating_sub(event.count.into());
                arrived.insert(number, all.len());
                let forwarded = via.is_some();
                all.push((Journey { message, sent, came: cycle, forwarded }, None));
            }
            TraceKind::Taken => {
                let at = *arrived.get(&number).ok_or(orphan)?;
                let (journey, stay) = &mut all[at];
                *stay = Some(cycle.saturating_sub(journey.came));
            }
        }
    }
    all.sort_unstable();
    Ok(all)
}

/// Sends the messages of `trace` again.
pub fn replay(trace: &MeshTrace, stage: &ReplayTarget) -> Result<Journeys, ReplayError> {
    let stays = collect(&trace.events)?;
    let stays = stays.into_iter().map(|(journey, stay)| (journey.message, stay.unwrap_or(0)));
    let again = TraceReplay {
        stage,
        stays: stays.collect(),
        letters: letters(trace, stage)?,
        takings: BinaryHeap::new(),
    };
    match stage.level {
        NetworkModel::Formula => again.by_formula(),
        NetworkModel::Worm => again.by_worms(),
        NetworkModel::Flit => again.by_flits(),
    }
}

/// What was sent, and when, with the nodes of the stage; the tag is the number of the letter.
fn letters(trace: &MeshTrace, stage: &ReplayTarget) -> Result<Vec<(u64, Letter)>, ReplayError> {
    let sent = trace.events.iter().filter(|event| event.kind == TraceKind::Sent);
    let letters = (0..).zip(sent).map(|(tag, event)| {
        let letter = event.letter();
        let at = |node| place(&trace.geometry, &stage.geometry, node);
        Ok((event.cycle, Letter { from: at(letter.from)?, to: at(letter.to)?, tag, ..letter }))
    });
    letters.collect()
}

/// The node of `there` that stands for `node` of `here`: of main nodes the one that is as far in
/// the slices counted from the disks, and of the others the one with the same number.
fn place(here: &MeshGeometry, there: &MeshGeometry, node: u32) -> Result<u32, ReplayError> {
    let (what, index, count) = match here.role(node) {
        Role::Main => ("main node", slice_index(here, node), there.main_nodes()),
        Role::Disk => ("disk node", node - here.main_nodes(), there.disk_nodes()),
        Role::Host => ("the host", 0, u32::from(there.host().is_some())),
    };
    let found = (index < count).then(|| match here.role(node) {
        Role::Main => slice_node(there, index),
        Role::Disk => there.main_nodes() + index,
        Role::Host => there.host().unwrap_or_default(),
    });
    let no_place = || ReplayError::NoPlace { place: here.place(node), what, index, there: count };
    found.ok_or_else(no_place)
}

/// Main nodes by slices of constant Y, the one next to the disks first; in each along X, then Z.
fn slice_index(geometry: &MeshGeometry, node: u32) -> u32 {
    let [x, y, z] = geometry.size().map(u32::from);
    let at = geometry.place(node);
    let [px, py, pz] = [at.x, at.y, at.z].map(|along| u32::from(along.cast_unsigned()));
    px + x * (pz + z * (y - 1 - py))
}

fn slice_node(geometry: &MeshGeometry, index: u32) -> u32 {
    let [x, y, z] = geometry.size().map(u32::from);
    let plane = y - 1 - index / (x * z);
    index % x + x * (plane + y * (index / x % z))
}

/// A taking to come: when, from which queue, how many words.
type QueueDrain = Reverse<(u64, u32, Priority, u32)>;

struct TraceReplay<'a> {
    stage: &'a ReplayTarget,
    stays: BTreeMap<(u32, u32), u64>,
    letters: Vec<(u64, Letter)>,
    takings: BinaryHeap<QueueDrain>,
}

impl TraceReplay<'_> {
    fn by_formula(self) -> Result<Journeys, ReplayError> {
        let ReplayTarget { geometry, timing, policy, .. } = self.stage;
        let forwarders = Forwarders::new(*policy);
        let mut all = Vec::new();
        for (number, (cycle, letter)) in (0..).zip(&self.letters) {
            let Letter { from, to, .. } = *letter;
            let refused =
                |error: super::Unroutable| ReplayError::Send { number, error: error.into() };
            let via = forwarders.via(geometry, from, to).map_err(refused)?;
            let hops = |one, other| geometry.hops(one, other).map_err(refused);
            let mut sent = *cycle;
            for place in 0..letter.count {
                let last = place + 1 == letter.count;
                let words = if last { letter.last_words } else { letter.words };
                let took = match via {
                    None => timing.zero_load_cycles(hops(from, to)?, words),
                    // The second leg begins when the head of the first is there.
                    Some(via) => {
                        let head = timing.zero_load_cycles(hops(from, via)?, 0);
                        head + timing.forward_cycles
                            + timing.zero_load_cycles(hops(via, to)?, words)
                    }
                };
                let message = (number as u32, place);
                all.push(Journey { message, sent, came: sent + took, forwarded: via.is_some() });
                sent += u64::from(timing.flits(words + u32::from(via.is_some())));
            }
        }
        all.sort_unstable();
        Ok(Journeys(all))
    }

    fn by_worms(mut self) -> Result<Journeys, ReplayError> {
        let ReplayTarget { geometry, timing, policy, .. } = self.stage;
        let mut mesh = Mesh::new(geometry.clone(), *timing, *policy);
        mesh.record(Recorder::new(0, "", BUCKET_CYCLES));
        let letters = std::mem::take(&mut self.letters);
        let mut letters = (0..).zip(letters).peekable();
        // Which message of its row comes next: they keep their order unless forwarders take turns.
        let mut places: BTreeMap<u64, u32> = BTreeMap::new();
        let mut out = Vec::new();
        loop {
            let sent = letters.peek().map(|(_, (cycle, _))| *cycle);
            let Some(now) = [mesh.next_cycle(), sent].into_iter().flatten().min() else { break };
            while let Some((number, (cycle, letter))) = letters.next_if(|(_, (due, _))| *due <= now)
            {
                let refused = |error| ReplayError::Send { number, error };
                mesh.send(cycle, letter).map_err(refused)?;
            }
            mesh.advance(now, &mut out);
            for delivery in out.drain(..) {
                let Delivery { cycle, to, priority, words, tag, .. } = delivery;
                let place = places.entry(tag).or_default();
                let stay = self.stays.get(&(tag as u32, *place)).copied().unwrap_or_default();
                *place += 1;
                mesh.consume(to, priority, words, cycle + stay);
            }
        }
        let events = mesh.recorder().map(|recorder| collect(recorder.events()));
        let all = events.transpose()?.unwrap_or_default();
        Ok(Journeys(all.into_iter().map(|(journey, _)| journey).collect()))
    }

    fn by_flits(mut self) -> Result<Journeys, ReplayError> {
        let ReplayTarget { geometry, timing, policy, .. } = self.stage;
        let (mut legs, finals) = self.legs(&Forwarders::new(*policy))?;
        let mut mesh = FlitMesh::new(geometry.clone(), *timing);
        let mut all = Vec::new();
        let mut out = Vec::new();
        loop {
            let sent = legs.peek().map(|Reverse((cycle, ..))| *cycle);
            let taken = self.takings.peek().map(|Reverse((cycle, ..))| *cycle);
            let next = [mesh.next_cycle(), sent, taken].into_iter().flatten().min();
            let Some(now) = next else { break };
            while let Some((_, node, priority, words)) =
                pop_due(&mut self.takings, |(due, ..)| *due <= now)
            {
                mesh.consume(node, priority, words);
            }
            while let Some((cycle, tag, leg)) = pop_due(&mut legs, |(due, ..)| *due <= now) {
                let refused = |error| ReplayError::Send { number: tag, error };
                let letter = finals[tag as usize].letter(leg, tag);
                mesh.send(cycle, letter).map_err(refused)?;
            }
            mesh.advance(now, &mut out);
            for Delivery { cycle, to, priority, words, tag, .. } in out.drain(..) {
                let MessageRoute { message, sent, via, .. } = finals[tag as usize];
                if via == Some(to) {
                    // All of it is at the forwarder, and goes on.
                    self.takings.push(Reverse((cycle, to, priority, words)));
                    legs.push(Reverse((cycle + timing.forward_cycles, tag, 1)));
                    continue;
                }
                let stay = self.stays.get(&message).copied().unwrap_or_default();
                self.takings.push(Reverse((cycle + stay.max(1), to, priority, words)));
                all.push(Journey { message, sent, came: cycle, forwarded: via.is_some() });
            }
        }
        all.sort_unstable();
        Ok(Journeys(all))
    }

    /// Every message by itself, and what is to be sent first.
    fn legs(
        &self,
        forwarders: &Forwarders,
    ) -> Result<(BinaryHeap<Leg>, Vec<MessageRoute>), ReplayError> {
        let (mut legs, mut ways) = (BinaryHeap::new(), Vec::new());
        for (number, (cycle, letter)) in (0..).zip(&self.letters) {
            let via = forwarders.via(&self.stage.geometry, letter.from, letter.to);
            let via = via.map_err(|error| ReplayError::Send { number, error: error.into() })?;
            let mut sent = *cycle;
            for place in 0..letter.count {
                let last = place + 1 == letter.count;
                let words = if last { letter.last_words } else { letter.words };
                legs.push(Reverse((sent, ways.len() as u64, 0)));
                let message = (number as u32, place);
                ways.push(MessageRoute { message, sent, via, words, letter: *letter });
                sent += u64::from(self.stage.timing.flits(words));
            }
        }
        Ok((legs, ways))
    }
}

/// The first of a queue, if it is due.
fn pop_due<T: Ord>(queue: &mut BinaryHeap<Reverse<T>>, is_due: impl Fn(&T) -> bool) -> Option<T> {
    queue.peek().filter(|Reverse(first)| is_due(first))?;
    queue.pop().map(|Reverse(first)| first)
}

/// When, which message, and which leg of its way.
type Leg = Reverse<(u64, u64, u32)>;

/// A message in transit.
#[derive(Clone, Copy)]
struct MessageRoute {
    message: (u32, u32),
    sent: u64,
    via: Option<u32>,
    words: u32,
    letter: Letter,
}

impl MessageRoute {
    /// One leg as a message; through a forwarder the first has high priority and the second normal,
    /// as worms have it.
    fn letter(&self, leg: u32, tag: u64) -> Letter {
        let Letter { from, to, priority, .. } = self.letter;
        let (from, to, priority, words) = match (self.via, leg) {
            (None, _) => (from, to, priority, self.words),
            (Some(via), 0) => (from, via, Priority::High, self.words + 1),
            (Some(via), _) => (via, to, Priority::Normal, self.words),
        };
        Letter { priority, ..Letter::new(from, to, words, tag) }
    }
}
