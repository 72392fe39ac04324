//! A small world for the tests of this layer: one thread, virtual time, disks that can lose power.

pub(crate) mod disk;
pub(crate) mod machine;
pub(crate) mod volume;

pub(crate) use disk::{Kind, MemoryDisk};
pub(crate) use machine::World;
pub(crate) use volume::{Volume, sync, sync_all};
