//! Attributes: one row each in a table, bitmaps of them, and their values (RFC 8881 section 5).
//!
//! | file | holds |
//! | --- | --- |
//! | `bitmap.rs` | sets of attributes |
//! | `table.rs` | every attribute, and how its value is told |
//! | `settable.rs` | those that a client may set |

mod bitmap;
mod settable;
mod table;

pub(crate) use bitmap::Bitmap;
pub(crate) use settable::{New, take_new};
pub(crate) use table::{Facts, readable, tell, wants_space};
