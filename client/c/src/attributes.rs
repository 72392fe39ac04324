//! `struct stat` and its kin.

use std::ffi::{c_char, c_int};
use std::mem;

use client::blocking::Volume;
use client::kind::kind_bits;
use client::{Attributes, Change, Error, SetTime, Time};

use crate::arguments;
use crate::failure::{CApiFailure, answer};
use crate::mount::MountedVolume;

/// Bytes that a transfer should be a multiple of: one stripe.
const BLOCK_SIZE: i64 = 64 << 10;
/// Bytes of the unit of `st_blocks`, as POSIX has it.
const STAT_UNIT: u64 = 512;

/// The permission bits of a new file that would have `wanted`: without those of the `umask`.
pub(crate) fn new_file_mode(wanted: u32) -> u32 {
    wanted & 0o7777 & !client::process::umask()
}

/// As `stat` tells it.
pub(crate) fn fill(out: &mut libc::stat, of: &Attributes) -> Result<(), CApiFailure> {
    // SAFETY: a struct of numbers, for which zero is a value.
    let mut stat: libc::stat = unsafe { mem::zeroed() };
    stat.st_ino = of.ino;
    stat.st_mode = kind_bits(of.kind) | of.mode;
    stat.st_nlink = of.links.into();
    stat.st_uid = of.uid;
    stat.st_gid = of.gid;
    stat.st_rdev = libc::makedev(of.major, of.minor);
    stat.st_size = arguments::signed(of.size)?;
    stat.st_blksize = BLOCK_SIZE;
    stat.st_blocks = arguments::signed(of.used_bytes.div_ceil(STAT_UNIT))?;
    (stat.st_atime, stat.st_atime_nsec) = (of.atime.seconds, of.atime.nanos.into());
    (stat.st_mtime, stat.st_mtime_nsec) = (of.mtime.seconds, of.mtime.nanos.into());
    (stat.st_ctime, stat.st_ctime_nsec) = (of.ctime.seconds, of.ctime.nanos.into());
    *out = stat;
    Ok(())
}

/// Puts what `lookup` finds of `path` into `out`.
unsafe fn stat(
    mount: *mut MountedVolume,
    path: *const c_char,
    out: *mut libc::stat,
    lookup: impl FnOnce(&Volume, &[u8]) -> Result<Attributes, Error>,
) -> c_int {
    answer(-1, || {
        // SAFETY: see `arguments`.
        let (path, out) = unsafe { (arguments::path(path)?, arguments::place(out, "the result")?) };
        fill(out, &lookup(&MountedVolume::at(mount)?.volume, path)?)?;
        Ok(0)
    })
}

/// What is known of the file `path`; of a symbolic link's target. Returns 0, or -1 on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_stat(
    mount: *mut MountedVolume,
    path: *const c_char,
    out: *mut libc::stat,
) -> c_int {
    // SAFETY: the same promises.
    unsafe { stat(mount, path, out, |volume, path| volume.metadata(path)) }
}

/// As mdfs_stat, but of a symbolic link itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_lstat(
    mount: *mut MountedVolume,
    path: *const c_char,
    out: *mut libc::stat,
) -> c_int {
    // SAFETY: the same promises.
    unsafe { stat(mount, path, out, |volume, path| volume.symlink_metadata(path)) }
}

/// How much room the volume has. Returns 0, or -1 on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_statvfs(mount: *mut MountedVolume, out: *mut libc::statvfs) -> c_int {
    answer(-1, || {
        // SAFETY: see `arguments`.
        let out = unsafe { arguments::place(out, "the result") }?;
        let space = MountedVolume::at(mount)?.volume.space()?;
        // SAFETY: a struct of numbers, for which zero is a value.
        let mut stat: libc::statvfs = unsafe { mem::zeroed() };
        let unit = BLOCK_SIZE.unsigned_abs();
        (stat.f_bsize, stat.f_frsize) = (unit, unit);
        stat.f_blocks = space.total_bytes / unit;
        (stat.f_bfree, stat.f_bavail) = (space.free_bytes / unit, space.available_bytes / unit);
        // Inodes are made as long as there is room.
        stat.f_ffree = space.free_bytes / unit;
        stat.f_favail = stat.f_ffree;
        stat.f_files = space.inodes + stat.f_ffree;
        stat.f_namemax = 255;
        *out = stat;
        Ok(0)
    })
}

