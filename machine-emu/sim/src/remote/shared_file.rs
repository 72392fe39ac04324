//! A large file that all clients write whole and read in large pieces, of which each process sends
//! what it has: no read sees bytes of two writes, or older ones than those that were there before.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use client::OpenOptions;
use runtime::seed::Rng;

use super::RemoteClient;
use crate::harness::WorkResult;

pub(super) const PATH: &str = "/shared";
/// Bytes of the file: each of three processes has more of it than goes through another one.
const BYTES: usize = 320 << 10;
/// Bytes of a read, at least: several processes send some of them.
const READ_MIN: usize = 256 << 10;

/// The writes of the file in this round.
#[derive(Debug, Default)]
pub(super) struct VersionedFile {
    clock: Cell<u64>,
    version: Cell<u64>,
    /// When each version was begun, and when it was answered.
    writes: RefCell<BTreeMap<u64, (u64, Option<u64>)>>,
}

impl VersionedFile {
    /// What was not synced may be lost from here on.
    pub(super) fn begin_round(&self) {
        self.writes.take();
    }

    fn now(&self) -> u64 {
        self.clock.set(self.clock.get() + 1);
        self.clock.get()
    }

    /// A read that began at `begun` has found `version`.
    fn check(&self, version: u64, begun: u64) {
        let writes = self.writes.borrow();
        let last = |(_, answered): &(u64, Option<u64>)| answered.filter(|at| *at < begun);
        if writes.values().find_map(last).is_none() {
            // Of an earlier round, and perhaps lost in part.
            return;
        }
        let Some((_, Some(ended))) = writes.get(&version) else {
            assert!(writes.contains_key(&version), "no write of this round wrote {version}");
            return;
        };
        let later = writes.iter().find(|(_, (started, answered))| {
            started > ended && answered.is_some_and(|answered| answered < begun)
        });
        assert!(later.is_none(), "it read version {version}, and {later:?} had replaced it");
    }
}

impl RemoteClient<'_> {
    pub(super) async fn write_shared(&self) -> WorkResult {
        let shared = &self.workload.shared;
        let version = shared.version.get() + 1;
        shared.version.set(version);
        let begun = shared.now();
        shared.writes.borrow_mut().insert(version, (begun, None));
        let bytes: Vec<u8> = (0..BYTES / 8).flat_map(|_| version.to_le_bytes()).collect();
        let write = async {
            let file = self.system.open(PATH, OpenOptions::new().write(true)).await?;
            file.write_at(0, bytes).await
        };
        self.workload.must(write).await?;
        let answered = shared.now();
        if let Some(write) = shared.writes.borrow_mut().get_mut(&version) {
            write.1 = Some(answered);
        }
        Ok(())
    }

    pub(super) async fn read_shared(&self, rng: &mut Rng) -> WorkResult {
        let shared = &self.workload.shared;
        let length = READ_MIN + 8 * rng.index((BYTES - READ_MIN) / 8 + 1);
        let offset = 8 * rng.index((BYTES - length) / 8 + 1);
        let begun = shared.now();
        let mut bytes = vec![0; length];
        let read = async {
            let file = self.system.open(PATH, OpenOptions::new().read(true)).await?;
            file.read_at(offset as u64, &mut bytes).await
        };
        let count = self.workload.must(read).await?;
        let mut versions: Vec<u64> = bytes[..count]
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()))
            .collect();
        versions.dedup();
        let is_known = shared
            .writes
            .borrow()
            .values()
            .any(|(_, answered)| answered.is_some_and(|answered| answered < begun));
        if is_known {
            assert_eq!(
                (versions.len(), count),
                (1, length),
                "bytes of several writes: {versions:?}"
            );
            shared.check(versions[0], begun);
        }
        Ok(())
    }
}
