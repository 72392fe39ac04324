//! Block I/O: striped disks (thesis section 2.3).

pub mod geometry;
pub mod protocol;
pub mod stripes;

pub use geometry::{BLOCK_SIZE, Geometry};
pub use stripes::{Answer, Stripes};
