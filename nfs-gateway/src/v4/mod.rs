//! NFS version 4, minor versions 1 and 2 (RFC 8881, RFC 7862, RFC 8276). Minor version 0 is
//! refused.
//!
//! A call is a sequence of operations, processed in order up to the first that fails. All but a few
//! belong to a session, whose reply cache makes each request apply exactly once.
//!
//! | file | holds |
//! | --- | --- |
//! | `process.rs` | processes a COMPOUND: its operations in order, its reply |
//! | `compound.rs` | the context of a COMPOUND: its session, current and saved file handle |
//! | `exactly_once.rs` | retransmissions, also of requests whose session is lost |
//! | `operation.rs` | the table of operations |
//! | `ops/` | one file per family of operations |
//! | `callbacks/` | calls to clients over the back channel |
//! | `state/` | the state of clients: sessions, open files, lock owners, delegations |
//! | `attributes/` | attributes |
//! | `current_fh.rs` | the file of a file handle, with the caller's rights |
//! | `pseudo_fs.rs` | the directories above the exports |
//! | `types.rs` | stateids, sessions, owners, change info |
//! | `status.rs` | the status of an operation |
//! | `limits.rs` | limits |
//! | `server.rs` | what all calls share |
//!
//! Not implemented: delegations for writing or of directories, layouts (pNFS), access control
//! lists, copies between servers or in the background, CLONE (files share no blocks). Such
//! operations return `NOTSUPP`; such attributes are not among the supported ones.

mod attributes;
mod callbacks;
mod compound;
mod current_fh;
mod exactly_once;
pub(crate) mod limits;
pub(crate) mod operation;
mod ops;
mod process;
mod pseudo_fs;
mod server;
mod state;
mod status;
mod types;

use fileio::protocol::XATTR_VALUE_MAX;

use crate::call_context::CallContext;
use crate::limits::TRANSFER_BYTES;
use crate::rpc::CallBody;
use crate::xdr::{CallArguments, ProcedureError, ProcedureResult, ReplyBody};
use operation::{COMPOUND, Nfs4Operation};
pub(crate) use server::Nfs4Server;
pub(crate) use state::DelegationTotals;

const NULL: u32 = 0;

/// Operations with the arguments of a READ.
const READS: [u32; 2] = [Nfs4Operation::Read as u32, Nfs4Operation::ReadPlus as u32];
/// Words from the number of a READ to its count, and from that of a READDIR or a LISTXATTRS to its
/// maxcount.
const READ_COUNT_AT: usize = 7;
const READDIR_COUNT_AT: usize = 6;
const LISTXATTRS_COUNT_AT: usize = 3;

/// Answers `procedure`.
pub(crate) async fn answer(
    server: &Nfs4Server,
    context: &CallContext,
    procedure: u32,
    arguments: CallArguments,
) -> ProcedureResult {
    match procedure {
        //= rfc8881 16.1
        NULL => arguments.finish().map(|()| ReplyBody::default()),
        COMPOUND => process::answer(server, context, arguments).await,
        _ => Err(ProcedureError::NoProcedure),
    }
}

/// Bytes of data in the reply to `call`, at most. Any word that looks like a READ counts as one, so
/// this is never too little.
pub(crate) fn reply_bytes_max(call: &CallBody) -> usize {
    if call.procedure != COMPOUND {
        return 0;
    }
    if call.arguments.is_in_pieces() {
        return TRANSFER_BYTES as usize;
    }
    let head = call.arguments.head();
    let of_word = |(at, bytes): (usize, &[u8])| {
        let count_at = match word(bytes) {
            number if READS.contains(&number) => at + READ_COUNT_AT,
            number if number == Nfs4Operation::Readdir as u32 => at + READDIR_COUNT_AT,
            number if number == Nfs4Operation::Listxattrs as u32 => at + LISTXATTRS_COUNT_AT,
            number if number == Nfs4Operation::Getxattr as u32 => return XATTR_VALUE_MAX,
            _ => return 0,
        };
        head.get(4 * count_at..4 * count_at + 4).map_or(0, word).min(TRANSFER_BYTES) as usize
    };
    let counts = head.chunks_exact(4).enumerate().map(of_word);
    counts.sum::<usize>().min(limits::REPLY_BYTES_MAX as usize)
}

fn word(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |word, byte| word << 8 | u32::from(*byte))
}
