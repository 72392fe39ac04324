//! Which inodes stay in memory. What is clean may go, since the store has it; what is dirty, what somebody
//! has open, and what somebody is at work on stays.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use super::MetaServer;
use crate::active::Active;
use crate::memory::Kind as Memory;

/// Inodes that one new one lets be looked at, at most, to find some that may go.
const LOOKED_AT_MAX: usize = 32;

/// Inodes that somebody is at work on, and how many there are of those.
#[derive(Clone, Debug, Default)]
pub(super) struct Pins(Rc<RefCell<BTreeMap<u64, u32>>>);

/// Keeps an inode in memory until it is dropped.
#[derive(Debug)]
pub(super) struct Pinned {
    pins: Pins,
    ino: u64,
}

impl Pins {
    fn has(&self, ino: u64) -> bool {
        self.0.borrow().contains_key(&ino)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let mut pins = self.pins.0.borrow_mut();
        if let Some(count) = pins.get_mut(&self.ino) {
            *count -= 1;
            if *count == 0 {
                pins.remove(&self.ino);
            }
        }
    }
}

impl MetaServer {
    /// Whoever looks at an inode, waits for something, and goes on with the same inode, keeps it first.
    pub(super) fn keep(&self, ino: u64) -> Pinned {
        *self.pins.0.borrow_mut().entry(ino).or_default() += 1;
        Pinned { pins: self.pins.clone(), ino }
    }

    /// An inode is in use from now on.
    pub(super) fn put_in_use(&self, ino: u64, active: Box<Active>) {
        self.let_inodes_go(LOOKED_AT_MAX);
        self.share.add(Memory::Inodes, active.memory_bytes().cast_signed());
        self.publisher.reloaded(&active);
        if let Some(before) = self.inodes.borrow_mut().insert(ino, active) {
            self.share.add(Memory::Inodes, -before.memory_bytes().cast_signed());
        }
    }

    /// An inode is not in use any more.
    pub(super) fn take_from_use(&self, ino: u64) -> Option<Box<Active>> {
        let gone = self.inodes.borrow_mut().remove(&ino)?;
        self.share.add(Memory::Inodes, -gone.memory_bytes().cast_signed());
        Some(gone)
    }

    /// Gives back what is beyond the part of this node, as far as nobody needs it. Called now and then.
    pub(super) fn give_back(&self) {
        self.share.age();
        self.share.set(Memory::Replies, self.replies.memory_bytes());
        let count = self.inodes.borrow().len();
        if self.share.excess(Memory::Inodes) > 0 {
            self.forget_chunks();
        }
        // The first round finds most of them used.
        self.let_inodes_go(2 * count);
        self.directories.close_handle(&self.store, &self.share);
        self.publisher.give_back();
        self.store.give_back();
    }

    /// Looks at up to `most` inodes, in the order of their numbers, round and round, and lets those go that
    /// nobody has used since the last round.
    fn let_inodes_go(&self, most: usize) {
        let mut excess = self.share.excess(Memory::Inodes);
        for _ in 0..most {
            if excess == 0 {
                return;
            }
            let next = self.inodes.borrow().range(self.hand.get()..).next().map(|(&ino, _)| ino);
            let Some(ino) = next else {
                self.hand.set(0);
                continue;
            };
            self.hand.set(ino.saturating_add(1));
            if self.may_go(ino) {
                let gone = self.take_from_use(ino);
                if gone.as_ref().is_some_and(|gone| gone.inode != gone.stored) {
                    // What is shown is as it comes back.
                    self.publisher.invalidate(ino);
                }
                excess = excess.saturating_sub(gone.map_or(0, |gone| gone.memory_bytes()));
            }
        }
    }

    fn may_go(&self, ino: u64) -> bool {
        let inodes = self.inodes.borrow();
        let Some(active) = inodes.get(&ino) else { return false };
        let is_wanted = active.used.take() || !active.is_clean() || active.lost;
        !is_wanted && !self.pins.has(ino) && !self.open_files.has(ino)
    }
}
