//! A disk in memory with a volatile cache: until a sync that began after a write was answered is
//! done, a crash leaves of each sector any of its contents since then.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use runtime::disk::Disk;
use runtime::seed::Rng;

use super::machine::Clock;

/// Bytes that are written all or not at all.
const SECTOR: usize = 512;

type Sector = [u8; SECTOR];

/// What a disk was asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Write,
    Sync,
}

/// The beginning of one request to a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Started {
    pub(crate) at: Duration,
    pub(crate) disk: usize,
    pub(crate) kind: Kind,
    pub(crate) offset: u64,
}

/// What all disks of a test were asked, in order.
pub(crate) type Log = Rc<RefCell<Vec<Started>>>;

#[derive(Clone)]
pub(crate) struct MemoryDisk(Rc<Inner>);

struct Inner {
    clock: Clock,
    index: usize,
    log: Log,
    length: Cell<u64>,
    latency: Cell<Duration>,
    failing: RefCell<Vec<Kind>>,
    /// How they fail.
    error: Cell<io::ErrorKind>,
    /// This many requests succeed, then all fail.
    left: Cell<Option<u64>>,
    has_failed: Cell<bool>,
    /// Reads of this byte fail.
    bad_place: Cell<Option<u64>>,
    /// Writes that reach past here fail.
    full_from: Cell<Option<u64>>,
    /// This many of the next reads return a wrong byte.
    hurt_reads: Cell<u32>,
    in_flight: Cell<usize>,
    in_flight_max: Cell<usize>,
    writes: Cell<u64>,
    answered: RefCell<BTreeSet<u64>>,
    /// The contents that a sector may have after a crash, each with the number of its write; the
    /// last is the present one.
    sectors: RefCell<BTreeMap<u64, Vec<(u64, Sector)>>>,
}

impl MemoryDisk {
    pub(crate) fn new(clock: Clock, index: usize, log: Log, length: u64) -> Self {
        Self(Rc::new(Inner {
            clock,
            index,
            log,
            length: Cell::new(length),
            latency: Cell::default(),
            failing: RefCell::default(),
            error: Cell::new(io::ErrorKind::Other),
            left: Cell::default(),
            has_failed: Cell::default(),
            bad_place: Cell::default(),
            full_from: Cell::default(),
            hurt_reads: Cell::default(),
            in_flight: Cell::default(),
            in_flight_max: Cell::default(),
            writes: Cell::default(),
            answered: RefCell::default(),
            sectors: RefCell::default(),
        }))
    }

    pub(crate) fn set_latency(&self, latency: Duration) {
        self.0.latency.set(latency);
    }

    /// From now on requests of these kinds fail, and only these.
    pub(crate) fn set_failing(&self, kinds: &[Kind]) {
        *self.0.failing.borrow_mut() = kinds.to_vec();
    }

    /// What they fail with.
    pub(crate) fn set_error(&self, error: io::ErrorKind) {
        self.0.error.set(error);
    }

    /// The next `count` requests succeed, all later ones fail: the power will be cut there.
    pub(crate) fn fail_after(&self, count: u64) {
        self.0.left.set(Some(count));
        self.0.has_failed.set(false);
    }

    /// Whether any request has failed since [`fail_after`](Self::fail_after).
    pub(crate) fn has_failed(&self) -> bool {
        self.0.has_failed.get()
    }

    pub(crate) fn set_length(&self, length: u64) {
        self.0.length.set(length);
    }

    /// Reads of the byte at `place` fail from now on.
    pub(crate) fn fail_reads_at(&self, place: u64) {
        self.0.bad_place.set(Some(place));
    }

    /// Writes that reach past `place` fail from now on.
    pub(crate) fn set_full_from(&self, place: u64) {
        self.0.full_from.set(Some(place));
    }

    /// The next `count` reads return a wrong byte.
    pub(crate) fn hurt_reads(&self, count: u32) {
        self.0.hurt_reads.set(count);
    }

    /// Requests that were in flight at once, at most; flushes not counted.
    pub(crate) fn in_flight_max(&self) -> usize {
        self.0.in_flight_max.get()
    }

    /// Cuts the power: of what was not synced, `rng` says what is left.
    pub(crate) fn crash(&self, rng: &mut Rng) {
        for versions in self.0.sectors.borrow_mut().values_mut() {
            let (_, left) = versions[rng.index(versions.len())];
            *versions = vec![(0, left)];
        }
        self.0.answered.borrow_mut().clear();
        self.0.in_flight.set(0);
        self.0.left.set(None);
        self.0.has_failed.set(false);
    }

    /// Bytes as they are now, without asking.
    pub(crate) fn peek(&self, offset: u64, length: usize) -> Vec<u8> {
        let sectors = self.0.sectors.borrow();
        let mut out = Vec::with_capacity(length);
        while out.len() < length {
            let (sector, within) = split(offset + out.len() as u64);
            let count = (SECTOR - within).min(length - out.len());
            let content = sectors.get(&sector).and_then(|versions| versions.last());
            let content = content.map_or([0; SECTOR], |(_, content)| *content);
            out.extend_from_slice(&content[within..within + count]);
        }
        out
    }

