//! Descriptors: files by number, as POSIX has them. The numbers are the library's own.

pub mod background;
pub mod list;
pub mod space;
pub mod transfer;

use std::ffi::{c_char, c_int};
use std::sync::Arc;

use client::OpenOptions;
use client::blocking::{BlockingFile, Volume};
use parking_lot::Mutex;

use crate::failure::{CApiFailure, answer};
use crate::mount::MountedVolume;
use crate::tables::{ExitStage, OpenObject};
use crate::{arguments, attributes, fork, tables};

/// An open file.
#[derive(Debug)]
pub struct Descriptor {
    mount: Arc<MountedVolume>,
    file: BlockingFile,
    /// Writes are allowed. The file itself may allow more: see `open`.
    writable: bool,
    /// Writes without an offset go to the end.
    appends: bool,
    /// Writes are durable when they are done.
    syncs: bool,
    /// Of the next transfer without an offset, in bytes. Held while such a transfer is under way.
    position: Mutex<u64>,
}

impl Descriptor {
    /// The descriptor with this number.
    pub(crate) fn at(number: c_int) -> Result<Arc<Self>, CApiFailure> {
        tables::descriptor(number)
    }

    /// The file, to change its content.
    fn to_write(&self) -> Result<&BlockingFile, CApiFailure> {
        if self.writable {
            return Ok(&self.file);
        }
        let text = "the descriptor was not opened for writing; open the file with O_RDWR";
        Err(CApiFailure::new(libc::EBADF, text))
    }
}

impl OpenObject for Descriptor {
    fn generation(&self) -> u64 {
        self.mount.generation
    }

    fn at_exit(&self, _: ExitStage) {}
}

/// Flags that change nothing here: what they ask for is so anyway, or cannot be.
const WITHOUT_EFFECT: c_int = libc::O_CLOEXEC
    | libc::O_NOCTTY
    | libc::O_LARGEFILE
    | libc::O_NONBLOCK
    | libc::O_NOATIME
    | libc::O_DIRECT;

/// What the flags of `open` mean.
fn options(flags: c_int) -> Result<OpenOptions, CApiFailure> {
    let has = |flag: c_int| flags & flag == flag;
    let known = libc::O_ACCMODE
        | libc::O_CREAT
        | libc::O_EXCL
        | libc::O_TRUNC
        | libc::O_APPEND
        | libc::O_SYNC
        | libc::O_DSYNC
        | WITHOUT_EFFECT;
    if flags & !known != 0 {
        let text = format!("the flags {:#o} of open are not supported", flags & !known);
        return Err(CApiFailure::new(libc::EINVAL, text));
    }
    let (read, write) = match flags & libc::O_ACCMODE {
        libc::O_RDONLY => (true, false),
        libc::O_WRONLY => (false, true),
        libc::O_RDWR => (true, true),
        _ => {
            return Err(CApiFailure::new(libc::EINVAL, "the access mode of open is none of three"));
        }
    };
    if !write && has(libc::O_TRUNC) {
        return Err(CApiFailure::new(
            libc::EINVAL,
            "O_TRUNC needs a file that is open for writing",
        ));
    }
    let new = has(libc::O_CREAT) && has(libc::O_EXCL);
    let options = OpenOptions::new().read(read).write(write).truncate(has(libc::O_TRUNC));
    Ok(options.create(has(libc::O_CREAT) && !new).create_new(new))
}

/// Opens `path`. POSIX lets a file be made that is then only read, even if its mode forbids that;
/// the client opens such a file for writing.
fn open(
    volume: &Volume,
    path: &[u8],
    flags: c_int,
    mode: u32,
) -> Result<BlockingFile, CApiFailure> {
    let options = options(flags)?.mode(mode);
    if flags & libc::O_ACCMODE != libc::O_RDONLY || flags & libc::O_CREAT == 0 {
        return Ok(volume.open(path, options)?);
    }
    let reading = OpenOptions::new().read(true);
    if flags & libc::O_EXCL == 0 {
        match volume.open(path, reading) {
            Err(error) if error.cause.is_not_found() => {}
            opened => return Ok(opened?),
        }
    }
    Ok(volume.open(path, options.write(true))?)
}

/// Opens a file, as `open` does: O_RDONLY, O_WRONLY or O_RDWR with any of O_CREAT, O_EXCL, O_TRUNC,
/// O_APPEND, O_SYNC and O_DSYNC. `mode` has the permission bits of a new file, less those of the
/// `umask`. Returns a number of at least 0, which is not one of the system's; -1 on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_open(
    mount: *mut MountedVolume,
    path: *const c_char,
    flags: c_int,
    mode: libc::mode_t,
) -> c_int {
    answer(-1, || {
        let mount = MountedVolume::at(mount)?;
        // SAFETY: see `arguments`.
        let path = unsafe { arguments::path(path) }?;
        let mode = if flags & libc::O_CREAT == 0 { 0 } else { attributes::new_file_mode(mode) };
        let file = open(&mount.volume, path, flags, mode)?;
        let descriptor = Descriptor {
            mount,
            file,
            writable: flags & libc::O_ACCMODE != libc::O_RDONLY,
            appends: flags & libc::O_APPEND != 0,
            // O_SYNC has the bit of O_DSYNC.
            syncs: flags & libc::O_DSYNC != 0,
            position: Mutex::new(0),
        };
        tables::add_descriptor(Arc::new(descriptor))
    })
}

/// The same open file under another number: they share the position. Returns it, or -1 on failure.
#[unsafe(no_mangle)]
pub extern "C" fn mdfs_dup(descriptor: c_int) -> c_int {
    answer(-1, || tables::add_descriptor(Descriptor::at(descriptor)?))
}

/// Closes a descriptor. What was written is durable only after mdfs_fdatasync. Returns 0, or -1 on
/// failure.
#[unsafe(no_mangle)]
pub extern "C" fn mdfs_close(descriptor: c_int) -> c_int {
    answer(-1, || {
        let descriptor = tables::remove_descriptor::<Descriptor>(descriptor)?;
        if let Err(failure) = fork::check(descriptor.mount.generation) {
            // It shares what only the parent may end.
            std::mem::forget(descriptor);
            return Err(failure);
        }
        Ok(0)
    })
}

/// As mdfs_stat, of an open file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_fstat(descriptor: c_int, out: *mut libc::stat) -> c_int {
    answer(-1, || {
        // SAFETY: see `arguments`.
        let out = unsafe { arguments::place(out, "the result") }?;
        attributes::fill(out, &Descriptor::at(descriptor)?.file.metadata()?)?;
        Ok(0)
    })
}

/// As mdfs_chmod, of an open file.
#[unsafe(no_mangle)]
pub extern "C" fn mdfs_fchmod(descriptor: c_int, mode: libc::mode_t) -> c_int {
    answer(-1, || {
        let file = &Descriptor::at(descriptor)?.file;
        file.set_attributes(attributes::mode_change(mode))?;
        Ok(0)
    })
}
