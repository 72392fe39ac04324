//! Outages: processes that a client waits for and hears nothing from.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::frame::NO_PROCESS;

/// A silence counts as an outage from this length on.
pub const OUTAGE_MIN: Duration = Duration::from_secs(2);

/// The number for any process: one answers for all nodes, or none answers for a node.
const ANY_PROCESS: u32 = 0;

/// A process that a client waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outage {
    /// Its number; none if the client does not know which process it waits for, or needs no number
    /// since there is only one.
    pub process: Option<u32>,
    /// How long it has lasted, at least [`OUTAGE_MIN`]; up to 250 ms old.
    pub lasted: Duration,
}

impl Outage {
    fn of(process: u32, lasted: Duration) -> Self {
        let process = Some(process).filter(|it| ![ANY_PROCESS, NO_PROCESS].contains(it));
        Self { process, lasted }
    }
}

/// As in `process 2 (12 s)`.
impl fmt::Display for Outage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.process {
            Some(process) => write!(f, "process {process} ({} s)", self.lasted.as_secs()),
            None => write!(f, "a server ({} s)", self.lasted.as_secs()),
        }
    }
}

/// What a client waits for, for other threads to look at. Clones show the same client.
#[derive(Clone, Debug, Default)]
pub struct Outages(Arc<AtomicU64>);

impl Outages {
    /// The longest outage that lasts now.
    pub fn longest(&self) -> Option<Outage> {
        let [process, millis] = halves(self.0.load(Relaxed));
        (millis > 0).then(|| Outage::of(process, Duration::from_millis(millis.into())))
    }

    /// Has the client ended?
    pub fn is_over(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    fn show(&self, longest: Option<(u32, Duration)>) {
        // One word, without a lock: a forked child may look at it too.
        let word = longest.map_or(0, |(process, lasted)| {
            let millis = u32::try_from(lasted.as_millis()).unwrap_or(u32::MAX);
            u64::from(process) << 32 | u64::from(millis)
        });
        self.0.store(word, Relaxed);
    }
}

fn halves(word: u64) -> [u32; 2] {
    [(word >> 32) as u32, word as u32]
}

/// The outages of one client, each logged when it begins and when it ends.
#[derive(Debug)]
pub(super) struct OutageLog {
    shown: Outages,
    /// How long those that last have lasted, by number of the process.
    lasting: RefCell<BTreeMap<u32, Duration>>,
}

impl OutageLog {
    pub(super) fn new(shown: Outages) -> Self {
        // A client before this one may have left something.
        shown.show(None);
        Self { shown, lasting: RefCell::default() }
    }

    /// Takes note of how long the client has heard nothing from each process that it waits for.
    pub(super) fn update(&self, silences: impl IntoIterator<Item = (u32, Duration)>) {
        let now: BTreeMap<u32, Duration> =
            silences.into_iter().filter(|(_, silence)| *silence >= OUTAGE_MIN).collect();
        self.shown.show(now.iter().max_by_key(|it| it.1).map(|(process, it)| (*process, *it)));
        let before = self.lasting.replace(now.clone());
        for (&process, &lasted) in &now {
            if !before.contains_key(&process) {
                tracing::warn!("waiting for {}", Outage::of(process, lasted));
            }
        }
        for (process, lasted) in before {
            if !now.contains_key(&process) {
                tracing::warn!("the wait is over for {}", Outage::of(process, lasted));
            }
        }
    }

    /// Takes note that the client has waited this long for a first server.
    pub(super) fn update_first_contact(&self, waited: Duration) {
        self.update([(ANY_PROCESS, waited)]);
    }

    /// Nothing is waited for.
    pub(super) fn clear(&self) {
        self.update([]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_longest_outage_is_shown_while_it_lasts() {
        let shown = Outages::default();
        let log = OutageLog::new(shown.clone());
        log.update([(2, SECOND)]);
        assert_eq!(shown.longest(), None, "a short silence is none");
        log.update([(2, 3 * SECOND), (1, 2 * SECOND)]);
        assert_eq!(shown.longest(), Some(Outage { process: Some(2), lasted: 3 * SECOND }));
        log.update([(1, 12 * SECOND)]);
        assert_eq!(shown.longest().unwrap().to_string(), "process 1 (12 s)");
        log.update([(NO_PROCESS, 13 * SECOND)]);
        assert_eq!(shown.longest().unwrap().to_string(), "a server (13 s)");
        log.clear();
        assert_eq!(shown.longest(), None);
    }

    #[test]
    fn a_client_has_ended_when_only_the_watcher_is_left() {
        let shown = Outages::default();
        let log = OutageLog::new(shown.clone());
        assert!(!shown.is_over());
        drop(log);
        assert!(shown.is_over());
    }
}
