//! The inode table: inodes, until the kernel forgets them, open files, and lock owners.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use client::protocol::{Attributes, Credentials, Handle, ROOT, WccAttr};
use client::unsynced::UnsyncedMark;
use fuser::{INodeNo, Notifier};
use runtime::Table;

use crate::page_version::{ContentVersion, OpenVerdict, PageVersion};
use crate::write_behind::{Collected, WriteCollector};

/// Files with collected writes at a time, at most.
const BEHIND_MAX: usize = 64;

/// Inodes and open files that the kernel refers to by number. The threads that read from the kernel
/// and those of the workers share it; its lock is never held across a wait.
#[derive(Debug, Default)]
pub(crate) struct InodeTable {
    tables: Mutex<InodeTables>,
    /// The directory that the kernel has as the root; that of the volume unless it is set.
    root: OnceLock<Handle>,
    /// Sends notifications to the kernel.
    notifier: OnceLock<Notifier>,
}

#[derive(Debug, Default)]
struct InodeTables {
    inodes: Table<u64, KernelInode>,
    files: Table<u64, Arc<OpenFile>>,
    /// How often each inode is open.
    opens: Table<u64, u32>,
    /// By inode, those with writes that are not sent.
    behind: Table<u64, Arc<OpenFile>>,
    /// The process of each lock owner that may have locks on an inode.
    lockers: Table<(u64, u64), u32>,
    /// The number of the last file opened.
    last_file: u64,
}

/// An inode. The kernel's number is the inode number; it does not send the generation.
#[derive(Debug)]
struct KernelInode {
    generation: u64,
    /// The number of replies that named it; the kernel forgets it as often.
    lookups: u64,
    /// What is known of the kernel's copy of its content.
    pages: PageVersion,
}

/// An open file.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) handle: Handle,
    /// Who opened it: the program may use it later as another user, or pass it to one.
    pub(crate) opener: Arc<Credentials>,
    /// What was written through it since the last sync.
    pub(crate) unsynced: UnsyncedMark,
    /// What was written through it and is not sent yet.
    pub(crate) behind: WriteCollector,
    /// That of its [`OpenVerdict`].
    since: u64,
    /// A program has used it.
    is_used: AtomicBool,
    /// Owners that may have locks through this open file.
    owners: Mutex<BTreeSet<u64>>,
}

impl InodeTable {
    fn tables(&self) -> MutexGuard<'_, InodeTables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The file with the number `ino`, if the kernel may know it.
    pub(crate) fn handle(&self, ino: u64) -> Option<Handle> {
        let root = self.root();
        if ino == ROOT.ino || ino == root.ino {
            return Some(root);
        }
        let generation = self.tables().inodes.get(&ino)?.generation;
        Some(Handle { ino, generation })
    }

    /// The directory that is mounted.
    pub(crate) fn root(&self) -> Handle {
        self.root.get().copied().unwrap_or(ROOT)
    }

    /// Mounts `root`; once per mount.
    pub(crate) fn set_root(&self, root: Handle) {
        let _ = self.root.set(root);
    }

    /// Counts a reply that names the file.
    pub(crate) fn add_lookup(&self, file: &Attributes) {
        let &Attributes { ino, generation, .. } = file;
        let mut tables = self.tables();
        let new = || KernelInode { generation, lookups: 0, pages: PageVersion::default() };
        let inode = tables.inodes.entry(ino).or_insert_with(new);
        if inode.generation != generation {
            // A number may be reused after a crash of its node: then the older file is gone.
            (inode.generation, inode.pages) = (generation, PageVersion::default());
        }
        inode.lookups += 1;
        inode.pages.note_sent(file);
    }

    /// The kernel is sent attributes in another reply.
    pub(crate) fn note_sent(&self, file: &Attributes) {
        let handle = Handle { ino: file.ino, generation: file.generation };
        self.with_pages(handle, |pages| pages.note_sent(file));
    }

    /// The kernel is sent attributes that it has set, which it never discards.
    pub(crate) fn note_set(&self, file: &Attributes) {
        let handle = Handle { ino: file.ino, generation: file.generation };
        self.with_pages(handle, |pages| pages.note_set(file));
    }

