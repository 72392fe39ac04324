//! What C hands over, as Rust has it.
//!
//! C vouches for this, in every function of the library: a string ends in a zero byte; a pointer
//! with a length points to that number of bytes, which are not written meanwhile; a pointer to a
//! struct leads to one; a handle came from this library and was not closed. Null is refused where a
//! function does not say what it means.

use std::ffi::{CStr, c_char};
use std::slice;

use crate::failure::CApiFailure;

fn null(what: &str) -> CApiFailure {
    CApiFailure::new(libc::EFAULT, format!("{what} is a null pointer; pass a valid one"))
}

/// A path or a name.
pub(crate) unsafe fn path<'a>(path: *const c_char) -> Result<&'a [u8], CApiFailure> {
    if path.is_null() {
        return Err(null("a path"));
    }
    // SAFETY: not null, and see the module.
    Ok(unsafe { CStr::from_ptr(path) }.to_bytes())
}

/// A string that is text.
pub(crate) unsafe fn text<'a>(text: *const c_char, what: &str) -> Result<&'a str, CApiFailure> {
    if text.is_null() {
        return Err(null(what));
    }
    // SAFETY: not null, and see the module.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str()
        .map_err(|_| CApiFailure::new(libc::EINVAL, format!("{what} is not text in UTF-8")))
}

/// Bytes to read.
pub(crate) unsafe fn bytes<'a, T>(data: *const T, length: usize) -> Result<&'a [u8], CApiFailure> {
    check_length(length)?;
    match data.is_null() {
        true if length == 0 => Ok(&[]),
        true => Err(null("the data")),
        // SAFETY: not null, of a possible length, and see the module.
        false => Ok(unsafe { slice::from_raw_parts(data.cast(), length) }),
    }
}

/// Bytes to write.
pub(crate) unsafe fn bytes_mut<'a, T>(
    buffer: *mut T,
    length: usize,
) -> Result<&'a mut [u8], CApiFailure> {
    check_length(length)?;
    match buffer.is_null() {
        true if length == 0 => Ok(&mut []),
        true => Err(null("the buffer")),
        // SAFETY: not null, of a possible length, and see the module.
        false => Ok(unsafe { slice::from_raw_parts_mut(buffer.cast(), length) }),
    }
}

/// Nothing in memory is longer than that.
fn check_length(length: usize) -> Result<(), CApiFailure> {
    match isize::try_from(length) {
        Ok(_) => Ok(()),
        Err(_) => Err(CApiFailure::new(libc::EINVAL, "the length is more than memory can hold")),
    }
}

/// What a pointer leads to.
pub(crate) unsafe fn reference<'a, T>(pointer: *const T, what: &str) -> Result<&'a T, CApiFailure> {
    // SAFETY: null gives nothing, and see the module.
    unsafe { pointer.as_ref() }.ok_or_else(|| null(what))
}

/// A place for a result.
pub(crate) unsafe fn place<'a, T>(pointer: *mut T, what: &str) -> Result<&'a mut T, CApiFailure> {
    // SAFETY: null gives nothing, and see the module.
    unsafe { pointer.as_mut() }.ok_or_else(|| null(what))
}

/// A byte offset.
pub(crate) fn offset(offset: i64) -> Result<u64, CApiFailure> {
    u64::try_from(offset)
        .map_err(|_| CApiFailure::new(libc::EINVAL, "an offset is negative; count from the start"))
}

/// A size or a position, as C's signed types have it.
pub(crate) fn signed(number: u64) -> Result<i64, CApiFailure> {
    i64::try_from(number)
        .map_err(|_| CApiFailure::new(libc::EOVERFLOW, "the result is more than the type can hold"))
}
