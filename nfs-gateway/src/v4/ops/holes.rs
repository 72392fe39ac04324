//! ALLOCATE, DEALLOCATE and SEEK of minor version 2 (RFC 7862).

use fileio::protocol::{Allocate, PunchHole, Seek, SeekTarget};

use crate::v4::compound::{Compound, OperationXdr};
use crate::v4::state::{READ, WRITE};
use crate::v4::status::{OperationError, OperationResult, Status};
use crate::v4::types::Stateid;
use crate::xdr::CallArguments;

/// Takes a range to write; returns whether the file is open for that, and the range.
fn take_range(
    compound: &Compound<'_>,
    arguments: &mut CallArguments,
) -> Result<(bool, u64, u64), OperationError> {
    let stateid = Stateid::take(arguments)?;
    let (offset, length) = (arguments.take()?, arguments.take()?);
    let open = compound.check_access(stateid, WRITE)?;
    if length == 0 {
        return Err(Status::INVAL.into());
    }
    Ok((open, offset, length))
}

//= rfc7862 15.1: the file becomes as long as the range needs
pub(super) async fn allocate(compound: &Compound<'_>, xdr: &mut OperationXdr) -> OperationResult {
    let (open, offset, length) = take_range(compound, &mut xdr.arguments)?;
    let file = compound.current_fh()?.file;
    let allocate = |who| Allocate { who, file, offset, length, keep_size: false, durable: true };
    compound.current_fh()?.request_as_opener(open, allocate).await?;
    Ok(())
}

//= rfc7862 15.4
pub(super) async fn deallocate(compound: &Compound<'_>, xdr: &mut OperationXdr) -> OperationResult {
    let (open, offset, length) = take_range(compound, &mut xdr.arguments)?;
    let file = compound.current_fh()?.file;
    let punch = |who| PunchHole { who, file, offset, length, durable: true };
    compound.current_fh()?.request_as_opener(open, punch).await?;
    Ok(())
}

//= rfc7862 15.11: past the end is NXIO; if nothing follows, eof, and the end of the file
pub(super) async fn seek(compound: &Compound<'_>, xdr: &mut OperationXdr) -> OperationResult {
    let stateid = Stateid::take(&mut xdr.arguments)?;
    let offset = xdr.arguments.take::<u64>()?;
    let target = match xdr.arguments.take::<u32>()? {
        0 => SeekTarget::Data {},
        1 => SeekTarget::Hole {},
        _ => return Err(Status::BADXDR.into()),
    };
    let open = compound.check_access(stateid, READ)?;
    let fh = compound.current_fh()?;
    let size = fh.attributes().await?.size;
    if offset >= size {
        return Err(Status::NXIO.into());
    }
    let file = fh.file;
    let found = compound
        .current_fh()?
        .request_as_opener(open, |who| Seek { who, file, offset, target })
        .await?;
    // The end of the file counts as a hole.
    let offset = found.unwrap_or(size);
    xdr.out.bool(offset >= size);
    xdr.out.u64(offset);
    Ok(())
}
