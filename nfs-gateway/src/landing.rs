//! Where the data of a large WRITE go: into buffers of the pool, one for each stripe of the file that they fill. The
//! cache takes such a buffer for its line, so that what was received is not copied any more (design D5).

use std::collections::VecDeque;

use nfs3_types::nfs3::{NFS_PROGRAM, PROGRAM, VERSION};
use nom::bytes::complete::take;
use nom::combinator::verify;
use nom::number::complete::{be_u32, be_u64};
use nom::{IResult, Parser as _};
use runtime::buffer::{Buffer, Pool};

use crate::rpc::authenticator;
use crate::v4::limits::{HANDLE_BYTES_MAX, OPERATIONS_MAX, TAG_BYTES_MAX};
use crate::v4::{self, Operation};
use crate::xdr::opaque;

/// Bytes of the arguments of a SEQUENCE (RFC 8881 section 18.46), and of a state id.
const SEQUENCE_BYTES: usize = 32;
const STATEID_BYTES: usize = 16;

/// Where data land.
#[derive(Clone, Debug)]
pub(crate) struct Landing {
    /// The pool of the cache.
    pub(crate) pool: Pool,
    /// Bytes of a stripe.
    pub(crate) stripe_bytes: usize,
}

/// Whole stripes of a record that is being received.
#[derive(Debug)]
pub(crate) struct Stripes {
    /// Bytes before the first, of those that were not taken yet.
    pub(crate) before: usize,
    /// How many are not complete.
    pub(crate) left: usize,
    /// The next ones.
    pub(crate) room: VecDeque<Buffer>,
    /// Bytes of the first of these that have come.
    pub(crate) filled: usize,
    /// As many as have come are taken at once, so that memory stays in proportion.
    pub(crate) taken_next: usize,
}

impl Stripes {
    /// Takes room for the next ones, if there is none; false if the pool has none either.
    pub(crate) fn take_room(&mut self, landing: &Landing) -> bool {
        if self.room.is_empty() {
            let take = || landing.pool.take_spare(landing.stripe_bytes);
            self.room.extend((0..self.taken_next.min(self.left)).map_while(|_| take()));
            self.taken_next *= 2;
        }
        !self.room.is_empty()
    }

    /// So many bytes were put into the room: the stripes that are complete.
    pub(crate) fn fill(&mut self, length: usize) -> Vec<Buffer> {
        self.filled += length;
        let mut complete = Vec::new();
        while let Some(first) = self.room.pop_front_if(|first| first.len() <= self.filled) {
            self.filled -= first.len();
            self.left -= 1;
            complete.push(first);
        }
        complete
    }
}

impl Landing {
    /// A record is looked at when so much of it is there: what is taken for it stays in proportion, and few bytes
    /// are copied.
    pub(crate) fn looked_at_bytes(&self) -> usize {
        self.stripe_bytes / 4
    }

    /// The whole stripes that a record seems to bring which begins with `head` and has `length` bytes. It may
    /// be wrong: whoever serves the call takes it apart anew.
    pub(crate) fn stripes(&self, head: &[u8], length: usize) -> Option<Stripes> {
        let stripe = self.stripe_bytes;
        let (rest, data) = write(head).ok()?;
        let at = head.len() - rest.len();
        let skipped = ((data.offset as usize).wrapping_neg() % stripe).min(data.length);
        let left = (data.length - skipped) / stripe;
        let fits = at.saturating_add(data.length) <= length;
        let (before, room) = (at + skipped, VecDeque::new());
        (fits && left > 0).then_some(Stripes { before, left, room, filled: 0, taken_next: 1 })
    }
}

/// What a WRITE brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Data {
    /// Where in the file it goes.
    offset: u64,
    /// Bytes.
    length: usize,
}

/// A call up to the data that it writes.
fn write(input: &[u8]) -> IResult<&[u8], Data> {
    let (input, (_xid, _kind, _rpc_version)) = (be_u32, be_u32, be_u32).parse(input)?;
    let program = verify(be_u32, |program| *program == PROGRAM);
    let (input, (_, version, procedure)) = (program, be_u32, be_u32).parse(input)?;
    let (input, _) = authenticator(input)?;
    let (input, _) = authenticator(input)?;
    match (version, procedure) {
        (VERSION, procedure) if procedure == NFS_PROGRAM::NFSPROC3_WRITE as u32 => write3(input),
        (v4::VERSION, v4::COMPOUND) => write4(input),
        _ => not_a_write(input),
    }
}

fn not_a_write<T>(input: &[u8]) -> IResult<&[u8], T> {
    Err(nom::Err::Error(nom::error::Error::new(input, nom::error::ErrorKind::Alt)))
}

//= rfc1813 3.3.7
fn write3(input: &[u8]) -> IResult<&[u8], Data> {
    let (input, _handle) = opaque(input, HANDLE_BYTES_MAX)?;
    let (input, (offset, _count, _stable)) = (be_u64, be_u32, be_u32).parse(input)?;
    data(input, offset)
}

//= rfc8881 16.2, 18.32: as clients do, behind a SEQUENCE and a PUTFH
fn write4(input: &[u8]) -> IResult<&[u8], Data> {
    let (input, _tag) = opaque(input, TAG_BYTES_MAX)?;
    let (mut input, (_minor, count)) = (be_u32, be_u32).parse(input)?;
    for _ in 0..count.min(OPERATIONS_MAX) {
        let (arguments, operation) = be_u32(input)?;
        if operation == Operation::Write as u32 {
            let (input, (_stateid, offset, _stable)) =
                (take(STATEID_BYTES), be_u64, be_u32).parse(arguments)?;
            return data(input, offset);
        }
        input = if operation == Operation::Sequence as u32 {
            take(SEQUENCE_BYTES)(arguments)?.0
        } else if operation == Operation::Putfh as u32 {
            opaque(arguments, HANDLE_BYTES_MAX)?.0
        } else {
            return not_a_write(arguments);
        };
    }
    not_a_write(input)
}

fn data(input: &[u8], offset: u64) -> IResult<&[u8], Data> {
    let (input, length) = be_u32(input)?;
    Ok((input, Data { offset, length: length as usize }))
}