    fn with_pages(&self, file: Handle, note: impl FnOnce(&mut PageVersion)) {
        let mut tables = self.tables();
        if let Some(pages) = tables.pages(file) {
            note(pages);
        }
    }

    /// The kernel has forgotten `lookups` of the replies that named `ino`.
    pub(crate) fn forget(&self, ino: u64, lookups: u64) {
        let mut tables = self.tables();
        let Some(inode) = tables.inodes.get_mut(&ino) else { return };
        inode.lookups = inode.lookups.saturating_sub(lookups);
        if inode.lookups == 0 {
            // The kernel has dropped its pages before.
            tables.inodes.remove(&ino);
        }
    }

    /// Adds an open directory and returns its number.
    pub(crate) fn open_directory(&self, handle: Handle, opener: Credentials) -> u64 {
        self.tables().add_file(handle, opener, 0)
    }

    /// Adds an open file, of which the open found `version`. Returns its number, and what becomes
    /// of the kernel's copy.
    pub(crate) fn open(
        &self,
        handle: Handle,
        opener: Credentials,
        version: Option<ContentVersion>,
    ) -> (u64, OpenVerdict) {
        let mut tables = self.tables();
        let number = tables.last_file + 1;
        let verdict = match tables.pages(handle) {
            Some(pages) => pages.open(number, version),
            None => PageVersion::default().open(number, None),
        };
        (tables.add_file(handle, opener, verdict.since), verdict)
    }

    /// The open file with this number.
    pub(crate) fn file(&self, number: u64) -> Option<Arc<OpenFile>> {
        self.tables().files.get(&number).cloned()
    }

    /// The same for a request of a program that has it open: its open is over.
    pub(crate) fn used_file(&self, number: u64) -> Option<Arc<OpenFile>> {
        let mut tables = self.tables();
        let file = tables.files.get(&number)?.clone();
        if !file.is_used.swap(true, Relaxed)
            && let Some(pages) = tables.pages(file.handle)
        {
            pages.note_use(file.since);
        }
        Some(file)
    }

    /// The version of the pages that the kernel may have of a file, if it is known.
    pub(crate) fn known_version(&self, file: Handle) -> Option<ContentVersion> {
        self.tables().pages(file)?.version()
    }

    /// A read has found this version of a file.
    pub(crate) fn note_read(&self, file: Handle, version: ContentVersion) {
        self.with_pages(file, |pages| pages.note_read(version));
    }

    /// A write was done that has changed the kernel's pages too.
    pub(crate) fn note_own_write(
        &self,
        file: Handle,
        before: Option<WccAttr>,
        after: ContentVersion,
    ) {
        if let Some(before) = before {
            self.note_write(file, after.with(before), after);
        }
    }

    /// The kernel's pages have a write that has failed: the next open drops them.
    pub(crate) fn note_failed_write(&self, file: Handle) {
        self.with_pages(file, PageVersion::forget);
        self.invalidate(file.ino);
    }

    /// Collects a write through the open file `number`, if it need not be sent at once.
    pub(crate) fn collect(&self, number: u64, offset: u64, data: &[u8]) -> Collected {
        let Some(open) = self.used_file(number) else { return Collected::No };
        let ino = open.handle.ino;
        let may_wait = {
            let tables = self.tables();
            let has_place = tables.behind.len() < BEHIND_MAX || tables.behind.contains_key(&ino);
            has_place && tables.opens.get(&ino) == Some(&1) && open.owners().is_empty()
        };
        let collected = open.behind.collect(offset, data, may_wait);
        if collected != Collected::No {
            // Only now: while nothing is collected it may be removed.
            self.tables().behind.entry(ino).or_insert(open);
        }
        collected
    }

    /// The open file with writes to the inode that are not sent.
    pub(crate) fn behind(&self, ino: u64) -> Option<Arc<OpenFile>> {
        self.tables().behind.get(&ino).cloned()
    }

    /// Those of all inodes.
    pub(crate) fn all_behind(&self) -> Vec<Arc<OpenFile>> {
        self.tables().behind.values().cloned().collect()
    }

