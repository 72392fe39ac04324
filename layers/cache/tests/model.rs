//! The cache against a byte array per stripe, under random requests, few lines, slow disks,
//! failures and damage.

mod support;

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use blockio::{BLOCK_SIZE, Stripes as _, blocks_of};
use bytes::Bytes;
use cache::CacheClient;
use cache::protocol::{Error, Extent, Placed};
use futures::future::join_all;
use runtime::Context;
use runtime::hash::crc32c;
use runtime::seed::{Rng, with_seed};
use support::{FAILURE, MemoryDisk, Setup, World, geometry, old_byte, sync};

const WORKERS: u64 = 6;
const STRIPES_PER_WORKER: u64 = 2;
const STEPS: u32 = 250;

/// What a stripe must hold; `None` for a byte that was forgotten.
struct Model {
    stripe: u64,
    bytes: Vec<Option<u8>>,
}

impl Model {
    fn new(stripe: u64) -> Self {
        let size = geometry().stripe_size as usize;
        Self { stripe, bytes: (0..size).map(|at| Some(old_byte(stripe, at))).collect() }
    }

    fn assert_holds(&self, at: usize, content: &[u8], what: &str) {
        for (index, (&expected, &found)) in self.bytes[at..].iter().zip(content).enumerate() {
            let place = at + index;
            let stripe = self.stripe;
            assert!(
                expected.is_none_or(|expected| expected == found),
                "{what}: byte {place} of stripe {stripe} is {found} and not {expected:?}"
            );
        }
    }

    /// The checksums of the logical blocks of `range`, if all of its bytes are defined.
    fn checksums(&self, range: Range<usize>, unit: usize) -> Option<Vec<u32>> {
        let bytes: Option<Vec<u8>> = self.bytes[range].iter().copied().collect();
        Some(bytes?.chunks(unit * BLOCK_SIZE).map(crc32c).collect())
    }
}

fn extent_of(part: &Range<usize>) -> Extent {
    Extent { offset: part.start as u32, length: part.len() as u32 }
}

/// One client that has its stripes for itself.
struct Worker {
    client: CacheClient,
    disk: Rc<MemoryDisk>,
    context: Context,
    rng: Rng,
    models: Vec<Model>,
    /// Reads are of whole logical blocks and carry checksums.
    is_careful: bool,
    refusals: Rc<Cell<u64>>,
}

impl Worker {
    async fn work(mut self) -> Vec<Model> {
        for _ in 0..STEPS {
            let index = self.rng.index(self.models.len());
            let mut model = self.models.swap_remove(index);
            self.step(&mut model).await;
            self.models.push(model);
            if self.rng.chance(1, 20) {
                let pause_ms = self.rng.below(2_000);
                self.context.sleep(Duration::from_millis(pause_ms)).await;
            }
        }
        self.models
    }

    async fn step(&mut self, model: &mut Model) {
        match self.rng.below(15) {
            12 | 13 => self.read_list(model).await,
            14 => self.write_list(model).await,
            0..5 => self.read(model).await,
            5..8 => self.write(model).await,
            8 => self.write_zeros(model).await,
            9 => self.forget(model).await,
            _ => self.sync(model).await,
        }
    }

    /// Blocks of a logical block.
    fn any_unit(&mut self) -> usize {
        [1, 1, 2, 4][self.rng.index(4)]
    }

    /// Of whole logical blocks, or half of the ranges are whole blocks.
    fn any_range(&mut self, whole: Option<usize>) -> Range<usize> {
        let half = if self.rng.chance(1, 2) { BLOCK_SIZE } else { 1 };
        let unit = whole.map_or(half, |unit| unit * BLOCK_SIZE);
        let count = geometry().stripe_size as usize / unit;
        let start = self.rng.index(count);
        let longest = if unit == 1 { (count - start).min(3_000) } else { count - start };
        let length = 1 + self.rng.index(longest);
        start * unit..(start + length) * unit
    }

