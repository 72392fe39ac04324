//! RENAME.

use fileio::protocol::Rename;
use futures::future::join;
use nfs3_types::nfs3::{RENAME3resfail, RENAME3resok, nfsstat3};

use super::results::{DirOpArgs, current_wcc, pack};
use crate::call_context::CallContext;
use crate::nested_exports::check_rename;
use crate::xdr::{CallArguments, ProcedureResult};

//= rfc1813 3.3.14
pub(super) async fn serve(context: &CallContext, mut arguments: CallArguments) -> ProcedureResult {
    let from = DirOpArgs::take(&mut arguments)?;
    let to = DirOpArgs::take(&mut arguments)?;
    arguments.finish()?;
    let renamed = rename(context, &from, &to).await;
    let changed = renamed.is_ok();
    let from_wcc = current_wcc(context, &from.directory, changed);
    let (fromdir_wcc, todir_wcc) =
        join(from_wcc, current_wcc(context, &to.directory, changed)).await;
    pack(match renamed {
        Ok(()) => Ok(RENAME3resok { fromdir_wcc, todir_wcc }),
        Err(status) => Err((status, RENAME3resfail { fromdir_wcc, todir_wcc })),
    })
}

async fn rename(context: &CallContext, from: &DirOpArgs, to: &DirOpArgs) -> Result<(), nfsstat3> {
    //= rfc1813 3.3.14: "." and ".." are NFS3ERR_INVAL, as old name and as new name
    let (from_directory, from_name) = from.entry(context, nfsstat3::NFS3ERR_INVAL)?;
    let (to_directory, to_name) = to.entry(context, nfsstat3::NFS3ERR_INVAL)?;
    check_rename(context, from_directory, &from_name)?;
    check_rename(context, to_directory, &to_name)?;
    let (who, call) = (context.credentials(), context.id);
    context
        .request_once(Rename {
            who,
            call,
            from_directory,
            from_name,
            to_directory,
            to_name,
            replace: true,
            durable: context.is_sync(),
        })
        .await
}
