//! The io_uring of one thread of the machine: requests go to the kernel many at a time, and it
//! tells the thread's own reactor when some are done. No other thread takes part.
//!
//! # Memory
//!
//! The kernel reads and writes buffers until it says that it is done, even if the caller has lost
//! interest meanwhile. So the ring owns what a request needs, in [`RingOperation`], from the call
//! to the completion; a future that waits for it only holds the other end of a channel. An
//! operation that never completes is never freed: each holds its file, the file holds the ring, and
//! the ring holds the operations.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use io_uring::{IoUring, opcode, squeue, types};
use rustix::event::{EventfdFlags, eventfd};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;

use super::writes::WritePermit;
use crate::buffer::{ALIGNMENT, Buffer};
use crate::embedded::shared;

/// Requests that go to the kernel in one system call, at most.
const ENTRIES: u32 = 256;
/// Requests that the kernel works on, at most: their completions have room in the ring.
const IN_FLIGHT_MAX: usize = 2 * ENTRIES as usize;
/// Files that the kernel knows by number; further ones work, a little slower.
const FILES_MAX: u32 = 64;
/// Pieces of memory in one write, at most (the kernel's limit).
pub(super) const PIECES_MAX: usize = 1024;
/// How long a thread that ends waits for its disks, before it leaves their buffers to them for
/// good.
const CLOSE_SECONDS: u32 = 60;

/// The ring of one thread.
pub(crate) struct Ring {
    io: RefCell<IoUring>,
    /// Signalled by the kernel when there are completions.
    event: AsyncFd<OwnedFd>,
    operations: RefCell<RingOperations>,
    /// Wakes the task that hands requests to the kernel.
    driver: RefCell<Option<Waker>>,
    free_slots: RefCell<Vec<u32>>,
    closed: Cell<bool>,
    refused: Cell<bool>,
}

#[derive(Default)]
struct RingOperations {
    /// By the number that the kernel gives back.
    table: Vec<Option<Box<RingOperation>>>,
    free: Vec<usize>,
    /// Not yet given to the kernel, in order.
    ready: VecDeque<usize>,
    in_flight: usize,
}

/// A file that is read and written by a ring.
pub(super) struct RingFile {
    ring: Rc<Ring>,
    file: File,
    slot: Option<u32>,
    /// The lock is given up with the file.
    owns_lock: Cell<bool>,
}

/// One request, with all that the kernel touches while it works on it.
struct RingOperation {
    file: Rc<RingFile>,
    offset: u64,
    /// Bytes transferred so far.
    done: usize,
    work: RingWork,
}

type IoSender<T> = oneshot::Sender<io::Result<T>>;
pub(super) type IoReceiver<T> = oneshot::Receiver<io::Result<T>>;

enum RingWork {
    Read {
        buffers: Vec<Buffer>,
        vectors: Vec<libc::iovec>,
        reply: IoSender<(Vec<Buffer>, usize)>,
    },
    Write {
        data: Vec<Bytes>,
        vectors: Vec<libc::iovec>,
        reply: IoSender<()>,
        _entered: WritePermit,
    },
    Sync {
        reply: IoSender<()>,
    },
    /// No caller waits for it.
    Allocate {
        length: u64,
    },
}

/// What becomes of an operation when the kernel has answered.
enum OperationStep {
    /// It did a part: ask for the rest.
    Again(Box<RingOperation>),
    Done,
}

impl Ring {
    /// The ring of the current thread. Errors: the kernel has no io_uring, or forbids it.
    pub(crate) fn new() -> io::Result<Rc<Self>> {
        let io = new_io_uring()?;
        let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        io.submitter().register_eventfd(event.as_raw_fd())?;
        // SAFETY: the `OwnedFd` names the same open file until the `AsyncFd` drops it.
        #[allow(unsafe_code, reason = "the reactor keeps the descriptor by its number")]
        let event = unsafe { AsyncFd::register_with_interest(event, Interest::READABLE) }?;
        // Older kernels cannot: then each request names its file by descriptor.
        let slots = io.submitter().register_files_sparse(FILES_MAX).map_or(0, |()| FILES_MAX);
        let ring = Rc::new(Self {
            io: RefCell::new(io),
            event,
            operations: RefCell::default(),
            driver: RefCell::default(),
            free_slots: RefCell::new((0..slots).rev().collect()),
            closed: Cell::new(false),
            refused: Cell::new(false),
        });
        let driven = Rc::downgrade(&ring);
        shared::spawn(std::future::poll_fn(move |cx| drive(&driven, cx)));
        Ok(ring)
    }

