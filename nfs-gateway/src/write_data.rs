//! Finds the data of a WRITE in the first bytes of a record, before the whole of it was received.

use nfs3_types::nfs3::{NFS_PROGRAM, PROGRAM, VERSION};
use nom::bytes::complete::take;
use nom::combinator::verify;
use nom::number::complete::{be_u32, be_u64};
use nom::{IResult, Parser as _};

use crate::placement::WriteData;
use crate::rpc::authenticator;
use crate::v4::limits::{HANDLE_BYTES_MAX, OPERATIONS_MAX, TAG_BYTES_MAX};
use crate::v4::operation::{self, Nfs4Operation};
use crate::xdr::opaque;

/// Bytes of the arguments of a SEQUENCE (RFC 8881 section 18.46), and of a stateid.
const SEQUENCE_BYTES: usize = 32;
const STATEID_BYTES: usize = 16;

/// The data of the WRITE that a record with the first bytes `head` seems to carry.
pub(crate) fn find(head: &[u8]) -> Option<WriteData> {
    let (rest, (offset, length)) = write(head).ok()?;
    Some(WriteData { start: head.len() - rest.len(), offset, length })
}

/// Decodes a call up to the data that it writes: their offset and length.
fn write(input: &[u8]) -> IResult<&[u8], (u64, usize)> {
    let (input, (_xid, _kind, _rpc_version)) = (be_u32, be_u32, be_u32).parse(input)?;
    let program = verify(be_u32, |program| *program == PROGRAM);
    let (input, (_, version, procedure)) = (program, be_u32, be_u32).parse(input)?;
    let (input, _) = authenticator(input)?;
    let (input, _) = authenticator(input)?;
    match (version, procedure) {
        (VERSION, procedure) if procedure == NFS_PROGRAM::NFSPROC3_WRITE as u32 => write3(input),
        (operation::VERSION, operation::COMPOUND) => write4(input),
        _ => not_a_write(input),
    }
}

fn not_a_write<T>(input: &[u8]) -> IResult<&[u8], T> {
    Err(nom::Err::Error(nom::error::Error::new(input, nom::error::ErrorKind::Alt)))
}

//= rfc1813 3.3.7
fn write3(input: &[u8]) -> IResult<&[u8], (u64, usize)> {
    let (input, _handle) = opaque(input, HANDLE_BYTES_MAX)?;
    let (input, (offset, _count, _stable)) = (be_u64, be_u32, be_u32).parse(input)?;
    data(input, offset)
}

//= rfc8881 16.2, 18.32: as clients do, behind a SEQUENCE and a PUTFH
fn write4(input: &[u8]) -> IResult<&[u8], (u64, usize)> {
    let (input, _tag) = opaque(input, TAG_BYTES_MAX)?;
    let (mut input, (_minor, count)) = (be_u32, be_u32).parse(input)?;
    for _ in 0..count.min(OPERATIONS_MAX) {
        let (arguments, operation) = be_u32(input)?;
        if operation == Nfs4Operation::Write as u32 {
            let (input, (_stateid, offset, _stable)) =
                (take(STATEID_BYTES), be_u64, be_u32).parse(arguments)?;
            return data(input, offset);
        }
        input = if operation == Nfs4Operation::Sequence as u32 {
            take(SEQUENCE_BYTES)(arguments)?.0
        } else if operation == Nfs4Operation::Putfh as u32 {
            opaque(arguments, HANDLE_BYTES_MAX)?.0
        } else {
            return not_a_write(arguments);
        };
    }
    not_a_write(input)
}

fn data(input: &[u8], offset: u64) -> IResult<&[u8], (u64, usize)> {
    let (input, length) = be_u32(input)?;
    Ok((input, (offset, length as usize)))
}
