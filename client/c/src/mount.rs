//! Volumes: what stands for a mount table here.

use std::ffi::{OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;

use client::Credentials;
use client::blocking::Volume;

use crate::failure::{CApiFailure, answer};
use crate::tables::{ExitStage, OpenObject};
use crate::{arguments, fork, tables};

/// A mounted volume. Files of it are named by paths from its root.
#[derive(Debug)]
pub struct MountedVolume {
    pub(crate) volume: Volume,
    /// The user of this process.
    pub(crate) who: Credentials,
    /// Of the process that mounted it.
    pub(crate) generation: u64,
}

impl MountedVolume {
    /// The mount at this address.
    pub(crate) fn at(pointer: *const Self) -> Result<Arc<Self>, CApiFailure> {
        let mount = tables::get(pointer).ok_or_else(|| {
            CApiFailure::new(libc::EBADF, "this is no mounted volume; mount it with mdfs_mount")
        })?;
        fork::check(mount.generation)?;
        Ok(mount)
    }
}

impl OpenObject for MountedVolume {
    fn generation(&self) -> u64 {
        self.generation
    }

    fn at_exit(&self, stage: ExitStage) {
        if stage == ExitStage::FinishVolumes
            && let Err(error) = self.volume.finish()
        {
            eprintln!("libmdfs: the last data of a volume are lost: {error}");
        }
    }
}

/// The version of the library, as "0.1.0". Valid for ever.
#[unsafe(no_mangle)]
pub extern "C" fn mdfs_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// Mounts the volume `volume`, a directory of this computer or mdfs://HOST[:PORT]/VOLUME, as the
/// user of this process, through the servers that serve it (mdfs serve). A library built with the
/// feature "embedded" opens a directory that is not served in this process, which then has the
/// volume alone. Returns NULL on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_mount(volume: *const c_char) -> *mut MountedVolume {
    answer(std::ptr::null_mut(), || {
        // SAFETY: see `arguments`.
        let address = OsStr::from_bytes(unsafe { arguments::path(volume) }?);
        fork::watch();
        let volume = client::volume::open_address(address)
            .map_err(|error| CApiFailure::new(error.cause.errno(), error.to_string()))?;
        let who = client::process::credentials().map_err(|error| {
            CApiFailure::new(libc::EIO, format!("who asks is not known: {error}"))
        })?;
        Ok(tables::add(MountedVolume { volume, who, generation: fork::generation() }))
    })
}

/// Ends the use of a volume. If this process has opened it itself, all data are made durable first;
/// a server does that in its own time, or at mdfs_sync. Fails with EBUSY, and changes nothing,
/// while files or directories of it are open; after any other failure the volume is unmounted all
/// the same. Returns 0, or -1 on failure.
#[unsafe(no_mangle)]
pub extern "C" fn mdfs_unmount(mount: *mut MountedVolume) -> c_int {
    answer(-1, || {
        let mount = MountedVolume::at(mount)?;
        if !tables::remove_unused(&mount) {
            return Err(CApiFailure::new(
                libc::EBUSY,
                "cannot unmount the volume: files or directories on it are open; close them first",
            ));
        }
        mount.volume.finish()?;
        Ok(0)
    })
}

/// Makes everything durable that was done in the volume, by whomever. Returns 0, or -1 on failure.
#[unsafe(no_mangle)]
pub extern "C" fn mdfs_sync(mount: *mut MountedVolume) -> c_int {
    answer(-1, || {
        MountedVolume::at(mount)?.volume.sync()?;
        Ok(0)
    })
}
