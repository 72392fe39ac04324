//! Write verifiers: how a client learns that what it wrote and did not commit is gone.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use runtime::Context;

/// Files whose verifier is another one than their node's, at most; past it all files get a new one.
const LOSSES_MAX: usize = 4096;

/// The write verifiers of the files of one node. They never go back to an earlier value: a client
/// may compare with one of long ago.
#[derive(Debug)]
pub(crate) struct WriteVerifiers {
    context: Context,
    /// Of files that lost nothing since the node started.
    common: Cell<u64>,
    /// Of the others.
    own: RefCell<BTreeMap<u64, u64>>,
}

impl WriteVerifiers {
    /// Other ones than those of any earlier life of the node: that has lost whatever it had.
    pub(super) fn new(context: Context) -> Self {
        let common = Cell::new(context.random());
        Self { context, common, own: RefCell::default() }
    }

    /// The verifier of a file.
    pub(crate) fn get(&self, ino: u64) -> u64 {
        self.own.borrow().get(&ino).copied().unwrap_or_else(|| self.common.get())
    }

    /// The common one, and those of files that have their own.
    pub(super) fn all(&self) -> (u64, Vec<(u64, u64)>) {
        let own = self.own.borrow().iter().map(|(&ino, &verifier)| (ino, verifier)).collect();
        (self.common.get(), own)
    }

    /// Goes on with those of a life that has lost nothing.
    pub(super) fn resume(&self, common: u64, own: &[(u64, u64)]) {
        self.common.set(common);
        self.own.replace(own.iter().copied().collect());
    }

    /// A file has lost something.
    pub(super) fn change(&self, ino: u64) {
        let mut own = self.own.borrow_mut();
        if own.len() >= LOSSES_MAX {
            own.clear();
            self.common.set(self.context.random());
        }
        own.insert(ino, self.context.random());
    }
}
