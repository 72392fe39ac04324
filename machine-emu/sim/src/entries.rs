//! Clients that change names of their own in shared directories, while the power goes again and
//! again. Some things they do at the same time: a file gets another name while it becomes durable,
//! a directory is used before it is answered that it was made. Afterwards what was answered as
//! durable is there, a rename that was not answered was done or not, and nothing else is left: the
//! whole tree is walked and compared with what the nodes hold.

mod check;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use bytes::Bytes;
use fileio::protocol::{
    Attributes, Commit, Credentials, DirectoryEntry, Error, Handle, Name, ROOT, ReadDirectory,
    RemoveXattr, SetXattr, SyncDirectory, Write, XattrMode, XattrName, handle_of,
};
use futures::FutureExt as _;
use futures::future::{join, join_all};
use runtime::seed::Rng;

use super::cluster::OBSERVER;

use super::harness::{CallFailure, Harness, PowerCut, RoundEnd, WorkResult};
use super::names::{NameKey, name};
use super::versions::Versions;

const DIRECTORIES: usize = 3;
/// Names of each client in each directory.
const NAMES: u64 = 4;
/// Bytes of a file, at most.
const FILE_BYTES_MAX: u64 = 200_000;
/// Bytes in the value of an extended attribute, at most: a record with it fits the smallest stripe.
const XATTR_BYTES_MAX: usize = 9_000;
/// Those who use a directory before it is answered that it is made, less one.
const USERS_MAX: u64 = 4;
/// More chunks than a file has.
const CHUNKS_MAX: u32 = 64;

/// What a name may name.
type NamedFile = Option<Handle>;

/// A rename that was not answered.
#[derive(Clone, Debug)]
struct PendingRename {
    from: NameKey,
    to: NameKey,
    moved: Handle,
    replaced: NamedFile,
    /// The old name was durable before: only then the file must have a name.
    from_certain: bool,
    /// The new name was durably what was replaced.
    to_certain: bool,
    /// The new name was one of this file before, and a crash may bring that back.
    may_have_both: bool,
}

struct EntriesWorkload<'a> {
    harness: &'a Harness,
    directories: Vec<Handle>,
    named: RefCell<BTreeMap<NameKey, Versions<NamedFile>>>,
    pending_renames: RefCell<Vec<PendingRename>>,
    /// The extended attribute of each file, as the seed of its value.
    xattrs: RefCell<BTreeMap<Handle, Versions<Option<u64>>>>,
    /// Made by a request that was not answered: its handle is not known.
    unknown: RefCell<Vec<NameKey>>,
    /// What was durably put into directories, until they are emptied.
    inside: RefCell<BTreeMap<Handle, Vec<Name>>>,
}

/// Runs the workload to its end.
pub(super) async fn run(harness: &Harness, clients: u32, rounds: u32, round_ms: u64) {
    harness.set_up().await;
    let mut directories = vec![ROOT];
    while directories.len() < DIRECTORIES {
        let name = format!("shared-{}", directories.len());
        directories.push(harness.make_directory(0, &name).await);
    }
    let workload = EntriesWorkload {
        harness,
        directories,
        named: RefCell::default(),
        pending_renames: RefCell::default(),
        xattrs: RefCell::default(),
        unknown: RefCell::default(),
        inside: RefCell::default(),
    };
    for _ in 0..rounds {
        let working =
            (0..clients).map(|client| workload.client(client, harness.fork_rng()).boxed_local());
        match harness.round(working.collect(), round_ms).await {
            RoundEnd::PowerCut => harness.recover().await,
            RoundEnd::Orderly => {
                workload.flushed();
                harness.stop_and_recover().await;
            }
        }
        harness.within_limit("a check", workload.check_after_crash()).await;
    }
}

