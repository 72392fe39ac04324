//! ACCESS.

use fileio::protocol::Kind;

use crate::nfs3::granted;
use crate::v4::compound::{Compound, OperationXdr};
use crate::v4::status::OperationResult;

/// READ, LOOKUP, MODIFY, EXTEND, DELETE, EXECUTE.
const ALL: u32 = 0x3f;
const READ: u32 = 0x01;
const LOOKUP: u32 = 0x02;
const MODIFY: u32 = 0x04;
const DELETE: u32 = 0x10;
const EXECUTE: u32 = 0x20;
/// Of extended attributes: to read one, to set or remove one, to list the names.
const XAREAD: u32 = 0x40;
const XAWRITE: u32 = 0x80;
const XALIST: u32 = 0x100;

//= rfc8881 18.1: "supported" are the bits that could be checked, "access" those that are granted
pub(super) async fn serve(compound: &Compound<'_>, xdr: &mut OperationXdr) -> OperationResult {
    let wanted = xdr.arguments.take::<u32>()?;
    let fh = compound.current_fh()?;
    let attributes = fh.attributes().await?;
    let mut of_kind = match attributes.kind {
        Kind::Directory {} => ALL & !EXECUTE,
        _ => ALL & !(LOOKUP | DELETE),
    };
    if compound.minor >= 2 && matches!(attributes.kind, Kind::File {} | Kind::Directory {}) {
        of_kind |= XAREAD | XAWRITE | XALIST;
    }
    let may_write = !fh.pseudo && fh.context.may_write();
    let granted = with_xattrs(granted(&attributes, &fh.context.credentials(), may_write));
    xdr.out.u32(wanted & of_kind);
    xdr.out.u32(wanted & of_kind & granted);
    Ok(())
}

//= rfc8276 8.5
/// Adds the access to extended attributes: it is that to the content, and names are no secret.
fn with_xattrs(granted: u32) -> u32 {
    let rights = [(READ, XAREAD), (MODIFY, XAWRITE)];
    let of_content = rights.iter().filter(|(content, _)| granted & content != 0);
    of_content.fold(granted | XALIST, |granted, (_, xattrs)| granted | xattrs)
}
