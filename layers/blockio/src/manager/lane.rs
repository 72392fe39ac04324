//! One disk: its queue, its counters, whether it has failed, and whether it takes writes.

use std::cell::{Cell, RefCell};
use std::io;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::{LocalBoxFuture, ready};
use runtime::Context;
use runtime::disk::Disk;
use runtime::protocol::Undelivered;

use super::Turn;
use super::latency::Histogram;
use super::obstacle::{Obstruction, obstacle_of};
use super::queue::DiskQueue;
use crate::protocol::{DiskStatus, Error, WriteObstacle};

/// A caller that waits for a flush.
pub(super) struct Flush {
    pub(super) came: Duration,
    pub(super) reply: Turn<()>,
}

/// One disk and what waits for it.
pub(super) struct Lane {
    /// None once it was given up.
    disk: RefCell<Option<Rc<dyn Disk>>>,
    pub(super) queue: RefCell<DiskQueue>,
    pub(super) in_flight: Cell<usize>,
    disk_node: u32,
    failed: Cell<bool>,
    obstruction: RefCell<Option<Obstruction>>,
    /// The log says that there is one.
    pub(super) obstruction_logged: Cell<bool>,
    /// How many have ended.
    pub(super) obstructions_ended: Cell<u64>,
    pub(super) flushing: Cell<bool>,
    /// Served by the next flush to start, not by the one that runs.
    pub(super) flush_waiting: RefCell<Vec<Flush>>,
    /// Writes done when the last successful flush started. None at first: an earlier process may
    /// have left writes in the disk's cache.
    flushed_writes: Cell<Option<u64>>,
    pub(super) counters: RefCell<DiskCounters>,
}

#[derive(Default)]
pub(super) struct DiskCounters {
    reads: u64,
    pub(super) writes: u64,
    syncs: u64,
    read_bytes: u64,
    written_bytes: u64,
    pub(super) merged: u64,
    busy: u64,
    pub(super) read_latency: Histogram,
    pub(super) write_latency: Histogram,
    pub(super) sync_latency: Histogram,
}

impl Lane {
    pub(super) fn new(disk: Rc<dyn Disk>, disk_node: u32) -> Self {
        Self {
            disk: RefCell::new(Some(disk)),
            disk_node,
            queue: RefCell::default(),
            in_flight: Cell::new(0),
            failed: Cell::new(false),
            obstruction: RefCell::default(),
            obstruction_logged: Cell::default(),
            obstructions_ended: Cell::default(),
            flushing: Cell::new(false),
            flush_waiting: RefCell::default(),
            flushed_writes: Cell::new(None),
            counters: RefCell::default(),
        }
    }

    /// The disk, or one that does nothing.
    pub(super) fn disk(&self) -> Rc<dyn Disk> {
        self.disk.borrow().clone().unwrap_or_else(|| Rc::new(ClosedDisk))
    }

    /// Gives the disk up.
    pub(super) fn close(&self) {
        self.failed.set(true);
        self.disk.take();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.disk.borrow().is_none()
    }

    pub(super) fn status(&self, disk: u32, stripes: u64) -> DiskStatus {
        let counters = self.counters.borrow();
        let obstruction = self.obstruction.borrow();
        DiskStatus {
            disk,
            stripes,
            queued: self.queue.borrow().len() as u32,
            healthy: !self.failed.get(),
            reads: counters.reads,
            writes: counters.writes,
            syncs: counters.syncs,
            read_bytes: counters.read_bytes,
            written_bytes: counters.written_bytes,
            direct: self.disk().is_direct(),
            merged: counters.merged,
            busy: counters.busy,
            read_latency: counters.read_latency.summary(),
            write_latency: counters.write_latency.summary(),
            sync_latency: counters.sync_latency.summary(),
            path: self.disk().name(),
            obstacle: obstruction.as_ref().map(|obstruction| obstruction.why),
            obstacle_since: obstruction.as_ref().map_or(0, |obstruction| obstruction.since),
        }
    }

    pub(super) fn check(&self, disk: usize) -> Result<(), Error> {
        if self.failed.get() { Err(failed(disk)) } else { Ok(()) }
    }

    /// As [`check`](Self::check), for a write of `place`.
    pub(super) fn check_write(
        &self,
        disk: usize,
        place: &Range<u64>,
        now: Duration,
    ) -> Result<(), Error> {
        self.check(disk)?;
        let mut obstruction = self.obstruction.borrow_mut();
        let Some(state) = &mut *obstruction else { return Ok(()) };
        if state.admits(place, now) { Ok(()) } else { Err(self.unwritable(disk, state.why)) }
    }

    fn unwritable(&self, disk: usize, why: WriteObstacle) -> Error {
        Error::Unwritable { disk_node: self.disk_node, disk: disk as u32, why }
    }

    /// It takes no writes for now.
    pub(super) fn is_obstructed(&self) -> bool {
        self.obstruction.borrow().is_some()
    }

    /// Refuses what would be one more than `length_max`.
    pub(super) fn check_room(&self, length: usize, length_max: usize) -> Result<(), Error> {
        if length < length_max {
            return Ok(());
        }
        self.counters.borrow_mut().busy += 1;
        Err(Undelivered::Busy.into())
    }

    /// Every write has been flushed.
    pub(super) fn is_flushed(&self) -> bool {
        self.flushed_writes.get() == Some(self.counters.borrow().writes)
    }

