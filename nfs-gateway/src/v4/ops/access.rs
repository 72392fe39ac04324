//! ACCESS.

use fileio::protocol::Kind;

use crate::nfs3::granted;
use crate::v4::compound::{Compound, OperationXdr};
use crate::v4::status::OperationResult;

/// All bits that mean something: READ, LOOKUP, MODIFY, EXTEND, DELETE, EXECUTE.
const ALL: u32 = 0x3f;
const LOOKUP: u32 = 0x02;
const DELETE: u32 = 0x10;
const EXECUTE: u32 = 0x20;

//= rfc8881 18.1: "supported" are the bits that could be checked, "access" those that are granted
pub(super) async fn serve(compound: &Compound<'_>, xdr: &mut OperationXdr) -> OperationResult {
    let wanted = xdr.arguments.take::<u32>()?;
    let fh = compound.current_fh()?;
    let attributes = fh.attributes().await?;
    let of_kind = if attributes.kind == (Kind::Directory {}) {
        ALL & !EXECUTE
    } else {
        ALL & !(LOOKUP | DELETE)
    };
    let may_write = !fh.pseudo && fh.context.may_write();
    xdr.out.u32(wanted & of_kind);
    xdr.out.u32(wanted & granted(&attributes, &fh.context.credentials(), may_write));
    Ok(())
}
