//! The frames of one link of a client over libfabric, at either side.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Poll, Waker};

use ::fabric::transport::ConnectionId;
use runtime::sync::lock;
use runtime::wire::Encoder;

use super::pair::{FabricPair, PairCommand, Ticket};
use super::paths::FabricPath;
use super::shared::{CLIENT_FRAME_MAX, PairUse};
use crate::frame::{FRAME_HEADER_SIZE, FrameHeader, LinkFrame, frame_length, pack_apart};

/// Bytes of frames in one direction of a link of a client, at most: those that were given to be
/// sent and have not left, and of requests those that were not answered. A server keeps no more
/// either before it deals with them. What is beyond goes over the link itself. Ten transfers.
pub(in super::super) const FRAMES_BYTES_MAX: usize = 5 * CLIENT_FRAME_MAX;
/// The same of what has come to a client, which has asked for it.
const REPLIES_BYTES_MAX: usize = 256 << 20;
/// The same of all clients of a process, in both directions. A client that sends more loses its
/// path for a while.
const CLIENTS_BYTES_MAX: usize = 1 << 30;

/// Frames of one link of a client.
pub(in super::super) struct FramePath {
    pub(super) pair: Arc<FabricPair>,
    pub(super) ticket: Ticket,
    /// Once it is open.
    connection: OnceLock<ConnectionId>,
    /// Bytes that were given to be sent, and of these what has left.
    outgoing: Mutex<OutgoingBytes>,
    /// `None` when it is over.
    inbox: Mutex<Option<FrameInbox>>,
    /// Bytes of all paths here that have not left, or were not dealt with.
    all: Arc<AtomicUsize>,
}

#[derive(Default)]
struct OutgoingBytes {
    given: u64,
    sent: u64,
}

impl OutgoingBytes {
    fn under_way(&self) -> usize {
        self.given.saturating_sub(self.sent) as usize
    }
}

/// Frames that have come.
#[derive(Default)]
struct FrameInbox {
    frames: VecDeque<LinkFrame>,
    bytes: usize,
    waker: Option<Waker>,
}

impl std::fmt::Debug for FramePath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FramePath").field("connection", &self.connection).finish_non_exhaustive()
    }
}

impl FramePath {
    /// `all` counts the bytes of all paths here.
    pub(super) fn new(pair: Arc<FabricPair>, ticket: Ticket, all: Arc<AtomicUsize>) -> Self {
        Self {
            pair,
            ticket,
            connection: OnceLock::new(),
            outgoing: Mutex::default(),
            inbox: Mutex::new(Some(FrameInbox::default())),
            all,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.connection.get().is_some() && !self.is_over()
    }

    pub(in super::super) fn is_over(&self) -> bool {
        lock(&self.inbox).is_none()
    }

    /// Sends a frame; gives it back if it has to go over the link itself.
    pub(in super::super) fn send(
        &self,
        header: FrameHeader,
        body: Encoder,
    ) -> Result<(), (FrameHeader, Encoder)> {
        let Some(connection) = self.connection.get().copied() else { return Err((header, body)) };
        let length = frame_length(&body);
        let mut outgoing = lock(&self.outgoing);
        if length > CLIENT_FRAME_MAX
            || outgoing.under_way() + length > FRAMES_BYTES_MAX
            || self.all.load(Relaxed) + length > CLIENTS_BYTES_MAX
            || self.is_over()
        {
            return Err((header, body));
        }
        outgoing.given += length as u64;
        self.all.fetch_add(length, Relaxed);
        drop(outgoing);
        let (head, bulk) = pack_apart(header, body);
        self.pair.tell(PairCommand::Send { connection, head, bulk });
        Ok(())
    }

    /// The next frame; `None` when it is over.
    pub(in super::super) async fn next(&self) -> Option<LinkFrame> {
        poll_fn(|context| {
            let mut inbox = lock(&self.inbox);
            let Some(open) = &mut *inbox else { return Poll::Ready(None) };
            let Some(frame) = open.frames.pop_front() else {
                open.waker = Some(context.waker().clone());
                return Poll::Pending;
            };
            open.bytes -= length_of(&frame);
            self.all.fetch_sub(length_of(&frame), Relaxed);
            Poll::Ready(Some(frame))
        })
        .await
    }

    /// The link is over, or does without from now on: frames that have come are dropped.
    pub(super) fn end(&self) {
        self.pair.tell(PairCommand::Leave { ticket: self.ticket });
        self.lost();
    }
}

impl FabricPath for FramePath {
    fn opened(&self, connection: ConnectionId) {
        // It is opened once.
        let _ = self.connection.set(connection);
    }

    fn take(self: Arc<Self>, frame: LinkFrame) -> bool {
        let length = length_of(&frame);
        let mut inbox = lock(&self.inbox);
        let Some(open) = &mut *inbox else { return true };
        let is_server = self.pair.used == PairUse::OfClient;
        let bytes_max = if is_server { FRAMES_BYTES_MAX } else { REPLIES_BYTES_MAX };
        let is_crowded = is_server && self.all.load(Relaxed) + length > CLIENTS_BYTES_MAX;
        if open.bytes + length > bytes_max || is_crowded {
            return false;
        }
        open.bytes += length;
        self.all.fetch_add(length, Relaxed);
        open.frames.push_back(frame);
        let waker = open.waker.take();
        drop(inbox);
        waker.into_iter().for_each(Waker::wake);
        true
    }

    fn lost(&self) {
        let Some(inbox) = lock(&self.inbox).take() else { return };
        self.all.fetch_sub(inbox.bytes, Relaxed);
        let given = lock(&self.outgoing).given;
        self.note_sent(given);
        inbox.waker.into_iter().for_each(Waker::wake);
    }

    fn note_sent(&self, bytes: u64) {
        let mut outgoing = lock(&self.outgoing);
        let before = outgoing.sent;
        outgoing.sent = bytes.max(before);
        self.all.fetch_sub((outgoing.sent - before) as usize, Relaxed);
    }
}

fn length_of(frame: &LinkFrame) -> usize {
    FRAME_HEADER_SIZE + frame.head.len() + frame.bulk.len()
}
