//! stdio: streams of a volume, as ANSI C has them.
//!
//! What a stream does is in `client::stream`; here it gets C's names, its lock and its place among
//! all open streams.

pub mod position;
pub mod transfer;

use std::cell::RefCell;
use std::ffi::{c_char, c_int};
use std::mem;
use std::sync::Arc;

use client::Stream;
use client::blocking::{BlockingFile, Volume};
use client::stream::{BUFFER_SIZE, Mode};
use parking_lot::ReentrantMutex;

use crate::failure::{CApiFailure, answer};
use crate::mount::MountedVolume;
use crate::tables::{ExitStage, OpenObject};
use crate::{arguments, attributes, fork, tables};

/// An open stream.
#[derive(Debug)]
pub struct FileStream {
    mount: Arc<MountedVolume>,
    /// One call at a time; `mdfs_flockfile` keeps others out for longer.
    open: ReentrantMutex<RefCell<StreamState>>,
}

#[derive(Debug)]
struct StreamState {
    /// None once it is closed.
    stream: Option<Stream<BlockingFile>>,
    /// Lines are handed on as they end.
    by_line: bool,
}

/// The end of a stream, or a failure.
const EOF: c_int = -1;

impl StreamState {
    fn stream(&mut self) -> Result<&mut Stream<BlockingFile>, CApiFailure> {
        self.stream.as_mut().ok_or_else(|| {
            CApiFailure::new(libc::EBADF, "the stream is closed; open it again with mdfs_freopen")
        })
    }
}

impl OpenObject for FileStream {
    fn generation(&self) -> u64 {
        self.mount.generation
    }

    fn at_exit(&self, stage: ExitStage) {
        if stage == ExitStage::FlushStreams
            && let Err(failure) = self.flush()
        {
            eprintln!("libmdfs: the last bytes of a stream are lost: {}", failure.text);
        }
    }
}

impl FileStream {
    /// The stream at `pointer`, which this process has opened.
    unsafe fn at<'a>(pointer: *mut Self) -> Result<&'a Self, CApiFailure> {
        // SAFETY: C vouches for an open stream; see `arguments`.
        let stream = unsafe { arguments::reference(pointer, "the stream") }?;
        fork::check(stream.generation())?;
        Ok(stream)
    }

    /// Works on the stream alone.
    fn with<T>(
        &self,
        work: impl FnOnce(&mut StreamState) -> Result<T, CApiFailure>,
    ) -> Result<T, CApiFailure> {
        fork::check(self.generation())?;
        let open = self.open.lock();
        work(&mut open.borrow_mut())
    }

    /// Hands on what was written.
    pub(crate) fn flush(&self) -> Result<(), CApiFailure> {
        self.with(|open| match &mut open.stream {
            Some(stream) => Ok(stream.flush()?),
            None => Ok(()),
        })
    }

    fn close(&self) -> Result<(), CApiFailure> {
        let stream = self.with(|open| Ok(open.stream.take()))?;
        Ok(stream.map_or(Ok(()), Stream::close)?)
    }
}

/// Does `work` on the stream at `pointer`, alone.
unsafe fn with<T>(
    pointer: *mut FileStream,
    work: impl FnOnce(&mut StreamState) -> Result<T, CApiFailure>,
) -> Result<T, CApiFailure> {
    // SAFETY: C vouches for an open stream; see `arguments`.
    unsafe { arguments::reference(pointer, "the stream") }?.with(work)
}

/// The answer of `work` on the stream at `pointer`, alone; `failed` if that fails.
unsafe fn answer_with<T>(
    failed: T,
    pointer: *mut FileStream,
    work: impl FnOnce(&mut StreamState) -> Result<T, CApiFailure>,
) -> T {
    // SAFETY: see `with`.
    answer(failed, || unsafe { with(pointer, work) })
}

