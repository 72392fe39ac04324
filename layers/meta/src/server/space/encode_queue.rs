//! Chunks that may become wide stripes, or whose wide stripe may have to end; those of files of
//! which the class has changed.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// What is noted, at most: beyond that all chunks are looked at again.
const NOTED_MAX: usize = 1 << 16;
/// Files that are noted with all their chunks, at most.
const FILES_MAX: usize = 1 << 12;
/// Chunks that were written are left alone for this long.
const IDLE_TIME: Duration = Duration::from_secs(1);

/// Which chunks are to be looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ScanExtent {
    /// Those of this file from one on.
    File(u64, u64),
    /// All of the node behind this key; empty for the start.
    Node(Vec<u8>),
}

/// Files, and the first of the chunks in them that are to be looked at together.
#[derive(Default)]
pub(crate) struct EncodeQueue {
    /// When it is to be looked at.
    noted: RefCell<BTreeMap<(u64, u64), Duration>>,
    /// The same in the order of time.
    due: RefCell<BTreeSet<(Duration, (u64, u64))>>,
    /// All chunks behind this key are to be looked at.
    scan_from: RefCell<Option<Vec<u8>>>,
    /// All chunks of these files from one on are to be looked at.
    files: RefCell<BTreeMap<u64, u64>>,
    /// Some could not be noted.
    is_incomplete: Cell<bool>,
    wake: RefCell<Option<Box<dyn Fn()>>>,
    /// Nothing is left alone for a while.
    is_eager: Cell<bool>,
}

impl EncodeQueue {
    /// Calls `wake` whenever something is noted.
    pub(super) fn on_note(&self, wake: impl Fn() + 'static) {
        self.wake.replace(Some(Box::new(wake)));
    }

    /// Nothing is left alone for a while from now on.
    pub(super) fn set_eager(&self) {
        self.is_eager.set(true);
    }

    pub(super) fn is_eager(&self) -> bool {
        self.is_eager.get()
    }

    /// Chunks have changed, or are gone, of which `together` are looked at together.
    pub(crate) fn note(
        &self,
        ino: u64,
        chunks: impl Iterator<Item = u64>,
        (together, now): (u64, Duration),
    ) {
        let pause = if self.is_eager() { Duration::ZERO } else { IDLE_TIME };
        for index in chunks {
            self.put((ino, index / together * together), now + pause);
        }
        self.tell();
    }

    /// All chunks of a file are to be looked at.
    pub(crate) fn note_file(&self, ino: u64) {
        if self.files.borrow().len() < FILES_MAX {
            self.files.borrow_mut().insert(ino, 0);
        } else {
            self.scan_from.replace(Some(Vec::new()));
        }
        self.tell();
    }

    /// All chunks of the node are to be looked at.
    pub(super) fn note_all(&self) {
        self.scan_from.replace(Some(Vec::new()));
        self.tell();
    }

    fn tell(&self) {
        if let Some(wake) = &*self.wake.borrow() {
            wake();
        }
    }

    /// To be looked at then.
    pub(super) fn put(&self, what: (u64, u64), at: Duration) {
        if self.noted.borrow().len() >= NOTED_MAX && !self.noted.borrow().contains_key(&what) {
            self.is_incomplete.set(true);
            return;
        }
        let mut due = self.due.borrow_mut();
        if let Some(before) = self.noted.borrow_mut().insert(what, at) {
            due.remove(&(before, what));
        }
        due.insert((at, what));
    }

    /// When there is something to do; `None` if nothing is left.
    pub(super) fn next_due(&self) -> Option<Duration> {
        if self.noted.borrow().is_empty() && self.is_incomplete.take() {
            self.scan_from.replace(Some(Vec::new()));
        }
        if self.next_scan().is_some() {
            return Some(Duration::ZERO);
        }
        self.due.borrow().first().map(|(at, _)| *at)
    }

    /// Takes the next that is due.
    pub(super) fn take(&self, now: Duration) -> Option<(u64, u64)> {
        let mut due = self.due.borrow_mut();
        let first = due.first().copied().filter(|(at, _)| *at <= now)?;
        due.remove(&first);
        self.noted.borrow_mut().remove(&first.1);
        Some(first.1)
    }

    /// Which chunks are to be looked at next.
    pub(super) fn next_scan(&self) -> Option<ScanExtent> {
        let files = self.files.borrow();
        let file = files.first_key_value().map(|(&ino, &next)| ScanExtent::File(ino, next));
        file.or_else(|| self.scan_from.borrow().clone().map(ScanExtent::Node))
    }

    /// Chunks of a file were looked at, up to this one; all of them if it is `None`.
    pub(super) fn scanned_file(&self, ino: u64, last: Option<u64>) {
        let mut files = self.files.borrow_mut();
        match last {
            Some(last) => files.insert(ino, last + 1),
            None => files.remove(&ino),
        };
    }

    /// How many are to be looked at, as far as that is known.
    pub(super) fn waiting(&self) -> u64 {
        (self.noted.borrow().len() + self.files.borrow().len()) as u64
            + u64::from(self.scan_from.borrow().is_some())
    }

    /// Those of the node were looked at, up to `next`; all of them if that is `None`.
    pub(super) fn scanned(&self, next: Option<Vec<u8>>) {
        self.scan_from.replace(next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changes_again_is_looked_at_later_and_once() {
        let (queue, second) = (EncodeQueue::default(), Duration::from_secs(1));
        queue.note(7, [0, 1, 5].into_iter(), (4, second));
        assert_eq!(queue.next_due(), Some(2 * second));
        queue.note(7, [2].into_iter(), (4, 5 * second));
        assert_eq!(queue.take(2 * second), Some((7, 4)));
        assert_eq!(queue.take(5 * second), None);
        assert_eq!(queue.take(6 * second), Some((7, 0)));
        assert_eq!(queue.next_due(), None);
    }

    #[test]
    fn what_is_too_much_to_be_noted_is_looked_for() {
        let queue = EncodeQueue::default();
        queue.note(7, 0..=NOTED_MAX as u64, (1, Duration::ZERO));
        let mut taken = 0;
        while queue.take(IDLE_TIME).is_some() {
            taken += 1;
        }
        assert_eq!((taken, queue.next_due()), (NOTED_MAX, Some(Duration::ZERO)));
        assert_eq!(queue.next_scan(), Some(ScanExtent::Node(Vec::new())));
        queue.scanned(None);
        assert_eq!(queue.next_due(), None);
    }
}
