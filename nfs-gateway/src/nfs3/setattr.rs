//! SETATTR.

use bytes::Bytes;
use fileio::protocol::{Attributes, GetAttributes, Handle, SetAttributes, Time};
use nfs3_types::nfs3::{
    Nfs3Option, SETATTR3resfail, SETATTR3resok, nfsstat3, nfstime3, sattr3, sattrguard3,
};

use super::results::{current_wcc, pack, post_op_attr, take_handle, wcc_after};
use crate::call_context::CallContext;
use crate::translate;
use crate::xdr::{CallArguments, ProcedureResult};

//= rfc1813 3.3.2
pub(super) async fn serve(context: &CallContext, mut arguments: CallArguments) -> ProcedureResult {
    let object = take_handle(&mut arguments)?;
    let attributes = arguments.take::<sattr3>()?;
    let guard = arguments.take::<sattrguard3>()?;
    arguments.finish()?;
    pack(match set(context, &object, &attributes, &guard).await {
        Ok(attributes) => {
            Ok(SETATTR3resok { obj_wcc: wcc_after(post_op_attr(context, &attributes)) })
        }
        Err(status) => {
            Err((status, SETATTR3resfail { obj_wcc: current_wcc(context, &object, false).await }))
        }
    })
}

async fn set(
    context: &CallContext,
    object: &Bytes,
    attributes: &sattr3,
    guard: &sattrguard3,
) -> Result<Attributes, nfsstat3> {
    let file = context.file(object)?;
    let change = translate::change(attributes)?;
    //= rfc1813 3.3.2: "if the guard ... does not match the current ctime ... NFS3ERR_NOT_SYNC"
    let only_if_ctime = match guard {
        Nfs3Option::Some(ctime) => Some(meant(context, file, *ctime).await?),
        Nfs3Option::None => None,
    };
    let (who, durable) = (context.credentials(), context.is_sync());
    context.request(SetAttributes { who, file, change, only_if_ctime, durable }).await
}

/// The time of `file` that a client received as `ctime`.
async fn meant(context: &CallContext, file: Handle, ctime: nfstime3) -> Result<Time, nfsstat3> {
    let now = context.request(GetAttributes { file }).await?;
    let is_as_told = context.volume.fattr(&now).ctime == ctime;
    is_as_told.then_some(now.ctime).ok_or(nfsstat3::NFS3ERR_NOT_SYNC)
}
