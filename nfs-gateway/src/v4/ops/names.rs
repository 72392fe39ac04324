//! REMOVE, RENAME, LINK and READLINK.

use fileio::protocol::{Kind, Link, Name, ReadLink, Remove, RemoveDirectory, Rename};

use crate::nested_exports;
use crate::v4::compound::{Compound, OperationXdr};
use crate::v4::current_fh::{CurrentFh, name};
use crate::v4::exactly_once::RemoveTarget;
use crate::v4::status::{OperationResult, Status};

//= rfc8881 18.25: one operation for all kinds
pub(super) async fn remove(compound: &Compound<'_>, xdr: &mut OperationXdr) -> OperationResult {
    let name = name(xdr.arguments.opaque(usize::MAX)?)?;
    let fh = compound.current_fh()?;
    nested_exports::check_not_root(&fh.context, fh.file, &name)?;
    let before = fh.change_attribute().await;
    // A retransmission repeats the request that was applied: the name may be that of a file now.
    let removed = if compound.has_removed_directory().await? {
        Err(Status::ISDIR)
    } else {
        remove_as(compound, fh, &name, RemoveTarget::File).await
    };
    match removed {
        Err(Status::ISDIR) => remove_as(compound, fh, &name, RemoveTarget::Directory).await?,
        removed => removed?,
    }
    fh.change_info(before).await.encode(&mut xdr.out);
    Ok(())
}

async fn remove_as(
    compound: &Compound<'_>,
    fh: &CurrentFh,
    name: &Name,
    target: RemoveTarget,
) -> Result<(), Status> {
    let (who, call, directory) = (fh.context.credentials(), compound.call(target)?, fh.file);
    let (name, durable) = (name.clone(), fh.context.is_sync());
    if target == RemoveTarget::Directory {
        fh.context.request_once(RemoveDirectory { who, call, directory, name, durable }).await?;
    } else {
        fh.context.request_once(Remove { who, call, directory, name, durable }).await?;
    }
    Ok(())
}

//= rfc8881 18.26: from the saved directory to the current one
pub(super) async fn rename(compound: &Compound<'_>, xdr: &mut OperationXdr) -> OperationResult {
    let (from_name, to_name) =
        (xdr.arguments.opaque(usize::MAX)?, xdr.arguments.opaque(usize::MAX)?);
    let (from, to) = (compound.saved_fh()?, compound.current_fh()?);
    from.check_same_export(to)?;
    let (from_name, to_name) = (name(from_name)?, name(to_name)?);
    nested_exports::check_rename(&from.context, from.file, &from_name)?;
    nested_exports::check_rename(&to.context, to.file, &to_name)?;
    let (before_from, before_to) = (from.change_attribute().await, to.change_attribute().await);
    let rename = Rename {
        who: to.context.credentials(),
        call: compound.call(RemoveTarget::File)?,
        from_directory: from.file,
        from_name,
        to_directory: to.file,
        to_name,
        replace: true,
        durable: to.context.is_sync(),
    };
    to.context.request_once(rename).await?;
    from.change_info(before_from).await.encode(&mut xdr.out);
    to.change_info(before_to).await.encode(&mut xdr.out);
    Ok(())
}

//= rfc8881 18.9: the saved file gets a name in the current directory
pub(super) async fn link(compound: &Compound<'_>, xdr: &mut OperationXdr) -> OperationResult {
    let bytes = xdr.arguments.opaque(usize::MAX)?;
    let (saved, fh) = (compound.saved_fh()?, compound.current_fh()?);
    saved.check_same_export(fh)?;
    let name = name(bytes)?;
    nested_exports::check_link(&fh.context, fh.file, &name)?;
    let before = fh.change_attribute().await;
    let (who, call, durable) =
        (fh.context.credentials(), compound.call(RemoveTarget::File)?, fh.context.is_sync());
    let link = Link { who, call, file: saved.file, directory: fh.file, name, durable };
    fh.context.request_once(link).await?;
    fh.change_info(before).await.encode(&mut xdr.out);
    Ok(())
}

//= rfc8881 18.24: NFS4ERR_WRONG_TYPE for what is no symbolic link
pub(super) async fn read_link(compound: &Compound<'_>, xdr: &mut OperationXdr) -> OperationResult {
    let fh = compound.current_fh()?;
    if fh.attributes().await?.kind != (Kind::Symlink {}) {
        return Err(Status::WRONG_TYPE.into());
    }
    xdr.out.opaque(&fh.context.request(ReadLink { file: fh.file }).await?);
    Ok(())
}
