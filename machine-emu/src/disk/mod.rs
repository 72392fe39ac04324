//! Disks: they outlive their nodes, have a volatile cache, take their time, and fail in every way
//! in which disks fail.

mod control;
mod platter;
mod record;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use runtime::buffer::{Buffer, Pool};
use runtime::disk::Disk;
use runtime::seed::Rng;

use crate::alarm::Promise;
use crate::events::WorldEvent;
use crate::jmachine::{Bus, Numbers, ScsiCommand as Command, TransferDirection};
use crate::kernel::{Kernel, rng_for};
use crate::node::{NodeInstance, dead};
use crate::slab::{KeyedSlab, SlabKey};
use crate::trace::{FaultKind, TraceTag};

pub use control::{DiskControl, DiskSnapshot};
pub(crate) use platter::Platter;
pub use platter::{SECTOR_SIZE, Survival};
pub use record::DiskEvent;
use record::DiskRecord;

// How long a disk takes: a solid-state one of 2 GB/s. Operations share its bandwidth, their
// latencies overlap.

/// Latency of a read.
const READ_NS: u64 = 80_000;
/// Latency of a write into the volatile cache.
const WRITE_NS: u64 = 20_000;
/// Latency of a flush.
const SYNC_NS: u64 = 200_000;
/// The inverse of the bandwidth: 1000 is 1 GB/s.
const PICOSECONDS_PER_BYTE: u64 = 500;
/// A random addition to each latency, at most; so that operations change places.
const JITTER_NS: u64 = 20_000;

/// On a full host one flush in this many finds out that there is no space for what was written.
const FULL_FLUSHES: u64 = 4;

/// How often operations of a disk go wrong, in parts per million.
#[derive(Clone, Copy, Debug, Default)]
pub struct DiskFaults {
    /// A read fails.
    pub read_error_ppm: u32,
    /// A write fails, and has been done or not.
    pub write_error_ppm: u32,
    /// A flush fails, and the cache forgets writes.
    pub sync_error_ppm: u32,
    /// A write is answered and never done.
    pub lost_write_ppm: u32,
    /// A write is answered and done elsewhere.
    pub misdirected_write_ppm: u32,
    /// A flush is answered and not done (a lying disk).
    pub ignored_sync_ppm: u32,
    /// A read brings what stands elsewhere.
    pub misdirected_read_ppm: u32,
    /// A read brings what stood there before the writes that are not flushed.
    pub stale_read_ppm: u32,
}

/// The operations of a disk, to name the one that shall fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskOperation {
    /// [`Disk::read`].
    Read,
    /// [`Disk::write`].
    Write,
    /// [`Disk::sync`].
    Sync,
}

/// A failure ordered for one operation.
#[derive(Clone, Copy, Debug)]
struct OrderedFailure {
    operation: DiskOperation,
    /// Operations of the kind that still succeed.
    after: u64,
    /// From then on all of them fail.
    sticky: bool,
    kind: io::ErrorKind,
}

struct DiskState {
    path: String,
    platter: Platter,
    faults: DiskFaults,
    slowness: u64,
    failures: Vec<OrderedFailure>,
    /// Until then the host has no more space for the disk, which is a sparse file.
    host_full_until_ns: u64,
    full_host_fails_flushes: bool,
    /// The node and incarnation that has the disk open.
    owner: Option<(u32, u32)>,
    /// The node that opened it last: its power supply is the disk's.
    home: Option<u32>,
    /// Operations begun before the last power cut belong to an earlier cycle.
    power_cycle: u32,
    free_ns: u64,
    rng: Rng,
    /// The bus of which node it is on, and where, if the world has buses.
    bus_position: Option<(u32, usize)>,
}

/// A request to a disk, and where its result goes.
enum DiskRequest {
    Read { offset: u64, buffer: Buffer, done: Promise<io::Result<Bytes>> },
    Write { offset: u64, data: Bytes, done: Promise<io::Result<()>> },
    Sync { up_to: u64, done: Promise<io::Result<()>> },
}

