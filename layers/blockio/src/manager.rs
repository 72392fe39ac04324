//! The I/O manager (thesis section 2.3.2): one FIFO per disk, and a pass that goes round the disks
//! which may start a request, so that all of them are busy and none is favoured.
//!
//! Flushes go beside the FIFO: everything that one covers has been answered before it is asked for.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;

use bytes::Bytes;
use futures::channel::oneshot;
use runtime::Context;
use runtime::disk::Disk;
use runtime::protocol::Undelivered;

use crate::protocol::{DiskStatus, Error};

/// The disks of one node.
pub(crate) struct Manager {
    context: Context,
    lanes: Vec<Lane>,
    /// The disk with which the next pass begins.
    next: Cell<usize>,
    depth: usize,
    queue_length_max: usize,
}

/// One disk and what waits for it.
struct Lane {
    disk: Rc<dyn Disk>,
    queue: RefCell<VecDeque<Work>>,
    in_flight: Cell<usize>,
    failed: Cell<bool>,
    flushing: Cell<bool>,
    /// Served by the next flush to start, not by the one that runs.
    flush_waiting: RefCell<Vec<Turn<()>>>,
    /// Writes done when the last successful flush started. None at first: an earlier process may
    /// have left writes in the disk's cache.
    flushed_writes: Cell<Option<u64>>,
    counters: RefCell<Counters>,
}

#[derive(Default)]
struct Counters {
    reads: u64,
    writes: u64,
    syncs: u64,
    read_bytes: u64,
    written_bytes: u64,
}

type Turn<T> = oneshot::Sender<Result<T, Error>>;

enum Work {
    Read { offset: u64, length: usize, reply: Turn<Bytes> },
    Write { offset: u64, data: Vec<Bytes>, reply: Turn<()> },
}

impl Manager {
    /// Up to `depth` requests are in flight at each disk, up to `queue_length_max` wait.
    pub(crate) fn new(
        context: Context,
        disks: Vec<Rc<dyn Disk>>,
        depth: usize,
        queue_length_max: usize,
    ) -> Rc<Self> {
        let lanes = disks.into_iter().map(Lane::new).collect();
        Rc::new(Self { context, lanes, next: Cell::new(0), depth, queue_length_max })
    }

    /// How many disks there are.
    pub(crate) fn disks(&self) -> usize {
        self.lanes.len()
    }

    /// Reads from a disk, in turn.
    pub(crate) async fn read(
        self: &Rc<Self>,
        disk: usize,
        offset: u64,
        length: usize,
    ) -> Result<Bytes, Error> {
        let (reply, answer) = oneshot::channel();
        self.enqueue(disk, Work::Read { offset, length, reply })?;
        answered(answer).await
    }

    /// Writes to a disk, in turn.
    pub(crate) async fn write(
        self: &Rc<Self>,
        disk: usize,
        offset: u64,
        data: Vec<Bytes>,
    ) -> Result<(), Error> {
        let (reply, answer) = oneshot::channel();
        self.enqueue(disk, Work::Write { offset, data, reply })?;
        answered(answer).await
    }

    /// Makes every write to a disk that was answered before durable. Those who ask while a flush
    /// runs share the next one: the running one need not cover what they wait for.
    pub(crate) async fn sync(self: &Rc<Self>, disk: usize) -> Result<(), Error> {
        let lane = &self.lanes[disk];
        lane.check(disk)?;
        if lane.flushed_writes.get() == Some(lane.counters.borrow().writes) {
            return Ok(());
        }
        if lane.flush_waiting.borrow().len() >= self.queue_length_max {
            return Err(Undelivered::Busy.into());
        }
        let (reply, answer) = oneshot::channel();
        lane.flush_waiting.borrow_mut().push(reply);
        if !lane.flushing.get() {
            self.start_flush(disk);
        }
        answered(answer).await
    }

    /// What a disk is and has done; it has `stripes` stripes.
    pub(crate) fn status(&self, disk: usize, stripes: u64) -> DiskStatus {
        let lane = &self.lanes[disk];
        let counters = lane.counters.borrow();
        DiskStatus {
            stripes,
            queued: lane.queue.borrow().len() as u32,
            healthy: !lane.failed.get(),
            reads: counters.reads,
            writes: counters.writes,
            syncs: counters.syncs,
            read_bytes: counters.read_bytes,
            written_bytes: counters.written_bytes,
        }
    }

