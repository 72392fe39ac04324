//! Several transfers under way: what to read before it is asked for.
//!
//! The window is how many bytes may be under way or unread, besides those that the program waits
//! for. The controller of the thesis steers it
//! by how much of what was read ahead is used: up to what the link holds, and down to nothing much
//! for a program that jumps about.

use std::collections::BTreeMap;
use std::ops::Range;

use super::pattern::AccessPattern;
use super::thesis::{Controller, FIRST_SIZE, Parameters, WHOLE};
use super::{LinkEstimate, TRANSFER_MIN};

/// The largest transfer: that of the protocol.
pub const TRANSFER_MAX: u64 = 4 << 20;

/// Transfers that fill a window.
const TRANSFERS: u64 = 4;

/// Transfers that are kept track of, at most.
const HELD_MAX: usize = 1024;

/// Bytes that are under way or unread.
#[derive(Clone, Copy, Debug)]
struct PlannedTransfer {
    end: u64,
    used: u64,
    is_ahead: bool,
}

/// Plans the transfers of one opening of a file.
#[derive(Clone, Debug)]
pub struct AheadPlanner {
    pattern: AccessPattern,
    controller: Controller,
    bytes_max: u64,
    held: BTreeMap<u64, PlannedTransfer>,
    /// Where the file seemed to end.
    end: u64,
    /// Of what was read ahead and is over: all bytes, and the used ones.
    over: u64,
    used: u64,
}

impl AheadPlanner {
    /// With at most `bytes_max` bytes under way or unread, besides one transfer that the program
    /// waits for.
    pub fn new(bytes_max: u64) -> Self {
        let parameters = Parameters {
            count_large: 1,
            count_normal: 1,
            size_max: bytes_max,
            size_min: TRANSFER_MIN,
            ..Parameters::default()
        };
        Self {
            pattern: AccessPattern::default(),
            controller: Controller::new(parameters, FIRST_SIZE),
            bytes_max,
            held: BTreeMap::new(),
            end: u64::MAX,
            over: 0,
            used: 0,
        }
    }

    /// Bytes that may be under way or unread.
    pub fn window(&self) -> u64 {
        self.controller.size()
    }

    /// The program asks for `range`. Returns the starts of transfers that are of no use any more.
    pub fn ask(&mut self, range: &Range<u64>, link: &LinkEstimate) -> Vec<u64> {
        self.controller.limit(self.bytes_max.min(link.window() + TRANSFER_MAX));
        if range.start >= self.end {
            self.end = u64::MAX;
        }
        if self.pattern.note(range) {
            return Vec::new();
        }
        self.drop_if(|start, held| held.end <= range.start || start >= range.end)
    }

    /// The transfers to be started now, while the program waits for `wanted`: its first byte in any
    /// case, the rest and what is likely to follow as far as the window allows.
    pub fn start(&mut self, wanted: &Range<u64>) -> Vec<Range<u64>> {
        let mut started = Vec::new();
        let window = self.window();
        let ahead = self.held.iter().filter(|(_, it)| it.is_ahead);
        let mut ahead: u64 = ahead.map(|(start, it)| it.end - start - it.used).sum();
        let likely = self.pattern.predict();
        for range in std::iter::once(wanted.clone()).chain(likely) {
            let mut next = range.start;
            let is_wanted = range == *wanted;
            while next < range.end {
                let is_first = next == wanted.start;
                let (end, is_held) = self.next_piece(next, range.end, is_first);
                if !is_held && !is_first {
                    let is_past = !is_wanted && next >= self.end;
                    ahead += end - next;
                    if is_past || ahead > window || self.held.len() >= HELD_MAX {
                        return started;
                    }
                }
                if !is_held {
                    self.held.insert(next, PlannedTransfer { end, used: 0, is_ahead: !is_first });
                    started.push(next..end);
                }
                next = end;
            }
        }
        started
    }

    /// Where the piece from `next` on ends, and whether it is held.
    fn next_piece(&self, next: u64, end: u64, is_first: bool) -> (u64, bool) {
        let before = self.held.range(..=next).next_back();
        if let Some((_, held)) = before.filter(|(_, held)| held.end > next) {
            return (held.end.min(end), true);
        }
        let size = if is_first { TRANSFER_MAX } else { self.window() / TRANSFERS };
        let size = 1u64 << size.clamp(TRANSFER_MIN, TRANSFER_MAX).ilog2();
        let whole = (next / size + 1).saturating_mul(size);
        let after = self.held.range(next..).next().map_or(u64::MAX, |(start, _)| *start);
        (end.min(whole).min(after), false)
    }

    /// The program has read `range`. Returns the starts of transfers that are over.
    pub fn use_bytes(&mut self, range: &Range<u64>) -> Vec<u64> {
        for (start, held) in self.held.range_mut(..range.end) {
            let both = held.end.min(range.end).saturating_sub((*start).max(range.start));
            held.used = (held.used + both).min(held.end - start);
        }
        let is_passed = |start: u64, held: &PlannedTransfer| {
            held.used == held.end - start || (held.end <= range.start && held.used > 0)
        };
        self.drop_if(is_passed)
    }

    /// A transfer has found the end of the file at `end`: nothing is read ahead from there, until
    /// the program reads there.
    pub fn note_end(&mut self, end: u64) {
        self.end = end;
    }

    /// Forgets all transfers, but not what was learnt.
    pub fn discard(&mut self) {
        self.drop_if(|_, _| true);
        self.end = u64::MAX;
    }