    /// Makes `file` known to the kernel.
    pub(super) fn adopt(self: &Rc<Self>, file: File) -> Rc<RingFile> {
        let slot = self.free_slots.borrow_mut().pop().filter(|&slot| {
            let io = self.io.borrow();
            io.submitter().register_files_update(slot, &[file.as_raw_fd()]).is_ok()
        });
        Rc::new(RingFile { ring: self.clone(), file, slot, owns_lock: Cell::new(false) })
    }

    /// Refuses further requests and waits for those that the kernel works on.
    pub(crate) fn close(&self) {
        self.closed.set(true);
        // The kernel has not seen them, so they may go.
        let unseen = std::mem::take(&mut self.operations.borrow_mut().ready);
        for index in unseen {
            let operation = self.operations.borrow_mut().remove(index);
            drop(operation);
        }
        let second = types::Timespec::new().sec(1);
        let wait = types::SubmitArgs::new().timespec(&second);
        for _ in 0..CLOSE_SECONDS {
            if self.operations.borrow().in_flight == 0 {
                return;
            }
            // Out of time or interrupted: looks again.
            let _ = self.io.borrow().submitter().submit_with_args(1, &wait);
            self.reap();
        }
        tracing::error!("a disk does not answer: the memory that it may still use is not freed");
    }

    fn begin(&self, operation: RingOperation) {
        if self.closed.get() {
            // The caller gets the error that the machine is going down.
            return;
        }
        let mut operations = self.operations.borrow_mut();
        let index = operations.insert(Box::new(operation));
        operations.ready.push_back(index);
        drop(operations);
        if let Some(driver) = &*self.driver.borrow() {
            driver.wake_by_ref();
        }
    }

    /// Gives the kernel what is ready, hears what is done, and again until there is neither.
    fn turn(&self) {
        loop {
            let pushed = self.push_ready();
            if pushed || self.has_kernel_work() {
                self.enter();
            }
            let reaped = self.reap();
            if !reaped && (!pushed || self.refused.get()) {
                return;
            }
        }
    }

    /// Puts requests into the submission queue; true if there is something to submit.
    fn push_ready(&self) -> bool {
        let mut io = self.io.borrow_mut();
        let mut queue = io.submission();
        let mut operations = self.operations.borrow_mut();
        while operations.in_flight < IN_FLIGHT_MAX && !queue.is_full() {
            let Some(index) = operations.ready.pop_front() else { break };
            let Some(operation) = operations.table[index].as_mut() else { continue };
            let entry = operation.entry().user_data(index as u64);
            // SAFETY: the entry points into the buffers and the vector of `operation`, which is
            // boxed, so it does not move, and leaves the table only in `reap`, once the kernel has
            // answered, or in `close` before the kernel has seen it. The table outlives it too (see
            // the head of this file). Nothing touches the buffer of a read in between.
            #[allow(unsafe_code, reason = "the kernel works on memory that the table keeps")]
            let pushed = unsafe { queue.push(&entry) };
            debug_assert!(pushed.is_ok(), "the queue was not full");
            operations.in_flight += 1;
        }
        !queue.is_empty()
    }

    /// The kernel has completions that it hands over only when asked.
    fn has_kernel_work(&self) -> bool {
        let mut io = self.io.borrow_mut();
        let queue = io.submission();
        queue.taskrun() || queue.cq_overflow()
    }

    fn enter(&self) {
        match self.io.borrow().submit() {
            Ok(_) => self.refused.set(false),
            Err(why) => {
                // What is in the queue stays there, and goes with the next turn.
                if !self.refused.replace(true) {
                    tracing::warn!(%why, "the kernel takes no disk requests now, they wait");
                }
                if let Some(driver) = &*self.driver.borrow() {
                    driver.wake_by_ref();
                }
            }
        }
    }

    /// Tells those who wait what the kernel has done; false if it was nothing.
    fn reap(&self) -> bool {
        let mut reaped = false;
        loop {
            let completion = self.io.borrow_mut().completion().next();
            let Some(completion) = completion else { return reaped };
            reaped = true;
            let index = completion.user_data() as usize;
            let mut operations = self.operations.borrow_mut();
            operations.in_flight -= 1;
            let Some(operation) = operations.remove(index) else { continue };
            drop(operations);
            if let OperationStep::Again(operation) = operation.complete(completion.result()) {
                self.begin(*operation);
            }
        }
    }

