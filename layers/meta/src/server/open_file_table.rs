//! Which files of a node are open, and which of them have no name any more (ADR 10).

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use crate::partition::order_of;

/// What of this node is held.
#[derive(Default)]
pub(super) struct OpenFileTable {
    /// Files that are open.
    held: RefCell<BTreeSet<u64>>,
    /// Files without a name. Each has its mark in the store.
    unlinked: RefCell<BTreeSet<u64>>,
    /// What was held before an earlier start is not known yet: it may be any file whose number is
    /// below this one in its [order](order_of), which was the next then. Who holds a younger one is
    /// known. Zero if all is known.
    grace_below: Cell<u64>,
}

impl OpenFileTable {
    /// Does the file outlive its last name?
    pub(super) fn outlives_name(&self, ino: u64) -> bool {
        order_of(ino) < self.grace_below.get() || self.has(ino)
    }

    /// Is the file open, as far as is known?
    pub(super) fn has(&self, ino: u64) -> bool {
        self.held.borrow().contains(&ino)
    }

    /// Has the file lost its last name?
    pub(super) fn is_unlinked(&self, ino: u64) -> bool {
        self.unlinked.borrow().contains(&ino)
    }

    /// Notes a file whose mark was put into the store just now.
    pub(super) fn add_unlinked(&self, ino: u64) {
        self.unlinked.borrow_mut().insert(ino);
    }

    /// Forgets an inode that is gone.
    pub(super) fn removed(&self, ino: u64) {
        self.unlinked.borrow_mut().remove(&ino);
    }

    /// What is held, and below which number more may be.
    pub(super) fn all(&self) -> (Vec<u64>, u64) {
        (self.held.borrow().iter().copied().collect(), self.grace_below.get())
    }

    /// This is held. After a start: what may be held is known, but for what the one before did not
    /// know.
    pub(super) fn resume(&self, held: &[u64], grace_below: u64) {
        self.held.replace(held.iter().copied().collect());
        self.grace_below.set(grace_below.min(self.grace_below.get()));
    }

    /// Will space be free once it is known what is held?
    pub(super) fn may_free_space(&self) -> bool {
        let unlinked = self.unlinked.borrow();
        unlinked.iter().any(|&ino| order_of(ino) < self.grace_below.get() && !self.has(ino))
    }

    pub(super) fn is_in_grace(&self) -> bool {
        self.grace_below.get() > 0
    }

    /// Is nothing held, as far as can be known?
    pub(super) fn is_idle(&self) -> bool {
        !self.is_in_grace() && self.held.borrow().is_empty()
    }

    /// The file is open.
    pub(super) fn open(&self, ino: u64) {
        self.held.borrow_mut().insert(ino);
    }

    /// The file is not open any more.
    pub(super) fn close(&self, ino: u64) {
        self.held.borrow_mut().remove(&ino);
    }

    /// Files without a name.
    pub(super) fn all_unlinked(&self) -> BTreeSet<u64> {
        self.unlinked.borrow().clone()
    }

    /// At a mount: the files without a name, as the store has them.
    pub(super) fn set_unlinked(&self, unlinked: BTreeSet<u64>) {
        self.unlinked.replace(unlinked);
    }

    /// The number below which files may be open without being known here; 0 if all is known.
    pub(super) fn grace_below(&self) -> u64 {
        self.grace_below.get()
    }

    /// Sets that number.
    pub(super) fn set_grace_below(&self, below: u64) {
        self.grace_below.set(below);
    }
}
