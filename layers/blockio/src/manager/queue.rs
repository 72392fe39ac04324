//! What waits for one disk. Reads and writes take turns, so that neither a flusher nor a reader
//! who asks for much holds up the other; neighbours on the disk go together.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;

use super::Turn;
use crate::protocol::Error;
use crate::stripes::BootId;

/// Bytes that go to the disk as one transfer, at most. A single request may be larger.
pub(super) const MERGED_BYTES_MAX: usize = 1 << 20;

/// One request that waits for its disk.
pub(super) struct QueuedRequest<T> {
    pub(super) offset: u64,
    pub(super) length: usize,
    /// When it arrived.
    pub(super) came: Duration,
    pub(super) work: T,
}

impl<T> QueuedRequest<T> {
    fn end(&self) -> u64 {
        self.offset + self.length as u64
    }
}

pub(super) struct Read {
    pub(super) reply: Turn<Bytes>,
}

pub(super) struct Write {
    pub(super) data: Vec<Bytes>,
    pub(super) reply: Turn<BootId>,
}

/// Requests that go to the disk as one transfer: each begins where the one before ends.
pub(super) enum Transfer {
    Read(Vec<QueuedRequest<Read>>),
    Write(Vec<QueuedRequest<Write>>),
}

/// The requests of one disk, in order.
#[derive(Default)]
pub(super) struct DiskQueue {
    reads: RequestsByPlace<Read>,
    writes: RequestsByPlace<Write>,
    /// The last transfer was a read.
    has_read: bool,
}

impl DiskQueue {
    pub(super) fn len(&self) -> usize {
        self.reads.by_age.len() + self.writes.by_age.len()
    }

    pub(super) fn push_read(&mut self, read: QueuedRequest<Read>) {
        self.reads.push(read);
    }

    pub(super) fn push_write(&mut self, write: QueuedRequest<Write>) {
        self.writes.push(write);
    }

    /// Answers all writes; some callers may have gone.
    pub(super) fn refuse_writes(&mut self, why: Error) {
        for write in std::mem::take(&mut self.writes).by_age.into_values() {
            let _ = write.work.reply.send(Err(why));
        }
    }

    /// The next transfer.
    pub(super) fn pop(&mut self) -> Option<Transfer> {
        let read = !self.reads.is_empty() && (self.writes.is_empty() || !self.has_read);
        self.has_read = read;
        if read {
            self.reads.pop().map(Transfer::Read)
        } else {
            self.writes.pop().map(Transfer::Write)
        }
    }
}

/// Requests of one kind, by age and by place.
struct RequestsByPlace<T> {
    /// Numbered as they came.
    by_age: BTreeMap<u64, QueuedRequest<T>>,
    /// Where each begins, and its number.
    starts: BTreeSet<(u64, u64)>,
    /// Where each ends, and its number.
    ends: BTreeSet<(u64, u64)>,
    next: u64,
}

impl<T> Default for RequestsByPlace<T> {
    fn default() -> Self {
        Self { by_age: BTreeMap::new(), starts: BTreeSet::new(), ends: BTreeSet::new(), next: 0 }
    }
}

impl<T> RequestsByPlace<T> {
    fn is_empty(&self) -> bool {
        self.by_age.is_empty()
    }

    fn push(&mut self, request: QueuedRequest<T>) {
        let age = self.next;
        self.next += 1;
        self.starts.insert((request.offset, age));
        self.ends.insert((request.end(), age));
        self.by_age.insert(age, request);
    }

    fn remove(&mut self, age: u64) -> Option<QueuedRequest<T>> {
        let request = self.by_age.remove(&age)?;
        self.starts.remove(&(request.offset, age));
        self.ends.remove(&(request.end(), age));
        Some(request)
    }

    /// The oldest of `places` at `place`, if it has at most `length_max` bytes.
    fn neighbour(
        &self,
        places: &BTreeSet<(u64, u64)>,
        place: u64,
        length_max: usize,
    ) -> Option<u64> {
        let &(_, age) = places.range((place, 0)..=(place, u64::MAX)).next()?;
        self.by_age.get(&age).filter(|request| request.length <= length_max).map(|_| age)
    }

    /// The oldest request, with those that continue it and those that it continues, in order.
    fn pop(&mut self) -> Option<Vec<QueuedRequest<T>>> {
        let (&age, _) = self.by_age.first_key_value()?;
        let first = self.remove(age)?;
        let (mut start, mut end, mut bytes) = (first.offset, first.end(), first.length);
        let (mut before, mut run) = (Vec::new(), vec![first]);
        while let Some(age) =
            self.neighbour(&self.starts, end, MERGED_BYTES_MAX.saturating_sub(bytes))
        {
            let next = self.remove(age)?;
            (end, bytes) = (next.end(), bytes + next.length);
            run.push(next);
        }
        while let Some(age) =
            self.neighbour(&self.ends, start, MERGED_BYTES_MAX.saturating_sub(bytes))
        {
            let next = self.remove(age)?;
            (start, bytes) = (next.offset, bytes + next.length);
            before.push(next);
        }
        before.reverse();
        before.append(&mut run);
        Some(before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests(places: &[(u64, usize)]) -> RequestsByPlace<()> {
        let mut requests = RequestsByPlace::default();
        for &(offset, length) in places {
            requests.push(QueuedRequest { offset, length, came: Duration::ZERO, work: () });
        }
        requests
    }

    fn runs(mut requests: RequestsByPlace<()>) -> Vec<Vec<u64>> {
        let runs = std::iter::from_fn(|| requests.pop());
        let runs: Vec<_> =
            runs.map(|run| run.iter().map(|request| request.offset).collect()).collect();
        assert!(requests.starts.is_empty() && requests.ends.is_empty());
        runs
    }

    #[test]
    fn neighbours_on_both_sides_of_the_oldest_go_with_it_in_order() {
        let places = [(40, 10), (90, 10), (50, 10), (20, 10), (70, 10), (30, 10)];
        assert_eq!(runs(requests(&places)), [vec![20, 30, 40, 50], vec![90], vec![70]]);
    }

    #[test]
    fn neighbours_go_together_however_many_others_came_between() {
        let strangers = (0..500).map(|i| (1_000_000 + 20 * i, 10));
        let places: Vec<_> = [(0, 10)].into_iter().chain(strangers).chain([(10, 10)]).collect();
        assert_eq!(runs(requests(&places))[0], [0, 10]);
    }

    #[test]
    fn a_transfer_is_no_longer_than_its_limit_unless_one_request_is() {
        let half = MERGED_BYTES_MAX / 2;
        let at = |i: usize| (i * half) as u64;
        let places = [(at(1), half), (at(2), half), (at(3), half), (at(0), 3 * half)];
        assert_eq!(runs(requests(&places)), [vec![at(1), at(2)], vec![at(3)], vec![at(0)]]);
    }

    #[test]
    fn two_requests_for_the_same_place_are_both_answered() {
        assert_eq!(runs(requests(&[(0, 10), (10, 10), (10, 10)])), [vec![0, 10], vec![10]]);
    }
}
