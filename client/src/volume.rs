//! Opening a volume by its directory.

use std::io;
use std::path::{Path, PathBuf};

#[cfg(feature = "embedded")]
use volume::{RunOptions, RunningVolume, VolumeError};

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
    /// No server serves it, and this client has none built in (feature `embedded`).
    #[error("it is not served: {0}; start `mdfs serve`")]
    NotServed(#[source] io::Error),
    /// It is not served, and this process cannot open it either.
    #[cfg(feature = "embedded")]
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
            #[cfg(feature = "embedded")]
            Self::Stack(_) => libc::EIO,
            Self::Unusable(cause) | Self::NotServed(cause) | Self::NoCredentials(cause) => {
                cause.raw_os_error().unwrap_or(libc::EIO)
            }
        }
    }
}

/// Opens the volume in `directory` as the user of this process: through the server that serves it,
/// else, with the feature `embedded`, in this process, which then has it alone. [`Volume::finish`]
/// it.
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
            open_unserved(directory, who, error)
        }
        Err(error) => Err(OpenCause::Unusable(error)),
    }
}

#[cfg(not(feature = "embedded"))]
fn open_unserved(_: &Path, _: Credentials, error: io::Error) -> Result<Volume, OpenCause> {
    Err(OpenCause::NotServed(error))
}

#[cfg(feature = "embedded")]
fn open_unserved(directory: &Path, who: Credentials, _: io::Error) -> Result<Volume, OpenCause> {
    let running = volume::open(directory, &RunOptions::default())?;
    Ok(Volume::holding(running.client_handle(), who, EmbeddedVolume(running)))
}

/// The machine of a volume that this process has opened itself.
#[cfg(feature = "embedded")]
#[derive(Debug)]
struct EmbeddedVolume(RunningVolume);

#[cfg(feature = "embedded")]
impl Drop for EmbeddedVolume {
    fn drop(&mut self) {
        if let Err(error) = self.0.flush() {
            tracing::error!(%error, "a volume was dropped, not finished, and its last data are lost");
        }
    }
}
