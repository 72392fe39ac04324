//! One connection: records in, replies out in the order in which they are ready.
//!
//! A call that can be answered from memory is answered by the task that reads, without a task or
//! wake-up of its own. Any other gets its own task. The replies to all records of one read are sent
//! by one write.
//!
//! Replies to calls of the gateway go to their [callers](crate::callback_link::CallbackLink).
//!
//! The reader and the writer share three facts: `draining` (nothing more is read), `closed`
//! (nothing more is sent) and the outstanding calls. A call is outstanding from the moment its
//! record is complete until its reply is sent; at the limit the reader stops, so TCP pushes back. A
//! third task closes idle connections.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt::Display;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use futures::future::{Either, join3, select};
use runtime::Context;
use runtime::net::{ByteStream, StreamReader, StreamWriter};
use runtime::sync::Event;
use tracing::Instrument as _;

use crate::byte_quota::{ByteReservation, QuotaShare};
use crate::config::Config;
use crate::dispatch::{self, RpcPrograms};
use crate::metrics::{Metrics, OperationKey, OperationSample, SlowCall, SlowCallLog};
use crate::peer::RpcPeer;
use crate::peer_log::PeerLog;
use crate::peer_usage::{PeerUsage, PeerUsages};
use crate::placement::DirectPlacement;
use crate::record::{RecordAssembler, RecordError, RpcRecord};
use crate::recv_buffers::RecvBufferPool;
use crate::rpc::{self, CallMessage, RpcError};
use crate::signal::{Signal, WakerSlot};
use crate::write_data;
use crate::xdr::ReplyBody;

/// Replies sent by one write, at most.
const REPLIES_PER_WRITE: usize = 64;
/// Pieces of replies up to this length are joined with their neighbours: that costs less than
/// another piece for the kernel.
const JOINED_BYTES_MAX: usize = 1 << 10;

/// A call of up to this weight is admitted past the bounds of all connections if it is the only one
/// of its own: others that do not take their replies cannot hold it up.
const SOLE_CALL_BYTES: usize = 64 << 10;
/// While others wait for its bytes, a record has this time to come, and longer by what was
/// received of it at [`RECORD_BYTES_PER_SECOND`]; none of it may take as long to come as this.
const RECORD_TIME: Duration = Duration::from_secs(1);
const RECORD_BYTES_PER_SECOND: u64 = 128 << 10;
/// While others wait for their bytes, replies have this time to be sent.
const REPLY_TIME: Duration = Duration::from_secs(10);

/// What all connections of a gateway share.
pub(crate) struct GatewayShared {
    /// The node.
    pub(crate) ctx: Context,
    /// The limits.
    pub(crate) config: Config,
    pub(crate) programs: RpcPrograms,
    pub(crate) metrics: Rc<Metrics>,
    pub(crate) slow: SlowCallLog,
    /// The receive buffers.
    pub(crate) recv_buffers: Rc<RecvBufferPool>,
    /// The log lines about peers.
    pub(crate) log: Rc<PeerLog>,
    /// What each peer uses.
    pub(crate) usages: PeerUsages,
    /// The trace id of the next call; the first is random, so that those of two gateways differ.
    pub(crate) next_trace: Cell<u64>,
}

pub(crate) struct ClientConnection {
    shared: Rc<GatewayShared>,
    peer: RpcPeer,
    usage: Rc<PeerUsage>,
    /// No more calls are accepted; outstanding ones end.
    draining: Signal,
    /// Nothing more is sent.
    closed: Signal,
    /// A call was received.
    has_called: Cell<bool>,
    outstanding_calls: Cell<usize>,
    outstanding_bytes: Cell<usize>,
    /// A call is no longer outstanding.
    released: Event,
    replies: RefCell<VecDeque<Reply>>,
    /// The writer, while it waits for something to send.
    writer: Rc<WakerSlot>,
    /// When bytes were reserved for the record that is received, and how many came since.
    receiving: Cell<Option<(Duration, usize)>>,
    /// When bytes were last received, or began to be sent.
    moved: Cell<Duration>,
    /// When the write in progress began.
    sending_since: Cell<Option<Duration>>,
}

/// An admitted call.
#[derive(Clone, Copy, Debug)]
struct AdmittedCall {
    trace: u64,
    xid: u32,
    what: OperationKey,
    began: Duration,
    bytes_in: usize,
}

/// A reply to be sent.
struct Reply {
    parts: Vec<Bytes>,
    /// The bytes that its call was admitted with.
    held: ByteReservation,
}

