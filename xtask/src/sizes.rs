//! The sizes of what users install.

use std::fs;

use crate::steps::{ProgramCall, StepFailed, Steps};

const PROGRAM: &str = "cargo build --release --locked --package mdfs";
/// Apart, so that the library has no more features of its dependencies than it needs.
const LIBRARY: &str = "cargo build --release --locked --package mdfs-c";

/// Files of a release build and their size in bytes, at most. A commit that raises one says why.
const SIZES_MAX: [(&str, u64); 2] =
    [("target/release/mdfs", 23_450_000), ("target/release/libmdfs.so", 8_000_000)];

/// Builds in release and checks the sizes.
pub(crate) fn steps(steps: &mut Steps) -> Result<(), StepFailed> {
    steps.step("size of the program", PROGRAM, || check(PROGRAM, SIZES_MAX[0]))?;
    steps.step("size of the library", LIBRARY, || check(LIBRARY, SIZES_MAX[1]))
}

fn check(build: &str, limit: (&str, u64)) -> u8 {
    let code = ProgramCall::new(build).run();
    if code != 0 { code } else { u8::from(!is_small(limit)) }
}

fn is_small((path, bytes_max): (&str, u64)) -> bool {
    let bytes = fs::metadata(path).map_or(u64::MAX, |metadata| metadata.len());
    println!("{path}: {bytes} bytes, at most {bytes_max}");
    bytes <= bytes_max
}
