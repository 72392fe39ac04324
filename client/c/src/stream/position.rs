//! The position of a stream.

use std::ffi::{c_int, c_long};

use client::stream::Whence;

use super::{EOF, FileStream, StreamState, answer_with, with};
use crate::arguments;
use crate::failure::{CApiFailure, answer};

/// C's numbers for where a seek counts from.
pub(crate) fn whence(number: c_int) -> Result<Whence, CApiFailure> {
    match number {
        libc::SEEK_SET => Ok(Whence::Set),
        libc::SEEK_CUR => Ok(Whence::Current),
        libc::SEEK_END => Ok(Whence::End),
        _ => Err(CApiFailure::new(
            libc::EINVAL,
            format!("{number} is no start of a seek; take SEEK_SET, SEEK_CUR or SEEK_END"),
        )),
    }
}

/// Moves the position to `offset` bytes from the start (SEEK_SET), the position (SEEK_CUR) or the
/// end of the file (SEEK_END); takes back mdfs_ungetc and clears mdfs_feof. Returns 0, or -1 on
/// failure; then the position is as before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_fseeko(
    stream: *mut FileStream,
    offset: libc::off_t,
    from: c_int,
) -> c_int {
    answer(-1, || {
        let from = whence(from)?;
        // SAFETY: see `with`.
        unsafe { with(stream, |open| Ok(open.stream()?.seek(offset, from)?)) }?;
        Ok(0)
    })
}

/// As mdfs_fseeko.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_fseek(stream: *mut FileStream, offset: c_long, from: c_int) -> c_int {
    // SAFETY: the same promises.
    unsafe { mdfs_fseeko(stream, offset, from) }
}

/// The position, in bytes from the start; -1 on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_ftello(stream: *mut FileStream) -> libc::off_t {
    // SAFETY: see `with`.
    answer(-1, || arguments::signed(unsafe { with(stream, |open| Ok(open.stream()?.tell())) }?))
}

/// As mdfs_ftello.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_ftell(stream: *mut FileStream) -> c_long {
    // SAFETY: the same promises.
    unsafe { mdfs_ftello(stream) }
}

/// Moves the position to the start and clears both indicators.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_rewind(stream: *mut FileStream) {
    let rewind = |open: &mut StreamState| {
        let stream = open.stream()?;
        let moved = stream.seek(0, Whence::Set);
        stream.clear_error();
        Ok(moved.map(drop)?)
    };
    // SAFETY: the same promises.
    unsafe { answer_with((), stream, rewind) };
}

/// A position, for mdfs_fsetpos.
#[allow(non_camel_case_types, reason = "the name that C knows")]
pub type mdfs_fpos_t = i64;

/// Puts the position into `*position`. Returns 0, or -1 on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_fgetpos(
    stream: *mut FileStream,
    position: *mut mdfs_fpos_t,
) -> c_int {
    answer(EOF, || {
        // SAFETY: see `arguments` and `with`.
        unsafe {
            let position = arguments::place(position, "the position")?;
            *position = arguments::signed(with(stream, |open| Ok(open.stream()?.tell()))?)?;
        }
        Ok(0)
    })
}

/// Moves the position to one of mdfs_fgetpos. Returns 0, or -1 on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_fsetpos(
    stream: *mut FileStream,
    position: *const mdfs_fpos_t,
) -> c_int {
    answer(EOF, || {
        // SAFETY: see `arguments`.
        let position = *unsafe { arguments::reference(position, "the position") }?;
        // SAFETY: see `with`.
        unsafe { with(stream, |open| Ok(open.stream()?.seek(position, Whence::Set).map(|_| 0)?)) }
    })
}
