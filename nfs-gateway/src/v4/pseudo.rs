//! The directories above the exports (RFC 8881 section 7): clients begin at one root, and see of what is
//! above the exports only what leads to those that they may use.

use std::collections::BTreeSet;
use std::rc::Rc;

use fileio::protocol::{Attributes, Handle};

use super::Service;
use super::here::{Here, handle_of};
use super::status::Status;
use crate::exports::Export;
use crate::nfs3::{Asker, from_root};

type Path = Vec<Vec<u8>>;

/// Where clients begin: the export of the volume's root, or what stands above the exports.
pub(super) async fn root(service: &Service, asker: &Asker) -> Result<Here, Status> {
    let keys = service.keys.keys(None).await.map_err(crate::translate::status);
    let asker = asker.apart(keys);
    at(&asker, &[]).await
}

/// The place at `path`: an export, or a directory above one.
async fn at(asker: &Asker, path: &[Vec<u8>]) -> Result<Here, Status> {
    let apart = asker.apart(asker.keys());
    let exports = apart.exports_shared();
    let mut usable = exports.iter().filter(|export| apart.may_enter(export));
    let export = usable.find(|export| export.parts() == path);
    if export.is_none() && !leads_on(asker, path) {
        return Err(if path.is_empty() { Status::ACCESS } else { Status::NOENT });
    }
    let file = handle_of(&from_root(&apart, path).await?);
    if let Some(export) = export {
        apart.enter(export)?;
    }
    Ok(Here { asker: Rc::new(apart), file, pseudo: export.is_none() })
}

/// The exports that the asker may use.
fn usable(asker: &Asker) -> Vec<Export> {
    asker.exports().iter().filter(|export| asker.may_enter(export)).cloned().collect()
}

/// Is there an export below `path`?
fn leads_on(asker: &Asker, path: &[Vec<u8>]) -> bool {
    usable(asker)
        .iter()
        .any(|export| export.parts().len() > path.len() && export.parts().starts_with(path))
}

/// Which path a directory above the exports has.
async fn path_of(here: &Here) -> Result<Path, Status> {
    for export in usable(&here.asker) {
        for length in 0..export.parts().len() {
            let path = &export.parts()[..length];
            if handle_of(&from_root(&here.asker, path).await?) == here.file {
                return Ok(path.to_vec());
            }
        }
    }
    Err(Status::STALE)
}

/// What has the name `name` in a directory above the exports.
pub(super) async fn look_up(here: &Here, name: &[u8]) -> Result<Here, Status> {
    let mut path = path_of(here).await?;
    path.push(name.to_vec());
    at(&here.asker, &path).await
}

/// The names in a directory above the exports.
pub(super) async fn names(here: &Here) -> Result<BTreeSet<Vec<u8>>, Status> {
    let path = path_of(here).await?;
    let below = usable(&here.asker).into_iter().filter(|export| export.parts().starts_with(&path));
    Ok(below.filter_map(|export| export.parts().get(path.len()).cloned()).collect())
}

/// What is above a directory, if that is the root of an export or above it.
pub(super) async fn above(here: &Here) -> Result<Option<Here>, Status> {
    let path = if here.pseudo {
        path_of(here).await?
    } else {
        let parts = here.asker.export().ok_or(Status::STALE)?.parts().to_vec();
        if handle_of(&from_root(&here.asker, &parts).await?) != here.file {
            return Ok(None);
        }
        parts
    };
    //= rfc8881 18.14.3: nothing is above the root
    let (_, above) = path.split_last().ok_or(Status::NOENT)?;
    within(&here.asker, above).await.map(Some)
}

/// The directory at `path`: in the innermost export that it lies in, or above the exports.
async fn within(asker: &Asker, path: &[Vec<u8>]) -> Result<Here, Status> {
    let parts: Vec<&[u8]> = path.iter().map(Vec::as_slice).collect();
    let apart = asker.apart(asker.keys());
    let exports = apart.exports_shared();
    match exports.around(&parts).filter(|export| apart.may_enter(export)) {
        Some(export) => {
            let file = handle_of(&from_root(&apart, path).await?);
            apart.enter(export)?;
            Ok(Here { asker: Rc::new(apart), file, pseudo: false })
        }
        None => at(asker, path).await,
    }
}

/// `found`, with the rights of the export whose root it is, if it is one in another export.
pub(super) async fn crossed(here: &Here, name: &[u8], found: &Attributes) -> Result<Here, Status> {
    let outer = here.asker.export().ok_or(Status::STALE)?.parts().to_vec();
    let is_inner = |export: &&Export| {
        let parts = export.parts();
        parts.len() > outer.len()
            && parts.starts_with(&outer)
            && parts.last().is_some_and(|last| last == name)
    };
    let exports = here.asker.exports_shared();
    for export in exports.iter().filter(is_inner) {
        let apart = here.asker.apart(here.asker.keys());
        let file: Handle = handle_of(&from_root(&apart, export.parts()).await?);
        if file == handle_of(found) {
            apart.enter(export)?;
            return Ok(Here { asker: Rc::new(apart), file, pseudo: false });
        }
    }
    Ok(here.beside(found))
}
