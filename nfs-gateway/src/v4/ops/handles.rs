//! PUTFH, PUTROOTFH, GETFH, SAVEFH, RESTOREFH, LOOKUP and LOOKUPP.

use fileio::protocol::{Kind, handle_of};

use crate::lookup;
use crate::translate::Component;
use crate::v4::compound::{Compound, OperationXdr};
use crate::v4::current_fh::{CurrentFh, name};
use crate::v4::limits::HANDLE_BYTES_MAX;
use crate::v4::pseudo_fs;
use crate::v4::status::{OperationError, OperationResult, Status};

//= rfc8881 18.19
pub(super) async fn put(compound: &mut Compound<'_>, xdr: &mut OperationXdr) -> OperationResult {
    let handle = xdr.arguments.opaque(HANDLE_BYTES_MAX)?;
    let fh = CurrentFh::decode(compound.server, compound.context, &handle).await?;
    compound.set_current(fh);
    Ok(())
}

//= rfc8881 18.20 and 18.21
pub(super) async fn put_root(compound: &mut Compound<'_>, _: &mut OperationXdr) -> OperationResult {
    let root = pseudo_fs::root(compound.server, compound.context).await?;
    compound.set_current(root);
    Ok(())
}

//= rfc8881 18.8
pub(super) fn get(compound: &Compound<'_>, xdr: &mut OperationXdr) -> OperationResult {
    xdr.out.opaque(&compound.current_fh()?.handle()?.data);
    Ok(())
}

//= rfc8881 18.28: the state id goes with the handle (16.2.3.1.2)
pub(super) fn save(compound: &mut Compound<'_>, _: &mut OperationXdr) -> OperationResult {
    compound.saved = Some(compound.current_fh()?.clone());
    compound.saved_stateid = compound.stateid;
    Ok(())
}

//= rfc8881 18.27
pub(super) fn restore(compound: &mut Compound<'_>, _: &mut OperationXdr) -> OperationResult {
    compound.current = Some(compound.saved.clone().ok_or(Status::RESTOREFH)?);
    compound.stateid = compound.saved_stateid;
    Ok(())
}

//= rfc8881 18.13
pub(super) async fn look_up(
    compound: &mut Compound<'_>,
    xdr: &mut OperationXdr,
) -> OperationResult {
    let bytes = xdr.arguments.opaque(usize::MAX)?;
    let found = look_up_name(compound.current_fh()?, bytes).await?;
    compound.set_current(found);
    Ok(())
}

/// Looks a name up in a directory.
pub(super) async fn look_up_name(
    fh: &CurrentFh,
    bytes: bytes::Bytes,
) -> Result<CurrentFh, OperationError> {
    let name = name(bytes)?;
    if fh.pseudo {
        return Ok(pseudo_fs::look_up(fh, name.as_bytes()).await?);
    }
    let entry = Component::Entry(name.clone());
    match lookup::component(&fh.context, fh.file, entry).await.map_err(Status::from) {
        Ok(found) => Ok(pseudo_fs::cross(fh, Some(&name), handle_of(&found))?),
        //= rfc8881 18.13.3: NFS4ERR_SYMLINK, if the current file handle is a symbolic link
        Err(Status::NOTDIR) => {
            let is_link = fh.attributes().await?.kind == (Kind::Symlink {});
            Err(if is_link { Status::SYMLINK } else { Status::NOTDIR }.into())
        }
        Err(status) => Err(status.into()),
    }
}

//= rfc8881 18.14
pub(super) async fn look_up_parent(
    compound: &mut Compound<'_>,
    _: &mut OperationXdr,
) -> OperationResult {
    let parent = parent(compound.current_fh()?).await?;
    compound.set_current(parent);
    Ok(())
}

/// The parent of a directory.
pub(super) async fn parent(fh: &CurrentFh) -> Result<CurrentFh, OperationError> {
    match fh.attributes().await?.kind {
        Kind::Directory {} => {}
        //= rfc8881 18.14.3: NFS4ERR_SYMLINK, as for LOOKUP
        Kind::Symlink {} => return Err(Status::SYMLINK.into()),
        _ => return Err(Status::NOTDIR.into()),
    }
    if let Some(parent) = pseudo_fs::parent(fh).await? {
        return Ok(parent);
    }
    let found = lookup::parent(&fh.context, fh.file).await?;
    Ok(pseudo_fs::cross(fh, None, handle_of(&found))?)
}
