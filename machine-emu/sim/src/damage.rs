//! Files on disks that rot, lose writes, lie, or are not the right ones: no byte is ever wrong, and
//! a volume that cannot be mounted says which disk, or which node's metadata, is damaged.
//!
//! Each block names its file, its offset and its version, so that every block read is identified:
//! the right file's, and of which time. Each round begins with a volume that is well, and ends with
//! its disks put back, after which everything must be as it was.

mod inspect;
mod repair;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use bytes::Bytes;
use fileio::protocol::{Commit, Credentials, Error, Flush, Handle, ROOT, Write, handle_of};
use futures::FutureExt as _;
use machine_emu::DiskSnapshot;
use runtime::NodeId;
use runtime::seed::Rng;
use volume::VolumeError;

use super::content::BLOCK;
use super::disk_damage::DamageSummary;
use super::harness::{CallFailure, Harness, RoundEnd};
use super::names::{NameKey, name};
use super::stamps::{stamp, version_of};
use super::versions::Versions;

/// Directories besides the root.
const DIRECTORIES: usize = 2;
/// Names of each client in each directory.
const NAMES: u64 = 4;
/// Blocks of a file, at most.
const BLOCKS_MAX: u64 = 48;
/// Blocks that are read at once.
const PIECE: usize = 8;
/// Files that are made on a damaged volume.
const LATE_FILES: u64 = 4;

/// One file, from its creation to its removal.
#[derive(Clone, Debug)]
struct StampedFile {
    number: u64,
    /// Unknown while its creation is not answered.
    handle: Option<Handle>,
    /// The version of each block; 0 is a hole.
    blocks: Vec<Versions<u64>>,
    /// It was committed when all of it was written: a crash does not shorten it.
    whole: bool,
    /// That of the writes that no commit has answered for.
    verifier: Option<u64>,
}

/// What a name may name: files by their place in `files`.
#[derive(Clone, Debug)]
struct StampedName {
    named: Versions<Option<usize>>,
    files: Vec<StampedFile>,
    /// A request failed because of damage: the name is not used until the disks are intact again.
    shunned: bool,
}

type StampedModel = BTreeMap<NameKey, StampedName>;

/// What may be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadRule {
    /// What a crash leaves, and no error.
    Well,
    /// What a crash leaves, and for data an error.
    DataDamaged,
    /// What a crash leaves, or an error.
    Damaged,
    /// What once was, or an error.
    Older,
}

impl ReadRule {
    /// May a name be refused because metadata is damaged?
    fn allows_damaged_names(self) -> bool {
        matches!(self, Self::Damaged | Self::Older)
    }
}

/// All disks at one moment, and what they hold.
struct Backup {
    disks: BTreeMap<String, DiskSnapshot>,
    served: u64,
    model: StampedModel,
}

struct DamageWorkload<'a> {
    harness: &'a Harness,
    directories: Vec<Handle>,
    model: RefCell<StampedModel>,
    numbers: Cell<u64>,
    clients: u32,
}

/// Runs the workload to its end.
pub(super) async fn run(harness: &Harness, clients: u32, rounds: u32, round_ms: u64) {
    harness.set_up().await;
    let mut directories = vec![ROOT];
    for number in 0..DIRECTORIES {
        directories.push(harness.make_directory(0, &format!("directory-{number}")).await);
    }
    let (model, numbers) = (RefCell::default(), Cell::new(0));
    let workload = DamageWorkload { harness, directories, model, numbers, clients };
    for _ in 0..rounds {
        workload.round(round_ms).await;
    }
}

fn is_damage(failure: CallFailure) -> bool {
    matches!(failure, CallFailure::Refused(Error::Damaged {}))
}

