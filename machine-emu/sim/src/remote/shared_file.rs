//! A large file that all clients write whole and read in large pieces. Each process is left what it
//! shall store, and sends what it has: no read sees bytes of two writes, or older ones than those
//! that were there before.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use bytes::Bytes;
use client::OpenOptions;
use client::protocol::{Error, Handle, WriteDirect};
use fileio::client::ask;
use runtime::delivery::{Deposit, DepositedRange, PlacedBytes, TakeDeposit};
use runtime::hash::crc32c;
use runtime::seed::Rng;
use runtime::{NodeId, Spawn as _, Undelivered};

use super::RemoteClient;
use crate::harness::WorkResult;

pub(super) const PATH: &str = "/shared";
/// Bytes of the file: several processes have more of it than goes through another one, and the last
/// block is not whole. Not much more than a stream holds: under the worst of the cuts what is
/// longer never comes through in one piece.
const BYTES: usize = (256 << 10) + 4000;
/// Bytes of a read, at least: several processes send some of them.
const READ_MIN: usize = 256 << 10;

/// Versions that are multiples of this are synced.
const SYNC_EVERY: u64 = 3;

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

/// The content of one version.
fn content_of(version: u64) -> Vec<u8> {
    (0..BYTES / 8).flat_map(|_| version.to_le_bytes()).collect()
}

impl RemoteClient<'_> {
    pub(super) async fn write_shared(&self) -> WorkResult {
        let shared = &self.workload.shared;
        let version = shared.version.get() + 1;
        shared.version.set(version);
        let begun = shared.now();
        shared.writes.borrow_mut().insert(version, (begun, None));
        let bytes = content_of(version);
        let write = async {
            let file = self.system.open(PATH, OpenOptions::new().write(true)).await?;
            file.write_at(0, bytes).await?;
            // What a commit has named is on the disks, wherever it was stored.
            if version.is_multiple_of(SYNC_EVERY) { file.sync().await } else { Ok(()) }
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

/// Bytes of what is left in a forgery.
const FORGED_BYTES: usize = 4096;
/// Bytes that are left for a part of a write.
const LEFT_BYTES: usize = 128 << 10;
/// How often what was left is dropped under a write.
const DROPS: u32 = 6;

impl RemoteClient<'_> {
    /// Writes the shared file while what is left for that is dropped again and again.
    pub(super) async fn write_shared_amid_drops(&self) -> WorkResult {
        let drops = async {
            for _ in 0..DROPS {
                self.drop_deposits().await?;
            }
            Ok(())
        };
        let (written, dropped) = futures::future::join(self.write_shared(), drops).await;
        written.and(dropped)
    }

    /// Tells all processes that none of its writes is under way.
    async fn drop_deposits(&self) -> WorkResult {
        let machine = self.system.machine();
        let transfers = machine.transfers();
        let Some(transfer) = transfers.and_then(|it| it.begin_deposits(NodeId::fs(0))) else {
            return Ok(());
        };
        let drops = transfer.processes().iter().map(|process| {
            let (client, parts) = (transfer.client(), Vec::new());
            let drop = Deposit { client, transfer: u64::MAX, first: u64::MAX, parts };
            machine.spawn(process.node, drop)
        });
        self.workload.until_power_cut(futures::future::join_all(drops)).await.map(drop)
    }

    /// Writes a version that no write of this round has, of which a part is nowhere: nothing of it
    /// must ever be read.
    pub(super) async fn write_shared_in_part(&self) -> WorkResult {
        let shared = &self.workload.shared;
        let version = shared.version.get() + 1;
        shared.version.set(version);
        let machine = self.system.machine();
        let found = self.workload.must(self.system.metadata(PATH)).await?;
        let file = Handle { ino: found.ino, generation: found.generation };
        let node = client::hash::ino_node(file.ino, machine.fs_nodes());
        let Some(transfer) = machine.transfers().and_then(|it| it.begin_deposits(node)) else {
            return Ok(());
        };
        let others: Vec<_> =
            transfer.processes().iter().copied().filter(|it| !it.is_answering).collect();
        let [one, two] = others[..] else { return Ok(()) };
        let bytes = Bytes::from(content_of(version));
        let (client, number, first) = (transfer.client(), transfer.number(), transfer.first());
        let parts = vec![PlacedBytes { at: 0, data: bytes.slice(..LEFT_BYTES) }];
        let deposit = Deposit { client, transfer: number, first, parts };
        let sent = machine.spawn(one.node, deposit);
        if self.workload.until_power_cut(sent).await? != Ok(true) {
            return Ok(());
        }
        let sum = crc32c(&bytes[..FORGED_BYTES]);
        let part = |process: u32, at: usize| DepositedRange {
            process,
            at: at as u64,
            checksums: vec![sum; LEFT_BYTES / FORGED_BYTES],
        };
        let deposited = vec![part(one.process, 0), part(two.process, LEFT_BYTES)];
        let (who, source) = (self.who.clone(), transfer.source(&[one, two]));
        let data = vec![bytes.slice(2 * LEFT_BYTES..)];
        let write =
            WriteDirect { who, file, offset: 0, data, source, deposited, parity: Vec::new() };
        let answer = self.workload.until_power_cut(ask(machine, write)).await?;
        assert_eq!(answer, Ok(None), "a part of it is nowhere");
        Ok(())
    }

    /// Leaves bytes under the number of another client, takes some as only servers may, or writes
    /// with checksums that are not those of the bytes.
    pub(super) async fn forge_deposit(&self, rng: &mut Rng) -> WorkResult {
        let (machine, file) = (self.system.machine(), self.workload.log.get());
        let node = client::hash::ino_node(file.ino, machine.fs_nodes());
        let Some(transfer) = machine.transfers().and_then(|it| it.begin_deposits(node)) else {
            return Ok(());
        };
        let (client, number, first) = (transfer.client(), transfer.number(), transfer.first());
        let Some(&other) = transfer.processes().iter().find(|it| !it.is_answering) else {
            return Ok(());
        };
        let deposit = |client| {
            let data = vec![7; FORGED_BYTES].into();
            let parts = vec![PlacedBytes { at: 0, data }];
            machine.spawn(other.node, Deposit { client, transfer: number, first, parts })
        };
        let until = |sent| self.workload.until_power_cut(sent);
        if rng.chance(1, 4) {
            let answer = until(deposit(rng.bits())).await?;
            assert_eq!(answer, Err(Undelivered::Refused), "it leaves bytes for another client");
            let take = machine.spawn(other.node, TakeDeposit { client, transfer: number });
            let answer = self.workload.until_power_cut(take).await?;
            assert_eq!(answer.map(drop), Err(Undelivered::Refused), "it acts as a node");
            return Ok(());
        }
        if until(deposit(client)).await? != Ok(true) {
            return Ok(());
        }
        let checksums = vec![crc32c(b"something else")];
        let deposited = vec![DepositedRange { process: other.process, at: 0, checksums }];
        let mut source = transfer.source(&[other]);
        let is_other = rng.chance(1, 2);
        if is_other {
            source.client = rng.bits();
        }
        // Far behind the end of the log, which its records never reach.
        let (who, data, offset) = (self.who.clone(), Vec::new(), 1 << 40);
        let write = WriteDirect { who, file, offset, data, source, deposited, parity: Vec::new() };
        let answer = self.workload.until_power_cut(ask(machine, write)).await?;
        let refused = Err(Error::Undelivered { why: Undelivered::Refused });
        let expected = if is_other { refused } else { Ok(None) };
        assert_eq!(answer, expected, "it names bytes that are not there, or not its own");
        Ok(())
    }
}