    fn poll(&self, cx: &mut Context<'_>) {
        loop {
            self.turn();
            match self.event.poll_read_ready(cx) {
                // The reactor tells each further signal, so the counter need not be read.
                Poll::Ready(Ok(mut signalled)) => signalled.clear_ready(),
                Poll::Ready(Err(_)) | Poll::Pending => return,
            }
        }
    }
}

/// The task of the ring. It ends with the ring.
fn drive(ring: &Weak<Ring>, cx: &mut Context<'_>) -> Poll<()> {
    let Some(ring) = ring.upgrade() else { return Poll::Ready(()) };
    let mut driver = ring.driver.borrow_mut();
    if !driver.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
        *driver = Some(cx.waker().clone());
    }
    drop(driver);
    ring.poll(cx);
    Poll::Pending
}

/// Completions are handed over when this thread asks for them, so that the kernel does not
/// interrupt it; kernels before 6.1 do not know that.
fn new_io_uring() -> io::Result<IoUring> {
    let preferred = IoUring::builder()
        .setup_cqsize(IN_FLIGHT_MAX as u32)
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_taskrun_flag()
        .build(ENTRIES);
    match preferred {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            IoUring::builder().setup_cqsize(IN_FLIGHT_MAX as u32).build(ENTRIES)
        }
        other => other,
    }
}

impl RingOperations {
    fn insert(&mut self, operation: Box<RingOperation>) -> usize {
        let index = self.free.pop().unwrap_or_else(|| {
            self.table.push(None);
            self.table.len() - 1
        });
        self.table[index] = Some(operation);
        index
    }

    fn remove(&mut self, index: usize) -> Option<Box<RingOperation>> {
        let operation = self.table.get_mut(index)?.take()?;
        self.free.push(index);
        Some(operation)
    }
}

impl RingFile {
    /// Reads to the end of `buffers`, at most [`PIECES_MAX`], one after the other, or of the file;
    /// returns the bytes that were there.
    pub(super) fn read(
        self: &Rc<Self>,
        offset: u64,
        buffers: Vec<Buffer>,
    ) -> IoReceiver<(Vec<Buffer>, usize)> {
        let (reply, answer) = oneshot::channel();
        let vectors = Vec::with_capacity(buffers.len());
        self.begin(offset, RingWork::Read { buffers, vectors, reply });
        answer
    }

    /// Writes all of `data`, at most [`PIECES_MAX`] pieces of it.
    pub(super) fn write(
        self: &Rc<Self>,
        offset: u64,
        data: Vec<Bytes>,
        entered: WritePermit,
    ) -> IoReceiver<()> {
        let (reply, answer) = oneshot::channel();
        let vectors = Vec::with_capacity(data.len());
        self.begin(offset, RingWork::Write { data, vectors, reply, _entered: entered });
        answer
    }

    /// Makes what was written durable.
    pub(super) fn sync(self: &Rc<Self>) -> IoReceiver<()> {
        let (reply, answer) = oneshot::channel();
        self.begin(0, RingWork::Sync { reply });
        answer
    }

    /// Has the host find room for `length` bytes from `offset` on. They stay as they are. A failure
    /// is not reported, since writes allocate by themselves.
    pub(super) fn allocate(self: &Rc<Self>, offset: u64, length: u64) {
        self.begin(offset, RingWork::Allocate { length });
    }

    /// The file itself, to set its flags.
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// From now on the lock of the file is given up when the last request is done.
    pub(super) fn own_lock(&self) {
        self.owns_lock.set(true);
    }

    fn begin(self: &Rc<Self>, offset: u64, work: RingWork) {
        self.ring.begin(RingOperation { file: self.clone(), offset, done: 0, work });
    }
}

impl Drop for RingFile {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            let io = self.ring.io.borrow();
            // If the kernel keeps the slot it is not used again.
            if io.submitter().register_files_update(slot, &[-1]).is_ok() {
                self.ring.free_slots.borrow_mut().push(slot);
            }
        }
        // The kernel may release the file, and so its lock, later than this.
        if self.owns_lock.get()
            && let Err(why) = self.file.unlock()
        {
            tracing::warn!(%why, "the lock of a disk could not be given up");
        }
    }
}

