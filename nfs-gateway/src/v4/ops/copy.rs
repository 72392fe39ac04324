//! COPY of minor version 2 (RFC 7862 section 15.2), from one file of the volume to another. The
//! gateway reads from the node of the one file and writes to that of the other; nothing goes to the
//! client.

use fileio::protocol::{Allocate, FILE_SIZE_MAX, Kind, PunchHole, Read, Write};
use futures::{StreamExt as _, stream};

use super::data::{FILE_SYNC, UNSTABLE};
use crate::v4::compound::{Compound, OperationXdr};
use crate::v4::current_fh::CurrentFh;
use crate::v4::limits::{
    COPIES_MAX, COPY_BYTES_MAX, COPY_PIECES_MAX, DATA_BYTES_MAX, OWNER_BYTES_MAX,
};
use crate::v4::state::{Nfs4State, READ, WRITE};
use crate::v4::status::{OperationError, OperationResult, Status};
use crate::v4::types::{Stateid, take_bool};
use crate::xdr::{CallArguments, ProcedureError};
use crate::zeros::{ZeroRun, split_zeros};

/// Servers in the arguments, at most.
const SERVERS_MAX: u32 = 16;

struct CopyArguments {
    source: Stateid,
    target: Stateid,
    from: u64,
    to: u64,
    /// Zero: up to the end.
    count: u64,
    /// The source is at another server.
    is_remote: bool,
}

/// A copy that is under way, until this is dropped.
struct RunningCopy<'a>(&'a Nfs4State);

impl<'a> RunningCopy<'a> {
    fn begin(state: &'a Nfs4State) -> Result<Self, Status> {
        let copies = state.copies.get();
        if copies >= COPIES_MAX {
            return Err(Status::DELAY);
        }
        state.copies.set(copies + 1);
        Ok(Self(state))
    }
}

impl Drop for RunningCopy<'_> {
    fn drop(&mut self) {
        self.0.copies.set(self.0.copies.get() - 1);
    }
}

