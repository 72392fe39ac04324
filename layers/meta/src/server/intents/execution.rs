//! Operations on names and inodes, and the one record that decides each ([`Execute`], [`AddFile`]).

use std::collections::BTreeMap;
use std::rc::Rc;

use runtime::NodeId;
use runtime::protocol::Undelivered;
use runtime::wire::to_bytes;

use super::retirement::IntentRetirer;
use super::sending::IntentSender;
use super::table::{Intent, IntentStage, IntentTable};
use crate::active::ActiveInode;
use crate::attributes::{Attributes, Kind};
use crate::effect::{name_keys, split};
use crate::keys;
use crate::protocol::{
    AddFile, CallId, CallOutcome, CommitDependency, CommitMark, Dentry, Effect, Error, Execute,
    Inode, NewInode,
};
use crate::server::base::NodeBase;
use crate::server::effects::{ConflictPolicy, Effects, StagedInodes};
use crate::server::inodes::DIRECTORY_SIZE;
use crate::server::locks::directories::DirectoryLocks;
use crate::server::locks::names::NameLocks;
use crate::server::partition_use::UseChange;
use crate::store::{Batch, Position};

/// Intents of one node that are not retired, at most, and those that wait behind an older one.
const INTENTS_MAX: usize = 4096;
/// Open intents from which on they are retired without delay.
const INTENTS_RETIRE: usize = INTENTS_MAX / 2;

/// How an operation is carried out.
struct ExecuteOptions {
    /// The caller has locked the names of this node.
    claimed: bool,
    /// It depends on locks that were taken since this epoch.
    since: u64,
    /// Durable before the answer.
    durable: bool,
    /// The dependencies of its record.
    after: Vec<CommitDependency>,
}

/// A new inode with its first name.
struct NewEntry {
    key: Vec<u8>,
    made: Inode,
}

impl NewEntry {
    fn put(&self, batch: &mut Batch) {
        let Attributes { ino, generation, kind, .. } = self.made.attributes;
        batch.put(self.key.clone(), to_bytes(&Dentry { ino, generation, kind }));
        batch.put(keys::inode(ino), self.made.to_stored());
    }

    fn use_change(&self) -> UseChange {
        UseChange { ino: self.made.attributes.ino, bytes: (0, 0), inodes: 1 }
    }

    fn outcome(&self) -> CallOutcome {
        let Attributes { ino, generation, .. } = self.made.attributes;
        CallOutcome::Made { ino, generation }
    }
}

/// Carries out the operations that one node decides.
pub(crate) struct Executor {
    base: Rc<NodeBase>,
    name_locks: Rc<NameLocks>,
    directories: Rc<DirectoryLocks>,
    effects: Rc<Effects>,
    intents: Rc<IntentTable>,
    sender: Rc<IntentSender>,
    retirer: Rc<IntentRetirer>,
}

/// What it takes to bring about what a record has decided.
struct DecidedIntents {
    base: Rc<NodeBase>,
    intents: Rc<IntentTable>,
    sender: Rc<IntentSender>,
    retirer: Rc<IntentRetirer>,
}

impl DecidedIntents {
    /// Sends an intent whose record is at `position`. Returns inodes that are gone.
    async fn send(&self, number: u64, position: Position) -> Result<Vec<u64>, Error> {
        if let Some(open) = self.intents.open.borrow_mut().get_mut(&number) {
            open.stage = IntentStage::Sending;
            open.position = position;
        }
        self.intents.decided.tell();
        let sent = self.sender.send(number, false).await;
        self.retirer.start_retiring();
        sent
    }
}

impl Executor {
    pub(crate) fn new(
        base: &Rc<NodeBase>,
        name_locks: Rc<NameLocks>,
        directories: Rc<DirectoryLocks>,
        effects: Rc<Effects>,
        intents: Rc<IntentTable>,
        sender: Rc<IntentSender>,
        retirer: Rc<IntentRetirer>,
    ) -> Self {
        Self { base: base.clone(), name_locks, directories, effects, intents, sender, retirer }
    }

