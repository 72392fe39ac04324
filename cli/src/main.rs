//! The `mdfs` program.

use std::process::ExitCode;

/// Frees large buffers without giving their pages back at once, as the allocator of glibc does (ADR
/// 44).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    mdfs_cli::main(std::env::args_os())
}