/// The two files, and whether they are open for it.
struct CopyFiles<'a> {
    source: (&'a CurrentFh, bool),
    target: (&'a CurrentFh, bool),
}

/// A part of a copy that was done.
#[derive(Clone, Copy, Debug)]
struct CopiedPiece {
    /// Where it begins in the target.
    to: u64,
    /// Less than was asked for if the source ends there.
    length: u64,
    /// It was all zeros, so there is a hole now, or nothing behind the end.
    is_hole: bool,
    write_verifier: u64,
}

//= rfc7862 15.2.3: the server may copy synchronously though the client would wait for a callback;
//= clients ask again for what is missing
pub(super) async fn serve(compound: &Compound<'_>, xdr: &mut OperationXdr) -> OperationResult {
    let args = take(&mut xdr.arguments)?;
    if args.is_remote {
        return Err(Status::PARTNER_NOTSUPP.into());
    }
    let (source, target) = (compound.saved_fh()?, compound.current_fh()?);
    let files = CopyFiles {
        source: (source, compound.check_saved_access(args.source, READ)?),
        target: (target, compound.check_access(args.target, WRITE)?),
    };
    let _running = RunningCopy::begin(compound.state())?;
    let count = check_range(&files, &args).await?;
    let (copied, write_verifier) = files.copy(args.from, args.to, count).await?;
    // No callback, since it is done.
    xdr.out.u32(0);
    xdr.out.u64(copied);
    xdr.out.u32(if write_verifier.is_some() { UNSTABLE } else { FILE_SYNC });
    xdr.out.u64(write_verifier.unwrap_or(0));
    // Consecutive and synchronous.
    xdr.out.bool(true);
    xdr.out.bool(true);
    Ok(())
}

fn take(arguments: &mut CallArguments) -> Result<CopyArguments, ProcedureError> {
    let (source, target) = (Stateid::take(arguments)?, Stateid::take(arguments)?);
    let (from, to, count) = (arguments.take()?, arguments.take()?, arguments.take()?);
    let _consecutive = take_bool(arguments)?;
    let _synchronous = take_bool(arguments)?;
    let servers = arguments.take::<u32>()?;
    if servers > SERVERS_MAX {
        return Err(ProcedureError::GarbageArguments);
    }
    for _ in 0..servers {
        // A name, an URL, or a network and an address in it.
        let strings = match arguments.take::<u32>()? {
            1 | 2 => 1,
            3 => 2,
            _ => return Err(ProcedureError::GarbageArguments),
        };
        for _ in 0..strings {
            arguments.opaque(OWNER_BYTES_MAX)?;
        }
    }
    Ok(CopyArguments { source, target, from, to, count, is_remote: servers > 0 })
}

//= rfc7862 15.2.3: NFS4ERR_WRONG_TYPE unless both are regular files; NFS4ERR_INVAL past the end of
//= the source
/// Checks what shall be copied; returns how many bytes that is.
async fn check_range(files: &CopyFiles<'_>, args: &CopyArguments) -> Result<u64, OperationError> {
    let (source, target) = (files.source.0, files.target.0);
    let attributes = source.attributes().await?;
    if attributes.kind != (Kind::File {}) || target.attributes().await?.kind != (Kind::File {}) {
        return Err(Status::WRONG_TYPE.into());
    }
    let rest = attributes.size.checked_sub(args.from).ok_or(Status::INVAL)?;
    let count = if args.count == 0 { rest } else { args.count };
    if count > rest {
        return Err(Status::INVAL.into());
    }
    let is_within = |start: u64, at: u64| (start..start.saturating_add(count)).contains(&at);
    let overlap = is_within(args.from, args.to) || is_within(args.to, args.from);
    if source.file == target.file && overlap {
        return Err(Status::INVAL.into());
    }
    if args.to.checked_add(count).is_none_or(|end| end > FILE_SIZE_MAX) {
        return Err(Status::FBIG.into());
    }
    Ok(count)
}

impl CopyFiles<'_> {
    /// Copies the first of `count` bytes; returns how many, and the write verifier of all of them,
    /// unless there are none. An error only if nothing was copied.
    async fn copy(
        &self,
        from: u64,
        to: u64,
        count: u64,
    ) -> Result<(u64, Option<u64>), OperationError> {
        let count = count.min(COPY_BYTES_MAX);
        let starts = (0..count).step_by(DATA_BYTES_MAX as usize);
        let pieces = starts.map(|start| {
            let length = (count - start).min(DATA_BYTES_MAX.into()) as u32;
            async move { (length, self.copy_piece(from + start, to + start, length).await) }
        });
        let mut pieces = stream::iter(pieces).buffered(COPY_PIECES_MAX);
        let (mut copied, mut last, mut hole_bytes) = (0, None::<CopiedPiece>, 0);
        while let Some((wanted, result)) = pieces.next().await {
            let piece = match result {
                Ok(piece) => piece,
                Err(error) if copied == 0 => return Err(error.into()),
                Err(_) => break,
            };
            // With another verifier, what was copied before may be lost.
            if last.is_some_and(|last| last.write_verifier != piece.write_verifier) {
                break;
            }
            copied += piece.length;
            hole_bytes = if piece.is_hole { hole_bytes + piece.length } else { 0 };
            last = (piece.length > 0).then_some(piece).or(last);
            if piece.length < u64::from(wanted) {
                break;
            }
        }
        if let Some(piece) = last.filter(|piece| piece.is_hole)
            && let Err(error) = self.lengthen(piece).await
        {
            copied -= hole_bytes;
            if copied == 0 {
                return Err(error.into());
            }
        }
        Ok((copied, last.map(|last| last.write_verifier)))
    }

    /// Copies one piece: a hole, if it is all zeros.
    async fn copy_piece(&self, from: u64, to: u64, length: u32) -> Result<CopiedPiece, Status> {
        let ((source, can_read), (target, can_write)) = (self.source, self.target);
        let read = |who| Read { who, file: source.file, offset: from, length };
        let data = source.request_as_opener(can_read, read).await?.data;
        let file = target.file;
        let (is_hole, length) = match split_zeros(from, &data)[..] {
            [] => return Ok(CopiedPiece { to, length: 0, is_hole: false, write_verifier: 0 }),
            [ZeroRun { is_zero: true, length }] => (true, length as u64),
            ref runs => (false, runs.iter().map(|run| run.length as u64).sum()),
        };
        let written = if is_hole {
            let punch = |who| PunchHole { who, file, offset: to, length, durable: false };
            target.request_as_opener(can_write, punch).await?
        } else {
            let write = |who| Write { who, file, offset: to, data: data.clone(), durable: false };
            target.request_as_opener(can_write, write).await?
        };
        Ok(CopiedPiece { to, length, is_hole, write_verifier: written.write_verifier })
    }

    /// Makes the target as long as the hole at its end needs. No write verifier covers that, so it
    /// is durable.
    async fn lengthen(&self, piece: CopiedPiece) -> Result<(), Status> {
        let (target, can_write) = self.target;
        let CopiedPiece { to: offset, length, .. } = piece;
        if target.attributes().await?.size >= offset + length {
            return Ok(());
        }
        let file = target.file;
        let lengthen =
            |who| Allocate { who, file, offset, length, keep_size: false, durable: true };
        target.request_as_opener(can_write, lengthen).await?;
        Ok(())
    }
}
