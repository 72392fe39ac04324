//! One logical disk in memory, with a volatile cache, crashes, failures and rot.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use blockio::protocol::{Error, SLOT_SIZE, Unsynced};
use blockio::stripes::{Answer, BootId};
use blockio::{BLOCK_SIZE, DiskName, Stripes, VolumeMap};
use bytes::Bytes;
use futures::{FutureExt as _, TryFutureExt as _};
use meta::store::Run;
use runtime::Undelivered;
use runtime::hash::crc32c;
use runtime::seed::Rng;
use runtime::sync::Limit;

use crate::machine::Clock;

/// Bytes that a crash writes whole or not at all.
const SECTOR: usize = 512;

/// How much longer a slow disk takes.
const SLOW_FACTOR: u32 = 20;

/// The disk. Outlives the worlds.
#[derive(Clone)]
pub(crate) struct MemoryDisk {
    clock: Rc<Clock>,
    inner: Rc<RefCell<Inner>>,
}

struct Inner {
    map: VolumeMap,
    durable: BTreeMap<u64, Vec<u8>>,
    /// Blocks that were written since the last sync of their stripe, oldest version first.
    cached: BTreeMap<u64, Vec<Version>>,
    /// Blocks that are in memory as they were written.
    written: BTreeSet<u64>,
    slots: BTreeMap<(DiskName, u32), Vec<u8>>,
    /// Slots that are being written.
    slot_writes: BTreeMap<(DiskName, u32), Vec<u8>>,
    versions: u64,
    boot_id: BootId,
    rng: Rng,
    /// Writes, syncs and slot writes until the power fails.
    power_calls: Option<u64>,
    /// Writes, syncs and slot writes until one fails.
    failing_calls: Option<u64>,
    /// Reads until one fails, if it is of blocks, or of slots.
    failing_reads: Option<u64>,
    /// Reads so far.
    reads: u64,
    /// One call in this many is answered by `Busy`.
    busy: Option<u64>,
    max_delay_us: u64,
    max_read_delay_us: u64,
    /// Disks whose slots cannot be used.
    lost_disks: BTreeSet<DiskName>,
    /// Disks that take [`SLOW_FACTOR`] times as long as the others.
    slow_disks: BTreeSet<DiskName>,
    /// Every call takes the longest time.
    steady: bool,
    /// What reads and writes of blocks need for as long as they last.
    lines: Option<Rc<Limit>>,
    changes: u64,
}

/// What was durable on one disk at some time.
pub(crate) struct Image {
    blocks: BTreeMap<u64, Vec<u8>>,
    slots: BTreeMap<(DiskName, u32), Vec<u8>>,
}

/// The disk of a block.
fn disk_of(map: &VolumeMap, block: u64) -> DiskName {
    map.place(map.geometry().block(block).0).disk
}

struct Version {
    number: u64,
    answered: bool,
    data: Vec<u8>,
}

enum Fate {
    Works,
    Fails,
    Never,
}

impl Inner {
    fn fate(&mut self) -> Fate {
        self.changes += 1;
        match self.power_calls {
            Some(0) => return Fate::Never,
            Some(calls) => self.power_calls = Some(calls - 1),
            None => {}
        }
        match self.failing_calls {
            Some(0) => {
                self.failing_calls = None;
                Fate::Fails
            }
            Some(calls) => {
                self.failing_calls = Some(calls - 1);
                Fate::Works
            }
            None => Fate::Works,
        }
    }

    /// Counts a read; an error if it is the one to fail.
    fn read(&mut self) -> Result<(), Error> {
        self.reads += 1;
        let left = self.failing_reads.take();
        self.failing_reads = left.and_then(|left| left.checked_sub(1));
        if left == Some(0) { Err(Error::Unreadable { disk: 0, offset: 0 }) } else { Ok(()) }
    }

