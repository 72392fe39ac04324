//! The `mdfs-lab` program.

use std::process::ExitCode;

/// The allocator of `mdfs`, so that both programs measure the same (ADR 44).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    mdfs_lab::main(std::env::args_os())
}
