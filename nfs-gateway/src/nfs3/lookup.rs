//! LOOKUP.

use fileio::protocol::{Attributes, Handle};
use futures::future::join;
use nfs3_types::nfs3::{LOOKUP3resfail, LOOKUP3resok, nfs_fh3, nfsstat3};

use super::results::{DirOpArgs, current_attr, pack, post_op_attr};
use crate::call_context::CallContext;
use crate::xdr::{CallArguments, ProcedureResult};
use crate::{lookup, translate};

//= rfc1813 3.3.3
pub(super) async fn serve(context: &CallContext, mut arguments: CallArguments) -> ProcedureResult {
    let what = DirOpArgs::take(&mut arguments)?;
    arguments.finish()?;
    let (found, dir_attributes) =
        join(look_up(context, &what), current_attr(context, &what.directory)).await;
    pack(match found {
        Ok((object, attributes)) => {
            let obj_attributes = post_op_attr(context, &attributes);
            Ok(LOOKUP3resok { object, obj_attributes, dir_attributes })
        }
        Err(status) => Err((status, LOOKUP3resfail { dir_attributes })),
    })
}

async fn look_up(
    context: &CallContext,
    what: &DirOpArgs,
) -> Result<(nfs_fh3, Attributes), nfsstat3> {
    let directory = context.file(&what.directory)?;
    let component = translate::component(what.name.clone())?;
    let found = lookup::component(context, directory, component).await?;
    let file = Handle { ino: found.ino, generation: found.generation };
    Ok((context.handle(file)?, found))
}
