//! Random batches, reads, checkpoints, crashes and remounts on a disk that tears, reorders and
//! refuses, held against a plain map.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::Bound;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use meta::store::{Batch, Position, Run, Store, StoreError};
use runtime::seed::{Rng, with_seed};

use crate::bench::{Bench, Map, NODE, check_audit, flush, map, run_key, runs};
use crate::disk::MemoryDisk;

/// Attempts to audit a store at rest, if checkpoints interfere.
const AUDITS_MAX: u32 = 20;

/// Longer than a page takes on a slow disk.
const AUDIT_PAUSE: Duration = Duration::from_millis(100);

/// What the test believes, and the journal since the last batch known to be durable.
#[derive(Default)]
struct Model {
    now: Map,
    durable: Map,
    /// The content after each batch that may or may not survive, with its number.
    later: Vec<(u64, Map)>,
    committed: u64,
    numbers: BTreeSet<u64>,
}

impl Model {
    /// A batch after which the store has `next`; returns its number.
    fn committed(&mut self, next: Map) -> u64 {
        self.now = next;
        self.committed += 1;
        self.later.push((self.committed, self.now.clone()));
        self.committed
    }

    fn acknowledged(&mut self, number: u64) {
        while self.later.first().is_some_and(|(first, _)| *first <= number) {
            self.durable = self.later.remove(0).1;
        }
    }

    /// After a crash the store has what was acknowledged and some of the batches after that.
    fn recovered(&mut self, found: Map) {
        let survives = self.durable == found || self.later.iter().any(|(_, map)| *map == found);
        if !survives {
            let keys = |map: &Map| map.keys().cloned().collect::<Vec<_>>();
            println!("acknowledged {:?}", keys(&self.durable));
            println!("newest       {:?}", keys(&self.now));
            println!("found        {:?}", keys(&found));
            panic!("the content is not what some prefix of the batches gives");
        }
        self.now = found.clone();
        self.durable = found;
        self.later.clear();
    }
}

/// One client of the store.
struct Workload {
    store: Rc<Store>,
    model: Rc<RefCell<Model>>,
    disk: MemoryDisk,
    ctx: runtime::Context,
    rng: Rng,
    keys: u64,
    value_max: u64,
}

impl Workload {
    fn key(&mut self) -> Bytes {
        let number = self.rng.below(self.keys);
        // Some keys are long, some are prefixes of others.
        let length = if number.is_multiple_of(17) { 250 } else { number % 5 };
        let mut key = format!("key/{number}").into_bytes();
        key.resize(key.len() + length as usize, b'x');
        key.into()
    }

    fn value(&mut self) -> Bytes {
        let max = if self.rng.chance(1, 20) { 8192 } else { self.value_max };
        let mut value = vec![0; self.rng.below(max + 1) as usize];
        self.rng.fill(&mut value);
        value.into()
    }

    fn batch(&mut self, next: &mut Map) -> Batch {
        let mut batch = Batch::new();
        for _ in 0..self.rng.below(6) {
            let key = self.key();
            if batch.length_bytes() > self.store.batch_bytes_max() - 9000 {
                break;
            }
            if self.rng.chance(1, 3) {
                batch.delete(key.clone());
                next.remove(&key);
            } else {
                let value = self.value();
                batch.put(key.clone(), value.clone());
                next.insert(key, value);
            }
        }
        batch
    }

    /// Writes to new blocks and adds them to a batch; what it does not name goes back.
    async fn allocate(&mut self, batch: &mut Batch, next: &mut Map) -> Vec<Run> {
        let max = [5, 5, 5, 60, 200][self.rng.index(5)];
        let blocks = 1 + self.rng.below(max) as u32;
        let Ok(runs) = self.store.space().allocate(blocks) else { return Vec::new() };
        assert_eq!(runs.iter().map(|run| run.count).sum::<u32>(), blocks);
        let mut unused = Vec::new();
        for mut run in runs {
            if run.count > 1 && self.rng.chance(1, 4) {
                run.count -= 1;
                unused.push(Run { start: run.start + u64::from(run.count), count: 1 });
            }
            let content = self.rng.bits().to_le_bytes();
            self.disk.write_run(run, &content).await;
            let value = Bytes::copy_from_slice(&content);
            batch.allocated(run);
            batch.put(run_key(run), value.clone());
            next.insert(run_key(run), value);
        }
        unused
    }

    fn free(&mut self, batch: &mut Batch, next: &mut Map) {
        let runs: Vec<Run> = runs(&self.model.borrow().now).map(|(run, _)| run).collect();
        if runs.is_empty() {
            return;
        }
        let run = runs[self.rng.index(runs.len())];
        batch.freed(run);
        batch.delete(run_key(run));
        next.remove(&run_key(run));
    }

