//! Bytes in and out of a descriptor.

use std::ffi::{c_int, c_void};

use bytes::Bytes;
use client::stream::Whence;

use super::Descriptor;
use crate::arguments;
use crate::failure::{CApiFailure, answer};
use crate::stream::position::whence;

impl Descriptor {
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), CApiFailure> {
        // The cache may keep the bytes for longer than C does.
        self.to_write()?.write_at(offset, Bytes::copy_from_slice(data))?;
        self.sync_if_asked()
    }

    pub(super) fn sync_if_asked(&self) -> Result<(), CApiFailure> {
        if self.syncs {
            self.file.sync()?;
        }
        Ok(())
    }
}

/// Reads `length` bytes from `offset` on. Returns how many came: fewer at the end of the file only;
/// -1 on failure. The position does not move.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_pread(
    descriptor: c_int,
    buffer: *mut c_void,
    length: usize,
    offset: libc::off_t,
) -> isize {
    answer(-1, || {
        let (descriptor, offset) = (Descriptor::at(descriptor)?, arguments::offset(offset)?);
        // SAFETY: see `arguments`.
        let out = unsafe { arguments::bytes_mut(buffer, length) }?;
        Ok(descriptor.file.read_at(offset, out)?.cast_signed())
    })
}

/// Writes all of `length` bytes at `offset`. Returns `length`, or -1 on failure; then any part of
/// them may have been written. The position does not move.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_pwrite(
    descriptor: c_int,
    data: *const c_void,
    length: usize,
    offset: libc::off_t,
) -> isize {
    answer(-1, || {
        let (descriptor, offset) = (Descriptor::at(descriptor)?, arguments::offset(offset)?);
        // SAFETY: see `arguments`.
        let data = unsafe { arguments::bytes(data, length) }?;
        descriptor.write_at(offset, data)?;
        Ok(length.cast_signed())
    })
}

/// Reads from the position on and moves it. Returns the bytes read, or -1 on failure; then the
/// position is as before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_read(descriptor: c_int, buffer: *mut c_void, length: usize) -> isize {
    answer(-1, || {
        let descriptor = Descriptor::at(descriptor)?;
        // SAFETY: see `arguments`.
        let out = unsafe { arguments::bytes_mut(buffer, length) }?;
        let mut position = descriptor.position.lock();
        let count = descriptor.file.read_at(*position, out)?;
        *position += count as u64;
        Ok(count.cast_signed())
    })
}

/// Writes at the position, or at the end of the file if it was opened with O_APPEND, and moves the
/// position after it. Returns `length`, or -1 on failure; then the position is as before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_write(
    descriptor: c_int,
    data: *const c_void,
    length: usize,
) -> isize {
    answer(-1, || {
        let descriptor = Descriptor::at(descriptor)?;
        // SAFETY: see `arguments`.
        let data = unsafe { arguments::bytes(data, length) }?;
        let mut position = descriptor.position.lock();
        if descriptor.appends {
            *position = descriptor.to_write()?.append(Bytes::copy_from_slice(data))?;
            descriptor.sync_if_asked()?;
        } else {
            descriptor.write_at(*position, data)?;
            *position += length as u64;
        }
        Ok(length.cast_signed())
    })
}

/// Moves the position, as `lseek` does, also to the next data (SEEK_DATA) or hole (SEEK_HOLE).
/// Returns it, or -1 on failure; then it is as before.
#[unsafe(no_mangle)]
pub extern "C" fn mdfs_lseek(descriptor: c_int, offset: libc::off_t, from: c_int) -> libc::off_t {
    answer(-1, || {
        let descriptor = Descriptor::at(descriptor)?;
        let mut position = descriptor.position.lock();
        let to = match from {
            libc::SEEK_DATA | libc::SEEK_HOLE => {
                let (file, start) = (&descriptor.file, arguments::offset(offset)?);
                let found = if from == libc::SEEK_DATA {
                    file.seek_data(start)?
                } else {
                    file.seek_hole(start)?
                };
                found.ok_or_else(|| {
                    CApiFailure::new(libc::ENXIO, "there is none from there to the end of the file")
                })?
            }
            _ => {
                let start = match whence(from)? {
                    Whence::Set => 0,
                    Whence::Current => *position,
                    Whence::End => descriptor.file.metadata()?.size,
                };
                let to = start.checked_add_signed(offset);
                to.filter(|&to| i64::try_from(to).is_ok()).ok_or_else(|| {
                    CApiFailure::new(libc::EINVAL, "the new position is outside of any file")
                })?
            }
        };
        *position = to;
        arguments::signed(to)
    })
}

/// Makes the file durable: all that was written to it, by whomever. Returns 0, or -1 on failure:
/// EIO also if something that was written through this descriptor since the last call is lost,
/// because a node of the file system has restarted; write it again then.
#[unsafe(no_mangle)]
pub extern "C" fn mdfs_fdatasync(descriptor: c_int) -> c_int {
    answer(-1, || {
        Descriptor::at(descriptor)?.file.sync()?;
        Ok(0)
    })
}
