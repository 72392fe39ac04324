//! LINK.

use bytes::Bytes;
use fileio::protocol::{Attributes, Link};
use futures::future::join;
use nfs3_types::nfs3::{LINK3resfail, LINK3resok, nfsstat3};

use super::results::{DirOpArgs, current_attr, current_wcc, pack, post_op_attr, take_handle};
use crate::call_context::CallContext;
use crate::nested_exports::check_link;
use crate::xdr::{CallArguments, ProcedureResult};

//= rfc1813 3.3.15
pub(super) async fn serve(context: &CallContext, mut arguments: CallArguments) -> ProcedureResult {
    let file = take_handle(&mut arguments)?;
    let dir_op = DirOpArgs::take(&mut arguments)?;
    arguments.finish()?;
    pack(match link(context, &file, &dir_op).await {
        Ok(attributes) => Ok(LINK3resok {
            file_attributes: post_op_attr(context, &attributes),
            linkdir_wcc: current_wcc(context, &dir_op.directory, true).await,
        }),
        Err(status) => {
            let (file_attributes, linkdir_wcc) =
                join(current_attr(context, &file), current_wcc(context, &dir_op.directory, false))
                    .await;
            Err((status, LINK3resfail { file_attributes, linkdir_wcc }))
        }
    })
}

async fn link(
    context: &CallContext,
    file: &Bytes,
    dir_op: &DirOpArgs,
) -> Result<Attributes, nfsstat3> {
    let file = context.file(file)?;
    let (directory, name) = dir_op.entry(context, nfsstat3::NFS3ERR_EXIST)?;
    check_link(context, directory, &name)?;
    let (who, call, durable) = (context.credentials(), context.id, context.is_sync());
    context.request_once(Link { who, call, file, directory, name, durable }).await
}
