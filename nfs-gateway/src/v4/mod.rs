//! NFS version 4, minor versions 1 and 2 (RFC 8881, RFC 7862). Minor version 0 is refused.
//!
//! A call is a row of operations, done one after the other up to the first that fails. All but a few
//! belong to a session, which keeps the reply, so that each is done once.
//!
//! | file | holds |
//! | --- | --- |
//! | `compound.rs` | one call: its operations in order, its reply |
//! | `once.rs` | what is done once, also if its session is not known any more |
//! | `table.rs` | the operations |
//! | `ops/` | what each of them does |
//! | `state/` | what is kept for clients: sessions, open files, owners of locks |
//! | `attributes/` | attributes |
//! | `here.rs` | what a file handle stands for |
//! | `pseudo.rs` | the directories above the exports |
//! | `words.rs` | words that many operations use |
//! | `status.rs` | what came of an operation |
//! | `limits.rs` | how much of everything there may be |
//!
//! Not there: delegations and the back channel that they need, layouts (pNFS), access control lists,
//! extended attributes, copies within the server. Operations on these are answered `NOTSUPP`, the
//! attributes are not among those told.

mod attributes;
mod compound;
mod here;
pub(crate) mod limits;
mod once;
mod ops;
mod pseudo;
mod state;
mod status;
mod table;
mod words;

use std::rc::Rc;

use runtime::Context;

use crate::config::limits::TRANSFER_BYTES;
use crate::keys::KeyRing;
use crate::metrics::Metrics;
use crate::nfs3::Asker;
use crate::rpc::Question;
use crate::xdr::{Arguments, Body, Fault};
use state::Kept;
pub(crate) use table::Operation;

/// The version.
pub(crate) const VERSION: u32 = 4;

const NULL: u32 = 0;
/// The procedure that does all the others' work.
pub(crate) const COMPOUND: u32 = 1;

/// Words of a READ from its number to its count, and of a READDIR to its largest reply.
const READ_COUNT_AT: usize = 7;
const READDIR_COUNT_AT: usize = 6;

/// What all calls have in common.
#[derive(Debug)]
pub(crate) struct Service {
    keys: Rc<KeyRing>,
    kept: Rc<Kept>,
    metrics: Rc<Metrics>,
}

impl Service {
    /// Nothing is kept yet.
    pub(crate) fn new(ctx: Context, keys: Rc<KeyRing>, metrics: Rc<Metrics>) -> Self {
        Self { keys, kept: Kept::new(ctx), metrics }
    }

    /// Answers `procedure`.
    pub(crate) async fn answer(
        &self,
        asker: &Asker,
        procedure: u32,
        arguments: Arguments,
    ) -> Result<Body, Fault> {
        match procedure {
            //= rfc8881 16.1
            NULL => arguments.finish().map(|()| Body::default()),
            COMPOUND => compound::answer(self, asker, arguments).await,
            _ => Err(Fault::NoProcedure),
        }
    }
}

/// Bytes of data in the reply to `question`, at most. What looks like a READ is taken for one, so it
/// is never too little.
pub(crate) fn reply_bytes_max(question: &Question) -> usize {
    if question.procedure != COMPOUND {
        return 0;
    }
    if question.arguments.is_in_pieces() {
        return TRANSFER_BYTES as usize;
    }
    let head = question.arguments.head();
    let of_word = |(at, bytes): (usize, &[u8])| {
        let count_at = match word(bytes) {
            number if number == Operation::Read as u32 => at + READ_COUNT_AT,
            number if number == Operation::Readdir as u32 => at + READDIR_COUNT_AT,
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
