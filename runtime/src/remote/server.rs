//! The serving side: other processes ask the nodes of this one.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use futures::future::{Either, select};

use super::frame::{Frame, Frames, Greeting, Header, Hello, garbled, kind, pack};
use crate::context::Context;
use crate::host::undelivered_bytes;
use crate::ids::{Epoch, NodeId, VolumeId};
use crate::net::{Listener, Stream, Writer};
use crate::protocol::{Caller, Class, Undelivered};
use crate::sync::{Event, Limit};
use crate::wire::{Encoder, Wire as _, from_bytes};

/// Requests of one connection that run at a time; past it the server stops reading from it.
const OUTSTANDING_MAX: usize = 1024;

/// A connection of another process over which nothing came for so long is closed: each asks for a sign
/// of life much more often.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// A connection that does not introduce itself for so long is closed.
const HELLO_TIME_MAX: Duration = Duration::from_secs(2);

/// Lets clients of this host ask, until the listener fails.
pub async fn serve(context: Context, listener: Box<dyn Listener>) -> io::Result<()> {
    accept(context, listener, None).await
}

/// Lets the other processes of the volume ask, until the listener fails. Whoever does not look for
/// `me` in the present life is refused.
pub async fn serve_processes(
    context: Context,
    listener: Box<dyn Listener>,
    me: Arc<Me>,
) -> io::Result<()> {
    accept(context, listener, Some(me)).await
}

/// What other processes have to know of this one to be answered.
#[derive(Debug)]
pub struct Me {
    /// The volume.
    pub volume: VolumeId,
    /// The number of this process.
    pub number: u32,
    /// Its present life; 0 if it has none.
    pub incarnation: AtomicU64,
}

async fn accept(
    context: Context,
    mut listener: Box<dyn Listener>,
    me: Option<Arc<Me>>,
) -> io::Result<()> {
    loop {
        let stream = listener.accept().await?;
        let (served, me) = (context.clone(), me.clone());
        context.task(async move {
            if let Err(error) = connection(served, stream, me).await {
                tracing::debug!(%error, "a connection ended with an error");
            }
        });
    }
}

/// Waits for a process to introduce itself.
async fn hello(context: &Context, frames: &mut Frames, me: &Me) -> io::Result<()> {
    let first = within(context, HELLO_TIME_MAX, frames.next()).await??;
    let first = first.ok_or(io::ErrorKind::ConnectionReset)?;
    if first.header.kind != kind::HELLO {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let hello: Hello = from_bytes(&first.head).map_err(garbled)?;
    let is_for_me = hello.volume == me.volume
        && hello.wanted == me.number
        && hello.wanted_incarnation != 0
        && hello.wanted_incarnation == me.incarnation.load(Relaxed);
    if is_for_me { Ok(()) } else { Err(io::ErrorKind::ConnectionRefused.into()) }
}

async fn within<T>(
    context: &Context,
    duration: Duration,
    work: impl Future<Output = T>,
) -> io::Result<T> {
    match select(pin!(work), context.sleep(duration)).await {
        Either::Left((done, _)) => Ok(done),
        Either::Right(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}

async fn connection(context: Context, stream: Stream, me: Option<Arc<Me>>) -> io::Result<()> {
    let mut frames = Frames::new(stream.reader);
    if let Some(me) = &me {
        hello(&context, &mut frames, me).await?;
    }
    let replies = Rc::new(Replies::default());
    let mut greeting = Encoder::new();
    Greeting {
        fs_nodes: context.fs_nodes(),
        disk_nodes: context.disk_nodes(),
        epoch: context.epoch().0,
    }
    .put(&mut greeting);
    replies.push(pack(Header { kind: kind::GREETING, ..Header::default() }, greeting));
    context.task(replies.clone().send(stream.writer));

    let running = Rc::new(Limit::new(OUTSTANDING_MAX, 1));
    let outcome = loop {
        let next = match &me {
            Some(_) => within(&context, SILENCE_MAX, frames.next()).await.flatten(),
            None => frames.next().await,
        };
        let frame = match next {
            Ok(Some(frame)) => frame,
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        };
        if frame.header.kind == kind::PING {
            replies.push(pack(Header { kind: kind::PONG, ..Header::default() }, Encoder::new()));
            continue;
        }
        if running.acquire().await.map(std::mem::forget).is_none() {
            break Err(io::ErrorKind::OutOfMemory.into());
        }
        let (asked, running, replies) = (context.clone(), running.clone(), replies.clone());
        let is_process = me.is_some();
        context.task(async move {
            replies.push(answer(&asked, frame, is_process).await);
            running.put_back();
        });
    };
    replies.close();
    outcome
}

async fn answer(
    context: &Context,
    Frame { header, head, bulk }: Frame,
    is_process: bool,
) -> Vec<Bytes> {
    let caller = if is_process {
        Caller { node: NodeId(header.from), epoch: Epoch(header.epoch) }
    } else {
        // A client's node number is its own affair; that it has none here keeps it from being taken
        // for one of ours. It knows nothing of epochs: what it asks is asked when it comes.
        Caller { node: context.node(), epoch: context.epoch() }
    };
    let class = if header.class == 1 { Class::Control } else { Class::Bulk };
    let to = NodeId(header.to);
    let table = (header.protocol, header.protocol_version);
    // A process that looks for a node in the wrong place has old routes; it is not sent on.
    let reply = if is_process && !context.machine().is_here(to) {
        undelivered_bytes(Undelivered::Unreachable)
    } else {
        crate::door::answer_bytes(context, caller, to, class, table, head, bulk).await
    };
    let reply_header = Header {
        kind: kind::REPLY,
        protocol: header.protocol,
        protocol_version: header.protocol_version,
        call_id: header.call_id,
        ..Header::default()
    };
    pack(reply_header, reply)
}

/// Replies on their way out. Bounded by the outstanding requests of the connection.
#[derive(Default)]
struct Replies {
    waiting: RefCell<VecDeque<Vec<Bytes>>>,
    closed: std::cell::Cell<bool>,
    changed: Event,
}

impl Replies {
    fn push(&self, parts: Vec<Bytes>) {
        self.waiting.borrow_mut().push_back(parts);
        self.changed.tell();
    }

    fn close(&self) {
        self.closed.set(true);
        self.changed.tell();
    }

    async fn send(self: Rc<Self>, mut writer: Box<dyn Writer>) {
        loop {
            let changed = self.changed.next();
            // Everything that waits goes out in one call.
            let parts: Vec<Bytes> = self.waiting.take().into_iter().flatten().collect();
            if parts.is_empty() {
                if self.closed.get() {
                    return;
                }
                changed.await;
            } else if writer.write(parts).await.is_err() {
                // The reading side notices the broken stream too and ends the connection.
                return;
            }
        }
    }
}
