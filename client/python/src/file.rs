//! Open files: bytes at offsets.

use bytes::Bytes;
use client::{Error, blocking};
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PySlice};

use crate::failure::failed;
use crate::ours::Ours;

/// An open file. It is closed when the last reference goes.
#[pyclass(frozen, module = "mdfs._mdfs")]
#[derive(Debug)]
pub(crate) struct File(Ours<blocking::File>);

/// The bytes of `data`, which Python may change while the file system still has them: so they are
/// copied, once.
fn copy_of(py: Python<'_>, data: &PyBuffer<u8>) -> PyResult<Bytes> {
    Ok(data.to_vec(py)?.into())
}

fn length_of(parts: &[Bytes]) -> usize {
    parts.iter().map(Bytes::len).sum()
}

impl File {
    pub(crate) fn new(file: blocking::File) -> Self {
        Self(Ours::new(file))
    }

    /// Does `work` while other Python threads run.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&blocking::File) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        let file = self.0.get()?;
        py.detach(|| work(file)).map_err(failed)
    }
}

#[pymethods]
impl File {
    /// `length` bytes from `offset` on; fewer at the end of the file only.
    fn pread<'py>(
        &self,
        py: Python<'py>,
        offset: u64,
        length: usize,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let parts = self.with(py, |file| file.read_bytes_at(offset, length))?;
        PyBytes::new_with(py, length_of(&parts), |mut out| {
            for part in &parts {
                let (now, rest) = out.split_at_mut(part.len());
                now.copy_from_slice(part);
                out = rest;
            }
            Ok(())
        })
    }

    /// Fills `out`, a memory view of bytes, from `offset` on. Returns how many bytes; fewer at the
    /// end of the file only.
    fn pread_into(&self, offset: u64, out: &Bound<'_, PyAny>) -> PyResult<usize> {
        let (py, length) = (out.py(), out.len()?);
        let parts = self.with(py, |file| file.read_bytes_at(offset, length))?;
        let mut filled: usize = 0;
        for part in &parts {
            // No longer than the buffer, which is no longer than memory.
            let place =
                PySlice::new(py, filled.cast_signed(), (filled + part.len()).cast_signed(), 1);
            PyBuffer::<u8>::get(&out.get_item(place)?)?.copy_from_slice(py, part)?;
            filled += part.len();
        }
        Ok(filled)
    }

    /// Writes all of `data` at `offset`. Returns how many bytes that is.
    fn pwrite(&self, py: Python<'_>, offset: u64, data: PyBuffer<u8>) -> PyResult<usize> {
        let data = copy_of(py, &data)?;
        let length = data.len();
        self.with(py, |file| file.write_at(offset, data))?;
        Ok(length)
    }

    /// Writes all of `data` at the end of the file. Returns the new end.
    fn append(&self, py: Python<'_>, data: PyBuffer<u8>) -> PyResult<u64> {
        let data = copy_of(py, &data)?;
        self.with(py, |file| file.append(data))
    }

    /// Bytes in the file.
    fn size(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |file| Ok(file.metadata()?.size))
    }

    fn truncate(&self, py: Python<'_>, size: u64) -> PyResult<()> {
        self.with(py, |file| file.set_len(size))
    }

    /// Makes all that was written durable.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, blocking::File::sync)
    }
}
