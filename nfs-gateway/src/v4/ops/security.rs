//! SECINFO and `SECINFO_NO_NAME`: the security flavours that are accepted.

use super::handles::{look_up_name, parent};
use crate::rpc::AUTH_SYS;
use crate::v4::compound::{Compound, OperationXdr};
use crate::v4::status::{OperationResult, Status};
use crate::xdr::XdrEncoder;

//= rfc8881 18.29: after it there is no current file handle
pub(super) async fn of_name(
    compound: &mut Compound<'_>,
    xdr: &mut OperationXdr,
) -> OperationResult {
    let name = xdr.arguments.opaque(usize::MAX)?;
    look_up_name(compound.current_fh()?, name).await?;
    encode_flavours(compound, &mut xdr.out);
    Ok(())
}

//= rfc8881 18.45
pub(super) async fn of_current(
    compound: &mut Compound<'_>,
    xdr: &mut OperationXdr,
) -> OperationResult {
    let style = xdr.arguments.take::<u32>()?;
    let fh = compound.current_fh()?;
    match style {
        0 => {}
        1 => {
            parent(fh).await?;
        }
        _ => return Err(Status::BADXDR.into()),
    }
    encode_flavours(compound, &mut xdr.out);
    Ok(())
}

fn encode_flavours(compound: &mut Compound<'_>, out: &mut XdrEncoder) {
    out.u32(1);
    out.u32(AUTH_SYS);
    compound.current = None;
}
