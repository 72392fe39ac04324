//! Operations that touch several nodes (design D7, ADR 7). One record of one node decides: it holds
//! the changes at that node and, as an intent, those that must follow elsewhere. The others apply
//! them once each, and remember that they did until the intent is retired. Whoever applied effects may
//! crash alone before they are durable: an intent is retired only when each node has said that they
//! are, in the life in which it applied them; else it is sent once more.
//!
//! ```text
//! record with intent, durable --> effects applied elsewhere --> answer
//! or, if all these nodes end together and nobody wants it durable,
//! record with intent --> effects applied elsewhere, held back until that record is durable --> answer
//!    in the background: effects durable elsewhere --> intent deleted --> marks of it forgotten
//! ```

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use futures::future::{Either, join_all, select};
use futures::stream::{self, StreamExt as _};
use runtime::NodeId;
use runtime::protocol::Undelivered;
use runtime::sync::{Event, KeyedLock};
use runtime::wire::to_bytes;

use super::effects::{Misfit, Staged};
use super::{MetaServer, decode};
use crate::active::Active;
use crate::client::ask;
use crate::keys;
use crate::protocol::{
    Applied, Apply, CallId, Dentry, Effect, Error, Execute, Inode, IntentId, Outcome, Prior,
    Returned, SettleApplied,
};
use crate::store::{Batch, Position, StoreError};

/// Intents of one node that are not retired, at most, and those that wait behind an older one.
const OPEN_MAX: usize = 4096;
/// Intents are retired so often: later than their effects have become durable by themselves.
const RETIRE_INTERVAL: Duration = Duration::from_secs(2);
/// So many open ones let them be retired at once.
const CROWD: usize = OPEN_MAX / 2;
/// Rounds in which a mount tries to finish what a crash has left; each of them tries several times.
const FINISH_ROUNDS_MAX: u32 = 10;
/// Keys that one record deletes, at most.
const DELETED_MAX: usize = 128;
/// Intents that are finished at a time, at a mount or after a node was away.
const FINISHED_AT_ONCE: usize = 64;

/// A node that does not answer is asked so often before the client hears that it is not sure.
const SEND_TRIES_MAX: u32 = 20;
/// The pause before it.
const SEND_PAUSE: Duration = Duration::from_millis(10);
/// Whoever asks again for what is decided waits so long for its effects elsewhere, at most.
const APPLIED_WAIT_MAX: Duration = Duration::from_secs(1);

/// How far an intent is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
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
struct Open {
    /// The effects by node.
    effects: BTreeMap<u32, Vec<Effect>>,
    /// In which lives the nodes have applied them.
    lives: BTreeMap<u32, u64>,
    /// Names of this node that nobody may look up until all is done.
    hidden: Vec<Vec<u8>>,
    stage: Stage,
    /// The record that promises them, if it may not be durable yet.
    position: Position,
}

impl Open {
    fn new(effects: BTreeMap<u32, Vec<Effect>>, stage: Stage) -> Self {
        let (lives, hidden, position) = (BTreeMap::new(), Vec::new(), Position::default());
        Self { effects, lives, hidden, stage, position }
    }
}

/// Promises of this node, and what it has applied for others.
#[derive(Default)]
pub(super) struct Intents {
    /// From the oldest that is not retired on.
    open: RefCell<BTreeMap<u64, Open>>,
    /// All below this number are retired, durably.
    retired_below: Cell<u64>,
    /// Nodes that remember effects of retired intents, with the last of these.
    untold: RefCell<BTreeMap<u32, u64>>,
    /// The background task runs.
    retiring: Cell<bool>,
    /// There are many, or somebody waits: it shall not sleep.
    crowded: Event,
    /// All effects of some intent were applied.
    applied: Event,
    /// Some intent is decided, or was refused.
    decided: Event,
    /// One application of an intent at a time.
    applying: KeyedLock<IntentId>,
}

impl Intents {
    fn at_stage(&self, stage: Stage) -> Vec<u64> {
        let open = self.open.borrow();
        open.iter().filter(|(_, open)| open.stage == stage).map(|(&number, _)| number).collect()
    }

    fn nodes_of(&self, number: u64) -> Vec<u32> {
        let open = self.open.borrow();
        open.get(&number).map(|open| open.effects.keys().copied().collect()).unwrap_or_default()
    }

