//! `mdfs._mdfs`: what the Python package needs of the client, without Python's manners.
//!
//! Every call lets other Python threads run while it waits. Errors are `OSError` with the number
//! that the C library would give, so that Python makes `FileNotFoundError` and the like of them.
//!
//! | file | holds |
//! | --- | --- |
//! | `volume.rs` | volumes and operations on paths |
//! | `file.rs` | open files |
//! | `regions.rs` | lists of regions |
//! | `failure.rs`, `checked.rs` | errors; what a forked child must not touch |

#![allow(clippy::needless_pass_by_value, reason = "Python hands over values")]

mod checked;
mod failure;
mod file;
mod regions;
mod volume;

/// The native part of the package `mdfs`.
#[pyo3::pymodule]
mod _mdfs {
    #[pymodule_export]
    use crate::file::PyFile;
    #[pymodule_export]
    use crate::regions::PyRegions;
    #[pymodule_export]
    use crate::volume::PyVolume;
}
