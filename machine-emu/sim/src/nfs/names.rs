//! Names of each worker's own in shared directories. Every change of a name is durable once it is
//! answered.
//!
//! Directories are not renamed: see `entries.rs`.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use nfs3_types::nfs3::{
    CREATE3args, CREATE3res, CREATE3resok, LINK3args, LINK3res, MKDIR3args, NFS_PROGRAM,
    Nfs3Option, Nfs3Result, REMOVE3args, REMOVE3res, RENAME3args, RENAME3res, RMDIR3args,
    RMDIR3res, cookieverf3, createhow3, createverf3, nfs_fh3, nfsstat3, sattr3,
};
use runtime::seed::Rng;

use super::ledger::{LedgerKey, NameLedger};
use super::link::{HostLink, NfsCall, V3Worker};
use super::lookup::{
    ListedDirectories, V3File, at, bytes_of, find, handle_of, named_by, read_plain, read_plus,
    state_of,
};
use super::rules;
use crate::harness::{PowerCut, WorkResult};

/// Directories that all use.
const DIRECTORIES: usize = 3;
/// Names of each worker in each directory.
const NAMES: u64 = 4;

/// What a call changes.
#[derive(Clone, Debug)]
enum V3Change {
    /// A file of that way of making it.
    Create(LedgerKey, V3CreateMode),
    MakeDirectory(LedgerKey),
    HostLink(V3File, LedgerKey),
    Remove(LedgerKey),
    RemoveDirectory(LedgerKey),
    Rename(V3File, LedgerKey, LedgerKey),
}

/// The ways of CREATE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum V3CreateMode {
    Unchecked,
    Guarded,
    Exclusive(u64),
}

/// What an answer says.
struct NameReply {
    made: Option<V3File>,
    /// It survives a power cut.
    durable: bool,
}

/// The names, and what they may name.
pub(super) struct V3Names {
    directories: Vec<nfs_fh3>,
    ledger: NameLedger<V3File>,
    /// What late twins of calls may still do: see [`rules::HAS_A_LATE_TWIN`].
    twins: RefCell<BTreeSet<LedgerKey>>,
    /// What was left unanswered, with its worker.
    unanswered: RefCell<Vec<(u32, V3Change, NfsCall)>>,
    seen: ListedDirectories,
}

impl V3Names {
    /// Makes the directories.
    pub(super) async fn create(link: &HostLink<'_>, root: &nfs_fh3) -> WorkResult<Self> {
        let mut directories = vec![root.clone()];
        for number in 1..DIRECTORIES {
            let name = format!("shared-{number}");
            let where_ = at(root, name.as_bytes());
            let arguments = MKDIR3args { where_, attributes: sattr3::default() };
            let mut call = link.prepare(NFS_PROGRAM::NFSPROC3_MKDIR, &arguments);
            let made: CREATE3res = link.ask(&mut call).await?;
            directories.push(match made {
                Nfs3Result::Ok(made) => made.obj.unwrap(),
                // Its stray twin was quicker.
                Nfs3Result::Err(_) if call.has_stray_twin() => {
                    find(link, root, name.as_bytes()).await?.expect("a directory")
                }
                Nfs3Result::Err((status, _)) => panic!("{name}: {status}"),
            });
        }
        Ok(Self {
            directories,
            ledger: NameLedger::default(),
            twins: RefCell::default(),
            unanswered: RefCell::default(),
            seen: ListedDirectories::default(),
        })
    }

    /// One operation on some names of this worker.
    pub(super) async fn step(&self, worker: &V3Worker<'_>, rng: &mut Rng) -> WorkResult {
        let (one, other) = (any_key(worker.number, rng), any_key(worker.number, rng));
        let twins = [&one, &other].map(|key| self.twins.borrow().contains(key));
        if twins.contains(&true) {
            return Ok(());
        }
        let (here, there) = (self.ledger.settled_at(&one), self.ledger.settled_at(&other));
        let change = match (here, rng.below(8)) {
            (_, 0) => return self.look(worker.link, &one).await,
            (_, 1) => return self.list(worker.link, one.0, rng).await.map(drop),
            (None, 2) => V3Change::MakeDirectory(one),
            (None, _) => {
                let ways = [
                    V3CreateMode::Unchecked,
                    V3CreateMode::Guarded,
                    V3CreateMode::Exclusive(rng.bits()),
                ];
                V3Change::Create(one, ways[rng.index(ways.len())])
            }
            (Some(named), 2..4) if !named.is_directory && there.is_none() => {
                V3Change::HostLink(named, other)
            }
            (Some(named), 2..6) if !named.is_directory => {
                let replaceable = there.is_none_or(|there| !there.is_directory && there != named);
                if one == other || !replaceable {
                    return Ok(());
                }
                V3Change::Rename(named, one, other)
            }
            (Some(named), _) if named.is_directory => V3Change::RemoveDirectory(one),
            (Some(_), _) => V3Change::Remove(one),
        };
        let call = self.prepare(worker.link, &change);
        self.send(worker, change, call).await
    }