    fn read_block(&self, block: u64) -> Vec<u8> {
        let cached = self.cached.get(&block).and_then(|versions| versions.last());
        let durable = || self.durable.get(&block).cloned();
        cached
            .map(|version| version.data.clone())
            .or_else(durable)
            .unwrap_or(vec![0xEE; BLOCK_SIZE])
    }

    fn first_block(&self, stripe: u64, offset: u32, length: usize) -> u64 {
        let geometry = self.map.geometry();
        assert!(stripe < self.map.stripes(), "the stripe exists");
        assert!(offset as usize + length <= geometry.stripe_size as usize, "within one stripe");
        assert!((offset as usize).is_multiple_of(BLOCK_SIZE) && length.is_multiple_of(BLOCK_SIZE));
        stripe * u64::from(geometry.blocks_per_stripe()) + u64::from(offset) / BLOCK_SIZE as u64
    }
}

impl MemoryDisk {
    pub(crate) fn new(clock: &Rc<Clock>, map: VolumeMap) -> Self {
        let inner = Inner {
            map,
            durable: BTreeMap::new(),
            cached: BTreeMap::new(),
            written: BTreeSet::new(),
            slots: BTreeMap::new(),
            slot_writes: BTreeMap::new(),
            versions: 0,
            boot_id: 1,
            rng: Rng::new(clock.random()),
            power_calls: None,
            failing_calls: None,
            failing_reads: None,
            reads: 0,
            busy: None,
            max_delay_us: 0,
            max_read_delay_us: 0,
            lost_disks: BTreeSet::new(),
            slow_disks: BTreeSet::new(),
            steady: false,
            lines: None,
            changes: 0,
        };
        Self { clock: clock.clone(), inner: Rc::new(RefCell::new(inner)) }
    }

    pub(crate) fn stripes(&self) -> Rc<dyn Stripes> {
        Rc::new(self.clone())
    }

    /// Calls take up to this long, each another time, and one in 40 is refused as busy.
    pub(crate) fn set_unsteady(&self, max_delay_us: u64) {
        let mut inner = self.inner.borrow_mut();
        inner.max_delay_us = max_delay_us;
        inner.busy = Some(40);
    }

    /// Each disk is slow from now on, or not, with equal odds.
    pub(crate) fn draw_slow_disks(&self, rng: &mut Rng) {
        let disks = self.map().disks().into_iter();
        self.inner.borrow_mut().slow_disks = disks.filter(|_| rng.chance(1, 2)).collect();
    }

    /// All disks take the same time again.
    pub(crate) fn forget_slow_disks(&self) {
        self.inner.borrow_mut().slow_disks.clear();
    }

    /// How many times as long the slowest disk of these stripes takes as the others.
    fn slowness(&self, stripes: impl IntoIterator<Item = u64>) -> u32 {
        let inner = self.inner.borrow();
        let is_slow = |stripe: u64| {
            stripe < inner.map.stripes() && inner.slow_disks.contains(&inner.map.place(stripe).disk)
        };
        if stripes.into_iter().any(is_slow) { SLOW_FACTOR } else { 1 }
    }

    /// Calls take exactly this long.
    pub(crate) fn set_delay(&self, delay_us: u64) {
        let mut inner = self.inner.borrow_mut();
        inner.max_delay_us = delay_us;
        inner.steady = true;
    }

    /// The reads and writes of blocks that run at the same time, as in a cache with that many
    /// lines: others wait until one of them has been answered.
    pub(crate) fn set_lines(&self, lines: usize) {
        self.inner.borrow_mut().lines = Some(Rc::new(Limit::new(lines, usize::MAX)));
    }