    fn enqueue(self: &Rc<Self>, disk: usize, work: Work) -> Result<(), Error> {
        let lane = &self.lanes[disk];
        lane.check(disk)?;
        if lane.queue.borrow().len() >= self.queue_length_max {
            return Err(Undelivered::Busy.into());
        }
        lane.queue.borrow_mut().push_back(work);
        self.pass();
        Ok(())
    }

    /// Goes round the disks, one request of each at a time, until none may start another.
    fn pass(self: &Rc<Self>) {
        let mut refused = 0;
        while refused < self.lanes.len() {
            let disk = self.next.get();
            self.next.set((disk + 1) % self.lanes.len());
            refused = if self.start_one(disk) { 0 } else { refused + 1 };
        }
    }

    /// Starts the request at the head of a disk's queue, if the disk may start one. It runs as
    /// a task of its own, so that a caller who does not poll holds up nobody else.
    fn start_one(self: &Rc<Self>, disk: usize) -> bool {
        let lane = &self.lanes[disk];
        if lane.in_flight.get() >= self.depth {
            return false;
        }
        let Some(work) = lane.queue.borrow_mut().pop_front() else { return false };
        lane.in_flight.set(lane.in_flight.get() + 1);
        let manager = self.clone();
        match work {
            Work::Read { offset, length, reply } => {
                let running = lane.disk.read(offset, length);
                self.context.task(async move {
                    let read = running.await;
                    let answer = manager.lanes[disk].after_read(disk, offset, length, read);
                    manager.finish(disk, reply, answer);
                });
            }
            Work::Write { offset, data, reply } => {
                let length = data.iter().map(Bytes::len).sum();
                let running = lane.disk.write(offset, data);
                self.context.task(async move {
                    let written = running.await;
                    let answer = manager.lanes[disk].after_write(disk, length, written);
                    manager.finish(disk, reply, answer);
                });
            }
        }
        true
    }

    fn finish<T>(self: &Rc<Self>, disk: usize, reply: Turn<T>, answer: Result<T, Error>) {
        let lane = &self.lanes[disk];
        lane.in_flight.set(lane.in_flight.get() - 1);
        // The asker may have gone.
        let _ = reply.send(answer);
        self.pass();
    }

    fn start_flush(self: &Rc<Self>, disk: usize) {
        let lane = &self.lanes[disk];
        lane.flushing.set(true);
        let served = lane.flush_waiting.take();
        let covered = lane.counters.borrow().writes;
        let running = lane.disk.sync();
        let manager = self.clone();
        self.context.task(async move {
            let answer = manager.lanes[disk].after_flush(disk, covered, running.await);
            for reply in served {
                let _ = reply.send(answer);
            }
            if !manager.lanes[disk].flush_waiting.borrow().is_empty() {
                manager.start_flush(disk);
            }
        });
    }
}

impl Lane {
    fn new(disk: Rc<dyn Disk>) -> Self {
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

    fn check(&self, disk: usize) -> Result<(), Error> {
        if self.failed.get() { Err(failed(disk)) } else { Ok(()) }
    }

    /// A read that fails says nothing about the rest of the disk.
    fn after_read(
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

    fn after_write(
        &self,
        disk: usize,
        length: usize,
        written: io::Result<()>,
    ) -> Result<(), Error> {
        if let Err(why) = written {
            return Err(self.fail(disk, &why));
        }
        let mut counters = self.counters.borrow_mut();
        counters.writes += 1;
        counters.written_bytes += length as u64;
        Ok(())
    }

    fn after_flush(&self, disk: usize, covered: u64, flushed: io::Result<()>) -> Result<(), Error> {
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

    /// The disk has lost something, perhaps of what was answered already: nobody may rely on it any
    /// more, and asking again would only hide that.
    fn fail(&self, disk: usize, why: &io::Error) -> Error {
        if !self.failed.replace(true) {
            tracing::error!(disk, %why, "the disk has failed and is not used any more");
        }
        for work in self.queue.take() {
            match work {
                Work::Read { reply, .. } => drop(reply.send(Err(failed(disk)))),
                Work::Write { reply, .. } => drop(reply.send(Err(failed(disk)))),
            }
        }
        for reply in self.flush_waiting.take() {
            let _ = reply.send(Err(failed(disk)));
        }
        failed(disk)
    }
}

fn failed(disk: usize) -> Error {
    Error::DiskFailed { disk: disk as u32 }
}

/// The machine is going down if nobody answers.
async fn answered<T>(answer: oneshot::Receiver<Result<T, Error>>) -> Result<T, Error> {
    answer.await.unwrap_or_else(|_| Err(Undelivered::Lost.into()))
}
