//! The NFS program (RFC 1813 section 3): the table of its 22 procedures.

mod access;
mod asker;
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
mod setattr;
mod write;

use nfs3_types::nfs3::{NFS_PROGRAM, PROGRAM, VERSION};

pub(crate) use access::granted;
pub(crate) use asker::{Asker, Volume};
pub(crate) use create::check_target;
pub(crate) use fsinfo::{FILE_BYTES_MIN, NAME_BYTES_MAX};
pub(crate) use lookup::{above, find, from_root};

use crate::config::limits::TRANSFER_BYTES;
use crate::rpc::Question;
use crate::xdr::{Arguments, Body, Fault};

/// Answers `procedure`.
pub(crate) async fn answer(
    asker: &Asker,
    procedure: u32,
    arguments: Arguments,
) -> Result<Body, Fault> {
    // Boxed are those that wait: with their futures all others would be as large.
    match NFS_PROGRAM::try_from(procedure).map_err(|_| Fault::NoProcedure)? {
        //= rfc1813 3.3.0
        NFS_PROGRAM::NFSPROC3_NULL => arguments.finish().map(|()| Body::default()),
        NFS_PROGRAM::NFSPROC3_GETATTR => getattr::serve(asker, arguments).await,
        NFS_PROGRAM::NFSPROC3_SETATTR => Box::pin(setattr::serve(asker, arguments)).await,
        NFS_PROGRAM::NFSPROC3_LOOKUP => lookup::serve(asker, arguments).await,
        NFS_PROGRAM::NFSPROC3_ACCESS => access::serve(asker, arguments).await,
        NFS_PROGRAM::NFSPROC3_READLINK => Box::pin(readlink::serve(asker, arguments)).await,
        NFS_PROGRAM::NFSPROC3_READ => read::serve(asker, arguments).await,
        NFS_PROGRAM::NFSPROC3_WRITE => Box::pin(write::write(asker, arguments)).await,
        NFS_PROGRAM::NFSPROC3_CREATE => Box::pin(create::create(asker, arguments)).await,
        NFS_PROGRAM::NFSPROC3_MKDIR => Box::pin(create::mkdir(asker, arguments)).await,
        NFS_PROGRAM::NFSPROC3_SYMLINK => Box::pin(create::symlink(asker, arguments)).await,
        NFS_PROGRAM::NFSPROC3_MKNOD => Box::pin(create::mknod(asker, arguments)).await,
        NFS_PROGRAM::NFSPROC3_REMOVE => Box::pin(remove::remove(asker, arguments)).await,
        NFS_PROGRAM::NFSPROC3_RMDIR => Box::pin(remove::rmdir(asker, arguments)).await,
        NFS_PROGRAM::NFSPROC3_RENAME => Box::pin(rename::serve(asker, arguments)).await,
        NFS_PROGRAM::NFSPROC3_LINK => Box::pin(link::serve(asker, arguments)).await,
        NFS_PROGRAM::NFSPROC3_READDIR => Box::pin(readdir::readdir(asker, arguments)).await,
        NFS_PROGRAM::NFSPROC3_READDIRPLUS => Box::pin(readdir::readdirplus(asker, arguments)).await,
        NFS_PROGRAM::NFSPROC3_FSSTAT => Box::pin(fsinfo::fsstat(asker, arguments)).await,
        NFS_PROGRAM::NFSPROC3_FSINFO => Box::pin(fsinfo::fsinfo(asker, arguments)).await,
        NFS_PROGRAM::NFSPROC3_PATHCONF => Box::pin(fsinfo::pathconf(asker, arguments)).await,
        NFS_PROGRAM::NFSPROC3_COMMIT => Box::pin(write::commit(asker, arguments)).await,
    }
}

/// The procedure of `question`, if it is one of this program.
fn procedure(question: &Question) -> Option<NFS_PROGRAM> {
    let procedure = NFS_PROGRAM::try_from(question.procedure).ok();
    procedure.filter(|_| (question.program, question.version) == (PROGRAM, VERSION))
}

/// May the arguments of `question` be large, and stay in pieces?
pub(crate) fn has_payload(question: &Question) -> bool {
    procedure(question) == Some(NFS_PROGRAM::NFSPROC3_WRITE)
}

/// Does `question` ask to change something? Then a read-only export refuses. (COMMIT does not.)
pub(crate) fn changes(question: &Question) -> bool {
    let again = [NFS_PROGRAM::NFSPROC3_SETATTR, NFS_PROGRAM::NFSPROC3_WRITE];
    procedure(question).is_some_and(|asked| again.contains(&asked)) || is_done_once(question)
}

/// Must `question` be done once, however often it comes?
pub(crate) fn is_done_once(question: &Question) -> bool {
    matches!(
        procedure(question),
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

/// Bytes of data in the reply to `question`, at most.
pub(crate) fn reply_bytes_max(question: &Question) -> usize {
    match procedure(question) {
        // In all three the count is the last argument.
        Some(
            NFS_PROGRAM::NFSPROC3_READ
            | NFS_PROGRAM::NFSPROC3_READDIR
            | NFS_PROGRAM::NFSPROC3_READDIRPLUS,
        ) => {
            let count = question.arguments.head().last_chunk().copied().map(u32::from_be_bytes);
            count.unwrap_or(0).min(TRANSFER_BYTES) as usize
        }
        _ => 0,
    }
}
