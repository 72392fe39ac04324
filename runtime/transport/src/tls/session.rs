//! A protected byte stream over any other.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, BufRead as _, IoSlice, Write as _};
use std::rc::Rc;

use bytes::{Buf as _, Bytes, BytesMut};
use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use tokio_rustls::rustls::{Connection, Error as TlsError};

use super::Certificate;
use runtime::net::{ByteStream, StreamReader, StreamWriter};

/// Bytes that are sealed before they are sent, at most: they are copied once.
const SEAL_CHUNK_MAX: usize = 256 << 10;

pub(super) fn invalid(error: TlsError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// Does the handshake over `stream`; gives the protected stream, and the certificate of the other
/// side.
pub(super) async fn open(
    connection: Connection,
    stream: ByteStream,
) -> io::Result<(ByteStream, Option<Certificate>)> {
    let ByteStream { mut reader, mut writer, peer, user } = stream;
    let session = Rc::new(TlsSession(RefCell::new(connection)));
    // Sealed pieces are bounded by us, and what is received is taken out at once.
    session.0.borrow_mut().set_buffer_limit(None);
    let mut sealed = BytesMut::new();
    loop {
        let taken = session.take_handshake(&mut sealed);
        // Also if it failed: the other side shall know why.
        let told = session.flush();
        if !told.is_empty() {
            writer.write(vec![told]).await?;
        }
        taken?;
        if !session.0.borrow().is_handshaking() {
            break;
        }
        if reader.read(&mut sealed).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    let certificate = session
        .0
        .borrow()
        .peer_certificates()
        .and_then(|chain| chain.first())
        .map(|certificate| certificate.clone().into_owned());
    let reader = Box::new(TlsReader { session: session.clone(), reader, sealed });
    let writer = Box::new(TlsWriter { session, writer });
    Ok((ByteStream { reader, writer, peer, user }, certificate))
}

/// What both halves of a stream share.
struct TlsSession(RefCell<Connection>);

impl TlsSession {
    /// Takes in what has come, up to the end of the handshake.
    fn take_handshake(&self, sealed: &mut BytesMut) -> io::Result<()> {
        let mut connection = self.0.borrow_mut();
        while connection.is_handshaking() && !sealed.is_empty() {
            take_some(&mut connection, sealed)?;
        }
        Ok(())
    }

    /// Opens all of `sealed` that is whole, and appends it to `out`. False if the other side has
    /// ended the stream in order.
    fn unseal(&self, sealed: &mut BytesMut, out: &mut BytesMut) -> io::Result<bool> {
        let mut connection = self.0.borrow_mut();
        loop {
            let mut plain = connection.reader();
            loop {
                let length = match plain.fill_buf() {
                    Ok([]) => return Ok(false),
                    Ok(chunk) => {
                        out.extend_from_slice(chunk);
                        chunk.len()
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error),
                };
                plain.consume(length);
            }
            if sealed.is_empty() {
                return Ok(true);
            }
            take_some(&mut connection, sealed)?;
        }
    }

    /// Seals `parts`, in order.
    fn seal(&self, parts: &[Bytes]) -> io::Result<Bytes> {
        let slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
        let length: usize = parts.iter().map(Bytes::len).sum();
        let taken = self.0.borrow_mut().writer().write_vectored(&slices)?;
        if taken < length {
            return Err(io::ErrorKind::WriteZero.into());
        }
        Ok(self.flush())
    }

    /// What is to be sent.
    fn flush(&self) -> Bytes {
        let mut connection = self.0.borrow_mut();
        let mut out = Vec::new();
        while connection.wants_write() {
            // Writing into memory cannot fail.
            let _ = connection.write_tls(&mut out);
        }
        out.into()
    }
}

/// Takes in a part of `sealed`, which is not empty.
fn take_some(connection: &mut Connection, sealed: &mut BytesMut) -> io::Result<()> {
    let taken = connection.read_tls(&mut &sealed[..])?;
    sealed.advance(taken);
    connection.process_new_packets().map_err(invalid)?;
    Ok(())
}

struct TlsReader {
    session: Rc<TlsSession>,
    reader: Box<dyn StreamReader>,
    sealed: BytesMut,
}

impl StreamReader for TlsReader {
    fn read<'a>(&'a mut self, buffer: &'a mut BytesMut) -> LocalBoxFuture<'a, io::Result<usize>> {
        async move {
            let before = buffer.len();
            loop {
                let goes_on = self.session.unseal(&mut self.sealed, buffer)?;
                let length = buffer.len() - before;
                if length > 0 || !goes_on {
                    return Ok(length);
                }
                if self.reader.read(&mut self.sealed).await? == 0 {
                    // The connection was cut, or the other process has died.
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
        }
        .boxed_local()
    }
}

struct TlsWriter {
    session: Rc<TlsSession>,
    writer: Box<dyn StreamWriter>,
}

impl StreamWriter for TlsWriter {
    fn write(&mut self, parts: Vec<Bytes>) -> LocalBoxFuture<'_, io::Result<()>> {
        async move {
            let mut left: VecDeque<Bytes> = parts.into();
            while !left.is_empty() {
                let piece = take_up_to(&mut left, SEAL_CHUNK_MAX);
                let sealed = self.session.seal(&piece)?;
                self.writer.write(vec![sealed]).await?;
            }
            Ok(())
        }
        .boxed_local()
    }
}

/// The first `room` bytes of `left`, or all.
fn take_up_to(left: &mut VecDeque<Bytes>, mut room: usize) -> Vec<Bytes> {
    let mut taken = Vec::new();
    while room > 0
        && let Some(mut part) = left.pop_front()
    {
        if part.len() > room {
            left.push_front(part.split_off(room));
        }
        room -= part.len();
        taken.push(part);
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_cut_to_their_room_and_nothing_is_lost() {
        let parts = [3_usize, 0, 10, 1, 7].map(|length| Bytes::from(vec![length as u8; length]));
        for room in [1, 2, 5, 100] {
            let mut left: VecDeque<Bytes> = parts.to_vec().into();
            let mut whole = Vec::new();
            while !left.is_empty() {
                let piece = take_up_to(&mut left, room).concat();
                assert!(piece.len() <= room);
                whole.extend(piece);
            }
            assert_eq!(whole, parts.concat());
        }
    }
}
