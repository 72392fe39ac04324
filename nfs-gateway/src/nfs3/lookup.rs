//! LOOKUP.

use fileio::protocol::{Attributes, handle_of};
use futures::future::join;
use nfs3_types::nfs3::{LOOKUP3resfail, LOOKUP3resok, nfs_fh3, nfsstat3};

use super::results::{DirOpArgs, current_attr, pack, post_op_attr};
use crate::call_context::CallContext;
use crate::translate::{self, Component};
use crate::xdr::{CallArguments, ProcedureResult};
use crate::{lookup, nested_exports};

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
    let nested = match &component {
        Component::Entry(name) => nested_exports::export_at(context, directory, name)?,
        Component::Dot | Component::DotDot => None,
    };
    let found = lookup::component(context, directory, component).await?;
    let file = handle_of(&found);
    let object = match nested {
        Some(export) => context.handle_in(export, file)?,
        None => context.handle(file)?,
    };
    Ok((object, found))
}
