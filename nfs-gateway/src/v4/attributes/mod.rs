//! Attributes: their table, bitmaps of them, and their values (RFC 8881 section 5).

mod bitmap;
mod numbers;
mod settable;
mod table;

pub(crate) use bitmap::Bitmap;
pub(crate) use numbers::{FILEHANDLE, RDATTR_ERROR, SIZE};
pub(crate) use settable::{NewAttributes, take_attributes};
pub(crate) use table::{AttrSource, encode, encode_error, readable, wants_space};
