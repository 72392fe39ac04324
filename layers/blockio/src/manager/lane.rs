//! One disk: its queue, its counters, and whether it has failed.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use runtime::disk::Disk;
use runtime::protocol::Undelivered;

use super::Turn;
use super::latency::Histogram;
use super::queue::DiskQueue;
use crate::protocol::{DiskStatus, Error};

/// A caller that waits for a flush.
pub(super) struct Flush {
    pub(super) came: Duration,
    pub(super) reply: Turn<()>,
}

/// One disk and what waits for it.
pub(super) struct Lane {
    pub(super) disk: Rc<dyn Disk>,
    pub(super) queue: RefCell<DiskQueue>,
    pub(super) in_flight: Cell<usize>,
    failed: Cell<bool>,
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
    pub(super) fn new(disk: Rc<dyn Disk>) -> Self {
        Self {
            disk,
            queue: RefCell::default(),
            in_flight: Cell::new(0),
            failed: Cell::new(false),
            flushing: Cell::new(false),
            flush_waiting: RefCell::default(),
            flushed_writes: Cell::new(None),
            counters: RefCell::default(),
        }
    }

    pub(super) fn status(&self, stripes: u64) -> DiskStatus {
        let counters = self.counters.borrow();
        DiskStatus {
            stripes,
            queued: self.queue.borrow().len() as u32,
            healthy: !self.failed.get(),
            reads: counters.reads,
            writes: counters.writes,
            syncs: counters.syncs,
            read_bytes: counters.read_bytes,
            written_bytes: counters.written_bytes,
            direct: self.disk.is_direct(),
            merged: counters.merged,
            busy: counters.busy,
            read_latency: counters.read_latency.summary(),
            write_latency: counters.write_latency.summary(),
            sync_latency: counters.sync_latency.summary(),
        }
    }

    pub(super) fn check(&self, disk: usize) -> Result<(), Error> {
        if self.failed.get() { Err(failed(disk)) } else { Ok(()) }
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

    /// `count` writes of `length` bytes together.
    pub(super) fn after_write(
        &self,
        disk: usize,
        count: usize,
        length: usize,
        written: io::Result<()>,
    ) -> Result<(), Error> {
        if let Err(why) = written {
            return Err(self.fail(disk, &why));
        }
        let mut counters = self.counters.borrow_mut();
        counters.writes += count as u64;
        counters.written_bytes += length as u64;
        Ok(())
    }

    pub(super) fn after_flush(
        &self,
        disk: usize,
        covered: u64,
        flushed: io::Result<()>,
    ) -> Result<(), Error> {
        self.flushing.set(false);
        if let Err(why) = flushed {
            return Err(self.fail(disk, &why));
        }
        // The disk may have failed a write meanwhile.
        self.check(disk)?;
        self.flushed_writes.set(Some(covered));
        self.counters.borrow_mut().syncs += 1;
        Ok(())
    }

    /// The disk has lost something, perhaps of writes that were already answered. It must not be
    /// used any more; a retry would only hide the loss.
    fn fail(&self, disk: usize, why: &io::Error) -> Error {
        if !self.failed.replace(true) {
            tracing::error!(disk, %why, "the disk has failed and is not used any more");
        }
        self.queue.take().refuse(failed(disk));
        for flush in self.flush_waiting.take() {
            let _ = flush.reply.send(Err(failed(disk)));
        }
        failed(disk)
    }
}

fn failed(disk: usize) -> Error {
    Error::DiskFailed { disk: disk as u32 }
}