    fn in_a_line<T: 'static>(&self, answer: Answer<T>) -> Answer<T> {
        let Some(lines) = self.inner.borrow().lines.clone() else { return answer };
        async move {
            let _line = lines.acquire().await;
            answer.await
        }
        .boxed_local()
    }

    /// Reads take up to this much longer than other calls, and one in eight up to 30 times that.
    pub(crate) fn set_read_delay(&self, max_us: u64) {
        self.inner.borrow_mut().max_read_delay_us = max_us;
    }

    /// After this many more calls that change something, nothing is answered any more.
    pub(crate) fn power_fails_after(&self, calls: Option<u64>) {
        self.inner.borrow_mut().power_calls = calls;
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.inner.borrow().power_calls == Some(0)
    }

    /// After this many more calls that change something, one fails.
    pub(crate) fn fails_after(&self, calls: u64) {
        self.inner.borrow_mut().failing_calls = Some(calls);
    }

    /// After this many more reads one fails, and works when it is tried again.
    pub(crate) fn read_fails_after(&self, reads: u64) {
        self.inner.borrow_mut().failing_reads = Some(reads);
    }

    /// Reads so far.
    pub(crate) fn reads(&self) -> u64 {
        self.inner.borrow().reads
    }

    /// Calls that changed something so far.
    pub(crate) fn changes(&self) -> u64 {
        self.inner.borrow().changes
    }

    /// The power fails: of what was not synced each block keeps its old content, or a newer one, or
    /// a mixture of sectors.
    pub(crate) fn crash(&self) {
        self.lose_cached();
        let mut inner = self.inner.borrow_mut();
        let inner = &mut *inner;
        for (place, new) in std::mem::take(&mut inner.slot_writes) {
            let old = inner.slots.get(&place).cloned().unwrap_or(vec![0; SLOT_SIZE]);
            let after = mixture(&[old, new], &mut inner.rng);
            inner.slots.insert(place, after);
        }
        inner.power_calls = None;
        inner.failing_calls = None;
    }

    /// A node on the path restarts while the store runs: what was not synced is lost as in a crash.
    /// Slots are written in one life or again.
    pub(crate) fn restart(&self) {
        self.lose_cached();
        self.inner.borrow_mut().boot_id += 1;
    }

    fn lose_cached(&self) {
        let mut inner = self.inner.borrow_mut();
        let inner = &mut *inner;
        inner.written.clear();
        for (block, versions) in std::mem::take(&mut inner.cached) {
            let old = inner.durable.get(&block).cloned().unwrap_or(vec![0xEE; BLOCK_SIZE]);
            let mut choices = vec![old];
            choices.extend(versions.into_iter().map(|version| version.data));
            let after = mixture(&choices, &mut inner.rng);
            inner.durable.insert(block, after);
        }
    }

    /// Changes one bit of each of these blocks.
    pub(crate) fn rot(&self, blocks: impl Iterator<Item = u64>) {
        let mut inner = self.inner.borrow_mut();
        for block in blocks {
            let mut data = inner.read_block(block);
            data[inner.rng.index(BLOCK_SIZE)] ^= 1 << inner.rng.below(8);
            inner.cached.remove(&block);
            inner.written.remove(&block);
            inner.durable.insert(block, data);
        }
    }

    /// Writes `content` to the start of each block of `run`, durably.
    pub(crate) async fn write_run(&self, run: Run, content: &[u8]) {
        let mut data = vec![0; run.count as usize * BLOCK_SIZE];
        data.chunks_mut(BLOCK_SIZE)
            .for_each(|block| block[..content.len()].copy_from_slice(content));
        let (stripe, offset) = self.geometry().block(run.start);
        let data = Bytes::from(data);
        loop {
            let Ok(boot_id) = self.write(stripe, offset, vec![data.clone()]).await else {
                continue;
            };
            match self.sync(vec![Unsynced { stripe, boot_id }]).await {
                Ok(()) => break,
                Err(error) => assert!(error.is_busy() || matches!(error, Error::LostWrites { .. })),
            }
        }
    }

    /// Panics unless each block of `run` starts with `content`.
    pub(crate) fn check_run(&self, run: Run, content: &[u8]) {
        let inner = self.inner.borrow();
        for block in run.blocks() {
            let found = inner.read_block(block);
            assert_eq!(&found[..content.len()], content, "block {block} was written again");
        }
    }

    /// Changes the first byte of each of these blocks: the magic of whatever starts there.
    pub(crate) fn rot_start(&self, blocks: impl Iterator<Item = u64>) {
        let mut inner = self.inner.borrow_mut();
        for block in blocks {
            let mut data = inner.read_block(block);
            data[0] ^= 1;
            inner.durable.insert(block, data);
        }
    }

    /// Was `block` ever written?
    pub(crate) fn is_written(&self, block: u64) -> bool {
        self.inner.borrow().durable.contains_key(&block)
    }

    /// Does an entry of a log start in `block` that has these bytes?
    pub(crate) fn is_entry_with(&self, block: u64, bytes: &[u8]) -> bool {
        let data = self.inner.borrow().read_block(block);
        data.starts_with(b"mdLE") && data.windows(bytes.len()).any(|window| window == bytes)
    }

    /// All that is durable on one disk, slots too.
    pub(crate) fn image(&self, disk: DiskName) -> Image {
        let inner = self.inner.borrow();
        let map = &inner.map;
        let blocks = inner.durable.iter().filter(|(block, _)| disk_of(map, **block) == disk);
        let slots = inner.slots.iter().filter(|((slot_disk, _), _)| *slot_disk == disk);
        Image {
            blocks: blocks.map(|(block, data)| (*block, data.clone())).collect(),
            slots: slots.map(|(place, data)| (*place, data.clone())).collect(),
        }
    }

    /// One disk is as it was; nothing may be on its way.
    pub(crate) fn put_back(&self, disk: DiskName, image: &Image) {
        let mut inner = self.inner.borrow_mut();
        let inner = &mut *inner;
        let map = &inner.map;
        inner.durable.retain(|block, _| disk_of(map, *block) != disk);
        inner.slots.retain(|(slot_disk, _), _| *slot_disk != disk);
        inner.durable.extend(image.blocks.clone());
        inner.slots.extend(image.slots.clone());
    }

    /// The slots of these disks can neither be read nor written.
    pub(crate) fn lose_slots_of(&self, disks: &[DiskName]) {
        self.inner.borrow_mut().lost_disks = disks.iter().copied().collect();
    }

    /// Replaces what is in `block` by what `edit` makes of it and of the blocks behind.
    pub(crate) fn edit_blocks(&self, block: u64, count: u64, edit: impl FnOnce(&mut Vec<u8>)) {
        let mut inner = self.inner.borrow_mut();
        let mut data = (block..block + count).flat_map(|it| inner.read_block(it)).collect();
        edit(&mut data);
        for (block, data) in (block..).zip(data.chunks(BLOCK_SIZE)) {
            inner.cached.remove(&block);
            inner.written.remove(&block);
            inner.durable.insert(block, data.to_vec());
        }
    }

    /// What is in the blocks of `run`.
    pub(crate) fn content(&self, run: Run) -> Vec<u8> {
        let inner = self.inner.borrow();
        run.blocks().flat_map(|block| inner.read_block(block)).collect()
    }

    /// Changes every root slot of one disk.
    pub(crate) fn edit_slots_of(&self, disk: DiskName, mut edit: impl FnMut(&mut Vec<u8>)) {
        let mut inner = self.inner.borrow_mut();
        let slots = inner.slots.iter_mut().filter(|((slot_disk, _), _)| *slot_disk == disk);
        slots.for_each(|(_, slot)| edit(slot));
    }

    /// Changes every root slot.
    pub(crate) fn edit_slots(&self, edit: impl FnMut(&mut Vec<u8>)) {
        self.inner.borrow_mut().slots.values_mut().for_each(edit);
    }

    fn read_delay(&self) -> Duration {
        let mut inner = self.inner.borrow_mut();
        let max = inner.max_read_delay_us;
        let times = if inner.rng.chance(1, 8) { 30 } else { 1 };
        Duration::from_micros(if max == 0 { 0 } else { inner.rng.below(times * max) })
    }

    fn delay(&self) -> Duration {
        let mut inner = self.inner.borrow_mut();
        let max = inner.max_delay_us;
        if max == 0 || inner.steady {
            return Duration::from_micros(max);
        }
        if inner.rng.chance(1, 4) {
            return Duration::ZERO;
        }
        // Now and then a call takes far longer than all others.
        let max = if inner.rng.chance(1, 20) { 30 * max } else { max };
        Duration::from_micros(1 + inner.rng.below(max))
    }

    fn is_busy(&self) -> bool {
        let mut inner = self.inner.borrow_mut();
        let busy = inner.busy;
        busy.is_some_and(|one_in| inner.rng.chance(1, one_in))
    }

    /// Runs `first` at once and `last` when the call is answered, `slowness` times as late as
    /// others.
    fn change<A: 'static>(
        &self,
        slowness: u32,
        first: impl FnOnce(&mut Inner) -> A,
        last: impl FnOnce(&mut Inner, A) + 'static,
    ) -> Answer<()> {
        if self.is_busy() {
            return futures::future::err(Undelivered::Busy.into()).boxed_local();
        }
        let fate = self.inner.borrow_mut().fate();
        if let Fate::Never = fate {
            return futures::future::pending().boxed_local();
        }
        let begun = first(&mut self.inner.borrow_mut());
        let delay = self.clock.sleep(slowness * self.delay());
        let inner = self.inner.clone();
        async move {
            delay.await;
            if let Fate::Fails = fate {
                return Err(Error::DiskFailed { disk: 0 });
            }
            let dead = inner.borrow().power_calls == Some(0);
            if dead {
                return futures::future::pending().await;
            }
            last(&mut inner.borrow_mut(), begun);
            Ok(())
        }
        .boxed_local()
    }
}

