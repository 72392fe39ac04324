//! Plain streams between two processes: TCP by tokio and by busy polling, and a Unix socket.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::runtime::{Builder, Runtime};

use crate::method::{TransportCommand, TransportMethod};

/// A command on a stream: what to do, and with how many bytes.
const COMMAND_SIZE: usize = 9;

fn encode(command: TransportCommand) -> [u8; COMMAND_SIZE] {
    let (kind, length) = match command {
        TransportCommand::Echo(length) => (b'e', length),
        TransportCommand::Sink(length) => (b's', length),
        TransportCommand::Acknowledge => (b'a', 0),
    };
    let mut bytes = [kind; COMMAND_SIZE];
    bytes[1..].copy_from_slice(&(length as u64).to_le_bytes());
    bytes
}

fn decode(bytes: [u8; COMMAND_SIZE]) -> TransportCommand {
    let length = bytes[1..].iter().rev().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
    match bytes[0] {
        b'e' => TransportCommand::Echo(length),
        b's' => TransportCommand::Sink(length),
        _ => TransportCommand::Acknowledge,
    }
}

/// Polls a stream that does not block.
pub(crate) struct PolledStream<S>(S);

impl<S: Read> Read for PolledStream<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.0.read(buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
                other => return other,
            }
        }
    }
}

impl<S: Write> Write for PolledStream<S> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        loop {
            match self.0.write(buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
                other => return other,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// A stream that blocks, or seems to.
pub(crate) struct BlockingMethod<S> {
    stream: S,
    out: Vec<u8>,
    back: Vec<u8>,
}

impl<S: Read + Write> BlockingMethod<S> {
    fn new(stream: S) -> Self {
        Self { stream, out: Vec::new(), back: Vec::new() }
    }

    /// What the other process does.
    fn serve(&mut self) -> io::Result<()> {
        let mut bytes = [0; COMMAND_SIZE];
        while self.stream.read_exact(&mut bytes).is_ok() {
            match decode(bytes) {
                TransportCommand::Echo(length) => {
                    self.back.resize(length.max(self.back.len()), 0);
                    self.stream.read_exact(&mut self.back[..length])?;
                    self.stream.write_all(&self.back[..length])?;
                }
                TransportCommand::Sink(length) => {
                    self.back.resize(length.max(self.back.len()), 0);
                    self.stream.read_exact(&mut self.back[..length])?;
                }
                TransportCommand::Acknowledge => self.stream.write_all(b"!")?,
            }
        }
        Ok(())
    }
}

impl<S: Read + Write> TransportMethod for BlockingMethod<S> {
    fn round_trip(&mut self, content: &[u8]) {
        self.out.clear();
        self.out.extend(encode(TransportCommand::Echo(content.len())));
        self.out.extend(content);
        self.stream.write_all(&self.out).unwrap();
        self.back.resize(content.len().max(self.back.len()), 0);
        self.stream.read_exact(&mut self.back[..content.len()]).unwrap();
        assert_eq!(self.back[content.len() - 1], content[content.len() - 1]);
    }

    fn stream(&mut self, content: &[u8], count: usize) {
        for _ in 0..count {
            self.stream.write_all(&encode(TransportCommand::Sink(content.len()))).unwrap();
            self.stream.write_all(content).unwrap();
        }
        self.stream.write_all(&encode(TransportCommand::Acknowledge)).unwrap();
        self.stream.read_exact(&mut [0]).unwrap();
    }
}

#[allow(clippy::disallowed_methods, reason = "the benchmark opens its own sockets")]
fn listen() -> (TcpListener, String) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port.to_string())
}

#[allow(clippy::disallowed_methods, reason = "the benchmark opens its own sockets")]
fn connect(port: &str) -> TcpStream {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port.parse().unwrap())).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

pub(crate) fn serve_polled(announce: impl FnOnce(&str)) {
    let (listener, port) = listen();
    announce(&port);
    let (stream, _) = listener.accept().unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_nonblocking(true).unwrap();
    BlockingMethod::new(PolledStream(stream)).serve().unwrap();
}

pub(crate) fn polled(port: &str) -> Box<dyn TransportMethod> {
    let stream = connect(port);
    stream.set_nonblocking(true).unwrap();
    Box::new(BlockingMethod::new(PolledStream(stream)))
}

#[allow(clippy::disallowed_methods, reason = "the benchmark opens its own sockets")]
pub(crate) fn serve_unix(announce: impl FnOnce(&str)) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    announce(path.to_str().unwrap());
    BlockingMethod::new(listener.accept().unwrap().0).serve().unwrap();
}

#[allow(clippy::disallowed_methods, reason = "the benchmark opens its own sockets")]
pub(crate) fn unix(path: &str) -> Box<dyn TransportMethod> {
    Box::new(BlockingMethod::new(UnixStream::connect(path).unwrap()))
}

/// TCP as the plain transport of MDFS has it: tokio on one thread.
struct TokioMethod {
    runtime: Runtime,
    stream: tokio::net::TcpStream,
    out: Vec<u8>,
    back: Vec<u8>,
}

impl TokioMethod {
    fn new(stream: TcpStream) -> Self {
        let runtime = Builder::new_current_thread().enable_io().build().unwrap();
        stream.set_nonblocking(true).unwrap();
        stream.set_nodelay(true).unwrap();
        let stream = {
            let _inside = runtime.enter();
            tokio::net::TcpStream::from_std(stream).unwrap()
        };
        Self { runtime, stream, out: Vec::new(), back: Vec::new() }
    }

    fn serve(&mut self) {
        let Self { runtime, stream, back, .. } = self;
        runtime.block_on(async {
            let mut bytes = [0; COMMAND_SIZE];
            while stream.read_exact(&mut bytes).await.is_ok() {
                match decode(bytes) {
                    TransportCommand::Echo(length) => {
                        back.resize(length.max(back.len()), 0);
                        stream.read_exact(&mut back[..length]).await.unwrap();
                        stream.write_all(&back[..length]).await.unwrap();
                    }
                    TransportCommand::Sink(length) => {
                        back.resize(length.max(back.len()), 0);
                        stream.read_exact(&mut back[..length]).await.unwrap();
                    }
                    TransportCommand::Acknowledge => stream.write_all(b"!").await.unwrap(),
                }
            }
        });
    }
}

impl TransportMethod for TokioMethod {
    fn round_trip(&mut self, content: &[u8]) {
        let Self { runtime, stream, out, back } = self;
        out.clear();
        out.extend(encode(TransportCommand::Echo(content.len())));
        out.extend(content);
        back.resize(content.len().max(back.len()), 0);
        runtime.block_on(async {
            stream.write_all(out).await.unwrap();
            stream.read_exact(&mut back[..content.len()]).await.unwrap();
        });
    }

    fn stream(&mut self, content: &[u8], count: usize) {
        let Self { runtime, stream, .. } = self;
        runtime.block_on(async {
            for _ in 0..count {
                stream.write_all(&encode(TransportCommand::Sink(content.len()))).await.unwrap();
                stream.write_all(content).await.unwrap();
            }
            stream.write_all(&encode(TransportCommand::Acknowledge)).await.unwrap();
            stream.read_exact(&mut [0]).await.unwrap();
        });
    }
}

pub(crate) fn serve_tokio(announce: impl FnOnce(&str)) {
    let (listener, port) = listen();
    announce(&port);
    TokioMethod::new(listener.accept().unwrap().0).serve();
}

pub(crate) fn tokio(port: &str) -> Box<dyn TransportMethod> {
    Box::new(TokioMethod::new(connect(port)))
}
