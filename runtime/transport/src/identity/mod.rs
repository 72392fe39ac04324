//! Who a client is: what it shows, and what the servers make of it.
//!
//! | file | holds |
//! | --- | --- |
//! | `token.rs` | tokens of users, which a key of the volume signs |
//! | `verifier.rs` | the keys that a server accepts |

pub mod token;
mod verifier;

pub use self::verifier::{KEYS_AGE_MAX, TokenVerifier};
