//! READ, WRITE and COMMIT.

use bytes::Bytes;
use fileio::protocol::{FILE_SIZE_MAX, Read, Write};

use crate::v4::compound::{Compound, OperationXdr};
use crate::v4::limits::{AROUND_DATA_BYTES, DATA_BYTES_MAX, REQUEST_BYTES_MAX};
use crate::v4::state::{READ, WRITE};
use crate::v4::status::{OperationResult, Status};
use crate::v4::types::Stateid;
use crate::xdr::first_bytes;

/// `UNSTABLE4`: durable after a COMMIT; `FILE_SYNC4`: durable before the reply.
const UNSTABLE: u32 = 0;
const FILE_SYNC: u32 = 2;

//= rfc8881 18.22
pub(super) async fn read(compound: &Compound<'_>, xdr: &mut OperationXdr) -> OperationResult {
    let stateid = Stateid::take(&mut xdr.arguments)?;
    let offset = xdr.arguments.take::<u64>()?;
    let count = xdr.arguments.take::<u32>()?;
    let open = compound.check_access(stateid, READ)?;
    let file = compound.current_fh()?.file;
    //= rfc8881 18.22.3: "the server may return fewer bytes"; past the end there are none, and eof
    let reply_bytes_left =
        compound.reply_bytes_left(&xdr.out).saturating_sub(AROUND_DATA_BYTES) as u64;
    let left =
        FILE_SIZE_MAX.saturating_sub(offset).min(DATA_BYTES_MAX.into()).min(reply_bytes_left);
    let length = u64::from(count).min(left) as u32;
    let offset = offset.min(FILE_SIZE_MAX);
    let read = compound.request_as_opener(open, |who| Read { who, file, offset, length }).await?;
    xdr.out.bool(read.end);
    xdr.out.bulk(read.data);
    Ok(())
}

//= rfc8881 18.32
pub(super) async fn write(compound: &Compound<'_>, xdr: &mut OperationXdr) -> OperationResult {
    let stateid = Stateid::take(&mut xdr.arguments)?;
    let offset = xdr.arguments.take::<u64>()?;
    let stable = xdr.arguments.take::<u32>()?;
    let data = xdr.arguments.bulk(REQUEST_BYTES_MAX as usize)?;
    if stable > FILE_SYNC {
        return Err(Status::BADXDR.into());
    }
    let open = compound.check_access(stateid, WRITE)?;
    let file = compound.current_fh()?.file;
    //= rfc8881 18.32.3: "the server may write fewer bytes"
    let data = first_bytes(data, DATA_BYTES_MAX as usize);
    let count: usize = data.iter().map(Bytes::len).sum();
    if offset.checked_add(count as u64).is_none_or(|end| end > FILE_SIZE_MAX) {
        return Err(Status::FBIG.into());
    }
    let durable = stable != UNSTABLE;
    let write = |who| Write { who, file, offset, data: data.clone(), durable };
    let written = compound.request_as_opener(open, write).await?;
    xdr.out.u32(count as u32);
    xdr.out.u32(if durable { FILE_SYNC } else { UNSTABLE });
    xdr.out.u64(written.write_verifier);
    Ok(())
}

//= rfc8881 18.3: offset and count say what must be durable; we commit the whole file
pub(super) async fn commit(compound: &Compound<'_>, xdr: &mut OperationXdr) -> OperationResult {
    let _offset = xdr.arguments.take::<u64>()?;
    let _count = xdr.arguments.take::<u32>()?;
    let fh = compound.current_fh()?;
    let committed = fh.context.commit(fh.file).await?;
    xdr.out.u64(committed.write_verifier);
    Ok(())
}
