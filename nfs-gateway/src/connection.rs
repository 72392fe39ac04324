//! One stream: records in, one task per call, replies out in the order in which they are ready.
//!
//! The two halves of a stream know each other by three facts: `draining` (no more is read),
//! `closed` (nothing is sent any more) and the calls that are outstanding. A call is outstanding
//! from the moment its record is complete until its reply is sent; while too many are, the reading
//! half reads nothing, and the peer feels it.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::pin::pin;
use std::rc::Rc;

use bytes::Bytes;
use futures::future::{Either, join, select};
use runtime::Context;
use runtime::net::{Reader, Stream, Writer};
use runtime::sync::Event;
use tracing::Instrument as _;

use crate::config::Config;
use crate::dispatch::{self, Peer, Programs};
use crate::record::{Assembler, Record, Violation};
use crate::rpc::{self, Call};
use crate::signal::Signal;

/// Replies that are sent by one write, at most.
const REPLIES_PER_WRITE: usize = 32;

/// What a gateway's connections have in common.
pub(crate) struct Common {
    /// The node.
    pub(crate) ctx: Context,
    /// The limits.
    pub(crate) config: Config,
    /// What is served.
    pub(crate) programs: Programs,
}

/// One connection.
pub(crate) struct Connection {
    common: Rc<Common>,
    peer: Peer,
    /// No more calls are taken; those that are outstanding end.
    draining: Signal,
    /// Nothing can be sent any more.
    closed: Signal,
    outstanding_calls: Cell<usize>,
    outstanding_bytes: Cell<usize>,
    /// A call is not outstanding any more.
    released: Event,
    replies: RefCell<VecDeque<Reply>>,
    replied: Event,
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
    #[error("nothing came for too long")]
    Idle,
    #[error("the connection is being closed")]
    Stopped,
}

impl Connection {
    /// The connection to `peer`.
    pub(crate) fn new(common: Rc<Common>, peer: Peer) -> Rc<Self> {
        Rc::new(Self {
            common,
            peer,
            draining: Signal::default(),
            closed: Signal::default(),
            outstanding_calls: Cell::new(0),
            outstanding_bytes: Cell::new(0),
            released: Event::default(),
            replies: RefCell::default(),
            replied: Event::default(),
        })
    }

    /// The host of the other side.
    pub(crate) fn host(&self) -> &str {
        &self.peer.host
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
        join(self.read_and_drain(reader), self.write(writer)).await;
        tracing::debug!(target: "mdfs::nfs", peer, "disconnected");
    }

    async fn read_and_drain(self: &Rc<Self>, reader: Box<dyn Reader>) {
        let end = self.read(reader).await;
        match end {
            Ok(()) | Err(End::Peer | End::Stopped | End::Idle) => {}
            // Some clients reset the connection instead of closing it.
            Err(End::Broken(error)) => {
                tracing::debug!(target: "mdfs::nfs", host = self.host(), %error, "the stream broke");
            }
            Err(end) => tracing::warn!(target: "mdfs::nfs", host = self.host(), "{end}"),
        }
        self.draining.raise();
        let drained = pin!(self.drained());
        select(drained, self.common.ctx.sleep(self.common.config.drain)).await;
        self.close();
    }

    fn close(&self) {
        self.closed.raise();
        self.draining.raise();
        self.replies.take();
        self.released.tell();
        self.replied.tell();
    }

    /// Resolves once no call is outstanding.
    async fn drained(&self) {
        while self.outstanding_calls.get() > 0 && !self.closed.is_raised() {
            self.released.next().await;
        }
    }

    async fn read(self: &Rc<Self>, mut reader: Box<dyn Reader>) -> Result<(), End> {
        let config = &self.common.config;
        let mut assembler = Assembler::new(config.record_bytes_max, config.fragments_max);
        let mut stopped = pin!(self.draining.wait());
        loop {
            while let Some(record) = assembler.next()? {
                self.take(record).await?;
            }
            let received = pin!(self.receive(&mut *reader, &mut assembler));
            match select(received, &mut stopped).await {
                Either::Left((received, _)) => received?,
                Either::Right(_) => return Err(End::Stopped),
            }
        }
    }

