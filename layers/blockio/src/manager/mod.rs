//! The I/O manager (thesis section 2.3.2): a queue per disk, and a pass that goes round the disks
//! which may start a transfer, so that all of them are busy and none is favoured.
//!
//! | file | holds |
//! | --- | --- |
//! | `queue.rs` | the order in which requests of one disk start, and which go together |
//! | `lane.rs` | one disk: what it has done, and whether it can be trusted |
//! | `latency.rs` | how long requests take |
//! | `obstacle.rs` | a host file system that is full or read-only |
//!
//! Flushes go beside the queue: everything that one covers has been answered before it is asked
//! for.

mod lane;
mod latency;
mod obstacle;
mod queue;
mod served_disk;

use std::cell::{Cell, OnceCell};
use std::io;
use std::rc::Rc;

use bytes::Bytes;
use futures::channel::oneshot;
use runtime::Context;
use runtime::disk::{Disk, GOING_DOWN};
use runtime::protocol::Undelivered;

use self::lane::{Flush, Lane};
use self::obstacle::{SETTLED_AFTER, obstacle_of};
use self::queue::{QueuedRequest, Read, Transfer, Write};
use crate::geometry::DISKS_PER_NODE_MAX;
use crate::protocol::{DiskStatus, Error};
use crate::stripes::BootId;

/// The disks of one node.
pub(crate) struct Manager {
    context: Context,
    /// Another one after a flush that failed: what was answered before may be gone.
    boot_id: Cell<BootId>,
    disk_node: u32,
    /// By the number of the disk. Disks come, and one that goes keeps its lane.
    lanes: Vec<OnceCell<Lane>>,
    /// One more than the highest number of a disk.
    count: Cell<usize>,
    /// The disk with which the next pass begins.
    next: Cell<usize>,
    /// A pass will begin in this turn of the node.
    pass_is_due: Cell<bool>,
    depth: usize,
    queue_length_max: usize,
}

type Turn<T> = oneshot::Sender<Result<T, Error>>;

impl Manager {
    /// Up to `depth` transfers are in flight at each disk, up to `queue_length_max` requests wait.
    pub(crate) fn new(
        context: Context,
        (disk_node, boot_id): (u32, BootId),
        disks: Vec<(u32, Rc<dyn Disk>)>,
        depth: usize,
        queue_length_max: usize,
    ) -> Rc<Self> {
        let (next, pass_is_due) = (Cell::new(0), Cell::new(false));
        let (boot_id, count) = (Cell::new(boot_id), Cell::new(0));
        let lanes = (0..DISKS_PER_NODE_MAX).map(|_| OnceCell::new()).collect();
        let manager = Self {
            context,
            boot_id,
            disk_node,
            lanes,
            count,
            next,
            pass_is_due,
            depth,
            queue_length_max,
        };
        for (number, disk) in disks {
            manager.add(number, disk);
        }
        Rc::new(manager)
    }

    /// One disk more.
    pub(crate) fn add(&self, number: u32, disk: Rc<dyn Disk>) {
        let Some(lane) = self.lanes.get(number as usize) else { return };
        lane.get_or_init(|| Lane::new(disk, self.disk_node));
        self.count.set(self.count.get().max(number as usize + 1));
    }

    /// Gives a disk up: it can be removed from the host.
    pub(crate) fn close(&self, number: u32) {
        if let Ok(lane) = self.lane(number as usize) {
            lane.close();
        }
    }

    /// The disks that are served, in order.
    pub(crate) fn disks(&self) -> Vec<u32> {
        let lanes = (0..).zip(&self.lanes[..self.count.get()]);
        let open = lanes.filter(|(_, lane)| lane.get().is_some_and(|lane| !lane.is_closed()));
        open.map(|(number, _)| number).collect()
    }

    /// A disk that is served.
    pub(crate) fn disk(&self, number: u32) -> Option<Rc<dyn Disk>> {
        let lane = self.lanes.get(number as usize)?.get()?;
        (!lane.is_closed()).then(|| lane.disk())
    }

    /// Has the disk not failed?
    pub(crate) fn is_healthy(&self, number: u32) -> bool {
        let disk = number as usize;
        self.lane(disk).is_ok_and(|lane| lane.check(disk).is_ok())
    }

    /// A write past the queue has failed: if that is due to the disk, and not to the host, the disk
    /// has failed.
    fn note_failure(&self, number: u32, why: &io::Error) {
        let is_of_host = obstacle_of(why).is_some()
            || matches!(why.kind(), io::ErrorKind::OutOfMemory | GOING_DOWN);
        if !is_of_host && let Ok(lane) = self.lane(number as usize) {
            lane.fail(number as usize, why);
        }
    }

    fn lane(&self, disk: usize) -> Result<&Lane, Error> {
        let lane = self.lanes.get(disk).and_then(OnceCell::get);
        lane.ok_or(Error::DiskFailed { disk: disk as u32 })
    }

    /// The boot ID of what is answered now.
    pub(crate) fn boot_id(&self) -> BootId {
        self.boot_id.get()
    }

