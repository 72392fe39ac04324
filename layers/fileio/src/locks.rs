//! Advisory locks of byte ranges, as POSIX has them. Pure: who may have what, no time and no
//! messages.
//!
//! The locks of one owner on one file never overlap, and neighbours of one kind are one lock: so a
//! new lock replaces what its owner had on the same bytes, and taking bytes away may split one.

use std::collections::BTreeMap;

use crate::protocol::{ByteRange, FileLock, LockKind, LockOwner};

/// Locks on one file, at most.
pub const FILE_LOCKS_MAX: usize = 1024;

/// Locks on all files of one node, at most.
pub const LOCKS_MAX: usize = 1 << 16;

/// Why a table did not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockRefusal {
    /// Another owner has this lock.
    Conflict(FileLock),
    /// There are too many locks.
    Full,
}

/// The locks on the files of one node.
#[derive(Debug, Default)]
pub struct LockTable {
    /// By file; of each owner in the order of their bytes.
    files: BTreeMap<u64, Vec<FileLock>>,
    count: usize,
}

impl ByteRange {
    /// Is there a byte in both?
    pub fn overlaps(&self, other: &Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    /// Do they share a byte, or does one begin where the other ends?
    fn touches(&self, other: &Self) -> bool {
        self.first <= other.last.saturating_add(1) && other.first <= self.last.saturating_add(1)
    }
}

impl LockTable {
    /// A lock of another owner that keeps `owner` from locking `range`; the one that begins first.
    pub fn conflict(
        &self,
        file: u64,
        owner: LockOwner,
        range: ByteRange,
        kind: LockKind,
    ) -> Option<FileLock> {
        let exclusive = LockKind::Exclusive {};
        let locks = self.files.get(&file)?.iter().copied();
        let conflicts = locks.filter(|lock| {
            lock.owner != owner
                && lock.range.overlaps(&range)
                && (kind == exclusive || lock.kind == exclusive)
        });
        conflicts.min_by_key(|lock| (lock.range.first, lock.owner))
    }

    /// Locks `range`, in place of what `owner` has locked of it.
    pub fn lock(
        &mut self,
        file: u64,
        owner: LockOwner,
        range: ByteRange,
        kind: LockKind,
    ) -> Result<(), LockRefusal> {
        if let Some(lock) = self.conflict(file, owner, range, kind) {
            return Err(LockRefusal::Conflict(lock));
        }
        let mut after = self.without(file, owner, range);
        let mut new = FileLock { owner, range, kind };
        after.retain(|lock| {
            let joins = lock.owner == owner && lock.kind == kind && lock.range.touches(&new.range);
            if joins {
                new.range.first = new.range.first.min(lock.range.first);
                new.range.last = new.range.last.max(lock.range.last);
            }
            !joins
        });
        after.push(new);
        self.replace(file, after)
    }

    /// Gives up what `owner` has locked of `range`. Fails only if a lock had to be split and there
    /// are too many.
    pub fn unlock(
        &mut self,
        file: u64,
        owner: LockOwner,
        range: ByteRange,
    ) -> Result<(), LockRefusal> {
        let after = self.without(file, owner, range);
        self.replace(file, after)
    }

    /// Gives up all locks of a client on a file.
    pub fn release(&mut self, file: u64, client: u64) {
        let Some(locks) = self.files.get_mut(&file) else { return };
        let before = locks.len();
        locks.retain(|lock| lock.owner.client != client);
        self.count -= before - locks.len();
        if locks.is_empty() {
            self.files.remove(&file);
        }
    }

    /// The locks on a file, owner by owner.
    pub fn of(&self, file: u64) -> &[FileLock] {
        self.files.get(&file).map_or(&[], Vec::as_slice)
    }

    /// All locks, file by file.
    pub fn all(&self) -> impl Iterator<Item = (u64, FileLock)> + '_ {
        let files = self.files.iter();
        files.flat_map(|(&file, locks)| locks.iter().map(move |&lock| (file, lock)))
    }

    /// Locks in the table.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The locks of a file, if `owner` had none on `range`.
    fn without(&self, file: u64, owner: LockOwner, range: ByteRange) -> Vec<FileLock> {
        let mut left = Vec::new();
        for &lock in self.files.get(&file).into_iter().flatten() {
            if lock.owner != owner || !lock.range.overlaps(&range) {
                left.push(lock);
                continue;
            }
            let ByteRange { first, last } = lock.range;
            if first < range.first {
                left.push(FileLock { range: ByteRange { first, last: range.first - 1 }, ..lock });
            }
            if last > range.last {
                left.push(FileLock { range: ByteRange { first: range.last + 1, last }, ..lock });
            }
        }
        left
    }

