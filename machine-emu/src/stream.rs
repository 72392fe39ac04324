//! Byte streams in memory: bounded pipes that take virtual time, for clients from outside.
//!
//! A stream keeps order and loses nothing, but a read brings what the seed says: often less than
//! there is. When a node dies its streams are reset; faults cut them anywhere and hold bytes up.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::io::{self, IoSliceMut};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use runtime::net::{Address, ByteStream, Direct, Listener, StreamReader, StreamWriter};
use runtime::seed::Rng;

use crate::alarm::Alarm;
use crate::jmachine::HostWire;
use crate::kernel::{Kernel, rng_for};
use crate::trace::{FaultKind, TraceTag};

/// Bytes on their way in one direction of a stream, at most; then the writer waits.
const PIPE_BYTES_MAX: usize = 256 << 10;
/// Streams that wait to be accepted, at most; then a connection is refused.
const BACKLOG_MAX: usize = 128;
/// What a byte takes from one side to the other.
const LATENCY_NS: u64 = 20_000;
/// A random addition, at most.
const JITTER_NS: u64 = 20_000;
/// Room that a reader makes in a buffer without any.
const READ_BYTES: usize = 64 << 10;
/// The first port for who asks for any.
const PORT_FIRST: u32 = 40_000;

/// How often streams suffer, in parts per million of the pieces that are written.
#[derive(Clone, Copy, Debug, Default)]
pub struct StreamFaults {
    /// The stream breaks in the middle of the piece, for both sides and both directions.
    pub cut_ppm: u32,
    /// The piece, and what follows it, is held up.
    pub delay_ppm: u32,
    /// For how long at most.
    pub delay_max_ns: u64,
    /// Bytes that one read returns at most; 0 for any number.
    pub piece_bytes_max: usize,
}

struct ListenerState {
    node: u32,
    backlog: VecDeque<ByteStream>,
    waker: Option<Waker>,
}

/// All listeners, and the pipes of nodes.
pub(crate) struct StreamTable {
    pub(crate) faults: StreamFaults,
    rng: Rng,
    listeners: BTreeMap<String, ListenerState>,
    /// Pipes that end at a node, to be reset when it dies.
    pipes: Vec<(u32, std::rc::Weak<RefCell<StreamPipe>>)>,
    ports: u32,
    clients: u64,
}

impl StreamTable {
    fn new(rng: Rng) -> Self {
        let listeners = BTreeMap::new();
        let faults = StreamFaults::default();
        Self { faults, rng, listeners, pipes: Vec::new(), ports: PORT_FIRST, clients: 0 }
    }

    fn hits(&mut self, ppm: u32) -> bool {
        ppm > 0 && self.rng.chance(u64::from(ppm), 1_000_000)
    }

