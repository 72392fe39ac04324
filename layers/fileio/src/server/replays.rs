//! The order of changes of content over a loss (ADR 73).
//!
//! Each change of a file has a number. After a loss (the node restarted, or a file was rolled back)
//! clients send again what they still have, in any order among each other. So for a while the table
//! knows which bytes were changed since the loss, and by which number: a replay changes only bytes
//! that no later change has touched.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use meta::protocol::{CommitMark, EPOCH_SHIFT};
use runtime::Context;

use super::hand_over::ReplayHandover;
use crate::protocol::LEASE;

/// Clients send again what was lost within this time.
pub(super) const REPLAY_GRACE: Duration = LEASE;

/// Ranges and files that one node remembers, at most: some 100 bytes each. Past it replays to files
/// that were changed since the loss are refused.
const RANGES_MAX: usize = 1 << 16;

/// Bytes that were changed since the loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ChangedRange {
    end: u64,
    /// The number of the change; of a replay, that of its first answer.
    order: u64,
    /// The number under which it was installed here.
    installed: u64,
    /// It was a replay and may be lost again: its place among replays of the first loss is gone.
    is_renumbered: bool,
    /// The bytes were cut off: no size follows from them.
    is_cut: bool,
    is_append: bool,
}

/// A file that was changed since a loss.
#[derive(Clone, Debug)]
struct FileReplay {
    /// What the file had after the loss.
    recovered: CommitMark,
    /// The first number after the loss, and after the last one if there were several.
    first_begin: u64,
    begin: u64,
    /// When it is forgotten.
    until: Duration,
    /// What was changed since; `None` if that was too much, or is forgotten.
    ranges: Option<BTreeMap<u64, ChangedRange>>,
}

#[derive(Debug)]
struct ReplayState {
    /// The next number.
    next: u64,
    /// The first number of this life of the node; of the first one, if it moved by plan since.
    begin: u64,
    /// Until then any file may have replays to come.
    grace_end: Duration,
    files: BTreeMap<u64, FileReplay>,
    /// Ranges of these, and the files themselves.
    size: usize,
    /// When files to forget are looked for next.
    purge_at: Duration,
    /// There were too many: of earlier numbers nothing is known.
    has_overflowed: bool,
}

/// What a node knows of a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct FileMarks {
    /// What its record covers.
    pub(super) committed: CommitMark,
    /// The number of the last change.
    pub(super) installed: u64,
}

/// What becomes of a replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ReplayVerdict {
    /// It is durable.
    Durable,
    /// It was done since the loss, or not lost.
    Present,
    /// These bytes of it are to be changed.
    Apply {
        ranges: Vec<Range<u64>>,
        /// They are all of it.
        is_whole: bool,
        /// The file had at least this many bytes after it, unless it was cut.
        end: u64,
        /// Another append has some of them.
        by_append: bool,
    },
    /// It cannot be told what was later.
    Unknown,
}

impl ReplayVerdict {
    fn all(range: Range<u64>) -> Self {
        Self::Apply { end: range.end, ranges: vec![range], is_whole: true, by_append: false }
    }
}

/// Numbers changes, and judges replays.
#[derive(Debug)]
pub(super) struct ReplayTable {
    context: Context,
    state: RefCell<ReplayState>,
}

impl ReplayTable {
    /// Of a node that starts: whatever it had not committed is lost.
    pub(super) fn new(context: Context) -> Self {
        let begin = (context.epoch().0 << EPOCH_SHIFT) + 1;
        let grace_end = context.now() + REPLAY_GRACE;
        let state = ReplayState {
            next: begin,
            begin,
            grace_end,
            files: BTreeMap::new(),
            size: 0,
            purge_at: grace_end,
            has_overflowed: false,
        };
        Self { context, state: RefCell::new(state) }
    }

    /// The number of a change that is installed now, and what is missing of earlier ones.
    pub(super) fn mark(&self, ino: u64, marks: FileMarks) -> CommitMark {
        let now = self.context.now();
        let state = &mut *self.state.borrow_mut();
        state.purge(now);
        let sequence = state.next;
        state.next += 1;
        let begin = match state.files.get(&ino) {
            Some(file) => file.begin,
            None if now < state.grace_end && marks.installed < state.begin => {
                state.add(ino, marks.committed, state.begin, state.grace_end);
                state.begin
            }
            None => state.begin,
        };
        marks.committed.next(sequence, begin)
    }

