//! Files whose logical blocks have several blocks have the bytes that were written, and no block is
//! lost or has two owners, while they are changed in all ways, committed, and opened again.

use bytes::Bytes;
use fileio::protocol::{
    Append, CallId, Change, Commit, Credentials, Error, GetAttributes, Handle, PunchHole, ROOT,
    Read, ReadList, Regions, Scrub, SetAttributes, Write, WriteList,
};
use runtime::NodeId;
use runtime::seed::{Rng, with_seed};

use crate::cluster::{BLOCK, Cluster, FS_NODES};

const STRIPE_SIZE: u32 = 64 << 10;
const FILES: u64 = 4;
const STEPS: u64 = 150;
/// Bytes of a file, at most: some stripes.
const LENGTH_MAX: u64 = 5 * STRIPE_SIZE as u64;

struct ModelFile {
    handle: Handle,
    bytes: Vec<u8>,
}

struct Changes<'a> {
    cluster: &'a Cluster,
    rng: &'a mut Rng,
    /// Bytes of a logical block.
    block: u64,
    calls: u64,
}

impl Changes<'_> {
    /// Somewhere in a file; half of the times where blocks begin and end.
    fn any_range(&mut self) -> (u64, usize) {
        let offset = self.rng.below(LENGTH_MAX);
        let most = [300, self.block, LENGTH_MAX][self.rng.index(3)].min(LENGTH_MAX - offset);
        let length = 1 + self.rng.below(most);
        if self.rng.chance(1, 2) {
            return (offset, length as usize);
        }
        let unit = [BLOCK, self.block][self.rng.index(2)];
        let offset = offset / unit * unit;
        (offset, length.next_multiple_of(unit).min(LENGTH_MAX - offset) as usize)
    }

    fn any_bytes(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.rng.fill(&mut bytes);
        bytes
    }

    async fn write(&mut self, file: &mut ModelFile) {
        let (offset, length) = self.any_range();
        let bytes = self.any_bytes(length);
        put(&mut file.bytes, offset, &bytes);
        let (who, durable, data) = (Credentials::root(), false, vec![Bytes::from(bytes)]);
        self.cluster.ask(Write { who, file: file.handle, offset, data, durable }).await;
    }

    async fn write_list(&mut self, file: &mut ModelFile) {
        let ranges: Vec<(u64, u64)> = (0..=self.rng.below(6))
            .map(|_| (self.rng.below(LENGTH_MAX - 9_000), 1 + self.rng.below(9_000)))
            .collect();
        let regions = Regions::indexed(ranges.iter().copied()).expect("a list");
        let data = Bytes::from(self.any_bytes(regions.bytes() as usize));
        let mut at = 0;
        for (offset, length) in ranges {
            put(&mut file.bytes, offset, &data[at..at + length as usize]);
            at += length as usize;
        }
        let (who, file, durable) = (Credentials::root(), file.handle, false);
        self.cluster.ask(WriteList { who, file, regions, skip: 0, data, durable }).await;
    }

    async fn append(&mut self, file: &mut ModelFile) {
        let length = 1 + self.rng.index(9_000);
        let bytes = self.any_bytes(length);
        self.calls += 1;
        let appended = Append {
            who: Credentials::root(),
            call: CallId { client: 9, number: self.calls },
            again: false,
            acknowledged: self.calls - 1,
            only_if_verifier: None,
            file: file.handle,
            data: vec![Bytes::from(bytes.clone())],
        };
        let appended = self.cluster.ask(appended).await;
        assert_eq!(appended.offset, file.bytes.len() as u64);
        file.bytes.extend(bytes);
    }

    async fn set_size(&mut self, file: &mut ModelFile) {
        let size = self.rng.below(LENGTH_MAX);
        file.bytes.resize(size as usize, 0);
        let change = Change { size: Some(size), ..Change::default() };
        let (who, file, durable) = (Credentials::root(), file.handle, false);
        let call = SetAttributes { who, file, change, only_if_ctime: None, durable };
        self.cluster.ask(call).await;
    }

    async fn punch(&mut self, file: &mut ModelFile) {
        let (offset, length) = self.any_range();
        let size = file.bytes.len();
        let hole = (offset as usize).min(size)..(offset as usize + length).min(size);
        file.bytes[hole].fill(0);
        let (who, file, length) = (Credentials::root(), file.handle, length as u64);
        self.cluster.ask(PunchHole { who, file, offset, length, durable: false }).await;
    }

    async fn look(&mut self, file: &ModelFile) {
        let (offset, length) = self.any_range();
        let read =
            Read { who: Credentials::root(), file: file.handle, offset, length: length as u32 };
        let read = self.cluster.ask(read).await.data.concat();
        let start = (offset as usize).min(file.bytes.len());
        assert!(read == file.bytes[start..(start + length).min(file.bytes.len())]);
    }
}

fn put(bytes: &mut Vec<u8>, offset: u64, data: &[u8]) {
    let (start, end) = (offset as usize, offset as usize + data.len());
    bytes.resize(bytes.len().max(end), 0);
    bytes[start..end].copy_from_slice(data);
}