impl DiskRequest {
    fn operation(&self) -> DiskOperation {
        match self {
            Self::Read { .. } => DiskOperation::Read,
            Self::Write { .. } => DiskOperation::Write,
            Self::Sync { .. } => DiskOperation::Sync,
        }
    }

    fn bytes(&self) -> u64 {
        match self {
            Self::Read { buffer, .. } => buffer.len() as u64,
            Self::Write { data, .. } => data.len() as u64,
            Self::Sync { .. } => 0,
        }
    }

    fn digest(&self) -> u64 {
        match self {
            Self::Read { offset, buffer, .. } => offset.rotate_left(20) ^ buffer.len() as u64,
            Self::Write { offset, data, .. } => {
                offset.rotate_left(20) ^ runtime::hash::xxh3(data).rotate_left(1)
            }
            Self::Sync { up_to, .. } => *up_to,
        }
    }
}

impl DiskRequest {
    /// The power was cut meanwhile. A task that still waits has lost the disk.
    fn abort(self) {
        match self {
            Self::Read { done, .. } => done.keep(Err(dead())),
            Self::Write { done, .. } | Self::Sync { done, .. } => done.keep(Err(dead())),
        }
    }
}

struct RunningDiskOperation {
    disk: u32,
    power_cycle: u32,
    request: DiskRequest,
    /// Where the write is in the record.
    recorded: Option<usize>,
}

/// The states of all disks, and what they do.
#[derive(Default)]
pub(crate) struct DiskTable {
    by_path: BTreeMap<String, u32>,
    states: Vec<DiskState>,
    operations: KeyedSlab<RunningDiskOperation>,
    record: Option<DiskRecord>,
    /// The bus of each node that has one, if the world has buses.
    buses: BTreeMap<u32, Bus<SlabKey>>,
}

impl DiskTable {
    fn index(&self, path: &str) -> Option<u32> {
        self.by_path.get(path).copied()
    }

    fn get(&self, disk: u32) -> &DiskState {
        &self.states[disk as usize]
    }

    fn get_mut(&mut self, disk: u32) -> &mut DiskState {
        &mut self.states[disk as usize]
    }

    /// A copy of the disk with the writes that are under way in its volatile cache.
    fn platter_with_writes_under_way(&self, disk: u32) -> Platter {
        let state = self.get(disk);
        let mut platter = state.platter.clone();
        for (_, operation) in self.operations.iter() {
            if operation.disk == disk
                && operation.power_cycle == state.power_cycle
                && let DiskRequest::Write { offset, data, .. } = &operation.request
            {
                platter.write(*offset, data.clone());
            }
        }
        platter
    }

    pub(crate) fn bus(&self, node: u32) -> Option<&Bus<SlabKey>> {
        self.buses.get(&node)
    }

    /// Puts a disk on the bus of `node`, unless it is there.
    fn bus_position(&mut self, disk: u32, node: u32, numbers: &Numbers) {
        let state = &mut self.states[disk as usize];
        if state.bus_position.is_none_or(|(home, _)| home != node) {
            let bus = self.buses.entry(node).or_insert_with(|| Bus::new(numbers));
            state.bus_position = Some((node, bus.connect()));
        }
    }

    pub(crate) fn paths(&self) -> Vec<String> {
        self.by_path.keys().cloned().collect()
    }

    pub(crate) fn start_record(&mut self) {
        self.record = Some(DiskRecord::default());
    }

    pub(crate) fn events(&self) -> &[DiskEvent] {
        self.record.as_ref().map_or(&[], |record| &record.events)
    }
}

impl DiskState {
    fn hits(&mut self, ppm: u32) -> bool {
        ppm > 0 && self.rng.chance(u64::from(ppm), 1_000_000)
    }

    /// When an operation that begins now is done.
    fn done_ns(&mut self, request: &DiskRequest, now_ns: u64) -> u64 {
        let latency_ns = match request.operation() {
            DiskOperation::Read => READ_NS,
            DiskOperation::Write => WRITE_NS,
            DiskOperation::Sync => SYNC_NS,
        };
        let jitter_ns = self.rng.below(JITTER_NS + 1);
        let transfer_ns = request.bytes() * PICOSECONDS_PER_BYTE / 1000;
        self.free_ns = now_ns.max(self.free_ns) + transfer_ns * self.slowness;
        self.free_ns + (latency_ns + jitter_ns) * self.slowness
    }