/// The mode of `mdfs_fopen`. The letters of the C library that mean nothing here are left out.
fn parse_mode(text: &str) -> Result<Mode, CApiFailure> {
    let plain: String = text.chars().filter(|letter| !"ecm".contains(*letter)).collect();
    plain.parse().map_err(|error: client::stream::BadMode| {
        CApiFailure::new(libc::EINVAL, format!("cannot open a stream: {error}"))
    })
}

fn open_stream(
    volume: &Volume,
    path: &[u8],
    mode: Mode,
) -> Result<Stream<BlockingFile>, CApiFailure> {
    let file = volume.open(path, mode.options().mode(attributes::new_file_mode(0o666)))?;
    Ok(Stream::new(file, mode)?)
}

/// Opens a stream on the file `path` of a volume, as `fopen` does; `mode` is r, w or a, with + to
/// read and write, and x after w to refuse an existing file. Returns NULL on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_fopen(
    mount: *mut MountedVolume,
    path: *const c_char,
    mode: *const c_char,
) -> *mut FileStream {
    answer(std::ptr::null_mut(), || {
        let mount = MountedVolume::at(mount)?;
        // SAFETY: see `arguments`.
        let (path, mode) = unsafe { (arguments::path(path)?, arguments::text(mode, "the mode")?) };
        let stream = open_stream(&mount.volume, path, parse_mode(mode)?)?;
        let open = StreamState { stream: Some(stream), by_line: false };
        let open = ReentrantMutex::new(RefCell::new(open));
        Ok(tables::add(FileStream { mount, open }))
    })
}

/// Closes what `stream` had open, without regard to failures, and opens another file of the same
/// volume in its place. Returns `stream`, or NULL on failure; then it is closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_freopen(
    path: *const c_char,
    mode: *const c_char,
    stream: *mut FileStream,
) -> *mut FileStream {
    answer(std::ptr::null_mut(), || {
        // SAFETY: see `arguments`.
        let file = unsafe { arguments::reference(stream, "the stream") }?;
        // Errors of the old file are ignored, as C specifies.
        let _ = file.close();
        let opened = (|| {
            fork::check(file.generation())?;
            // SAFETY: see `arguments`.
            let (path, mode) =
                unsafe { (arguments::path(path)?, arguments::text(mode, "the mode")?) };
            open_stream(&file.mount.volume, path, parse_mode(mode)?)
        })();
        match opened {
            Ok(opened) => file.with(|open| {
                *open = StreamState { stream: Some(opened), by_line: false };
                Ok(stream)
            }),
            Err(failure) => {
                drop(tables::remove(stream));
                Err(failure)
            }
        }
    })
}

/// Hands on what was written and closes the stream, which is gone whatever happens. What was
/// written is durable only after mdfs_fsync. Returns 0, or EOF on failure.
#[unsafe(no_mangle)]
pub extern "C" fn mdfs_fclose(stream: *mut FileStream) -> c_int {
    answer(EOF, || {
        let stream = tables::remove(stream).ok_or_else(|| {
            CApiFailure::new(libc::EBADF, "this is no open stream; open one with mdfs_fopen")
        })?;
        if let Err(failure) = fork::check(stream.generation()) {
            // Dropped, it would write out what the parent has in its buffer.
            mem::forget(stream);
            return Err(failure);
        }
        stream.close()?;
        Ok(0)
    })
}

/// Hands on what was written to `stream`, or to all streams if it is NULL: other programs see it
/// then. Returns 0, or EOF on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_fflush(stream: *mut FileStream) -> c_int {
    answer(EOF, || {
        if stream.is_null() {
            let flushed: Vec<Result<(), CApiFailure>> =
                tables::all::<FileStream>().iter().map(|stream| stream.flush()).collect();
            flushed.into_iter().collect::<Result<(), CApiFailure>>()?;
        } else {
            // SAFETY: see `with`.
            unsafe { with(stream, |open| Ok(open.stream()?.flush()?)) }?;
        }
        Ok(0)
    })
}

