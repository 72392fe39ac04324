//! The NFS program (RFC 1813 section 3): the table of its 22 procedures.

mod access;
mod create;
mod fsinfo;
mod getattr;
mod link;
mod lookup;
mod read;
mod readdir;
mod readlink;
mod remove;
mod rename;
mod results;
mod setattr;
mod write;

use nfs3_types::nfs3::{NFS_PROGRAM, PROGRAM, VERSION};

pub(crate) use access::granted;
pub(crate) use create::check_target;

use crate::call_context::CallContext;
use crate::limits::TRANSFER_BYTES;
use crate::rpc::CallBody;
use crate::xdr::{CallArguments, ProcedureError, ProcedureResult, ReplyBody};

/// Answers `procedure`.
pub(crate) async fn answer(
    context: &CallContext,
    procedure: u32,
    arguments: CallArguments,
) -> ProcedureResult {
    // Procedures that wait are boxed, so that the futures of the others are small.
    match NFS_PROGRAM::try_from(procedure).map_err(|_| ProcedureError::NoProcedure)? {
        //= rfc1813 3.3.0
        NFS_PROGRAM::NFSPROC3_NULL => arguments.finish().map(|()| ReplyBody::default()),
        NFS_PROGRAM::NFSPROC3_GETATTR => getattr::serve(context, arguments).await,
        NFS_PROGRAM::NFSPROC3_SETATTR => Box::pin(setattr::serve(context, arguments)).await,
        NFS_PROGRAM::NFSPROC3_LOOKUP => lookup::serve(context, arguments).await,
        NFS_PROGRAM::NFSPROC3_ACCESS => access::serve(context, arguments).await,
        NFS_PROGRAM::NFSPROC3_READLINK => Box::pin(readlink::serve(context, arguments)).await,
        NFS_PROGRAM::NFSPROC3_READ => read::serve(context, arguments).await,
        NFS_PROGRAM::NFSPROC3_WRITE => Box::pin(write::write(context, arguments)).await,
        NFS_PROGRAM::NFSPROC3_CREATE => Box::pin(create::create(context, arguments)).await,
        NFS_PROGRAM::NFSPROC3_MKDIR => Box::pin(create::mkdir(context, arguments)).await,
        NFS_PROGRAM::NFSPROC3_SYMLINK => Box::pin(create::symlink(context, arguments)).await,
        NFS_PROGRAM::NFSPROC3_MKNOD => Box::pin(create::mknod(context, arguments)).await,
        NFS_PROGRAM::NFSPROC3_REMOVE => Box::pin(remove::remove(context, arguments)).await,
        NFS_PROGRAM::NFSPROC3_RMDIR => Box::pin(remove::rmdir(context, arguments)).await,
        NFS_PROGRAM::NFSPROC3_RENAME => Box::pin(rename::serve(context, arguments)).await,
        NFS_PROGRAM::NFSPROC3_LINK => Box::pin(link::serve(context, arguments)).await,
        NFS_PROGRAM::NFSPROC3_READDIR => Box::pin(readdir::readdir(context, arguments)).await,
        NFS_PROGRAM::NFSPROC3_READDIRPLUS => {
            Box::pin(readdir::readdirplus(context, arguments)).await
        }
        NFS_PROGRAM::NFSPROC3_FSSTAT => Box::pin(fsinfo::fsstat(context, arguments)).await,
        NFS_PROGRAM::NFSPROC3_FSINFO => Box::pin(fsinfo::fsinfo(context, arguments)).await,
        NFS_PROGRAM::NFSPROC3_PATHCONF => Box::pin(fsinfo::pathconf(context, arguments)).await,
        NFS_PROGRAM::NFSPROC3_COMMIT => Box::pin(write::commit(context, arguments)).await,
    }
}

/// The procedure of `call`, if it is one of this program.
fn procedure(call: &CallBody) -> Option<NFS_PROGRAM> {
    let procedure = NFS_PROGRAM::try_from(call.procedure).ok();
    procedure.filter(|_| (call.program, call.version) == (PROGRAM, VERSION))
}

/// May the arguments of `call` be large, and stay in pieces?
pub(crate) fn has_payload(call: &CallBody) -> bool {
    procedure(call) == Some(NFS_PROGRAM::NFSPROC3_WRITE)
}

/// Does `call` change something? Then a read-only export refuses it. (COMMIT does not.)
pub(crate) fn changes(call: &CallBody) -> bool {
    let idempotent = [NFS_PROGRAM::NFSPROC3_SETATTR, NFS_PROGRAM::NFSPROC3_WRITE];
    procedure(call).is_some_and(|changing| idempotent.contains(&changing))
        || is_non_idempotent(call)
}

/// Must `call` be applied once, however often it is retransmitted?
pub(crate) fn is_non_idempotent(call: &CallBody) -> bool {
    matches!(
        procedure(call),
        Some(
            NFS_PROGRAM::NFSPROC3_CREATE
                | NFS_PROGRAM::NFSPROC3_MKDIR
                | NFS_PROGRAM::NFSPROC3_SYMLINK
                | NFS_PROGRAM::NFSPROC3_MKNOD
                | NFS_PROGRAM::NFSPROC3_REMOVE
                | NFS_PROGRAM::NFSPROC3_RMDIR
                | NFS_PROGRAM::NFSPROC3_RENAME
                | NFS_PROGRAM::NFSPROC3_LINK
        )
    )
}

/// Bytes of data in the reply to `call`, at most.
pub(crate) fn reply_bytes_max(call: &CallBody) -> usize {
    match procedure(call) {
        // In all three the count is the last argument.
        Some(
            NFS_PROGRAM::NFSPROC3_READ
            | NFS_PROGRAM::NFSPROC3_READDIR
            | NFS_PROGRAM::NFSPROC3_READDIRPLUS,
        ) => {
            let count = call.arguments.head().last_chunk().copied().map(u32::from_be_bytes);
            count.unwrap_or(0).min(TRANSFER_BYTES) as usize
        }
        _ => 0,
    }
}
