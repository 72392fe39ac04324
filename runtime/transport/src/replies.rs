//! Replies on their way out of a connection.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use runtime::context::Context;
use runtime::net::StreamWriter;
use runtime::sync::Event;
use runtime::wire::Encoder;

use crate::fast_path::ClientServing;
use crate::frame::{FrameHeader, pack};
use crate::ingress::BudgetShare;
use crate::time_limit::within;

/// A connection whose other side takes nothing for this long is given up.
const WRITE_TIME_MAX: Duration = Duration::from_secs(30);

/// The pieces of a reply, and what they count in a budget.
type WaitingReply = (Vec<Bytes>, Option<Rc<BudgetShare>>);

/// Replies on their way out. Bounded by the outstanding requests of the connection.
#[derive(Default)]
pub(crate) struct ReplyQueue {
    waiting: RefCell<VecDeque<WaitingReply>>,
    /// Bytes of those that are not sent yet.
    bytes: Cell<usize>,
    closed: Cell<bool>,
    /// Nothing can be sent any more.
    broken: Cell<bool>,
    changed: Event,
    sent: Event,
    /// The way for large replies beside this one, if the other side is a client.
    pub(crate) fast: ClientServing,
}

impl ReplyQueue {
    pub(crate) fn push(&self, parts: Vec<Bytes>) {
        self.push_with(parts, None);
    }

    /// The same for parts that count in a budget until they are sent.
    pub(crate) fn push_with(&self, parts: Vec<Bytes>, share: Option<Rc<BudgetShare>>) {
        if self.broken.get() {
            return;
        }
        self.bytes.set(self.bytes.get() + length_of(&parts));
        self.waiting.borrow_mut().push_back((parts, share));
        self.changed.tell();
    }

    /// Sends a reply that is not sent again, by the faster way if there is room there. What it
    /// counts in a budget is given back then: that way has a limit of its own.
    pub(crate) fn push_once(
        &self,
        header: FrameHeader,
        body: Encoder,
        share: Option<Rc<BudgetShare>>,
    ) {
        if let Err((header, body)) = self.fast.send(header, body) {
            self.push_with(pack(header, body), share);
        }
    }

    /// What waits is still sent, and then the connection ends.
    pub(crate) fn close(&self) {
        self.closed.set(true);
        self.fast.end();
        self.changed.tell();
        self.sent.tell();
    }

    /// Can nothing be sent any more?
    pub(crate) fn is_broken(&self) -> bool {
        self.broken.get()
    }

    /// Bytes that wait.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.get()
    }

    /// Resolves when something was sent.
    pub(crate) fn sent(&self) -> impl Future<Output = ()> + 'static {
        self.sent.next()
    }

    /// Sends what comes, until the queue is closed or the other side takes nothing for
    /// [`WRITE_TIME_MAX`].
    pub(crate) async fn send(self: Rc<Self>, context: Context, mut writer: Box<dyn StreamWriter>) {
        loop {
            let changed = self.changed.next();
            // Everything that waits goes out in one call.
            let (parts, shares): (Vec<_>, Vec<_>) = self.waiting.take().into_iter().unzip();
            let parts = parts.concat();
            if parts.is_empty() {
                if self.closed.get() {
                    return;
                }
                changed.await;
                continue;
            }
            let bytes = length_of(&parts);
            let written = within(&context, WRITE_TIME_MAX, writer.write(parts)).await.flatten();
            drop(shares);
            self.bytes.set(self.bytes.get() - bytes);
            if written.is_err() {
                // The reading side notices the broken stream too and ends the connection.
                self.broken.set(true);
                self.waiting.take();
                self.bytes.set(0);
            }
            self.sent.tell();
            if written.is_err() {
                return;
            }
        }
    }
}

pub(crate) fn length_of(parts: &[Bytes]) -> usize {
    parts.iter().map(Bytes::len).sum()
}