    async fn read(&mut self, model: &Model) {
        let unit = self.any_unit();
        let range = self.any_range(self.is_careful.then_some(unit));
        let mut expect = Vec::new();
        if self.is_careful {
            let Some(checksums) = model.checksums(range.clone(), unit) else { return };
            expect = checksums;
        }
        let (offset, length) = (range.start as u32, range.len() as u32);
        if let Some(bytes) =
            self.accept(self.client.read(model.stripe, offset, length, expect).await)
        {
            assert_eq!(bytes.len(), range.len());
            model.assert_holds(range.start, &bytes, "read");
        }
    }

    /// Parts of a stripe, in order and without overlap.
    fn any_parts(&mut self) -> Vec<Range<usize>> {
        let size = geometry().stripe_size as usize;
        let unit = [1, 64, 700, BLOCK_SIZE][self.rng.index(4)];
        let mut parts = Vec::new();
        let mut at = self.rng.index(3 * unit);
        while at < size && parts.len() < 40 {
            let end = size.min(at + 1 + self.rng.index(2 * unit));
            parts.push(at..end);
            at = end + self.rng.index(3 * unit);
        }
        parts
    }

    async fn read_list(&mut self, model: &Model) {
        let parts = self.any_parts();
        let extents: Vec<Extent> = parts.iter().map(extent_of).collect();
        let (mut expect, unit) = (Vec::new(), self.any_unit());
        if self.is_careful {
            for blocks in blocks_of(&extents, unit as u32) {
                let blocks = blocks.start as usize..blocks.end as usize;
                let Some(checksums) = model.checksums(blocks, unit) else { return };
                expect.extend(checksums);
            }
        }
        if let Some(pieces) =
            self.accept(self.client.read_list(model.stripe, extents, (expect, unit as u32)).await)
        {
            let total: usize = parts.iter().map(Range::len).sum();
            assert!(pieces.len() == 1 || pieces.len() == parts.len());
            let all = pieces.concat();
            assert_eq!(all.len(), total);
            let mut at = 0;
            for part in parts {
                model.assert_holds(part.start, &all[at..at + part.len()], "read of a list");
                at += part.len();
            }
        }
    }

    async fn write_list(&mut self, model: &mut Model) {
        let parts = self.any_parts();
        let placed: Vec<Placed> = parts
            .iter()
            .map(|part| {
                let mut data = vec![0; part.len()];
                self.rng.fill(&mut data);
                Placed { offset: part.start as u32, data: data.into() }
            })
            .collect();
        if self.accept(self.client.write_list(model.stripe, placed.clone()).await).is_some() {
            for Placed { offset, data } in placed {
                for (place, byte) in (offset as usize..).zip(data) {
                    model.bytes[place] = Some(byte);
                }
            }
        }
    }

    async fn write(&mut self, model: &mut Model) {
        let range = self.any_range(None);
        let mut data = vec![0; range.len()];
        self.rng.fill(&mut data);
        let mut first = Bytes::from(data.clone());
        let second = first.split_off(self.rng.index(data.len()));
        let request = self.client.write(model.stripe, range.start as u32, vec![first, second]);
        if self.accept(request.await).is_some() {
            for (place, byte) in range.zip(data) {
                model.bytes[place] = Some(byte);
            }
        }
    }

    async fn write_zeros(&mut self, model: &mut Model) {
        let range = self.any_range(None);
        let (offset, length) = (range.start as u32, range.len() as u32);
        if self.accept(self.client.write_zeros(model.stripe, offset, length).await).is_some() {
            model.bytes[range].fill(Some(0));
        }
    }

    async fn forget(&mut self, model: &mut Model) {
        let range = self.any_range(None);
        let (offset, length) = (range.start as u32, range.len() as u32);
        self.client.forget(model.stripe, offset, length).await.expect("forgetting needs nothing");
        model.bytes[range].fill(None);
    }

