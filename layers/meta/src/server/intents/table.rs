//! The intents of one node, and how far each is.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use runtime::sync::Event;

use crate::effect::has_name;
use crate::protocol::{Effect, Error};
use crate::store::Position;

/// How far an intent is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IntentStage {
    /// Its record is not durable yet.
    Deciding,
    /// A request or the retirer is sending it.
    Sending,
    /// Some node could not be reached; or it comes from before a restart.
    Left,
    /// All nodes have applied their effects.
    Applied,
    /// And durably so; the intent is deleted.
    Retired,
}

#[derive(Debug)]
pub(crate) struct Intent {
    /// The effects by node.
    pub(crate) effects: BTreeMap<u32, Vec<Effect>>,
    /// The boot IDs with which the nodes have applied them.
    pub(crate) boot_ids: BTreeMap<u32, u64>,
    /// Names of this node that are hidden until all is done.
    pub(crate) hidden: Vec<Vec<u8>>,
    pub(crate) stage: IntentStage,
    /// The record that decided them, if it may not be durable yet.
    pub(crate) position: Position,
    /// The disk that takes no writes, for which a node has refused its effects.
    pub(crate) obstacle: Option<Error>,
}

impl Intent {
    pub(crate) fn new(effects: BTreeMap<u32, Vec<Effect>>, stage: IntentStage) -> Self {
        let (boot_ids, hidden, position) = (BTreeMap::new(), Vec::new(), Position::default());
        Self { effects, boot_ids, hidden, stage, position, obstacle: None }
    }
}

/// The intents of this node.
#[derive(Default)]
pub(crate) struct IntentTable {
    /// From the oldest that is not retired on.
    pub(crate) open: RefCell<BTreeMap<u64, Intent>>,
    /// All below this number are retired, durably.
    pub(crate) retired_below: Cell<u64>,
    /// Nodes that remember effects of retired intents, with the last of these.
    pub(crate) unacknowledged: RefCell<BTreeMap<u32, u64>>,
    /// There are many, or a caller waits: it shall not sleep.
    pub(crate) wake: Event,
    /// All effects of some intent were applied.
    pub(crate) applied: Event,
    /// Some intent is decided, or was refused.
    pub(crate) decided: Event,
}

impl IntentTable {
    pub(crate) fn at_stage(&self, stage: IntentStage) -> Vec<u64> {
        let open = self.open.borrow();
        open.iter().filter(|(_, open)| open.stage == stage).map(|(&number, _)| number).collect()
    }

    pub(crate) fn nodes_of(&self, number: u64) -> Vec<u32> {
        let open = self.open.borrow();
        open.get(&number).map(|open| open.effects.keys().copied().collect()).unwrap_or_default()
    }

    /// A node has applied its effects of an intent.
    pub(crate) fn applied_by(&self, number: u64, node: u32, boot_id: u64) {
        if let Some(open) = self.open.borrow_mut().get_mut(&number) {
            open.boot_ids.insert(node, boot_id);
        }
    }

    /// The boot IDs with which the nodes have applied their effects of these intents.
    pub(crate) fn boot_ids_of(&self, numbers: &[u64]) -> BTreeMap<u64, BTreeMap<u32, u64>> {
        let open = self.open.borrow();
        let boot_ids = |number: &u64| Some((*number, open.get(number)?.boot_ids.clone()));
        numbers.iter().filter_map(boot_ids).collect()
    }

    /// Are the effects of an intent durable everywhere, where `acknowledged` has the boot IDs of
    /// the nodes that have made them so, and `boot_ids` those with which they applied them? If they
    /// differ for a node, the intent is left to be sent again.
    pub(crate) fn is_durable(
        &self,
        number: u64,
        boot_ids: &BTreeMap<u32, u64>,
        acknowledged: &BTreeMap<u32, u64>,
    ) -> bool {
        let mut open = self.open.borrow_mut();
        let Some(open) = open.get_mut(&number) else { return false };
        let mut durable = true;
        for node in open.effects.keys() {
            match (acknowledged.get(node), boot_ids.get(node)) {
                (Some(now), Some(then)) if now == then => {}
                (Some(_), _) => {
                    durable = false;
                    open.stage = IntentStage::Left;
                }
                (None, _) => durable = false,
            }
        }
        durable
    }

    /// The effects at `node` that an earlier life of it may have forgotten, or that it must know
    /// before anybody looks: those that it had applied, and those of names. By intent.
    pub(crate) fn forgotten_by(&self, node: u32) -> Vec<(u64, Vec<Effect>)> {
        let open = self.open.borrow();
        let kept = open.iter().filter(|(_, open)| open.stage != IntentStage::Retired);
        kept.filter_map(|(&number, open)| {
            let effects = open.effects.get(&node)?;
            let needed = open.boot_ids.contains_key(&node) || has_name(effects);
            needed.then(|| (number, effects.clone()))
        })
        .collect()
    }

    /// Intents whose effects at `node` may still be in flight.
    pub(crate) fn not_applied_by(&self, node: u32) -> Vec<u64> {
        let is_open = |open: &Intent| {
            matches!(open.stage, IntentStage::Deciding | IntentStage::Sending | IntentStage::Left)
        };
        let open = self.open.borrow();
        let of_node =
            open.iter().filter(|(_, open)| open.effects.contains_key(&node) && is_open(open));
        of_node.map(|(&number, _)| number).collect()
    }

    /// Intents that concern `node` are about to be decided.
    pub(crate) fn are_deciding(&self, node: u32) -> bool {
        let open = self.open.borrow();
        open.values()
            .any(|open| open.stage == IntentStage::Deciding && open.effects.contains_key(&node))
    }

    pub(crate) fn has_work(&self) -> bool {
        !self.open.borrow().is_empty() || !self.unacknowledged.borrow().is_empty()
    }

    /// These are durable everywhere, and deleted.
    pub(crate) fn retired(&self, numbers: &[u64]) {
        let mut open = self.open.borrow_mut();
        for number in numbers {
            let Some(intent) = open.get_mut(number) else { continue };
            intent.stage = IntentStage::Retired;
            for &node in intent.effects.keys() {
                let mut unacknowledged = self.unacknowledged.borrow_mut();
                let last = unacknowledged.entry(node).or_default();
                *last = (*last).max(*number);
            }
        }
        while let Some(first) =
            open.first_entry().filter(|first| first.get().stage == IntentStage::Retired)
        {
            self.retired_below.set(first.key() + 1);
            first.remove();
        }
    }
}
