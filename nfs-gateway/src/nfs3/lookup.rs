//! LOOKUP.

use fileio::protocol::{Attributes, GetAttributes, Handle, Kind, Lookup, Parent, ROOT};
use futures::future::join;
use nfs3_types::nfs3::{LOOKUP3resfail, LOOKUP3resok, nfsstat3};

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
        Ok(attributes) => {
            let file = Handle { ino: attributes.ino, generation: attributes.generation };
            Ok(LOOKUP3resok {
                object: asker.volume().handle(file),
                obj_attributes: asker.told(&attributes),
                dir_attributes,
            })
        }
        Err(status) => Err((status, LOOKUP3resfail { dir_attributes })),
    })
}

async fn look_up(asker: &Asker, what: &Place) -> Result<Attributes, nfsstat3> {
    let directory = asker.file(&what.directory)?;
    find(asker, directory, translate::component(what.name.clone())?).await
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
        Component::Here => here(asker, directory).await,
        Component::Above => above(asker, directory).await,
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

/// The directory above; nothing is above the root of the export, whatever the volume says.
pub(super) async fn above(asker: &Asker, directory: Handle) -> Result<Attributes, nfsstat3> {
    if directory == ROOT {
        return here(asker, directory).await;
    }
    asker.ask(Parent { who: asker.who(), directory }).await
}
