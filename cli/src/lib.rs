//! The `mdfs` program: one file per command in `commands/`, and what they share.
//!
//! # Files
//!
//! | file | holds |
//! | --- | --- |
//! | `commands/` | one command each: its arguments, its help, what it does |
//! | `volume_path.rs` | `VOL:/path` |
//! | `connection.rs` | how the servers of a volume are reached |
//! | `disk_report.rs` | what there is to say of the disks of a volume |
//! | `size.rs` | sizes on the command line and in the output |
//! | `copy/` | copies of files and trees between this computer and volumes |
//! | `tree/` | one interface to the files of both |
//! | `local.rs` | single files of this computer |
//! | `output.rs` | what is printed, as text or as JSON; `time.rs` dates and the clock |
//! | `progress.rs` | progress bars for long work |
//! | `session.rs` | the open volumes and the output of one run; `signals.rs` termination signals |
//! | `waiting.rs` | what a command waits for |
//! | `completion.rs` | completion scripts and manual pages |
//! | `watch/` | the status page and metrics over HTTP |
//! | `rpcbind.rs` | registration of the NFS port with rpcbind |
//! | `exit.rs` | failures and their exit codes |
//!
//! The program `mdfs-lab` uses the public modules.

mod commands;
pub mod completion;
pub mod connection;
mod copy;
mod disk_report;
pub mod exit;
mod host_users;
pub mod local;
pub mod output;
pub mod progress;
mod rpcbind;
pub mod session;
pub mod signals;
pub mod size;
#[cfg(test)]
mod tests;
pub mod time;
mod tree;
mod volume_path;
mod waiting;
mod watch;

use std::ffi::OsString;
use std::io::{self, IsTerminal as _};
use std::process::ExitCode;

use tracing_subscriber::EnvFilter;

use commands::mount::helper;

/// The command line of a program.
pub trait Commands: clap::Parser {
    /// The name of the program.
    const NAME: &'static str;

    /// Runs the command.
    fn run(self, session: &mut session::CommandSession) -> Result<(), exit::CommandFailure>;

    /// The log filter if `MDFS_LOG` is not set.
    fn log_level(&self) -> &'static str;
}

/// Runs `mdfs` with `arguments` (the program's name first) and returns its exit code.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let mut arguments = arguments.into_iter().peekable();
    if arguments.peek().is_some_and(|name| helper::is_helper(name)) {
        return helper::main(arguments.skip(1).collect());
    }
    run_program::<commands::MdfsProgram>(arguments)
}

/// Runs the program `P` with `arguments` (the program's name first) and returns its exit code.
pub fn run_program<P: Commands>(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let program = match P::try_parse_from(arguments) {
        Ok(program) => program,
        Err(error) => {
            // There is no other place to report it.
            let _ = error.print();
            return exit::of_usage(&error);
        }
    };
    let log = EnvFilter::try_from_env("MDFS_LOG");
    let log = log.unwrap_or_else(|_| EnvFilter::new(program.log_level()));
    let lines = tracing_subscriber::fmt().with_env_filter(log).with_writer(io::stderr);
    // A closed standard error is no reason to panic.
    let lines = lines.log_internal_errors(false);
    // A second call in one process changes nothing.
    let _ = lines.with_ansi(io::stderr().is_terminal()).try_init();
    if let Err(error) = runtime::embedded::raise_open_files() {
        tracing::warn!(%error, "the limit of open files stays, and with it that of connections");
    }
    let mut session = session::CommandSession::of_this_process();
    let done = program.run(&mut session);
    // What was done before a failure is kept.
    let finished = session.finish();
    // A failure is not to be printed behind what was waited for.
    drop(session);
    match done.and(finished) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => exit::report(P::NAME, &failure),
    }
}
