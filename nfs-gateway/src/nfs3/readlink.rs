//! READLINK.

use bytes::Bytes;
use fileio::protocol::ReadLink;
use nfs3_types::nfs3::{READLINK3resfail, READLINK3resok, nfspath3, nfsstat3};

use super::results::{current_attr, pack, take_handle};
use crate::call_context::CallContext;
use crate::xdr::{CallArguments, ProcedureResult};

//= rfc1813 3.3.5
pub(super) async fn serve(context: &CallContext, mut arguments: CallArguments) -> ProcedureResult {
    let symlink = take_handle(&mut arguments)?;
    arguments.finish()?;
    let target = read_link(context, &symlink).await;
    let symlink_attributes = current_attr(context, &symlink).await;
    pack(match target {
        Ok(target) => Ok(READLINK3resok { symlink_attributes, data: nfspath3::from(target) }),
        Err(status) => Err((status, READLINK3resfail { symlink_attributes })),
    })
}

async fn read_link(context: &CallContext, symlink: &Bytes) -> Result<Vec<u8>, nfsstat3> {
    let file = context.file(symlink)?;
    context.request(ReadLink { file }).await
}