    /// Writes through this file were sent.
    pub(crate) fn end_behind(&self, open: &OpenFile) {
        let mut tables = self.tables();
        let found = tables.behind.get(&open.handle.ino);
        // Another one may have taken its place.
        if found.is_some_and(|found| std::ptr::eq(Arc::as_ptr(found), open))
            && open.behind.is_empty()
        {
            tables.behind.remove(&open.handle.ino);
        }
    }

    /// This mount has changed a file from one version to the other, and the kernel's pages with it.
    pub(crate) fn note_write(&self, file: Handle, before: ContentVersion, after: ContentVersion) {
        self.with_pages(file, |pages| pages.note_write(before, after));
    }

    /// Removes an open file.
    pub(crate) fn close(&self, number: u64) -> Option<Arc<OpenFile>> {
        let mut tables = self.tables();
        let open = tables.files.remove(&number)?;
        if let Some(opens) = tables.opens.get_mut(&open.handle.ino) {
            *opens -= 1;
            if *opens == 0 {
                tables.opens.remove(&open.handle.ino);
            }
        }
        Some(open)
    }

    /// Records that `owner`, of the process `pid`, may get locks.
    pub(crate) fn add_locker(&self, file: &OpenFile, owner: u64, pid: u32) {
        file.owners().insert(owner);
        self.tables().lockers.insert((file.handle.ino, owner), pid);
    }

    /// Records that `owner` has no locks any more.
    pub(crate) fn remove_locker(&self, file: &OpenFile, owner: u64) {
        file.owners().remove(&owner);
        self.tables().lockers.remove(&(file.handle.ino, owner));
    }

    /// May `owner` have locks on the inode, or through the open file `number`? They must be
    /// released there before the kernel releases the file, by when the owner may have locked again.
    pub(crate) fn has_locked(&self, ino: u64, number: u64, owner: u64) -> bool {
        let tables = self.tables();
        let of_file = |file: &Arc<OpenFile>| file.owners().contains(&owner);
        tables.lockers.contains_key(&(ino, owner)) || tables.files.get(&number).is_some_and(of_file)
    }

    /// The process of a lock owner.
    pub(crate) fn locker(&self, ino: u64, owner: u64) -> Option<u32> {
        self.tables().lockers.get(&(ino, owner)).copied()
    }

    /// Sets the sender of notifications.
    pub(crate) fn set_notifier(&self, notifier: Notifier) {
        // It is set once per mount.
        let _ = self.notifier.set(notifier);
    }

    /// Makes the kernel revalidate its cached content of the file before the next use.
    pub(crate) fn invalidate(&self, ino: u64) {
        if let Some(notifier) = self.notifier.get() {
            // Only attributes: dropping pages could wait for a read that waits for us. An error
            // means that nothing is cached.
            const NO_PAGES: i64 = -1;
            let _ = notifier.inval_inode(INodeNo(ino), NO_PAGES, 0);
        }
    }
}

impl InodeTables {
    fn pages(&mut self, file: Handle) -> Option<&mut PageVersion> {
        let inode = self.inodes.get_mut(&file.ino)?;
        (inode.generation == file.generation).then_some(&mut inode.pages)
    }

    fn add_file(&mut self, handle: Handle, opener: Credentials, since: u64) -> u64 {
        let (unsynced, owners) = (UnsyncedMark::default(), Mutex::default());
        let (opener, is_used) = (Arc::new(opener), AtomicBool::default());
        let behind = WriteCollector::default();
        let file = Arc::new(OpenFile { handle, opener, unsynced, behind, since, is_used, owners });
        *self.opens.entry(handle.ino).or_default() += 1;
        self.last_file += 1;
        self.files.insert(self.last_file, file);
        self.last_file
    }
}

