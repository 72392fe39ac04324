//! ALLOCATE, DEALLOCATE and SEEK of minor version 2 (RFC 7862).

use fileio::protocol::{Allocate, PunchHole, Seek, SeekTarget};

use crate::v4::compound::Compound;
use crate::v4::state::{READ, WRITE};
use crate::v4::status::{Failed, Status};
use crate::v4::words::Stateid;
use crate::xdr::{Arguments, Out};

/// A range of a file that is open to be written, and whether its mode counts no more.
fn take_range(
    compound: &Compound<'_>,
    arguments: &mut Arguments,
) -> Result<(bool, u64, u64), Failed> {
    let stateid = Stateid::take(arguments)?;
    let (offset, length) = (arguments.take()?, arguments.take()?);
    let open = compound.check_access(stateid, WRITE)?;
    if length == 0 {
        return Err(Status::INVAL.into());
    }
    Ok((open, offset, length))
}

//= rfc7862 15.1: the file becomes as long as the range needs
pub(super) async fn allocate(
    compound: &Compound<'_>,
    arguments: &mut Arguments,
) -> Result<(), Failed> {
    let (open, offset, length) = take_range(compound, arguments)?;
    let file = compound.here()?.file;
    let allocate = |who| Allocate { who, file, offset, length, keep_size: false, durable: true };
    compound.ask_opened(open, allocate).await?;
    Ok(())
}

//= rfc7862 15.4
pub(super) async fn deallocate(
    compound: &Compound<'_>,
    arguments: &mut Arguments,
) -> Result<(), Failed> {
    let (open, offset, length) = take_range(compound, arguments)?;
    let file = compound.here()?.file;
    let punch = |who| PunchHole { who, file, offset, length, durable: true };
    compound.ask_opened(open, punch).await?;
    Ok(())
}

//= rfc7862 15.11: past the end is NXIO; if nothing follows, eof, and the end of the file
pub(super) async fn seek(
    compound: &Compound<'_>,
    arguments: &mut Arguments,
    out: &mut Out,
) -> Result<(), Failed> {
    let stateid = Stateid::take(arguments)?;
    let offset = arguments.take::<u64>()?;
    let target = match arguments.take::<u32>()? {
        0 => SeekTarget::Data {},
        1 => SeekTarget::Hole {},
        _ => return Err(Status::BADXDR.into()),
    };
    let open = compound.check_access(stateid, READ)?;
    let here = compound.here()?;
    let size = here.attributes().await?.size;
    if offset >= size {
        return Err(Status::NXIO.into());
    }
    let file = here.file;
    let found = compound.ask_opened(open, |who| Seek { who, file, offset, target }).await?;
    // The end of the file is a hole, too.
    let at = found.unwrap_or(size);
    out.bool(at >= size);
    out.u64(at);
    Ok(())
}
