//! Opening a volume by its directory.

use std::io;
use std::path::{Path, PathBuf};

use volume::{RunOptions, Running, VolumeError};

use crate::Credentials;
use crate::blocking::Volume;

/// The socket at which a server answers, in the volume's directory.
pub const SOCKET_NAME: &str = "mdfs.sock";

/// A volume could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot open volume {}: {cause}", directory.display())]
pub struct OpenError {
    /// The volume's directory.
    pub directory: PathBuf,
    /// Why.
    pub cause: OpenCause,
}

/// Why a volume could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenCause {
    /// There is no such directory.
    #[error("no such directory; make a volume with `mdfs format`")]
    NoDirectory,
    /// The server's answer makes no sense, or the socket may not be used.
    #[error("its server cannot be asked: {0}; check that it is yours and of the same version")]
    Unusable(#[source] io::Error),
    /// Nobody serves it, and this process cannot open it either.
    #[error(transparent)]
    Stack(#[from] VolumeError),
    /// This process does not know who it is.
    #[error("who asks is not known: {0}")]
    NoCredentials(#[source] io::Error),
}

impl OpenCause {
    /// The POSIX number of the error.
    pub fn errno(&self) -> i32 {
        match self {
            Self::NoDirectory => libc::ENOENT,
            Self::Stack(_) => libc::EIO,
            Self::Unusable(cause) | Self::NoCredentials(cause) => {
                cause.raw_os_error().unwrap_or(libc::EIO)
            }
        }
    }
}

/// Opens the volume in `directory` as the user of this process: through the server that serves it,
/// else in this process, which then has it alone. [`Volume::finish`] it.
pub fn open(directory: &Path) -> Result<Volume, OpenError> {
    let failed = |cause| OpenError { directory: directory.to_owned(), cause };
    let who =
        crate::process::credentials().map_err(|error| failed(OpenCause::NoCredentials(error)))?;
    open_as(directory, who).map_err(failed)
}

fn open_as(directory: &Path, who: Credentials) -> Result<Volume, OpenCause> {
    if !directory.is_dir() {
        return Err(OpenCause::NoDirectory);
    }
    match transport::connect(&directory.join(SOCKET_NAME)) {
        Ok(client_handle) => Ok(Volume::new(client_handle, who)),
        // Never served, or left behind by a server that crashed.
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
            ) =>
        {
            let running = volume::open(directory, &RunOptions::default())?;
            Ok(Volume::holding(running.client_handle(), who, Own(running)))
        }
        Err(error) => Err(OpenCause::Unusable(error)),
    }
}

/// The machine of a volume that this process has opened itself.
#[derive(Debug)]
struct Own(Running);

impl Drop for Own {
    fn drop(&mut self) {
        if let Err(error) = self.0.flush() {
            tracing::error!(%error, "a volume was dropped, not finished, and its last data are lost");
        }
    }
}