    /// A node has applied its effects of an intent.
    fn applied_by(&self, number: u64, node: u32, life: u64) {
        if let Some(open) = self.open.borrow_mut().get_mut(&number) {
            open.lives.insert(node, life);
        }
    }

    /// In which lives the nodes had applied their effects of these intents when they were looked at.
    fn lives_of(&self, numbers: &[u64]) -> BTreeMap<u64, BTreeMap<u32, u64>> {
        let open = self.open.borrow();
        let lives = |number: &u64| Some((*number, open.get(number)?.lives.clone()));
        numbers.iter().filter_map(lives).collect()
    }

    /// Are the effects of an intent durable everywhere, where `told` says in which lives nodes have
    /// made so what they had applied in `lives`? If a node has applied them in another life, the intent
    /// is left to be sent again.
    fn is_durable(
        &self,
        number: u64,
        lives: &BTreeMap<u32, u64>,
        told: &BTreeMap<u32, u64>,
    ) -> bool {
        let mut open = self.open.borrow_mut();
        let Some(open) = open.get_mut(&number) else { return false };
        let mut durable = true;
        for node in open.effects.keys() {
            match (told.get(node), lives.get(node)) {
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
    fn forgotten_by(&self, node: u32) -> Vec<(u64, Vec<Effect>)> {
        let open = self.open.borrow();
        let kept = open.iter().filter(|(_, open)| open.stage != Stage::Retired);
        kept.filter_map(|(&number, open)| {
            let effects = open.effects.get(&node)?;
            let needed = open.lives.contains_key(&node) || has_name(effects);
            needed.then(|| (number, effects.clone()))
        })
        .collect()
    }

    /// Intents that concern `node` are about to be decided.
    fn are_deciding(&self, node: u32) -> bool {
        let open = self.open.borrow();
        open.values().any(|open| open.stage == Stage::Deciding && open.effects.contains_key(&node))
    }

    fn has_work(&self) -> bool {
        !self.open.borrow().is_empty() || !self.untold.borrow().is_empty()
    }

    /// These are durable everywhere, and deleted.
    fn retired(&self, numbers: &[u64]) {
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

/// How an operation is carried out.
pub(super) struct Way {
    /// The names of this node are claimed.
    pub(super) claimed: bool,
    /// It leans on what was claimed, frozen or announced since this epoch.
    pub(super) since: u64,
    /// Durable before the answer.
    pub(super) durable: bool,
    /// What its record leans on.
    pub(super) after: Vec<Prior>,
}

/// A new inode with its first name.
pub(super) struct Addition {
    pub(super) key: Vec<u8>,
    pub(super) made: Inode,
}

impl Addition {
    fn put(&self, batch: &mut Batch) {
        let crate::attributes::Attributes { ino, generation, kind, .. } = self.made.attributes;
        batch.put(self.key.clone(), to_bytes(&Dentry { ino, generation, kind }));
        batch.put(keys::inode(ino), to_bytes(&self.made));
    }

    fn outcome(&self) -> Outcome {
        let crate::attributes::Attributes { ino, generation, .. } = self.made.attributes;
        Outcome::Made { ino, generation }
    }
}

impl MetaServer {
    pub(super) async fn execute(self: &Rc<Self>, request: Execute) -> Result<Vec<u64>, Error> {
        let Execute { effects, claimed, since, durable, call, after } = request;
        self.carry_out(call, None, effects, Way { claimed, since, durable, after }).await
    }

    /// Does everything or nothing. Returns inodes that are gone.
    pub(super) async fn carry_out(
        self: &Rc<Self>,
        call: CallId,
        addition: Option<Addition>,
        effects: Vec<Effect>,
        way: Way,
    ) -> Result<Vec<u64>, Error> {
        // Nobody who may live on without this node may see what a crash could take back.
        let durable = way.durable || !self.all_die_with_me(&effects);
        let (here, elsewhere) = self.split(effects);
        let number = self.open_intent(elsewhere)?;
        let decided = self.decide(call, addition, &here, &way, number).await;
        if let (Err(_), Some(number)) = (&decided, number) {
            self.intents.open.borrow_mut().remove(&number);
            self.intents.decided.tell();
        }
        let (position, mut gone) = decided?;
        let Some(number) = number else {
            self.settle_record(position, durable).await?;
            if way.claimed {
                self.give_up_claims(&here, self.node);
            }
            return Ok(gone);
        };
        self.settle_record(position, durable).await.map_err(|_| Undelivered::Lost)?;
        if let Some(open) = self.intents.open.borrow_mut().get_mut(&number) {
            open.stage = Stage::Sending;
            open.position = position;
        }
        self.intents.decided.tell();
        let sent = self.send(number, false).await;
        self.retire_later();
        gone.extend(sent.map_err(|_| Undelivered::Lost)?);
        Ok(gone)
    }

    /// Effects of this node, and the others by node.
    fn split(&self, effects: Vec<Effect>) -> (Vec<Effect>, BTreeMap<u32, Vec<Effect>>) {
        let nodes = self.context.fs_nodes();
        let mut elsewhere: BTreeMap<u32, Vec<Effect>> = BTreeMap::new();
        for effect in effects {
            elsewhere.entry(effect.node(nodes)).or_default().push(effect);
        }
        let here = elsewhere.remove(&self.node).unwrap_or_default();
        (here, elsewhere)
    }

    /// The number of a new intent, if one is needed.
    fn open_intent(&self, effects: BTreeMap<u32, Vec<Effect>>) -> Result<Option<u64>, Error> {
        if effects.is_empty() {
            return Ok(None);
        }
        let mut open = self.intents.open.borrow_mut();
        if open.len() >= CROWD {
            self.intents.crowded.tell();
        }
        if open.len() >= OPEN_MAX {
            return Err(Undelivered::Busy.into());
        }
        let number = self.store.next_number();
        open.insert(number, Open::new(effects, Stage::Deciding));
        Ok(Some(number))
    }

    /// Commits the one record that decides. Until all is done elsewhere, names that it changed and
    /// that were claimed cannot be looked up: a file on its way has one name or the other.
    async fn decide(
        &self,
        call: CallId,
        addition: Option<Addition>,
        here: &[Effect],
        way: &Way,
        number: Option<u64>,
    ) -> Result<(Position, Vec<u64>), Error> {
        let held = self.hold(here, way.claimed).await?;
        let mut _name = None;
        if let Some(addition) = &addition {
            _name = Some(self.directories.name_lock(&addition.key, false).await?);
            if self.store.get(&addition.key).await?.is_some() {
                return Err(Error::Exists {});
            }
        }
        let outcome = addition.as_ref().map_or(Outcome::Done {}, Addition::outcome);
        let now = self.context.now();
        let (position, staged) = self
            .record(|| {
                if self.context.epoch().0 != way.since {
                    // Some node has restarted, and may have forgotten what this leans on.
                    return Err(Undelivered::Busy.into());
                }
                let mut batch = Batch::new();
                batch.after(way.after.iter().copied());
                let staged = self.stage(here, &held, Misfit::Refuse, &mut batch)?;
                self.replies.put((call, outcome), now, &mut batch);
                if let Some(addition) = &addition {
                    addition.put(&mut batch);
                    batch.put(
                        keys::inode_count(),
                        to_bytes(&(self.inode_count.get().saturating_add(1))),
                    );
                }
                if let Some(number) = number {
                    let promised = self.promised(number);
                    batch.put(keys::promise(number), to_bytes(&promised));
                    if promised.iter().any(|effect| matches!(effect, Effect::DropLink { .. })) {
                        batch.relieve();
                    }
                }
                Ok((batch, staged))
            })
            .await?;
        self.replies.stored((call, outcome), now, position, number);
        if let Some(number) = number.filter(|_| way.claimed) {
            self.hide(number, name_keys(here).collect());
        }
        Ok((position, self.decided(addition, position, staged)))
    }

    fn decided(&self, addition: Option<Addition>, position: Position, staged: Staged) -> Vec<u64> {
        let gone = staged.gone();
        self.install_staged(staged);
        if let Some(Addition { made, .. }) = addition {
            let ino = made.attributes.ino;
            self.inode_count.set(self.inode_count.get().saturating_add(1));
            if made.attributes.kind == (crate::attributes::Kind::Directory {}) {
                self.directories.made(ino, position);
            }
            self.make_room();
            self.inodes.borrow_mut().insert(ino, Active::new(made));
        }
        gone
    }

    fn hide(&self, number: u64, keys: Vec<Vec<u8>>) {
        for key in &keys {
            self.directories.hide(key);
        }
        if let Some(open) = self.intents.open.borrow_mut().get_mut(&number) {
            open.hidden = keys;
        }
    }

    /// The node `by` has claimed the names of `effects`, if anybody has.
    fn give_up_claims(&self, effects: &[Effect], by: u32) {
        name_keys(effects).for_each(|key| self.directories.unclaim(&key, by));
    }

    /// The effects of an open intent, in the order of their nodes.
    fn promised(&self, number: u64) -> Vec<Effect> {
        let open = self.intents.open.borrow();
        let effects = open.get(&number).map(|open| open.effects.values().flatten().cloned());
        effects.into_iter().flatten().collect()
    }

    /// Lets all nodes apply their effects of an intent. Names first: a name must not outlive its
    /// inode. Returns inodes that are gone.
    async fn send(&self, number: u64, durable: bool) -> Result<Vec<u64>, Error> {
        let effects = self.intents.open.borrow().get(&number).map(|open| open.effects.clone());
        let (names, others): (Vec<_>, Vec<_>) = effects
            .into_iter()
            .flatten()
            .partition(|(_, effects): &(u32, Vec<Effect>)| has_name(effects));
        let mut outcome = Ok(Vec::new());
        for part in [names, others] {
            let sent = part.into_iter().map(|(node, effects)| {
                // Nothing else orders these: the next change of the same must not overtake it.
                let durable = durable || effects.iter().any(moves_directory);
                self.send_to(node, number, effects, durable)
            });
            for gone in join_all(sent).await {
                outcome = outcome.and_then(|mut all| {
                    all.extend(gone?);
                    Ok(all)
                });
            }
            if outcome.is_err() {
                break;
            }
        }
        if let Some(open) = self.intents.open.borrow_mut().get_mut(&number) {
            open.stage = if outcome.is_ok() { Stage::Applied } else { Stage::Left };
            if outcome.is_ok() {
                open.hidden.drain(..).for_each(|key| self.directories.unclaim(&key, self.node));
                self.intents.applied.tell();
            }
        }
        outcome
    }

    /// Waits until the effects of an intent of this node are applied everywhere. Only who is at work
    /// on it sends them: a second copy could arrive when the marks are forgotten.
    pub(super) async fn is_applied(&self, number: u64) -> Result<(), Error> {
        let mut patience = pin!(self.context.sleep(APPLIED_WAIT_MAX));
        loop {
            let applied = pin!(self.intents.applied.next());
            let stage = self.intents.open.borrow().get(&number).map(|open| open.stage);
            match stage {
                Some(Stage::Deciding | Stage::Sending | Stage::Left) => {
                    self.intents.crowded.tell();
                }
                Some(Stage::Applied | Stage::Retired) | None => return Ok(()),
            }
            if let Either::Right(_) = select(applied, &mut patience).await {
                return Err(Undelivered::Lost.into());
            }
        }
    }

    async fn send_to(
        &self,
        node: u32,
        number: u64,
        effects: Vec<Effect>,
        durable: bool,
    ) -> Result<Vec<u64>, Error> {
        let position = self.intents.open.borrow().get(&number).map(|open| open.position);
        let position = position.filter(|position| !self.store.is_durable(*position));
        let position = position.unwrap_or_default().number();
        let intent = IntentId { node: self.node, number };
        let call = Apply { intent, effects, durable, position };
        let mut tries = 1;
        let Applied { life, gone } = loop {
            match ask(&self.context, NodeId::fs(node), call.clone()).await {
                Err(Error::Undelivered { .. }) if tries < SEND_TRIES_MAX => {
                    tries += 1;
                    self.context.sleep(SEND_PAUSE).await;
                }
                answer => break answer?,
            }
        };
        self.intents.applied_by(number, node, life);
        Ok(gone)
    }

    pub(super) async fn apply_intent(&self, request: Apply) -> Result<Applied, Error> {
        let Apply { intent, effects, durable, position } = request;
        let mark = keys::applied(intent);
        let _alone = self.intents.applying.exclusive(intent).await;
        if self.store.get(&mark).await?.is_some() {
            if durable {
                let (from, to) = keys::only(&mark);
                self.store.settled(&from, &to).await?;
            }
            return Ok(Applied { life: self.life, gone: Vec::new() });
        }
        let held = self.hold(&effects, true).await?;
        let (position, staged) = self
            .record(|| {
                let mut batch = Batch::new();
                let staged = self.stage(&effects, &held, Misfit::Skip, &mut batch)?;
                batch.put(mark.clone(), Vec::new());
                batch.after([Prior { node: intent.node, position }]);
                // It is decided already, also on a full volume.
                batch.relieve();
                Ok((batch, staged))
            })
            .await?;
        let gone = staged.gone();
        self.install_staged(staged);
        self.give_up_claims(&effects, intent.node);
        drop(held);
        self.settle_record(position, durable).await?;
        Ok(Applied { life: self.life, gone })
    }

    /// Retires intents in the background, as long as there are any.
    fn retire_later(self: &Rc<Self>) {
        if self.intents.retiring.replace(true) {
            return;
        }
        let me = self.clone();
        self.context.task(async move {
            while me.intents.has_work() {
                select(me.context.sleep(RETIRE_INTERVAL), pin!(me.intents.crowded.next())).await;
                if let Err(error) = me.retire().await {
                    tracing::debug!(%error, "intents stay open for now");
                }
            }
            me.intents.retiring.set(false);
        });
    }

    /// One round: finishes what was left, sees to it that effects are durable, deletes their intents
    /// and lets the marks of earlier ones be forgotten.
    async fn retire(&self) -> Result<(), Error> {
        if let Err(error) = self.finish(self.intents.at_stage(Stage::Left), false).await {
            tracing::warn!(%error, "an intent cannot be finished yet");
        }
        // Before anybody is asked: what is applied once more meanwhile may not be durable.
        let lives = self.intents.lives_of(&self.intents.at_stage(Stage::Applied));
        let mut applied: Vec<u64> = lives.keys().copied().collect();
        let mut nodes: BTreeSet<u32> = self.intents.untold.borrow().keys().copied().collect();
        nodes.extend(applied.iter().flat_map(|&number| self.intents.nodes_of(number)));
        let below = self.intents.retired_below.get();
        let told = nodes.into_iter().map(|node| async move {
            let call = SettleApplied { node: self.node, below };
            Some((node, ask(&self.context, NodeId::fs(node), call).await.ok()?))
        });
        let told: BTreeMap<u32, u64> = join_all(told).await.into_iter().flatten().collect();
        let is_told = |node: &u32, last: &u64| told.contains_key(node) && *last < below;
        self.intents.untold.borrow_mut().retain(|node, last| !is_told(node, last));
        applied.retain(|number| self.intents.is_durable(*number, &lives[number], &told));
        if !applied.is_empty() {
            self.delete_promises(&applied).await?;
            self.intents.retired(&applied);
        }
        Ok(())
    }

    /// Sends intents that no request sees to; those that fail stay as they are.
    async fn finish(&self, numbers: Vec<u64>, durable: bool) -> Result<(), Error> {
        let finished = numbers.into_iter().map(|number| self.send(number, durable));
        let mut finished = stream::iter(finished).buffer_unordered(FINISHED_AT_ONCE);
        let mut outcome = Ok(());
        while let Some(sent) = finished.next().await {
            outcome = outcome.and(sent.map(|_| ()));
        }
        outcome
    }

    /// All effects that came from `node` are durable; those of retired intents are forgotten.
    pub(super) async fn settle_applied(&self, request: SettleApplied) -> Result<u64, Error> {
        let SettleApplied { node, below } = request;
        let mark = |number| keys::applied(IntentId { node, number });
        self.store.settled(&mark(0), &mark(u64::MAX)).await?;
        self.forget_marks(mark(0), mark(below)).await?;
        Ok(self.life)
    }

    async fn forget_marks(&self, from: Vec<u8>, to: Vec<u8>) -> Result<(), Error> {
        loop {
            let found = self.store.scan(Bound::Included(&from), &to, DELETED_MAX).await?;
            let keys: Vec<Vec<u8>> = found.into_iter().map(|(key, _)| key.to_vec()).collect();
            if keys.is_empty() {
                return Ok(());
            }
            self.delete_all(&keys).await?;
        }
    }

    /// Reads the intents that a crash has left open. At a mount, before anything is served.
    pub(super) async fn load_promises(&self) -> Result<(), StoreError> {
        let bad = || StoreError::Damaged { what: "an intent", block: 0 };
        let (from, end) = keys::intents(keys::PROMISES);
        for (key, value) in self.store.scan(Bound::Included(&from), &end, usize::MAX).await? {
            let number = keys::intent_number(&key).ok_or_else(bad)?;
            let (_, effects) = self.split(decode(&value).map_err(|_| bad())?);
            self.intents.open.borrow_mut().insert(number, Open::new(effects, Stage::Left));
        }
        Ok(())
    }

    /// Brings about, durably, what was promised before a crash.
    pub(super) async fn finish_intents(&self) -> Result<(), Error> {
        for round in 1..=FINISH_ROUNDS_MAX {
            match self.finish(self.intents.at_stage(Stage::Left), true).await {
                Err(Error::Undelivered { .. }) if round < FINISH_ROUNDS_MAX => {}
                outcome => {
                    outcome?;
                    break;
                }
            }
        }
        let finished = self.intents.at_stage(Stage::Applied);
        self.delete_promises(&finished).await?;
        self.intents.retired(&finished);
        Ok(())
    }

    /// This node has come back while others lived on.
    pub(super) async fn rejoin(self: &Rc<Self>) -> Result<(), Error> {
        // First: whoever gives up what an earlier life has claimed must have what that has promised.
        self.finish_intents().await?;
        let others = (0..self.context.fs_nodes()).filter(|node| *node != self.node);
        let told =
            others.map(|node| ask(&self.context, NodeId::fs(node), Returned { node: self.node }));
        join_all(told).await.into_iter().collect::<Result<Vec<()>, Error>>()?;
        self.recovering.set(false);
        // The others keep marks of what was promised here.
        Self::retire_later(self);
        Ok(())
    }

    /// Tells a node that has come back alone what it may have forgotten. What is decided from now on
    /// was begun in this epoch, and so leans on its new life.
    pub(super) async fn returned(&self, node: u32) -> Result<(), Error> {
        self.directories.give_up(NodeId::fs(node));
        loop {
            let decided = self.intents.decided.next();
            if !self.intents.are_deciding(node) {
                break;
            }
            decided.await;
        }
        let forgotten = self.intents.forgotten_by(node);
        let sent = forgotten.into_iter().map(|(number, effects)| {
            let durable = effects.iter().any(moves_directory);
            self.send_to(node, number, effects, durable)
        });
        let mut sent = stream::iter(sent).buffer_unordered(FINISHED_AT_ONCE);
        while let Some(applied) = sent.next().await {
            applied?;
        }
        Ok(())
    }

    /// No intent is open anywhere: forgets what was applied, and frees what is gone.
    pub(super) async fn end_recovery(&self) -> Result<(), Error> {
        let (from, to) = keys::all_applied();
        self.forget_marks(from, to).await?;
        self.intents.untold.borrow_mut().clear();
        self.recovering.set(false);
        for ino in self.gone() {
            self.trim(ino).await?;
        }
        Ok(())
    }

    /// Deletes intents, durably.
    async fn delete_promises(&self, numbers: &[u64]) -> Result<(), Error> {
        let keys: Vec<Vec<u8>> = numbers.iter().map(|number| keys::promise(*number)).collect();
        let position = self.delete_all(&keys).await?;
        Ok(self.store.durable(position).await?)
    }

    /// Deletes keys, also on a full volume; returns the last record.
    pub(super) async fn delete_all(&self, keys: &[Vec<u8>]) -> Result<Position, Error> {
        let mut last = Position::default(); // durable as it is
        for part in keys.chunks(DELETED_MAX) {
            let (position, ()) = self
                .record(|| {
                    let mut batch = Batch::new();
                    batch.relieve();
                    for key in part {
                        batch.delete(key.clone());
                    }
                    Ok((batch, ()))
                })
                .await?;
            last = position;
        }
        Ok(last)
    }
}

fn name_keys(effects: &[Effect]) -> impl Iterator<Item = Vec<u8>> {
    effects.iter().filter_map(|effect| match effect {
        Effect::SetName { directory, name, .. } => Some(keys::name(*directory, name)),
        Effect::DropLink { .. } | Effect::ChangeParts { .. } => None,
    })
}

fn has_name(effects: &[Effect]) -> bool {
    name_keys(effects).next().is_some()
}

fn moves_directory(effect: &Effect) -> bool {
    matches!(effect, Effect::ChangeParts { change, .. } if change.parent.is_some())
}
