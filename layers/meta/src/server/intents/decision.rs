//! The one record that decides an operation, and what leads to it.

use std::collections::BTreeMap;
use std::rc::Rc;

use runtime::NodeId;
use runtime::protocol::Undelivered;
use runtime::wire::to_bytes;

use super::super::MetaServer;
use super::super::directories::RemoteLock;
use super::super::effects::{ConflictPolicy, Staged};
use super::name_keys;
use super::table::{Open, Stage};
use crate::active::Active;
use crate::keys;
use crate::protocol::{
    CallId, CallOutcome, CommitDependency, Dentry, Effect, Error, Execute, Inode,
};
use crate::store::{Batch, Position};

/// Intents of one node that are not retired, at most, and those that wait behind an older one.
const OPEN_MAX: usize = 4096;
/// So many open ones let them be retired at once.
const CROWD: usize = OPEN_MAX / 2;

/// How an operation is carried out.
pub(in crate::server) struct Way {
    /// The names of this node are claimed.
    pub(in crate::server) claimed: bool,
    /// It leans on what was claimed, frozen or announced since this epoch.
    pub(in crate::server) since: u64,
    /// Durable before the answer.
    pub(in crate::server) durable: bool,
    /// What its record leans on.
    pub(in crate::server) after: Vec<CommitDependency>,
}

/// A new inode with its first name.
pub(in crate::server) struct Addition {
    pub(in crate::server) key: Vec<u8>,
    pub(in crate::server) made: Inode,
}

impl Addition {
    fn put(&self, batch: &mut Batch) {
        let crate::attributes::Attributes { ino, generation, kind, .. } = self.made.attributes;
        batch.put(self.key.clone(), to_bytes(&Dentry { ino, generation, kind }));
        batch.put(keys::inode(ino), to_bytes(&self.made));
    }

    fn outcome(&self) -> CallOutcome {
        let crate::attributes::Attributes { ino, generation, .. } = self.made.attributes;
        CallOutcome::Made { ino, generation }
    }
}

impl MetaServer {
    pub(in crate::server) async fn execute(
        self: &Rc<Self>,
        request: Execute,
    ) -> Result<Vec<u64>, Error> {
        let Execute { effects, claimed, since, durable, call, after } = request;
        self.carry_out(call, None, effects, Way { claimed, since, durable, after }).await
    }

    /// Does everything or nothing. Returns inodes that are gone.
    pub(in crate::server) async fn carry_out(
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
    pub(super) fn split(&self, effects: Vec<Effect>) -> (Vec<Effect>, BTreeMap<u32, Vec<Effect>>) {
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
        let outcome = addition.as_ref().map_or(CallOutcome::Done {}, Addition::outcome);
        let now = self.context.now();
        let (position, staged) = self
            .record(|| {
                if self.context.epoch().0 != way.since {
                    // Some node has restarted, and may have forgotten what this leans on.
                    return Err(Undelivered::Busy.into());
                }
                let mut batch = Batch::new();
                batch.after(way.after.iter().copied());
                let staged = self.stage(here, &held, ConflictPolicy::Refuse, &mut batch)?;
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
                        batch.take_from_reserve();
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
        if let Some(Addition { key, made }) = addition {
            let crate::attributes::Attributes { ino, generation, kind, .. } = made.attributes;
            self.publisher.put_up_name(&key, Dentry { ino, generation, kind });
            self.inode_count.set(self.inode_count.get().saturating_add(1));
            if kind == (crate::attributes::Kind::Directory {}) {
                self.directories.made(ino, position);
            }
            self.publisher.publish(&made.attributes);
            self.put_in_use(ino, Active::new(made));
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
    pub(super) fn give_up_claims(&self, effects: &[Effect], by: u32) {
        let is_meant = |lock: RemoteLock| lock.node == NodeId::fs(by);
        name_keys(effects).for_each(|key| self.directories.unclaim(&key, is_meant));
    }

    /// The effects of an open intent, in the order of their nodes.
    fn promised(&self, number: u64) -> Vec<Effect> {
        let open = self.intents.open.borrow();
        let effects = open.get(&number).map(|open| open.effects.values().flatten().cloned());
        effects.into_iter().flatten().collect()
    }
}
