//! The promise of the metadata store.

#![allow(clippy::unwrap_used, reason = "the helpers of a test may panic as the test may")]

mod bench;
mod cases;
mod copies;
mod disk;
mod draining;
mod durability;
mod machine;
mod pairs;