impl RingOperation {
    /// What the kernel is to do, or to go on with.
    fn entry(&mut self) -> squeue::Entry {
        let offset = self.offset + self.done as u64;
        let (fd, flags) = match self.file.slot {
            Some(slot) => (types::Fd(slot.cast_signed()), squeue::Flags::FIXED_FILE),
            None => (types::Fd(self.file.file.as_raw_fd()), squeue::Flags::empty()),
        };
        let entry = match &mut self.work {
            RingWork::Read { buffers, vectors, .. } => {
                let pieces = buffers.iter_mut().map(|buffer| (buffer.as_mut_ptr(), buffer.len()));
                set_vectors(vectors, pieces, self.done);
                match vectors.as_slice() {
                    [one] => opcode::Read::new(fd, one.iov_base.cast(), one.iov_len as u32)
                        .offset(offset)
                        .build(),
                    many => opcode::Readv::new(fd, many.as_ptr(), many.len() as u32)
                        .offset(offset)
                        .build(),
                }
            }
            RingWork::Write { data, vectors, .. } => {
                // The kernel only reads there.
                let pieces = data.iter().map(|piece| (piece.as_ptr().cast_mut(), piece.len()));
                set_vectors(vectors, pieces, self.done);
                match vectors.as_slice() {
                    [one] => opcode::Write::new(fd, one.iov_base.cast(), one.iov_len as u32)
                        .offset(offset)
                        .build(),
                    many => opcode::Writev::new(fd, many.as_ptr(), many.len() as u32)
                        .offset(offset)
                        .build(),
                }
            }
            RingWork::Sync { .. } => {
                opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build()
            }
            RingWork::Allocate { length } => {
                opcode::Fallocate::new(fd, *length).offset(offset).mode(0).build()
            }
        };
        entry.flags(flags)
    }

    /// The kernel is done with the memory; `result` is a count of bytes or a negative error number.
    fn complete(mut self: Box<Self>, result: i32) -> OperationStep {
        let interrupted = result == -libc::EINTR && !matches!(self.work, RingWork::Sync { .. });
        if interrupted {
            return OperationStep::Again(self);
        }
        let Ok(moved) = usize::try_from(result) else {
            self.fail(io::Error::from_raw_os_error(-result));
            return OperationStep::Done;
        };
        self.done += moved;
        let wanted = match &self.work {
            RingWork::Read { buffers, .. } => buffers.iter().map(|buffer| buffer.len()).sum(),
            RingWork::Write { data, .. } => data.iter().map(Bytes::len).sum(),
            RingWork::Sync { .. } | RingWork::Allocate { .. } => 0,
        };
        // A part of a block is all there is: the end of the file.
        let at_end = moved == 0 || !self.done.is_multiple_of(ALIGNMENT);
        if self.done < wanted && !at_end {
            return OperationStep::Again(self);
        }
        self.finish(wanted);
        OperationStep::Done
    }

    /// The caller may be gone.
    fn finish(self, wanted: usize) {
        match self.work {
            RingWork::Read { buffers, reply, .. } => drop(reply.send(Ok((buffers, self.done)))),
            RingWork::Write { reply, .. } if self.done < wanted => {
                drop(reply.send(Err(io::ErrorKind::WriteZero.into())));
            }
            RingWork::Write { reply, .. } | RingWork::Sync { reply } => drop(reply.send(Ok(()))),
            RingWork::Allocate { .. } => {}
        }
    }

    fn fail(self, why: io::Error) {
        match self.work {
            RingWork::Read { reply, .. } => drop(reply.send(Err(why))),
            RingWork::Write { reply, .. } | RingWork::Sync { reply } => drop(reply.send(Err(why))),
            RingWork::Allocate { .. } => {}
        }
    }
}

/// Where the bytes of `pieces`, each a place and a length, are after the first `done`.
fn set_vectors(
    vectors: &mut Vec<libc::iovec>,
    pieces: impl Iterator<Item = (*mut u8, usize)>,
    mut done: usize,
) {
    vectors.clear();
    for (place, length) in pieces {
        let skipped = done.min(length);
        done -= skipped;
        if skipped < length {
            let iov_base = place.wrapping_add(skipped).cast();
            vectors.push(libc::iovec { iov_base, iov_len: length - skipped });
        }
    }
}
