//! What the kernel has numbers for: inodes, until it forgets them, and open files.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use client::protocol::{Attributes, Handle, ROOT};
use fuser::{INodeNo, Notifier};
use runtime::Table;

/// All that the kernel has numbers for. The threads that read from the kernel and those of the seats
/// share it; it is held for one look only, never while anything is waited for.
#[derive(Debug, Default)]
pub(crate) struct Known {
    tables: Mutex<Tables>,
    /// The way to tell the kernel something that it has not asked for.
    notifier: OnceLock<Notifier>,
}

#[derive(Debug, Default)]
struct Tables {
    inodes: Table<u64, Inode>,
    files: Table<u64, Arc<OpenFile>>,
    /// Who may have locked something of which inode, and the process.
    lockers: Table<(u64, u64), u32>,
    /// The number of the file that was opened last.
    last_file: u64,
}

/// The kernel's number of an inode is ours; the incarnation it does not send along.
#[derive(Debug)]
struct Inode {
    generation: u64,
    /// So often was it told to the kernel, which forgets as often.
    lookups: u64,
}

/// A file as it was opened once.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) handle: Handle,
    /// The write verifier with which the first write since the last sync was answered; 0 if there
    /// is none. If that write is there, so are all later ones that are not told to be lost.
    unsynced: AtomicU64,
    /// Who may have locks that came through this opening.
    owners: Mutex<BTreeSet<u64>>,
}

impl Known {
    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The file that the kernel means by `ino`; none if it should not know any.
    pub(crate) fn handle(&self, ino: u64) -> Option<Handle> {
        if ino == ROOT.ino {
            return Some(ROOT);
        }
        let generation = self.tables().inodes.get(&ino)?.generation;
        Some(Handle { ino, generation })
    }

    /// The kernel is about to be told of the file once more.
    pub(crate) fn remember(&self, file: &Attributes) {
        let &Attributes { ino, generation, .. } = file;
        let mut tables = self.tables();
        let inode = tables.inodes.entry(ino).or_insert(Inode { generation, lookups: 0 });
        // A number may be used again after a crash of its node: then the older file is gone.
        inode.generation = generation;
        inode.lookups += 1;
    }

    /// The kernel has forgotten `lookups` of the times that it was told of `ino`.
    pub(crate) fn forget(&self, ino: u64, lookups: u64) {
        let mut tables = self.tables();
        let Some(inode) = tables.inodes.get_mut(&ino) else { return };
        inode.lookups = inode.lookups.saturating_sub(lookups);
        if inode.lookups == 0 {
            tables.inodes.remove(&ino);
        }
    }

    /// A file was opened; its number.
    pub(crate) fn open(&self, handle: Handle) -> u64 {
        let file =
            Arc::new(OpenFile { handle, unsynced: AtomicU64::new(0), owners: Mutex::default() });
        let mut tables = self.tables();
        tables.last_file += 1;
        let number = tables.last_file;
        tables.files.insert(number, file);
        number
    }

    /// The open file of a number.
    pub(crate) fn file(&self, number: u64) -> Option<Arc<OpenFile>> {
        self.tables().files.get(&number).cloned()
    }

    /// Nobody uses the open file any more.
    pub(crate) fn close(&self, number: u64) -> Option<Arc<OpenFile>> {
        self.tables().files.remove(&number)
    }

    /// `owner`, of the process `pid`, is about to lock something.
    pub(crate) fn note_locker(&self, file: &OpenFile, owner: u64, pid: u32) {
        file.owners().insert(owner);
        self.tables().lockers.insert((file.handle.ino, owner), pid);
    }

    /// `owner` has no locks any more.
    pub(crate) fn forget_locker(&self, file: &OpenFile, owner: u64) {
        file.owners().remove(&owner);
        self.tables().lockers.remove(&(file.handle.ino, owner));
    }

