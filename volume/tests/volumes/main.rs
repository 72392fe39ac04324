//! Whole volumes in one process: made, filled, damaged, grown, opened again.
//!
//! In one program, so that the slow tests run beside each other.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod classes;
mod copies;
mod damaged;
mod data_files;
mod disk_files;
mod disks;
mod fill;
mod full_of_names;
mod one_process;
mod parity;
mod partitions;
mod running;
mod scrubs;
mod unfinished;
