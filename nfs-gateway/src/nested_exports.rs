//! Crossing into an export that lies inside another one. The inner export alone decides who sees
//! into it, whichever way leads there; its root can be made, but neither removed nor renamed, by a
//! client of the outer one.

use fileio::protocol::{Handle, Name};
use nfs3_types::nfs3::{nfs_fh3, nfsstat3};

use crate::call_context::CallContext;
use crate::exports::PathName;

/// The nested export whose root is, or would be, the entry `name` of `directory`, if the caller may
/// use it.
pub(crate) fn export_at(
    context: &CallContext,
    directory: Handle,
    name: &Name,
) -> Result<Option<u32>, nfsstat3> {
    match context.roots()?.name(directory, name.as_bytes()) {
        Some(PathName::Root(export)) => {
            context.clients_of(export)?;
            Ok(Some(export))
        }
        Some(PathName::Ancestor) | None => Ok(None),
    }
}

/// The handle of `file`, found under `name` in `directory`.
pub(crate) fn entry_handle(
    context: &CallContext,
    directory: Handle,
    name: &Name,
    file: Handle,
) -> Result<nfs_fh3, nfsstat3> {
    match export_at(context, directory, name)? {
        Some(export) => context.handle_in(export, file),
        None => context.handle(file),
    }
}

/// May the caller make a directory with this name? To make the root of a nested export, it must be
/// allowed to write there.
pub(crate) fn check_new_directory(
    context: &CallContext,
    directory: Handle,
    name: &Name,
) -> Result<(), nfsstat3> {
    match export_at(context, directory, name)? {
        Some(export) if !context.clients_of(export)?.writable => Err(nfsstat3::NFS3ERR_ROFS),
        Some(_) | None => Ok(()),
    }
}

/// May anything but a directory be made under this name, or what has it be removed? Not if it is
/// that of the root of a nested export.
pub(crate) fn check_not_root(
    context: &CallContext,
    directory: Handle,
    name: &Name,
) -> Result<(), nfsstat3> {
    refuse_root(context, directory, name, nfsstat3::NFS3ERR_ACCES)
}

/// May this entry be renamed, or replaced by another? Not if it is on the path to a nested export:
/// that would move a tree into it, or out of it.
pub(crate) fn check_rename(
    context: &CallContext,
    directory: Handle,
    name: &Name,
) -> Result<(), nfsstat3> {
    match context.roots()?.name(directory, name.as_bytes()) {
        Some(PathName::Root(_)) => Err(nfsstat3::NFS3ERR_XDEV),
        Some(PathName::Ancestor) => Err(nfsstat3::NFS3ERR_ACCES),
        None => Ok(()),
    }
}

/// May a file get this name as a further one? Not that of the root of a nested export.
pub(crate) fn check_link(
    context: &CallContext,
    directory: Handle,
    name: &Name,
) -> Result<(), nfsstat3> {
    refuse_root(context, directory, name, nfsstat3::NFS3ERR_XDEV)
}

/// The error `refusal` for the name of the root of a nested export.
fn refuse_root(
    context: &CallContext,
    directory: Handle,
    name: &Name,
    refusal: nfsstat3,
) -> Result<(), nfsstat3> {
    match context.roots()?.name(directory, name.as_bytes()) {
        Some(PathName::Root(_)) => Err(refusal),
        Some(PathName::Ancestor) | None => Ok(()),
    }
}
