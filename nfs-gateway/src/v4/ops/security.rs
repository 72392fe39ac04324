//! SECINFO and `SECINFO_NO_NAME`: how clients have to say who they are.

use super::handles::{look_up_name, parent};
use crate::rpc::AUTH_SYS;
use crate::v4::compound::Compound;
use crate::v4::status::{Failed, Status};
use crate::xdr::{Arguments, Out};

//= rfc8881 18.29: after it there is no current file handle
pub(super) async fn of_name(
    compound: &mut Compound<'_>,
    arguments: &mut Arguments,
    out: &mut Out,
) -> Result<(), Failed> {
    let name = arguments.opaque(usize::MAX)?;
    look_up_name(compound.here()?, name).await?;
    tell(compound, out);
    Ok(())
}

//= rfc8881 18.45
pub(super) async fn of_here(
    compound: &mut Compound<'_>,
    arguments: &mut Arguments,
    out: &mut Out,
) -> Result<(), Failed> {
    let style = arguments.take::<u32>()?;
    let here = compound.here()?;
    match style {
        0 => {}
        1 => {
            parent(here).await?;
        }
        _ => return Err(Status::BADXDR.into()),
    }
    tell(compound, out);
    Ok(())
}

fn tell(compound: &mut Compound<'_>, out: &mut Out) {
    out.u32(1);
    out.u32(AUTH_SYS);
    compound.current = None;
}