    fn drop_if(&mut self, is_over: impl Fn(u64, &PlannedTransfer) -> bool) -> Vec<u64> {
        let dropped: Vec<_> =
            self.held.extract_if(.., |start, held| is_over(*start, held)).collect();
        for (start, held) in &dropped {
            if held.is_ahead {
                self.over += held.end - start;
                self.used += held.used;
            }
        }
        if self.over >= self.window() / 2 {
            let ratio = u128::from(self.used) * u128::from(WHOLE) / u128::from(self.over.max(1));
            self.controller.note(ratio as u32);
            (self.over, self.used) = (0, 0);
        }
        dropped.into_iter().map(|(start, _)| start).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::time::Duration;

    use super::*;
    use crate::adaptive::estimate::Estimate;

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;

    /// A link in virtual time.
    struct TestLink {
        round_trip: Duration,
        bytes_per_second: u64,
        now: Duration,
        free: Duration,
        /// Bytes that were transferred.
        bytes: u64,
    }

    impl TestLink {
        fn new(delay_ms: u64, bytes_per_second: u64) -> Self {
            let round_trip = Duration::from_millis(2 * delay_ms);
            let (now, free) = (Duration::ZERO, Duration::ZERO);
            Self { round_trip, bytes_per_second, now, free, bytes: 0 }
        }

        fn arrival(&mut self, bytes: u64) -> Duration {
            let wire = Duration::from_nanos(bytes * 1_000_000_000 / self.bytes_per_second);
            self.free = self.free.max(self.now + self.round_trip) + wire;
            self.bytes += bytes;
            self.free
        }
    }

    /// Reads `ranges` as the default mode does. Returns the largest number of bytes held.
    fn read_all(link: &mut TestLink, ranges: impl Iterator<Item = Range<u64>>) -> u64 {
        let mut ahead = AheadPlanner::new(64 * MIB);
        let mut estimate = Estimate::default();
        let mut under_way = VecDeque::new();
        let mut arrived = BTreeMap::new();
        let mut held_max = 0;
        for range in ranges {
            for over in ahead.ask(&range, &estimate.figures()) {
                arrived.remove(&over);
            }
            let mut rest = range;
            while !rest.is_empty() {
                for started in ahead.start(&rest) {
                    let bytes = started.end - started.start;
                    under_way.push_back((estimate.depart(link.now), link.arrival(bytes), started));
                }
                let held: u64 = ahead.held.iter().map(|(start, it)| it.end - start).sum();
                held_max = held_max.max(held);
                let here = |arrived: &BTreeMap<u64, u64>| {
                    let before = arrived.range(..=rest.start).next_back();
                    before.map(|(_, end)| *end).filter(|end| *end > rest.start)
                };
                while here(&arrived).is_none() {
                    let (departure, at, range): (_, _, Range<u64>) = under_way.pop_front().unwrap();
                    link.now = link.now.max(at);
                    estimate.arrive(departure, link.now, range.end - range.start);
                    arrived.insert(range.start, range.end);
                }
                let end = here(&arrived).unwrap().min(rest.end);
                for over in ahead.use_bytes(&(rest.start..end)) {
                    arrived.remove(&over);
                }
                rest.start = end;
            }
        }
        held_max
    }

    /// The share of the link that the program got, in percent.
    fn percent(link: &TestLink, useful: u64) -> u64 {
        useful * 100 / (link.bytes_per_second * link.now.as_millis() as u64 / 1000)
    }

    #[test]
    fn a_sequential_reader_gets_nine_tenths_of_the_link() {
        for (delay_ms, rate_max) in [(5, 125_000_000), (50, 125_000_000), (50, 25_000_000)] {
            for read in [64 * KIB, MIB, 16 * MIB] {
                let mut link = TestLink::new(delay_ms, rate_max);
                let total = 8 * rate_max / read * read;
                let held = read_all(&mut link, (0..total / read).map(|i| i * read..(i + 1) * read));
                let percent = percent(&link, total);
                assert!(percent >= 90, "{percent} % of the link at {delay_ms} ms with {read}");
                assert!(held <= 72 * MIB, "{held}");
            }
        }
    }

    #[test]
    fn a_stride_gets_nine_tenths_of_the_link_and_nothing_else_is_transferred() {
        for (read, skip) in [(512 * KIB, 3584 * KIB), (3 * MIB, 6 * MIB)] {
            let mut link = TestLink::new(100, 125_000_000);
            let count = (4 << 30) / read;
            let starts = (0..count).map(|i| i * (read + skip));
            read_all(&mut link, starts.map(|start| start..start + read));
            let percent = percent(&link, count * read);
            assert!(percent >= 90, "{percent} % of the link");
            assert!(link.bytes <= count * read * 11 / 10, "{} bytes", link.bytes);
        }
    }

    #[test]
    fn reads_without_order_transfer_what_they_ask_for() {
        let mut link = TestLink::new(100, 125_000_000);
        let mut place = 1u64;
        let starts = (0..500).map(|_| {
            place = place.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (place >> 24) / 4096 * 4096
        });
        read_all(&mut link, starts.map(|start| start..start + 4096));
        assert!(link.bytes <= 500 * 4096 * 2, "{} bytes", link.bytes);
    }

    #[test]
    fn nothing_is_read_ahead_past_the_end_until_the_program_is_there() {
        let mut ahead = AheadPlanner::new(MIB);
        ahead.ask(&(0..4096), &LinkEstimate::default());
        ahead.note_end(4096);
        assert_eq!(ahead.start(&(0..4096)).len(), 1);
        ahead.use_bytes(&(0..4096));
        ahead.ask(&(4096..8192), &LinkEstimate::default());
        assert!(ahead.start(&(4096..8192)).len() > 1);
    }
}
