//! Bytes in and out of a stream.

use std::ffi::{c_char, c_int, c_void};

use super::{EOF, FileStream, StreamState, answer_with, with};
use crate::arguments;
use crate::failure::{CApiFailure, answer, record};

/// `count` items of `size` bytes, in bytes.
fn total(size: usize, count: usize) -> Result<usize, CApiFailure> {
    size.checked_mul(count).ok_or_else(|| {
        CApiFailure::new(libc::EOVERFLOW, "size times count is more than memory can hold")
    })
}

/// C's rule: a character is taken as an unsigned char.
fn byte_of(character: c_int) -> u8 {
    character.cast_unsigned() as u8
}

impl StreamState {
    /// Fills `out`. Bytes before a failure are returned first, and the failure is recorded.
    fn read(&mut self, out: &mut [u8]) -> Result<usize, CApiFailure> {
        let stream = self.stream()?;
        let failed_before = stream.has_failed();
        let filled = stream.read(out)?;
        if stream.has_failed() && !failed_before {
            record(&CApiFailure::new(
                libc::EIO,
                "some bytes were read, and the next ones cannot be",
            ));
        }
        Ok(filled)
    }

    /// Writes all of `data`, and hands it on at once if a line ends in it and lines matter.
    fn write(&mut self, data: &[u8]) -> Result<(), CApiFailure> {
        let by_line = self.by_line;
        let stream = self.stream()?;
        stream.write(data)?;
        if by_line && data.contains(&b'\n') {
            stream.flush()?;
        }
        Ok(())
    }
}

/// Reads `count` items of `size` bytes from the position on. Returns how many came as a whole:
/// fewer at the end of the file or on failure only, which mdfs_feof and mdfs_ferror tell apart.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_fread(
    buffer: *mut c_void,
    size: usize,
    count: usize,
    stream: *mut FileStream,
) -> usize {
    answer(0, || {
        let length = total(size, count)?;
        if length == 0 {
            return Ok(0);
        }
        // SAFETY: see `arguments`.
        let out = unsafe { arguments::bytes_mut(buffer, length) }?;
        // SAFETY: see `with`.
        let filled = unsafe { with(stream, |open| open.read(out)) }?;
        Ok(filled / size)
    })
}

/// Writes `count` items of `size` bytes at the position. Returns `count`, or 0 on failure; then
/// the position is as before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_fwrite(
    data: *const c_void,
    size: usize,
    count: usize,
    stream: *mut FileStream,
) -> usize {
    answer(0, || {
        let length = total(size, count)?;
        if length == 0 {
            return Ok(0);
        }
        // SAFETY: see `arguments` and `with`.
        unsafe {
            let data = arguments::bytes(data, length)?;
            with(stream, |open| open.write(data))?;
        }
        Ok(count)
    })
}

/// The next byte, or EOF at the end of the file or on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_fgetc(stream: *mut FileStream) -> c_int {
    let next = |open: &mut StreamState| {
        let mut byte = [0];
        Ok(if open.read(&mut byte)? == 1 { c_int::from(byte[0]) } else { EOF })
    };
    // SAFETY: the same promises.
    unsafe { answer_with(EOF, stream, next) }
}

/// Writes `character` as one byte. Returns it, or EOF on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_fputc(character: c_int, stream: *mut FileStream) -> c_int {
    let byte = byte_of(character);
    // SAFETY: the same promises.
    unsafe { answer_with(EOF, stream, |open| open.write(&[byte]).map(|()| c_int::from(byte))) }
}

/// Pushes `character` back: it is the next to be read, until the next seek or write. At least 64
/// can be pushed back. Returns it, or EOF on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_ungetc(character: c_int, stream: *mut FileStream) -> c_int {
    if character == EOF {
        return EOF;
    }
    let byte = byte_of(character);
    let unread = |open: &mut StreamState| Ok(open.stream()?.unread(byte).map(|()| byte.into())?);
    // SAFETY: the same promises.
    unsafe { answer_with(EOF, stream, unread) }
}