fn mixture(choices: &[Vec<u8>], rng: &mut Rng) -> Vec<u8> {
    if rng.chance(3, 4) {
        return choices[rng.index(choices.len())].clone();
    }
    let mut mixed = choices[0].clone();
    for start in (0..mixed.len()).step_by(SECTOR) {
        let choice = &choices[rng.index(choices.len())];
        mixed[start..start + SECTOR].copy_from_slice(&choice[start..start + SECTOR]);
    }
    mixed
}

impl Stripes for MemoryDisk {
    fn map(&self) -> VolumeMap {
        self.inner.borrow().map.clone()
    }

    fn read(&self, stripe: u64, offset: u32, length: u32, expect: Vec<u32>) -> Answer<Bytes> {
        if self.is_busy() {
            return futures::future::err(Undelivered::Busy.into()).boxed_local();
        }
        let delay = self.delay() + self.read_delay();
        let (delay, inner) = (self.clock.sleep(delay), self.inner.clone());
        let reading = async move {
            delay.await;
            inner.borrow_mut().read()?;
            let inner = inner.borrow();
            if !inner.map.contains(stripe, offset, length.into()) {
                return Err(Error::OutOfRange { stripe, offset, length });
            }
            let first = inner.first_block(stripe, offset, length as usize);
            let count = u64::from(length) / BLOCK_SIZE as u64;
            let blocks: Vec<Vec<u8>> =
                (first..first + count).map(|block| inner.read_block(block)).collect();
            assert!(expect.is_empty() || expect.len() == blocks.len());
            for (index, (block, checksum)) in blocks.iter().zip(expect).enumerate() {
                // As a cache does: what did not come from a disk is not compared.
                let is_written = inner.written.contains(&(first + index as u64));
                if !is_written && crc32c(block) != checksum {
                    return Err(Error::Corrupt { stripe, block: index as u32 });
                }
            }
            Ok(blocks.concat().into())
        };
        self.in_a_line(reading.boxed_local())
    }

