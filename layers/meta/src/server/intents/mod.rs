//! Operations that touch several nodes (design D7, ADR 7). One record of one node decides: it holds
//! the changes at that node and, as an intent, those that must follow elsewhere. The others apply
//! them once each, and remember that they did until the intent is retired. Whoever applied effects may
//! crash alone before they are durable: an intent is retired only when each node has said that they
//! are, in the life in which it applied them; else it is sent once more.
//!
//! ```text
//! record with intent, durable --> effects applied elsewhere --> answer
//! or, if all these nodes end together and nobody wants it durable,
//! record with intent --> effects applied elsewhere, held back until that record is durable --> answer
//!    in the background: effects durable elsewhere --> intent deleted --> marks of it forgotten
//! ```
//!
//! | file | holds |
//! | --- | --- |
//! | `table.rs` | the intents of a node, and how far each is |
//! | `decision.rs` | the one record that decides |
//! | `sending.rs` | effects on their way to other nodes |
//! | `application.rs` | effects of other nodes' intents, and the marks of them |
//! | `retirement.rs` | intents that are done |
//! | `recovery.rs` | intents after a crash, of all nodes or of one |

mod application;
mod decision;
mod recovery;
mod retirement;
mod sending;
mod table;

pub(super) use self::decision::{Addition, Way};
pub(super) use self::table::Intents;

use crate::keys;
use crate::protocol::Effect;

/// Keys that one record deletes, at most.
const DELETED_MAX: usize = 128;
/// Intents that are finished at a time, at a mount or after a node was away.
const FINISHED_AT_ONCE: usize = 64;

fn name_keys(effects: &[Effect]) -> impl Iterator<Item = Vec<u8>> {
    effects.iter().filter_map(|effect| match effect {
        Effect::SetName { directory, name, .. } => Some(keys::name(*directory, name)),
        Effect::DropLink { .. } | Effect::ChangeParts { .. } => None,
    })
}

fn has_name(effects: &[Effect]) -> bool {
    name_keys(effects).next().is_some()
}

fn moves_directory(effect: &Effect) -> bool {
    matches!(effect, Effect::ChangeParts { change, .. } if change.parent.is_some())
}
