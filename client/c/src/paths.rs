//! Operations on names: the same functions as POSIX has, with the volume in front.

use std::ffi::{c_char, c_int};

use client::blocking::Volume;
use client::{Error, XattrMode};

use crate::failure::{CApiFailure, answer};
use crate::mount::MountedVolume;
use crate::{arguments, attributes};

/// Does `work` on one path.
unsafe fn on_path(
    mount: *mut MountedVolume,
    path: *const c_char,
    work: impl FnOnce(&Volume, &[u8]) -> Result<(), Error>,
) -> c_int {
    answer(-1, || {
        // SAFETY: see `arguments`.
        let path = unsafe { arguments::path(path) }?;
        work(&MountedVolume::at(mount)?.volume, path)?;
        Ok(0)
    })
}

/// Does `work` on two paths.
unsafe fn on_paths(
    mount: *mut MountedVolume,
    (first, second): (*const c_char, *const c_char),
    work: impl FnOnce(&Volume, &[u8], &[u8]) -> Result<(), Error>,
) -> c_int {
    answer(-1, || {
        // SAFETY: see `arguments`.
        let (first, second) = unsafe { (arguments::path(first)?, arguments::path(second)?) };
        work(&MountedVolume::at(mount)?.volume, first, second)?;
        Ok(0)
    })
}

/// Makes a directory with the permission bits `mode`, less those of the `umask`. Returns 0, or -1
/// on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_mkdir(
    mount: *mut MountedVolume,
    path: *const c_char,
    mode: libc::mode_t,
) -> c_int {
    let mode = attributes::new_file_mode(mode);
    // SAFETY: the same promises.
    unsafe { on_path(mount, path, |volume, path| volume.mkdir_with_mode(path, mode).map(drop)) }
}

/// Removes an empty directory. Returns 0, or -1 on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_rmdir(mount: *mut MountedVolume, path: *const c_char) -> c_int {
    // SAFETY: the same promises.
    unsafe { on_path(mount, path, |volume, path| volume.remove_dir(path)) }
}

/// Removes a name of a file, or a symbolic link. A file without names lives on while it is open.
/// Returns 0, or -1 on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_unlink(mount: *mut MountedVolume, path: *const c_char) -> c_int {
    // SAFETY: the same promises.
    unsafe { on_path(mount, path, |volume, path| volume.remove_file(path)) }
}

/// As mdfs_unlink, or mdfs_rmdir if `path` is a directory. Returns 0, or -1 on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_remove(mount: *mut MountedVolume, path: *const c_char) -> c_int {
    let remove = |volume: &Volume, path: &[u8]| match volume.remove_file(path) {
        Err(error) if error.cause.is_directory() => volume.remove_dir(path),
        removed => removed,
    };
    // SAFETY: the same promises.
    unsafe { on_path(mount, path, remove) }
}

/// Gives a file or a directory another name, replacing what has it. Returns 0, or -1 on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_rename(
    mount: *mut MountedVolume,
    from: *const c_char,
    to: *const c_char,
) -> c_int {
    // SAFETY: the same promises.
    unsafe { on_paths(mount, (from, to), |volume, from, to| volume.rename(from, to)) }
}

/// Gives the file `original` the further name `path`. Returns 0, or -1 on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_link(
    mount: *mut MountedVolume,
    original: *const c_char,
    path: *const c_char,
) -> c_int {
    let link =
        |volume: &Volume, original: &[u8], path: &[u8]| volume.hard_link(original, path).map(drop);
    // SAFETY: the same promises.
    unsafe { on_paths(mount, (original, path), link) }
}

/// Makes a symbolic link `path` that points to `target`. Returns 0, or -1 on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_symlink(
    mount: *mut MountedVolume,
    target: *const c_char,
    path: *const c_char,
) -> c_int {
    let symlink =
        |volume: &Volume, target: &[u8], path: &[u8]| volume.symlink(target, path).map(drop);
    // SAFETY: the same promises.
    unsafe { on_paths(mount, (target, path), symlink) }
}

/// Puts where the symbolic link `path` points into `buffer`, cut at `size` bytes and without a zero
/// byte, as `readlink` does. Returns the bytes put there, or -1 on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_readlink(
    mount: *mut MountedVolume,
    path: *const c_char,
    buffer: *mut c_char,
    size: usize,
) -> isize {
    answer(-1, || {
        // SAFETY: see `arguments`.
        let (path, out) = unsafe { (arguments::path(path)?, arguments::bytes_mut(buffer, size)?) };
        if out.is_empty() {
            let text = "a link needs a buffer of at least one byte";
            return Err(CApiFailure::new(libc::EINVAL, text));
        }
        let target = MountedVolume::at(mount)?.volume.read_link(path)?;
        let count = target.len().min(out.len());
        out[..count].copy_from_slice(&target[..count]);
        Ok(count.cast_signed())
    })
}

