//! The intents of one node: what it has promised, and how far each promise is.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use runtime::sync::{Event, KeyedLock};

use super::has_name;
use crate::protocol::{Effect, IntentId};
use crate::store::Position;

/// How far an intent is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Its record is not durable yet.
    Deciding,
    /// Somebody sees to it.
    Sending,
    /// Some node could not be reached; or it comes from before a restart.
    Left,
    /// All nodes have applied their effects.
    Applied,
    /// And durably so; the intent is deleted.
    Retired,
}

#[derive(Debug)]
pub(super) struct Open {
    /// The effects by node.
    pub(super) effects: BTreeMap<u32, Vec<Effect>>,
    /// In which lives the nodes have applied them.
    pub(super) boot_ids: BTreeMap<u32, u64>,
    /// Names of this node that nobody may look up until all is done.
    pub(super) hidden: Vec<Vec<u8>>,
    pub(super) stage: Stage,
    /// The record that promises them, if it may not be durable yet.
    pub(super) position: Position,
}

impl Open {
    pub(super) fn new(effects: BTreeMap<u32, Vec<Effect>>, stage: Stage) -> Self {
        let (boot_ids, hidden, position) = (BTreeMap::new(), Vec::new(), Position::default());
        Self { effects, boot_ids, hidden, stage, position }
    }
}

/// Promises of this node, and what it has applied for others.
#[derive(Default)]
pub(in crate::server) struct Intents {
    /// From the oldest that is not retired on.
    pub(super) open: RefCell<BTreeMap<u64, Open>>,
    /// All below this number are retired, durably.
    pub(super) retired_below: Cell<u64>,
    /// Nodes that remember effects of retired intents, with the last of these.
    pub(super) untold: RefCell<BTreeMap<u32, u64>>,
    /// The background task runs.
    pub(super) retiring: Cell<bool>,
    /// There are many, or somebody waits: it shall not sleep.
    pub(super) crowded: Event,
    /// All effects of some intent were applied.
    pub(super) applied: Event,
    /// Some intent is decided, or was refused.
    pub(super) decided: Event,
    /// One application of an intent at a time.
    pub(super) applying: KeyedLock<IntentId>,
}

impl Intents {
    pub(super) fn at_stage(&self, stage: Stage) -> Vec<u64> {
        let open = self.open.borrow();
        open.iter().filter(|(_, open)| open.stage == stage).map(|(&number, _)| number).collect()
    }

    pub(super) fn nodes_of(&self, number: u64) -> Vec<u32> {
        let open = self.open.borrow();
        open.get(&number).map(|open| open.effects.keys().copied().collect()).unwrap_or_default()
    }

    /// A node has applied its effects of an intent.
    pub(super) fn applied_by(&self, number: u64, node: u32, boot_id: u64) {
        if let Some(open) = self.open.borrow_mut().get_mut(&number) {
            open.boot_ids.insert(node, boot_id);
        }
    }

    /// In which lives the nodes had applied their effects of these intents when they were looked at.
    pub(super) fn lives_of(&self, numbers: &[u64]) -> BTreeMap<u64, BTreeMap<u32, u64>> {
        let open = self.open.borrow();
        let boot_ids = |number: &u64| Some((*number, open.get(number)?.boot_ids.clone()));
        numbers.iter().filter_map(boot_ids).collect()
    }

    /// Are the effects of an intent durable everywhere, where `told` says in which lives nodes have
    /// made so what they had applied in `boot_ids`? If a node has applied them in another life, the intent
    /// is left to be sent again.
    pub(super) fn is_durable(
        &self,
        number: u64,
        boot_ids: &BTreeMap<u32, u64>,
        told: &BTreeMap<u32, u64>,
    ) -> bool {
        let mut open = self.open.borrow_mut();
        let Some(open) = open.get_mut(&number) else { return false };
        let mut durable = true;
        for node in open.effects.keys() {
            match (told.get(node), boot_ids.get(node)) {
                (Some(now), Some(then)) if now == then => {}
                (Some(_), _) => {
                    durable = false;
                    open.stage = Stage::Left;
                }
                (None, _) => durable = false,
            }
        }
        durable
    }

    /// The effects at `node` that an earlier life of it may have forgotten, or that it must know
    /// before anybody looks: those that it had applied, and those of names. By intent.
    pub(super) fn forgotten_by(&self, node: u32) -> Vec<(u64, Vec<Effect>)> {
        let open = self.open.borrow();
        let kept = open.iter().filter(|(_, open)| open.stage != Stage::Retired);
        kept.filter_map(|(&number, open)| {
            let effects = open.effects.get(&node)?;
            let needed = open.boot_ids.contains_key(&node) || has_name(effects);
            needed.then(|| (number, effects.clone()))
        })
        .collect()
    }

    /// Intents whose effects at `node` may still be on their way.
    pub(super) fn not_applied_by(&self, node: u32) -> Vec<u64> {
        let is_open =
            |open: &Open| matches!(open.stage, Stage::Deciding | Stage::Sending | Stage::Left);
        let open = self.open.borrow();
        let of_node =
            open.iter().filter(|(_, open)| open.effects.contains_key(&node) && is_open(open));
        of_node.map(|(&number, _)| number).collect()
    }

    /// Intents that concern `node` are about to be decided.
    pub(super) fn are_deciding(&self, node: u32) -> bool {
        let open = self.open.borrow();
        open.values().any(|open| open.stage == Stage::Deciding && open.effects.contains_key(&node))
    }

    pub(super) fn has_work(&self) -> bool {
        !self.open.borrow().is_empty() || !self.untold.borrow().is_empty()
    }

    /// These are durable everywhere, and deleted.
    pub(super) fn retired(&self, numbers: &[u64]) {
        let mut open = self.open.borrow_mut();
        for number in numbers {
            let Some(intent) = open.get_mut(number) else { continue };
            intent.stage = Stage::Retired;
            for &node in intent.effects.keys() {
                let mut untold = self.untold.borrow_mut();
                let last = untold.entry(node).or_default();
                *last = (*last).max(*number);
            }
        }
        while let Some(first) =
            open.first_entry().filter(|first| first.get().stage == Stage::Retired)
        {
            self.retired_below.set(first.key() + 1);
            first.remove();
        }
    }
}
