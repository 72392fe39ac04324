//! What partitions use at one node: bytes of their files, and inodes. Counted as things change; the
//! counts are recorded with the changes.

use std::cell::RefCell;
use std::collections::BTreeMap;

use runtime::wire::to_bytes;

use super::record_log::decode;
use crate::keys;
use crate::partition::{PartitionNumber, partition_of};
use crate::protocol::{Inode, PartitionUse};
use crate::store::{Batch, Store, StoreError};

/// How a record changes what the partition of an inode uses.
#[derive(Clone, Copy, Debug)]
pub(super) struct UseChange {
    pub(super) ino: u64,
    /// Bytes of its blocks in the store, before and after.
    pub(super) bytes: (u64, u64),
    /// Inodes more or less.
    pub(super) inodes: i64,
}

impl UseChange {
    /// A record replaces `before` by `after`.
    pub(super) fn of(before: &Inode, after: &Inode) -> Self {
        let bytes = (before.attributes.used_bytes, after.attributes.used_bytes);
        Self { ino: after.attributes.ino, bytes, inodes: 0 }
    }
}

/// What one partition uses.
#[derive(Clone, Copy, Debug, Default)]
struct UseCount {
    /// As the store has it.
    stored: PartitionUse,
    /// Bytes with what is not committed yet.
    seen_bytes: u64,
}

/// What each partition but 0 uses at this node.
#[derive(Debug, Default)]
pub(crate) struct PartitionUses(RefCell<BTreeMap<PartitionNumber, UseCount>>);

impl PartitionUses {
    /// As the store has them.
    pub(super) async fn load(store: &Store) -> Result<Self, StoreError> {
        let (from, to) = keys::partition_uses();
        let mut uses = BTreeMap::new();
        let rows = store.scan(std::ops::Bound::Included(&from), &to, usize::MAX).await?;
        for (key, value) in rows {
            let Some(partition) = keys::used_partition(&key) else { continue };
            let stored: PartitionUse = decode(&value).unwrap_or_default();
            uses.insert(partition, UseCount { stored, seen_bytes: stored.bytes });
        }
        Ok(Self(RefCell::new(uses)))
    }

    /// What a partition uses, with what is not committed yet.
    pub(crate) fn get(&self, partition: PartitionNumber) -> PartitionUse {
        let count = self.0.borrow().get(&partition).copied().unwrap_or_default();
        PartitionUse { bytes: count.seen_bytes, ..count.stored }
    }

    /// The blocks of an inode that clients see have changed.
    pub(super) fn note_seen(&self, ino: u64, before: u64, after: u64) {
        let partition = partition_of(ino);
        if partition == 0 || before == after {
            return;
        }
        let mut uses = self.0.borrow_mut();
        let seen = &mut uses.entry(partition).or_default().seen_bytes;
        *seen = (*seen + after).saturating_sub(before);
    }

    /// Puts the counts after these changes into the batch that makes them.
    pub(super) fn put(&self, changes: &[UseChange], batch: &mut Batch) {
        for (partition, after) in self.after(changes) {
            if after == PartitionUse::default() {
                batch.delete(keys::partition_use(partition));
            } else {
                batch.put(keys::partition_use(partition), to_bytes(&after));
            }
        }
    }

    /// The batch was committed just now.
    pub(super) fn committed(&self, changes: &[UseChange]) {
        for (partition, stored) in self.after(changes) {
            self.0.borrow_mut().entry(partition).or_default().stored = stored;
        }
    }

    fn after(&self, changes: &[UseChange]) -> BTreeMap<PartitionNumber, PartitionUse> {
        let mut after: BTreeMap<PartitionNumber, PartitionUse> = BTreeMap::new();
        for change in changes {
            let partition = partition_of(change.ino);
            if partition == 0 {
                continue;
            }
            let known = || self.0.borrow().get(&partition).map(|count| count.stored);
            let count = after.entry(partition).or_insert_with(|| known().unwrap_or_default());
            count.bytes = (count.bytes + change.bytes.1).saturating_sub(change.bytes.0);
            count.inodes = count.inodes.saturating_add_signed(change.inodes);
        }
        after
    }
}
