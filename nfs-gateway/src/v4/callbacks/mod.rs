//! Callbacks to clients (RFC 8881 section 20).
//!
//! | file | holds |
//! | --- | --- |
//! | `wire.rs` | encodes a `CB_COMPOUND`, decodes its reply |
//! | `send.rs` | finds a slot and a connection, and sends |
//! | `recalls.rs` | recalls delegations |
//! | `lock_notices.rs` | tells clients that a lock is free |

mod lock_notices;
mod recalls;
mod send;
mod wire;

pub(super) use lock_notices::start as start_lock_notices;
pub(super) use recalls::start as start_recalls;
pub(super) use send::{probe, send};
pub(super) use wire::CallbackOperation;