impl DamageWorkload<'_> {
    async fn round(&self, round_ms: u64) {
        let harness = self.harness;
        self.harness.stop().await;
        self.committed_all();
        let well = self.backup();
        harness.disk_damage().forget();
        harness.recover().await;
        self.check_all(ReadRule::Well).await;
        let working = (0..self.clients)
            .map(|client| self.client(client, harness.fork_rng()).boxed_local())
            .collect();
        if harness.round(working, round_ms).await == RoundEnd::Orderly {
            // What lies damaged may keep it from that.
            self.flush().await;
            harness.cut_power();
        }
        let left = self.backup();
        let hurt_in_use = harness.disk_damage().tally().hurt;
        harness.damage_disks();
        let tally = harness.disk_damage().tally();
        let refused = self.look_at_damage(&tally).await;
        harness.cut_power();
        if hurt_in_use {
            self.restore(&well, None);
        } else {
            self.restore(&left, refused.then_some(&tally));
        }
        harness.disk_damage().forget();
        harness.recover().await;
        self.check_all(ReadRule::Well).await;
    }

    /// Mounts the damaged volume, and uses it if that can be done. True if it was refused because
    /// of its disks: then nothing was written.
    async fn look_at_damage(&self, tally: &DamageSummary) -> bool {
        let map = self.harness.cluster.map();
        let spares_metadata = tally.spares_metadata(&map);
        let spares_data = tally.data == 0 || self.harness.cluster.data_copies() > 1;
        let rule = if !tally.hurt || spares_metadata && spares_data {
            ReadRule::Well
        } else if spares_metadata {
            ReadRule::DataDamaged
        } else if tally.may_be_older(&map) {
            ReadRule::Older
        } else {
            ReadRule::Damaged
        };
        match self.harness.try_recover().await {
            Ok(()) => {
                let strange = &tally.strange;
                assert!(strange.is_empty(), "mounted, though {strange:?} are not its disks");
                self.check_all(rule).await;
                let has_copies = self.harness.cluster.data_copies() > 1;
                if has_copies && rule == ReadRule::Well && self.numbers.get().is_multiple_of(2) {
                    self.repair().await;
                }
                let late = self.write_late(rule).await;
                self.check_all(rule).await;
                self.check_late(late).await;
                self.remove_some(rule).await;
                self.flush().await;
                self.inspect_files(rule).await;
                false
            }
            Err(error) => {
                assert!(tally.hurt, "nothing is damaged, but: {error}");
                tracing::debug!(%error, "refused");
                let about_disk = matches!(error, VolumeError::Disk { .. });
                assert!(about_disk || !spares_metadata, "one disk rots: {error}");
                check_refusal(&error, tally)
            }
        }
    }

    fn backup(&self) -> Backup {
        let world = self.harness.cluster.world();
        let disks = world.disks().into_iter().map(|path| {
            let image = world.disk(&path).snapshot();
            (path, image)
        });
        let served = self.harness.cluster.served().get();
        Backup { disks: disks.collect(), served, model: self.model.borrow().clone() }
    }

    /// Puts the disks back; only those that were hurt, if the volume was `refused` for them.
    fn restore(&self, backup: &Backup, refused: Option<&DamageSummary>) {
        let world = self.harness.cluster.world();
        for (path, image) in &backup.disks {
            if refused.is_none_or(|tally| tally.disks.contains(path)) {
                world.disk(path).restore(image);
            }
        }
        if refused.is_none() {
            self.harness.cluster.served().set(backup.served);
        }
        *self.model.borrow_mut() = backup.model.clone();
    }

    /// Makes everything durable, as far as that can be done.
    async fn flush(&self) {
        let context = self.harness.cluster.application(0);
        for node in (0..self.harness.cluster.geometry().fs_nodes).map(NodeId::fs) {
            let flushed = self.harness.within_limit("a stop", context.spawn(node, Flush {})).await;
            tracing::debug!(%node, ?flushed);
        }
    }

    // --- Clients ---

    async fn client(&self, client: u32, mut rng: Rng) {
        while !self.harness.is_over() {
            let directory = rng.index(self.directories.len());
            let key = (directory, name(&format!("{client}-{}", rng.below(NAMES))));
            if self.model.borrow().get(&key).is_some_and(|entry| entry.shunned) {
                self.harness.pass(std::time::Duration::from_millis(20)).await;
                continue;
            }
            match self.use_name(client, &key, &mut rng).await {
                Ok(()) => {}
                Err(CallFailure::PowerCut) => return,
                Err(failure) if is_damage(failure) && self.harness.disk_damage().tally().hurt => {
                    self.change(&key, |entry| entry.shunned = true);
                }
                Err(failure) => panic!("{key:?}: {failure:?}"),
            }
        }
    }

    async fn use_name(&self, client: u32, key: &NameKey, rng: &mut Rng) -> Result<(), CallFailure> {
        let present = {
            let model = self.model.borrow();
            let file = model.get(key).and_then(|entry| *entry.named.flushed());
            file.and_then(|file| model.get(key).map(|entry| (file, entry.files[file].clone())))
        };
        let Some((place, file)) = present else {
            let place = self.create(client, key, 1 + rng.below(BLOCKS_MAX)).await?;
            let blocks = self.model.borrow()[key].files[place].blocks.len();
            self.write(client, key, place, 0, blocks).await?;
            return if rng.chance(3, 4) { self.commit(client, key, place).await } else { Ok(()) };
        };
        let first = rng.index(file.blocks.len());
        let count = 1 + rng.index(file.blocks.len() - first);
        match rng.below(10) {
            0..4 => self.write(client, key, place, first, count).await,
            4..7 => self.commit(client, key, place).await,
            7..9 => self.read_own(client, key, place).await,
            _ => self.remove(client, key).await,
        }
    }

    fn change<T>(&self, key: &NameKey, change: impl FnOnce(&mut StampedName) -> T) -> T {
        let mut model = self.model.borrow_mut();
        let fresh =
            || StampedName { named: Versions::new(None), files: Vec::new(), shunned: false };
        change(model.entry(key.clone()).or_insert_with(fresh))
    }

    async fn create(&self, client: u32, key: &NameKey, blocks: u64) -> Result<usize, CallFailure> {
        self.numbers.set(self.numbers.get() + 1);
        let blocks = vec![Versions::new(0); blocks as usize];
        let file = StampedFile {
            number: self.numbers.get(),
            handle: None,
            blocks,
            whole: false,
            verifier: None,
        };
        let (place, issued) = self.change(key, |entry| {
            entry.files.push(file);
            let place = entry.files.len() - 1;
            (place, entry.named.issue(Some(place)))
        });
        let create = self.harness.create_request(self.directories[key.0], key.1.clone(), true);
        let made = self.harness.ask(client, create).await?;
        self.change(key, |entry| {
            entry.files[place].handle = Some(handle_of(&made.attributes));
            entry.named.acknowledge(issued);
            entry.named.durable(issued);
        });
        Ok(place)
    }

    fn handle(&self, key: &NameKey, place: usize) -> Handle {
        self.model.borrow()[key].files[place].handle.expect("its creation was answered")
    }

    async fn write(
        &self,
        client: u32,
        key: &NameKey,
        place: usize,
        first: usize,
        count: usize,
    ) -> Result<(), CallFailure> {
        let file = self.handle(key, place);
        let range = first..first + count;
        let (issued, data) = self.change(key, |entry| {
            let StampedFile { number, blocks, .. } = &mut entry.files[place];
            let mut data = Vec::new();
            let issued: Vec<usize> = (first as u64..)
                .zip(&mut blocks[range.clone()])
                .map(|(block, versions)| {
                    let version = versions.last() + 1;
                    data.extend(stamp(*number, block, version));
                    versions.issue(version)
                })
                .collect();
            (issued, Bytes::from(data))
        });
        let (who, offset) = (Credentials::root(), first as u64 * BLOCK);
        let write = Write { who, file, offset, data: vec![data], durable: false };
        let verifier = self.harness.ask(client, write).await?.write_verifier;
        self.change(key, |entry| entry.files[place].follow(verifier))?;
        self.change(key, |entry| {
            for (versions, number) in entry.files[place].blocks[range].iter_mut().zip(issued) {
                versions.acknowledge(number);
            }
        });
        Ok(())
    }

    async fn commit(&self, client: u32, key: &NameKey, place: usize) -> Result<(), CallFailure> {
        let commit = Commit { file: self.handle(key, place) };
        let verifier = self.harness.ask(client, commit).await?.write_verifier;
        self.change(key, |entry| {
            let file = &mut entry.files[place];
            file.follow(verifier)?;
            file.committed();
            Ok(())
        })
    }

    async fn remove(&self, client: u32, key: &NameKey) -> Result<(), CallFailure> {
        let issued = self.change(key, |entry| entry.named.issue(None));
        let remove = self.harness.remove_request(self.directories[key.0], key.1.clone(), true);
        self.harness.ask(client, remove).await?;
        self.change(key, |entry| {
            entry.named.acknowledge(issued);
            entry.named.durable(issued);
        });
        Ok(())
    }

    /// There is no other writer: the file is as acknowledged, or damaged, or a commit says that
    /// writes are lost.
    async fn read_own(&self, client: u32, key: &NameKey, place: usize) -> Result<(), CallFailure> {
        let file = self.model.borrow()[key].files[place].clone();
        let found = self.read(client, &file).await?;
        for ((block, versions), found) in (0..).zip(&file.blocks).zip(found.blocks) {
            let Some(bytes) = found else { continue };
            let version = version_of(&bytes, file.number, block);
            let version = version.unwrap_or_else(|wrong| panic!("{key:?}: {wrong}"));
            let possible = versions.visible(versions.acknowledged());
            if !possible.contains(&version) && versions.after_crash().contains(&version) {
                self.commit(client, key, place).await?;
            }
            let right = possible.contains(&version);
            assert!(right, "{key:?}, block {block}: version {version}, not one of {possible:?}");
        }
        if found.damaged { Err(CallFailure::Refused(Error::Damaged {})) } else { Ok(()) }
    }

    /// A clean stop follows, or was.
    fn committed_all(&self) {
        for entry in self.model.borrow_mut().values_mut() {
            entry.named.durable(entry.named.acknowledged());
            entry.files.iter_mut().for_each(StampedFile::committed);
        }
    }

    // --- A damaged volume that serves ---

    /// Makes files on a damaged volume; those that could be made, and are not damaged.
    async fn write_late(&self, rule: ReadRule) -> Vec<(NameKey, usize)> {
        let mut late = Vec::new();
        for number in 0..LATE_FILES {
            let directory = number as usize % self.directories.len();
            let key = (directory, name(&format!("late-{}", self.numbers.get())));
            let made = self.harness.within_limit("a late file", self.write_one_late(&key)).await;
            match made {
                Ok(place) => late.push((key, place)),
                Err(CallFailure::Refused(Error::Damaged {})) if rule.allows_damaged_names() => {}
                Err(CallFailure::Refused(Error::Stale {})) if rule == ReadRule::Older => {}
                Err(failure) => panic!("{key:?} cannot be made: {failure:?}"),
            }
        }
        late
    }

    async fn write_one_late(&self, key: &NameKey) -> Result<usize, CallFailure> {
        let place = self.create(0, key, 5).await?;
        self.write(0, key, place, 0, 5).await?;
        self.commit(0, key, place).await?;
        Ok(place)
    }

    /// What was written to a damaged volume is there: its disks no longer fail.
    async fn check_late(&self, late: Vec<(NameKey, usize)>) {
        for (key, place) in late {
            let reading = self.read_own(0, &key, place);
            let read = self.harness.within_limit("a late read", reading).await;
            read.unwrap_or_else(|failure| panic!("{key:?} was just written: {failure:?}"));
        }
    }

    /// Removes half of the names: freeing must not hurt others.
    async fn remove_some(&self, rule: ReadRule) {
        let keys: Vec<NameKey> = self.model.borrow().keys().step_by(2).cloned().collect();
        for key in keys {
            let removed = self.harness.within_limit("a removal", self.remove(0, &key)).await;
            match removed {
                Ok(()) | Err(CallFailure::Refused(Error::NotFound {})) => {}
                Err(CallFailure::Refused(Error::Damaged {})) if rule.allows_damaged_names() => {}
                Err(CallFailure::Refused(Error::Stale {})) if rule == ReadRule::Older => {}
                Err(failure) => panic!("{key:?} cannot be removed: {failure:?}"),
            }
        }
    }
}

