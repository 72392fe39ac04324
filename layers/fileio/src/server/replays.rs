//! The order of changes of content over a loss (ADR 73).
//!
//! Each change of a file gets a number when it is installed, and a higher one when it is installed
//! again after a loss. Its first number is its order, which stays. After a loss (the node has
//! restarted, or a file was rolled back) clients send again what they still have, in any order
//! among each other. So for a while the table knows which bytes were changed since the loss, and
//! the order of these changes: a replay changes only bytes that no later change has touched.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use meta::protocol::{CommitMark, EPOCH_SHIFT};
use runtime::Context;

use super::changed_ranges::{ChangedRanges, RangeChange};
use super::hand_over::{FileReplayHandover, ReplayHandover};
use crate::protocol::LEASE;

/// Clients send again what was lost within this time.
pub(super) const REPLAY_GRACE: Duration = LEASE;

/// Changes of ranges, and files, that one node remembers, at most: some 100 bytes each. Past it
/// replays to files that were changed since the loss are refused.
const CHANGES_MAX: usize = 1 << 16;

/// Those that a node passes to its successor, at most; of other files nothing is known then.
const HANDED_MAX: usize = 1 << 12;

/// The numbers of a change that comes again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReplayNumbers {
    /// That of the first answer.
    pub(super) order: u64,
    /// That of the last answer.
    pub(super) sequence: u64,
}

/// A file that was changed since a loss.
#[derive(Clone, Debug)]
struct FileReplay {
    /// All changes with higher numbers are in `ranges`.
    since: u64,
    /// When it is forgotten.
    until: Duration,
    ranges: ChangedRanges,
}

#[derive(Debug)]
struct ReplayState {
    /// The next number.
    next: u64,
    /// The first number of this life of the node.
    begin: u64,
    /// Until then any file may have replays to come.
    grace_end: Duration,
    files: BTreeMap<u64, FileReplay>,
    /// Changes in these, and the files themselves.
    size: usize,
    /// When files to forget are looked for next.
    purge_at: Duration,
}

/// What becomes of a replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ReplayVerdict {
    /// It is there.
    Present,
    /// Parts of it are to be changed.
    Apply(ReplayParts),
    /// It cannot be told what was later.
    Unknown,
}

/// What is to be changed by a replay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ReplayParts {
    /// These bytes.
    pub(super) ranges: Vec<Range<u64>>,
    /// The file had at least this many bytes after it, unless it was cut.
    pub(super) end: u64,
    /// The highest number of a later change of the other bytes; 0 if there are none.
    pub(super) covered_by: u64,
    /// Another append has some of them.
    pub(super) by_append: bool,
}

impl ReplayParts {
    fn all(range: Range<u64>) -> Self {
        Self { end: range.end, ranges: vec![range], ..Self::default() }
    }
}

/// Numbers changes, and judges replays.
#[derive(Debug)]
pub(super) struct ReplayTable {
    context: Context,
    state: RefCell<ReplayState>,
}

impl ReplayTable {
    /// Of a node that starts: what it had not committed is lost.
    pub(super) fn new(context: Context) -> Self {
        let begin = (context.epoch().0 << EPOCH_SHIFT) + 1;
        let grace_end = context.now() + REPLAY_GRACE;
        let state = ReplayState {
            next: begin,
            begin,
            grace_end,
            files: BTreeMap::new(),
            size: 0,
            purge_at: Duration::MAX,
        };
        Self { context, state: RefCell::new(state) }
    }

    /// The number of a change that is installed now, with all that is there then; `installed` is
    /// there before. `order` if it is a replay.
    pub(super) fn mark(&self, ino: u64, installed: &CommitMark, order: Option<u64>) -> CommitMark {
        let now = self.context.now();
        let state = &mut *self.state.borrow_mut();
        state.purge(now);
        let sequence = state.next;
        state.next += 1;
        if now < state.grace_end && installed.sequence < state.begin {
            // The first change since the node started.
            state.add(ino, installed.sequence, state.grace_end);
        }
        installed.next(sequence, order.unwrap_or(sequence), state.begin)
    }

    /// Are changed bytes noted, of some file?
    pub(super) fn is_noting(&self) -> bool {
        let state = self.state.borrow();
        !state.files.is_empty() || self.context.now() < state.grace_end
    }

    /// Bytes were changed; `recorded` as in [`ChangedRanges::put`].
    pub(super) fn note(
        &self,
        ino: u64,
        range: Range<u64>,
        change: RangeChange,
        recorded: (&CommitMark, u64),
    ) {
        let state = &mut *self.state.borrow_mut();
        let Some(file) = state.files.get_mut(&ino) else { return };
        let before = file.ranges.size();
        file.ranges.put(range, change, recorded);
        state.size = (state.size + file.ranges.size()).saturating_sub(before);
        if state.size > CHANGES_MAX {
            state.forget_largest();
        }
    }

