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
    /// All of the node behind this key, and then its wide stripes; empty for the start.
    Node(Vec<u8>),
}

/// Files, and the first of the chunks in them that are to be looked at together.
#[derive(Default)]
pub(crate) struct EncodeQueue {
    /// When it is to be looked at.
    noted: RefCell<BTreeMap<(u64, u64), Duration>>,
    /// The same in the order of time.
    due: RefCell<BTreeSet<(Duration, (u64, u64))>>,
    /// All chunks, and then wide stripes, behind this key are to be looked at.
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
        // What waits for long does not keep from the rest.
        if self.noted.borrow().len() < NOTED_MAX / 2 && self.is_incomplete.take() {
            self.scan_from.replace(Some(Vec::new()));
        }
        if self.has_scan() {
            return Some(Duration::ZERO);
        }
        self.due.borrow().first().map(|(at, _)| *at)
    }

    fn has_scan(&self) -> bool {
        !self.files.borrow().is_empty() || self.scan_from.borrow().is_some()
    }

    /// Takes the next that is due.
    pub(super) fn take(&self, now: Duration) -> Option<(u64, u64)> {
        let mut due = self.due.borrow_mut();
        let first = due.first().copied().filter(|(at, _)| *at <= now)?;
        due.remove(&first);
        self.noted.borrow_mut().remove(&first.1);
        Some(first.1)
    }

    /// Takes the chunks that are to be looked at next. What is noted meanwhile comes after that.
    pub(super) fn take_scan(&self) -> Option<ScanExtent> {
        let file = self.files.borrow_mut().pop_first();
        let file = file.map(|(ino, next)| ScanExtent::File(ino, next));
        file.or_else(|| self.scan_from.take().map(ScanExtent::Node))
    }

    /// These are to be looked at, too, unless all of them are already.
    pub(super) fn scan_later(&self, extent: ScanExtent) {
        match extent {
            ScanExtent::File(ino, next) => {
                self.files.borrow_mut().entry(ino).or_insert(next);
            }
            ScanExtent::Node(from) => {
                self.scan_from.borrow_mut().get_or_insert(from);
            }
        }
    }

    /// How many are to be looked at, as far as that is known.
    pub(super) fn waiting(&self) -> u64 {
        (self.noted.borrow().len() + self.files.borrow().len()) as u64
            + u64::from(self.scan_from.borrow().is_some())
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
        assert_eq!(queue.take_scan(), Some(ScanExtent::Node(Vec::new())));
        assert_eq!(queue.next_due(), None);
    }

    #[test]
    fn what_is_noted_while_it_is_looked_at_is_looked_at_again() {
        let queue = EncodeQueue::default();
        queue.note_file(7);
        assert_eq!(queue.take_scan(), Some(ScanExtent::File(7, 0)));
        queue.note_file(7);
        queue.scan_later(ScanExtent::File(7, 30));
        assert_eq!(queue.take_scan(), Some(ScanExtent::File(7, 0)));
        queue.scan_later(ScanExtent::File(7, 30));
        assert_eq!(queue.take_scan(), Some(ScanExtent::File(7, 30)));
        queue.note_all();
        assert_eq!(queue.take_scan(), Some(ScanExtent::Node(Vec::new())));
        queue.note_all();
        queue.scan_later(ScanExtent::Node(vec![1]));
        assert_eq!(queue.take_scan(), Some(ScanExtent::Node(Vec::new())));
        assert_eq!((queue.take_scan(), queue.waiting()), (None, 0));
    }
}
