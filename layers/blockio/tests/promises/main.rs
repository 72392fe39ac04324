//! The promises of block I/O, each with its tests, in one program so that it links once.

mod durability;
mod failure;
mod golden;
mod identity;
mod limits;
mod lives;
mod scheduling;
mod striping;
mod support;
