//! The serving side: other processes ask the nodes of this one.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;

use bytes::Bytes;

use super::frame::{Frame, Frames, Greeting, Header, kind, pack};
use crate::context::Context;
use crate::ids::{Epoch, NodeId};
use crate::net::{Listener, Stream, Writer};
use crate::protocol::Caller;
use crate::sync::{Event, Limit};
use crate::wire::{Encoder, Wire as _};

/// Requests of one connection that run at a time; past it the server stops reading from it.
const OUTSTANDING_MAX: usize = 1024;

/// Accepts and serves connections until the listener fails.
pub async fn serve(context: Context, mut listener: Box<dyn Listener>) -> io::Result<()> {
    loop {
        let stream = listener.accept().await?;
        let served = context.clone();
        context.task(async move {
            if let Err(error) = connection(served, stream).await {
                tracing::debug!(%error, "a connection ended with an error");
            }
        });
    }
}

async fn connection(context: Context, stream: Stream) -> io::Result<()> {
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

    let mut frames = Frames::new(stream.reader);
    let running = Rc::new(Limit::new(OUTSTANDING_MAX, 1));
    let outcome = loop {
        let frame = match frames.next().await {
            Ok(Some(frame)) => frame,
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        };
        if running.acquire().await.map(std::mem::forget).is_none() {
            break Err(io::ErrorKind::OutOfMemory.into());
        }
        let (asked, running, replies) = (context.clone(), running.clone(), replies.clone());
        context.task(async move {
            replies.push(answer(&asked, frame).await);
            running.put_back();
        });
    };
    replies.close();
    outcome
}

async fn answer(context: &Context, Frame { header, head, bulk }: Frame) -> Vec<Bytes> {
    // The asker's node number is its own affair; that it has none here keeps it from being taken
    // for one of ours.
    let caller = Caller { node: context.node(), epoch: Epoch(header.epoch) };
    let to = NodeId(header.to);
    let table = (header.protocol, header.protocol_version);
    let reply = crate::door::answer_bytes(context, caller, to, table, head, bulk).await;
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
