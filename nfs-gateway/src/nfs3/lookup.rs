//! LOOKUP.

use bytes::Bytes;
use fileio::protocol::{
    Attributes, Credentials, GetAttributes, Handle, Kind, Lookup, Parent, ROOT,
};
use futures::future::join;
use nfs3_types::nfs3::{LOOKUP3resfail, LOOKUP3resok, nfs_fh3, nfsstat3};

use super::asker::{Asker, Place, pack};
use fileio::protocol::access::EXECUTE;

use crate::translate::{self, Component};
use crate::xdr::{Arguments, Body, Fault};

//= rfc1813 3.3.3
pub(super) async fn serve(asker: &Asker, mut arguments: Arguments) -> Result<Body, Fault> {
    let what = Place::take(&mut arguments)?;
    arguments.finish()?;
    let (found, dir_attributes) = join(look_up(asker, &what), asker.after(&what.directory)).await;
    pack(match found {
        Ok((object, attributes)) => {
            Ok(LOOKUP3resok { object, obj_attributes: asker.told(&attributes), dir_attributes })
        }
        Err(status) => Err((status, LOOKUP3resfail { dir_attributes })),
    })
}

async fn look_up(asker: &Asker, what: &Place) -> Result<(nfs_fh3, Attributes), nfsstat3> {
    let directory = asker.file(&what.directory)?;
    let found = find(asker, directory, translate::component(what.name.clone())?).await?;
    let file = Handle { ino: found.ino, generation: found.generation };
    Ok((asker.handle(file)?, found))
}

/// What `component` stands for in `directory`.
pub(crate) async fn find(
    asker: &Asker,
    directory: Handle,
    component: Component,
) -> Result<Attributes, nfsstat3> {
    let who = asker.who();
    match component {
        Component::Entry(name) => asker.ask(Lookup { who, directory, name }).await,
        //= rfc1813 3.2: "the server should be able to handle such a filename correctly"
        Component::Here => Box::pin(here(asker, directory)).await,
        Component::Above => Box::pin(above(asker, directory)).await,
    }
}

/// The directory itself, if the asker may search it.
async fn here(asker: &Asker, directory: Handle) -> Result<Attributes, nfsstat3> {
    let attributes = asker.ask(GetAttributes { file: directory }).await?;
    if attributes.kind != (Kind::Directory {}) {
        return Err(nfsstat3::NFS3ERR_NOTDIR);
    }
    if !attributes.permits(&asker.who(), EXECUTE) {
        return Err(nfsstat3::NFS3ERR_ACCES);
    }
    Ok(attributes)
}

/// What `parts` lead to from the volume's root, whoever asks: the way to an export is the operator's.
pub(crate) async fn from_root(asker: &Asker, parts: &[Vec<u8>]) -> Result<Attributes, nfsstat3> {
    let who = Credentials { uid: 0, gid: 0, groups: Vec::new() };
    let mut found = asker.ask(GetAttributes { file: ROOT }).await?;
    for part in parts {
        let directory = Handle { ino: found.ino, generation: found.generation };
        let name = translate::entry_name(Bytes::from(part.clone()), nfsstat3::NFS3ERR_INVAL)?;
        found = asker.ask(Lookup { who: who.clone(), directory, name }).await?;
    }
    Ok(found)
}

/// The directory above; nothing is above the root of the volume, or of the export.
pub(crate) async fn above(asker: &Asker, directory: Handle) -> Result<Attributes, nfsstat3> {
    if directory == ROOT {
        return here(asker, directory).await;
    }
    let export = asker.export().ok_or(nfsstat3::NFS3ERR_STALE)?;
    if !export.parts().is_empty() {
        let root = from_root(asker, export.parts()).await?;
        if directory == (Handle { ino: root.ino, generation: root.generation }) {
            return here(asker, directory).await;
        }
    }
    asker.ask(Parent { who: asker.who(), directory }).await
}
