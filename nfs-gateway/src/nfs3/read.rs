//! READ.

use bytes::Bytes;
use fileio::protocol::{FILE_SIZE_MAX, Read, ReadData};
use nfs3_types::nfs3::{READ3resfail, nfsstat3};

use super::results::{current_attr, pack, post_op_attr, take_handle};
use crate::call_context::CallContext;
use crate::limits::TRANSFER_BYTES;
use crate::xdr::{CallArguments, ProcedureResult, ReplyBody};

//= rfc1813 3.3.6
pub(super) async fn serve(context: &CallContext, mut arguments: CallArguments) -> ProcedureResult {
    let file = take_handle(&mut arguments)?;
    let offset = arguments.take::<u64>()?;
    let count = arguments.take::<u32>()?;
    arguments.finish()?;
    match read(context, &file, offset, count).await {
        Ok(read) => reply(context, read),
        Err(status) => {
            let file_attributes = current_attr(context, &file).await;
            pack::<u32, _>(Err((status, READ3resfail { file_attributes })))
        }
    }
}

async fn read(
    context: &CallContext,
    file: &Bytes,
    offset: u64,
    count: u32,
) -> Result<ReadData, nfsstat3> {
    let file = context.file(file)?;
    //= rfc1813 3.3.6: "if count is greater than rtmax, the server returns only rtmax bytes"; and
    //= "if offset is greater than or equal to the size of the file, ... count set to 0 and eof"
    let left = FILE_SIZE_MAX.saturating_sub(offset).min(u64::from(TRANSFER_BYTES));
    let length = u64::from(count).min(left) as u32;
    let offset = offset.min(FILE_SIZE_MAX);
    context.request(Read { who: context.credentials(), file, offset, length }).await
}

/// `READ3resok`, whose data are sent without a copy.
fn reply(context: &CallContext, read: ReadData) -> ProcedureResult {
    let count = read.data.iter().map(Bytes::len).sum::<usize>() as u32;
    let mut body = ReplyBody::pack(&nfsstat3::NFS3_OK)?;
    body.push(&post_op_attr(context, &read.attributes))?;
    body.push(&count)?;
    body.push(&read.end)?;
    body.push(&count)?;
    body.tail = read.data;
    Ok(body)
}
