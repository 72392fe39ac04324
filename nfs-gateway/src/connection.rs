//! One stream: records in, replies out in the order in which they are ready.
//!
//! A call that can be answered from memory is answered where its record was found: no task, no
//! wake-up. Any other gets a task of its own. The replies to all records of one read leave in one
//! write.
//!
//! The two halves of a stream know each other by three facts: `draining` (no more is read),
//! `closed` (nothing is sent any more) and the calls that are outstanding. A call is outstanding
//! from the moment its record is complete until its reply is sent; while too many are, the reading
//! half reads nothing, and the peer feels it. A third part watches for silence.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use futures::future::{Either, join3, select};
use runtime::Context;
use runtime::net::{Reader, Stream, Writer};
use runtime::sync::Event;
use tracing::Instrument as _;

use crate::config::Config;
use crate::dispatch::{self, Peer, Programs};
use crate::landing::Landing;
use crate::metrics::{Counted, Metrics, Outcome, Slow, SlowLog};
use crate::record::{Assembler, Record, Violation};
use crate::rpc::{self, Call, Refusal};
use crate::signal::Signal;
use crate::spares::Spares;
use crate::xdr::Body;

/// Replies that are sent by one write, at most.
const REPLIES_PER_WRITE: usize = 64;
/// Pieces of replies up to this length are joined with their neighbours: that costs less than a
/// piece more for the kernel.
const JOINED_BYTES_MAX: usize = 1 << 10;

/// What a gateway's connections have in common.
pub(crate) struct Common {
    /// The node.
    pub(crate) ctx: Context,
    /// The limits.
    pub(crate) config: Config,
    /// What is served.
    pub(crate) programs: Programs,
    /// What is counted.
    pub(crate) metrics: Rc<Metrics>,
    /// The lines about slow calls.
    pub(crate) slow: SlowLog,
    /// What streams are received into.
    pub(crate) spares: Rc<Spares>,
    /// The number of the next call; the first is drawn, so that those of two gateways differ.
    pub(crate) next_trace: Cell<u64>,
}

/// One connection.
pub(crate) struct Connection {
    extension: Rc<Common>,
    peer: Peer,
    /// No more calls are taken; those that are outstanding end.
    draining: Signal,
    /// Nothing can be sent any more.
    closed: Signal,
    /// There was a call.
    spoke: Cell<bool>,
    outstanding_calls: Cell<usize>,
    outstanding_bytes: Cell<usize>,
    /// A call is not outstanding any more.
    released: Event,
    replies: RefCell<VecDeque<Reply>>,
    /// The sending half, while it waits for replies.
    sender: Cell<Option<Waker>>,
    /// When bytes came last, or began to go.
    moved: Cell<Duration>,
    /// When the write began that is under way.
    sending_since: Cell<Option<Duration>>,
}

/// A call that was let in.
#[derive(Clone, Copy, Debug)]
struct Admitted {
    trace: u64,
    xid: u32,
    what: Counted,
    began: Duration,
    bytes_in: usize,
    /// What it counts for.
    weight_bytes: usize,
}

/// A reply on its way out.
struct Reply {
    parts: Vec<Bytes>,
    /// What its call counts for.
    weight_bytes: usize,
}

