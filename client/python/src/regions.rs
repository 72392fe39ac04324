//! Lists of regions, as they are described.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Regions of a file as a description: a part of an array is one shape, whatever its number of
/// rows. Their bytes, one region after the other, are the list's packed bytes.
#[pyclass(name = "Regions", frozen, module = "mdfs")]
#[derive(Debug)]
pub(crate) struct PyRegions(pub(crate) client::Regions);

fn made(list: Result<client::Regions, client::RegionsError>) -> PyResult<PyRegions> {
    list.map(PyRegions).map_err(|error| PyValueError::new_err(error.to_string()))
}

#[pymethods]
impl PyRegions {
    /// Ranges of (offset, length), in this order.
    #[new]
    fn new(ranges: Vec<[u64; 2]>) -> PyResult<Self> {
        made(client::Regions::indexed(ranges.into_iter().map(|[offset, length]| (offset, length))))
    }

    /// A vector: `count` blocks of `block` bytes, the first at `offset`, each `stride` bytes after
    /// the one before.
    #[staticmethod]
    fn strided(offset: u64, block: u64, count: u64, stride: u64) -> PyResult<Self> {
        made(client::Regions::strided(offset, block, count, stride))
    }

    /// A part of an array of `shape` elements of `itemsize` bytes that begins at byte `offset` and
    /// lies in the order of C: `part` elements in each dimension, from `first` on.
    #[staticmethod]
    fn subarray(
        offset: u64,
        itemsize: u64,
        shape: Vec<u64>,
        part: Vec<u64>,
        first: Vec<u64>,
    ) -> PyResult<Self> {
        made(client::Regions::subarray(offset, itemsize, &shape, &part, &first))
    }

    /// The regions of all `lists`, one list after the other.
    #[staticmethod]
    fn join(lists: Vec<PyRef<'_, Self>>) -> PyResult<Self> {
        made(client::Regions::join(lists.iter().map(|list| list.0.clone())))
    }

    /// Packed bytes.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.0.bytes()
    }

    /// How many regions there are.
    fn __len__(&self) -> usize {
        usize::try_from(self.0.count()).unwrap_or(usize::MAX)
    }

    fn __repr__(&self) -> String {
        format!("<mdfs.Regions: {} regions, {} bytes>", self.0.count(), self.0.bytes())
    }
}