    /// The failure ordered for this operation, if its turn has come.
    fn ordered_failure(&mut self, operation: DiskOperation) -> Option<io::ErrorKind> {
        let mut hit = None;
        self.failures.retain_mut(|failure| {
            if failure.operation != operation {
                return true;
            }
            if failure.after > 0 {
                failure.after -= 1;
                return true;
            }
            hit = Some(failure.kind);
            failure.sticky
        });
        hit
    }

    fn failure(&mut self, operation: DiskOperation) -> Option<io::Error> {
        let ppm = match operation {
            DiskOperation::Read => self.faults.read_error_ppm,
            DiskOperation::Write => self.faults.write_error_ppm,
            DiskOperation::Sync => self.faults.sync_error_ppm,
        };
        let kind = self.ordered_failure(operation);
        let kind = kind.or_else(|| self.hits(ppm).then_some(io::ErrorKind::Other))?;
        let error = format!("the disk {} failed a {operation:?} (injected)", self.path);
        Some(io::Error::new(kind, error))
    }

    fn read(
        &mut self,
        offset: u64,
        mut buffer: Buffer,
        hit: &dyn Fn(FaultKind),
    ) -> io::Result<Bytes> {
        if let Some(error) = self.failure(DiskOperation::Read) {
            hit(FaultKind::DiskReadError);
            return Err(error);
        }
        if self.hits(self.faults.stale_read_ppm) && self.platter.cached().next().is_some() {
            hit(FaultKind::DiskReadStale);
            self.platter.read_durable_into(offset, &mut buffer);
            return Ok(buffer.lend());
        }
        let mut place = offset;
        if self.hits(self.faults.misdirected_read_ppm) {
            hit(FaultKind::DiskReadMisdirected);
            place = self.elsewhere(buffer.len());
        }
        self.platter.read_into(place, &mut buffer);
        Ok(buffer.lend())
    }

    /// The host has no space. A flush may find that out for writes that were answered before.
    fn host_full(
        &mut self,
        operation: DiskOperation,
        place: Option<(u64, u64)>,
        now_ns: u64,
    ) -> Option<io::Error> {
        if now_ns >= self.host_full_until_ns {
            return None;
        }
        let is_hit = match place {
            Some((offset, length)) => !self.platter.was_written(offset, length),
            None => {
                self.full_host_fails_flushes
                    && self.platter.cached().next().is_some()
                    && self.rng.chance(1, FULL_FLUSHES)
            }
        };
        let error = || {
            let error = format!("the host of {} is full: a {operation:?} failed", self.path);
            io::Error::new(io::ErrorKind::StorageFull, error)
        };
        is_hit.then(error)
    }

    fn write(
        &mut self,
        offset: u64,
        data: Bytes,
        now_ns: u64,
        hit: &dyn Fn(FaultKind),
    ) -> io::Result<()> {
        let place = Some((offset, data.len() as u64));
        if let Some(error) = self.host_full(DiskOperation::Write, place, now_ns) {
            hit(FaultKind::DiskHostFull);
            return Err(error);
        }
        if let Some(error) = self.failure(DiskOperation::Write) {
            hit(FaultKind::DiskWriteError);
            if self.rng.chance(1, 2) {
                self.platter.write(offset, data);
            }
            return Err(error);
        }
        if self.hits(self.faults.lost_write_ppm) {
            hit(FaultKind::DiskWriteLost);
            return Ok(());
        }
        let mut place = offset;
        if self.hits(self.faults.misdirected_write_ppm) {
            hit(FaultKind::DiskWriteMisdirected);
            place = self.elsewhere(data.len());
        }
        self.platter.write(place, data);
        Ok(())
    }

