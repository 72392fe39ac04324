//! What happened in a mesh over virtual time: load and stalls per channel in buckets of cycles, and
//! a trace of its messages. Both are bounded whatever the run is.

use runtime::hash;

use super::timing::{Delivery, Letter, Priority};

/// Buckets of time, at most; then two become one, each twice as long.
pub const BUCKETS_MAX: usize = 256;
/// Events of a trace, at most (32 MiB); what comes later is only counted.
pub const EVENTS_MAX: usize = 1 << 20;
pub(super) const EVENT_BYTES: usize = 32;

/// What crossed a channel in one bucket of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelLoad {
    /// Flits of the worms whose heads crossed.
    pub flits: u32,
    /// Cycles that those heads waited.
    pub stalled: u32,
}

/// One bucket of time. What is past the end of a list was idle.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bucket {
    /// By channel: `16 node + 8 priority + direction`.
    pub channels: Vec<ChannelLoad>,
    /// The most words that each queue held when a message came: `2 node + priority`.
    pub queues: Vec<u16>,
}

/// The place of an index in a list that grows as needed.
fn grown<T: Clone + Default>(list: &mut Vec<T>, index: usize) -> &mut T {
    if list.len() <= index {
        list.resize(index + 1, T::default());
    }
    &mut list[index]
}

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum TraceKind {
    /// A letter was sent.
    Sent = 1,
    /// A message was delivered.
    Delivered = 2,
    /// A delivered message was taken out of its queue.
    Taken = 3,
    /// The turn of the next message of a row came.
    Continued = 4,
}

/// One line of a trace: 32 bytes, little-endian, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceEvent {
    /// When.
    pub cycle: u64,
    /// The message.
    pub number: u64,
    /// The sender: nodes count to 2^16.
    pub from: u16,
    /// The receiver.
    pub to: u16,
    /// Words of each message.
    pub words: u16,
    /// Words of the last of its row.
    pub last_words: u16,
    /// Messages in the row; of a delivery its latency in cycles; of a continued row how many
    /// numbers before its own the message before it has.
    pub count: u32,
    /// What happened.
    pub kind: TraceKind,
    /// Of the message; of a delivery, of the queue that it is in.
    pub priority: Priority,
    /// The forwarder; none is 2^16 - 1 in the file.
    pub via: Option<u16>,
}

impl TraceEvent {
    /// As in a file.
    pub fn to_bytes(self) -> [u8; EVENT_BYTES] {
        let mut bytes = [0; EVENT_BYTES];
        bytes[0..8].copy_from_slice(&self.cycle.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.number.to_le_bytes());
        let shorts = [self.from, self.to, self.words, self.last_words];
        for (at, short) in shorts.into_iter().enumerate() {
            bytes[16 + 2 * at..18 + 2 * at].copy_from_slice(&short.to_le_bytes());
        }
        bytes[24..28].copy_from_slice(&self.count.to_le_bytes());
        bytes[28] = self.kind as u8;
        bytes[29] = self.priority as u8;
        bytes[30..32].copy_from_slice(&self.via.unwrap_or(u16::MAX).to_le_bytes());
        bytes
    }

    /// From a file; `None` if this is no event.
    pub fn from_bytes(bytes: &[u8; EVENT_BYTES]) -> Option<Self> {
        let long = |at: usize| Some(u64::from_le_bytes(bytes[at..at + 8].try_into().ok()?));
        let short = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let kind = match bytes[28] {
            1 => TraceKind::Sent,
            2 => TraceKind::Delivered,
            3 => TraceKind::Taken,
            4 => TraceKind::Continued,
            _ => return None,
        };
        let priority = match bytes[29] {
            0 => Priority::Normal,
            1 => Priority::High,
            _ => return None,
        };
        let count = u32::from_le_bytes(bytes[24..28].try_into().ok()?);
        let [from, to, words, last_words] = [16, 18, 20, 22].map(short);
        let (cycle, number) = (long(0)?, long(8)?);
        let via = Some(short(30)).filter(|&node| node != u16::MAX);
        Some(Self { cycle, number, from, to, words, last_words, count, kind, priority, via })
    }

    /// The letter of a [`TraceKind::Sent`], to send it again.
    pub fn letter(&self) -> Letter {
        Letter {
            from: u32::from(self.from),
            to: u32::from(self.to),
            priority: self.priority,
            words: u32::from(self.words),
            count: self.count,
            last_words: u32::from(self.last_words),
            tag: self.number,
        }
    }
}

/// Takes down what a mesh does.
#[derive(Debug)]
pub struct Recorder {
    seed: u64,
    configuration: u64,
    /// The first cycle, and the first message, of the record.
    start: u64,
    first: u64,
    bucket_cycles: u64,
    buckets: Vec<Bucket>,
    events: Vec<TraceEvent>,
    events_lost: u64,
}