impl OpenFile {
    fn owners(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Owners that may have locks through this open file.
    pub(crate) fn lockers(&self) -> Vec<u64> {
        self.owners().iter().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use client::protocol::{Kind, Time};

    use super::*;

    fn file(ino: u64, generation: u64) -> Attributes {
        let blank = Attributes::blank(ino, generation, Kind::File {}, Time::default());
        Attributes { mode: 0o644, links: 1, ..blank }
    }

    #[test]
    fn an_inode_stays_until_all_its_lookups_are_forgotten() {
        let inodes = InodeTable::default();
        assert_eq!(inodes.handle(ROOT.ino), Some(ROOT));
        assert_eq!(inodes.handle(9), None);
        let root = Handle { ino: 7, generation: 8 };
        inodes.set_root(root);
        assert_eq!([ROOT.ino, 7].map(|ino| inodes.handle(ino)), [Some(root); 2]);
        inodes.add_lookup(&file(9, 4));
        inodes.add_lookup(&file(9, 4));
        inodes.add_lookup(&file(9, 5));
        inodes.forget(9, 2);
        assert_eq!(inodes.handle(9), Some(Handle { ino: 9, generation: 5 }));
        inodes.forget(9, 1);
        assert_eq!(inodes.handle(9), None);
        inodes.forget(9, 1);
    }

    #[test]
    fn pages_survive_opens_of_the_same_inode_as_long_as_the_kernel_has_it() {
        let inodes = InodeTable::default();
        let open = |generation| {
            let version = ContentVersion::of(&file(9, generation), None);
            let handle = Handle { ino: 9, generation };
            let (number, verdict) = inodes.open(handle, Credentials::root(), Some(version));
            (number, verdict.keeps_pages)
        };
        inodes.add_lookup(&file(9, 4));
        let (first, keeps_first) = open(4);
        let (second, keeps_second) = open(4);
        assert!(!keeps_first && !keeps_second, "no program has used either");
        inodes.file(first);
        assert!(!open(4).1);
        inodes.used_file(second);
        assert!(open(4).1);
        // The number names another file with the same times.
        inodes.add_lookup(&file(9, 5));
        assert!(!open(4).1 && !open(5).1);
        inodes.used_file(open(5).0);
        assert!(open(5).1);
        inodes.forget(9, 2);
        inodes.add_lookup(&file(9, 5));
        assert!(!open(5).1, "of this inode no pages are known");
    }

    #[test]
    fn writes_are_collected_of_the_only_open_file_without_locks() {
        let inodes = InodeTable::default();
        let handle = Handle { ino: 9, generation: 4 };
        let open = || inodes.open(handle, Credentials::root(), None).0;
        let first = open();
        let mut end = 0;
        let mut write = || {
            end += 4096;
            inodes.collect(first, end - 4096, &[7; 4096])
        };
        assert_eq!([write(), write(), write()], [Collected::No, Collected::No, Collected::Untimed]);
        assert!(inodes.behind(9).is_some() && inodes.all_behind().len() == 1);
        let second = open();
        assert_eq!(write(), Collected::No);
        let file = inodes.file(first).unwrap();
        inodes.end_behind(&file);
        assert!(inodes.behind(9).is_some(), "it is not sent");
        inodes.end_behind(&inodes.file(second).unwrap());
        assert!(inodes.behind(9).is_some(), "that was another one");
        inodes.close(second);
        inodes.add_locker(&file, 77, 123);
        assert_eq!(write(), Collected::No);
        assert_eq!(inodes.collect(99, 0, &[7]), Collected::No, "it is not open");
    }

    #[test]
    fn a_lock_owner_stays_until_it_has_no_locks() {
        let inodes = InodeTable::default();
        let (number, _) = inodes.open(Handle { ino: 9, generation: 4 }, Credentials::root(), None);
        let open = inodes.file(number).unwrap();
        let (other, _) = inodes.open(open.handle, Credentials::root(), None);
        let other = inodes.file(other).unwrap();
        assert!(!inodes.has_locked(9, number, 77));
        inodes.add_locker(&open, 77, 123);
        assert!(inodes.has_locked(9, 0, 77) && !inodes.has_locked(8, 0, 77));
        assert_eq!((inodes.locker(9, 77), open.lockers()), (Some(123), vec![77]));
        inodes.remove_locker(&other, 77);
        assert!(!inodes.has_locked(9, 0, 77) && inodes.has_locked(9, number, 77));
        inodes.remove_locker(&open, 77);
        assert!(!inodes.has_locked(9, number, 77) && open.lockers().is_empty());
    }
}