    fn give_or_take(&mut self, batch: &mut Batch, next: &mut Map) {
        let given: Vec<Bytes> =
            next.keys().filter(|key| key.starts_with(b"given/")).cloned().collect();
        if let Some(key) = given.first().filter(|_| self.rng.chance(1, 2)) {
            batch.take_group(u64::from_be_bytes(key[6..].try_into().unwrap()));
            batch.delete(key.clone());
            next.remove(key);
        } else if let Some(&group) = self.store.space().spare_groups(1, true).first() {
            let mut key = b"given/".to_vec();
            key.extend_from_slice(&group.to_be_bytes());
            batch.give_group(group);
            batch.put(key.clone(), Bytes::new());
            next.insert(key.into(), Bytes::new());
        }
    }

    /// Blocks that are handed out and come back unused. Where the next ones come from is another
    /// place then: perhaps one that has just become free.
    fn loan(&mut self) {
        let most = self.store.space().status().free_blocks;
        let blocks = 1 + self.rng.below(most.clamp(1, 2_000)) as u32;
        if let Ok(runs) = self.store.space().allocate(blocks) {
            self.store.space().release(&runs).unwrap();
        }
    }

    /// Large batches at once, so that several segments of the log wait to be written; often while a
    /// checkpoint runs.
    async fn burst(&mut self) {
        for _ in 0..=self.rng.below(24) {
            let mut next = self.model.borrow().now.clone();
            let (key, mut value) = (self.key(), vec![0; 4_000 + self.rng.index(4_000)]);
            self.rng.fill(&mut value);
            let mut batch = Batch::new();
            batch.put(key.clone(), value.clone());
            next.insert(key, value.into());
            match self.store.commit(batch) {
                Ok(position) => {
                    let number = self.model.borrow_mut().committed(next);
                    self.wait_beside(position, number);
                }
                Err(StoreError::Busy | StoreError::NoSpace) => return,
                Err(error) => panic!("{error}"),
            }
            if self.rng.chance(1, 8) {
                self.ctx.sleep(Duration::from_micros(self.rng.below(2_000))).await;
            }
        }
    }

    fn checkpoint_beside(&self) {
        let store = self.store.clone();
        self.ctx.task(async move {
            let _ = store.checkpoint().await;
        });
    }

