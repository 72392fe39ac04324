//! Arguments and results that several procedures share (RFC 1813 section 2.6).

use bytes::Bytes;
use fileio::protocol::{Attributes, GetAttributes, Handle, Name, WccAttr};
use nfs3_types::nfs3::{
    NFS3_FHSIZE, Nfs3Option, Nfs3Result, fattr3, nfsstat3, post_op_attr, wcc_attr, wcc_data,
};
use nfs3_types::xdr_codec::Pack;

use crate::call_context::CallContext;
use crate::translate;
use crate::xdr::{CallArguments, ProcedureError, ProcedureResult, ReplyBody};

/// `attributes` as a reply carries them.
pub(super) fn post_op_attr(context: &CallContext, attributes: &Attributes) -> post_op_attr {
    Nfs3Option::Some(context.volume.fattr(attributes))
}

/// The attributes of the file of `handle`, if the export allows what the procedure does.
pub(super) async fn attributes(
    context: &CallContext,
    handle: &Bytes,
) -> Result<Attributes, nfsstat3> {
    let file = context.file(handle)?;
    context.request(GetAttributes { file }).await
}

//= rfc1813 3.1: attributes after the operation "on success or failure", where there are any
/// The current attributes of the file of `handle`.
pub(super) async fn current_attr(context: &CallContext, handle: &Bytes) -> post_op_attr {
    let Ok(file) = context.readable_file(handle) else { return Nfs3Option::None };
    match context.request(GetAttributes { file }).await {
        Ok(attributes) => post_op_attr(context, &attributes),
        Err(_) => Nfs3Option::None,
    }
}

/// Weak cache consistency data of a call that has `changed` the file, or nothing.
pub(super) async fn current_wcc(context: &CallContext, handle: &Bytes, changed: bool) -> wcc_data {
    let after = current_attr(context, handle).await;
    if changed { wcc_after(after) } else { wcc_unchanged(after) }
}

/// Weak cache consistency data of a change. The attributes before it are not sent if others may
/// have changed the file in between: with wrong ones a client would keep stale data.
pub(super) fn wcc_after(after: post_op_attr) -> wcc_data {
    wcc_data { before: Nfs3Option::None, after }
}

//= rfc1813 2.6: wcc_data, "before" only if it is known in the same step as "after"
/// The same, with the attributes before the change if the node that made it reported them.
pub(super) fn wcc_changed(before: Option<WccAttr>, after: post_op_attr) -> wcc_data {
    let wcc_attr = |WccAttr { size, mtime, ctime }| wcc_attr {
        size,
        mtime: translate::time(mtime),
        ctime: translate::time(ctime),
    };
    let before = before.map_or(Nfs3Option::None, |before| Nfs3Option::Some(wcc_attr(before)));
    wcc_data { before, after }
}

//= rfc1813 2.6: wcc_attr, "before" the operation
/// The same of a file that was not changed.
pub(super) fn wcc_unchanged(after: post_op_attr) -> wcc_data {
    let before = match &after {
        Nfs3Option::Some(fattr3 { size, mtime, ctime, .. }) => {
            Nfs3Option::Some(wcc_attr { size: *size, mtime: *mtime, ctime: *ctime })
        }
        Nfs3Option::None => Nfs3Option::None,
    };
    wcc_data { before, after }
}

/// Takes a file handle from `arguments`.
pub(super) fn take_handle(arguments: &mut CallArguments) -> Result<Bytes, ProcedureError> {
    arguments.opaque(NFS3_FHSIZE)
}

/// Encodes the result of a procedure.
pub(super) fn pack<T: Pack, E: Pack>(result: Result<T, (nfsstat3, E)>) -> ProcedureResult {
    ReplyBody::pack(&match result {
        Ok(done) => Nfs3Result::Ok(done),
        Err(failed) => Nfs3Result::Err(failed),
    })
}

/// A name in a directory (`diropargs3`).
#[derive(Clone, Debug)]
pub(super) struct DirOpArgs {
    /// The handle of the directory.
    pub(super) directory: Bytes,
    /// The name as received.
    pub(super) name: Bytes,
}

impl DirOpArgs {
    /// Takes both from `arguments`.
    pub(super) fn take(arguments: &mut CallArguments) -> Result<Self, ProcedureError> {
        let directory = take_handle(arguments)?;
        // Any length is accepted: too long a name is an error of NFS, not of XDR.
        let name = arguments.opaque(usize::MAX)?;
        Ok(Self { directory, name })
    }

    /// The directory and the name of an entry; `dots` is the error for `.` and `..`.
    pub(super) fn entry(
        &self,
        context: &CallContext,
        dots: nfsstat3,
    ) -> Result<(Handle, Name), nfsstat3> {
        let directory = context.file(&self.directory)?;
        Ok((directory, translate::entry_name(self.name.clone(), dots)?))
    }
}
