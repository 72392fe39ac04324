//! Errors as Python has them.

use client::volume::{OpenCause, OpenError};
use pyo3::PyErr;
use pyo3::exceptions::PyOSError;

/// `EIO`, for what has no number of its own.
const EIO: i32 = 5;
/// `ENOTCONN`.
const ENOTCONN: i32 = 107;
/// `ENOENT`.
const ENOENT: i32 = 2;

/// An operation failed.
pub(crate) fn failed(error: client::Error) -> PyErr {
    PyOSError::new_err((error.cause.errno(), error.to_string()))
}

/// A volume could not be opened.
pub(crate) fn not_opened(error: OpenError) -> PyErr {
    let number = match &error.cause {
        OpenCause::NoDirectory => ENOENT,
        OpenCause::Stack(_) => EIO,
        OpenCause::Unusable(cause) | OpenCause::NoCredentials(cause) => {
            cause.raw_os_error().unwrap_or(EIO)
        }
    };
    PyOSError::new_err((number, error.to_string()))
}

/// A forked child uses what its parent has opened.
pub(crate) fn not_ours() -> PyErr {
    let text = "it was opened before this process was forked, by its parent; open the volume again";
    PyOSError::new_err((ENOTCONN, text))
}
