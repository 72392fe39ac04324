//! READ, `READ_PLUS`, `IO_ADVISE`, WRITE and COMMIT.

use bytes::Bytes;
use fileio::protocol::{FILE_SIZE_MAX, Read, ReadData, Write};

use crate::v4::attributes::Bitmap;
use crate::v4::compound::{Compound, OperationXdr};
use crate::v4::current_fh::check_regular;
use crate::v4::limits::{
    AROUND_DATA_BYTES, AROUND_SEGMENT_BYTES, DATA_BYTES_MAX, REQUEST_BYTES_MAX,
};
use crate::v4::state::{READ, WRITE};
use crate::v4::status::{OperationError, OperationResult, Status};
use crate::v4::types::Stateid;
use crate::xdr::first_bytes;
use crate::zeros::{PieceReader, ZeroRun, split_zeros};

/// `UNSTABLE4`: durable after a COMMIT; `FILE_SYNC4`: durable before the reply.
pub(super) const UNSTABLE: u32 = 0;
pub(super) const FILE_SYNC: u32 = 2;
/// `data_content4`.
const DATA_CONTENT: u32 = 0;
const HOLE_CONTENT: u32 = 1;

//= rfc8881 18.22
pub(super) async fn read(compound: &Compound<'_>, xdr: &mut OperationXdr) -> OperationResult {
    let (_, read) = read_bytes(compound, xdr, AROUND_DATA_BYTES).await?;
    xdr.out.bool(read.end);
    xdr.out.bulk(read.data);
    Ok(())
}

//= rfc7862 15.10: "the allowed values are data and hole"; zeros that were
//= written are a hole as well, so one request to the node is enough, and all is of one moment
pub(super) async fn read_plus(compound: &Compound<'_>, xdr: &mut OperationXdr) -> OperationResult {
    let (mut offset, read) = read_bytes(compound, xdr, AROUND_SEGMENT_BYTES).await?;
    let runs = split_zeros(offset, &read.data);
    let mut pieces = PieceReader::new(&read.data);
    xdr.out.bool(read.end);
    xdr.out.u32(runs.len() as u32);
    for ZeroRun { is_zero, length } in runs {
        let data = pieces.take(length);
        if is_zero {
            xdr.out.u32(HOLE_CONTENT);
            xdr.out.u64(offset);
            xdr.out.u64(length as u64);
        } else {
            xdr.out.u32(DATA_CONTENT);
            xdr.out.u64(offset);
            xdr.out.bulk(data);
        }
        offset += length as u64;
    }
    Ok(())
}

//= rfc8881 18.22.3: "the server may return fewer bytes"; past the end there are none, and eof
/// Reads for READ or `READ_PLUS`, whose results have at most `around` bytes more than the data;
/// returns the offset, too.
async fn read_bytes(
    compound: &Compound<'_>,
    xdr: &mut OperationXdr,
    around: usize,
) -> Result<(u64, ReadData), OperationError> {
    let stateid = Stateid::take(&mut xdr.arguments)?;
    let offset = xdr.arguments.take::<u64>()?;
    let count = xdr.arguments.take::<u32>()?;
    let open = compound.check_access(stateid, READ)?;
    let file = compound.current_fh()?.file;
    let reply_bytes_left = compound.reply_bytes_left(&xdr.out).saturating_sub(around) as u64;
    let left =
        FILE_SIZE_MAX.saturating_sub(offset).min(DATA_BYTES_MAX.into()).min(reply_bytes_left);
    let length = u64::from(count).min(left) as u32;
    let offset = offset.min(FILE_SIZE_MAX);
    let read = compound
        .current_fh()?
        .request_as_opener(open, |who| Read { who, file, offset, length })
        .await?;
    Ok((offset, read))
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
    let written = compound.current_fh()?.request_as_opener(open, write).await?;
    xdr.out.u32(count as u32);
    xdr.out.u32(if durable { FILE_SYNC } else { UNSTABLE });
    xdr.out.u64(written.write_verifier);
    Ok(())
}

//= rfc7862 15.5: the result has the hints that the server follows. There are none: a read-ahead
//= costs memory that the nodes need for the data of others
pub(super) async fn advise(compound: &Compound<'_>, xdr: &mut OperationXdr) -> OperationResult {
    let stateid = Stateid::take(&mut xdr.arguments)?;
    let (offset, count) = (xdr.arguments.take::<u64>()?, xdr.arguments.take::<u64>()?);
    let _hints = Bitmap::take(&mut xdr.arguments)?;
    let fh = compound.current_fh()?;
    check_regular(fh.attributes().await?.kind)?;
    compound.check_access(stateid, READ)?;
    if offset.checked_add(count).is_none() {
        return Err(Status::INVAL.into());
    }
    Bitmap::default().encode(&mut xdr.out);
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