/// Why nothing more is read.
#[derive(Debug, thiserror::Error)]
enum End {
    #[error("the peer has closed its side")]
    Peer,
    #[error("the stream broke: {0}")]
    Broken(#[from] std::io::Error),
    #[error(transparent)]
    Violation(#[from] Violation),
    #[error("the connection is being closed")]
    Stopped,
}

impl Connection {
    /// The connection to `peer`.
    pub(crate) fn new(extension: Rc<Common>, peer: Peer) -> Rc<Self> {
        let moved = Cell::new(extension.ctx.now());
        Rc::new(Self {
            extension,
            peer,
            draining: Signal::default(),
            closed: Signal::default(),
            spoke: Cell::default(),
            outstanding_calls: Cell::new(0),
            outstanding_bytes: Cell::new(0),
            released: Event::default(),
            replies: RefCell::default(),
            sender: Cell::default(),
            moved,
            sending_since: Cell::default(),
        })
    }

    /// The host of the other side.
    pub(crate) fn host(&self) -> &str {
        &self.peer.host
    }

    /// Nobody has ever asked anything on it.
    pub(crate) fn is_mute(&self) -> bool {
        !self.spoke.get()
    }

    /// Calls that wait for their reply to be sent.
    pub(crate) fn outstanding_calls(&self) -> usize {
        self.outstanding_calls.get()
    }

    /// Bytes of them and of their replies, at most.
    pub(crate) fn outstanding_bytes(&self) -> usize {
        self.outstanding_bytes.get()
    }

    /// Takes no more calls; ends when those that run have been answered, or after a while.
    pub(crate) fn stop(&self) {
        self.draining.raise();
        self.released.tell();
    }

    /// Serves `stream` until it ends.
    pub(crate) async fn run(self: Rc<Self>, stream: Stream) {
        let Stream { reader, writer, peer } = stream;
        tracing::debug!(target: "mdfs::nfs", peer, "connected");
        // Reading first: what it answers at once, the sending half finds when it is polled next.
        join3(self.read_and_drain(reader), self.write(writer), self.watch()).await;
        tracing::debug!(target: "mdfs::nfs", peer, "disconnected");
    }

    async fn read_and_drain(self: &Rc<Self>, reader: Box<dyn Reader>) {
        let end = self.read(reader).await;
        match end {
            Ok(()) | Err(End::Peer | End::Stopped) => {}
            // Some clients reset the connection instead of closing it.
            Err(End::Broken(error)) => {
                tracing::debug!(target: "mdfs::nfs", host = self.host(), %error, "the stream broke");
            }
            Err(end) => tracing::warn!(target: "mdfs::nfs", host = self.host(), "{end}"),
        }
        self.draining.raise();
        let drained = pin!(self.drained());
        select(drained, self.extension.ctx.sleep(self.extension.config.drain)).await;
        self.close();
    }

    /// Ends it, whatever it is about to do.
    pub(crate) fn close(&self) {
        self.closed.raise();
        self.draining.raise();
        self.replies.take();
        self.released.tell();
        self.wake_sender();
    }

    fn wake_sender(&self) {
        if let Some(sender) = self.sender.take() {
            sender.wake();
        }
    }

    /// Closes the connection when nothing moves for too long. Silence is no reason as long as the
    /// peer waits for a reply.
    async fn watch(&self) {
        let idle = self.extension.config.idle;
        let mut closed = pin!(self.closed.wait());
        let mut pause = idle;
        loop {
            let sleep = self.extension.ctx.sleep(pause);
            if let Either::Right(_) = select(sleep, &mut closed).await {
                return;
            }
            let now = self.extension.ctx.now();
            let left = |since: Duration| (since + idle).saturating_sub(now);
            let is_waiting = self.outstanding_calls.get() > 0;
            pause = match self.sending_since.get().map(left) {
                Some(Duration::ZERO) => {
                    tracing::warn!(target: "mdfs::nfs", host = self.host(), "takes no replies");
                    return self.close();
                }
                Some(left) => left,
                None => match left(self.moved.get()) {
                    Duration::ZERO if is_waiting => idle,
                    Duration::ZERO => return self.close(),
                    left => left,
                },
            };
        }
    }

    /// Resolves once no call is outstanding.
    async fn drained(&self) {
        while self.outstanding_calls.get() > 0 && !self.closed.is_raised() {
            self.released.next().await;
        }
    }

    async fn read(self: &Rc<Self>, mut reader: Box<dyn Reader>) -> Result<(), End> {
        let config = &self.extension.config;
        let (bytes_max, fragments_max) = (config.record_bytes_max, config.fragments_max);
        let mut assembler = Assembler::new(bytes_max, fragments_max, self.extension.spares.clone());
        if reader.direct().is_some() {
            let (pool, stripe_bytes) = (self.extension.ctx.pool().clone(), config.stripe_bytes);
            assembler = assembler.landing_at(Landing { pool, stripe_bytes });
        }
        let mut stopped = pin!(self.draining.wait());
        // The place of a future that has ended is that of the next one: they are large.
        let mut spare = None;
        loop {
            while let Some(record) = assembler.next()? {
                let (call, admitted) = self.take(record).await?;
                let answering = self.clone().answer(call, admitted);
                let mut place = match spare.take() {
                    None => Box::pin(answering),
                    Some(place) => in_place(place, answering),
                };
                // What is in memory is answered now, and costs no task.
                if futures::poll!(place.as_mut()).is_ready() {
                    spare = Some(place);
                } else {
                    self.finish(place);
                }
            }
            let received = pin!(self.receive(&mut *reader, &mut assembler));
            match select(received, &mut stopped).await {
                Either::Left((received, _)) => received?,
                Either::Right(_) => return Err(End::Stopped),
            }
        }
    }

    /// Waits for bytes.
    async fn receive(&self, reader: &mut dyn Reader, assembler: &mut Assembler) -> Result<(), End> {
        let received = match reader.direct() {
            Some(direct) if let Some(mut rooms) = assembler.landing_room() => {
                let received = direct.read_into(&mut rooms).await?;
                assembler.land(received);
                received
            }
            _ => reader.read(assembler.room()).await?,
        };
        self.moved.set(self.extension.ctx.now());
        if received == 0 { Err(End::Peer) } else { Ok(()) }
    }

    /// Answers a call beside everything else.
    fn finish(self: &Rc<Self>, answering: impl Future<Output = ()> + 'static) {
        let connection = self.clone();
        self.extension.ctx.task(async move {
            answering.await;
            connection.wake_sender();
        });
    }

    /// Lets the call in `record` in, as soon as few enough others are outstanding.
    async fn take(&self, record: Record) -> Result<(Call, Admitted), End> {
        let bytes_in = record.length();
        let mut weight_bytes = bytes_in;
        let call = Call::parse(record)?;
        self.spoke.set(true);
        let mut what = Counted::Other;
        if let Ok(question) = &call.question {
            weight_bytes += dispatch::reply_bytes_max(question);
            what = Counted::of(question);
        }
        self.admit(weight_bytes).await?;
        let trace = self.extension.next_trace.get();
        self.extension.next_trace.set(trace.wrapping_add(1));
        let (xid, began) = (call.xid, self.moved.get());
        Ok((call, Admitted { trace, xid, what, began, bytes_in, weight_bytes }))
    }

    async fn admit(&self, weight_bytes: usize) -> Result<(), End> {
        let config = &self.extension.config;
        loop {
            if self.draining.is_raised() {
                return Err(End::Stopped);
            }
            let calls = self.outstanding_calls.get();
            let bytes = self.outstanding_bytes.get() + weight_bytes;
            let room =
                calls < config.outstanding_calls_max && bytes <= config.outstanding_bytes_max;
            if room || calls == 0 {
                self.outstanding_calls.set(calls + 1);
                self.outstanding_bytes.set(bytes);
                return Ok(());
            }
            self.released.next().await;
        }
    }

    fn release(&self, weight_bytes: usize) {
        self.release_all((1, weight_bytes));
    }

    fn release_all(&self, (calls, weight_bytes): (usize, usize)) {
        self.outstanding_calls.set(self.outstanding_calls.get() - calls);
        self.outstanding_bytes.set(self.outstanding_bytes.get() - weight_bytes);
        self.released.tell();
    }

    async fn answer(self: Rc<Self>, call: Call, admitted: Admitted) {
        let Admitted { trace, xid, weight_bytes, .. } = admitted;
        let answer = match call.question {
            Ok(question) => {
                let span = tracing::debug_span!(
                    target: "mdfs::nfs",
                    "call",
                    trace = format_args!("{trace:016x}"),
                    xid,
                    program = question.program,
                    procedure = question.procedure,
                );
                let answer = self.extension.programs.answer(&self.peer, xid, question);
                if span.is_disabled() { answer.await } else { answer.instrument(span).await }
            }
            Err(refusal) => Some(Err(refusal)),
        };
        let Some(answer) = answer else {
            tracing::warn!(target: "mdfs::nfs", host = self.host(), xid, "done or not: asks for it again");
            self.close();
            return self.release(weight_bytes);
        };
        if let Err(refusal) = &answer {
            tracing::debug!(target: "mdfs::nfs", host = self.host(), xid, ?refusal, "refused");
        }
        self.count(admitted, &answer);
        if self.closed.is_raised() {
            return self.release(weight_bytes);
        }
        let reply = Reply { parts: rpc::reply(xid, answer), weight_bytes };
        self.replies.borrow_mut().push_back(reply);
    }

    fn count(&self, call: Admitted, answer: &Result<Body, Refusal>) {
        let now = self.extension.ctx.now();
        let Admitted { trace, xid, what, began, bytes_in, .. } = call;
        let took = now.saturating_sub(began);
        let (bytes_out, failed) = match answer {
            Ok(body) => (body.length(), what.begins_with_status() && body.has_failed()),
            Err(_) => (0, true),
        };
        self.extension.metrics.note(what, Outcome { took, bytes_in, bytes_out, failed });
        self.extension.slow.note(now, &Slow { trace, host: self.host(), xid, what, took });
    }

    async fn write(&self, mut writer: Box<dyn Writer>) {
        let mut closed = pin!(self.closed.wait());
        loop {
            let some = poll_fn(|cx| {
                if self.closed.is_raised() || !self.replies.borrow().is_empty() {
                    return Poll::Ready(());
                }
                self.sender.set(Some(cx.waker().clone()));
                Poll::Pending
            });
            some.await;
            if self.closed.is_raised() {
                return;
            }
            let (parts, released) = self.next_batch();
            let sent = self.send(&mut *writer, parts);
            if let Either::Right(_) = select(pin!(sent), &mut closed).await {
                return;
            }
            self.release_all(released);
        }
    }

    /// What is to be sent next, and what that releases: calls and bytes.
    fn next_batch(&self) -> (Vec<Bytes>, (usize, usize)) {
        let mut replies = self.replies.borrow_mut();
        let calls = replies.len().min(REPLIES_PER_WRITE);
        let batch = replies.drain(..calls);
        let mut weight_bytes = 0;
        let parts = batch.flat_map(|reply| {
            weight_bytes += reply.weight_bytes;
            reply.parts
        });
        (joined(parts), (calls, weight_bytes))
    }

    /// Sends `parts`; closes the connection if they cannot be sent.
    async fn send(&self, writer: &mut dyn Writer, parts: Vec<Bytes>) {
        let now = self.extension.ctx.now();
        self.sending_since.set(Some(now));
        let sent = writer.write(parts).await;
        self.sending_since.set(None);
        self.moved.set(now.max(self.moved.get()));
        if let Err(error) = sent {
            tracing::debug!(target: "mdfs::nfs", host = self.host(), "cannot reply: {error}");
            self.close();
        }
    }
}

/// The `next` future in the place of one that has ended.
fn in_place<F>(mut place: Pin<Box<F>>, next: F) -> Pin<Box<F>> {
    place.set(next);
    place
}

/// `parts` with the small ones joined.
fn joined(parts: impl Iterator<Item = Bytes>) -> Vec<Bytes> {
    let mut joined = Vec::new();
    let mut small: Vec<u8> = Vec::new();
    let mut alone: Option<Bytes> = None;
    let mut flush = |alone: &mut Option<Bytes>, small: &mut Vec<u8>| {
        joined.extend(alone.take());
        if !small.is_empty() {
            joined.push(std::mem::take(small).into());
        }
    };
    for part in parts {
        if part.len() > JOINED_BYTES_MAX {
            flush(&mut alone, &mut small);
            alone = Some(part);
            flush(&mut alone, &mut small);
        } else if small.is_empty() && alone.is_none() {
            // Perhaps it is the only one.
            alone = Some(part);
        } else {
            if let Some(first) = alone.take() {
                small.extend_from_slice(&first);
            }
            small.extend_from_slice(&part);
        }
    }
    flush(&mut alone, &mut small);
    joined
}