    /// Where `length` bytes go, or come from, that miss their place.
    fn elsewhere(&mut self, length: usize) -> u64 {
        let sectors = (self.platter.length() - length as u64) / SECTOR_SIZE;
        self.rng.below(sectors + 1) * SECTOR_SIZE
    }

    fn sync(&mut self, up_to: u64, now_ns: u64, hit: &dyn Fn(FaultKind)) -> io::Result<()> {
        if let Some(error) = self.host_full(DiskOperation::Sync, None, now_ns) {
            hit(FaultKind::DiskHostFull);
            self.platter.fail_flush(&mut self.rng);
            return Err(error);
        }
        if let Some(error) = self.failure(DiskOperation::Sync) {
            hit(FaultKind::DiskSyncError);
            self.platter.fail_flush(&mut self.rng);
            return Err(error);
        }
        if self.hits(self.faults.ignored_sync_ppm) {
            hit(FaultKind::DiskSyncIgnored);
            return Ok(());
        }
        self.platter.flush(up_to);
        Ok(())
    }
}

/// A disk as its owner has it open. Closed when dropped.
struct OpenDisk {
    disks: Rc<EmulatedDisks>,
    disk: u32,
    owner: (u32, u32),
    length: u64,
    /// Of the owner: what is read goes into its buffers.
    pool: Pool,
}

impl OpenDisk {
    /// Begins an operation at once, whether or not its future is ever polled.
    fn begin(&self, request: DiskRequest) {
        self.disks.begin(self.disk, request);
    }

    fn check(&self, offset: u64, length: u64) -> io::Result<()> {
        if self.disks.table.borrow().get(self.disk).owner != Some(self.owner)
            || self.disks.kernel.living(self.owner.0).map(|machine| machine.incarnation)
                != Some(self.owner.1)
        {
            return Err(dead());
        }
        if offset.checked_add(length).is_none_or(|end| end > self.length) {
            let error = format!("bytes {offset}+{length} of a disk of {} bytes", self.length);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, error));
        }
        Ok(())
    }
}

impl Disk for OpenDisk {
    fn length(&self) -> u64 {
        self.length
    }

    fn name(&self) -> String {
        self.disks.table.borrow().get(self.disk).path.clone()
    }

    fn read(&self, offset: u64, length: usize) -> LocalBoxFuture<'static, io::Result<Bytes>> {
        if let Err(error) = self.check(offset, length as u64) {
            return futures::future::ready(Err(error)).boxed_local();
        }
        let Some(buffer) = self.pool.take(length) else {
            return futures::future::ready(Err(io::ErrorKind::OutOfMemory.into())).boxed_local();
        };
        let (done, promised) = Promise::new();
        self.begin(DiskRequest::Read { offset, buffer, done });
        promised.boxed_local()
    }

    fn write(&self, offset: u64, data: Vec<Bytes>) -> LocalBoxFuture<'static, io::Result<()>> {
        let data: Bytes = data.concat().into();
        if let Err(error) = self.check(offset, data.len() as u64) {
            return futures::future::ready(Err(error)).boxed_local();
        }
        let (done, promised) = Promise::new();
        self.begin(DiskRequest::Write { offset, data, done });
        promised.boxed_local()
    }

    fn sync(&self) -> LocalBoxFuture<'static, io::Result<()>> {
        if let Err(error) = self.check(0, 0) {
            return futures::future::ready(Err(error)).boxed_local();
        }
        let (done, promised) = Promise::new();
        let up_to = self.disks.table.borrow().get(self.disk).platter.last_write();
        self.begin(DiskRequest::Sync { up_to, done });
        promised.boxed_local()
    }
}

impl Drop for OpenDisk {
    fn drop(&mut self) {
        let mut disks = self.disks.table.borrow_mut();
        let state = disks.get_mut(self.disk);
        if state.owner == Some(self.owner) {
            state.owner = None;
        }
    }
}

/// All disks of a world.
pub(crate) struct EmulatedDisks {
    kernel: Rc<Kernel>,
    pub(crate) table: RefCell<DiskTable>,
}

impl EmulatedDisks {
    pub(crate) fn new(kernel: Rc<Kernel>) -> Rc<Self> {
        Rc::new(Self { kernel, table: RefCell::default() })
    }