    pub(crate) async fn add_file(&self, request: AddFile) -> Result<Attributes, Error> {
        let AddFile { directory, name, inode, effects, since, durable, call, after } = request;
        let ino = self.base.inodes.next_ino(inode.partition);
        let generation = self.base.context.random() | 1;
        let made = new_inode(ino, generation, directory, &inode);
        let attributes = made.attributes;
        let entry = NewEntry { key: keys::name(directory, &name), made };
        let options = ExecuteOptions { claimed: false, since, durable, after };
        self.run(call, Some(entry), effects, options).await?;
        Ok(attributes)
    }

    pub(crate) async fn execute(&self, request: Execute) -> Result<Vec<u64>, Error> {
        let Execute { effects, claimed, since, durable, call, after } = request;
        self.run(call, None, effects, ExecuteOptions { claimed, since, durable, after }).await
    }

    /// Does everything or nothing. Returns inodes that are gone.
    async fn run(
        &self,
        call: CallId,
        entry: Option<NewEntry>,
        effects: Vec<Effect>,
        options: ExecuteOptions,
    ) -> Result<Vec<u64>, Error> {
        // No node that may outlive this one may see what a crash could take back.
        let durable = options.durable || !self.all_share_failure_domain(&effects);
        let (local, remote) = split(effects, self.base.node, self.base.context.fs_nodes());
        let number = self.open_intent(remote)?;
        let decided = self.decide(call, entry, &local, &options, number).await;
        if let (Err(_), Some(number)) = (&decided, number) {
            self.intents.open.borrow_mut().remove(&number);
            self.intents.decided.tell();
        }
        let (position, mut gone) = decided?;
        let Some(number) = number else {
            let is_durable = self.base.records.ensure_durable(position, durable).await;
            if options.claimed {
                self.name_locks.release_names(&local, self.base.node);
            }
            return is_durable.map(|()| gone);
        };
        let decided = DecidedIntents {
            base: self.base.clone(),
            intents: self.intents.clone(),
            sender: self.sender.clone(),
            retirer: self.retirer.clone(),
        };
        if self.base.records.ensure_durable(position, durable).await.is_err() {
            // It may be due to a disk that takes no writes for now. It is decided nevertheless.
            self.base.context.task(async move {
                if decided.base.store.durable(position).await.is_ok() {
                    // Those that are left are sent again.
                    let _ = decided.send(number, position).await;
                }
            });
            return Err(Undelivered::Lost.into());
        }
        let sent = decided.send(number, position).await;
        gone.extend(sent.map_err(|_| Undelivered::Lost)?);
        Ok(gone)
    }

    /// The number of a new intent, if one is needed.
    fn open_intent(&self, effects: BTreeMap<u32, Vec<Effect>>) -> Result<Option<u64>, Error> {
        if effects.is_empty() {
            return Ok(None);
        }
        let mut open = self.intents.open.borrow_mut();
        if open.len() >= INTENTS_RETIRE {
            self.intents.wake.tell();
        }
        if open.len() >= INTENTS_MAX {
            return Err(Undelivered::Busy.into());
        }
        let number = self.base.store.next_number();
        open.insert(number, Intent::new(effects, IntentStage::Deciding));
        Ok(Some(number))
    }

