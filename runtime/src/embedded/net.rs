//! TCP and Unix sockets of the host.

use std::collections::VecDeque;
use std::fs::Permissions;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::unix::fs::PermissionsExt as _;

use bytes::{Buf as _, Bytes, BytesMut};
use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::tcp::OwnedReadHalf;
use tokio::net::{TcpListener, UnixListener};

use crate::net::{Address, ByteStream, Direct, Listener, StreamReader, StreamWriter};

/// All users of the host may connect: the server sees who they are (ADR 80).
const SOCKET_MODE: u32 = 0o666;

/// Room that a reader makes before it asks for bytes.
const READ_ROOM: usize = 64 << 10;

/// Pieces handed to the kernel in one call, at most (the kernel's own limit is 1024).
const PIECES_MAX: usize = 64;

/// Accepts streams at `address`.
#[allow(clippy::disallowed_methods, reason = "the machine itself opens the sockets")]
pub(super) fn listen(address: Address) -> LocalBoxFuture<'static, io::Result<Box<dyn Listener>>> {
    async move {
        match address {
            Address::Tcp(address) => {
                let listener: Box<dyn Listener> = Box::new(TcpListener::bind(address).await?);
                Ok(listener)
            }
            Address::Unix(path) => {
                // The caller holds the lock of the volume: a socket that is there is a leftover.
                match std::fs::remove_file(&path) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
                let listener = UnixListener::bind(&path)?;
                std::fs::set_permissions(&path, Permissions::from_mode(SOCKET_MODE))?;
                let listener: Box<dyn Listener> = Box::new(listener);
                Ok(listener)
            }
        }
    }
    .boxed_local()
}

/// Both halves of a socket as a [`ByteStream`].
pub fn stream(
    reader: impl AsyncRead + Unpin + 'static,
    writer: impl AsyncWrite + Unpin + 'static,
    peer: String,
) -> ByteStream {
    ByteStream {
        reader: Box::new(SocketReader(reader)),
        writer: Box::new(SocketWriter(writer)),
        peer,
        user: None,
    }
}

impl Listener for TcpListener {
    fn accept(&mut self) -> LocalBoxFuture<'_, io::Result<ByteStream>> {
        async move {
            let (socket, peer) = (*self).accept().await?;
            socket.set_nodelay(true)?;
            let (reader, writer) = socket.into_split();
            let (reader, writer) = (Box::new(TcpReader(reader)), Box::new(SocketWriter(writer)));
            Ok(ByteStream { reader, writer, peer: peer.to_string(), user: None })
        }
        .boxed_local()
    }

    fn address(&self) -> Address {
        Address::Tcp(self.local_addr().map(|address| address.to_string()).unwrap_or_default())
    }
}

impl Listener for UnixListener {
    fn accept(&mut self) -> LocalBoxFuture<'_, io::Result<ByteStream>> {
        async move {
            let (socket, _) = (*self).accept().await?;
            let user = super::peer::credentials(&socket)?;
            let name = format!("user {}", user.uid);
            let (reader, writer) = socket.into_split();
            Ok(ByteStream { user: Some(user), ..stream(reader, writer, name) })
        }
        .boxed_local()
    }

    fn address(&self) -> Address {
        let address = self.local_addr().ok();
        let path = address.as_ref().and_then(|address| address.as_pathname());
        Address::Unix(path.map(Into::into).unwrap_or_default())
    }
}

async fn read_some(
    reader: &mut (impl AsyncRead + Unpin),
    buffer: &mut BytesMut,
) -> io::Result<usize> {
    if buffer.capacity() == buffer.len() {
        buffer.reserve(READ_ROOM);
    }
    reader.read_buf(buffer).await
}

struct SocketReader<R>(R);

impl<R: AsyncRead + Unpin> StreamReader for SocketReader<R> {
    fn read<'a>(&'a mut self, buffer: &'a mut BytesMut) -> LocalBoxFuture<'a, io::Result<usize>> {
        async move {
            if buffer.capacity() == buffer.len() {
                buffer.reserve(READ_ROOM);
            }
            self.0.read_buf(buffer).await
        }
        .boxed_local()
    }
}

/// The same of a TCP connection.
struct TcpReader(OwnedReadHalf);

impl StreamReader for TcpReader {
    fn read<'a>(&'a mut self, buffer: &'a mut BytesMut) -> LocalBoxFuture<'a, io::Result<usize>> {
        read_some(&mut self.0, buffer).boxed_local()
    }

    fn direct(&mut self) -> Option<&mut dyn Direct> {
        Some(self)
    }
}

impl Direct for TcpReader {
    fn read_into<'a>(
        &'a mut self,
        rooms: &'a mut [IoSliceMut<'a>],
    ) -> LocalBoxFuture<'a, io::Result<usize>> {
        async move {
            loop {
                self.0.readable().await?;
                match self.0.try_read_vectored(rooms) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    received => return received,
                }
            }
        }
        .boxed_local()
    }
}

struct SocketWriter<W>(W);

impl<W: AsyncWrite + Unpin> StreamWriter for SocketWriter<W> {
    fn write(&mut self, parts: Vec<Bytes>) -> LocalBoxFuture<'_, io::Result<()>> {
        async move {
            let mut left: VecDeque<Bytes> = parts.into();
            left.retain(|part| !part.is_empty());
            while !left.is_empty() {
                let slices: Vec<IoSlice<'_>> =
                    left.iter().take(PIECES_MAX).map(|part| IoSlice::new(part)).collect();
                let mut sent = self.0.write_vectored(&slices).await?;
                if sent == 0 {
                    return Err(io::ErrorKind::WriteZero.into());
                }
                while let Some(part) = left.front_mut() {
                    if sent < part.len() {
                        part.advance(sent);
                        break;
                    }
                    sent -= part.len();
                    left.pop_front();
                }
            }
            self.0.flush().await
        }
        .boxed_local()
    }
}