    /// Sends again what the power cut left unanswered.
    pub(super) async fn resume(&self, worker: &V3Worker<'_>) -> WorkResult {
        loop {
            let index =
                self.unanswered.borrow().iter().position(|(whose, ..)| *whose == worker.number);
            let Some(index) = index else { return Ok(()) };
            let (_, change, call) = self.unanswered.borrow_mut().swap_remove(index);
            if let V3Change::Rename(_, from, to) = &change
                && self.ledger.settled_at(from) == self.ledger.settled_at(to)
            {
                // Both name the file: by RFC 1813 section 3.3.14 nothing is to be done.
                continue;
            }
            self.send(worker, change, call).await?;
        }
    }

    fn prepare(&self, link: &HostLink<'_>, change: &V3Change) -> NfsCall {
        let place =
            |(directory, name): &LedgerKey| (self.directories[*directory].clone(), name.clone());
        let attributes = sattr3 { mode: Nfs3Option::Some(0o644), ..sattr3::default() };
        match change {
            V3Change::Create(key, how) => {
                let (directory, name) = place(key);
                let how = match how {
                    V3CreateMode::Unchecked => createhow3::UNCHECKED(attributes),
                    V3CreateMode::Guarded => createhow3::GUARDED(attributes),
                    V3CreateMode::Exclusive(mark) => {
                        createhow3::EXCLUSIVE(createverf3(mark.to_be_bytes()))
                    }
                };
                let arguments = CREATE3args { where_: at(&directory, name.as_bytes()), how };
                link.prepare(NFS_PROGRAM::NFSPROC3_CREATE, &arguments)
            }
            V3Change::MakeDirectory(key) => {
                let (directory, name) = place(key);
                let arguments = MKDIR3args { where_: at(&directory, name.as_bytes()), attributes };
                link.prepare(NFS_PROGRAM::NFSPROC3_MKDIR, &arguments)
            }
            V3Change::HostLink(named, key) => {
                let (directory, name) = place(key);
                let new = at(&directory, name.as_bytes());
                let arguments = LINK3args { file: handle_of(named), link: new };
                link.prepare(NFS_PROGRAM::NFSPROC3_LINK, &arguments)
            }
            V3Change::Remove(key) => {
                let (directory, name) = place(key);
                let arguments = REMOVE3args { object: at(&directory, name.as_bytes()) };
                link.prepare(NFS_PROGRAM::NFSPROC3_REMOVE, &arguments)
            }
            V3Change::RemoveDirectory(key) => {
                let (directory, name) = place(key);
                let arguments = RMDIR3args { object: at(&directory, name.as_bytes()) };
                link.prepare(NFS_PROGRAM::NFSPROC3_RMDIR, &arguments)
            }
            V3Change::Rename(_, from, to) => {
                let (from, to) = (place(from), place(to));
                let (old, new) = (at(&from.0, from.1.as_bytes()), at(&to.0, to.1.as_bytes()));
                link.prepare(NFS_PROGRAM::NFSPROC3_RENAME, &RENAME3args { from: old, to: new })
            }
        }
    }

    async fn send(&self, worker: &V3Worker<'_>, change: V3Change, mut call: NfsCall) -> WorkResult {
        worker.link.log(|| format!("{change:?}"));
        let mut issued = self.issue(&change);
        let Ok(done) = self.do_once(worker.link, &change, &mut call).await else {
            self.left_unanswered(&change);
            self.unanswered.borrow_mut().push((worker.number, change, call));
            return Err(PowerCut);
        };
        let NameReply { made, durable } = done;
        if let (Some(named), V3Change::Create(key, _) | V3Change::MakeDirectory(key)) =
            (made, &change)
        {
            issued.push((key.clone(), self.ledger.issue(key, Some(named))));
        }
        for (key, number) in &issued {
            self.ledger.answered(key, *number, durable);
        }
        worker.link.log(|| format!("done: {change:?}, stray twin: {}", call.has_stray_twin()));
        if rules::HAS_A_LATE_TWIN && call.has_stray_twin() {
            self.twins.borrow_mut().extend(keys_of(&change));
        }
        Ok(())
    }

