//! Byte streams to the outside: NFS clients and other processes.

use std::fmt;
use std::io::{self, IoSliceMut};
use std::path::PathBuf;

use bytes::{Bytes, BytesMut};
use futures::future::LocalBoxFuture;

use crate::identity::Credentials;

/// Where streams are accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// `host:port` over TCP; port 0 lets the system choose.
    Tcp(String),
    /// A Unix socket in the file system of the host.
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => f.write_str(address),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

/// Accepts streams.
pub trait Listener {
    /// The next stream.
    fn accept(&mut self) -> LocalBoxFuture<'_, io::Result<ByteStream>>;
    /// Where this really listens.
    fn address(&self) -> Address;
}

/// One accepted stream.
pub struct ByteStream {
    /// Bytes from the other side.
    pub reader: Box<dyn StreamReader>,
    /// Bytes to the other side.
    pub writer: Box<dyn StreamWriter>,
    /// Who the other side is, as the machine knows it (`address:port`, or `local`).
    pub peer: String,
    /// The user at the other end of a local socket, as the kernel knows it.
    pub user: Option<Credentials>,
}

impl fmt::Debug for ByteStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ByteStream").field("peer", &self.peer).finish_non_exhaustive()
    }
}

/// The receiving half of a stream.
pub trait StreamReader {
    /// Waits for bytes and appends them to the spare capacity of `buffer`, growing it if there is
    /// none. Returns how many; 0 at the end of the stream.
    fn read<'a>(&'a mut self, buffer: &'a mut BytesMut) -> LocalBoxFuture<'a, io::Result<usize>>;

    /// Bytes can go to a place of the caller's choice too.
    fn direct(&mut self) -> Option<&mut dyn Direct> {
        None
    }
}

/// The receiving half of a stream that puts bytes where the caller wants them.
pub trait Direct {
    /// Waits for bytes and fills `rooms`, which are not empty, in order. Returns how many came; 0
    /// at the end of the stream.
    fn read_into<'a>(
        &'a mut self,
        rooms: &'a mut [IoSliceMut<'a>],
    ) -> LocalBoxFuture<'a, io::Result<usize>>;
}

/// The sending half of a stream.
pub trait StreamWriter {
    /// Sends all of `parts` in order, without joining them first.
    fn write(&mut self, parts: Vec<Bytes>) -> LocalBoxFuture<'_, io::Result<()>>;
}
