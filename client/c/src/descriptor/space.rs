//! The room that an open file takes.

use std::ffi::c_int;

use super::Descriptor;
use crate::arguments;
use crate::failure::{CApiFailure, answer};

/// Cuts the file, or lengthens it by a hole. Returns 0, or -1 on failure.
#[unsafe(no_mangle)]
pub extern "C" fn mdfs_ftruncate(descriptor: c_int, size: libc::off_t) -> c_int {
    answer(-1, || {
        let descriptor = Descriptor::at(descriptor)?;
        descriptor.to_write()?.set_len(arguments::offset(size)?)?;
        Ok(0)
    })
}

/// As Linux' `fallocate`, with the modes 0, FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE with it, and
/// FALLOC_FL_ZERO_RANGE with or without it. Mode 0 fails if there is no room now, but sets none
/// aside: committed blocks are never written in place. Returns 0, or -1 on failure.
#[unsafe(no_mangle)]
pub extern "C" fn mdfs_fallocate(
    descriptor: c_int,
    mode: c_int,
    offset: libc::off_t,
    length: libc::off_t,
) -> c_int {
    answer(-1, || {
        let descriptor = Descriptor::at(descriptor)?;
        let (offset, length) = (arguments::offset(offset)?, arguments::offset(length)?);
        if length == 0 {
            return Err(CApiFailure::new(libc::EINVAL, "the range to allocate is empty"));
        }
        let file = descriptor.to_write()?;
        let keep_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        match mode & !libc::FALLOC_FL_KEEP_SIZE {
            0 => drop(file.allocate(offset, length, keep_size)?),
            libc::FALLOC_FL_PUNCH_HOLE if keep_size => file.punch_hole(offset, length)?,
            libc::FALLOC_FL_ZERO_RANGE => file.zero_range(offset, length, keep_size)?,
            _ => {
                let text = "this mode of fallocate is not supported; punch holes with \
                    FALLOC_FL_KEEP_SIZE";
                return Err(CApiFailure::new(libc::EOPNOTSUPP, text));
            }
        }
        Ok(0)
    })
}