/// May the user of this process do all of `wanted` (R_OK, W_OK, X_OK; F_OK asks only whether the
/// file is there) with the file `path`? Returns 0 if so, else -1, with `errno` EACCES if not.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_access(
    mount: *mut MountedVolume,
    path: *const c_char,
    wanted: c_int,
) -> c_int {
    answer(-1, || {
        // SAFETY: see `arguments`.
        let path = unsafe { arguments::path(path) }?;
        // POSIX' three bits have the places of those in a mode.
        let bits = u32::try_from(wanted).ok().filter(|bits| *bits <= 0o7).ok_or_else(|| {
            CApiFailure::new(libc::EINVAL, "what is wanted is not made of R_OK, W_OK and X_OK")
        })?;
        let mount = MountedVolume::at(mount)?;
        if !mount.volume.metadata(path)?.permits(&mount.who, bits) {
            let path = String::from_utf8_lossy(path);
            let text = format!("{path} may not be used so; ask its owner to change the mode");
            return Err(CApiFailure::new(libc::EACCES, text));
        }
        Ok(0)
    })
}

/// Puts the value of the extended attribute `name` of `path` into `value`. Returns its size, also
/// if `size` is 0, or -1 on failure: ERANGE if it does not fit, ENODATA if there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_getxattr(
    mount: *mut MountedVolume,
    path: *const c_char,
    name: *const c_char,
    value: *mut std::ffi::c_void,
    size: usize,
) -> isize {
    answer(-1, || {
        // SAFETY: see `arguments`.
        let (path, name) = unsafe { (arguments::path(path)?, arguments::path(name)?) };
        let found = MountedVolume::at(mount)?.volume.xattrs(path).get(name)?;
        // SAFETY: see `arguments`.
        fit(&found, unsafe { arguments::bytes_mut(value, size) }?)
    })
}

/// Puts the names of the extended attributes of `path` into `names`, each ended by a zero byte.
/// Returns their size, also if `size` is 0, or -1 on failure: ERANGE if they do not fit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_listxattr(
    mount: *mut MountedVolume,
    path: *const c_char,
    names: *mut c_char,
    size: usize,
) -> isize {
    answer(-1, || {
        // SAFETY: see `arguments`.
        let path = unsafe { arguments::path(path) }?;
        let mut found = Vec::new();
        for name in MountedVolume::at(mount)?.volume.xattrs(path).list()? {
            found.extend_from_slice(name.as_bytes());
            found.push(0);
        }
        // SAFETY: see `arguments`.
        fit(&found, unsafe { arguments::bytes_mut(names, size) }?)
    })
}

/// Copies `found` to `out`, unless that has no bytes: then only the size is asked for.
fn fit(found: &[u8], out: &mut [u8]) -> Result<isize, CApiFailure> {
    if !out.is_empty() {
        let room = out.get_mut(..found.len()).ok_or_else(|| {
            let text = format!("the result has {} bytes; pass a larger buffer", found.len());
            CApiFailure::new(libc::ERANGE, text)
        })?;
        room.copy_from_slice(found);
    }
    Ok(found.len().cast_signed())
}

/// Sets the extended attribute `name` of `path`; `flags` may be XATTR_CREATE or XATTR_REPLACE.
/// Returns 0, or -1 on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_setxattr(
    mount: *mut MountedVolume,
    path: *const c_char,
    name: *const c_char,
    value: *const std::ffi::c_void,
    size: usize,
    flags: c_int,
) -> c_int {
    answer(-1, || {
        let mode = match flags {
            0 => XattrMode::Either {},
            libc::XATTR_CREATE => XattrMode::CreateNew {},
            libc::XATTR_REPLACE => XattrMode::Replace {},
            _ => return Err(CApiFailure::new(libc::EINVAL, "the flags exclude each other")),
        };
        // SAFETY: see `arguments`.
        let (path, name, value) = unsafe {
            (arguments::path(path)?, arguments::path(name)?, arguments::bytes(value, size)?)
        };
        MountedVolume::at(mount)?.volume.xattrs(path).set(name, value, mode)?;
        Ok(0)
    })
}

/// Removes the extended attribute `name` of `path`. Returns 0, or -1 on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_removexattr(
    mount: *mut MountedVolume,
    path: *const c_char,
    name: *const c_char,
) -> c_int {
    let remove =
        |volume: &Volume, path: &[u8], name: &[u8]| volume.xattrs(path).remove(name).map(drop);
    // SAFETY: the same promises.
    unsafe { on_paths(mount, (path, name), remove) }
}