impl EntriesWorkload<'_> {
    async fn client(&self, client: u32, mut rng: Rng) {
        while !self.harness.is_over() {
            let (one, other) = (any_key(client, &mut rng), any_key(client, &mut rng));
            let durable = rng.chance(2, 3);
            let done = match (self.settled_at(&one), rng.below(5)) {
                (None, 0..3) => self.create(client, one, other, durable, &mut rng).await,
                (None, _) => self.make_directory(client, one, durable, &mut rng).await,
                (Some(file), 0) => self.link(client, file, other, durable).await,
                (Some(file), 1) => self.remove(client, one, file, durable).await,
                (Some(file), 2) => self.change_xattr(client, file, durable, &mut rng).await,
                (Some(file), _) => self.rename(client, (one, file), other, durable).await,
            };
            let done = match done {
                Ok(()) if !durable && self.harness.operations().is_multiple_of(4) => {
                    self.sync_directory(client, rng.index(DIRECTORIES)).await
                }
                done => done,
            };
            if let Err(PowerCut) = done {
                return;
            }
        }
    }

    fn settled_at(&self, key: &NameKey) -> NamedFile {
        self.named.borrow().get(key).and_then(|versions| *versions.flushed())
    }

    /// A crash now would leave `key` as it is.
    fn is_certain(&self, key: &NameKey, named: NamedFile) -> bool {
        let entries = self.named.borrow();
        let Some(versions) = entries.get(key) else { return named.is_none() };
        versions.after_crash().iter().all(|version| *version == named)
    }

    /// Of an earlier rename nothing can be said any more.
    fn forget_pending_renames(&self, key: &NameKey) {
        self.pending_renames
            .borrow_mut()
            .retain(|pending| pending.from != *key && pending.to != *key);
    }

    fn issue(&self, key: &NameKey, named: NamedFile) -> usize {
        self.forget_pending_renames(key);
        let mut entries = self.named.borrow_mut();
        entries.entry(key.clone()).or_insert_with(|| Versions::new(None)).issue(named)
    }

    fn answered(&self, key: &NameKey, number: usize, durable: bool) {
        let mut entries = self.named.borrow_mut();
        let Some(versions) = entries.get_mut(key) else { return };
        versions.acknowledge(number);
        if durable {
            versions.durable(number);
        }
    }

    /// The outcome of making `key`: its handle is known only now.
    fn made(
        &self,
        key: &NameKey,
        made: Result<Attributes, CallFailure>,
        durable: bool,
    ) -> WorkResult {
        match made {
            Ok(attributes) => {
                let number = self.issue(key, Some(handle_of(&attributes)));
                self.answered(key, number, durable);
                Ok(())
            }
            Err(failure) => {
                self.unknown.borrow_mut().push(key.clone());
                failure.power_cut()
            }
        }
    }

    async fn create(
        &self,
        client: u32,
        key: NameKey,
        other: NameKey,
        durable: bool,
        rng: &mut Rng,
    ) -> WorkResult {
        self.forget_pending_renames(&key);
        let create = self.harness.create_request(self.directories[key.0], key.1.clone(), durable);
        let made = self.harness.ask(client, create).await;
        let file = made.as_ref().ok().map(|created| handle_of(&created.attributes));
        self.made(&key, made.map(|created| created.attributes), durable)?;
        let Some(file) = file else { return Ok(()) };
        if rng.chance(1, 3) {
            self.change_xattr(client, file, durable, rng).await?;
        }
        if rng.chance(1, 2) { self.write(client, file, other, rng).await } else { Ok(()) }
    }

    /// Sets the extended attribute of a file, or removes it. It must go with the file.
    async fn change_xattr(
        &self,
        client: u32,
        file: Handle,
        durable: bool,
        rng: &mut Rng,
    ) -> WorkResult {
        let is_there = self.xattrs.borrow().get(&file).is_some_and(|set| set.flushed().is_some());
        let set = (!is_there || rng.chance(2, 3)).then(|| rng.bits());
        let number = {
            let mut xattrs = self.xattrs.borrow_mut();
            xattrs.entry(file).or_insert_with(|| Versions::new(None)).issue(set)
        };
        let (who, call, name) = (Credentials::root(), self.harness.call_id(), xattr_name());
        let done = match set {
            Some(seed) => {
                let (value, mode) = (xattr_value(seed), XattrMode::Either {});
                let call = SetXattr { who, call, file, name, value, mode, durable };
                self.harness.ask(client, call).await
            }
            None => self.harness.ask(client, RemoveXattr { who, call, file, name, durable }).await,
        };
        done.map(drop).or_else(CallFailure::power_cut)?;
        if let Some(versions) = self.xattrs.borrow_mut().get_mut(&file) {
            versions.acknowledge(number);
            if durable {
                versions.durable(number);
            }
        }
        Ok(())
    }

    /// What a file holds must go with it. While it becomes durable the file gets another name.
    async fn write(&self, client: u32, file: Handle, other: NameKey, rng: &mut Rng) -> WorkResult {
        let length = 1 + rng.below(20_000);
        let offset = rng.below(FILE_BYTES_MAX - length);
        let data = vec![Bytes::from(vec![7; length as usize])];
        let write = Write { who: Credentials::root(), file, offset, data, durable: false };
        self.harness.ask(client, write).await.map(|_| ()).or_else(CallFailure::power_cut)?;
        if rng.chance(1, 2) {
            let committing = self.harness.ask(client, Commit { file });
            let (committed, linked) = join(committing, self.link(client, file, other, true)).await;
            committed.map(|_| ()).or_else(CallFailure::power_cut).and(linked)?;
        }
        Ok(())
    }

    /// Other clients use the directory as soon as they see it, before its creation is answered.
    async fn make_directory(
        &self,
        client: u32,
        key: NameKey,
        durable: bool,
        rng: &mut Rng,
    ) -> WorkResult {
        self.forget_pending_renames(&key);
        let asked = self.harness.mkdir_request(self.directories[key.0], key.1.clone(), durable);
        let is_made = Cell::new(false);
        let making = async {
            let made = self.harness.ask(client, asked).await;
            is_made.set(true);
            self.made(&key, made, durable)
        };
        let users = (0..rng.below(USERS_MAX)).map(|user| {
            let name = name(&format!("inside-{user}"));
            self.use_early((client + 1 + user as u32) % OBSERVER, &key, name, &is_made)
        });
        let (made, used) = join(making, join_all(users.collect::<Vec<_>>())).await;
        used.into_iter().fold(made, Result::and)
    }

    /// Makes a file in the directory `key` as soon as that can be seen, unless it `is_made` before.
    async fn use_early(
        &self,
        client: u32,
        key: &NameKey,
        name: Name,
        is_made: &Cell<bool>,
    ) -> WorkResult {
        let directory = loop {
            if is_made.get() {
                return Ok(());
            }
            let (above, sought) = (self.directories[key.0], key.1.clone());
            match self.harness.lookup(client, above, sought).await {
                Ok(found) => break handle_of(&found),
                Err(CallFailure::Refused(Error::NotFound {})) => {}
                Err(failure) => return failure.power_cut(),
            }
        };
        let create = self.harness.create_request(directory, name.clone(), true);
        self.harness.ask(client, create).await.map(|_| ()).or_else(CallFailure::power_cut)?;
        self.inside.borrow_mut().entry(directory).or_default().push(name);
        Ok(())
    }

    /// Removes a directory, with what was put into it.
    async fn remove_directory(
        &self,
        client: u32,
        key: &NameKey,
        directory: Handle,
        durable: bool,
    ) -> WorkResult {
        self.inside.borrow_mut().remove(&directory);
        for DirectoryEntry { name, .. } in self.names_of(directory, client).await? {
            let remove = self.harness.remove_request(directory, name, false);
            self.harness.ask(client, remove).await.or_else(CallFailure::power_cut)?;
        }
        let above = self.directories[key.0];
        let remove = self.harness.rmdir_request(above, key.1.clone(), durable);
        self.harness.ask(client, remove).await.or_else(CallFailure::power_cut)
    }

    async fn names_of(&self, directory: Handle, client: u32) -> WorkResult<Vec<DirectoryEntry>> {
        let (who, after) = (Credentials::root(), 0);
        let read = ReadDirectory { who, directory, after, count_max: 100, attributes: false };
        match self.harness.ask(client, read).await {
            Ok(page) => Ok(page.entries),
            Err(failure) => failure.power_cut(),
        }
    }

    async fn link(&self, client: u32, file: Handle, key: NameKey, durable: bool) -> WorkResult {
        if self.settled_at(&key).is_some() {
            return Ok(());
        }
        let link =
            self.harness.link_request(file, (self.directories[key.0], key.1.clone()), durable);
        let number = self.issue(&key, Some(file));
        match self.harness.ask(client, link).await {
            Ok(_) => {
                self.answered(&key, number, durable);
                Ok(())
            }
            Err(CallFailure::Refused(Error::IsDirectory {} | Error::NotPermitted {})) => {
                let number = self.issue(&key, None);
                self.answered(&key, number, false);
                Ok(())
            }
            Err(failure) => failure.power_cut(),
        }
    }

    async fn remove(&self, client: u32, key: NameKey, file: Handle, durable: bool) -> WorkResult {
        let directory = self.directories[key.0];
        let number = self.issue(&key, None);
        let remove = self.harness.remove_request(directory, key.1.clone(), durable);
        match self.harness.ask(client, remove).await {
            Ok(()) => self.answered(&key, number, durable),
            Err(CallFailure::Refused(Error::IsDirectory {})) => {
                self.remove_directory(client, &key, file, durable).await?;
                self.answered(&key, number, durable);
            }
            Err(failure) => {
                assert!(failure == CallFailure::PowerCut, "{key:?} = {file:?}: {failure:?}");
                return Err(PowerCut);
            }
        }
        Ok(())
    }

    async fn rename(
        &self,
        client: u32,
        (from, moved): (NameKey, Handle),
        to: NameKey,
        durable: bool,
    ) -> WorkResult {
        let replaced = self.settled_at(&to);
        if from == to || replaced == Some(moved) {
            return Ok(());
        }
        let rename = self.harness.rename_request(
            (self.directories[from.0], from.1.clone()),
            (self.directories[to.0], to.1.clone()),
            durable,
        );
        let from_certain = self.is_certain(&from, Some(moved));
        let to_certain = self.is_certain(&to, replaced);
        let may_have_both = self
            .named
            .borrow()
            .get(&to)
            .is_some_and(|versions| versions.after_crash().contains(&Some(moved)));
        let numbers = [self.issue(&from, None), self.issue(&to, Some(moved))];
        let pending =
            PendingRename { from, to, moved, replaced, from_certain, to_certain, may_have_both };
        let PendingRename { from, to, .. } = &pending;
        match self.harness.ask(client, rename).await {
            Ok(()) => {
                self.answered(from, numbers[0], durable);
                self.answered(to, numbers[1], durable);
                if !durable {
                    self.pending_renames.borrow_mut().push(pending);
                }
                Ok(())
            }
            Err(CallFailure::Refused(
                Error::IsDirectory {} | Error::NotDirectory {} | Error::NotEmpty {},
            )) => {
                // Nothing was done.
                for (key, named) in [(from, Some(moved)), (to, replaced)] {
                    let number = self.issue(key, named);
                    self.answered(key, number, false);
                }
                Ok(())
            }
            Err(CallFailure::PowerCut) => {
                self.pending_renames.borrow_mut().push(pending);
                Err(PowerCut)
            }
            Err(failure) => failure.power_cut(),
        }
    }

    /// What was answered before, of the names of one directory, survives any crash.
    async fn sync_directory(&self, client: u32, index: usize) -> WorkResult {
        let answered: Vec<(NameKey, usize)> = {
            let named = self.named.borrow();
            let inside = named.iter().filter(|(key, _)| key.0 == index);
            inside.map(|(key, versions)| (key.clone(), versions.acknowledged())).collect()
        };
        let directory = self.directories[index];
        self.harness
            .ask(client, SyncDirectory { directory })
            .await
            .or_else(CallFailure::power_cut)?;
        for (key, number) in answered {
            self.answered(&key, number, true);
        }
        Ok(())
    }

    /// A clean stop follows.
    fn flushed(&self) {
        for versions in self.named.borrow_mut().values_mut() {
            let number = versions.acknowledged();
            versions.durable(number);
        }
        for versions in self.xattrs.borrow_mut().values_mut() {
            let number = versions.acknowledged();
            versions.durable(number);
        }
    }
}

fn xattr_name() -> XattrName {
    XattrName::new(&b"user.tag"[..]).expect("a name")
}

/// The value of an extended attribute: one piece or two.
fn xattr_value(seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let mut value = vec![0; rng.index(XATTR_BYTES_MAX)];
    rng.fill(&mut value);
    value
}

fn any_key(client: u32, rng: &mut Rng) -> NameKey {
    (rng.index(DIRECTORIES), name(&format!("{client}-{}", rng.below(NAMES))))
}
