//! A disk and the processes that open a store on it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::rc::Rc;

use blockio::{Geometry, VolumeMap};
use bytes::Bytes;
use meta::store::{Audit, Batch, Position, Run, Store, StoreError};
use runtime::VolumeId;
use runtime::seed::Rng;

use crate::disk::MemoryDisk;
use crate::machine::{Clock, World};

pub(crate) type Map = BTreeMap<Bytes, Bytes>;

pub(crate) const NODE: u32 = 1;

/// A volume of two disks for each disk node.
pub(crate) fn map(stripe_size: u32, disk_nodes: u32, stripes: u64) -> VolumeMap {
    let geometry = Geometry { volume: VolumeId(0x1234_5678), stripe_size, fs_nodes: 2 };
    let stripes_per_disk = stripes / u64::from(2 * disk_nodes);
    VolumeMap::grid(geometry, disk_nodes, 2, stripes_per_disk).expect("a small volume")
}

/// A disk and the processes that open the store on it, one after the other.
pub(crate) struct Bench {
    pub(crate) clock: Rc<Clock>,
    pub(crate) disk: MemoryDisk,
    pub(crate) world: World,
    pub(crate) epoch: u64,
}

impl Bench {
    pub(crate) fn new(rng: &mut Rng, map: VolumeMap) -> Self {
        let clock = Clock::new(rng.bits());
        let disk = MemoryDisk::new(&clock, map);
        let world = World::new(&clock, 1);
        let mut bench = Self { clock, disk, world, epoch: 1 };
        let (ctx, stripes) = (bench.world.ctx.clone(), bench.disk.stripes());
        bench.world.run(async move { Store::format(ctx, &stripes, NODE).await }).unwrap();
        bench
    }

    /// The power fails, and a new process starts, often in a new epoch.
    pub(crate) fn crash(&mut self) {
        self.epoch += self.clock.random() % 2;
        self.world = World::new(&self.clock, self.epoch);
        self.disk.crash();
    }

    pub(crate) fn try_mount(&mut self) -> Result<Rc<Store>, StoreError> {
        let (ctx, stripes) = (self.world.ctx.clone(), self.disk.stripes());
        self.world.run(Store::mount(ctx, stripes, NODE))
    }

    pub(crate) fn mount(&mut self) -> Rc<Store> {
        self.try_mount().unwrap()
    }

    pub(crate) fn run<T: 'static>(&mut self, future: impl Future<Output = T> + 'static) -> T {
        self.world.run(future)
    }

    pub(crate) fn content(&mut self, store: &Rc<Store>) -> Map {
        let store = store.clone();
        self.run(async move { content(&store).await })
    }
}

pub(crate) async fn content(store: &Store) -> Map {
    let all = store.scan(Bound::Unbounded, &[0xFF; 8], usize::MAX).await.unwrap();
    let count = all.len();
    let map: Map = all.into_iter().collect();
    assert_eq!(map.len(), count, "no key comes twice");
    map
}

/// Commits as a server does: retries while the store is busy.
pub(crate) async fn patiently(store: &Store, batch: Batch) -> Result<Position, StoreError> {
    for _ in 0..1000 {
        match store.commit(batch.clone()) {
            Err(StoreError::Busy) => flush(store).await,
            answer => return answer,
        }
    }
    panic!("the store is busy for ever");
}

pub(crate) async fn flush(store: &Store) {
    let nothing = store.commit(Batch::new());
    if let Ok(position) = nothing {
        let _ = store.durable(position).await;
    }
    let _ = store.checkpoint().await;
}

pub(crate) fn run_key(run: Run) -> Bytes {
    let mut key = b"run/".to_vec();
    key.extend_from_slice(&run.start.to_be_bytes());
    key.extend_from_slice(&run.count.to_be_bytes());
    key.into()
}

/// The runs that the content says to hold, and what is in each of their blocks.
pub(crate) fn runs(content: &Map) -> impl Iterator<Item = (Run, &Bytes)> + '_ {
    content.iter().filter_map(|(key, value)| Some((key.strip_prefix(b"run/")?, value))).map(
        |(key, value)| {
            let start = u64::from_be_bytes(key[..8].try_into().unwrap());
            let count = u32::from_be_bytes(key[8..].try_into().unwrap());
            (Run { start, count }, value)
        },
    )
}

pub(crate) fn blocks(runs: impl IntoIterator<Item = Run>) -> BTreeSet<u64> {
    let mut blocks = BTreeSet::new();
    for block in runs.into_iter().flat_map(|run| run.blocks()) {
        assert!(blocks.insert(block), "block {block} is used twice");
    }
    blocks
}

/// Every block is used for exactly what it should be.
pub(crate) fn check_audit(audit: &Audit, content: &Map) {
    let named: Vec<Run> = {
        let data = runs(content).map(|(run, _)| run);
        audit.tree.iter().copied().chain(data).collect()
    };
    assert_eq!(blocks(audit.kept.clone()), blocks(named.clone()));
    let all = [named, audit.map.clone(), audit.log.clone()].concat();
    assert_eq!(blocks(audit.busy.clone()), blocks(all));
}