    /// Changes of the file are lost; `installed` is what is left, with the gap that they leave.
    pub(super) fn note_loss(&self, ino: u64, installed: &CommitMark) {
        let now = self.context.now();
        let state = &mut *self.state.borrow_mut();
        state.purge(now);
        let until = now + REPLAY_GRACE;
        if let Some(file) = state.files.get_mut(&ino) {
            let before = file.ranges.size();
            file.until = until;
            file.ranges.lose(installed);
            state.size = (state.size + file.ranges.size()).saturating_sub(before);
        } else {
            let since = installed.missing.last().map_or(installed.sequence, |gap| gap.after);
            state.add(ino, since, until);
        }
    }

    /// What becomes of a change that was answered and comes again.
    pub(super) fn judge(
        &self,
        ino: u64,
        numbers: ReplayNumbers,
        range: Range<u64>,
        installed: &CommitMark,
    ) -> ReplayVerdict {
        let now = self.context.now();
        let state = &mut *self.state.borrow_mut();
        state.purge(now);
        let ReplayNumbers { order, sequence } = numbers;
        let is_of_this_life = sequence >= state.begin && sequence > installed.sequence;
        if order == 0 || order > sequence || sequence >= state.next || is_of_this_life {
            // This node gave no such numbers.
            return ReplayVerdict::Unknown;
        }
        match installed.covers(sequence) {
            Some(true) => return ReplayVerdict::Present,
            Some(false) => {}
            None => return ReplayVerdict::Unknown,
        }
        // However late it comes: others may come after it.
        let until = now + REPLAY_GRACE;
        if let Some(file) = state.files.get_mut(&ino).filter(|file| file.since < order) {
            file.until = file.until.max(until);
            return ReplayVerdict::Apply(file.ranges.parts_before(order, range));
        }
        if installed.top_order_after(order) > order {
            return ReplayVerdict::Unknown;
        }
        state.add(ino, installed.sequence, until);
        // Of what was changed since it was lost nothing is later, but it may be an append.
        let by_append = installed.top_order_after(sequence) > 0;
        ReplayVerdict::Apply(ReplayParts { by_append, ..ReplayParts::all(range) })
    }

    /// For the node's successor, when all that is there is durable.
    pub(super) fn hand_over(&self) -> ReplayHandover {
        let now = self.context.now();
        let state = &mut *self.state.borrow_mut();
        state.purge(now);
        let mut left = HANDED_MAX;
        let handed = state.files.iter().filter_map(|(&ino, file)| {
            let FileReplay { since, until, ref ranges } = *file;
            left = left.checked_sub(1 + ranges.size())?;
            let left_ms = until.saturating_sub(now).as_millis() as u64;
            Some(FileReplayHandover { ino, since, left_ms, ranges: ranges.hand_over() })
        });
        let files = handed.collect();
        let grace_left_ms = state.grace_end.saturating_sub(now).as_millis() as u64;
        ReplayHandover { begin: state.begin, next: state.next, grace_left_ms, files }
    }

    /// Continues after a planned move, in which nothing was lost.
    pub(super) fn resume(&self, handed: &ReplayHandover) {
        let now = self.context.now();
        let state = &mut *self.state.borrow_mut();
        if handed.begin == 0 {
            return;
        }
        // It is the same life: its numbers go on, and what was lost in it is recorded.
        (state.begin, state.next) = (handed.begin, handed.next);
        state.grace_end = now + Duration::from_millis(handed.grace_left_ms);
        for file in &handed.files {
            let until = now + Duration::from_millis(file.left_ms);
            state.add(file.ino, file.since, until);
            if let Some(known) = state.files.get_mut(&file.ino) {
                known.ranges = ChangedRanges::resume(&file.ranges);
                state.size += known.ranges.size();
            }
        }
    }
}

impl ReplayState {
    fn add(&mut self, ino: u64, since: u64, until: Duration) {
        if self.files.contains_key(&ino) {
            return;
        }
        if self.size >= CHANGES_MAX {
            self.forget_largest();
        }
        let ranges = ChangedRanges::default();
        self.files.insert(ino, FileReplay { since, until, ranges });
        self.size += 1;
        self.purge_at = self.purge_at.min(until);
    }

    /// What one user has changed in many places does not cost others their writes.
    fn forget_largest(&mut self) {
        let largest = self.files.iter().max_by_key(|(_, file)| file.ranges.size());
        let Some(ino) = largest.map(|(&ino, _)| ino) else { return };
        tracing::warn!(ino, "too many changes since a loss: lost writes may not be taken again");
        let known = self.files.remove(&ino).map_or(0, |file| 1 + file.ranges.size());
        self.size = self.size.saturating_sub(known);
    }

    /// Forgets files whose time is over.
    fn purge(&mut self, now: Duration) {
        if now < self.purge_at {
            return;
        }
        self.files.retain(|_, file| file.until > now);
        self.size = self.files.values().map(|file| 1 + file.ranges.size()).sum();
        self.purge_at = self.files.values().map(|file| file.until).min().unwrap_or(Duration::MAX);
    }
}
