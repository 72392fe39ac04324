//! WRITE and COMMIT.

use bytes::Bytes;
use fileio::protocol::{FILE_SIZE_MAX, Write, WriteResult};
use nfs3_types::nfs3::{
    COMMIT3resfail, COMMIT3resok, WRITE3resfail, WRITE3resok, nfsstat3, stable_how, writeverf3,
};

use super::results::{current_wcc, pack, post_op_attr, take_handle, wcc_changed, wcc_unchanged};
use crate::call_context::CallContext;
use crate::limits::TRANSFER_BYTES;
use crate::xdr::{CallArguments, ProcedureError, ProcedureResult, first_bytes};

//= rfc1813 3.3.7
pub(super) async fn write(context: &CallContext, mut arguments: CallArguments) -> ProcedureResult {
    let file = take_handle(&mut arguments)?;
    let offset = arguments.take::<u64>()?;
    let count = arguments.take::<u32>()?;
    let stable = arguments.take::<stable_how>()?;
    let data = arguments.payload()?;
    if data.iter().map(Bytes::len).sum::<usize>() != count as usize {
        return Err(ProcedureError::GarbageArguments);
    }
    //= rfc1813 3.3.7: more than wtmax: "the server may write only wtmax bytes"
    let count = count.min(TRANSFER_BYTES);
    let data = first_bytes(data, count as usize);

    let durable = stable != stable_how::UNSTABLE;
    pack(match write_bytes(context, &file, offset, data, durable).await {
        Ok(WriteResult { attributes, write_verifier, before, .. }) => Ok(WRITE3resok {
            file_wcc: wcc_changed(before, post_op_attr(context, &attributes)),
            count,
            committed: if durable { stable_how::FILE_SYNC } else { stable_how::UNSTABLE },
            verf: verifier(write_verifier),
        }),
        Err(status) => {
            Err((status, WRITE3resfail { file_wcc: current_wcc(context, &file, false).await }))
        }
    })
}

async fn write_bytes(
    context: &CallContext,
    file: &Bytes,
    offset: u64,
    data: Vec<Bytes>,
    durable: bool,
) -> Result<WriteResult, nfsstat3> {
    let file = context.file(file)?;
    let length = data.iter().map(Bytes::len).sum::<usize>() as u64;
    if offset.checked_add(length).is_none_or(|end| end > FILE_SIZE_MAX) {
        return Err(nfsstat3::NFS3ERR_FBIG);
    }
    context.request(Write { who: context.credentials(), file, offset, data, durable }).await
}

//= rfc1813 3.3.21: offset and count say what must be committed; we commit the whole file, as
//= "count is 0" would ask
pub(super) async fn commit(context: &CallContext, mut arguments: CallArguments) -> ProcedureResult {
    let file = take_handle(&mut arguments)?;
    let _offset = arguments.take::<u64>()?;
    let _count = arguments.take::<u32>()?;
    arguments.finish()?;
    let committed = match context.file(&file) {
        Ok(file) => context.commit(file).await,
        Err(status) => Err(status),
    };
    pack(match committed {
        Ok(WriteResult { attributes, write_verifier, .. }) => Ok(COMMIT3resok {
            file_wcc: wcc_unchanged(post_op_attr(context, &attributes)),
            verf: verifier(write_verifier),
        }),
        Err(status) => {
            Err((status, COMMIT3resfail { file_wcc: current_wcc(context, &file, false).await }))
        }
    })
}

//= rfc1813 3.3.7: the client compares it with those of its unstable writes, and sends again what
//= has another one; here each file has its own
fn verifier(write_verifier: u64) -> writeverf3 {
    writeverf3(write_verifier.to_be_bytes())
}
