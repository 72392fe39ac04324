//! As much of XDR (RFC 4506), RPC (RFC 5531) and NFS version 3 (RFC 1813) as the client needs.

use std::io::{self, BufReader, IoSlice, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Longer than any answer takes.
const PATIENCE: Duration = Duration::from_mins(1);
const LAST: u32 = 1 << 31;

/// NFS and MOUNT, with their versions.
pub(crate) const NFS: [u32; 2] = [100_003, 3];
pub(crate) const MOUNT: [u32; 2] = [100_005, 3];

/// Arguments in the making.
#[derive(Clone, Debug, Default)]
pub(crate) struct BenchArgs(pub(crate) Vec<u8>);

impl BenchArgs {
    pub(crate) fn words(mut self, words: &[u32]) -> Self {
        self.0.extend(words.iter().flat_map(|word| word.to_be_bytes()));
        self
    }

    pub(crate) fn long(mut self, value: u64) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    pub(crate) fn opaque(mut self, bytes: &[u8]) -> Self {
        self = self.words(&[bytes.len() as u32]);
        self.0.extend(bytes);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }
}

/// A result, taken from the front.
#[derive(Debug)]
pub(crate) struct BenchResults<'a>(pub(crate) &'a [u8]);

impl<'a> BenchResults<'a> {
    pub(crate) fn skip(&mut self, bytes: usize) -> io::Result<&'a [u8]> {
        let (taken, rest) =
            self.0.split_at_checked(bytes).ok_or_else(|| wrong("a reply is too short"))?;
        self.0 = rest;
        Ok(taken)
    }

    pub(crate) fn word(&mut self) -> io::Result<u32> {
        let bytes = self.skip(4)?;
        Ok(bytes.iter().fold(0, |word, byte| word << 8 | u32::from(*byte)))
    }

    pub(crate) fn opaque(&mut self) -> io::Result<&'a [u8]> {
        let length = self.word()? as usize;
        let padded = self.skip(length.next_multiple_of(4))?;
        Ok(&padded[..length])
    }
}

pub(crate) fn wrong(what: impl Into<String>) -> io::Error {
    io::Error::other(what.into())
}

/// One connection to a program.
pub(crate) struct BenchConnection {
    stream: TcpStream,
    reader: BufReader<TcpStream>,
    program: [u32; 2],
    xid: u32,
    /// The record that came last.
    record: Vec<u8>,
}

impl BenchConnection {
    pub(crate) fn new(address: SocketAddr, program: [u32; 2], xid: u32) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let reader = BufReader::with_capacity(64 << 10, stream.try_clone()?);
        Ok(Self { stream, reader, program, xid, record: Vec::new() })
    }

    /// Sends a call, and `data` behind its arguments as an opaque; its number.
    pub(crate) fn send(
        &mut self,
        procedure: u32,
        args: &BenchArgs,
        data: &[u8],
    ) -> io::Result<u32> {
        self.xid = self.xid.wrapping_add(1);
        let [program, version] = self.program;
        let credential = BenchArgs::default().words(&[0]).opaque(b"bench").words(&[0, 0, 1, 0]);
        let head = BenchArgs::default().words(&[0, self.xid, 0, 2, program, version, procedure, 1]);
        let mut head = head.opaque(&credential.0).words(&[0, 0]).0;
        head.extend_from_slice(&args.0);
        let padding = &[0; 3][..data.len().wrapping_neg() % 4];
        let length = head.len() - 4 + data.len() + padding.len();
        head[..4].copy_from_slice(&(length as u32 | LAST).to_be_bytes());
        let mut parts = [IoSlice::new(&head), IoSlice::new(data), IoSlice::new(padding)];
        let mut left = &mut parts[..];
        while left.iter().any(|part| !part.is_empty()) {
            let sent = self.stream.write_vectored(left)?;
            IoSlice::advance_slices(&mut left, sent);
        }
        Ok(self.xid)
    }

    /// The next reply: its number, and its result.
    pub(crate) fn receive(&mut self) -> io::Result<(u32, BenchResults<'_>)> {
        let mut length = 0;
        loop {
            let mut mark = [0; 4];
            self.reader.read_exact(&mut mark)?;
            let mark = u32::from_be_bytes(mark);
            let end = length + (mark & !LAST) as usize;
            if self.record.len() < end {
                self.record.resize(end, 0);
            }
            self.reader.read_exact(&mut self.record[length..end])?;
            length = end;
            if mark & LAST != 0 {
                break;
            }
        }
        let mut results = BenchResults(&self.record[..length]);
        let xid = results.word()?;
        let (kind, denied) = (results.word()?, results.word()?);
        let _flavour = results.word()?;
        results.opaque()?;
        match (kind, denied, results.word()?) {
            (1, 0, 0) => Ok((xid, results)),
            status => Err(wrong(format!("refused: {status:?}"))),
        }
    }

    /// A call and its result, which begins with its status.
    pub(crate) fn call(
        &mut self,
        procedure: u32,
        args: &BenchArgs,
    ) -> io::Result<(u32, BenchResults<'_>)> {
        self.send(procedure, args, &[])?;
        let (_, mut results) = self.receive()?;
        let status = results.word()?;
        Ok((status, results))
    }
}