/// Why the reader stops.
#[derive(Debug, thiserror::Error)]
enum ReadEnd {
    #[error("the peer has closed its side")]
    RpcPeer,
    #[error("connection lost: {0}")]
    Broken(#[from] std::io::Error),
    #[error(transparent)]
    RecordError(#[from] RecordError),
    #[error("the connection is being closed")]
    Stopped,
}

impl ClientConnection {
    /// The connection to `peer`, whose calls to the client wake `writer`; with others it shares
    /// `usage`.
    pub(crate) fn new(
        shared: Rc<GatewayShared>,
        peer: RpcPeer,
        usage: Rc<PeerUsage>,
        writer: Rc<WakerSlot>,
    ) -> Rc<Self> {
        let moved = Cell::new(shared.ctx.now());
        Rc::new(Self {
            shared,
            peer,
            usage,
            draining: Signal::default(),
            closed: Signal::default(),
            has_called: Cell::default(),
            outstanding_calls: Cell::new(0),
            outstanding_bytes: Cell::new(0),
            released: Event::default(),
            replies: RefCell::default(),
            writer,
            receiving: Cell::default(),
            moved,
            sending_since: Cell::default(),
        })
    }

    /// The host of the peer.
    pub(crate) fn host(&self) -> &str {
        &self.peer.host
    }

    /// Has no call ever been received on it?
    pub(crate) fn is_unused(&self) -> bool {
        !self.has_called.get()
    }

    /// Calls that wait for their reply to be sent.
    pub(crate) fn outstanding_calls(&self) -> usize {
        self.outstanding_calls.get()
    }

    /// Bytes of them and of their replies, at most.
    pub(crate) fn outstanding_bytes(&self) -> usize {
        self.outstanding_bytes.get()
    }

    /// What its peer uses.
    pub(crate) fn usage(&self) -> &PeerUsage {
        &self.usage
    }

    /// Is it too slow to send a record, or to receive replies, while others wait for their bytes?
    pub(crate) fn is_overdue(&self, now: Duration) -> bool {
        let record = self.receiving.get().is_some_and(|(since, received)| {
            let millis = received as u64 * 1000 / RECORD_BYTES_PER_SECOND;
            now > since + RECORD_TIME + Duration::from_millis(millis)
                || now > since.max(self.moved.get()) + RECORD_TIME
        });
        record || self.sending_since.get().is_some_and(|since| now > since + REPLY_TIME)
    }

    /// Logs a line about the peer, unless there are too many.
    pub(crate) fn warn(&self, cause: &dyn Display) {
        if self.shared.log.admits(self.host()) {
            tracing::warn!(target: "mdfs::nfs", host = self.host(), "{cause}");
        }
    }

    /// Accepts no more calls; ends when the running ones are answered, or after the drain time.
    pub(crate) fn stop(&self) {
        self.draining.raise();
        self.released.tell();
    }

    /// Serves `stream` until it ends.
    pub(crate) async fn run(self: Rc<Self>, stream: ByteStream) {
        let ByteStream { reader, writer, peer, .. } = stream;
        tracing::debug!(target: "mdfs::nfs", peer, "connected");
        // The reader first: the writer then finds its immediate replies when it is polled.
        join3(self.read_and_drain(reader), self.write(writer), self.watch()).await;
        tracing::debug!(target: "mdfs::nfs", peer, "disconnected");
    }

    async fn read_and_drain(self: &Rc<Self>, reader: Box<dyn StreamReader>) {
        let end = self.read(reader).await;
        match end {
            Ok(()) | Err(ReadEnd::RpcPeer | ReadEnd::Stopped) => {}
            // Some clients reset the connection instead of closing it.
            Err(ReadEnd::Broken(error)) => {
                tracing::debug!(target: "mdfs::nfs", host = self.host(), %error, "connection lost");
            }
            Err(end) => self.warn(&end),
        }
        // Their replies would not be read any more.
        self.peer.callbacks.close();
        self.draining.raise();
        let drained = pin!(self.drained());
        select(drained, self.shared.ctx.sleep(self.shared.config.drain)).await;
        self.close();
    }

    /// Closes it immediately.
    pub(crate) fn close(&self) {
        self.closed.raise();
        self.draining.raise();
        self.replies.take();
        self.peer.callbacks.close();
        self.released.tell();
        self.writer.wake();
    }

    /// Closes the connection when it is idle for too long, unless the peer waits for a reply.
    async fn watch(&self) {
        let idle = self.shared.config.idle;
        let mut closed = pin!(self.closed.wait());
        let mut pause = idle;
        loop {
            let sleep = self.shared.ctx.sleep(pause);
            if let Either::Right(_) = select(sleep, &mut closed).await {
                return;
            }
            let now = self.shared.ctx.now();
            let left = |since: Duration| (since + idle).saturating_sub(now);
            let is_waiting = self.outstanding_calls.get() > 0;
            pause = match self.sending_since.get().map(left) {
                Some(Duration::ZERO) => {
                    self.warn(&"closed: the peer receives no replies");
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

    async fn read(self: &Rc<Self>, mut reader: Box<dyn StreamReader>) -> Result<(), ReadEnd> {
        let config = &self.shared.config;
        let (bytes_max, fragments_max) = (config.record_bytes_max, config.fragments_max);
        let mut assembler =
            RecordAssembler::new(bytes_max, fragments_max, self.shared.recv_buffers.clone());
        if reader.direct().is_some() {
            let (pool, stripe_bytes) = (self.shared.ctx.pool().clone(), config.stripe_bytes);
            assembler = assembler.with_placement(DirectPlacement {
                pool,
                stripe_bytes,
                find_data: write_data::find,
            });
        }
        let mut stopped = pin!(self.draining.wait());
        // The allocation of a completed future is reused for the next one: they are large.
        let mut spare = None;
        // The bytes of the record that is being received, until its call is admitted.
        let mut reserved = None;
        loop {
            while let Some(record) = assembler.next()? {
                let _reserved: Option<ByteReservation> = reserved.take();
                self.receiving.set(None);
                let Some(record) = self.peer.callbacks.take_reply(record) else { continue };
                let (message, admitted, held) = self.take(record).await?;
                let answering = self.clone().answer(message, admitted, held);
                let mut place = match spare.take() {
                    None => Box::pin(answering),
                    Some(place) => in_place(place, answering),
                };
                // A call that is answered from memory completes now, without a task.
                if futures::poll!(place.as_mut()).is_ready() {
                    spare = Some(place);
                } else {
                    self.finish(place);
                }
            }
            let unreserved = assembler.unreserved_bytes();
            if unreserved > 0 {
                reserved = Some(self.reserve(&self.usage.incomplete, unreserved).await?);
                self.receiving.set(Some((self.shared.ctx.now(), 0)));
                assembler.reserved(unreserved);
                continue;
            }
            let received = pin!(self.receive(&mut *reader, &mut assembler));
            match select(received, &mut stopped).await {
                Either::Left((received, _)) => received?,
                Either::Right(_) => return Err(ReadEnd::Stopped),
            }
        }
    }

    /// Receives bytes.
    async fn receive(
        &self,
        reader: &mut dyn StreamReader,
        assembler: &mut RecordAssembler,
    ) -> Result<(), ReadEnd> {
        let received = match reader.direct() {
            Some(direct) if let Some(mut rooms) = assembler.placement_slices() => {
                let received = direct.read_into(&mut rooms).await?;
                assembler.placed(received);
                received
            }
            _ => reader.read(assembler.receive_buffer()).await?,
        };
        self.moved.set(self.shared.ctx.now());
        self.receiving.set(self.receiving.get().map(|(since, before)| (since, before + received)));
        if received == 0 { Err(ReadEnd::RpcPeer) } else { Ok(()) }
    }

    /// Answers a call in a task of its own.
    fn finish(self: &Rc<Self>, answering: impl Future<Output = ()> + 'static) {
        let connection = self.clone();
        self.shared.ctx.task(async move {
            answering.await;
            connection.writer.wake();
        });
    }

    /// Admits the call in `record` as soon as the limits permit.
    async fn take(
        &self,
        record: RpcRecord,
    ) -> Result<(CallMessage, AdmittedCall, ByteReservation), ReadEnd> {
        let bytes_in = record.length();
        let mut weight_bytes = bytes_in;
        let message = CallMessage::parse(record)?;
        self.has_called.set(true);
        let mut what = OperationKey::Other;
        if let Ok(call) = &message.body {
            weight_bytes += dispatch::reply_bytes_max(call);
            what = OperationKey::of(call);
        }
        let held = self.admit(weight_bytes).await?;
        let trace = self.shared.next_trace.get();
        self.shared.next_trace.set(trace.wrapping_add(1));
        let (xid, began) = (message.xid, self.moved.get());
        Ok((message, AdmittedCall { trace, xid, what, began, bytes_in }, held))
    }

    async fn admit(&self, weight_bytes: usize) -> Result<ByteReservation, ReadEnd> {
        let config = &self.shared.config;
        loop {
            if self.draining.is_raised() {
                return Err(ReadEnd::Stopped);
            }
            let calls = self.outstanding_calls.get();
            let bytes = self.outstanding_bytes.get() + weight_bytes;
            let room =
                calls < config.outstanding_calls_max && bytes <= config.outstanding_bytes_max;
            if room || calls == 0 {
                break;
            }
            self.released.next().await;
        }
        let share = &self.usage.outstanding;
        let held = if self.outstanding_calls.get() == 0 && weight_bytes <= SOLE_CALL_BYTES {
            share.take(weight_bytes)
        } else {
            self.reserve(share, weight_bytes).await?
        };
        self.outstanding_calls.set(self.outstanding_calls.get() + 1);
        self.outstanding_bytes.set(self.outstanding_bytes.get() + weight_bytes);
        Ok(held)
    }

    /// Reserves `bytes` of `share`, unless the connection is to be closed first.
    async fn reserve(
        &self,
        share: &Rc<QuotaShare>,
        bytes: usize,
    ) -> Result<ByteReservation, ReadEnd> {
        let reserved = pin!(share.reserve(bytes));
        match select(reserved, pin!(self.draining.wait())).await {
            Either::Left((Some(reserved), _)) => Ok(reserved),
            Either::Left((None, _)) | Either::Right(_) => Err(ReadEnd::Stopped),
        }
    }

    /// The replies of these calls were sent, or are not needed any more.
    fn release(&self, held: impl IntoIterator<Item = ByteReservation>) {
        for held in held {
            self.outstanding_calls.set(self.outstanding_calls.get() - 1);
            self.outstanding_bytes.set(self.outstanding_bytes.get() - held.bytes());
        }
        self.released.tell();
    }

    async fn answer(
        self: Rc<Self>,
        message: CallMessage,
        admitted: AdmittedCall,
        held: ByteReservation,
    ) {
        let AdmittedCall { trace, xid, .. } = admitted;
        let answer = match message.body {
            Ok(call) => {
                let span = tracing::debug_span!(
                    target: "mdfs::nfs",
                    "call",
                    trace = format_args!("{trace:016x}"),
                    xid,
                    program = call.program,
                    procedure = call.procedure,
                );
                let answer = self.shared.programs.answer(&self.peer, xid, call);
                if span.is_disabled() { answer.await } else { answer.instrument(span).await }
            }
            Err(refusal) => Some(Err(refusal)),
        };
        let Some(answer) = answer else {
            self.warn(&format_args!(
                "closed: the outcome of call {xid:#x} is unknown, the client must retransmit it"
            ));
            self.close();
            return self.release([held]);
        };
        if let Err(refusal) = &answer {
            tracing::debug!(target: "mdfs::nfs", host = self.host(), xid, ?refusal, "refused");
        }
        self.count(admitted, &answer);
        if self.closed.is_raised() {
            return self.release([held]);
        }
        let reply = Reply { parts: rpc::reply(xid, answer), held };
        self.replies.borrow_mut().push_back(reply);
    }

    fn count(&self, call: AdmittedCall, answer: &Result<ReplyBody, RpcError>) {
        let now = self.shared.ctx.now();
        let AdmittedCall { trace, xid, what, began, bytes_in, .. } = call;
        let took = now.saturating_sub(began);
        let (bytes_out, failed) = match answer {
            Ok(body) => (body.length(), what.begins_with_status() && body.has_failed()),
            Err(_) => (0, true),
        };
        self.shared.metrics.note(what, OperationSample { took, bytes_in, bytes_out, failed });
        self.shared.slow.note(now, &SlowCall { trace, host: self.host(), xid, what, took });
    }

    async fn write(&self, mut writer: Box<dyn StreamWriter>) {
        let mut closed = pin!(self.closed.wait());
        loop {
            let some = poll_fn(|cx| {
                if self.closed.is_raised() || self.has_something_to_send() {
                    return Poll::Ready(());
                }
                self.writer.set(cx.waker());
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
            self.release(released);
        }
    }

    fn has_something_to_send(&self) -> bool {
        !self.replies.borrow().is_empty() || self.peer.callbacks.has_calls()
    }

    /// The calls and the next replies to send, and what the replies release. Calls to the
    /// client go first: others wait for what they recall.
    fn next_batch(&self) -> (Vec<Bytes>, Vec<ByteReservation>) {
        let mut replies = self.replies.borrow_mut();
        let calls = replies.len().min(REPLIES_PER_WRITE);
        let batch = replies.drain(..calls);
        let mut released = Vec::with_capacity(calls);
        let parts = batch.flat_map(|reply| {
            released.push(reply.held);
            reply.parts
        });
        let callbacks = self.peer.callbacks.take_calls();
        (joined(callbacks.into_iter().chain(parts)), released)
    }

    /// Sends `parts`; closes the connection if they cannot be sent.
    async fn send(&self, writer: &mut dyn StreamWriter, parts: Vec<Bytes>) {
        let now = self.shared.ctx.now();
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

/// Puts the `next` future into the allocation of a completed one.
fn in_place<F>(mut place: Pin<Box<F>>, next: F) -> Pin<Box<F>> {
    place.set(next);
    place
}

/// Joins small `parts`.
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
            // It may be the only one.
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
