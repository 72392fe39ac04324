//! Files and trees between this computer and volumes, by several workers at once.
//!
//! One thread walks the tree, makes directories and hands files to the workers ([`worker_pool`]);
//! at the end come further names of files ([links](TreeCopy::links)), and what directories keep.
//! Memory: the walk's queue, a chunk or two for each worker, and what is known of each directory
//! and each file with several names.

pub(crate) mod command;
mod file;
#[cfg(test)]
mod tests;
mod worker_pool;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use client::Kind;
use parking_lot::Mutex;

pub(crate) use self::file::PART_PREFIX;
use self::worker_pool::{Job, WorkerPool};
use crate::exit::CommandFailure;
use crate::progress::Progress;
use crate::tree::{CHUNK, FileInfo, FileTree, beside, into, split};

/// Files that are copied at once, unless said otherwise.
pub(crate) const JOBS: usize = 8;

/// Options of a copy.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "independent switches of the command line")]
pub(crate) struct CopyOptions {
    /// Directories with all that is in them.
    pub(crate) recursive: bool,
    /// Workers.
    pub(crate) jobs: usize,
    /// Compare content, not size and time.
    pub(crate) checksum: bool,
    /// What is there is read back and compared.
    pub(crate) verify: bool,
    /// What is there already is copied, too.
    pub(crate) all: bool,
    /// A file gets its name when it is durable.
    pub(crate) sync: bool,
    /// The destination is the copy, also if it is a directory.
    pub(crate) exact: bool,
    /// Owners and groups are kept.
    pub(crate) owner: bool,
}

impl Default for CopyOptions {
    fn default() -> Self {
        let recursive = false;
        let (checksum, verify, all, sync) = (false, false, false, true);
        let (exact, owner) = (false, false);
        Self { recursive, jobs: JOBS, checksum, verify, all, sync, exact, owner }
    }
}

/// What was done.
#[derive(Debug, Default)]
struct CopyTotals {
    things: AtomicU64,
    files: AtomicU64,
    /// Bytes that were written; holes are none.
    bytes: AtomicU64,
    kept: AtomicU64,
    failures: Mutex<CopyFailures>,
}

#[derive(Debug, Default)]
struct CopyFailures {
    count: u64,
    /// The failure of a single file is returned, not printed.
    only: Option<CommandFailure>,
}

/// A copy from one tree to another.
struct TreeCopy<'a> {
    from: &'a dyn FileTree,
    to: &'a dyn FileTree,
    /// They are the same.
    one_tree: bool,
    options: CopyOptions,
    progress: &'a Progress,
    totals: &'a CopyTotals,
    /// Set when the copy shall end.
    stop: &'a AtomicBool,
}

/// A file, a link or a directory to copy.
#[derive(Clone, Debug)]
struct CopyItem {
    from: Vec<u8>,
    to: Vec<u8>,
    node: FileInfo,
    /// Nothing can be at `to`: its directory is new.
    fresh: bool,
}

type CopyWorkers = WorkerPool<CopyItem, file::FileCopy>;

/// What the walk remembers for the end.
#[derive(Default)]
struct DeferredWork {
    /// Those above first.
    directories: Vec<CopyItem>,
    /// The first copy of each file with several names.
    firsts: BTreeMap<(u64, u64), Vec<u8>>,
    /// Further names: the first copy, and what to make.
    links: Vec<(Vec<u8>, CopyItem)>,
}