    /// Are changed bytes noted, of some file?
    pub(super) fn is_noting(&self) -> bool {
        self.state.borrow().size > 0
    }

    /// Bytes were changed under this number; `order` if that was a replay.
    pub(super) fn note(&self, ino: u64, range: Range<u64>, sequence: u64, order: Option<u64>) {
        self.note_change(ino, range, (sequence, order), false);
    }

    /// The same for what may be an append.
    pub(super) fn note_change(
        &self,
        ino: u64,
        range: Range<u64>,
        (sequence, order): (u64, Option<u64>),
        is_append: bool,
    ) {
        let order = order.unwrap_or(sequence);
        let changed = ChangedRange {
            end: range.end,
            order,
            installed: sequence,
            is_renumbered: false,
            is_cut: range.end == u64::MAX,
            is_append,
        };
        let state = &mut *self.state.borrow_mut();
        let Some(ranges) = state.files.get_mut(&ino).and_then(|file| file.ranges.as_mut()) else {
            return;
        };
        let before = ranges.len();
        put(ranges, range.start, changed);
        state.size = (state.size + ranges.len()).saturating_sub(before);
        if state.size > RANGES_MAX {
            state.drop_ranges(ino);
        }
    }

    /// Uncommitted changes of the file are lost, and it is as its record has it.
    pub(super) fn note_loss(&self, ino: u64, committed: CommitMark) {
        let now = self.context.now();
        let state = &mut *self.state.borrow_mut();
        state.purge(now);
        let (next, until) = (state.next, now + REPLAY_GRACE);
        match state.files.get_mut(&ino) {
            Some(file) => file.lose(next, until),
            None => state.add(ino, committed, next, until),
        }
        state.purge_at = state.purge_at.min(until);
    }

    /// What becomes of a change that was answered with the number `sequence`.
    pub(super) fn judge(
        &self,
        ino: u64,
        sequence: u64,
        range: Range<u64>,
        marks: FileMarks,
    ) -> ReplayVerdict {
        let now = self.context.now();
        let state = &mut *self.state.borrow_mut();
        state.purge(now);
        let Some(file) = state.files.get(&ino) else {
            if sequence >= state.begin {
                return ReplayVerdict::Present;
            }
            let is_unchanged = marks.installed < state.begin && !state.has_overflowed;
            let verdict = judge_by_record(&marks.committed, sequence);
            if verdict.is_some() || !is_unchanged {
                return verdict.unwrap_or(ReplayVerdict::Unknown);
            }
            // It was not changed since the loss, whenever that was.
            state.add(ino, marks.committed, state.begin, now + REPLAY_GRACE);
            return ReplayVerdict::all(range);
        };
        if sequence >= file.begin {
            return ReplayVerdict::Present;
        }
        match &file.ranges {
            None => judge_by_record(&marks.committed, sequence).unwrap_or(ReplayVerdict::Unknown),
            Some(ranges) => judge_by_record(&file.recovered, sequence)
                .unwrap_or_else(|| judge_by_ranges(ranges, sequence, file.first_begin, range)),
        }
    }

    /// For the node's successor.
    pub(super) fn hand_over(&self) -> ReplayHandover {
        let now = self.context.now();
        let state = &mut *self.state.borrow_mut();
        state.purge(now);
        ReplayHandover {
            begin: state.begin,
            next: state.next,
            grace_left_ms: state.grace_end.saturating_sub(now).as_millis() as u64,
        }
    }

    /// Continues after a planned move, in which nothing was lost.
    pub(super) fn resume(&self, handed: &ReplayHandover) {
        let now = self.context.now();
        let state = &mut *self.state.borrow_mut();
        if handed.begin > 0 {
            // It is the same life: its numbers go on.
            (state.begin, state.next) = (handed.begin, handed.next);
            state.grace_end = now + Duration::from_millis(handed.grace_left_ms);
        }
    }
}

impl ReplayState {
    fn add(&mut self, ino: u64, recovered: CommitMark, begin: u64, until: Duration) {
        if self.size >= RANGES_MAX {
            self.overflow();
            return;
        }
        let ranges = Some(BTreeMap::new());
        let file = FileReplay { recovered, first_begin: begin, begin, until, ranges };
        self.files.insert(ino, file);
        self.size += 1;
        self.purge_at = self.purge_at.min(until);
    }