    /// A read that fails says nothing about the rest of the disk.
    pub(super) fn after_read(
        &self,
        disk: usize,
        offset: u64,
        length: usize,
        read: io::Result<Bytes>,
    ) -> Result<Bytes, Error> {
        match read {
            Ok(data) if data.len() == length => {
                let mut counters = self.counters.borrow_mut();
                counters.reads += 1;
                counters.read_bytes += length as u64;
                Ok(data)
            }
            // The machine has no buffer left for it.
            Err(why) if why.kind() == io::ErrorKind::OutOfMemory => Err(Undelivered::Busy.into()),
            other => {
                tracing::error!(disk, offset, length, ?other, "the disk cannot read");
                Err(Error::Unreadable { disk: disk as u32, offset })
            }
        }
    }

    /// `count` writes to `place` together. The second is true if they ended an obstruction.
    pub(super) fn after_write(
        &self,
        disk: usize,
        (count, place): (usize, Range<u64>),
        context: &Context,
        written: io::Result<()>,
    ) -> (Result<(), Error>, bool) {
        if let Err(why) = written {
            return (Err(self.refused(disk, &why, Some(place), context)), false);
        }
        let mut counters = self.counters.borrow_mut();
        counters.writes += count as u64;
        counters.written_bytes += place.end - place.start;
        let now = context.now();
        (Ok(()), self.end_obstruction_if(|state| state.note_write(&place, now)))
    }

    /// The second is true if the flush ended an obstruction.
    pub(super) fn after_flush(
        &self,
        disk: usize,
        covered: u64,
        context: &Context,
        flushed: io::Result<()>,
    ) -> (Result<(), Error>, bool) {
        self.flushing.set(false);
        if let Err(why) = flushed {
            return (Err(self.refused(disk, &why, None, context)), false);
        }
        // The disk may have failed a write meanwhile.
        if let Err(failed) = self.check(disk) {
            return (Err(failed), false);
        }
        self.flushed_writes.set(Some(covered));
        self.counters.borrow_mut().syncs += 1;
        (Ok(()), self.end_obstruction_if(Obstruction::note_flush))
    }

    /// True if there was an obstruction that ends here.
    fn end_obstruction_if(&self, ends: impl FnOnce(&mut Obstruction) -> bool) -> bool {
        let mut obstruction = self.obstruction.borrow_mut();
        let has_ended = obstruction.as_mut().is_some_and(ends);
        if has_ended {
            *obstruction = None;
            self.obstructions_ended.set(self.obstructions_ended.get() + 1);
        }
        has_ended
    }

    /// A write of `place` has failed, or a flush if there is none.
    fn refused(
        &self,
        disk: usize,
        why: &io::Error,
        place: Option<Range<u64>>,
        context: &Context,
    ) -> Error {
        // The machine has no memory for it now.
        if why.kind() == io::ErrorKind::OutOfMemory && place.is_some() {
            return Undelivered::Busy.into();
        }
        let Some(obstacle) = obstacle_of(why).filter(|_| !self.failed.get()) else {
            return self.fail(disk, why);
        };
        let mut obstruction = self.obstruction.borrow_mut();
        let since = context.unix_time().as_secs();
        let state = obstruction.get_or_insert_with(|| Obstruction::new(obstacle, since));
        state.note_failure(obstacle, place, context.now());
        if !self.obstruction_logged.replace(true) {
            let path = self.disk().name();
            tracing::error!(
                disk = path,
                %why,
                "the host file system below {path} is {obstacle}: \
                 nothing is written there until this ends; it goes on by itself then"
            );
        }
        let refused = self.unwritable(disk, obstacle);
        // Their owners ask again.
        self.queue.borrow_mut().refuse_writes(refused);
        refused
    }

    /// Notes in the log that the disk takes writes again.
    pub(super) fn log_end(&self) {
        self.obstruction_logged.set(false);
        let path = self.disk().name();
        tracing::warn!(disk = path, "{path} takes writes again");
    }

    /// The disk has lost something, perhaps of writes that were already answered. It must not be
    /// written any more; a retry would only hide the loss. What it has can be read: the layers
    /// above know the checksums.
    pub(super) fn fail(&self, disk: usize, why: &io::Error) -> Error {
        if !self.failed.replace(true) {
            let path = self.disk().name();
            tracing::error!(
                disk = path,
                %why,
                "the disk {path} has failed: nothing is written to it any more"
            );
        }
        self.obstruction.take();
        self.queue.borrow_mut().refuse_writes(failed(disk));
        for flush in self.flush_waiting.take() {
            let _ = flush.reply.send(Err(failed(disk)));
        }
        failed(disk)
    }
}

/// In the place of a disk that was given up.
struct ClosedDisk;

impl Disk for ClosedDisk {
    fn length(&self) -> u64 {
        0
    }
    fn read(&self, _: u64, _: usize) -> LocalBoxFuture<'static, io::Result<Bytes>> {
        ready(Err(io::ErrorKind::NotFound.into())).boxed_local()
    }
    fn write(&self, _: u64, _: Vec<Bytes>) -> LocalBoxFuture<'static, io::Result<()>> {
        ready(Err(io::ErrorKind::NotFound.into())).boxed_local()
    }
    fn sync(&self) -> LocalBoxFuture<'static, io::Result<()>> {
        ready(Err(io::ErrorKind::NotFound.into())).boxed_local()
    }
    fn name(&self) -> String {
        String::new()
    }
}

fn failed(disk: usize) -> Error {
    Error::DiskFailed { disk: disk as u32 }
}
