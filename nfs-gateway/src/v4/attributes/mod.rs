//! Attributes: their table, bitmaps of them, and their values (RFC 8881 section 5).
//!
//! | file | holds |
//! | --- | --- |
//! | `bitmap.rs` | sets of attributes |
//! | `numbers.rs` | numbers of attributes |
//! | `table.rs` | the attributes that can be read, and their encoding |
//! | `settable.rs` | those that can be set |

mod bitmap;
mod numbers;
mod settable;
mod table;

pub(crate) use bitmap::Bitmap;
pub(crate) use numbers::{FILEHANDLE, RDATTR_ERROR, SIZE};
pub(crate) use settable::{NewAttributes, take_attributes};
pub(crate) use table::{AttrSource, encode, readable, wants_space};