impl TreeCopy<'_> {
    /// Copies `from`, where `node` is, to `to`. Failures go to the tally.
    #[allow(clippy::disallowed_methods, reason = "the program has threads of its own")]
    fn run(&self, from: Vec<u8>, node: FileInfo, to: Vec<u8>) {
        let workers = CopyWorkers::new();
        let item = CopyItem { from, to, node: self.wished(node), fresh: false };
        let mut later = DeferredWork::default();
        let above = match split(&item.to).0 {
            b"" => b".".to_vec(),
            above => above.to_vec(),
        };
        std::thread::scope(|scope| {
            // A single small file has work for one.
            let jobs = if node.is_directory() || node.size > CHUNK { self.options.jobs } else { 1 };
            for _ in 0..jobs {
                scope.spawn(|| self.work(&workers));
            }
            self.found(&item);
            if node.is_directory() {
                self.walk(item, &workers, &mut later);
            } else {
                workers.put(item);
            }
            workers.end_walk();
        });
        for (first, item) in std::mem::take(&mut later.links) {
            self.try_to(|| self.link(&first, item, &workers));
        }
        // Last, because copying into a directory changes its time, and needs its permission.
        for item in later.directories.iter().rev() {
            self.try_to(|| {
                self.to.keep(&item.to, &item.node)?;
                self.sync(&item.to)
            });
        }
        self.try_to(|| self.sync(&above));
    }

    /// What shall be kept of `node`.
    fn wished(&self, node: FileInfo) -> FileInfo {
        FileInfo { owner: node.owner.filter(|_| self.options.owner), ..node }
    }

    /// Makes the names of a directory durable, if so wished.
    fn sync(&self, directory: &[u8]) -> Result<(), CommandFailure> {
        if self.options.sync { self.to.sync(directory) } else { Ok(()) }
    }

    fn found(&self, item: &CopyItem) {
        self.totals.things.fetch_add(1, Ordering::Relaxed);
        let is_file = item.node.kind == Kind::File {};
        self.progress.found(if is_file { item.node.data() } else { 0 });
    }

    fn work(&self, workers: &CopyWorkers) {
        while let Some((job, _busy)) = workers.next() {
            self.try_to(|| match job {
                Job::Item(item) => self.item(item, workers),
                Job::Piece(transfer, start) => transfer.piece(self, start),
            });
        }
    }

    /// Runs one step; a failure is reported, and the rest goes on.
    fn try_to(&self, work: impl FnOnce() -> Result<(), CommandFailure>) {
        if self.check_stop().is_err() {
            return;
        }
        if let Err(failure) = work() {
            self.totals.fail(failure, self.progress, self.options.recursive);
        }
    }

    /// An error if the copy shall end.
    fn check_stop(&self) -> Result<(), CommandFailure> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(CommandFailure::Stopped { again: "the same command" });
        }
        Ok(())
    }

    /// Makes the directories from `root` on and hands out what is in them.
    fn walk(&self, root: CopyItem, workers: &CopyWorkers, later: &mut DeferredWork) {
        let mut top = None;
        let mut open = vec![root];
        while let Some(directory) = open.pop() {
            self.try_to(|| {
                let fresh = self.to.make_directory(&directory.to)?;
                if top.is_none() {
                    top = self.to.lookup(&directory.to)?.map(|node| node.id);
                }
                later.directories.push(directory.clone());
                self.from.list(&directory.from, &mut |name, node| {
                    self.check_stop()?;
                    if self.one_tree && top == Some(node.id) {
                        let why = "it is the copy itself, below its original; it is left out";
                        let found = into(&directory.from, name);
                        self.try_to(|| Err(self.from.refuse("copy", &found, why)));
                        return Ok(());
                    }
                    let (from, to) = (into(&directory.from, name), into(&directory.to, name));
                    let item = CopyItem { from, to, node: self.wished(node), fresh };
                    self.found(&item);
                    if node.is_directory() {
                        open.push(item);
                    } else if let Some(item) = later.first_name(item) {
                        workers.put(item);
                    }
                    Ok(())
                })
            });
        }
    }

    fn item(&self, item: CopyItem, workers: &CopyWorkers) -> Result<(), CommandFailure> {
        match item.node.kind {
            Kind::File {} => file::copy(self, item, workers)?,
            Kind::Symlink {} => self.symlink(&item)?,
            _ => {
                let why = "it is not a file, a directory or a link";
                return Err(self.from.refuse("copy", &item.from, why));
            }
        }
        Ok(())
    }

    fn symlink(&self, item: &CopyItem) -> Result<(), CommandFailure> {
        let target = self.from.read_link(&item.from)?;
        let there = self.find(item)?;
        let is_link = there.is_some_and(|there| there.kind == Kind::Symlink {});
        let give =
            |path: &[u8]| item.node.owner.map_or(Ok(()), |owner| self.to.give_link(path, owner));
        if is_link && self.to.read_link(&item.to)? == target {
            if there.is_some_and(|there| self.wished(there).owner != item.node.owner) {
                give(&item.to)?;
            }
            self.totals.kept();
            return Ok(());
        }
        self.replace(item, |part| {
            self.to.make_symlink(&target, part)?;
            give(part)
        })?;
        self.totals.copied();
        Ok(())
    }

    /// Makes the further name `item` of what was copied to `first`; a copy, where there are no such
    /// names.
    fn link(
        &self,
        first: &[u8],
        item: CopyItem,
        workers: &CopyWorkers,
    ) -> Result<(), CommandFailure> {
        let there = self.find(&item)?;
        let original = self.to.lookup(first)?;
        if there.is_some() && there.map(|there| there.id) == original.map(|node| node.id) {
            self.totals.kept();
            self.progress.moved(item.node.data());
            return Ok(());
        }
        if self.replace(&item, |part| self.to.make_link(first, part)).is_ok() {
            self.totals.copied();
            self.progress.moved(item.node.data());
        } else {
            workers.put(item);
            self.work(workers);
        }
        Ok(())
    }

    /// Makes something under a name of its own, and then gives it the name of `item`.
    fn replace(
        &self,
        item: &CopyItem,
        make: impl FnOnce(&[u8]) -> Result<(), CommandFailure>,
    ) -> Result<(), CommandFailure> {
        let name = [PART_PREFIX.as_bytes(), b"link"].concat();
        // Links are as quickly made anew as taken up, but several are made at once.
        let own = runtime::hash::xxh3(split(&item.to).1);
        let part = beside(&item.to, &[&name[..], format!("-{own:016x}").as_bytes()].concat());
        if !item.fresh && self.to.lookup(&part)?.is_some() {
            self.to.remove(&part)?;
        }
        make(&part)?;
        self.to.rename(&part, &item.to)
    }
}

