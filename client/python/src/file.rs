//! Open files: bytes at offsets.

use std::sync::Arc;

use bytes::Bytes;
use client::{Error, OpenOptions, blocking};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PySlice};

use crate::checked::PerProcess;
use crate::failure::{failed, renamed_since_fork};
use crate::regions::PyRegions;
use crate::volume::VolumeHandle;

/// An open file. It is closed when the last reference goes.
#[pyclass(name = "File", frozen, module = "mdfs._mdfs")]
#[derive(Debug)]
pub(crate) struct PyFile {
    volume: Arc<VolumeHandle>,
    file: PerProcess<blocking::BlockingFile>,
    /// How a forked child opens it again.
    access: OpenOptions,
}

/// The bytes of `data`, which Python may change while the file system still has them: so they are
/// copied, once.
fn copy_of(py: Python<'_>, data: &PyBuffer<u8>) -> PyResult<Bytes> {
    Ok(data.to_vec(py)?.into())
}

fn length_of(parts: &[Bytes]) -> usize {
    parts.iter().map(Bytes::len).sum()
}

/// Copies `data` into `out`, a memory view of bytes, from `start` on. All of it fits.
fn fill(out: &Bound<'_, PyAny>, start: usize, data: &[u8]) -> PyResult<()> {
    // No longer than the buffer, which is no longer than memory.
    let end = (start + data.len()).cast_signed();
    let place = PySlice::new(out.py(), start.cast_signed(), end, 1);
    PyBuffer::<u8>::get(&out.get_item(place)?)?.copy_from_slice(out.py(), data)
}

fn length_in_memory(list: &client::Regions) -> PyResult<usize> {
    usize::try_from(list.bytes())
        .map_err(|_| PyValueError::new_err("the list is longer than memory"))
}

impl PyFile {
    pub(crate) fn new(
        volume: Arc<VolumeHandle>,
        file: blocking::BlockingFile,
        access: OpenOptions,
    ) -> Self {
        Self { volume, file: PerProcess::new(file), access }
    }

    /// The file, as this process has opened it.
    fn get(&self, py: Python<'_>) -> PyResult<Arc<blocking::BlockingFile>> {
        self.file.get(py, |py, of_parent| {
            let volume = self.volume.get(py)?;
            let opened = py.detach(|| volume.open(of_parent.path(), self.access));
            match opened {
                Ok(file) if file.handle() == of_parent.handle() => Ok(file),
                Err(error) if !error.cause.is_not_found() => Err(failed(error)),
                _ => Err(renamed_since_fork()),
            }
        })
    }

    /// Does `work` while other Python threads run.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&blocking::BlockingFile) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        let file = self.get(py)?;
        py.detach(|| work(&file)).map_err(failed)
    }
}

#[pymethods]
impl PyFile {
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
            fill(out, filled, part)?;
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

    /// The packed bytes of `regions`; fewer if the file ends before their end. What lies past its
    /// end before a byte that is in it is zeros.
    fn read_list<'py>(
        &self,
        py: Python<'py>,
        regions: PyRef<'_, PyRegions>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let list = &regions.0;
        let (file, length, mut count) = (self.get(py)?, length_in_memory(list)?, 0);
        let packed = PyBytes::new_with(py, length, |out| {
            count = py.detach(|| file.read_list(list, out)).map_err(failed)?;
            Ok(())
        })?;
        let is_whole = count == length;
        Ok(if is_whole { packed } else { PyBytes::new(py, &packed.as_bytes()[..count]) })
    }

    /// The same into `out`, a memory view of bytes that has at least as many. Returns how many were
    /// read.
    fn read_list_into(
        &self,
        regions: PyRef<'_, PyRegions>,
        out: &Bound<'_, PyAny>,
    ) -> PyResult<usize> {
        let (py, list, room) = (out.py(), &regions.0, out.len()?);
        let length = length_in_memory(list)?;
        if room < length {
            let text = format!("the buffer has {room} bytes, the list {length}");
            return Err(PyValueError::new_err(text));
        }
        // Python may use the buffer meanwhile: so it gets a copy.
        let mut packed = vec![0; length];
        let count = self.with(py, |file| file.read_list(list, &mut packed))?;
        fill(out, 0, &packed[..count])?;
        Ok(count)
    }

    /// Writes the packed bytes `data` to `regions`. Returns how many bytes that is.
    fn write_list(
        &self,
        py: Python<'_>,
        regions: PyRef<'_, PyRegions>,
        data: PyBuffer<u8>,
    ) -> PyResult<usize> {
        let (list, data) = (&regions.0, copy_of(py, &data)?);
        let length = data.len();
        if length as u64 != list.bytes() {
            let text = format!("there are {length} bytes for a list of {}", list.bytes());
            return Err(PyValueError::new_err(text));
        }
        self.with(py, |file| file.write_list(list, data))?;
        Ok(length)
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
        self.with(py, blocking::BlockingFile::sync)
    }
}