    async fn sync(&mut self, model: &Model) {
        if self.accept(sync(&self.client, vec![model.stripe]).await).is_some() {
            model.assert_holds(0, &self.disk.content(model.stripe), "disk after sync");
        }
    }

    /// What is neither an answer nor an honest refusal fails the test.
    fn accept<T>(&self, answer: Result<T, Error>) -> Option<T> {
        match answer {
            Ok(value) => return Some(value),
            Err(error) if error.is_busy() || error == FAILURE => {}
            Err(Error::Corrupt { .. }) if self.disk.damaging_percent.get() > 0 => {}
            Err(error) => panic!("{error}"),
        }
        self.refusals.set(self.refusals.get() + 1);
        None
    }
}

struct Trial {
    lines_per_node: usize,
    failing_percent: u64,
    damaging_percent: u64,
}

/// Lets all workers work, then checks every byte on the disk. Returns the number of refusals.
fn run(trial: &Trial, rng: &mut Rng) -> u64 {
    let lines_per_node = trial.lines_per_node;
    let world = World::new(&Setup { lines_per_node, seed: rng.bits(), ..Setup::default() });
    world.disk.failing_percent.set(trial.failing_percent);
    world.disk.damaging_percent.set(trial.damaging_percent);
    let refusals = Rc::new(Cell::new(0));
    let workers = (0..WORKERS).map(|worker| Worker {
        client: world.client.clone(),
        disk: world.disk.clone(),
        context: world.context(),
        rng: Rng::new(rng.bits()),
        models: (0..STRIPES_PER_WORKER).map(|index| Model::new(worker + index * WORKERS)).collect(),
        is_careful: trial.damaging_percent > 0,
        refusals: refusals.clone(),
    });
    let workers: Vec<_> = workers.map(Worker::work).collect();
    let models: Vec<Model> = world.run(join_all(workers)).into_iter().flatten().collect();

    world.disk.failing_percent.set(0);
    world.disk.damaging_percent.set(0);
    let client = world.client.clone();
    let stripes = models.iter().map(|model| model.stripe).collect();
    world.run(async move { sync(&client, stripes).await }).expect("no disk fails any more");
    for model in &models {
        model.assert_holds(0, &world.disk.content(model.stripe), "disk at the end");
    }
    world.run_out();
    let client = world.client.clone();
    let status = world.run(async move { client.status().await }).expect("all nodes answer");
    assert_eq!(status.dirty_lines, 0);
    let geometry = geometry();
    assert!(status.lines <= lines_per_node as u64 * u64::from(geometry.fs_nodes));
    let used_bytes: usize = (0..geometry.fs_nodes).map(|node| world.pool(node).used_bytes()).sum();
    assert_eq!(
        used_bytes as u64,
        status.lines * u64::from(geometry.stripe_size),
        "only lines hold buffers"
    );
    if trial.lines_per_node < 4 {
        assert!(status.evictions > 0, "the budget was never reached");
    }
    refusals.get()
}

#[test]
fn the_cache_behaves_as_a_byte_array() {
    with_seed(|rng| {
        for lines_per_node in [1, 2, 8] {
            let trial = Trial { lines_per_node, failing_percent: 0, damaging_percent: 0 };
            let refusals = run(&trial, rng);
            assert!(refusals == 0 || lines_per_node == 1, "{refusals} refusals");
        }
    });
}

#[test]
fn failing_disks_lose_nothing_that_was_acknowledged() {
    with_seed(|rng| {
        for lines_per_node in [2, 8] {
            let trial = Trial { lines_per_node, failing_percent: 20, damaging_percent: 0 };
            assert!(run(&trial, rng) > 0, "no request met a failure");
        }
    });
}

#[test]
fn damaged_bytes_are_never_returned() {
    with_seed(|rng| {
        for lines_per_node in [1, 2] {
            let trial = Trial { lines_per_node, failing_percent: 0, damaging_percent: 40 };
            assert!(run(&trial, rng) > 0, "no damage was found");
        }
    });
}