impl DeferredWork {
    /// The item, unless its file has another name that came first.
    fn first_name(&mut self, item: CopyItem) -> Option<CopyItem> {
        if item.node.links < 2 {
            return Some(item);
        }
        if let Some(first) = self.firsts.get(&item.node.id) {
            self.links.push((first.clone(), item));
            return None;
        }
        self.firsts.insert(item.node.id, item.to.clone());
        Some(item)
    }
}

impl CopyTotals {
    fn copied(&self) {
        self.files.fetch_add(1, Ordering::Relaxed);
    }

    fn moved(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn kept(&self) {
        self.kept.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a failure, and reports it if others may follow.
    fn fail(&self, failure: CommandFailure, progress: &Progress, others: bool) {
        if matches!(failure, CommandFailure::Stopped { .. }) {
            return;
        }
        let mut failures = self.failures.lock();
        failures.count += 1;
        if others || failures.only.is_some() {
            progress.print_above(&format!("mdfs: {failure}"));
        } else {
            failures.only = Some(failure);
        }
    }

    /// How it went.
    fn outcome(self) -> Result<(), CommandFailure> {
        let CopyFailures { count, only } = self.failures.into_inner();
        match only {
            Some(failure) if count == 1 => Err(failure),
            _ if count == 0 => Ok(()),
            _ => {
                let total = self.things.into_inner() as usize;
                Err(CommandFailure::Some { failed: count as usize, total })
            }
        }
    }

    /// What was done, in words.
    fn summary(&self) -> String {
        let [files, bytes, kept] =
            [&self.files, &self.bytes, &self.kept].map(|count| count.load(Ordering::Relaxed));
        let bytes = crate::size::human(bytes);
        let noun = |count| if count == 1 { "file" } else { "files" };
        let there = match kept {
            0 => String::new(),
            _ => format!("; {kept} {} there already", if kept == 1 { "was" } else { "were" }),
        };
        format!("{files} {} copied, {bytes}{there}\n", noun(files))
    }
}
