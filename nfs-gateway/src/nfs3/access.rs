//! ACCESS.

use fileio::protocol::{Attributes, Credentials, Kind};
use nfs3_types::nfs3::{
    ACCESS3_DELETE, ACCESS3_EXECUTE, ACCESS3_EXTEND, ACCESS3_LOOKUP, ACCESS3_MODIFY, ACCESS3_READ,
    ACCESS3resfail, ACCESS3resok,
};

use super::results::{attributes, pack, post_op_attr, take_handle};
use crate::call_context::CallContext;
use crate::xdr::{CallArguments, ProcedureResult};
use fileio::protocol::access::{EXECUTE, READ, WRITE};

//= rfc1813 3.3.4
pub(super) async fn serve(context: &CallContext, mut arguments: CallArguments) -> ProcedureResult {
    let object = take_handle(&mut arguments)?;
    let wanted = arguments.take::<u32>()?;
    arguments.finish()?;
    pack(match attributes(context, &object).await {
        Ok(attributes) => Ok(ACCESS3resok {
            obj_attributes: post_op_attr(context, &attributes),
            access: wanted & granted(&attributes, &context.credentials(), context.may_write()),
        }),
        Err(status) => Err((status, ACCESS3resfail::default())),
    })
}

/// The access that `who` has, as far as it applies to this kind of object.
pub(crate) fn granted(attributes: &Attributes, who: &Credentials, may_write: bool) -> u32 {
    let directory = attributes.kind == (Kind::Directory {});
    let (by_write, by_execute) = if directory {
        (ACCESS3_MODIFY | ACCESS3_EXTEND | ACCESS3_DELETE, ACCESS3_LOOKUP)
    } else {
        (ACCESS3_MODIFY | ACCESS3_EXTEND, ACCESS3_EXECUTE)
    };
    let rights = [(READ, ACCESS3_READ), (WRITE, by_write), (EXECUTE, by_execute)];
    let granted = rights
        .iter()
        .filter(|(mode, _)| (may_write || *mode != WRITE) && attributes.permits(who, *mode));
    granted.fold(0, |granted, (_, access)| granted | access)
}
