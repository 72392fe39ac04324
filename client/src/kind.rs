//! What a file is, in the words of POSIX.

use crate::Kind;

/// The bits of `st_mode` for the kind.
pub fn kind_bits(kind: Kind) -> u32 {
    match kind {
        Kind::File {} => libc::S_IFREG,
        Kind::Directory {} => libc::S_IFDIR,
        Kind::Symlink {} => libc::S_IFLNK,
        Kind::BlockDevice {} => libc::S_IFBLK,
        Kind::CharDevice {} => libc::S_IFCHR,
        Kind::Fifo {} => libc::S_IFIFO,
        Kind::Socket {} => libc::S_IFSOCK,
    }
}
