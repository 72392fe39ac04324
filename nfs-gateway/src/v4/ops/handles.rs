//! PUTFH, PUTROOTFH, GETFH, SAVEFH, RESTOREFH, LOOKUP and LOOKUPP.

use fileio::protocol::Kind;

use crate::nfs3::{above, find};
use crate::translate::Component;
use crate::v4::compound::Compound;
use crate::v4::here::{Here, name};
use crate::v4::limits::HANDLE_BYTES_MAX;
use crate::v4::pseudo;
use crate::v4::status::{Failed, Status};
use crate::xdr::{Arguments, Out};

//= rfc8881 18.19
pub(super) async fn put(
    compound: &mut Compound<'_>,
    arguments: &mut Arguments,
) -> Result<(), Failed> {
    let handle = arguments.opaque(HANDLE_BYTES_MAX)?;
    let here = Here::of(compound.service, compound.asker, &handle).await?;
    compound.go(here);
    Ok(())
}

//= rfc8881 18.20 and 18.21
pub(super) async fn put_root(compound: &mut Compound<'_>) -> Result<(), Failed> {
    let root = pseudo::root(compound.service, compound.asker).await?;
    compound.go(root);
    Ok(())
}

//= rfc8881 18.8
pub(super) fn get(compound: &Compound<'_>, out: &mut Out) -> Result<(), Failed> {
    out.opaque(&compound.here()?.handle()?.data);
    Ok(())
}

//= rfc8881 18.28: the state id goes with the handle (16.2.3.1.2)
pub(super) fn save(compound: &mut Compound<'_>) -> Result<(), Failed> {
    compound.saved = Some(compound.here()?.clone());
    compound.saved_stateid = compound.stateid;
    Ok(())
}

//= rfc8881 18.27
pub(super) fn restore(compound: &mut Compound<'_>) -> Result<(), Failed> {
    compound.current = Some(compound.saved.clone().ok_or(Status::RESTOREFH)?);
    compound.stateid = compound.saved_stateid;
    Ok(())
}

//= rfc8881 18.13
pub(super) async fn look_up(
    compound: &mut Compound<'_>,
    arguments: &mut Arguments,
) -> Result<(), Failed> {
    let bytes = arguments.opaque(usize::MAX)?;
    let found = look_up_name(compound.here()?, bytes).await?;
    compound.go(found);
    Ok(())
}

/// What has this name here.
pub(super) async fn look_up_name(here: &Here, bytes: bytes::Bytes) -> Result<Here, Failed> {
    let name = name(bytes)?;
    if here.pseudo {
        return Ok(pseudo::look_up(here, name.as_bytes()).await?);
    }
    let entry = Component::Entry(name.clone());
    match find(&here.asker, here.file, entry).await.map_err(Status::from) {
        Ok(found) => Ok(pseudo::crossed(here, name.as_bytes(), &found).await?),
        //= rfc8881 18.13.3: NFS4ERR_SYMLINK, if the current file handle is a symbolic link
        Err(Status::NOTDIR) => {
            let is_link = here.attributes().await?.kind == (Kind::Symlink {});
            Err(if is_link { Status::SYMLINK } else { Status::NOTDIR }.into())
        }
        Err(status) => Err(status.into()),
    }
}

//= rfc8881 18.14
pub(super) async fn look_above(compound: &mut Compound<'_>) -> Result<(), Failed> {
    let above = parent(compound.here()?).await?;
    compound.go(above);
    Ok(())
}

/// The directory above.
pub(super) async fn parent(here: &Here) -> Result<Here, Failed> {
    if here.attributes().await?.kind != (Kind::Directory {}) {
        return Err(Status::NOTDIR.into());
    }
    if let Some(above) = pseudo::above(here).await? {
        return Ok(above);
    }
    Ok(here.beside(&above(&here.asker, here.file).await?))
}