    pub(crate) fn create(&self, path: &str, length: u64, used: bool) {
        let mut disks = self.table.borrow_mut();
        let disk = disks.states.len() as u32;
        let mut rng = rng_for(self.kernel.seed, "disk", u64::from(disk));
        let noise = used.then(|| rng.bits());
        let old = disks.by_path.insert(path.to_owned(), disk);
        assert!(old.is_none(), "there is a disk {path} already");
        disks.states.push(DiskState {
            path: path.to_owned(),
            platter: Platter::new(length, noise),
            faults: DiskFaults::default(),
            slowness: 1,
            failures: Vec::new(),
            host_full_until_ns: 0,
            full_host_fails_flushes: false,
            owner: None,
            home: None,
            power_cycle: 0,
            free_ns: 0,
            rng,
            bus_position: None,
        });
    }

    pub(crate) fn open(
        self: &Rc<Self>,
        instance: &NodeInstance,
        path: &str,
    ) -> io::Result<Rc<dyn Disk>> {
        let &NodeInstance { node, incarnation, .. } = instance;
        let mut disks = self.table.borrow_mut();
        let Some(disk) = disks.index(path) else {
            let error = format!("there is no disk {path}");
            return Err(io::Error::new(io::ErrorKind::NotFound, error));
        };
        let state = disks.get_mut(disk);
        if let Some((node, incarnation)) = state.owner
            && self.kernel.living(node).is_some_and(|machine| machine.incarnation == incarnation)
        {
            let error = format!("the disk {path} is in use");
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, error));
        }
        let owner = (node, incarnation);
        state.owner = Some(owner);
        state.home = Some(node);
        let length = state.platter.length();
        if let Some(machine) = &*self.kernel.machine.borrow() {
            disks.bus_position(disk, node, &machine.numbers);
        }
        let pool = instance.pool.clone();
        Ok(Rc::new(OpenDisk { disks: self.clone(), disk, owner, length, pool }))
    }

    fn begin(&self, disk: u32, request: DiskRequest) {
        self.kernel.note(disk, TraceTag::DiskStart, request.digest());
        let mut disks = self.table.borrow_mut();
        let disks = &mut *disks;
        let recorded = match (&mut disks.record, &request) {
            (Some(record), DiskRequest::Write { offset, data, .. }) => {
                Some(record.write(disk, *offset, data))
            }
            _ => None,
        };
        let state = &mut disks.states[disk as usize];
        let power_cycle = state.power_cycle;
        if let Some(bus_position) = state.bus_position {
            let command = self.command(&request, bus_position, state.slowness);
            let operation = RunningDiskOperation { disk, power_cycle, request, recorded };
            let token = disks.operations.insert(operation);
            let mut due = Vec::new();
            if let Some(bus) = disks.buses.get_mut(&bus_position.0) {
                bus.start(Command { token, ..command }, &mut due);
            }
            return self.note_due(bus_position.0, due);
        }
        let done_ns = state.done_ns(&request, self.kernel.now_ns());
        let operation = RunningDiskOperation { disk, power_cycle, request, recorded };
        let operation = disks.operations.insert(operation);
        self.kernel.push(done_ns, WorldEvent::Disk(operation));
    }

    /// What is asked of a disk as a command on its bus; the processor of its node sets it up and
    /// copies what is written.
    fn command(
        &self,
        request: &DiskRequest,
        bus_position: (u32, usize),
        slowness: u64,
    ) -> Command<SlabKey> {
        let (direction, copied) = match request {
            DiskRequest::Read { .. } => (TransferDirection::Read, 0),
            DiskRequest::Write { .. } => (TransferDirection::Write, request.bytes()),
            DiskRequest::Sync { .. } => (TransferDirection::Sync, 0),
        };
        let offset = match request {
            DiskRequest::Read { offset, .. } | DiskRequest::Write { offset, .. } => *offset,
            DiskRequest::Sync { .. } => 0,
        };
        let (work_ns, send_piece_ns) =
            self.kernel.machine.borrow().as_ref().map_or((0, 0), |machine| {
                (machine.costs.disk_ns(copied), machine.costs.send_piece_ns())
            });
        let mut nodes = self.kernel.nodes.borrow_mut();
        let (from_ns, copied_ns) =
            nodes.get_mut(bus_position.0).cpu.work(self.kernel.now_ns(), work_ns);
        // The token is known once the operation has its place.
        let token = SlabKey { index: 0, generation: 0 };
        let (disk, bytes) = (bus_position.1, request.bytes());
        Command {
            token,
            disk,
            direction,
            offset,
            bytes,
            from_ns,
            copied_ns,
            send_piece_ns,
            slowness,
        }
    }

    fn note_due(&self, node: u32, due: Vec<(u64, usize)>) {
        for (due_ns, disk) in due {
            self.kernel.push(due_ns, WorldEvent::Bus(node, disk as u32));
        }
    }

    /// A disk of the bus of `node` goes on.
    pub(crate) fn advance_bus(&self, node: u32, disk: u32) {
        let mut due = Vec::new();
        let done = self
            .table
            .borrow_mut()
            .buses
            .get_mut(&node)
            .and_then(|bus| bus.advance(self.kernel.now_ns(), disk as usize, &mut due));
        self.note_due(node, due);
        if let Some(operation) = done {
            self.finish(operation);
        }
    }

    /// The time has come at which a disk has done what it was asked.
    pub(crate) fn finish(&self, operation: SlabKey) {
        let mut disks = self.table.borrow_mut();
        let disks = &mut *disks;
        let Some(operation) = disks.operations.remove(operation) else { return };
        let disk = operation.disk;
        let state = &mut disks.states[disk as usize];
        if state.power_cycle != operation.power_cycle {
            return operation.request.abort();
        }
        self.kernel.note(disk, TraceTag::DiskDone, operation.request.operation() as u64);
        let hit = |fault| self.kernel.fault(disk, fault);
        let now_ns = self.kernel.now_ns();
        match operation.request {
            DiskRequest::Read { offset, buffer, done } => {
                done.keep(state.read(offset, buffer, &hit));
            }
            DiskRequest::Write { offset, data, done } => {
                let before = state.platter.last_write();
                done.keep(state.write(offset, data, now_ns, &hit));
                let sequence = state.platter.last_write();
                if let (Some(record), Some(index)) = (&mut disks.record, operation.recorded)
                    && sequence > before
                {
                    record.cached(disk, sequence, index);
                }
            }
            DiskRequest::Sync { up_to, done } => {
                let result = state.sync(up_to, now_ns, &hit);
                if let (Some(record), Ok(())) = (&mut disks.record, &result) {
                    record.flushed(disk, state.platter.flushed_up_to());
                }
                done.keep(result);
            }
        }
    }

    /// The power of a disk goes. Writes under way join those in the volatile cache.
    fn cut_power(&self, disk: u32, fate: Option<&mut dyn FnMut(u64, u64) -> Survival>) {
        let mut disks = self.table.borrow_mut();
        let platter = disks.platter_with_writes_under_way(disk);
        let state = disks.get_mut(disk);
        state.platter = platter;
        state.power_cycle += 1;
        state.owner = None;
        state.free_ns = 0;
        let DiskState { platter, rng, .. } = state;
        if let Some(fate) = fate {
            return platter.cut_power(fate);
        }
        platter.cut_power(|_, _| match rng.below(3) {
            0 => {
                self.kernel.fault(disk, FaultKind::DiskWriteDroppedByCrash);
                Survival::Lost
            }
            1 => Survival::Whole,
            _ => {
                self.kernel.fault(disk, FaultKind::DiskWriteTornByCrash);
                Survival::Torn(rng.bits())
            }
        });
    }

    /// The power of a node goes: that of its disks as well.
    pub(crate) fn cut_power_of(&self, node: u32) {
        let count = self.table.borrow().states.len() as u32;
        for disk in 0..count {
            let home = self.table.borrow().get(disk).home;
            if home == Some(node) {
                self.cut_power(disk, None);
            }
        }
    }
}