impl Recorder {
    /// For the run of `seed`; `configuration` is everything else that determines it. Buckets have
    /// `bucket_cycles` until there are too many.
    pub fn new(seed: u64, configuration: &str, bucket_cycles: u64) -> Self {
        let configuration = hash::xxh3(configuration.as_bytes());
        let bucket_cycles = bucket_cycles.max(1);
        let (buckets, events) = (Vec::new(), Vec::new());
        let (start, first, events_lost) = (0, 0, 0);
        Self { seed, configuration, start, first, bucket_cycles, buckets, events, events_lost }
    }

    /// The record begins in this cycle, with the message of this number: of those that are under
    /// way it does not tell.
    pub(super) fn begin(&mut self, cycle: u64, number: u64) {
        (self.start, self.first) = (cycle, number);
    }

    /// The first cycle of the record.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Cycles of a bucket by now.
    pub fn bucket_cycles(&self) -> u64 {
        self.bucket_cycles
    }

    /// Load over time.
    pub fn buckets(&self) -> &[Bucket] {
        &self.buckets
    }

    /// The messages of the run.
    pub fn events(&self) -> &[TraceEvent] {
        &self.events
    }

    /// Events that found no room.
    pub fn events_lost(&self) -> u64 {
        self.events_lost
    }

    /// Of the run.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The hash of all else that the run follows from.
    pub fn configuration(&self) -> u64 {
        self.configuration
    }

    fn push(&mut self, event: TraceEvent) {
        if self.events.len() < EVENTS_MAX {
            self.events.push(event);
        } else {
            self.events_lost += 1;
        }
    }

    pub(super) fn sent(&mut self, cycle: u64, number: u64, letter: &Letter, via: Option<u32>) {
        let Letter { from, to, priority, words, count, last_words, .. } = *letter;
        let [from, to, words, last_words] = [from, to, words, last_words].map(|n| n as u16);
        let via = via.map(|node| node as u16);
        let kind = TraceKind::Sent;
        self.push(TraceEvent {
            cycle,
            number,
            from,
            to,
            words,
            last_words,
            count,
            kind,
            priority,
            via,
        });
    }

    pub(super) fn delivered(&mut self, delivery: &Delivery) {
        self.arrival(TraceKind::Delivered, delivery);
    }

    fn arrival(&mut self, kind: TraceKind, delivery: &Delivery) {
        let Delivery { cycle, number, from, to, words, priority, via, .. } = *delivery;
        if number < self.first {
            return;
        }
        let [from, to, words] = [from, to, words].map(|n| n as u16);
        self.push(TraceEvent {
            cycle,
            number,
            from,
            to,
            words,
            last_words: words,
            count: u32::try_from(delivery.latency()).unwrap_or(u32::MAX),
            kind,
            priority,
            via: via.map(|node| node as u16),
        });
    }

    pub(super) fn taken(&mut self, delivery: &Delivery, cycle: u64) {
        self.arrival(TraceKind::Taken, &Delivery { cycle, ..*delivery });
    }

    pub(super) fn continued(&mut self, cycle: u64, number: u64, before: u64, letter: &Letter) {
        self.sent(cycle, number, letter, None);
        if before < self.first {
            return;
        }
        if let Some(event) = self.events.last_mut().filter(|_| self.events_lost == 0) {
            event.kind = TraceKind::Continued;
            event.count = u32::try_from(number - before).unwrap_or(u32::MAX);
        }
    }

    /// The bucket of `cycle`; there are more of them, or they become longer.
    fn bucket(&mut self, cycle: u64) -> &mut Bucket {
        let cycle = cycle.saturating_sub(self.start);
        while cycle / self.bucket_cycles >= BUCKETS_MAX as u64 {
            self.fold();
        }
        grown(&mut self.buckets, (cycle / self.bucket_cycles) as usize)
    }

    pub(super) fn crossed(&mut self, cycle: u64, channel: u32, flits: u32, stalled: u64) {
        let load = grown(&mut self.bucket(cycle).channels, channel as usize);
        load.flits = load.flits.saturating_add(flits);
        load.stalled = load.stalled.saturating_add(u32::try_from(stalled).unwrap_or(u32::MAX));
    }

    pub(super) fn queued(&mut self, cycle: u64, queue: u32, words: u32) {
        let most = grown(&mut self.bucket(cycle).queues, queue as usize);
        *most = (*most).max(words as u16);
    }

    /// Two buckets become one.
    fn fold(&mut self) {
        let mut rows = std::mem::take(&mut self.buckets).into_iter();
        while let Some(mut row) = rows.next() {
            let second = rows.next().unwrap_or_default();
            for (channel, more) in second.channels.iter().enumerate() {
                let load = grown(&mut row.channels, channel);
                load.flits = load.flits.saturating_add(more.flits);
                load.stalled = load.stalled.saturating_add(more.stalled);
            }
            for (queue, words) in second.queues.into_iter().enumerate() {
                let most = grown(&mut row.queues, queue);
                *most = (*most).max(words);
            }
            self.buckets.push(row);
        }
        self.bucket_cycles *= 2;
    }
}