    fn write(&self, stripe: u64, offset: u32, data: Vec<Bytes>) -> Answer<BootId> {
        let data = data.concat();
        let boot_id = self.inner.borrow().boot_id;
        let writing = self.change(
            self.slowness([stripe]),
            move |inner| {
                let first = inner.first_block(stripe, offset, data.len());
                inner.versions += 1;
                let number = inner.versions;
                for (block, data) in (first..).zip(data.chunks(BLOCK_SIZE)) {
                    let version = Version { number, answered: false, data: data.to_vec() };
                    inner.cached.entry(block).or_default().push(version);
                    inner.written.insert(block);
                }
                number
            },
            |inner, number| {
                let versions = inner.cached.values_mut().flatten();
                versions.filter(|it| it.number == number).for_each(|it| it.answered = true);
            },
        );
        self.in_a_line(writing.map_ok(move |()| boot_id).boxed_local())
    }

    fn write_zeros(&self, _: u64, _: u32, _: u32) -> Answer<BootId> {
        panic!("a store writes no zeros");
    }

    fn sync(&self, written: Vec<Unsynced>) -> Answer<()> {
        let stripes: BTreeSet<u64> = written.iter().map(|unsynced| unsynced.stripe).collect();
        let inner = self.inner.clone();
        let flushing = self.change(
            self.slowness(stripes.iter().copied()),
            move |inner| {
                let per_stripe = u64::from(inner.map.geometry().blocks_per_stripe());
                let mut answered = Vec::new();
                for (&block, versions) in &inner.cached {
                    let last = versions.iter().rfind(|version| version.answered);
                    if let Some(last) = last
                        && stripes.contains(&(block / per_stripe))
                    {
                        answered.push((block, last.number));
                    }
                }
                answered
            },
            |inner, answered| {
                for (block, number) in answered {
                    let Some(versions) = inner.cached.get_mut(&block) else { continue };
                    while versions.first().is_some_and(|version| version.number <= number) {
                        inner.durable.insert(block, versions.remove(0).data);
                    }
                    if versions.is_empty() {
                        inner.cached.remove(&block);
                    }
                }
            },
        );
        async move {
            flushing.await?;
            let boot_id = inner.borrow().boot_id;
            let lost = written.iter().find(|unsynced| unsynced.boot_id != boot_id);
            lost.map_or(Ok(()), |lost| Err(Error::LostWrites { stripe: lost.stripe, boot_id }))
        }
        .boxed_local()
    }