/// Reads up to the end of the line, which is kept, but at most `size` - 1 bytes, and puts a zero
/// byte after them. Returns `buffer`; NULL at the end of the file, if nothing was read, or on
/// failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_fgets(
    buffer: *mut c_char,
    size: c_int,
    stream: *mut FileStream,
) -> *mut c_char {
    answer(std::ptr::null_mut(), || {
        let size = usize::try_from(size).ok().filter(|&size| size > 0).ok_or_else(|| {
            CApiFailure::new(libc::EINVAL, "a line needs a buffer of at least one byte")
        })?;
        // SAFETY: see `arguments`.
        let out = unsafe { arguments::bytes_mut(buffer, size) }?;
        let (line, _) = out.split_at_mut(size - 1);
        if line.is_empty() {
            // As in glibc, the stream is not looked at.
            out[0] = 0;
            return Ok(buffer);
        }
        // SAFETY: see `with`.
        let filled = unsafe { with(stream, |open| Ok(open.stream()?.read_until(b'\n', line)?)) }?;
        if filled == 0 {
            return Ok(std::ptr::null_mut());
        }
        out[filled] = 0;
        Ok(buffer)
    })
}

/// Writes a string without its zero byte. Returns a number of at least 0, or EOF on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_fputs(string: *const c_char, stream: *mut FileStream) -> c_int {
    answer(EOF, || {
        // SAFETY: see `arguments` and `with`.
        unsafe {
            let string = arguments::path(string)?;
            with(stream, |open| open.write(string))?;
        }
        Ok(1)
    })
}

/// Bytes that the buffer of [`mdfs_getdelim`] has at first.
const LINE_SIZE: usize = 120;

/// Reads up to and including the byte `delimiter` into `*line`, a buffer of `malloc` of `*size`
/// bytes (or NULL), which is made larger as needed, and puts a zero byte after them. Returns the
/// bytes read; -1 at the end of the file, if nothing was read, or on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_getdelim(
    line: *mut *mut c_char,
    size: *mut usize,
    delimiter: c_int,
    stream: *mut FileStream,
) -> isize {
    answer(-1, || {
        // SAFETY: see `arguments`.
        let (line, size) = unsafe {
            (arguments::place(line, "the line")?, arguments::place(size, "the line's size")?)
        };
        let delimiter = byte_of(delimiter);
        if line.is_null() {
            *size = 0;
        }
        let mut filled = 0;
        // One byte stays free for the zero.
        loop {
            if filled + 1 >= *size {
                let larger = (*size * 2).max(LINE_SIZE);
                // SAFETY: `*line` is null or came from `malloc`, as C vouches.
                let moved = unsafe { libc::realloc((*line).cast(), larger) };
                if moved.is_null() {
                    let text = "no memory for a line of this length";
                    return Err(CApiFailure::new(libc::ENOMEM, text));
                }
                (*line, *size) = (moved.cast(), larger);
            }
            // SAFETY: the buffer has `*size` bytes.
            let buffer = unsafe { arguments::bytes_mut(*line, *size) }?;
            let room = *size - 1 - filled;
            let rest = &mut buffer[filled..filled + room];
            // SAFETY: see `with`.
            let count =
                unsafe { with(stream, |open| Ok(open.stream()?.read_until(delimiter, rest)?)) }?;
            let ends = count > 0 && rest[count - 1] == delimiter;
            filled += count;
            buffer[filled] = 0;
            if ends || count < room {
                break;
            }
        }
        // Memory is never longer than that.
        Ok(if filled == 0 { -1 } else { filled.cast_signed() })
    })
}

/// As mdfs_getdelim, for lines.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_getline(
    line: *mut *mut c_char,
    size: *mut usize,
    stream: *mut FileStream,
) -> isize {
    // SAFETY: the same promises.
    unsafe { mdfs_getdelim(line, size, c_int::from(b'\n'), stream) }
}