    /// Gives `host:0` a port.
    fn settle(&mut self, address: &Address) -> Address {
        match address {
            Address::Tcp(text) => match text.strip_suffix(":0") {
                Some(host) => {
                    self.ports += 1;
                    Address::Tcp(format!("{host}:{}", self.ports))
                }
                None => address.clone(),
            },
            Address::Unix(_) => address.clone(),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum StreamEnd {
    Open,
    /// The writer is closed: what is in flight still arrives.
    Closed,
    /// The stream was cut: what is in flight still arrives, then the reader gets an error.
    Cut,
    /// The other side's node is dead.
    Reset,
}

/// One direction of a stream.
struct StreamPipe {
    chunks: VecDeque<(u64, Bytes)>,
    bytes: usize,
    end: StreamEnd,
    reader_gone: bool,
    last_ns: u64,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl StreamPipe {
    fn new() -> Rc<RefCell<Self>> {
        Rc::new(RefCell::new(Self {
            chunks: VecDeque::new(),
            bytes: 0,
            end: StreamEnd::Open,
            reader_gone: false,
            last_ns: 0,
            reader: None,
            writer: None,
        }))
    }

    fn wake(&mut self) {
        for waker in [self.reader.take(), self.writer.take()].into_iter().flatten() {
            waker.wake();
        }
    }

    fn cut(&mut self) {
        if self.end == StreamEnd::Open {
            self.end = StreamEnd::Cut;
        }
        self.wake();
    }

    fn reset(&mut self) {
        self.end = StreamEnd::Reset;
        self.chunks.clear();
        self.wake();
    }
}

/// What a reader finds.
enum ReadOutcome {
    Bytes(Bytes),
    NotBefore(u64),
    StreamEnd,
    Reset,
}

struct PipeReader {
    streams: Rc<EmulatedStreams>,
    pipe: Rc<RefCell<StreamPipe>>,
    alarm: Option<Alarm>,
}

impl PipeReader {
    /// Takes at most `room` bytes, if there are any.
    fn look(&self, room: usize) -> Option<ReadOutcome> {
        let mut pipe = self.pipe.borrow_mut();
        let Some(&(at_ns, ref chunk)) = pipe.chunks.front() else {
            return match pipe.end {
                StreamEnd::Open => None,
                StreamEnd::Closed => Some(ReadOutcome::StreamEnd),
                StreamEnd::Cut | StreamEnd::Reset => Some(ReadOutcome::Reset),
            };
        };
        if at_ns > self.streams.kernel.now_ns() {
            return Some(ReadOutcome::NotBefore(at_ns));
        }
        let mut count = chunk.len().min(room);
        let streams = &mut *self.streams.table.borrow_mut();
        if streams.rng.chance(1, 4) {
            count = 1 + streams.rng.index(count);
        }
        if streams.faults.piece_bytes_max > 0 {
            count = count.min(streams.faults.piece_bytes_max);
        }
        let taken = match pipe.chunks.front_mut() {
            Some((_, chunk)) if count < chunk.len() => chunk.split_to(count),
            _ => pipe.chunks.pop_front().map(|(_, chunk)| chunk).unwrap_or_default(),
        };
        pipe.bytes -= count;
        if let Some(writer) = pipe.writer.take() {
            writer.wake();
        }
        Some(ReadOutcome::Bytes(taken))
    }

    fn poll_take(&mut self, cx: &mut Context<'_>, room: usize) -> Poll<io::Result<Bytes>> {
        loop {
            if let Some(alarm) = &mut self.alarm {
                if alarm.poll_unpin(cx).is_pending() && self.pipe.borrow().end != StreamEnd::Reset {
                    self.pipe.borrow_mut().reader = Some(cx.waker().clone());
                    return Poll::Pending;
                }
                self.alarm = None;
            }
            match self.look(room) {
                Some(ReadOutcome::Bytes(taken)) => return Poll::Ready(Ok(taken)),
                Some(ReadOutcome::StreamEnd) => return Poll::Ready(Ok(Bytes::new())),
                Some(ReadOutcome::Reset) => {
                    let error = io::Error::from(io::ErrorKind::ConnectionReset);
                    return Poll::Ready(Err(error));
                }
                Some(ReadOutcome::NotBefore(at_ns)) => {
                    let wait_ns = at_ns - self.streams.kernel.now_ns();
                    self.alarm = Some(self.streams.kernel.alarm_in(wait_ns));
                }
                None => {
                    self.pipe.borrow_mut().reader = Some(cx.waker().clone());
                    return Poll::Pending;
                }
            }
        }
    }
}

impl StreamReader for PipeReader {
    fn read<'a>(&'a mut self, buffer: &'a mut BytesMut) -> LocalBoxFuture<'a, io::Result<usize>> {
        async move {
            let room = buffer.capacity() - buffer.len();
            let room = if room == 0 { READ_BYTES } else { room };
            let taken = poll_fn(|cx| self.poll_take(cx, room)).await?;
            buffer.extend_from_slice(&taken);
            Ok(taken.len())
        }
        .boxed_local()
    }

    fn direct(&mut self) -> Option<&mut dyn Direct> {
        Some(self)
    }
}

impl Direct for PipeReader {
    fn read_into<'a>(
        &'a mut self,
        rooms: &'a mut [IoSliceMut<'a>],
    ) -> LocalBoxFuture<'a, io::Result<usize>> {
        async move {
            let room = rooms.iter().map(|room| room.len()).sum();
            let taken = poll_fn(|cx| self.poll_take(cx, room)).await?;
            let mut left = &taken[..];
            for room in rooms {
                let (part, rest) = left.split_at(left.len().min(room.len()));
                room[..part.len()].copy_from_slice(part);
                left = rest;
            }
            Ok(taken.len())
        }
        .boxed_local()
    }
}

impl Drop for PipeReader {
    fn drop(&mut self) {
        let mut pipe = self.pipe.borrow_mut();
        pipe.reader_gone = true;
        pipe.wake();
    }
}

struct PipeWriter {
    streams: Rc<EmulatedStreams>,
    pipe: Rc<RefCell<StreamPipe>>,
    /// The other direction.
    back: Rc<RefCell<StreamPipe>>,
    /// What it takes to and from the host of a J-Machine, in place of the usual latency.
    wire: Option<HostWire>,
}

impl PipeWriter {
    fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        parts: &mut VecDeque<Bytes>,
    ) -> Poll<io::Result<()>> {
        let mut pipe = self.pipe.borrow_mut();
        while let Some(part) = parts.front_mut() {
            if pipe.reader_gone || matches!(pipe.end, StreamEnd::Cut | StreamEnd::Reset) {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            }
            let room = PIPE_BYTES_MAX - pipe.bytes;
            if room == 0 {
                pipe.writer = Some(cx.waker().clone());
                return Poll::Pending;
            }
            let mut chunk = part.split_to(part.len().min(room));
            if part.is_empty() {
                parts.pop_front();
            }
            if chunk.is_empty() {
                continue;
            }
            let streams = &mut *self.streams.table.borrow_mut();
            let StreamFaults { cut_ppm, delay_ppm, delay_max_ns, .. } = streams.faults;
            let mut travel_ns = match self.wire {
                Some(wire) => chunk.len() as u64 * wire.picoseconds_per_byte / 1000,
                None => LATENCY_NS + streams.rng.below(JITTER_NS),
            };
            if streams.hits(delay_ppm) {
                self.streams.kernel.trace.fault(FaultKind::StreamDelayed);
                travel_ns += streams.rng.below(delay_max_ns + 1);
            }
            let now_ns = self.streams.kernel.now_ns();
            let at_ns = match self.wire {
                // Bytes follow one another, and are there when they are looked for.
                Some(wire) => wire.seen_ns(now_ns.max(pipe.last_ns) + travel_ns),
                None => (now_ns + travel_ns).max(pipe.last_ns),
            };
            pipe.last_ns = at_ns;
            if streams.hits(cut_ppm) {
                self.streams.kernel.trace.fault(FaultKind::StreamCut);
                chunk.truncate(streams.rng.index(chunk.len() + 1));
                pipe.cut();
                self.back.borrow_mut().cut();
                if chunk.is_empty() {
                    continue;
                }
            }
            self.streams.kernel.note(0, TraceTag::Stream, runtime::hash::xxh3(&chunk));
            pipe.bytes += chunk.len();
            pipe.chunks.push_back((at_ns, Bytes::copy_from_slice(&chunk)));
            if let Some(reader) = pipe.reader.take() {
                reader.wake();
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl StreamWriter for PipeWriter {
    fn write(&mut self, parts: Vec<Bytes>) -> LocalBoxFuture<'_, io::Result<()>> {
        let mut parts = VecDeque::from(parts);
        poll_fn(move |cx| self.poll_write(cx, &mut parts)).boxed_local()
    }
}

impl Drop for PipeWriter {
    fn drop(&mut self) {
        let mut pipe = self.pipe.borrow_mut();
        if pipe.end == StreamEnd::Open {
            pipe.end = StreamEnd::Closed;
        }
        pipe.wake();
    }
}

struct EmuListener {
    streams: Rc<EmulatedStreams>,
    address: Address,
}

impl Listener for EmuListener {
    fn accept(&mut self) -> LocalBoxFuture<'_, io::Result<ByteStream>> {
        let key = self.address.to_string();
        let table = self.streams.clone();
        poll_fn(move |cx| {
            let mut streams = table.table.borrow_mut();
            let Some(listener) = streams.listeners.get_mut(&key) else {
                return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
            };
            if let Some(stream) = listener.backlog.pop_front() {
                return Poll::Ready(Ok(stream));
            }
            listener.waker = Some(cx.waker().clone());
            Poll::Pending
        })
        .boxed_local()
    }

    fn address(&self) -> Address {
        self.address.clone()
    }
}

impl Drop for EmuListener {
    fn drop(&mut self) {
        let listener = self.streams.table.borrow_mut().listeners.remove(&self.address.to_string());
        drop(listener);
    }
}

/// The byte streams between the world and the outside.
pub(crate) struct EmulatedStreams {
    kernel: Rc<Kernel>,
    pub(crate) table: RefCell<StreamTable>,
}

impl EmulatedStreams {
    pub(crate) fn new(kernel: Rc<Kernel>) -> Rc<Self> {
        let table = RefCell::new(StreamTable::new(rng_for(kernel.seed, "streams", 0)));
        Rc::new(Self { kernel, table })
    }

    pub(crate) fn listen(
        self: &Rc<Self>,
        node: u32,
        address: &Address,
    ) -> io::Result<Box<dyn Listener>> {
        let mut streams = self.table.borrow_mut();
        let address = streams.settle(address);
        let key = address.to_string();
        if streams.listeners.contains_key(&key) {
            let error = format!("{key} is in use");
            return Err(io::Error::new(io::ErrorKind::AddrInUse, error));
        }
        let backlog = VecDeque::new();
        streams.listeners.insert(key, ListenerState { node, backlog, waker: None });
        Ok(Box::new(EmuListener { streams: self.clone(), address }))
    }

    /// A stream from outside to the listener at `address`.
    pub(crate) fn connect(
        self: &Rc<Self>,
        address: &Address,
        peer: Option<&str>,
    ) -> io::Result<ByteStream> {
        let mut streams = self.table.borrow_mut();
        streams.clients += 1;
        let peer = peer.map_or_else(|| format!("client {}", streams.clients), str::to_owned);
        let refused = || io::Error::new(io::ErrorKind::ConnectionRefused, address.to_string());
        let listener = streams.listeners.get_mut(&address.to_string()).ok_or_else(refused)?;
        if listener.backlog.len() >= BACKLOG_MAX {
            return Err(refused());
        }
        let (up, down) = (StreamPipe::new(), StreamPipe::new());
        let at_host = self.kernel.nodes.borrow().get(listener.node).id;
        let machine = self.kernel.machine.borrow();
        let machine = machine.as_ref().filter(|machine| machine.is_host(at_host));
        let wire = machine.map(|machine| machine.host_wire());
        listener.backlog.push_back(self.stream(&up, &down, peer, wire));
        if let Some(waker) = listener.waker.take() {
            waker.wake();
        }
        let node = listener.node;
        streams.pipes.retain(|(_, pipe)| pipe.strong_count() > 0);
        for pipe in [&up, &down] {
            streams.pipes.push((node, Rc::downgrade(pipe)));
        }
        Ok(self.stream(&down, &up, address.to_string(), wire))
    }

    fn stream(
        self: &Rc<Self>,
        from: &Rc<RefCell<StreamPipe>>,
        to: &Rc<RefCell<StreamPipe>>,
        peer: String,
        wire: Option<HostWire>,
    ) -> ByteStream {
        let reader = PipeReader { streams: self.clone(), pipe: from.clone(), alarm: None };
        let writer =
            PipeWriter { streams: self.clone(), pipe: to.clone(), back: from.clone(), wire };
        ByteStream { reader: Box::new(reader), writer: Box::new(writer), peer, user: None }
    }

    /// A node dies: its streams break, its listeners close.
    pub(crate) fn reset(&self, node: u32) {
        let (listeners, pipes) = {
            let mut streams = self.table.borrow_mut();
            let (dying, living) = std::mem::take(&mut streams.listeners)
                .into_iter()
                .partition::<BTreeMap<_, _>, _>(|(_, listener)| listener.node == node);
            streams.listeners = living;
            let pipes: Vec<_> = streams.pipes.extract_if(.., |(owner, _)| *owner == node).collect();
            (dying, pipes)
        };
        for pipe in pipes.into_iter().filter_map(|(_, pipe)| pipe.upgrade()) {
            pipe.borrow_mut().reset();
        }
        drop(listeners);
    }
}
