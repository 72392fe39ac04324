//! File I/O: files, directories and the applications interface (thesis section 2.5).

pub mod client;
pub mod hash;
pub mod model;
pub mod protocol;
