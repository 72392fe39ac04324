//! Lookups that all programs share: one component, the parent, a path from the root.

use bytes::Bytes;
use fileio::protocol::access::EXECUTE;
use fileio::protocol::{
    Attributes, Credentials, GetAttributes, Handle, Kind, Lookup, Parent, ROOT,
};
use nfs3_types::nfs3::nfsstat3;

use crate::call_context::CallContext;
use crate::translate::{self, Component};

/// Looks `component` up in `directory`.
pub(crate) async fn component(
    context: &CallContext,
    directory: Handle,
    component: Component,
) -> Result<Attributes, nfsstat3> {
    let who = context.credentials();
    match component {
        Component::Entry(name) => context.request(Lookup { who, directory, name }).await,
        //= rfc1813 3.2: "the server should be able to handle such a filename correctly"
        Component::Dot => Box::pin(dot(context, directory)).await,
        Component::DotDot => Box::pin(parent(context, directory)).await,
    }
}

/// The directory itself, if the caller may search it.
async fn dot(context: &CallContext, directory: Handle) -> Result<Attributes, nfsstat3> {
    let attributes = context.request(GetAttributes { file: directory }).await?;
    if attributes.kind != (Kind::Directory {}) {
        return Err(nfsstat3::NFS3ERR_NOTDIR);
    }
    if !attributes.permits(&context.credentials(), EXECUTE) {
        return Err(nfsstat3::NFS3ERR_ACCES);
    }
    Ok(attributes)
}

/// Follows `parts` from the volume's root with root's rights: the path to an export is the
/// operator's.
pub(crate) async fn from_root(
    context: &CallContext,
    parts: &[Vec<u8>],
) -> Result<Attributes, nfsstat3> {
    let who = Credentials { uid: 0, gid: 0, groups: Vec::new() };
    let mut found = context.request(GetAttributes { file: ROOT }).await?;
    for part in parts {
        let directory = Handle { ino: found.ino, generation: found.generation };
        let name = translate::entry_name(Bytes::from(part.clone()), nfsstat3::NFS3ERR_INVAL)?;
        found = context.request(Lookup { who: who.clone(), directory, name }).await?;
    }
    Ok(found)
}

/// The parent of `directory`; the root of the volume, or of the export, is its own parent.
pub(crate) async fn parent(
    context: &CallContext,
    directory: Handle,
) -> Result<Attributes, nfsstat3> {
    if directory == ROOT {
        return dot(context, directory).await;
    }
    let export = context.export().ok_or(nfsstat3::NFS3ERR_STALE)?;
    if !export.parts.is_empty() {
        let root = from_root(context, &export.parts).await?;
        if directory == (Handle { ino: root.ino, generation: root.generation }) {
            return dot(context, directory).await;
        }
    }
    context.request(Parent { who: context.credentials(), directory }).await
}