impl StampedFile {
    /// Takes over the verifier of an answer. Another one than before says that writes are lost.
    fn follow(&mut self, verifier: u64) -> Result<(), CallFailure> {
        if *self.verifier.get_or_insert(verifier) == verifier {
            return Ok(());
        }
        Err(CallFailure::Refused(Error::Damaged {}))
    }

    fn committed(&mut self) {
        self.verifier = None;
        self.whole |= self.blocks.iter().all(|block| block.acknowledged() > 0);
        for block in &mut self.blocks {
            block.durable(block.acknowledged());
        }
    }
}

/// An error that names what is damaged: a disk that was hurt, or a node's metadata. True if it is
/// about a disk: these are looked at first.
fn check_refusal(error: &VolumeError, tally: &DamageSummary) -> bool {
    match error {
        VolumeError::Disk { path, .. } => {
            let path = path.to_string_lossy();
            let hurt = tally.forgets || tally.disks.contains(&*path);
            assert!(hurt, "{path} is refused, {:?} were hurt: {error}", tally.disks);
            true
        }
        VolumeError::Metadata { .. } => {
            let strange = &tally.strange;
            assert!(strange.is_empty(), "metadata was looked at on strange disks {strange:?}");
            false
        }
        other => panic!("this does not say what is damaged: {other}"),
    }
}
