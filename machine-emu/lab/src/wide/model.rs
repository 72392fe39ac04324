//! Clients that read over a link with delay, in virtual time.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::Duration;

use client::adaptive::LinkEstimate;
use client::adaptive::ahead::AheadPlanner;
use client::adaptive::estimate::Estimate;
use client::adaptive::thesis::Reader;
use machine_emu::window::{TcpTiming, TcpWindow};

/// A gigabit per second, as the thesis had it.
const PICOSECONDS_PER_BYTE: u64 = 8_000;
const BYTES_PER_SECOND: u64 = 125_000_000;

/// What the default mode may hold.
const AHEAD_MAX: u64 = 64 << 20;

/// The transfers of a client without adaptation: Gfarm's.
const FIXED_SIZE: u64 = 1 << 20;

/// What TCP does to the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkKind {
    /// Nothing: delay and rate.
    Plain,
    /// Slow start, and again after a pause of the round trip and 200 ms.
    Linux,
    /// Slow start, and again after each wait for a request.
    Restarting,
}

/// How a client reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClientKind {
    /// One transfer of 1 MB at a time.
    Fixed,
    /// One transfer at a time, of the size that the thesis's controller says.
    Thesis,
    /// Several transfers under way.
    Default,
}

/// A program that reads and skips.
#[derive(Clone, Copy, Debug)]
pub(super) struct StridedReads {
    pub(super) read: u64,
    pub(super) skip: u64,
    /// The size of the file.
    pub(super) size: u64,
}

impl StridedReads {
    fn reads(self) -> impl Iterator<Item = Range<u64>> {
        let starts = (0..self.size).step_by((self.read + self.skip) as usize);
        starts.map(move |start| start..start + self.read)
    }
}

/// What came of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outcome {
    /// The size of most transfers of the last quarter; with several under way, of all together.
    pub(super) size: u64,
    /// Bytes that the program has read in a second.
    pub(super) bytes_per_second: u64,
}

/// One direction with a link's rate, and the delay of both.
struct ModelLink {
    delay_ns: u64,
    tcp: Option<TcpTiming>,
    window: TcpWindow,
    free_ns: u64,
    now_ns: u64,
}

impl ModelLink {
    fn new(kind: LinkKind, delay: Duration) -> Self {
        let delay_ns = delay.as_nanos() as u64;
        let tcp = match kind {
            LinkKind::Plain => None,
            LinkKind::Linux => Some(TcpTiming::linux(2 * delay_ns)),
            LinkKind::Restarting => Some(TcpTiming::restarting(2 * delay_ns)),
        };
        // Without delay there is nothing to wait for.
        let tcp = tcp.filter(|_| delay_ns > 0);
        Self { delay_ns, tcp, window: TcpWindow::default(), free_ns: 0, now_ns: 0 }
    }

    /// When the last of `bytes` bytes arrives that are asked for now.
    fn arrival_ns(&mut self, bytes: u64) -> u64 {
        let start_ns = self.free_ns.max(self.now_ns + self.delay_ns);
        self.free_ns = match &self.tcp {
            Some(tcp) => self.window.send(tcp, start_ns, bytes, PICOSECONDS_PER_BYTE),
            None => start_ns + bytes * PICOSECONDS_PER_BYTE / 1000,
        };
        self.free_ns + self.delay_ns
    }

    fn now(&self) -> Duration {
        Duration::from_nanos(self.now_ns)
    }
}

/// Lets a client read.
pub(super) fn run(
    client: ClientKind,
    link: LinkKind,
    delay: Duration,
    workload: StridedReads,
) -> Outcome {
    let mut link = ModelLink::new(link, delay);
    let (bytes, sizes) = match client {
        ClientKind::Fixed => fixed(&mut link, workload),
        ClientKind::Thesis => thesis(&mut link, delay, workload),
        ClientKind::Default => ahead(&mut link, workload),
    };
    let rate = u128::from(bytes) * 1_000_000_000 / u128::from(link.now_ns.max(1));
    Outcome { size: settled(&sizes), bytes_per_second: rate as u64 }
}

fn settled(sizes: &[u64]) -> u64 {
    let mut counts = BTreeMap::<u64, u32>::new();
    for size in &sizes[sizes.len() * 3 / 4..] {
        *counts.entry(*size).or_default() += 1;
    }
    counts.into_iter().max_by_key(|(_, count)| *count).map_or(0, |(size, _)| size)
}

fn fixed(link: &mut ModelLink, workload: StridedReads) -> (u64, Vec<u64>) {
    let mut bytes = 0;
    let mut buffer = 0..0;
    for mut rest in workload.reads() {
        bytes += rest.end - rest.start;
        while !rest.is_empty() {
            if !buffer.contains(&rest.start) {
                buffer = rest.start..rest.start + FIXED_SIZE;
                link.now_ns = link.arrival_ns(FIXED_SIZE);
            }
            rest.start = rest.end.min(buffer.end);
        }
    }
    (bytes, vec![FIXED_SIZE])
}

fn thesis(link: &mut ModelLink, delay: Duration, workload: StridedReads) -> (u64, Vec<u64>) {
    let figures = LinkEstimate::new(delay, BYTES_PER_SECOND);
    let mut reader = Reader::new(u64::MAX);
    let (mut bytes, mut sizes) = (0, Vec::new());
    for mut rest in workload.reads() {
        bytes += rest.end - rest.start;
        while !rest.is_empty() {
            let (part, fetched) = reader.read(&rest, &figures);
            if let Some(fetched) = fetched {
                let size = fetched.end - fetched.start;
                sizes.push(size);
                link.now_ns = link.arrival_ns(size.min(workload.size.saturating_sub(part.start)));
            }
            rest.start = part.end;
        }
    }
    (bytes, sizes)
}

/// It measures the link by itself.
fn ahead(link: &mut ModelLink, workload: StridedReads) -> (u64, Vec<u64>) {
    let mut ahead = AheadPlanner::new(AHEAD_MAX);
    let mut estimate = Estimate::default();
    let mut under_way = VecDeque::new();
    let mut here = BTreeMap::<u64, u64>::new();
    let (mut bytes, mut sizes) = (0, Vec::new());
    for mut rest in workload.reads() {
        bytes += rest.end - rest.start;
        for start in ahead.ask(&rest, &estimate.figures()) {
            here.remove(&start);
        }
        sizes.push(ahead.window());
        while !rest.is_empty() {
            for range in ahead.start(&rest) {
                let departure = estimate.depart(link.now());
                let arrival_ns = link.arrival_ns(range.end - range.start);
                under_way.push_back((departure, arrival_ns, range));
            }
            let end = loop {
                let before = here.range(..=rest.start).next_back();
                if let Some((_, end)) = before.filter(|(_, end)| **end > rest.start) {
                    break rest.end.min(*end);
                }
                let Some((departure, arrival_ns, range)) = under_way.pop_front() else { break 0 };
                link.now_ns = link.now_ns.max(arrival_ns);
                estimate.arrive(departure, link.now(), range.end - range.start);
                here.insert(range.start, range.end);
            };
            for start in ahead.use_bytes(&(rest.start..end)) {
                here.remove(&start);
            }
            rest.start = end;
        }
    }
    (bytes, sizes)
}
