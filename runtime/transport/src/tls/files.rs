//! Files with secrets: readable by their owner only, and replaced as a whole.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// For its owner only.
const FILE_MODE: u32 = 0o600;
const FOLDER_MODE: u32 = 0o700;
/// What more than the owner may do with a file.
const OTHERS: u32 = 0o077;

/// A file with a secret cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The host failed.
    #[error("cannot {what} {}: {error}", path.display())]
    Host {
        /// What was tried.
        what: &'static str,
        /// With which file.
        path: PathBuf,
        /// How it failed.
        error: io::Error,
    },
    /// Others can read it.
    #[error(
        "{} can be read or changed by others (mode {mode:03o}); chmod 600 it, and make it anew if it \
         was seen",
        path.display()
    )]
    Exposed {
        /// Which.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
}

pub(super) fn host(what: &'static str, path: &Path) -> impl Fn(io::Error) -> FileError {
    let path = path.to_owned();
    move |error| FileError::Host { what, path: path.clone(), error }
}

/// Makes a folder for its owner only, unless it is there.
pub(super) fn make_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(path)
}

/// Reads a file that is readable by this user only.
pub fn read_secret(path: &Path) -> Result<String, FileError> {
    let failed = host("read", path);
    let mode = fs::metadata(path).map_err(&failed)?.permissions().mode() & 0o777;
    if mode & OTHERS != 0 {
        return Err(FileError::Exposed { path: path.to_owned(), mode });
    }
    fs::read_to_string(path).map_err(failed)
}

/// Replaces a file as a whole, durably, with one that is readable by this user only.
pub fn write_secret(path: &Path, text: &str) -> Result<(), FileError> {
    let failed = host("write", path);
    let new = path.with_extension("new");
    // One that is left over may be anybody's.
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let file = OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(&new);
    let mut file = file.map_err(&failed)?;
    file.write_all(text.as_bytes()).map_err(&failed)?;
    file.sync_all().map_err(&failed)?;
    fs::rename(&new, path).map_err(failed)
}
