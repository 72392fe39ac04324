//! Transfers that go on while the program computes.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;

use bytes::Bytes;
use client::{Error, file};
use futures::channel::oneshot;
use parking_lot::Mutex;
use runtime::{ClientHandle, Spawn as _, wait};

use super::Descriptor;
use crate::failure::{CApiFailure, answer, number_of};
use crate::{arguments, fork};

/// A transfer under way, or done and not yet returned.
#[derive(Debug)]
pub struct Background {
    descriptor: Arc<Descriptor>,
    /// Where bytes that were read go. C keeps them alive until it has the result.
    buffer: *mut c_void,
    length: usize,
    state: Mutex<TransferState>,
}

#[derive(Debug)]
enum TransferState {
    UnderWay(oneshot::Receiver<Result<Vec<Bytes>, Error>>),
    Done(Result<Vec<Bytes>, CApiFailure>),
}

/// The program has more under way than the library keeps, or the machine ended.
fn lost() -> CApiFailure {
    let text = "the transfer was not begun, because too many are under way or the volume has gone; \
        wait for some, and begin it again";
    CApiFailure::new(libc::EAGAIN, text)
}

impl Background {
    /// Starts what `work` makes of the file.
    fn start<F>(
        descriptor: Arc<Descriptor>,
        buffer: *mut c_void,
        length: usize,
        work: impl FnOnce(file::File<ClientHandle>) -> F + Send + 'static,
    ) -> *mut Self
    where
        F: Future<Output = Result<Vec<Bytes>, Error>> + 'static,
    {
        let (done, outcome) = oneshot::channel();
        let file = descriptor.file.shared();
        descriptor.mount.volume.file_system().machine().task(move |_| async move {
            // The caller may have stopped waiting.
            let _ = done.send(work(file).await);
        });
        let state = Mutex::new(TransferState::UnderWay(outcome));
        Box::into_raw(Box::new(Self { descriptor, buffer, length, state }))
    }

    /// Is it done? Does not wait.
    fn poll(&self) -> bool {
        let mut state = self.state.lock();
        if let TransferState::UnderWay(outcome) = &mut *state {
            match outcome.try_recv() {
                Ok(None) => return false,
                Ok(Some(outcome)) => {
                    *state = TransferState::Done(outcome.map_err(CApiFailure::from));
                }
                Err(oneshot::Canceled) => *state = TransferState::Done(Err(lost())),
            }
        }
        true
    }

    /// Waits for the outcome.
    fn outcome(self) -> Result<Vec<Bytes>, CApiFailure> {
        match self.state.into_inner() {
            TransferState::Done(outcome) => outcome,
            TransferState::UnderWay(outcome) => match wait(outcome) {
                Ok(outcome) => Ok(outcome?),
                Err(oneshot::Canceled) => Err(lost()),
            },
        }
    }
}

/// Starts to read `length` bytes from `offset` on. `buffer` belongs to the library until
/// mdfs_aio_return. Returns NULL on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_aio_read(
    descriptor: c_int,
    buffer: *mut c_void,
    length: usize,
    offset: libc::off_t,
) -> *mut Background {
    answer(ptr::null_mut(), || {
        let offset = arguments::offset(offset)?;
        // SAFETY: see `arguments`; looked at now, written to later.
        unsafe { arguments::bytes_mut(buffer, length) }?;
        let descriptor = Descriptor::at(descriptor)?;
        Ok(Background::start(descriptor, buffer, length, move |file| async move {
            file.read_bytes_at(offset, length).await
        }))
    })
}

/// Starts to write `length` bytes at `offset`. They are copied: `data` may be used again at once.
/// Returns NULL on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_aio_write(
    descriptor: c_int,
    data: *const c_void,
    length: usize,
    offset: libc::off_t,
) -> *mut Background {
    answer(ptr::null_mut(), || {
        let offset = arguments::offset(offset)?;
        // SAFETY: see `arguments`.
        let data = Bytes::copy_from_slice(unsafe { arguments::bytes(data, length) }?);
        let descriptor = Descriptor::at(descriptor)?;
        descriptor.to_write()?;
        Ok(Background::start(descriptor, ptr::null_mut(), length, move |file| async move {
            file.write_at(offset, data).await.map(|()| Vec::new())
        }))
    })
}

/// Starts to make the file durable, with what was written by then: not with transfers that are
/// still under way. Returns NULL on failure.
#[unsafe(no_mangle)]
pub extern "C" fn mdfs_aio_fsync(descriptor: c_int) -> *mut Background {
    answer(ptr::null_mut(), || {
        let descriptor = Descriptor::at(descriptor)?;
        Ok(Background::start(descriptor, ptr::null_mut(), 0, |file| async move {
            file.sync().await.map(|()| Vec::new())
        }))
    })
}

/// EINPROGRESS while the transfer is under way; then 0, or the number of its error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_aio_error(transfer: *const Background) -> c_int {
    number_of(|| {
        // SAFETY: see `arguments`.
        let transfer = unsafe { arguments::reference(transfer, "the transfer") }?;
        fork::check(transfer.descriptor.mount.generation)?;
        if !transfer.poll() {
            return Err(CApiFailure::new(libc::EINPROGRESS, "the transfer is still under way"));
        }
        match &*transfer.state.lock() {
            TransferState::Done(Err(failure)) => {
                Err(CApiFailure::new(failure.errno, failure.text.clone()))
            }
            _ => Ok(()),
        }
    })
}

/// Waits until the transfer is done and forgets it: once per transfer. Returns the bytes read or
/// written (0 for mdfs_aio_fsync), or -1 on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_aio_return(transfer: *mut Background) -> isize {
    answer(-1, || {
        // SAFETY: see `arguments`; it came from a box.
        let transfer = unsafe {
            arguments::reference(transfer, "the transfer")?;
            Box::from_raw(transfer)
        };
        if let Err(failure) = fork::check(transfer.descriptor.mount.generation) {
            // It shares what only the parent may end.
            std::mem::forget(transfer);
            return Err(failure);
        }
        let (buffer, length) = (transfer.buffer, transfer.length);
        let syncs = transfer.descriptor.syncs;
        let descriptor = transfer.descriptor.clone();
        let parts = transfer.outcome()?;
        if buffer.is_null() {
            if syncs && length > 0 {
                descriptor.file.sync()?;
            }
            return Ok(length.cast_signed());
        }
        // SAFETY: the buffer of `mdfs_aio_read`, which C has left alone since.
        let mut out = unsafe { arguments::bytes_mut(buffer, length) }?;
        let mut filled = 0;
        for part in parts {
            let (now, rest) = out.split_at_mut(part.len());
            now.copy_from_slice(&part);
            filled += part.len();
            out = rest;
        }
        Ok(filled.cast_signed())
    })
}