    /// One batch, and perhaps a wait until it is durable.
    async fn write(&mut self) {
        let mut next = self.model.borrow().now.clone();
        let mut batch = self.batch(&mut next);
        let mut loaned = Vec::new();
        match self.rng.below(10) {
            0..=2 => loaned = self.allocate(&mut batch, &mut next).await,
            3..=6 => self.free(&mut batch, &mut next),
            7 => self.give_or_take(&mut batch, &mut next),
            _ => {}
        }
        if self.rng.chance(1, 10) {
            let number = self.store.next_number();
            assert!(self.model.borrow_mut().numbers.insert(number), "{number} came twice");
        }
        if self.rng.chance(1, 2) {
            batch.take_from_reserve();
        }
        let undo: Vec<Run> =
            runs(&next).map(|(run, _)| run).filter(|run| !self.has(*run)).collect();
        self.store.space().release(&loaned).unwrap();
        match self.store.commit(batch) {
            Ok(position) => {
                let number = self.model.borrow_mut().committed(next);
                self.wait(position, number).await;
            }
            Err(StoreError::Busy | StoreError::NoSpace) => {
                self.store.space().release(&undo).unwrap();
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn has(&self, run: Run) -> bool {
        self.model.borrow().now.contains_key(&run_key(run))
    }

    async fn wait(&mut self, position: Position, number: u64) {
        match self.rng.below(4) {
            0 => self.durable(position, number).await,
            1 => self.wait_beside(position, number),
            _ => {}
        }
    }

    fn wait_beside(&self, position: Position, number: u64) {
        self.ctx.task(self.durable(position, number));
    }

    fn durable(
        &self,
        position: Position,
        number: u64,
    ) -> impl Future<Output = ()> + use<> + 'static {
        let (store, model) = (self.store.clone(), self.model.clone());
        async move {
            if store.durable(position).await.is_ok() {
                model.borrow_mut().acknowledged(number);
            }
        }
    }

    async fn read(&mut self) {
        let key = self.key();
        let before = self.model.borrow().now.get(&key).cloned();
        // The workload is the only writer and waits here, so nothing changes meanwhile.
        assert_eq!(self.store.get(&key).await.unwrap(), before);
        let (low, high) = (self.key(), self.key());
        let limit = self.rng.index(40);
        let from = if self.rng.chance(1, 2) {
            Bound::Included(&low[..])
        } else {
            Bound::Excluded(&low[..])
        };
        let found = self.store.scan(from, &high, limit).await.unwrap();
        let model = self.model.borrow();
        let expected = model.now.iter().filter(|(key, _)| match from {
            Bound::Included(low) => key[..] >= *low && **key < high,
            _ => **key > low && **key < high,
        });
        let expected: Vec<_> =
            expected.take(limit).map(|(key, value)| (key.clone(), value.clone())).collect();
        assert_eq!(found, expected);
        if let Bound::Included(low) = from
            && let Some(at_once) = self.store.try_scan_now(low, &high, limit)
        {
            assert_eq!(at_once.unwrap(), expected);
        }
    }

    async fn run(mut self, steps: u64) {
        for _ in 0..steps {
            match self.rng.below(24) {
                0 => self.checkpoint_beside(),
                20..=21 => self.loan(),
                22..=23 => {
                    self.burst().await;
                    self.checkpoint_beside();
                }
                1 => self.ctx.sleep(Duration::from_micros(self.rng.below(5000))).await,
                2..=5 => self.read().await,
                _ => self.write().await,
            }
        }
    }
}

/// Nodes on the path to the disks restart now and then.
async fn restarts(ctx: runtime::Context, disk: MemoryDisk, mut rng: Rng) {
    for _ in 0..rng.below(40) {
        ctx.sleep(Duration::from_micros(rng.below(20_000))).await;
        disk.restart();
    }
}

fn life(rng: &mut Rng, bench: &mut Bench, model: &Rc<RefCell<Model>>) {
    let store = bench.mount();
    let found = bench.content(&store);
    model.borrow_mut().recovered(found);
    for (run, content) in runs(&model.borrow().now) {
        bench.disk.check_run(run, content);
    }
    let audit = {
        let store = store.clone();
        bench.run(async move { store.audit().await.unwrap() })
    };
    check_audit(&audit, &model.borrow().now);
    let workload = Workload {
        store: store.clone(),
        model: model.clone(),
        disk: bench.disk.clone(),
        ctx: bench.world.ctx.clone(),
        rng: Rng::new(rng.bits()),
        keys: 40 + rng.below(400),
        value_max: 20 + rng.below(600),
    };
    bench.disk.forget_slow_disks();
    if rng.chance(1, 3) {
        let (ctx, disk) = (bench.world.ctx.clone(), bench.disk.clone());
        bench.world.ctx.task(restarts(ctx, disk, Rng::new(rng.bits())));
    } else {
        // Not both: what takes longer than the time between two restarts is never written.
        bench.disk.draw_slow_disks(rng);
    }
    let steps = 50 + rng.below(400);
    if rng.chance(2, 3) {
        bench.disk.power_fails_after(Some(rng.below(600)));
    }
    let disk = bench.disk.clone();
    let finished = bench.world.run_unless(move || disk.is_dead(), workload.run(steps));
    if finished.is_some() && !bench.disk.is_dead() {
        bench.disk.power_fails_after(None);
        let content = model.borrow().now.clone();
        let ctx = bench.world.ctx.clone();
        let audit = bench.run(async move {
            // Some task of the workload may have begun a checkpoint that has nothing to write any
            // more.
            for _ in 0..AUDITS_MAX {
                flush(&store).await;
                flush(&store).await;
                assert_eq!(store.space().status().loaned_blocks, 0);
                assert_eq!(store.space().status().waiting_blocks, 0);
                match store.audit().await {
                    Err(StoreError::Busy) => ctx.sleep(AUDIT_PAUSE).await,
                    audit => return audit.unwrap(),
                }
            }
            panic!("{AUDITS_MAX} audits met a checkpoint")
        });
        check_audit(&audit, &content);
        let mut model = model.borrow_mut();
        let last = model.committed;
        model.acknowledged(last);
    }
}

/// Crashes while mounting, a few times.
fn broken_mounts(rng: &mut Rng, bench: &mut Bench) {
    for _ in 0..rng.below(3) {
        bench.disk.power_fails_after(Some(rng.below(12)));
        let (ctx, stripes) = (bench.world.ctx.clone(), bench.disk.stripes());
        let disk = bench.disk.clone();
        let mount = Store::mount(ctx, stripes, NODE);
        bench.world.run_unless(move || disk.is_dead(), mount);
        bench.crash();
    }
}

fn boots(rng: &mut Rng) {
    let stripe_size = 16384 << rng.below(4);
    let disk_nodes = 1 + rng.below(3) as u32;
    let share = meta::store::stripes_min(&map(stripe_size, 1, 100).geometry(), 2) + rng.below(60);
    let share = share.next_multiple_of(12);
    let mut bench = Bench::new(rng, map(stripe_size, disk_nodes, 2 * share));
    bench.disk.set_unsteady(1 + rng.below(3000));
    let model = Rc::new(RefCell::new(Model::default()));
    for _ in 0..4 + rng.below(4) {
        life(rng, &mut bench, &model);
        bench.crash();
        broken_mounts(rng, &mut bench);
    }
}

#[test]
fn what_durable_acknowledged_survives_any_crash_and_batches_are_atomic() {
    // The rarest of the bugs that were planted here is seen once in some hundred runs.
    let count = if cfg!(debug_assertions) { 25 } else { 300 };
    let given = std::env::var("SEEDS").ok().and_then(|text| text.parse().ok());
    for _ in 0..given.unwrap_or(count) {
        with_seed(boots);
    }
}
