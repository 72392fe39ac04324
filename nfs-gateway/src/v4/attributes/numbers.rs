//! Numbers of attributes (RFC 8881 sections 5.6 and 5.7).

use super::bitmap::Bitmap;

pub(crate) const CHANGE: u32 = 3;
pub(crate) const SIZE: u32 = 4;
pub(crate) const RDATTR_ERROR: u32 = 11;
pub(crate) const FILEHANDLE: u32 = 19;
pub(crate) const MODE: u32 = 33;
pub(crate) const OWNER: u32 = 36;
pub(crate) const OWNER_GROUP: u32 = 37;
pub(crate) const TIME_ACCESS_SET: u32 = 48;
pub(crate) const TIME_MODIFY_SET: u32 = 54;

/// The attributes that can be set, also when a file is created.
pub(super) const SETTABLE: Bitmap =
    Bitmap::of(&[SIZE, MODE, OWNER, OWNER_GROUP, TIME_ACCESS_SET, TIME_MODIFY_SET]);
