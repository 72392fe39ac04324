//! The `mdfs` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    mdfs_cli::main(std::env::args_os())
}
