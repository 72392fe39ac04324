//! REMOVE, RENAME, LINK and READLINK.

use fileio::protocol::{Kind, Link, Name, ReadLink, Remove, RemoveDirectory, Rename};

use super::{change_of, changed};
use crate::v4::compound::Compound;
use crate::v4::here::{Here, name};
use crate::v4::once::What;
use crate::v4::status::{Failed, Status};
use crate::xdr::{Arguments, Out};

//= rfc8881 18.25: one operation for all kinds
pub(super) async fn remove(
    compound: &Compound<'_>,
    arguments: &mut Arguments,
    out: &mut Out,
) -> Result<(), Failed> {
    let name = name(arguments.opaque(usize::MAX)?)?;
    let here = compound.here()?;
    let before = change_of(here).await;
    // What was done is asked for as it was: a file may have the name by now.
    let removed = if compound.has_removed_directory().await? {
        Err(Status::ISDIR)
    } else {
        remove_as(compound, here, &name, What::File).await
    };
    match removed {
        Err(Status::ISDIR) => remove_as(compound, here, &name, What::Directory).await?,
        removed => removed?,
    }
    changed(here, before).await.tell(out);
    Ok(())
}

async fn remove_as(
    compound: &Compound<'_>,
    here: &Here,
    name: &Name,
    what: What,
) -> Result<(), Status> {
    let (who, call, directory) = (here.asker.who(), compound.call(what)?, here.file);
    let (name, durable) = (name.clone(), here.asker.syncs());
    if what == What::Directory {
        here.asker.ask_once(RemoveDirectory { who, call, directory, name, durable }).await?;
    } else {
        here.asker.ask_once(Remove { who, call, directory, name, durable }).await?;
    }
    Ok(())
}

//= rfc8881 18.26: from the saved directory to the current one
pub(super) async fn rename(
    compound: &Compound<'_>,
    arguments: &mut Arguments,
    out: &mut Out,
) -> Result<(), Failed> {
    let (from_name, to_name) = (arguments.opaque(usize::MAX)?, arguments.opaque(usize::MAX)?);
    let (from, to) = (compound.there()?, compound.here()?);
    from.check_same_export(to)?;
    let (from_name, to_name) = (name(from_name)?, name(to_name)?);
    let (before_from, before_to) = (change_of(from).await, change_of(to).await);
    let rename = Rename {
        who: to.asker.who(),
        call: compound.call(What::File)?,
        from_directory: from.file,
        from_name,
        to_directory: to.file,
        to_name,
        replace: true,
        durable: to.asker.syncs(),
    };
    to.asker.ask_once(rename).await?;
    changed(from, before_from).await.tell(out);
    changed(to, before_to).await.tell(out);
    Ok(())
}

//= rfc8881 18.9: the saved file gets a name in the current directory
pub(super) async fn link(
    compound: &Compound<'_>,
    arguments: &mut Arguments,
    out: &mut Out,
) -> Result<(), Failed> {
    let bytes = arguments.opaque(usize::MAX)?;
    let (of, here) = (compound.there()?, compound.here()?);
    of.check_same_export(here)?;
    let name = name(bytes)?;
    let before = change_of(here).await;
    let (who, call, durable) = (here.asker.who(), compound.call(What::File)?, here.asker.syncs());
    let link = Link { who, call, file: of.file, directory: here.file, name, durable };
    here.asker.ask_once(link).await?;
    changed(here, before).await.tell(out);
    Ok(())
}

//= rfc8881 18.24: NFS4ERR_WRONG_TYPE for what is no symbolic link
pub(super) async fn read_link(compound: &Compound<'_>, out: &mut Out) -> Result<(), Failed> {
    let here = compound.here()?;
    if here.attributes().await?.kind != (Kind::Symlink {}) {
        return Err(Status::WRONG_TYPE.into());
    }
    out.opaque(&here.asker.ask(ReadLink { file: here.file }).await?);
    Ok(())
}
