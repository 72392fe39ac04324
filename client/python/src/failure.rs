//! Errors as Python has them.

use client::volume::OpenError;
use pyo3::PyErr;
use pyo3::exceptions::PyOSError;

/// `ENOTCONN`.
const ENOTCONN: i32 = 107;
/// `ESTALE`.
const ESTALE: i32 = 116;

/// An operation failed.
pub(crate) fn failed(error: client::Error) -> PyErr {
    PyOSError::new_err((error.cause.errno(), error.to_string()))
}

/// A volume could not be opened.
pub(crate) fn not_opened(error: OpenError) -> PyErr {
    PyOSError::new_err((error.cause.errno(), error.to_string()))
}

/// A forked child uses a volume that its parent has opened without a server.
pub(crate) fn embedded_in_parent() -> PyErr {
    let text = "the process that this one was forked from has the volume alone; serve it \
                (`mdfs serve`), or open it in one process only";
    PyOSError::new_err((ENOTCONN, text))
}

/// A forked child uses an open file of its parent that has another name now, or none.
pub(crate) fn renamed_since_fork() -> PyErr {
    let text = "it was opened before this process was forked, and its name is gone or another \
                file's since; open it by its new name";
    PyOSError::new_err((ESTALE, text))
}
