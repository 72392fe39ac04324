//! The asking side: a door to nodes of another process.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, mpsc as std_mpsc};
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::net::UnixStream;
use tokio::runtime::{Builder, Handle};
use tokio::sync::mpsc;
use tokio::task::LocalSet;

use super::frame::{Frames, Greeting, Header, garbled, kind, pack};
use crate::door::{Door, Entrance, Work};
use crate::embedded::{sleep_on, stream};
use crate::ids::{Epoch, NodeId};
use crate::mail::{Envelope, Message};
use crate::net::Stream;
use crate::protocol::{Class, Undelivered};
use crate::wire::{Decoder, Encoder, from_bytes};

/// Requests waiting to be sent, at most; past it the answer is `Busy`.
const QUEUE_MAX: usize = 4096;
/// Work of the door's users waiting to be begun, at most; more of it is dropped.
const WORK_MAX: usize = 1024;

/// Connects to the process that listens at the Unix socket `path`.
///
/// The connection lives as long as the door or one of its clones; its thread ends with it.
pub fn connect(path: &Path) -> io::Result<Door> {
    let (told, greeted) = std_mpsc::channel();
    let (sender, requests) = mpsc::channel(QUEUE_MAX);
    let (worker, work_to_do) = mpsc::channel(WORK_MAX);
    let path = path.to_owned();
    #[allow(clippy::disallowed_methods, reason = "the machine itself makes threads and tasks")]
    std::thread::Builder::new().name("mdfs-remote".into()).spawn(move || {
        let runtime = match Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => {
                let _ = told.send(Err(error));
                return;
            }
        };
        let work = async move {
            match open(&path).await {
                Ok((greeting, frames, writer)) => {
                    // `connect` waits for exactly this message.
                    let _ = told.send(Ok((greeting, Handle::current())));
                    tokio::task::spawn_local(do_all(work_to_do));
                    talk(requests, frames, writer).await;
                }
                Err(error) => {
                    let _ = told.send(Err(error));
                }
            }
        };
        runtime.block_on(LocalSet::new().run_until(work));
    })?;
    let lost = || io::Error::from(io::ErrorKind::ConnectionReset);
    let (greeting, timers) = greeted.recv().map_err(|_| lost())??;
    let node = NodeId::application(0);
    Ok(Door::new(node, Arc::new(Remote { requests: sender, work: worker, greeting, timers })))
}

type Writer = Box<dyn crate::net::Writer>;

#[allow(clippy::disallowed_methods, reason = "the machine itself opens the sockets")]
async fn open(path: &Path) -> io::Result<(Greeting, Frames, Writer)> {
    let (reader, writer) = UnixStream::connect(path).await?.into_split();
    let Stream { reader, writer, .. } = stream(reader, writer, String::new());
    let mut frames = Frames::new(reader);
    let first = frames.next().await?.ok_or(io::ErrorKind::ConnectionReset)?;
    if first.header.kind != kind::GREETING {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok((from_bytes(&first.head).map_err(garbled)?, frames, writer))
}

/// Calls without an answer yet. Dropping one tells its asker that the answer is lost.
#[derive(Default)]
struct Calls {
    open: RefCell<BTreeMap<u64, Box<dyn Message>>>,
    next_id: Cell<u64>,
}

async fn talk(mut requests: mpsc::Receiver<Envelope>, mut frames: Frames, mut writer: Writer) {
    let calls = Rc::new(Calls::default());
    let answering = calls.clone();
    let receive = async move {
        while let Ok(Some(frame)) = frames.next().await {
            let call = answering.open.borrow_mut().remove(&frame.header.call_id);
            if let Some(call) = call {
                call.answer_bytes(Decoder::new(&frame.head, frame.bulk));
            }
        }
    };
    let send = async move {
        while let Some(envelope) = requests.recv().await {
            let mut parts = calls.begin(envelope);
            // Whatever else waits goes out in the same call.
            while let Ok(envelope) = requests.try_recv() {
                parts.extend(calls.begin(envelope));
            }
            if writer.write(parts).await.is_err() {
                return;
            }
        }
        // The door is gone, but its last calls may still be open: wait for their answers.
        while !calls.open.borrow().is_empty() {
            pause().await;
        }
    };
    futures::future::select(Box::pin(receive), Box::pin(send)).await;
}

#[allow(clippy::disallowed_methods, reason = "the machine itself runs the tasks")]
async fn do_all(mut work_to_do: mpsc::Receiver<Work>) {
    while let Some(work) = work_to_do.recv().await {
        tokio::task::spawn_local(work());
    }
}

#[allow(clippy::disallowed_methods, reason = "the machine itself gives the time")]
async fn pause() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

impl Calls {
    fn begin(&self, envelope: Envelope) -> Vec<bytes::Bytes> {
        let call_id = self.next_id.get();
        self.next_id.set(call_id + 1);
        let message = envelope.message;
        let mut body = Encoder::new();
        message.encode(&mut body);
        let header = Header {
            kind: kind::REQUEST,
            protocol: message.protocol(),
            protocol_version: message.version(),
            class: match envelope.class {
                Class::Control => 1,
                Class::Bulk => 2,
            },
            to: envelope.to.0,
            from: envelope.caller.node.0,
            call_id,
            epoch: envelope.caller.epoch.0,
            ..Header::default()
        };
        self.open.borrow_mut().insert(call_id, message);
        pack(header, body)
    }
}

/// The other process, as a door sees it.
struct Remote {
    requests: mpsc::Sender<Envelope>,
    work: mpsc::Sender<Work>,
    greeting: Greeting,
    timers: Handle,
}

impl Entrance for Remote {
    fn send(&self, envelope: Envelope) {
        use mpsc::error::TrySendError;
        match self.requests.try_send(envelope) {
            Ok(()) => {}
            Err(TrySendError::Full(envelope)) => envelope.message.refuse(Undelivered::Busy),
            Err(TrySendError::Closed(envelope)) => {
                envelope.message.refuse(Undelivered::Unreachable);
            }
        }
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        sleep_on(&self.timers, duration)
    }

    fn fs_nodes(&self) -> u32 {
        self.greeting.fs_nodes
    }

    fn epoch(&self) -> Epoch {
        Epoch(self.greeting.epoch)
    }

    fn run(&self, work: Work) {
        if self.work.try_send(work).is_err() {
            tracing::debug!("work was dropped: the connection is over, or has too much of it");
        }
    }
}
