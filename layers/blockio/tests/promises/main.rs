//! The promises of block I/O, each with its tests, in one program so that it links once.

mod boot_ids;
mod durability;
mod failure;
mod golden;
mod identity;
mod limits;
mod probe;
mod records;
mod scheduling;
mod striping;
mod support;
