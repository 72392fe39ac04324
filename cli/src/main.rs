//! The `mdfs` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    mdfs::main(std::env::args_os())
}
