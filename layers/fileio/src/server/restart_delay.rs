//! How long changes wait after the start of a node: those to whom files were delegated before may
//! trust what they kept for a while (ADR 101).

use std::cell::Cell;
use std::time::Duration;

use meta::partition::order_of;
use runtime::sync::KeyedLock;

use crate::protocol::DELEGATION_LEASE;

/// Changes that wait after a start.
#[derive(Debug)]
pub(super) struct RestartDelay {
    /// Until when; `None` before that is known.
    until: Cell<Option<Duration>>,
    /// Inodes that were there at the start have numbers below this one in their
    /// [order](order_of); `None` before that is known.
    below: Cell<Option<u64>>,
    /// The store says that files may be delegated.
    pub(super) is_noted: Cell<bool>,
    /// One change of that at a time.
    pub(super) noting: KeyedLock<()>,
}

impl Default for RestartDelay {
    /// None waits.
    fn default() -> Self {
        let (until, below) = (Cell::new(Some(Duration::ZERO)), Cell::default());
        Self { until, below, is_noted: Cell::default(), noting: KeyedLock::default() }
    }
}

impl RestartDelay {
    /// The node starts: until it is known whether files were delegated before, all changes wait.
    pub(super) fn begin(&self) {
        self.until.set(None);
    }

    /// The predecessor of this node has handed over all that it knew, and what is left of the time
    /// for which its own changes waited.
    pub(super) fn resume(&self, left: Duration, now: Duration) {
        self.until.set(Some(now + left));
    }

    /// Files with numbers below this may have been delegated before the start.
    pub(super) fn learn(&self, below: u64, now: Duration) {
        if self.until.get().is_none() {
            self.until.set(Some(if below == 0 { now } else { now + DELEGATION_LEASE }));
        }
        self.below.set(Some(below));
    }

    /// For how long changes of older files still wait.
    pub(super) fn left(&self, now: Duration) -> Duration {
        self.until.get().map_or(DELEGATION_LEASE, |until| until.saturating_sub(now))
    }

    /// Do changes of this file wait?
    pub(super) fn applies_to(&self, ino: u64, now: Duration) -> bool {
        self.until.get().is_none_or(|until| now < until)
            && self.below.get().is_none_or(|below| order_of(ino) < below)
    }
}