    fn forget(&self, _: u64, _: u32, _: u32) -> Answer<()> {
        panic!("a store forgets nothing");
    }

    fn read_slot(&self, disk: DiskName, slot: u32) -> Answer<Bytes> {
        let mut inner = self.inner.borrow_mut();
        if let Err(error) = inner.read() {
            return futures::future::err(error).boxed_local();
        }
        if inner.lost_disks.contains(&disk) {
            return futures::future::err(Error::DiskFailed { disk: disk.disk }).boxed_local();
        }
        let data = inner.slots.get(&(disk, slot)).cloned().unwrap_or(vec![0; SLOT_SIZE]);
        futures::future::ok(data.into()).boxed_local()
    }

    fn write_slot(&self, disk: DiskName, slot: u32, data: Bytes) -> Answer<()> {
        assert_eq!(data.len(), SLOT_SIZE);
        if self.inner.borrow().lost_disks.contains(&disk) {
            return futures::future::err(Error::DiskFailed { disk: disk.disk }).boxed_local();
        }
        let is_slow = self.inner.borrow().slow_disks.contains(&disk);
        self.change(
            if is_slow { SLOW_FACTOR } else { 1 },
            move |inner| {
                inner.slot_writes.insert((disk, slot), data.to_vec());
            },
            move |inner, ()| {
                if let Some(data) = inner.slot_writes.remove(&(disk, slot)) {
                    inner.slots.insert((disk, slot), data);
                }
            },
        )
    }
}
