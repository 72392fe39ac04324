//! GETATTR.

use fileio::protocol::GetAttributes;
use nfs3_types::nfs3::GETATTR3resok;
use nfs3_types::xdr_codec::Void;

use super::results::{pack, take_handle};
use crate::call_context::CallContext;
use crate::xdr::{CallArguments, ProcedureError, ReplyBody};

//= rfc1813 3.3.1
pub(super) async fn serve(
    context: &CallContext,
    mut arguments: CallArguments,
) -> Result<ReplyBody, ProcedureError> {
    let object = take_handle(&mut arguments)?;
    arguments.finish()?;
    let attributes = match context.file(&object) {
        Ok(file) => context.request(GetAttributes { file }).await,
        Err(status) => Err(status),
    };
    pack(match attributes {
        Ok(attributes) => {
            let obj_attributes = context.volume().fattr(&attributes);
            Ok(GETATTR3resok { obj_attributes })
        }
        Err(status) => Err((status, Void)),
    })
}
