//! GETATTR.

use nfs3_types::nfs3::GETATTR3resok;
use nfs3_types::xdr_codec::Void;

use super::results::{attributes, pack, take_handle};
use crate::call_context::CallContext;
use crate::xdr::{CallArguments, ProcedureResult};

//= rfc1813 3.3.1
pub(super) async fn serve(context: &CallContext, mut arguments: CallArguments) -> ProcedureResult {
    let object = take_handle(&mut arguments)?;
    arguments.finish()?;
    pack(match attributes(context, &object).await {
        Ok(attributes) => {
            let obj_attributes = context.volume.fattr(&attributes);
            Ok(GETATTR3resok { obj_attributes })
        }
        Err(status) => Err((status, Void)),
    })
}
