//! What a writer waits for: tokens, then flushes in the same boots.
//!
//! A token says that a stripe is stored, and in which boot of each node. It is acknowledged when a
//! flush that began later has ended at all nodes in just these boots: then data and parity are
//! durable. A node that has died in between has another boot ID.

use std::collections::{BTreeMap, BTreeSet};

use super::message::BootedNode;
use super::transport::ActorId;

/// Stripes that were sent and are not acknowledged.
#[derive(Debug)]
pub(super) struct AckWindow {
    /// Stripes that may be under way.
    pub(super) size: usize,
    nodes: usize,
    /// The boots that have stored their blocks, of each stripe.
    unacknowledged: BTreeMap<u64, BTreeMap<ActorId, u32>>,
    flush: Option<RunningFlush>,
    next_flush: u64,
    ignores_boots: bool,
}

#[derive(Debug)]
struct RunningFlush {
    number: u64,
    stripes: Vec<u64>,
    ended: BTreeMap<ActorId, u32>,
}

/// What has come of a flush.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FlushOutcome {
    pub(super) acknowledged: Vec<u64>,
    /// A node has restarted since it stored a block.
    pub(super) has_lost: bool,
}

impl AckWindow {
    pub(super) fn new(size: usize, nodes: usize, ignores_boots: bool) -> Self {
        let unacknowledged = BTreeMap::new();
        Self { size, nodes, unacknowledged, flush: None, next_flush: 0, ignores_boots }
    }

    /// May so much more be sent?
    pub(super) fn has_room(&self, stripes: usize) -> bool {
        self.unacknowledged.is_empty() || self.unacknowledged.len() + stripes <= self.size
    }

    pub(super) fn sent(&mut self, stripe: u64) {
        self.unacknowledged.entry(stripe).or_default();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.unacknowledged.is_empty()
    }

    /// All that is not acknowledged is to be sent again.
    pub(super) fn restart(&mut self) -> Vec<u64> {
        self.flush = None;
        self.unacknowledged.values_mut().for_each(BTreeMap::clear);
        self.unacknowledged.keys().copied().collect()
    }

    /// Nodes have stored their blocks of a stripe.
    pub(super) fn stored(&mut self, stripe: u64, boots: Vec<BootedNode>) {
        if let Some(known) = self.unacknowledged.get_mut(&stripe) {
            known.extend(boots);
        }
    }

    /// The number of a flush that is to begin, if there is something to flush and none runs.
    pub(super) fn start_flush(&mut self) -> Option<u64> {
        if self.flush.is_some() {
            return None;
        }
        let complete = self.unacknowledged.iter().filter(|(_, boots)| boots.len() == self.nodes);
        let stripes: Vec<u64> = complete.map(|(stripe, _)| *stripe).collect();
        if stripes.is_empty() {
            return None;
        }
        self.next_flush += 1;
        let number = self.next_flush;
        self.flush = Some(RunningFlush { number, stripes, ended: BTreeMap::new() });
        Some(number)
    }

    /// A flush has ended at a node.
    pub(super) fn flushed(&mut self, number: u64, node: BootedNode) -> Option<FlushOutcome> {
        let flush = self.flush.as_mut().filter(|flush| flush.number == number)?;
        flush.ended.insert(node.0, node.1);
        if flush.ended.len() < self.nodes {
            return None;
        }
        let RunningFlush { stripes, ended, .. } = self.flush.take()?;
        let total = stripes.len();
        let is_durable = |stripe: &u64| {
            self.ignores_boots || self.unacknowledged.get(stripe).is_some_and(|at| *at == ended)
        };
        let acknowledged: BTreeSet<u64> = stripes.into_iter().filter(is_durable).collect();
        self.unacknowledged.retain(|stripe, _| !acknowledged.contains(stripe));
        let has_lost = acknowledged.len() < total;
        Some(FlushOutcome { acknowledged: acknowledged.into_iter().collect(), has_lost })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flushed_in(boots: [u32; 2], ignores_boots: bool) -> FlushOutcome {
        let mut window = AckWindow::new(4, 2, ignores_boots);
        window.sent(0);
        window.stored(0, vec![(0, 1), (1, 1)]);
        let number = window.start_flush().unwrap();
        assert_eq!(window.flushed(number, (0, boots[0])), None);
        window.flushed(number, (1, boots[1])).unwrap()
    }

    #[test]
    fn a_stripe_is_acknowledged_in_the_boots_that_stored_it() {
        let outcome = flushed_in([1, 1], false);
        assert_eq!(outcome, FlushOutcome { acknowledged: vec![0], has_lost: false });
        let outcome = flushed_in([1, 2], false);
        assert_eq!(outcome, FlushOutcome { acknowledged: vec![], has_lost: true });
        assert_eq!(flushed_in([1, 2], true).acknowledged, [0]);
    }

    #[test]
    fn half_a_stripe_is_not_flushed() {
        let mut window = AckWindow::new(4, 2, false);
        window.sent(0);
        window.stored(0, vec![(0, 1)]);
        assert_eq!(window.start_flush(), None);
        window.stored(0, vec![(0, 1)]);
        assert_eq!(window.start_flush(), None);
        assert_eq!(window.restart(), [0]);
    }
}
