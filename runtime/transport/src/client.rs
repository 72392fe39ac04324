//! The client side of a connection: requests to nodes of another process.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::time::Duration;

use futures::FutureExt as _;
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use super::fast_path::FastPath;
use super::frame::{FrameReader, PeerHello, ServerHello, frame_of, garbled, kind, pack, request};
use super::guard::{Guard, Refusal};
use runtime::embedded::stream;
use runtime::mail::{Envelope, Message};
use runtime::net::ByteStream;
use runtime::wire::{Decoder, from_bytes};

/// How often a link whose thread is gone looks whether its last answers have come.
const LAST_ANSWERS_PAUSE: Duration = Duration::from_millis(1);

type LinkWriter = Box<dyn runtime::net::StreamWriter>;

/// Calls without an answer yet. Dropping one tells its asker that the answer is lost.
#[derive(Default)]
struct OpenCalls {
    open: RefCell<BTreeMap<u64, Box<dyn Message>>>,
    next_id: Cell<u64>,
}

/// Connects to another process of the cluster and introduces itself.
#[allow(clippy::disallowed_methods, reason = "the machine itself opens the sockets")]
pub(crate) async fn dial(
    address: &str,
    hello: &PeerHello,
    guard: &Guard,
) -> io::Result<(FrameReader, LinkWriter)> {
    let socket = connect_to(address).await?;
    let (reader, writer) = socket.into_split();
    let plain = stream(reader, writer, address.to_owned());
    let stranger = |error: &io::Error| {
        // What it sent is no proof, or no TLS at all; or it does not believe us.
        use io::ErrorKind::{InvalidData, UnexpectedEof};
        if matches!(error.kind(), InvalidData | UnexpectedEof) {
            guard.refuse(address, Refusal::Unauthenticated, error);
        }
    };
    let greeted = guard.greet(plain, hello.wanted).await.inspect_err(stranger)?;
    let ByteStream { reader, mut writer, .. } = greeted;
    writer.write(frame_of(kind::HELLO, hello)).await?;
    let mut frames = FrameReader::new(reader);
    // A process that does not want us closes without a word, or says by TLS why.
    greeting(&mut frames).await.inspect_err(stranger)?;
    Ok((frames, writer))
}

/// A request that was not sent when a link is given up is dropped, and none is sent again: what was
/// lost must not arrive when it was asked for once more by another link, and done (ADR 57).
#[allow(clippy::disallowed_methods, reason = "the machine itself opens the sockets")]
async fn connect_to(address: &str) -> io::Result<TcpStream> {
    let socket = TcpStream::connect(address).await?;
    socket.set_nodelay(true)?;
    socket.set_zero_linger()?;
    Ok(socket)
}

async fn greeting(frames: &mut FrameReader) -> io::Result<ServerHello> {
    let first = frames.next().await?.ok_or(io::ErrorKind::ConnectionReset)?;
    if first.header.kind != kind::GREETING {
        return Err(io::ErrorKind::InvalidData.into());
    }
    from_bytes(&first.head).map_err(garbled)
}

/// How the other side is watched.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkTimeout {
    /// The connection is given up after this silence; PING frames ask for signs of life.
    pub(crate) silence_max: Duration,
}

/// Sends `next` and what comes in by `requests`, and brings the answers, until the connection ends
/// or all handles are gone. Calls that are open then are lost. An error if the other side, or a
/// third party between, broke the rules.
pub(crate) async fn talk(
    mut next: Option<Envelope>,
    requests: &mut mpsc::Receiver<Envelope>,
    mut frames: FrameReader,
    mut writer: LinkWriter,
    LinkTimeout { silence_max }: LinkTimeout,
    fast_path: &FastPath,
) -> io::Result<()> {
    let calls = OpenCalls::default();
    let is_heard = Cell::new(true);
    let receive = async {
        while let Some(frame) = frames.next().await? {
            is_heard.set(true);
            if frame.header.kind == kind::GRANT {
                fast_path.take_grant(&frame.head);
                continue;
            }
            // A sign of life answers no call, though its number is that of the first one.
            if frame.header.kind != kind::REPLY {
                continue;
            }
            let call = calls.open.borrow_mut().remove(&frame.header.call_id);
            if let Some(call) = call {
                call.answer_bytes(Decoder::new(&frame.head, frame.bulk));
            }
        }
        Ok(())
    };
    let listen = async {
        loop {
            is_heard.set(false);
            pause(silence_max).await;
            if !is_heard.get() {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
    };
    let send = async {
        loop {
            let mut parts = next.take().map(|envelope| calls.begin(envelope)).unwrap_or_default();
            // Whatever else waits goes out in the same call.
            while let Ok(envelope) = requests.try_recv() {
                parts.extend(calls.begin(envelope));
            }
            parts.extend(fast_path.offer());
            if parts.is_empty() {
                parts = frame_of(kind::PING, &());
            }
            // The other half tells what is wrong with a connection that is broken.
            if writer.write(parts).await.is_err() {
                return Ok(());
            }
            let waited = within(silence_max / 4, requests.recv()).await;
            match waited {
                Some(Some(envelope)) => next = Some(envelope),
                Some(None) => break,
                None => {}
            }
        }
        // The handle is gone, but its last calls may still be open: wait for their answers.
        while !calls.open.borrow().is_empty() {
            pause(LAST_ANSWERS_PAUSE).await;
        }
        Ok(())
    };
    let mut ends = [receive.boxed_local(), listen.boxed_local(), send.boxed_local()];
    futures::future::select_all(&mut ends).await.0
}

#[allow(clippy::disallowed_methods, reason = "the machine itself gives the time")]
pub(crate) async fn within<T>(duration: Duration, work: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(duration, work).await.ok()
}

#[allow(clippy::disallowed_methods, reason = "the machine itself gives the time")]
pub(crate) async fn pause(duration: Duration) {
    tokio::time::sleep(duration).await;
}

impl OpenCalls {
    fn begin(&self, envelope: Envelope) -> Vec<bytes::Bytes> {
        let call_id = self.next_id.get();
        self.next_id.set(call_id + 1);
        let (header, body) = request(&envelope, call_id);
        self.open.borrow_mut().insert(call_id, envelope.message);
        pack(header, body)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;
    use tokio::net::TcpListener;
    use tokio::runtime::Builder;

    use super::*;

    #[test]
    #[allow(clippy::disallowed_methods, reason = "the other side is no machine of ours")]
    fn a_link_that_is_given_up_sends_nothing_any_more() {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap().to_string();
            let given_up = connect_to(&address).await.unwrap();
            let (mut accepted, _) = listener.accept().await.unwrap();
            // More than the other side takes.
            while given_up.try_write(&vec![0; 1 << 16]).is_ok() {}
            drop(given_up);
            let mut taken = Vec::new();
            let ended = accepted.read_to_end(&mut taken).await;
            assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        });
    }
}
