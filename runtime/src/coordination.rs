//! Who opened the volume, in which epoch, and what must be known before its disks can be read
//! (design D9): one small trait, so that engines can be changed.
//!
//! Embedded volumes keep it in sled; nothing in there is the only copy (ADR 6).

use std::path::Path;

use crate::ids::Epoch;

/// Bytes of the page cache that sled may use: the records are few and small.
const CACHE_BYTES: u64 = 1 << 20;

/// A coordination engine failed. What it held can be rebuilt from the disks.
#[derive(Debug, thiserror::Error)]
#[error("the coordination store failed: {0}")]
pub struct CoordinationError(#[from] sled::Error);

/// Keeps small records that all processes of a volume agree on.
pub trait Coordination: Send {
    /// The record of `key`.
    fn get(&self, key: &str) -> Result<Option<Vec<u8>>, CoordinationError>;
    /// Replaces the record of `key`; durable when it returns.
    fn put(&self, key: &str, value: &[u8]) -> Result<(), CoordinationError>;
    /// A new epoch, later than any before and than `after`; durable when it returns.
    fn next_epoch(&self, after: Epoch) -> Result<Epoch, CoordinationError>;
}

const EPOCH_KEY: &str = "epoch";

/// The embedded engine.
#[derive(Debug)]
pub struct Sled {
    database: sled::Db,
}

impl Sled {
    /// Opens the store in `directory`, or makes it.
    pub fn open(directory: &Path) -> Result<Self, CoordinationError> {
        let config = sled::Config::new().path(directory).cache_capacity(CACHE_BYTES);
        Ok(Self { database: config.open()? })
    }
}

impl Sled {
    /// The last epoch that was given, 0 if none was.
    pub fn last_epoch(&self) -> Result<Epoch, CoordinationError> {
        let last = self.get(EPOCH_KEY)?;
        Ok(last.and_then(|value| crate::wire::from_bytes(&value).ok()).unwrap_or_default())
    }
}

impl Coordination for Sled {
    fn get(&self, key: &str) -> Result<Option<Vec<u8>>, CoordinationError> {
        Ok(self.database.get(key)?.map(|value| value.to_vec()))
    }

    fn put(&self, key: &str, value: &[u8]) -> Result<(), CoordinationError> {
        self.database.insert(key, value)?;
        self.database.flush()?;
        Ok(())
    }

    fn next_epoch(&self, after: Epoch) -> Result<Epoch, CoordinationError> {
        let next = Epoch(self.last_epoch()?.max(after).0 + 1);
        self.put(EPOCH_KEY, &crate::wire::to_bytes(&next))?;
        Ok(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_only_grow_also_over_a_restart() {
        let directory = tempfile::tempdir().unwrap();
        let mut last = Epoch(0);
        for after in [0, 0, 70, 3] {
            let engine = Sled::open(directory.path()).unwrap();
            let next = engine.next_epoch(Epoch(after)).unwrap();
            assert!(next > last && next.0 > after, "{next:?} after {last:?} and {after}");
            last = next;
        }
        let engine = Sled::open(directory.path()).unwrap();
        engine.put("volume", b"record").unwrap();
        assert_eq!(engine.get("volume").unwrap().as_deref(), Some(&b"record"[..]));
        assert_eq!(engine.get("nothing").unwrap(), None);
    }
}
