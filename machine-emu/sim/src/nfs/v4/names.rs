//! Names of each worker's own in shared directories. Every change of a name is durable once it is
//! answered, and is done once, however often it is sent.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use runtime::seed::Rng;

use super::host::V4Answer;
use super::wire::{CompoundOps, CreateMode, WireOpenClaim, op, status};
use super::worker::V4Worker;
use crate::harness::{PowerCut, WorkResult};
use crate::nfs::ledger::{LedgerKey, NameLedger};
use crate::nfs::lookup::ListedDirectories;

/// Directories that all use: the root, and one below.
const DIRECTORIES: usize = 2;
const BELOW: &str = "below";
/// Names of each worker in each directory.
const NAMES: u64 = 4;
/// The current state id: that of the OPEN before.
const CURRENT: [u8; 16] = [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// A file by its handle.
type V4Handle = Bytes;

/// What a call changes.
#[derive(Clone, Debug)]
enum V4Change {
    Create(LedgerKey, CreateMode),
    Link(V4Handle, LedgerKey),
    Remove(LedgerKey),
    Rename(V4Handle, LedgerKey, LedgerKey),
}

/// The names, and what they may name.
pub(super) struct V4Names {
    directories: Vec<Bytes>,
    ledger: NameLedger<V4Handle>,
    /// What copies of calls in sessions that are lost may still do.
    twins: RefCell<BTreeSet<LedgerKey>>,
    seen: ListedDirectories,
}

impl V4Names {
    /// Makes the directories.
    pub(super) async fn create(worker: &V4Worker<'_>) -> WorkResult<Self> {
        let request = || {
            let create = CompoundOps::default().root().op(op::CREATE).word(2);
            Some(create.opaque(BELOW.as_bytes()).mode(0o755))
        };
        let made = worker.ask(true, request).await?;
        let made = made.map(|answer| (answer.status, answer.has_stray_twin));
        let right = matches!(made, Some((status::OK, _) | (status::EXIST, true)));
        assert!(right, "{BELOW} cannot be made: {made:?}");
        let find = || {
            let ops = CompoundOps::default().root().op(op::GETFH);
            Some(ops.named(op::LOOKUP, BELOW).op(op::GETFH))
        };
        let Some(mut found) = worker.ask(false, find).await? else {
            unreachable!("it needs nothing")
        };
        assert_eq!(found.status, status::OK, "{BELOW} is not there");
        found.reply.done(op::PUTROOTFH);
        let root = found.reply.done(op::GETFH).opaque();
        found.reply.done(op::LOOKUP);
        let below = found.reply.done(op::GETFH).opaque();
        Ok(Self {
            directories: vec![root, below],
            ledger: NameLedger::default(),
            twins: RefCell::default(),
            seen: ListedDirectories::default(),
        })
    }

    fn directory(&self, key: &LedgerKey) -> CompoundOps {
        CompoundOps::default().put(&self.directories[key.0])
    }

    /// One operation on some names of a worker.
    pub(super) async fn step(&self, worker: &V4Worker<'_>, rng: &mut Rng) -> WorkResult {
        let (one, other) = (any_key(worker.number, rng), any_key(worker.number, rng));
        let in_doubt = [&one, &other].map(|key| self.twins.borrow().contains(key));
        if in_doubt.contains(&true) {
            return Ok(());
        }
        let (here, there) = (self.ledger.settled_at(&one), self.ledger.settled_at(&other));
        let change = match (here, rng.below(8)) {
            (_, 0) => return self.look(worker, &one).await,
            (None, _) => {
                let ways =
                    [CreateMode::Unchecked, CreateMode::Guarded, CreateMode::Exclusive(rng.bits())];
                V4Change::Create(one, ways[rng.index(ways.len())])
            }
            (Some(named), 1..3) if there.is_none() => V4Change::Link(named, other),
            (Some(named), 3..5) if one != other && there.as_ref() != Some(&named) => {
                V4Change::Rename(named, one, other)
            }
            (Some(_), _) => V4Change::Remove(one),
        };
        self.send(worker, change).await
    }

    fn request(&self, change: &V4Change) -> CompoundOps {
        match change {
            V4Change::Create(key, how) => {
                let ops = self.directory(key).op(op::SAVEFH);
                let ops =
                    ops.open(b"maker", (3, 0), WireOpenClaim::Name(&key.1, *how)).op(op::GETFH);
                ops.op(op::CLOSE).word(0).fixed(&CURRENT)
            }
            V4Change::Link(named, key) => {
                let ops = CompoundOps::default().put(named).op(op::SAVEFH);
                ops.put(&self.directories[key.0]).named(op::LINK, &key.1)
            }
            V4Change::Remove(key) => self.directory(key).named(op::REMOVE, &key.1),
            V4Change::Rename(_, from, to) => {
                let ops = self.directory(from).op(op::SAVEFH).put(&self.directories[to.0]);
                ops.named(op::RENAME, &from.1).opaque(to.1.as_bytes())
            }
        }
    }

    async fn send(&self, worker: &V4Worker<'_>, change: V4Change) -> WorkResult {
        worker.host.link.log(|| format!("{change:?}"));
        let mut issued = self.issue(&change);
        let answer = worker.ask(true, || Some(self.request(&change))).await;
        let Ok(answer) = answer else {
            self.left_unanswered(&change);
            return Err(PowerCut);
        };
        let mut answer = answer.unwrap_or_else(|| unreachable!("it needs nothing"));
        let met_own_work = answer.has_stray_twin
            && match change {
                V4Change::Create(_, how) => {
                    how == CreateMode::Guarded && answer.status == status::EXIST
                }
                V4Change::Link(..) => answer.status == status::EXIST,
                V4Change::Remove(_) | V4Change::Rename(..) => answer.status == status::NOENT,
            };
        let durable = answer.status == status::OK;
        assert!(durable || met_own_work, "{change:?}: {}", answer.status);
        if answer.has_stray_twin {
            self.twins.borrow_mut().extend(keys_of(&change));
        }
        if let V4Change::Create(key, _) = &change {
            let made =
                if durable { made(&mut answer) } else { self.find_made(worker, key).await? };
            issued.push((key.clone(), self.ledger.issue(key, Some(made))));
        }
        for (key, number) in &issued {
            self.ledger.answered(key, *number, durable);
        }
        Ok(())
    }

    /// What a copy of the call has made.
    async fn find_made(&self, worker: &V4Worker<'_>, key: &LedgerKey) -> WorkResult<V4Handle> {
        let found = self.find(worker, key).await.inspect_err(|_| self.ledger.note_unknown(key));
        Ok(found?.unwrap_or_else(|| panic!("{key:?} exists, and does not")))
    }

    async fn find(&self, worker: &V4Worker<'_>, key: &LedgerKey) -> WorkResult<Option<V4Handle>> {
        let look = || Some(self.directory(key).named(op::LOOKUP, &key.1).op(op::GETFH));
        let Some(mut found) = worker.ask(false, look).await? else { return Ok(None) };
        if found.status == status::NOENT {
            return Ok(None);
        }
        assert_eq!(found.status, status::OK, "{key:?} cannot be looked up");
        found.reply.done(op::PUTFH);
        found.reply.done(op::LOOKUP);
        Ok(Some(found.reply.done(op::GETFH).opaque()))
    }

    // --- What may be ---

    /// What the change does to names whose new meaning is known.
    fn issue(&self, change: &V4Change) -> Vec<(LedgerKey, usize)> {
        let issue = |key: &LedgerKey, named| (key.clone(), self.ledger.issue(key, named));
        match change {
            V4Change::Create(..) => Vec::new(),
            V4Change::Link(named, key) => vec![issue(key, Some(named.clone()))],
            V4Change::Remove(key) => vec![issue(key, None)],
            V4Change::Rename(moved, from, to) => {
                vec![issue(from, None), issue(to, Some(moved.clone()))]
            }
        }
    }

    fn left_unanswered(&self, change: &V4Change) {
        match change {
            V4Change::Create(key, _) => self.ledger.note_unknown(key),
            V4Change::Rename(moved, from, to) => self.ledger.leave_unanswered(moved, from, to),
            V4Change::Link(..) | V4Change::Remove(_) => {}
        }
    }

    /// No gateway has anything under way.
    pub(super) fn forget_twins(&self) {
        self.twins.borrow_mut().clear();
    }

    // --- What is ---

    async fn look(&self, worker: &V4Worker<'_>, key: &LedgerKey) -> WorkResult {
        let found = self.find(worker, key).await?;
        assert_eq!(found, self.ledger.settled_at(key), "{key:?}");
        Ok(())
    }

    /// Compares all names while nothing is under way.
    pub(super) async fn check(&self, worker: &V4Worker<'_>, after_crash: bool) -> WorkResult {
        let mut present: BTreeMap<LedgerKey, V4Handle> = BTreeMap::new();
        for key in self.ledger.keys() {
            if let Some(found) = self.find(worker, &key).await? {
                present.insert(key, found);
            }
        }
        self.ledger.judge(&present, after_crash);
        self.check_links(worker, &present).await?;
        self.check_lists(worker, &present).await
    }

    /// Each file has as many links as names.
    async fn check_links(
        &self,
        worker: &V4Worker<'_>,
        present: &BTreeMap<LedgerKey, V4Handle>,
    ) -> WorkResult {
        for (key, named) in present {
            let looked =
                worker.ask(false, || Some(CompoundOps::default().put(named).look())).await?;
            let Some(mut looked) = looked else { continue };
            assert_eq!(looked.status, status::OK, "{key:?} leads to a missing inode");
            let links = looked.reply.done_then_looked().1;
            let names = present.values().filter(|other| *other == named).count();
            assert_eq!(links as usize, names, "links and names of the file of {key:?}");
        }
        Ok(())
    }

    async fn check_lists(
        &self,
        worker: &V4Worker<'_>,
        present: &BTreeMap<LedgerKey, V4Handle>,
    ) -> WorkResult {
        for directory in 0..DIRECTORIES {
            let Some(change) = self.change_of(worker, directory).await? else { continue };
            let listed = self.list(worker, directory).await?;
            self.seen.note((directory, change), listed.iter().cloned());
            let listed: BTreeSet<&str> =
                listed.iter().map(String::as_str).filter(|name| name.contains("-of-")).collect();
            let there = present.keys().filter(|(at, _)| *at == directory);
            let there: BTreeSet<&str> = there.map(|(_, name)| name.as_str()).collect();
            assert_eq!(listed, there, "the names listed of directory {directory}");
        }
        Ok(())
    }

    /// The number that stands for the state of a directory.
    async fn change_of(&self, worker: &V4Worker<'_>, directory: usize) -> WorkResult<Option<u64>> {
        let ask =
            || Some(CompoundOps::default().put(&self.directories[directory]).look_for_change());
        let Some(mut answer) = worker.ask(false, ask).await? else { return Ok(None) };
        assert_eq!(answer.status, status::OK, "directory {directory} is there");
        Ok(Some(answer.reply.done_then_change()))
    }

    /// The names of a directory, page by page.
    async fn list(&self, worker: &V4Worker<'_>, directory: usize) -> WorkResult<Vec<String>> {
        let mut cursor = (0, 0);
        let mut names = Vec::new();
        loop {
            let (cookie, verifier) = cursor;
            let answer = worker.ask(false, || {
                let ops = CompoundOps::default().put(&self.directories[directory]).op(op::READDIR);
                Some(ops.long(cookie).long(verifier).word(700).word(700).word(0))
            });
            let Some(mut answer) = answer.await? else { return Ok(names) };
            assert_eq!(answer.status, status::OK, "directory {directory} cannot be listed");
            answer.reply.done(op::PUTFH);
            let page = answer.reply.done(op::READDIR);
            cursor.1 = page.long();
            while page.word() == 1 {
                cursor.0 = page.long();
                let name = String::from_utf8_lossy(&page.opaque()).into_owned();
                assert!(!names.contains(&name), "{name} is listed twice in {directory}");
                names.push(name);
                let (words, bytes) = (page.word(), page.word());
                assert_eq!((words, bytes), (0, 0), "no attributes were asked for");
            }
            if page.word() == 1 {
                return Ok(names);
            }
            assert_ne!(cursor.0, cookie, "a page of nothing that is not the last");
        }
    }
}

fn made(answer: &mut V4Answer) -> V4Handle {
    answer.reply.done(op::PUTFH);
    answer.reply.done(op::SAVEFH);
    answer.reply.opened();
    answer.reply.done(op::GETFH).opaque()
}

fn keys_of(change: &V4Change) -> Vec<LedgerKey> {
    match change {
        V4Change::Create(key, _) | V4Change::Link(_, key) | V4Change::Remove(key) => {
            vec![key.clone()]
        }
        V4Change::Rename(_, from, to) => vec![from.clone(), to.clone()],
    }
}

fn any_key(worker: u32, rng: &mut Rng) -> LedgerKey {
    (rng.index(DIRECTORIES), format!("{}-of-{worker}", rng.below(NAMES)))
}