    /// Nothing is known any more of numbers up to now.
    fn overflow(&mut self) {
        tracing::warn!("too many changes since a loss: unsynced writes may not be taken again");
        self.files.clear();
        self.size = 0;
        self.begin = self.next;
        self.has_overflowed = true;
    }

    fn drop_ranges(&mut self, ino: u64) {
        let ranges = self.files.get_mut(&ino).and_then(|file| file.ranges.take());
        self.size = self.size.saturating_sub(ranges.map_or(0, |ranges| ranges.len()));
    }

    /// Forgets ranges whose time is over. That a file was rolled back is kept.
    fn purge(&mut self, now: Duration) {
        if now < self.purge_at {
            return;
        }
        let (begin, mut size, mut next) = (self.begin, 0, Duration::MAX);
        self.files.retain(|_, file| {
            if file.until <= now {
                file.ranges = None;
            } else {
                next = next.min(file.until);
            }
            let is_kept = file.ranges.is_some() || file.begin > begin;
            size += usize::from(is_kept) * (1 + file.ranges.as_ref().map_or(0, BTreeMap::len));
            is_kept
        });
        (self.size, self.purge_at) = (size, next);
    }
}

impl FileReplay {
    /// Changes were lost once more.
    fn lose(&mut self, begin: u64, until: Duration) {
        (self.begin, self.until) = (begin, until);
        for range in self.ranges.iter_mut().flat_map(BTreeMap::values_mut) {
            // From now on their writers know them by the second number.
            range.is_renumbered |= range.order != range.installed;
            range.order = range.installed;
        }
    }
}

/// What the record of a file says of a replay; `None` if it was lost.
fn judge_by_record(record: &CommitMark, sequence: u64) -> Option<ReplayVerdict> {
    match record.covers(sequence) {
        Some(true) => Some(ReplayVerdict::Durable),
        Some(false) => None,
        None => Some(ReplayVerdict::Unknown),
    }
}

/// The parts of `range` that no change later than `sequence` has touched.
fn judge_by_ranges(
    ranges: &BTreeMap<u64, ChangedRange>,
    sequence: u64,
    first_begin: u64,
    range: Range<u64>,
) -> ReplayVerdict {
    let (mut parts, mut at, mut end) = (Vec::new(), range.start, range.start);
    let (is_of_first_loss, mut by_append) = (sequence < first_begin, false);
    for (start, changed) in overlapping(ranges, &range) {
        if is_of_first_loss && changed.is_renumbered {
            return ReplayVerdict::Unknown;
        }
        let number = if is_of_first_loss { changed.order } else { changed.installed };
        // Appends do not overlap, so one of the two has to move.
        by_append |= changed.is_append && number != sequence;
        if number <= sequence {
            continue;
        }
        if at < start {
            parts.push(at..start);
            end = start;
        }
        at = changed.end.max(at);
        if !changed.is_cut {
            end = at.min(range.end);
        }
    }
    if at < range.end {
        parts.push(at..range.end);
        end = range.end;
    }
    let is_whole = parts.len() == 1 && parts[0] == range;
    ReplayVerdict::Apply { ranges: parts, is_whole, end, by_append }
}

fn overlapping<'a>(
    ranges: &'a BTreeMap<u64, ChangedRange>,
    range: &Range<u64>,
) -> impl Iterator<Item = (u64, ChangedRange)> + 'a {
    let (start, end) = (range.start, range.end);
    let before = ranges.range(..start).next_back().filter(|(_, changed)| changed.end > start);
    let found = before.into_iter().chain(ranges.range(start..end));
    found.map(|(&at, &changed)| (at, changed))
}

/// Puts a range in place of what it covers of others.
fn put(ranges: &mut BTreeMap<u64, ChangedRange>, start: u64, changed: ChangedRange) {
    let end = changed.end;
    if start >= end {
        return;
    }
    let covered: Vec<_> = overlapping(ranges, &(start..end)).collect();
    for (at, old) in covered {
        ranges.remove(&at);
        if at < start {
            ranges.insert(at, ChangedRange { end: start, ..old });
        }
        if old.end > end {
            ranges.insert(end, old);
        }
    }
    ranges.insert(start, changed);
}