    /// Commits the one record that decides. Until all is done elsewhere, names that it changed and
    /// that were locked cannot be looked up: a file that is being moved has one name or the other.
    async fn decide(
        &self,
        call: CallId,
        entry: Option<NewEntry>,
        local: &[Effect],
        options: &ExecuteOptions,
        number: Option<u64>,
    ) -> Result<(Position, Vec<u64>), Error> {
        let held = self.effects.lock_targets(local, options.claimed).await?;
        let mut _name = None;
        if let Some(entry) = &entry {
            _name = Some(self.name_locks.lock(&entry.key, false).await?);
            if self.base.store.get(&entry.key).await?.is_some() {
                return Err(Error::Exists {});
            }
        }
        let outcome = entry.as_ref().map_or(CallOutcome::Done {}, NewEntry::outcome);
        let now = self.base.context.now();
        let make = || {
            if self.base.context.epoch().0 != options.since {
                // Some node has restarted, and may have lost what this depends on.
                return Err(Undelivered::Busy.into());
            }
            let mut batch = Batch::new();
            batch.after(options.after.iter().copied());
            let staged = self.effects.stage(local, &held, ConflictPolicy::Refuse, &mut batch)?;
            self.base.replies.put((call, outcome), now, &mut batch);
            if let Some(entry) = &entry {
                entry.put(&mut batch);
                batch.put(
                    keys::inode_count(),
                    to_bytes(&(self.base.inodes.count().saturating_add(1))),
                );
                self.base.inodes.uses().put(&[entry.use_change()], &mut batch);
            }
            if let Some(number) = number {
                let effects_of = self.effects_of(number);
                batch.put(keys::operation_intent(number), to_bytes(&effects_of));
                if effects_of.iter().any(|effect| matches!(effect, Effect::DropLink { .. })) {
                    batch.take_from_reserve();
                }
            }
            Ok((batch, staged))
        };
        let (position, staged) = self.base.records.record(make).await?;
        self.base.replies.stored((call, outcome), now, position, number);
        if let Some(number) = number.filter(|_| options.claimed) {
            self.hide(number, name_keys(local).collect());
        }
        Ok((position, self.decided(entry, position, staged)))
    }

    /// May effects be sent before the record that decides them is durable?
    fn all_share_failure_domain<'a>(&self, effects: impl IntoIterator<Item = &'a Effect>) -> bool {
        let nodes = self.base.context.fs_nodes();
        effects
            .into_iter()
            .all(|effect| self.base.context.shares_failure_domain(NodeId::fs(effect.node(nodes))))
    }

    fn decided(
        &self,
        entry: Option<NewEntry>,
        position: Position,
        staged: StagedInodes,
    ) -> Vec<u64> {
        let gone = staged.gone();
        self.effects.install_staged(staged);
        if let Some(entry) = entry {
            let used = entry.use_change();
            let NewEntry { key, made } = entry;
            let Attributes { ino, generation, kind, .. } = made.attributes;
            self.base.publisher.publish_name(&key, Dentry { ino, generation, kind });
            self.base.inodes.count_added();
            self.base.inodes.uses().committed(&[used]);
            if kind == (Kind::Directory {}) {
                self.directories.made(ino, position);
            }
            self.base.publisher.publish(&made.attributes);
            self.base.inodes.insert_active(ino, ActiveInode::new(made));
        }
        gone
    }

    fn hide(&self, number: u64, keys: Vec<Vec<u8>>) {
        for key in &keys {
            self.name_locks.hide(key);
        }
        if let Some(open) = self.intents.open.borrow_mut().get_mut(&number) {
            open.hidden = keys;
        }
    }

    /// The effects of an open intent, in the order of their nodes.
    fn effects_of(&self, number: u64) -> Vec<Effect> {
        let open = self.intents.open.borrow();
        let effects = open.get(&number).map(|open| open.effects.values().flatten().cloned());
        effects.into_iter().flatten().collect()
    }
}

fn new_inode(ino: u64, generation: u64, directory: u64, new: &NewInode) -> Inode {
    let is_directory = new.kind == (Kind::Directory {});
    let attributes = Attributes {
        ino,
        generation,
        kind: new.kind,
        mode: new.mode & 0o7777,
        links: if is_directory { 2 } else { 1 },
        uid: new.uid,
        gid: new.gid,
        major: new.major,
        minor: new.minor,
        size: match new.kind {
            Kind::Directory {} => DIRECTORY_SIZE,
            Kind::File {} => new.size,
            _ => new.target.len() as u64,
        },
        used_bytes: 0,
        atime: new.atime.unwrap_or(new.time),
        mtime: new.mtime.unwrap_or(new.time),
        ctime: new.time,
        birth: new.time,
        redundancy: new.redundancy,
    };
    let parent = if is_directory { directory } else { 0 };
    Inode {
        attributes,
        parent,
        verifier: new.verifier,
        target: new.target.clone(),
        committed: CommitMark::default(),
    }
}
