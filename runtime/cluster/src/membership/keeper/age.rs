//! The engine may come back with an older copy of its records, as when etcd is restored from a
//! snapshot while processes run. They know of changes that it does not: a map that is made from the
//! older records would give nodes to processes that have lost them since, in epochs that were used.
//!
//! Readings are linearizable, so one that began after another was answered never shows an older
//! version of the store, or an older map, unless that has happened.

use std::cell::Cell;

use super::observe::ClusterView;
use crate::coordination::{CoordinationError, Version};
use crate::membership::map::NodeMap;
use runtime::ids::Epoch;

/// What a process has seen of the engine when a reading begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct SeenBefore {
    version: Version,
    epoch: Epoch,
}

/// How new the records are that a process has seen.
#[derive(Debug, Default)]
pub(super) struct RecordAge {
    /// The last change of the store that was seen.
    seen: Cell<Version>,
    /// The engine has an older copy of its records.
    older: Cell<bool>,
    /// After that it has another map than the process: all that was served is to be dropped.
    overtaken: Cell<bool>,
}

impl RecordAge {
    /// To be called when a reading begins, with the map that the process knows.
    pub(super) fn before(&self, known: Option<&NodeMap>) -> SeenBefore {
        SeenBefore { version: self.seen.get(), epoch: known.map_or(Epoch(0), |map| map.epoch) }
    }

    /// Has the engine an older copy?
    pub(super) fn is_older(&self) -> bool {
        self.older.get()
    }

    /// Another map has come after an older copy. Once.
    pub(super) fn take_overtaken(&self) -> bool {
        self.overtaken.take()
    }

    /// A reading showed the store at `version`. Fails if that is an older copy than what was seen
    /// before the reading.
    pub(super) fn check_version(
        &self,
        before: SeenBefore,
        version: Version,
    ) -> Result<(), CoordinationError> {
        if version < before.version {
            self.older.set(true);
        } else {
            self.seen.set(version.max(self.seen.get()));
        }
        if self.older.get() { Err(older()) } else { Ok(()) }
    }

    /// A reading showed all records. Fails while they are an older copy: with an earlier map than
    /// the process knew before, or another one of the epoch of that which it knows now.
    pub(super) fn check_view(
        &self,
        before: SeenBefore,
        version: Version,
        view: &ClusterView,
        known: Option<&NodeMap>,
    ) -> Result<(), CoordinationError> {
        let map = &view.map;
        let is_other = known.is_some_and(|known| known.epoch == map.epoch && known != map);
        if version < before.version || map.epoch < before.epoch || is_other {
            self.older.set(true);
            if known.is_some_and(|known| known.epoch < map.epoch) {
                // Made anew by `recover`, in a store that counts from the start: it is followed
                // at the next reading, when nothing is answered any more.
                self.seen.set(version);
            }
            return Err(older());
        }
        self.seen.set(version.max(self.seen.get()));
        if self.older.take() {
            let is_as_known = known == Some(map);
            tracing::info!(is_as_known, "etcd has newer records again");
            // With another map nothing proves that what is served here is not served elsewhere.
            self.overtaken.set(!is_as_known || self.overtaken.get());
        }
        Ok(())
    }
}

fn older() -> CoordinationError {
    CoordinationError::Refused("the records are an older copy".to_owned())
}