    /// Reads from a disk, in turn.
    pub(crate) async fn read(
        self: &Rc<Self>,
        disk: usize,
        offset: u64,
        length: usize,
    ) -> Result<Bytes, Error> {
        let lane = self.admit(disk)?;
        let (reply, answer) = oneshot::channel();
        let came = self.context.now();
        lane.queue.borrow_mut().push_read(QueuedRequest {
            offset,
            length,
            came,
            work: Read { reply },
        });
        self.pass_soon();
        answered(answer).await
    }

    /// Writes to a disk, in turn; returns the boot ID under which a sync must be answered for it.
    pub(crate) async fn write(
        self: &Rc<Self>,
        disk: usize,
        offset: u64,
        data: Vec<Bytes>,
    ) -> Result<BootId, Error> {
        let (came, length) = (self.context.now(), data.iter().map(Bytes::len).sum());
        self.lane(disk)?.check_write(disk, &(offset..offset + length as u64), came)?;
        let lane = self.admit(disk)?;
        let (reply, answer) = oneshot::channel();
        let work = Write { data, reply };
        lane.queue.borrow_mut().push_write(QueuedRequest { offset, length, came, work });
        self.pass_soon();
        answered(answer).await
    }

    /// Makes every write to a disk that was answered before durable. Those who ask while a flush
    /// runs share the next one: the running one need not cover what they wait for.
    pub(crate) async fn sync(self: &Rc<Self>, disk: usize) -> Result<(), Error> {
        let lane = self.lane(disk)?;
        lane.check(disk)?;
        if lane.is_flushed() { Ok(()) } else { self.flush(disk).await }
    }

    /// As [`sync`](Self::sync), also of what was written past this manager.
    async fn flush(self: &Rc<Self>, disk: usize) -> Result<(), Error> {
        let lane = self.lane(disk)?;
        lane.check_room(lane.flush_waiting.borrow().len(), self.queue_length_max)?;
        let (reply, answer) = oneshot::channel();
        let came = self.context.now();
        lane.flush_waiting.borrow_mut().push(Flush { came, reply });
        if !lane.flushing.get() {
            self.start_flush(disk);
        }
        answered(answer).await
    }

    /// What a disk that is served is and has done; it has `stripes` stripes.
    pub(crate) fn status(&self, disk: u32, stripes: u64) -> Option<DiskStatus> {
        Some(self.lane(disk as usize).ok()?.status(disk, stripes))
    }

    /// The lane of a disk that takes another request.
    fn admit(&self, disk: usize) -> Result<&Lane, Error> {
        let lane = self.lane(disk)?;
        // What the disk may start at once does not wait.
        let free = self.depth.saturating_sub(lane.in_flight.get());
        lane.check_room(lane.queue.borrow().len(), self.queue_length_max + free)?;
        Ok(lane)
    }

    /// Begins a pass when all that was asked in this turn has come: neighbours then find each
    /// other.
    fn pass_soon(self: &Rc<Self>) {
        if !self.pass_is_due.replace(true) {
            let manager = self.clone();
            self.context.task(async move {
                manager.pass_is_due.set(false);
                manager.pass();
            });
        }
    }

    /// Goes round the disks, one transfer of each at a time, until none may start another.
    fn pass(self: &Rc<Self>) {
        let mut refused = 0;
        let count = self.count.get();
        while refused < count {
            let disk = self.next.get();
            self.next.set((disk + 1) % count);
            refused = if self.start_one(disk) { 0 } else { refused + 1 };
        }
    }

    /// Starts the next transfer of a disk, if the disk may start one. It runs as a task of its
    /// own, so that a caller that does not poll does not delay others.
    fn start_one(self: &Rc<Self>, disk: usize) -> bool {
        let Ok(lane) = self.lane(disk) else { return false };
        if lane.in_flight.get() >= self.depth {
            return false;
        }
        let Some(transfer) = lane.queue.borrow_mut().pop() else { return false };
        lane.in_flight.set(lane.in_flight.get() + 1);
        match transfer {
            Transfer::Read(run) => self.start_read(disk, run),
            Transfer::Write(run) => self.start_write(disk, run),
        }
        true
    }

    fn start_read(self: &Rc<Self>, disk: usize, run: Vec<QueuedRequest<Read>>) {
        let lengths = run.iter().map(|read| read.length).collect();
        let Ok(lane) = self.lane(disk) else { return };
        let running = lane.disk().read_pieces(run[0].offset, lengths);
        let manager = self.clone();
        self.context.task(async move {
            match running.await {
                // Perhaps only one of them meets a bad sector, or buffers are short.
                Err(_) if run.len() > 1 => manager.read_each(disk, run).await,
                read => manager.answer_reads(disk, run, read),
            }
            manager.end(disk);
        });
    }