    /// May `owner` have locked something of the inode, or through the open file of `number`? It must be
    /// forgotten there too before the kernel releases that, by when it may have locked something anew.
    pub(crate) fn has_locked(&self, ino: u64, number: u64, owner: u64) -> bool {
        let tables = self.tables();
        let of_file = |file: &Arc<OpenFile>| file.owners().contains(&owner);
        tables.lockers.contains_key(&(ino, owner)) || tables.files.get(&number).is_some_and(of_file)
    }

    /// The process of an owner of locks.
    pub(crate) fn locker(&self, ino: u64, owner: u64) -> Option<u32> {
        self.tables().lockers.get(&(ino, owner)).copied()
    }

    /// From now on the kernel can be told something.
    pub(crate) fn set_notifier(&self, notifier: Notifier) {
        // There is one for each mount.
        let _ = self.notifier.set(notifier);
    }

    /// Lets the kernel look at the file anew before it uses what it has kept of its content.
    pub(crate) fn outdate(&self, ino: u64) {
        if let Some(notifier) = self.notifier.get() {
            // Pages are not taken from it, which might wait for a read that waits for us. In vain if it
            // keeps nothing.
            const NO_PAGES: i64 = -1;
            let _ = notifier.inval_inode(INodeNo(ino), NO_PAGES, 0);
        }
    }
}

impl OpenFile {
    fn owners(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those who may have locks that came through this opening.
    pub(crate) fn lockers(&self) -> Vec<u64> {
        self.owners().iter().copied().collect()
    }

    /// A write was answered with this verifier.
    pub(crate) fn note(&self, write_verifier: u64) {
        // Two verifiers since the last sync: one of them is wrong, and the first stays.
        let _ = self.unsynced.compare_exchange(0, write_verifier, Relaxed, Relaxed);
    }

    /// A sync begins: what it has to find.
    pub(crate) fn take_unsynced(&self) -> Option<u64> {
        let first = self.unsynced.swap(0, Relaxed);
        (first != 0).then_some(first)
    }

    /// The sync has failed: what it should have covered is still to be synced.
    pub(crate) fn put_back(&self, first: Option<u64>) {
        if let Some(first) = first {
            self.unsynced.store(first, Relaxed);
        }
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
    fn an_inode_is_known_until_it_was_forgotten_as_often_as_told() {
        let known = Known::default();
        assert_eq!(known.handle(ROOT.ino), Some(ROOT));
        assert_eq!(known.handle(9), None);
        known.remember(&file(9, 4));
        known.remember(&file(9, 4));
        known.remember(&file(9, 5));
        known.forget(9, 2);
        assert_eq!(known.handle(9), Some(Handle { ino: 9, generation: 5 }));
        known.forget(9, 1);
        assert_eq!(known.handle(9), None);
        known.forget(9, 1);
    }

    #[test]
    fn the_first_unsynced_write_stays_until_a_sync_succeeds() {
        let known = Known::default();
        let number = known.open(Handle { ino: 9, generation: 4 });
        let open = known.file(number).unwrap();
        assert_eq!(open.take_unsynced(), None);
        open.note(7);
        open.note(8);
        let first = open.take_unsynced();
        assert_eq!(first, Some(7));
        open.note(8);
        open.put_back(first);
        assert_eq!(open.take_unsynced(), Some(7));
        known.close(number);
        assert!(known.file(number).is_none());
    }

    #[test]
    fn whoever_has_locked_is_known_until_it_has_no_locks() {
        let known = Known::default();
        let number = known.open(Handle { ino: 9, generation: 4 });
        let open = known.file(number).unwrap();
        let other = known.file(known.open(open.handle)).unwrap();
        assert!(!known.has_locked(9, number, 77));
        known.note_locker(&open, 77, 123);
        assert!(known.has_locked(9, 0, 77) && !known.has_locked(8, 0, 77));
        assert_eq!((known.locker(9, 77), open.lockers()), (Some(123), vec![77]));
        known.forget_locker(&other, 77);
        assert!(!known.has_locked(9, 0, 77) && known.has_locked(9, number, 77));
        known.forget_locker(&open, 77);
        assert!(!known.has_locked(9, number, 77) && open.lockers().is_empty());
    }
}
