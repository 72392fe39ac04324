//! The `mdfs` program: one file per command in `commands/`, and what they share.
//!
//! # Rooms
//!
//! | file | holds |
//! | --- | --- |
//! | `commands/` | one command each: its arguments, its help, what it does |
//! | `volume_path.rs` | `VOL:/path` |
//! | `size.rs`, `span.rs` | sizes and lengths of time as people write and read them |
//! | `copy/` | files and trees between this computer and volumes |
//! | `tree/` | the files of both, for what works on both |
//! | `local.rs` | single files of this computer |
//! | `output.rs` | what is printed, as text or as JSON; `time.rs` dates, the clock |
//! | `progress.rs` | bars for long work |
//! | `session.rs` | the open volumes and the output of one run; `signals.rs` waiting for its end |
//! | `watch/` | the volume for those who watch it, over HTTP |
//! | `rpcbind.rs` | telling rpcbind of this computer where NFS answers |
//! | `exit.rs` | what can fail, and with which exit code |

mod commands;
mod copy;
mod exit;
mod local;
mod output;
mod progress;
mod rpcbind;
mod session;
mod signals;
mod size;
mod span;
#[cfg(test)]
mod tests;
mod time;
mod tree;
mod volume_path;
mod watch;

use std::ffi::OsString;
use std::io::{self, IsTerminal as _};
use std::process::ExitCode;

use clap::Parser as _;
use tracing_subscriber::EnvFilter;

/// Does what the arguments (the program's name first) say, and tells how it went.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let program = match commands::Program::try_parse_from(arguments) {
        Ok(program) => program,
        Err(error) => {
            // If even this cannot be printed there is nobody to tell.
            let _ = error.print();
            return exit::of_usage(&error);
        }
    };
    let log = EnvFilter::try_from_env("MDFS_LOG");
    let log = log.unwrap_or_else(|_| EnvFilter::new(program.log_level()));
    let lines = tracing_subscriber::fmt().with_env_filter(log).with_writer(io::stderr);
    // Set already if this is called twice, which changes nothing.
    let _ = lines.with_ansi(io::stderr().is_terminal()).try_init();
    let mut session = session::Session::of_this_process();
    let done = program.run(&mut session);
    // What was done before a failure is kept, too.
    let finished = session.finish();
    match done.and(finished) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => exit::tell(&failure),
    }
}