    fn answer_reads(
        &self,
        disk: usize,
        run: Vec<QueuedRequest<Read>>,
        read: io::Result<Vec<Bytes>>,
    ) {
        let Ok(lane) = self.lane(disk) else { return };
        lane.counters.borrow_mut().merged += run.len() as u64 - 1;
        let mut read = read.map(Vec::into_iter);
        for QueuedRequest { offset, length, came, work } in run {
            let part = match &mut read {
                Ok(pieces) => Ok(pieces.next().unwrap_or_default()),
                Err(why) => Err(why.kind().into()),
            };
            let answer = lane.after_read(disk, offset, length, part);
            let took = self.context.now().saturating_sub(came);
            lane.counters.borrow_mut().read_latency.add(took);
            // The asker may have gone.
            let _ = work.reply.send(answer);
        }
    }

    async fn read_each(&self, disk: usize, run: Vec<QueuedRequest<Read>>) {
        for read in run {
            let Ok(lane) = self.lane(disk) else { return };
            let alone = lane.disk().read(read.offset, read.length).await;
            self.answer_reads(disk, vec![read], alone.map(|piece| vec![piece]));
        }
    }

    fn start_write(self: &Rc<Self>, disk: usize, run: Vec<QueuedRequest<Write>>) {
        let Ok(lane) = self.lane(disk) else { return };
        let data = run.iter().flat_map(|write| write.work.data.iter().cloned()).collect();
        // A flush that fails meanwhile may have been about this write.
        let boot_id = self.boot_id();
        let running = lane.disk().write(run[0].offset, data);
        let manager = self.clone();
        self.context.task(async move {
            match running.await {
                // Perhaps only one of them needs more space.
                Err(why) if run.len() > 1 && obstacle_of(&why).is_some() => {
                    manager.write_each(disk, run).await;
                }
                written => manager.answer_writes(disk, run, boot_id, written),
            }
            manager.end(disk);
        });
    }

    fn answer_writes(
        self: &Rc<Self>,
        disk: usize,
        run: Vec<QueuedRequest<Write>>,
        boot_id: BootId,
        written: io::Result<()>,
    ) {
        let Ok(lane) = self.lane(disk) else { return };
        let (start, length) =
            (run[0].offset, run.iter().map(|write| write.length as u64).sum::<u64>());
        let place = (run.len(), start..start + length);
        let (answer, has_ended) = lane.after_write(disk, place, &self.context, written);
        if has_ended {
            self.log_end_later(disk);
        }
        lane.counters.borrow_mut().merged += run.len() as u64 - 1;
        for QueuedRequest { came, work, .. } in run {
            let took = self.context.now().saturating_sub(came);
            lane.counters.borrow_mut().write_latency.add(took);
            // The asker may have gone.
            let _ = work.reply.send(answer.map(|()| boot_id));
        }
    }

    async fn write_each(self: &Rc<Self>, disk: usize, run: Vec<QueuedRequest<Write>>) {
        for write in run {
            let boot_id = self.boot_id();
            let Ok(lane) = self.lane(disk) else { return };
            let alone = lane.disk().write(write.offset, write.work.data.clone()).await;
            self.answer_writes(disk, vec![write], boot_id, alone);
        }
    }

    /// The disk takes writes again. The log says so once it has done it for a while.
    fn log_end_later(self: &Rc<Self>, disk: usize) {
        let manager = self.clone();
        let Ok(lane) = self.lane(disk) else { return };
        let ended = lane.obstructions_ended.get();
        self.context.task(async move {
            manager.context.sleep(SETTLED_AFTER).await;
            let Ok(lane) = manager.lane(disk) else { return };
            if !lane.is_obstructed() && lane.obstructions_ended.get() == ended {
                lane.log_end();
            }
        });
    }

    /// A transfer has ended.
    fn end(self: &Rc<Self>, disk: usize) {
        let Ok(lane) = self.lane(disk) else { return };
        lane.in_flight.set(lane.in_flight.get() - 1);
        self.pass();
    }

    fn start_flush(self: &Rc<Self>, disk: usize) {
        let Ok(lane) = self.lane(disk) else { return };
        lane.flushing.set(true);
        let served = lane.flush_waiting.take();
        let covered = lane.counters.borrow().writes;
        let running = lane.disk().sync();
        let manager = self.clone();
        self.context.task(async move {
            let Ok(lane) = manager.lane(disk) else { return };
            let flushed = running.await;
            if flushed.is_err() {
                // What was answered before may be gone, and no later flush would say so.
                manager.boot_id.set(manager.context.random());
            }
            let (answer, has_ended) = lane.after_flush(disk, covered, &manager.context, flushed);
            if has_ended {
                manager.log_end_later(disk);
            }
            for Flush { came, reply } in served {
                let took = manager.context.now().saturating_sub(came);
                lane.counters.borrow_mut().sync_latency.add(took);
                let _ = reply.send(answer);
            }
            if !lane.flush_waiting.borrow().is_empty() {
                manager.start_flush(disk);
            }
        });
    }
}

/// Without an answer the machine is going down.
async fn answered<T>(answer: oneshot::Receiver<Result<T, Error>>) -> Result<T, Error> {
    answer.await.unwrap_or_else(|_| Err(Undelivered::Lost.into()))
}
