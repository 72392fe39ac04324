//! Metadata: inodes, names, block maps, space, log (thesis sections 2.5.1 and 2.5.2).

pub mod attributes;
pub mod hash;
pub mod protocol;
pub mod store;
