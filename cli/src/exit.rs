//! What can fail, and with which exit code.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use client::VolumeAddress;
use client::volume::OpenError;
use transport::tls::KeyFolderError;
use volume::VolumeError;

/// An operation failed.
const FAILED: u8 = 1;
/// The command line makes no sense.
const USAGE: u8 = 2;
/// The volume cannot be opened.
const VOLUME: u8 = 3;

/// A check has found flaws.
const FLAWED: u8 = 4;

/// Ended by a signal, as shells have it for SIGINT.
pub const STOPPED: u8 = 130;

/// The exit codes, for the help.
pub const EXIT_CODES: &str = "Exit codes:
  0  everything was done
  1  an operation failed; what and why is on standard error
  2  the command line makes no sense
  3  the volume cannot be opened: not there, not a volume, or in use
  4  a check has found flaws
130  stopped by a signal: a copy says how to go on, changes of disks go on by themselves";

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the text of each variant says what its fields are")]
pub enum CommandFailure {
    /// The volume cannot be opened.
    #[error(transparent)]
    Volume(#[from] OpenError),
    /// The volume cannot be made.
    #[error("cannot make volume {}: {error}", volume.display())]
    Format { volume: PathBuf, error: VolumeError },
    /// The volume is open but cannot be served, or was not stopped cleanly.
    #[error("cannot {operation} volume {}: {error}", volume.display())]
    Serve { operation: &'static str, volume: PathBuf, error: ServeError },
    /// The volume is open but cannot be mounted, or was not unmounted cleanly.
    #[error("cannot {operation} volume {volume} at {}: {error}", point.display())]
    Mount {
        operation: &'static str,
        volume: VolumeAddress,
        point: PathBuf,
        error: Box<MountFailure>,
    },
    /// Something in the volume.
    #[error("cannot {operation} {volume}:{path}: {cause}; {advice}")]
    Inside {
        operation: &'static str,
        volume: String,
        path: String,
        cause: client::Cause,
        advice: &'static str,
    },
    /// Something on this computer.
    #[error("cannot {operation} {thing}: {error}")]
    Local { operation: &'static str, thing: String, error: io::Error },
    /// The arguments do not fit together.
    #[error("{0}")]
    Usage(String),
    /// An operation that the program refuses, in a volume or on this computer.
    #[error("cannot {operation} {thing}: {why}")]
    Refused { operation: &'static str, thing: String, why: &'static str },
    /// Stopped by a signal.
    #[error("stopped; what is copied has its name, and {again} goes on from there")]
    Stopped { again: &'static str },
    /// An error with a text of its own.
    #[error("{0}")]
    Wrong(String),
    /// A check has found flaws and reported each.
    #[error("volume {}: {count} flaws, nothing was changed; see the advice for each above", volume.display())]
    Flawed { volume: PathBuf, count: u64 },
    /// A check of a volume in use has found flaws and reported each.
    #[error("volume {volume}: {count} flaws; see the advice for each above")]
    FlawedInUse { volume: VolumeAddress, count: u64 },
    /// A process in the background failed, and has reported why.
    #[error("the process in the background has failed")]
    Reported { code: Option<u8> },
    /// Some of many operations failed; each was reported.
    #[error("{failed} of {total} were not done; see the messages above")]
    Some { failed: usize, total: usize },
}

/// Why a volume cannot be served or stopped.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the text of each variant says what its fields are")]
pub enum ServeError {
    #[error(transparent)]
    Stack(#[from] VolumeError),
    #[error("{0}; choose another address")]
    Gateway(#[from] nfs_gateway::Error),
    #[error("the gateway's node has ended: {0}")]
    Node(#[from] runtime::Undelivered),
    #[error("signals cannot be received: {0}")]
    Signals(#[from] io::Error),
    #[error("the system gives no random bytes: {0}; try again")]
    Secret(io::Error),
    #[error("{address}: {error}; choose another address for --metrics")]
    Watch { address: runtime::net::Address, error: io::Error },
    #[error(transparent)]
    Rpcbind(#[from] crate::rpcbind::Error),
}

/// Why a volume cannot be mounted or unmounted.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the text of each variant says what its fields are")]
pub enum MountFailure {
    #[error(transparent)]
    Mount(#[from] fuse_mount::MountError),
    #[error(transparent)]
    Stack(#[from] VolumeError),
    #[error("the mount point would hide the volume's own files; choose another one")]
    HidesVolume,
    #[error("the system refuses: {0}; look at its limits of threads and files")]
    System(#[from] io::Error),
}

impl From<KeyFolderError> for CommandFailure {
    fn from(error: KeyFolderError) -> Self {
        Self::Wrong(error.to_string())
    }
}

impl CommandFailure {
    /// An operation in the volume `volume` failed.
    pub fn inside(volume: &VolumeAddress, error: client::Error) -> Self {
        let client::Error { operation, path, cause } = error;
        let volume = volume.to_string();
        let path = format!("/{}", path.trim_start_matches('/'));
        Self::Inside { operation, volume, path, cause, advice: cause.advice() }
    }

    /// The same with a better next step, if the path names a directory.
    #[must_use]
    pub fn for_directory(mut self, better: &'static str) -> Self {
        if let Self::Inside { cause, advice, .. } = &mut self
            && cause.is_directory()
        {
            *advice = better;
        }
        self
    }

    /// An operation on the file `path` of this computer failed.
    pub fn local(operation: &'static str, path: &Path, error: io::Error) -> Self {
        Self::Local { operation, thing: path.display().to_string(), error }
    }

    /// Writes were lost before they were durable, because a server has restarted.
    pub(crate) fn is_lost_write(&self) -> bool {
        matches!(
            self,
            Self::Inside {
                cause: client::Cause::FileIo(client::protocol::Error::LostWrites {}),
                ..
            }
        )
    }

    fn code(&self) -> u8 {
        match self {
            Self::Volume(_) | Self::Format { .. } => VOLUME,
            Self::Usage(_) => USAGE,
            Self::Stopped { .. } => STOPPED,
            Self::Flawed { .. } | Self::FlawedInUse { .. } => FLAWED,
            Self::Reported { code } => code.unwrap_or(FAILED),
            Self::Serve { .. }
            | Self::Mount { .. }
            | Self::Inside { .. }
            | Self::Local { .. }
            | Self::Refused { .. }
            | Self::Wrong(_)
            | Self::Some { .. } => FAILED,
        }
    }
}

/// Prints a failure of `program` and returns its exit code.
pub fn report(program: &str, failure: &CommandFailure) -> ExitCode {
    if !matches!(failure, CommandFailure::Reported { .. }) {
        say(format_args!("{program}: {failure}"));
    }
    ExitCode::from(failure.code())
}

/// Prints a line on standard error, if it is open: the exit code does not depend on a reader.
pub fn say(line: std::fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// The exit code of what the argument parser has printed: help is a success.
pub fn of_usage(error: &clap::Error) -> ExitCode {
    if error.use_stderr() { ExitCode::from(USAGE) } else { ExitCode::SUCCESS }
}