    /// The call, and what it has made.
    async fn do_once(
        &self,
        link: &HostLink<'_>,
        change: &V3Change,
        call: &mut NfsCall,
    ) -> WorkResult<NameReply> {
        let done = match change {
            V3Change::Create(..) | V3Change::MakeDirectory(_) => {
                let made: CREATE3res = link.ask(call).await?;
                return self.made(link, change, call, made).await;
            }
            V3Change::HostLink(..) => {
                let linked: LINK3res = link.ask(call).await?;
                status(&linked)
            }
            V3Change::Remove(_) => {
                let removed: REMOVE3res = link.ask(call).await?;
                status(&removed)
            }
            V3Change::RemoveDirectory(_) => {
                let removed: RMDIR3res = link.ask(call).await?;
                status(&removed)
            }
            V3Change::Rename(..) => {
                let renamed: RENAME3res = link.ask(call).await?;
                status(&renamed)
            }
        };
        let met_own_work = match change {
            V3Change::HostLink(..) => nfsstat3::NFS3ERR_EXIST,
            _ => nfsstat3::NFS3ERR_NOENT,
        };
        let durable = done == nfsstat3::NFS3_OK;
        let tolerated = rules::MEETS_ITS_OWN_WORK && call.has_stray_twin() && done == met_own_work;
        assert!(durable || tolerated, "{change:?}: {done}");
        Ok(NameReply { made: None, durable })
    }

    async fn made(
        &self,
        link: &HostLink<'_>,
        change: &V3Change,
        call: &NfsCall,
        made: Result3<CREATE3resok>,
    ) -> WorkResult<NameReply> {
        let (V3Change::Create(key, _) | V3Change::MakeDirectory(key)) = change else {
            unreachable!("what is made has a name");
        };
        let is_directory = matches!(change, V3Change::MakeDirectory(_));
        match made {
            Nfs3Result::Ok(made) => {
                let named = V3File { handle: bytes_of(&made.obj.unwrap()), is_directory };
                Ok(NameReply { made: Some(named), durable: true })
            }
            Nfs3Result::Err((status, _)) => {
                let may_exist = match change {
                    V3Change::Create(_, V3CreateMode::Guarded) | V3Change::MakeDirectory(_) => {
                        status
                    }
                    // The others are the same call, and say so.
                    _ => nfsstat3::NFS3_OK,
                };
                let tolerated = rules::MEETS_ITS_OWN_WORK
                    && call.has_stray_twin()
                    && may_exist == nfsstat3::NFS3ERR_EXIST;
                assert!(tolerated, "{change:?}: {status}");
                let directory = &self.directories[key.0];
                let found = find(link, directory, key.1.as_bytes()).await?;
                let handle = found.unwrap_or_else(|| panic!("{change:?}: exists, and does not"));
                let named = V3File { handle: bytes_of(&handle), is_directory };
                Ok(NameReply { made: Some(named), durable: false })
            }
        }
    }

    // --- What may be ---

    /// What the change does to names whose new meaning is known.
    fn issue(&self, change: &V3Change) -> Vec<(LedgerKey, usize)> {
        let issue = |key: &LedgerKey, named| (key.clone(), self.ledger.issue(key, named));
        match change {
            V3Change::Create(..) | V3Change::MakeDirectory(_) => Vec::new(),
            V3Change::HostLink(named, key) => vec![issue(key, Some(named.clone()))],
            V3Change::Remove(key) | V3Change::RemoveDirectory(key) => vec![issue(key, None)],
            V3Change::Rename(moved, from, to) => {
                vec![issue(from, None), issue(to, Some(moved.clone()))]
            }
        }
    }

    fn left_unanswered(&self, change: &V3Change) {
        match change {
            V3Change::Create(key, _) | V3Change::MakeDirectory(key) => {
                self.ledger.note_unknown(key);
            }
            V3Change::Rename(moved, from, to) => self.ledger.leave_unanswered(moved, from, to),
            _ => {}
        }
    }

    /// No gateway has anything under way.
    pub(super) fn forget_twins(&self) {
        self.twins.borrow_mut().clear();
    }

    // --- What is ---