    /// Waits for bytes. Silence is no reason to hang up as long as the peer waits for a reply.
    async fn receive(&self, reader: &mut dyn Reader, assembler: &mut Assembler) -> Result<(), End> {
        let mut read = reader.read(assembler.room());
        loop {
            let idle = self.common.ctx.sleep(self.common.config.idle);
            match select(read, idle).await {
                Either::Left((received, _)) => {
                    return if received? == 0 { Err(End::Peer) } else { Ok(()) };
                }
                Either::Right(_) if self.outstanding_calls.get() == 0 => return Err(End::Idle),
                Either::Right(((), unfinished)) => read = unfinished,
            }
        }
    }

    /// Starts to answer the call in `record`, as soon as few enough others are outstanding.
    async fn take(self: &Rc<Self>, record: Record) -> Result<(), End> {
        let mut weight_bytes = record.length();
        let call = Call::parse(record)?;
        if let Ok(question) = &call.question {
            weight_bytes += dispatch::reply_bytes_max(question);
        }
        self.admit(weight_bytes).await?;
        let answering = self.clone().answer(call, weight_bytes);
        self.common.ctx.task(answering);
        Ok(())
    }

    async fn admit(&self, weight_bytes: usize) -> Result<(), End> {
        let config = &self.common.config;
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
        self.outstanding_calls.set(self.outstanding_calls.get() - 1);
        self.outstanding_bytes.set(self.outstanding_bytes.get() - weight_bytes);
        self.released.tell();
    }

    async fn answer(self: Rc<Self>, call: Call, weight_bytes: usize) {
        let xid = call.xid;
        let answer = match call.question {
            Ok(question) => {
                let span = tracing::debug_span!(
                    target: "mdfs::nfs",
                    "call",
                    xid,
                    program = question.program,
                    procedure = question.procedure,
                );
                let answer = self.common.programs.answer(&self.peer, xid, question);
                answer.instrument(span).await
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
        if self.closed.is_raised() {
            return self.release(weight_bytes);
        }
        let reply = Reply { parts: rpc::reply(xid, answer), weight_bytes };
        self.replies.borrow_mut().push_back(reply);
        self.replied.tell();
    }

    async fn write(&self, mut writer: Box<dyn Writer>) {
        let mut closed = pin!(self.closed.wait());
        while !self.closed.is_raised() {
            let replies: Vec<Reply> = {
                let mut replies = self.replies.borrow_mut();
                let count = replies.len().min(REPLIES_PER_WRITE);
                replies.drain(..count).collect()
            };
            if replies.is_empty() {
                self.replied.next().await;
                continue;
            }
            let weights: Vec<usize> = replies.iter().map(|reply| reply.weight_bytes).collect();
            let parts = replies.into_iter().flat_map(|reply| reply.parts).collect();
            let sent = self.send(&mut *writer, parts);
            if let Either::Right(_) = select(pin!(sent), &mut closed).await {
                return;
            }
            for weight_bytes in weights {
                self.release(weight_bytes);
            }
        }
    }

    /// Sends `parts`; closes the connection if they cannot be sent, or not within the idle time.
    async fn send(&self, writer: &mut dyn Writer, parts: Vec<Bytes>) {
        let idle = self.common.ctx.sleep(self.common.config.idle);
        match select(writer.write(parts), idle).await {
            Either::Left((Ok(()), _)) => {}
            Either::Left((Err(error), _)) => {
                tracing::debug!(target: "mdfs::nfs", host = self.host(), "cannot reply: {error}");
                self.close();
            }
            Either::Right(_) => {
                tracing::warn!(target: "mdfs::nfs", host = self.host(), "takes no replies");
                self.close();
            }
        }
    }
}