/// Hands on what was written to `stream` and makes the whole file durable. Returns 0, or EOF on
/// failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_fsync(stream: *mut FileStream) -> c_int {
    // SAFETY: the same promises.
    unsafe { answer_with(EOF, stream, |open| Ok(open.stream()?.sync().map(|()| 0)?)) }
}

/// Chooses how `stream` is buffered, as `setvbuf` does: _IOFBF, _IOLBF or _IONBF, and the size of
/// the buffer in bytes (0 for the usual size, one stripe). The library allocates the buffer itself
/// and leaves `buffer` alone. Returns 0, or EOF on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_setvbuf(
    stream: *mut FileStream,
    buffer: *mut c_char,
    mode: c_int,
    size: usize,
) -> c_int {
    let _ = buffer;
    answer(EOF, || {
        let (size, by_line) = match mode {
            libc::_IONBF => (0, false),
            libc::_IOFBF | libc::_IOLBF => {
                (if size == 0 { BUFFER_SIZE } else { size }, mode == libc::_IOLBF)
            }
            _ => {
                let text = "the mode is not one of setvbuf's three";
                return Err(CApiFailure::new(libc::EINVAL, text));
            }
        };
        // SAFETY: see `with`.
        unsafe {
            with(stream, |open| {
                open.stream()?.set_buffer(size)?;
                open.by_line = by_line;
                Ok(0)
            })
        }
    })
}

/// Buffers `stream` as usual, or not at all if `buffer` is NULL, which is otherwise left alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_setbuf(stream: *mut FileStream, buffer: *mut c_char) {
    let mode = if buffer.is_null() { libc::_IONBF } else { libc::_IOFBF };
    // SAFETY: see `with`.
    unsafe { mdfs_setvbuf(stream, buffer, mode, 0) };
}

/// Did a read meet the end of the file?
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_feof(stream: *mut FileStream) -> c_int {
    // SAFETY: the same promises.
    unsafe { answer_with(0, stream, |open| Ok(open.stream()?.is_at_end().into())) }
}

/// Did a transfer fail?
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_ferror(stream: *mut FileStream) -> c_int {
    // SAFETY: the same promises.
    unsafe { answer_with(0, stream, |open| Ok(open.stream()?.has_failed().into())) }
}

/// Clears the indicators of mdfs_feof and mdfs_ferror.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_clearerr(stream: *mut FileStream) {
    // SAFETY: the same promises.
    unsafe { answer_with((), stream, |open| open.stream().map(Stream::clear_error)) };
}

/// Keeps other threads out of `stream` until mdfs_funlockfile. May be nested.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_flockfile(stream: *mut FileStream) {
    answer((), || {
        // SAFETY: the same promises.
        let stream = unsafe { FileStream::at(stream) }?;
        mem::forget(stream.open.lock());
        Ok(())
    });
}

/// As mdfs_flockfile, if that needs no waiting. Returns 0 if `stream` is locked now.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_ftrylockfile(stream: *mut FileStream) -> c_int {
    answer(EOF, || {
        // SAFETY: the same promises.
        let stream = unsafe { FileStream::at(stream) }?;
        let locked = stream.open.try_lock();
        let busy = || CApiFailure::new(libc::EBUSY, "another thread has locked the stream; wait");
        mem::forget(locked.ok_or_else(busy)?);
        Ok(0)
    })
}

/// Gives up one mdfs_flockfile of this thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_funlockfile(stream: *mut FileStream) {
    answer((), || {
        // SAFETY: the same promises.
        let stream = unsafe { FileStream::at(stream) }?;
        if !stream.open.is_owned_by_current_thread() {
            return Err(CApiFailure::new(libc::EPERM, "this thread has not locked the stream"));
        }
        // SAFETY: this thread has the lock, by a guard that was forgotten.
        unsafe { stream.open.force_unlock() };
        Ok(())
    });
}