    /// Changes bytes behind the back of everybody, durably.
    pub(crate) fn poke(&self, offset: u64, data: &[u8]) {
        self.store(0, offset, data);
        for versions in self.0.sectors.borrow_mut().values_mut() {
            if versions.last().is_some_and(|(write, _)| *write == 0) {
                versions.drain(..versions.len() - 1);
            }
        }
    }

    fn store(&self, write: u64, offset: u64, mut data: &[u8]) {
        let mut sectors = self.0.sectors.borrow_mut();
        let mut position = offset;
        while !data.is_empty() {
            let (sector, within) = split(position);
            let count = (SECTOR - within).min(data.len());
            let versions = sectors.entry(sector).or_insert_with(|| vec![(0, [0; SECTOR])]);
            let mut content = versions.last().map_or([0; SECTOR], |(_, content)| *content);
            content[within..within + count].copy_from_slice(&data[..count]);
            versions.push((write, content));
            data = &data[count..];
            position += count as u64;
        }
    }

    /// Makes the writes in `covered` durable: no older content comes back.
    fn flush(&self, covered: &BTreeSet<u64>) {
        for versions in self.0.sectors.borrow_mut().values_mut() {
            let newest = versions.iter().rposition(|(write, _)| covered.contains(write));
            versions.drain(..newest.unwrap_or(0));
        }
        self.0.answered.borrow_mut().retain(|write| !covered.contains(write));
    }

    fn runs_out(&self) -> bool {
        let left = self.0.left.get();
        self.0.left.set(left.map(|left| left.saturating_sub(1)));
        if left == Some(0) {
            self.0.has_failed.set(true);
        }
        left == Some(0)
    }

    fn start(&self, kind: Kind, offset: u64) -> LocalBoxFuture<'static, io::Result<()>> {
        let Inner { clock, index, log, latency, .. } = &*self.0;
        log.borrow_mut().push(Started { at: clock.now(), disk: *index, kind, offset });
        let wait = (latency.get() > Duration::ZERO).then(|| clock.sleep(latency.get()));
        let (disk, runs_out) = (self.clone(), self.runs_out());
        let counted = usize::from(kind != Kind::Sync);
        disk.0.in_flight.set(disk.0.in_flight.get() + counted);
        disk.0.in_flight_max.set(disk.0.in_flight_max.get().max(disk.0.in_flight.get()));
        async move {
            if let Some(wait) = wait {
                wait.await;
            }
            disk.0.in_flight.set(disk.0.in_flight.get() - counted);
            let fails = disk.0.failing.borrow().contains(&kind) || runs_out;
            if fails { Err(disk.0.error.get().into()) } else { Ok(()) }
        }
        .boxed_local()
    }
}

fn split(position: u64) -> (u64, usize) {
    (position / SECTOR as u64, (position % SECTOR as u64) as usize)
}

impl Disk for MemoryDisk {
    fn length(&self) -> u64 {
        self.0.length.get()
    }

    fn read(&self, offset: u64, length: usize) -> LocalBoxFuture<'static, io::Result<Bytes>> {
        assert!(offset + length as u64 <= self.length(), "read past the end of the disk");
        let (disk, running) = (self.clone(), self.start(Kind::Read, offset));
        async move {
            running.await?;
            let read = offset..offset + length as u64;
            if disk.0.bad_place.get().is_some_and(|place| read.contains(&place)) {
                return Err(io::Error::other("injected"));
            }
            let mut data = disk.peek(offset, length);
            if disk.0.hurt_reads.get() > 0 {
                disk.0.hurt_reads.set(disk.0.hurt_reads.get() - 1);
                data[0] ^= 1;
            }
            Ok(data.into())
        }
        .boxed_local()
    }

    fn write(&self, offset: u64, data: Vec<Bytes>) -> LocalBoxFuture<'static, io::Result<()>> {
        let data = data.concat();
        assert!(offset + data.len() as u64 <= self.length(), "write past the end of the disk");
        let had_power = !self.has_failed();
        let (disk, running) = (self.clone(), self.start(Kind::Write, offset));
        let write = self.0.writes.get() + 1;
        self.0.writes.set(write);
        if had_power {
            // Perhaps the one that the power cut tears.
            self.store(write, offset, &data);
        }
        let end = offset + data.len() as u64;
        let is_past = self.0.full_from.get().is_some_and(|place| end > place);
        async move {
            running.await?;
            if is_past {
                return Err(disk.0.error.get().into());
            }
            disk.0.answered.borrow_mut().insert(write);
            Ok(())
        }
        .boxed_local()
    }

    fn sync(&self) -> LocalBoxFuture<'static, io::Result<()>> {
        let covered = self.0.answered.borrow().clone();
        let (disk, running) = (self.clone(), self.start(Kind::Sync, 0));
        async move {
            running.await?;
            disk.flush(&covered);
            Ok(())
        }
        .boxed_local()
    }
}