    async fn look(&self, link: &HostLink<'_>, key: &LedgerKey) -> WorkResult {
        let found = find(link, &self.directories[key.0], key.1.as_bytes()).await?;
        let wanted = self.ledger.settled_at(key).map(|named| named.handle);
        assert_eq!(found.as_ref().map(bytes_of), wanted, "{key:?}");
        Ok(())
    }

    /// The names of a directory, page by page, in one of the two ways.
    async fn list(
        &self,
        link: &HostLink<'_>,
        directory: usize,
        rng: &mut Rng,
    ) -> WorkResult<BTreeMap<String, Option<Vec<u8>>>> {
        let dir = &self.directories[directory];
        let count = 600 + rng.below(2_000) as u32;
        let plus = rng.chance(1, 2);
        let mut cursor = (0, cookieverf3::default());
        let mut names = BTreeMap::new();
        loop {
            let (entries, verifier, end) = if plus {
                read_plus(link, dir, cursor, count).await?
            } else {
                read_plain(link, dir, cursor, count).await?
            };
            assert!(end || !entries.is_empty(), "a page of nothing that is not the last");
            for (name, cookie, handle) in entries {
                cursor = (cookie, verifier);
                let before = names.insert(name.clone(), handle);
                assert!(before.is_none(), "{name} is listed twice in directory {directory}");
            }
            if end {
                break;
            }
        }
        assert!(names.contains_key(".") && names.contains_key(".."), "directory {directory}");
        Ok(names)
    }

    /// Compares all names while nothing is under way.
    pub(super) async fn check(&self, link: &HostLink<'_>, after_crash: bool) -> WorkResult {
        let mut present: BTreeMap<LedgerKey, V3File> = BTreeMap::new();
        for key in self.ledger.keys() {
            let handle = find(link, &self.directories[key.0], key.1.as_bytes()).await?;
            if let Some(handle) = handle {
                present.insert(key, named_by(link, &handle).await?.0);
            }
        }
        self.ledger.judge(&present, after_crash);
        self.check_links(link, &present).await?;
        self.check_lists(link, &present).await
    }

    /// Each file has as many links as names.
    async fn check_links(
        &self,
        link: &HostLink<'_>,
        present: &BTreeMap<LedgerKey, V3File>,
    ) -> WorkResult {
        for (key, named) in present {
            let (_, links) = named_by(link, &handle_of(named)).await?;
            let names = present.values().filter(|other| *other == named).count();
            assert!(
                links as usize == names || named.is_directory,
                "the file of {key:?} has {names} names and {links} links"
            );
        }
        Ok(())
    }

    async fn check_lists(
        &self,
        link: &HostLink<'_>,
        present: &BTreeMap<LedgerKey, V3File>,
    ) -> WorkResult {
        let mut rng = link.harness().fork_rng();
        for directory in 0..DIRECTORIES {
            let state = state_of(link, &self.directories[directory]).await?;
            let listed = self.list(link, directory, &mut rng).await?;
            self.seen.note((directory, state), listed.keys().cloned());
            for (name, handle) in &listed {
                let Some((_, _)) = name.split_once("of-") else { continue };
                let known = present.get(&(directory, name.clone()));
                assert!(known.is_some(), "{name} of directory {directory} is listed, not there");
                let same = handle.is_none() || handle.as_ref() == known.map(|known| &known.handle);
                assert!(same, "{name} of directory {directory} is listed as another file");
            }
            for (_, name) in present.keys().filter(|(at, _)| *at == directory) {
                assert!(listed.contains_key(name), "{name} of {directory} is not listed");
            }
        }
        Ok(())
    }
}

type Result3<T> = Nfs3Result<T, nfs3_types::nfs3::CREATE3resfail>;

/// How a call that makes nothing ended.
fn status<T, E>(result: &Nfs3Result<T, E>) -> nfsstat3 {
    match result {
        Nfs3Result::Ok(_) => nfsstat3::NFS3_OK,
        Nfs3Result::Err((status, _)) => *status,
    }
}

fn keys_of(change: &V3Change) -> Vec<LedgerKey> {
    match change {
        V3Change::Create(key, _)
        | V3Change::MakeDirectory(key)
        | V3Change::HostLink(_, key)
        | V3Change::Remove(key)
        | V3Change::RemoveDirectory(key) => vec![key.clone()],
        V3Change::Rename(_, from, to) => vec![from.clone(), to.clone()],
    }
}

fn any_key(worker: u32, rng: &mut Rng) -> LedgerKey {
    (rng.index(DIRECTORIES), format!("{}-of-{worker}", rng.below(NAMES)))
}
