//! Volumes: what stands for a mount table here.

use std::ffi::{OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use client::Credentials;
use client::blocking::Volume;

use crate::failure::{Failure, answer};
use crate::{arguments, fork, tables};

/// A mounted volume. Files of it are named by paths from its root.
#[derive(Debug)]
pub struct Mount {
    pub(crate) volume: Volume,
    /// The user of this process.
    pub(crate) who: Credentials,
    /// Of the process that mounted it.
    pub(crate) generation: u64,
}

/// The version of the library, as "0.1.0". Valid for ever.
#[unsafe(no_mangle)]
pub extern "C" fn mdfs_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// Mounts the volume in the directory `volume` of this computer, as the user of this process:
/// through the server that serves it (mdfs serve), else in this process, which then has it alone.
/// Returns NULL on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_mount(volume: *const c_char) -> *mut Mount {
    answer(std::ptr::null_mut(), || {
        // SAFETY: see `arguments`.
        let directory = Path::new(OsStr::from_bytes(unsafe { arguments::path(volume) }?));
        fork::watch();
        let volume = client::volume::open(directory)
            .map_err(|error| Failure::new(error.cause.errno(), error.to_string()))?;
        let who = client::process::credentials()
            .map_err(|error| Failure::new(libc::EIO, format!("who asks is not known: {error}")))?;
        Ok(tables::add_mount(Mount { volume, who, generation: fork::generation() }))
    })
}

/// Ends the use of a volume. If this process has opened it itself, all data are made durable first;
/// a server does that in its own time, or at mdfs_sync. Fails with EBUSY, and changes nothing, while
/// files or directories of it are open; after any other failure the volume is unmounted all the
/// same. Returns 0, or -1 on failure.
#[unsafe(no_mangle)]
pub extern "C" fn mdfs_unmount(mount: *mut Mount) -> c_int {
    answer(-1, || {
        tables::remove_mount(mount)?.volume.finish()?;
        Ok(0)
    })
}

/// Makes everything durable that was done in the volume, by whomever. Returns 0, or -1 on failure.
#[unsafe(no_mangle)]
pub extern "C" fn mdfs_sync(mount: *mut Mount) -> c_int {
    answer(-1, || {
        tables::mount(mount)?.volume.sync()?;
        Ok(0)
    })
}
