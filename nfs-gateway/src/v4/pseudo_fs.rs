//! The pseudo file system (RFC 8881 section 7.3): clients begin at one root, and see above the
//! exports only the directories that lead to exports they may use.

use std::collections::BTreeSet;
use std::rc::Rc;

use fileio::protocol::{Handle, Name, handle_of};

use super::current_fh::CurrentFh;
use super::server::Nfs4Server;
use super::status::Status;
use crate::call_context::CallContext;
use crate::exports::Export;
use crate::lookup::from_root;

type Path = Vec<Vec<u8>>;

/// The root: the export of the volume's root, or the topmost directory above the exports.
pub(super) async fn root(server: &Nfs4Server, context: &CallContext) -> Result<CurrentFh, Status> {
    let keys = server.keys.keys(None).await.map_err(crate::translate::status);
    let context = context.outside_exports(keys);
    at(&context, &[]).await
}

/// The directory at `path`: an export, or a directory above one.
async fn at(context: &CallContext, path: &[Vec<u8>]) -> Result<CurrentFh, Status> {
    let context = context.outside_exports(context.keys());
    let exports = context.exports.clone();
    let mut usable = exports.iter().filter(|export| context.may_enter(export));
    let export = usable.find(|export| export.parts == path);
    if export.is_none() && !leads_to_export(&context, path) {
        return Err(if path.is_empty() { Status::ACCESS } else { Status::NOENT });
    }
    let file = handle_of(&from_root(&context, path).await?);
    if let Some(export) = export {
        context.enter(export)?;
    }
    Ok(CurrentFh { context: Rc::new(context), file, pseudo: export.is_none() })
}

/// The exports that the caller may use.
fn usable(context: &CallContext) -> Vec<Export> {
    context.exports.iter().filter(|export| context.may_enter(export)).cloned().collect()
}

/// Is there a usable export below `path`?
fn leads_to_export(context: &CallContext, path: &[Vec<u8>]) -> bool {
    usable(context)
        .iter()
        .any(|export| export.parts.len() > path.len() && export.parts.starts_with(path))
}

/// The path of a directory above the exports.
async fn path_of(fh: &CurrentFh) -> Result<Path, Status> {
    for export in usable(&fh.context) {
        for length in 0..export.parts.len() {
            let path = &export.parts[..length];
            if handle_of(&from_root(&fh.context, path).await?) == fh.file {
                return Ok(path.to_vec());
            }
        }
    }
    Err(Status::STALE)
}

/// Looks `name` up in a directory above the exports.
pub(super) async fn look_up(fh: &CurrentFh, name: &[u8]) -> Result<CurrentFh, Status> {
    let mut path = path_of(fh).await?;
    path.push(name.to_vec());
    at(&fh.context, &path).await
}

/// The names in a directory above the exports.
pub(super) async fn names(fh: &CurrentFh) -> Result<BTreeSet<Vec<u8>>, Status> {
    let path = path_of(fh).await?;
    let below = usable(&fh.context).into_iter().filter(|export| export.parts.starts_with(&path));
    Ok(below.filter_map(|export| export.parts.get(path.len()).cloned()).collect())
}

/// The parent of a directory, if that is the root of an export or above the exports.
pub(super) async fn parent(fh: &CurrentFh) -> Result<Option<CurrentFh>, Status> {
    let path = if fh.pseudo {
        path_of(fh).await?
    } else {
        let parts = fh.context.export().ok_or(Status::STALE)?.parts.clone();
        if handle_of(&from_root(&fh.context, &parts).await?) != fh.file {
            return Ok(None);
        }
        parts
    };
    //= rfc8881 18.14.3: nothing is above the root
    let (_, parent) = path.split_last().ok_or(Status::NOENT)?;
    innermost(&fh.context, parent).await.map(Some)
}

/// The directory at `path`: in the innermost export that contains it, or above the exports.
async fn innermost(context: &CallContext, path: &[Vec<u8>]) -> Result<CurrentFh, Status> {
    let parts: Vec<&[u8]> = path.iter().map(Vec::as_slice).collect();
    let context = context.outside_exports(context.keys());
    let exports = context.exports.clone();
    match exports.around(&parts).filter(|export| context.may_enter(export)) {
        Some(export) => {
            let file = handle_of(&from_root(&context, path).await?);
            context.enter(export)?;
            Ok(CurrentFh { context: Rc::new(context), file, pseudo: false })
        }
        None => at(&context, path).await,
    }
}

/// The file `file`, found under `name` if it was looked up in `fh`: in the nested export whose root
/// it is, or in the export of `fh`. If only exports below the nested one are usable, it shows the
/// way to them.
pub(super) fn cross(
    fh: &CurrentFh,
    name: Option<&Name>,
    file: Handle,
) -> Result<CurrentFh, Status> {
    let roots = fh.context.roots()?;
    let nested = match name {
        Some(name) => roots.export_of_entry(fh.file, name.as_bytes(), file),
        None => roots.export_of(file),
    };
    let is_entered = |nested| fh.context.export().is_some_and(|export| export.id == nested);
    let Some(nested) = nested.filter(|nested| !is_entered(*nested)) else {
        return Ok(CurrentFh { file, ..fh.clone() });
    };
    let exports = fh.context.exports.clone();
    let export = exports.of_id(nested).ok_or(Status::STALE)?;
    let context = fh.context.outside_exports(fh.context.keys());
    let pseudo = !context.may_enter(export) && leads_to_export(&context, &export.parts);
    if !pseudo {
        context.enter(export)?;
    }
    Ok(CurrentFh { context: Rc::new(context), file, pseudo })
}