    fn replace(&mut self, file: u64, mut after: Vec<FileLock>) -> Result<(), LockRefusal> {
        let before = self.files.get(&file).map_or(0, Vec::len);
        let count = self.count - before + after.len();
        let grows = after.len() > before;
        if grows && (after.len() > FILE_LOCKS_MAX || count > LOCKS_MAX) {
            return Err(LockRefusal::Full);
        }
        self.count = count;
        after.sort_unstable_by_key(|lock| (lock.owner, lock.range.first));
        if after.is_empty() {
            self.files.remove(&file);
        } else {
            self.files.insert(file, after);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BYTES: usize = 24;
    const FILE: u64 = 7;

    /// What each owner has locked of each byte; the last byte stands for all that follow.
    type Bytes = BTreeMap<LockOwner, [Option<LockKind>; BYTES]>;

    #[derive(Clone, Debug)]
    enum LockTestStep {
        Lock(LockOwner, ByteRange, LockKind),
        Unlock(LockOwner, ByteRange),
        Release(u64),
    }

    fn any_owner() -> impl Strategy<Value = LockOwner> {
        (0..2_u64, 0..2_u64).prop_map(|(client, id)| LockOwner { client, id })
    }

    fn any_range() -> impl Strategy<Value = ByteRange> {
        (0..BYTES as u64, 0..BYTES as u64).prop_map(|(one, other)| {
            let last = one.max(other);
            let last = if last == BYTES as u64 - 1 { u64::MAX } else { last };
            ByteRange { first: one.min(other), last }
        })
    }

    fn any_step() -> impl Strategy<Value = LockTestStep> {
        let kind = prop_oneof![Just(LockKind::Shared {}), Just(LockKind::Exclusive {})];
        prop_oneof![
            6 => (any_owner(), any_range(), kind)
                .prop_map(|(owner, range, kind)| LockTestStep::Lock(owner, range, kind)),
            4 => (any_owner(), any_range()).prop_map(|(owner, range)| LockTestStep::Unlock(owner, range)),
            1 => (0..2_u64).prop_map(LockTestStep::Release),
        ]
    }

    fn bytes_of(range: ByteRange) -> std::ops::RangeInclusive<usize> {
        range.first as usize..=(range.last as usize).min(BYTES - 1)
    }

    fn model_conflicts(model: &Bytes, owner: LockOwner, range: ByteRange, kind: LockKind) -> bool {
        let exclusive = Some(LockKind::Exclusive {});
        let others = model.iter().filter(|(other, _)| **other != owner);
        others.map(|(_, bytes)| bytes).any(|bytes| {
            bytes[bytes_of(range)]
                .iter()
                .any(|held| *held == exclusive || (held.is_some() && Some(kind) == exclusive))
        })
    }

    /// The bytes that the table says are locked; its locks must be as few as possible.
    fn bytes_in(table: &LockTable) -> Bytes {
        let mut bytes = Bytes::new();
        let locks: Vec<FileLock> = table.files.get(&FILE).cloned().unwrap_or_default();
        for pair in locks.windows(2).filter(|pair| pair[0].owner == pair[1].owner) {
            assert!(pair[0].range.last < pair[1].range.first, "{pair:?} overlap");
            let joined = pair[0].kind == pair[1].kind && pair[0].range.touches(&pair[1].range);
            assert!(!joined, "{pair:?} should be one");
        }
        assert_eq!(table.count(), locks.len());
        for lock in locks {
            let owned = bytes.entry(lock.owner).or_insert([None; BYTES]);
            owned[bytes_of(lock.range)].fill(Some(lock.kind));
        }
        bytes
    }

    proptest! {
        #[test]
        fn a_table_locks_the_bytes_that_a_byte_array_would(
            steps in prop::collection::vec(any_step(), 1..60)
        ) {
            let (mut table, mut model) = (LockTable::default(), Bytes::new());
            for step in steps {
                match step {
                    LockTestStep::Lock(owner, range, kind) => {
                        let conflicts = model_conflicts(&model, owner, range, kind);
                        let told = table.conflict(FILE, owner, range, kind);
                        prop_assert_eq!(told.is_some(), conflicts);
                        let locked = table.lock(FILE, owner, range, kind);
                        prop_assert_eq!(locked, told.map_or(Ok(()), |lock| Err(LockRefusal::Conflict(lock))));
                        if !conflicts {
                            let owned = model.entry(owner).or_insert([None; BYTES]);
                            owned[bytes_of(range)].fill(Some(kind));
                        }
                    }
                    LockTestStep::Unlock(owner, range) => {
                        prop_assert_eq!(table.unlock(FILE, owner, range), Ok(()));
                        if let Some(owned) = model.get_mut(&owner) {
                            owned[bytes_of(range)].fill(None);
                        }
                    }
                    LockTestStep::Release(client) => {
                        table.release(FILE, client);
                        model.retain(|owner, _| owner.client != client);
                    }
                }
                model.retain(|_, bytes| bytes.iter().any(Option::is_some));
                prop_assert_eq!(bytes_in(&table), model.clone());
            }
        }
    }

    #[test]
    fn a_full_file_refuses_more_locks_and_splits_and_gives_room_again() {
        let mut table = LockTable::default();
        let owner = LockOwner { client: 1, id: 1 };
        let byte = |at: u64| ByteRange { first: 4 * at, last: 4 * at + 2 };
        let kind = LockKind::Shared {};
        for at in 0..FILE_LOCKS_MAX as u64 {
            assert_eq!(table.lock(FILE, owner, byte(at), kind), Ok(()));
        }
        let more = byte(FILE_LOCKS_MAX as u64);
        assert_eq!(table.lock(FILE, owner, more, kind), Err(LockRefusal::Full));
        let middle = ByteRange { first: 1, last: 1 };
        assert_eq!(table.unlock(FILE, owner, middle), Err(LockRefusal::Full));
        assert_eq!(table.unlock(FILE, owner, byte(0)), Ok(()));
        assert_eq!(table.lock(FILE, owner, more, kind), Ok(()));
        table.release(FILE, 1);
        assert_eq!(table.count(), 0);
    }
}