/// Changes attributes of the file `path`.
unsafe fn change(
    mount: *mut MountedVolume,
    path: *const c_char,
    change: impl FnOnce() -> Result<Change, CApiFailure>,
) -> c_int {
    answer(-1, || {
        // SAFETY: see `arguments`.
        let path = unsafe { arguments::path(path) }?;
        MountedVolume::at(mount)?.volume.set_attributes(path, change()?)?;
        Ok(0)
    })
}

/// Sets the permission bits of the file `path`. Returns 0, or -1 on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_chmod(
    mount: *mut MountedVolume,
    path: *const c_char,
    mode: libc::mode_t,
) -> c_int {
    // SAFETY: the same promises.
    unsafe { change(mount, path, || Ok(mode_change(mode))) }
}

/// The change of permission bits that `chmod` means.
pub(crate) fn mode_change(mode: libc::mode_t) -> Change {
    Change { mode: Some(mode & 0o7777), ..Change::default() }
}

/// Sets owner and group of the file `path`; (uid_t)-1 and (gid_t)-1 leave them. Returns 0, or -1 on
/// failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_chown(
    mount: *mut MountedVolume,
    path: *const c_char,
    owner: libc::uid_t,
    group: libc::gid_t,
) -> c_int {
    let given = |number: u32| (number != u32::MAX).then_some(number);
    let owners = Change { uid: given(owner), gid: given(group), ..Change::default() };
    // SAFETY: the same promises.
    unsafe { change(mount, path, || Ok(owners)) }
}

/// Cuts the file `path`, or lengthens it by a hole. Returns 0, or -1 on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_truncate(
    mount: *mut MountedVolume,
    path: *const c_char,
    size: libc::off_t,
) -> c_int {
    let cut = || Ok(Change { size: Some(arguments::offset(size)?), ..Change::default() });
    // SAFETY: the same promises.
    unsafe { change(mount, path, cut) }
}

/// Sets the times of the last read and of the last change of the file `path`, as `utimensat` does:
/// nanoseconds UTIME_NOW and UTIME_OMIT mean what they mean there, and a `times` of NULL means now,
/// twice. Returns 0, or -1 on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdfs_utimens(
    mount: *mut MountedVolume,
    path: *const c_char,
    times: *const libc::timespec,
) -> c_int {
    // SAFETY: the same promises, and C vouches for two times.
    unsafe { change(mount, path, || times_of(times)) }
}

/// The change of times that two of `timespec` mean.
unsafe fn times_of(times: *const libc::timespec) -> Result<Change, CApiFailure> {
    if times.is_null() {
        let now = Some(SetTime::Now {});
        return Ok(Change { atime: now, mtime: now, ..Change::default() });
    }
    // SAFETY: C vouches for two of them.
    let (atime, mtime) = unsafe { (time_of(*times)?, time_of(*times.add(1))?) };
    Ok(Change { atime, mtime, ..Change::default() })
}

fn time_of(time: libc::timespec) -> Result<Option<SetTime>, CApiFailure> {
    match time.tv_nsec {
        libc::UTIME_OMIT => Ok(None),
        libc::UTIME_NOW => Ok(Some(SetTime::Now {})),
        nanos @ 0..1_000_000_000 => {
            let time = Time { seconds: time.tv_sec, nanos: nanos.cast_unsigned() as u32 };
            Ok(Some(SetTime::To { time }))
        }
        _ => Err(CApiFailure::new(libc::EINVAL, "a time has more than a second of nanoseconds")),
    }
}