/// All of each file, read in two ways, and all blocks of it.
async fn check(cluster: &Cluster, files: &[ModelFile], block: u64) {
    for ModelFile { handle, bytes } in files {
        let (who, file, length) = (Credentials::root(), *handle, LENGTH_MAX as u32 * 2);
        let read = cluster.ask(Read { who: who.clone(), file, offset: 0, length }).await;
        assert!(read.data.concat() == *bytes, "{} bytes", bytes.len());
        let regions = Regions::strided(0, 700, LENGTH_MAX / 5_000, 5_000).expect("a list");
        let length = regions.bytes() as u32;
        let list = ReadList { who, file, regions, skip: 0, length };
        let found = cluster.ask(list).await.data.concat();
        let expected: Vec<u8> = (0..LENGTH_MAX as usize / 5_000)
            .flat_map(|i| bytes.iter().skip(5_000 * i).take(700))
            .copied()
            .collect();
        assert!(found == expected, "a list of a file of {} bytes", bytes.len());
        let attributes = cluster.ask(GetAttributes { file }).await;
        assert_eq!(attributes.size, bytes.len() as u64);
        assert!(attributes.used_bytes.is_multiple_of(block));
        assert!(attributes.used_bytes <= attributes.size.next_multiple_of(block));
    }
}

/// What each node has on the disks, compared with its checksums; returns what is wrong.
async fn scrub(cluster: &Cluster) -> (u64, Vec<String>) {
    let (mut bytes, mut flaws) = (0, Vec::new());
    for node in (0..FS_NODES).map(NodeId::fs) {
        let mut after = Vec::new();
        loop {
            let (who, data, repair) = (Credentials::root(), true, false);
            let call = Scrub { who, root: ROOT, after, data, repair };
            let context = cluster.application(0);
            let part = context.spawn(node, call).await.expect("the node is there");
            bytes += part.read_bytes;
            flaws.extend(part.flaws.into_iter().map(|flaw| flaw.what));
            let Some(next) = part.next else { break };
            after = next;
        }
    }
    (bytes, flaws)
}

#[test]
fn files_of_larger_blocks_are_as_written_after_any_change_and_start() {
    with_seed(|rng| {
        for unit in [4, 16] {
            let cluster = Cluster::of_units(rng.bits(), STRIPE_SIZE, unit);
            let world = cluster.world.clone();
            world.run(change(&cluster, unit, rng));
        }
    });
}

async fn change(cluster: &Cluster, unit: u32, rng: &mut Rng) {
    let block = u64::from(unit) * BLOCK;
    let mut files = Vec::new();
    for number in 0..FILES {
        let node = NodeId::fs(number as u32 % FS_NODES);
        let handle = cluster.create_from(node, 100 * number).await;
        files.push(ModelFile { handle, bytes: Vec::new() });
    }
    let mut changes = Changes { cluster, rng, block, calls: 0 };
    for step in 0..STEPS {
        let file = &mut files[changes.rng.index(FILES as usize)];
        match changes.rng.below(10) {
            0..3 => changes.write(file).await,
            3 => changes.write_list(file).await,
            4 => changes.append(file).await,
            5 => changes.set_size(file).await,
            6 => changes.punch(file).await,
            7 => drop(cluster.commit(file.handle).await),
            _ => changes.look(file).await,
        }
        if step % 50 != 49 {
            continue;
        }
        for file in &files {
            cluster.ask(Commit { file: file.handle }).await;
        }
        if changes.rng.chance(1, 2) {
            cluster.power_cut().await;
        }
        check(cluster, &files, block).await;
        let audit = cluster.audit().await;
        assert!(audit.flaws.is_empty(), "{:?}", audit.flaws);
        let (bytes, flaws) = scrub(cluster).await;
        assert!(flaws.is_empty() && bytes >= block, "{bytes} bytes, {flaws:?}");
    }
}

#[test]
fn damage_costs_the_logical_block_that_has_it_and_no_other() {
    with_seed(|rng| {
        let cluster = Cluster::of_units(rng.bits(), STRIPE_SIZE, 4);
        let world = cluster.world.clone();
        world.run(damage(&cluster, rng.below(12) as usize));
    });
}

/// Block `hurt` of three logical blocks is damaged.
async fn damage(cluster: &Cluster, hurt: usize) {
    const UNIT: u64 = 4 * BLOCK;
    let file = cluster.create(NodeId::fs(1)).await;
    let numbers: Vec<u64> = (0..12).map(|block| 0x5EED_0000 + block).collect();
    cluster.write(file, 0, &numbers).await;
    cluster.commit(file).await;
    let content = numbers[hurt].to_le_bytes().repeat(BLOCK as usize / 8);
    let mut places = 0;
    for path in cluster.world.disks() {
        let disk = cluster.world.disk(&path);
        let all = disk.peek(0, disk.length() as usize);
        for (at, _) in all.chunks(BLOCK as usize).enumerate().filter(|it| it.1 == content) {
            disk.rot(at as u64 * BLOCK + 77, 1);
            places += 1;
        }
    }
    assert_eq!(places, 1);
    cluster.power_cut().await;
    for unit in 0..3 {
        let read = Read {
            who: Credentials::root(),
            file,
            offset: unit * UNIT + BLOCK,
            length: BLOCK as u32,
        };
        let read = fileio::client::ask(&cluster.application(0), read).await;
        if unit as usize == hurt / 4 {
            assert_eq!(read.err(), Some(Error::Damaged {}));
        } else {
            let expected = numbers[4 * unit as usize + 1].to_le_bytes().repeat(BLOCK as usize / 8);
            assert!(read.expect("it is whole").data.concat() == expected);
        }
    }
    let (bytes, flaws) = scrub(cluster).await;
    let place = format!("16384 bytes at offset {}", hurt as u64 / 4 * UNIT);
    let is_told = matches!(&flaws[..], [flaw] if flaw.starts_with(&place));
    assert!(is_told && bytes >= 3 * UNIT, "{place}: {flaws:?}");
}
