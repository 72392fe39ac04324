//! REMOVE and RMDIR. The results of both have the same form.

use fileio::protocol::{Remove, RemoveDirectory};
use nfs3_types::nfs3::{REMOVE3resfail, REMOVE3resok, nfsstat3};

use super::results::{DirOpArgs, current_wcc, pack};
use crate::call_context::CallContext;
use crate::nested_exports::check_not_root;
use crate::xdr::{CallArguments, ProcedureResult};

//= rfc1813 3.3.12
pub(super) async fn remove(context: &CallContext, mut arguments: CallArguments) -> ProcedureResult {
    let object = DirOpArgs::take(&mut arguments)?;
    arguments.finish()?;
    let removed = remove_file(context, &object).await;
    reply(context, &object, removed).await
}

async fn remove_file(context: &CallContext, object: &DirOpArgs) -> Result<(), nfsstat3> {
    let (directory, name) = object.entry(context, nfsstat3::NFS3ERR_INVAL)?;
    check_not_root(context, directory, &name)?;
    let (who, call) = (context.credentials(), context.id);
    context.request_once(Remove { who, call, directory, name, durable: context.is_sync() }).await
}

//= rfc1813 3.3.13
pub(super) async fn rmdir(context: &CallContext, mut arguments: CallArguments) -> ProcedureResult {
    let object = DirOpArgs::take(&mut arguments)?;
    arguments.finish()?;
    let removed = remove_directory(context, &object).await;
    reply(context, &object, removed).await
}

async fn remove_directory(context: &CallContext, object: &DirOpArgs) -> Result<(), nfsstat3> {
    //= rfc1813 3.3.13: "." is NFS3ERR_INVAL, ".." is NFS3ERR_EXIST
    let above = &object.name[..] == b"..";
    let dots = if above { nfsstat3::NFS3ERR_EXIST } else { nfsstat3::NFS3ERR_INVAL };
    let (directory, name) = object.entry(context, dots)?;
    check_not_root(context, directory, &name)?;
    let (who, call) = (context.credentials(), context.id);
    let durable = context.is_sync();
    context.request_once(RemoveDirectory { who, call, directory, name, durable }).await
}

async fn reply(
    context: &CallContext,
    object: &DirOpArgs,
    removed: Result<(), nfsstat3>,
) -> ProcedureResult {
    let dir_wcc = current_wcc(context, &object.directory, removed.is_ok()).await;
    pack(match removed {
        Ok(()) => Ok(REMOVE3resok { dir_wcc }),
        Err(status) => Err((status, REMOVE3resfail { dir_wcc })),
    })
}
