//! CREATE, MKDIR, SYMLINK and MKNOD. The results of all four have the same form.

use bytes::Bytes;
use fileio::protocol::{
    Attributes, Change, Create, Existing, MakeNode, NewNode, TARGET_MAX, handle_of,
};
use nfs3_types::nfs3::{
    CREATE3resfail, CREATE3resok, Nfs3Option, createhow3, devicedata3, mknoddata3, nfsstat3,
    post_op_fh3, sattr3,
};

use super::results::{DirOpArgs, current_wcc, pack, post_op_attr};
use crate::call_context::CallContext;
use crate::nested_exports;
use crate::translate::change;
use crate::xdr::{CallArguments, ProcedureResult};

/// `.` and `..` always exist.
const DOTS: nfsstat3 = nfsstat3::NFS3ERR_EXIST;

//= rfc1813 3.3.8
pub(super) async fn create(context: &CallContext, mut arguments: CallArguments) -> ProcedureResult {
    let dir_op = DirOpArgs::take(&mut arguments)?;
    let how = arguments.take::<createhow3>()?;
    arguments.finish()?;
    let created = create_file(context, &dir_op, &how).await;
    reply(context, &dir_op, created).await
}

async fn create_file(
    context: &CallContext,
    dir_op: &DirOpArgs,
    how: &createhow3,
) -> Result<Attributes, nfsstat3> {
    let (directory, name) = dir_op.entry(context, DOTS)?;
    nested_exports::check_not_root(context, directory, &name)?;
    let (existing, change) = match how {
        createhow3::UNCHECKED(attributes) => (Existing::Use {}, change(attributes)?),
        createhow3::GUARDED(attributes) => (Existing::Refuse {}, change(attributes)?),
        //= rfc1813 3.3.8: the attributes of an exclusively created file come by SETATTR
        createhow3::EXCLUSIVE(verifier) => {
            let verifier = u64::from_be_bytes(verifier.0);
            (Existing::UseIfSame { verifier }, Change::default())
        }
    };
    let (who, call) = (context.credentials(), context.id);
    let durable = context.is_sync();
    let create = Create { who, call, directory, name, existing, change, durable };
    context.request_once(create).await.map(|created| created.attributes)
}

//= rfc1813 3.3.9
pub(super) async fn mkdir(context: &CallContext, mut arguments: CallArguments) -> ProcedureResult {
    let dir_op = DirOpArgs::take(&mut arguments)?;
    let attributes = arguments.take::<sattr3>()?;
    arguments.finish()?;
    let made = make_node(context, &dir_op, NewNode::Directory {}, &attributes).await;
    reply(context, &dir_op, made).await
}

//= rfc1813 3.3.10
pub(super) async fn symlink(
    context: &CallContext,
    mut arguments: CallArguments,
) -> ProcedureResult {
    let dir_op = DirOpArgs::take(&mut arguments)?;
    let attributes = arguments.take::<sattr3>()?;
    let target = arguments.opaque(usize::MAX)?;
    arguments.finish()?;
    let made = match check_target(&target) {
        Ok(()) => {
            let node = NewNode::Symlink { target: target.to_vec() };
            make_node(context, &dir_op, node, &attributes).await
        }
        Err(status) => Err(status),
    };
    reply(context, &dir_op, made).await
}

/// Checks the target of a symbolic link as POSIX's `symlink` does.
pub(crate) fn check_target(target: &Bytes) -> Result<(), nfsstat3> {
    match &target[..] {
        [] => Err(nfsstat3::NFS3ERR_NOENT),
        target if target.len() > TARGET_MAX => Err(nfsstat3::NFS3ERR_NAMETOOLONG),
        target if target.contains(&0) => Err(nfsstat3::NFS3ERR_INVAL),
        _ => Ok(()),
    }
}

//= rfc1813 3.3.11
pub(super) async fn mknod(context: &CallContext, mut arguments: CallArguments) -> ProcedureResult {
    let dir_op = DirOpArgs::take(&mut arguments)?;
    let what = arguments.take::<mknoddata3>()?;
    arguments.finish()?;
    let made = match &what {
        mknoddata3::NF3CHR(devicedata3 { dev_attributes, spec }) => {
            let node = NewNode::CharDevice { major: spec.specdata1, minor: spec.specdata2 };
            make_node(context, &dir_op, node, dev_attributes).await
        }
        mknoddata3::NF3BLK(devicedata3 { dev_attributes, spec }) => {
            let node = NewNode::BlockDevice { major: spec.specdata1, minor: spec.specdata2 };
            make_node(context, &dir_op, node, dev_attributes).await
        }
        mknoddata3::NF3SOCK(attributes) => {
            make_node(context, &dir_op, NewNode::Socket {}, attributes).await
        }
        mknoddata3::NF3FIFO(attributes) => {
            make_node(context, &dir_op, NewNode::Fifo {}, attributes).await
        }
        //= rfc1813 3.3.11: files, directories and links have procedures of their own
        mknoddata3::default => Err(nfsstat3::NFS3ERR_BADTYPE),
    };
    reply(context, &dir_op, made).await
}

async fn make_node(
    context: &CallContext,
    dir_op: &DirOpArgs,
    node: NewNode,
    attributes: &sattr3,
) -> Result<Attributes, nfsstat3> {
    let (directory, name) = dir_op.entry(context, DOTS)?;
    if node == (NewNode::Directory {}) {
        nested_exports::check_new_directory(context, directory, &name)?;
    } else {
        nested_exports::check_not_root(context, directory, &name)?;
    }
    let change = change(attributes)?;
    let (who, call, durable) = (context.credentials(), context.id, context.is_sync());
    context.request_once(MakeNode { who, call, directory, name, node, change, durable }).await
}

async fn reply(
    context: &CallContext,
    dir_op: &DirOpArgs,
    made: Result<Attributes, nfsstat3>,
) -> ProcedureResult {
    let dir_wcc = current_wcc(context, &dir_op.directory, made.is_ok()).await;
    pack(match made {
        Ok(attributes) => Ok(CREATE3resok {
            obj: new_handle(context, dir_op, &attributes),
            obj_attributes: post_op_attr(context, &attributes),
            dir_wcc,
        }),
        Err(status) => Err((status, CREATE3resfail { dir_wcc })),
    })
}

/// The handle of what was made.
fn new_handle(context: &CallContext, dir_op: &DirOpArgs, made: &Attributes) -> post_op_fh3 {
    let handle = dir_op.entry(context, DOTS).and_then(|(directory, name)| {
        nested_exports::entry_handle(context, directory, &name, handle_of(made))
    });
    match handle {
        Ok(handle) => Nfs3Option::Some(handle),
        Err(_) => Nfs3Option::None,
    }
}
