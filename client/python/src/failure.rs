//! Errors as Python has them.

use client::volume::OpenError;
use pyo3::PyErr;
use pyo3::exceptions::PyOSError;

/// `ENOTCONN`.
const ENOTCONN: i32 = 107;

/// An operation failed.
pub(crate) fn failed(error: client::Error) -> PyErr {
    PyOSError::new_err((error.cause.errno(), error.to_string()))
}

/// A volume could not be opened.
pub(crate) fn not_opened(error: OpenError) -> PyErr {
    PyOSError::new_err((error.cause.errno(), error.to_string()))
}

/// A forked child uses what its parent has opened.
pub(crate) fn not_ours() -> PyErr {
    let text = "it was opened before this process was forked, by its parent; open the volume again";
    PyOSError::new_err((ENOTCONN, text))
}
