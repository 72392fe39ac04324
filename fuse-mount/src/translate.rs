//! Attributes, times and errors of the kernel.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use client::protocol::{Attributes, Error, Kind, NameError, SetTime, Time};
use client::{Cause, LockKind};
use fuser::{Errno, FileAttr, FileType, INodeNo, TimeOrNow};

/// The preferred transfer size (`st_blksize`), in bytes.
const TRANSFER_BYTES: u32 = 64 << 10;
/// The unit of `st_blocks`, in bytes.
const SECTOR_BYTES: u64 = 512;
const NANOS: u32 = 1_000_000_000;

/// The error number of a failed operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KernelError(pub(crate) i32);

/// What an operation returns.
pub(crate) type KernelResult<T> = Result<T, KernelError>;

impl From<Cause> for KernelError {
    /// The table of numbers is that of all clients. Requests have been retried before, and programs
    /// do not expect `EAGAIN` here: so "busy" becomes `EIO`.
    fn from(cause: Cause) -> Self {
        match cause.errno() {
            libc::EAGAIN => Self(libc::EIO),
            number => Self(number),
        }
    }
}

impl From<Error> for KernelError {
    fn from(error: Error) -> Self {
        Cause::from(error).into()
    }
}

impl From<NameError> for KernelError {
    fn from(error: NameError) -> Self {
        Cause::from(error).into()
    }
}

impl From<KernelError> for Errno {
    fn from(failure: KernelError) -> Self {
        Self::from_i32(failure.0)
    }
}

/// Attributes for the kernel.
pub(crate) fn attributes(file: &Attributes) -> FileAttr {
    FileAttr {
        ino: INodeNo(file.ino),
        size: file.size,
        blocks: file.used_bytes.div_ceil(SECTOR_BYTES),
        atime: system_time(file.atime),
        mtime: system_time(file.mtime),
        ctime: system_time(file.ctime),
        crtime: system_time(file.birth),
        kind: file_type(file.kind),
        perm: (file.mode & 0o7777) as u16,
        nlink: file.links,
        uid: file.uid,
        gid: file.gid,
        rdev: device(file.major, file.minor),
        blksize: TRANSFER_BYTES,
        flags: 0,
    }
}

/// What kind of thing it is.
pub(crate) fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::File {} => FileType::RegularFile,
        Kind::Directory {} => FileType::Directory,
        Kind::Symlink {} => FileType::Symlink,
        Kind::BlockDevice {} => FileType::BlockDevice,
        Kind::CharDevice {} => FileType::CharDevice,
        Kind::Fifo {} => FileType::NamedPipe,
        Kind::Socket {} => FileType::Socket,
    }
}

/// How something is locked.
pub(crate) fn lock_kind(kind: LockKind) -> i32 {
    match kind {
        LockKind::Shared {} => libc::F_RDLCK,
        LockKind::Exclusive {} => libc::F_WRLCK,
    }
}

/// Device numbers as Linux puts them into one word: the minor's low byte, 12 bits of the major, the
/// rest of the minor.
fn device(major: u32, minor: u32) -> u32 {
    (minor & 0xff) | (major & 0xfff) << 8 | (minor & !0xff) << 12
}

/// Device numbers (major, minor) out of one word.
pub(crate) fn device_numbers(device: u32) -> (u32, u32) {
    ((device >> 8) & 0xfff, (device & 0xff) | (device >> 12 & !0xff))
}

fn system_time(time: Time) -> SystemTime {
    let whole = Duration::from_secs(time.seconds.unsigned_abs());
    let seconds = if time.seconds < 0 {
        UNIX_EPOCH.checked_sub(whole)
    } else {
        UNIX_EPOCH.checked_add(whole)
    };
    let nanos = Duration::from_nanos(time.nanos.into());
    seconds.and_then(|seconds| seconds.checked_add(nanos)).unwrap_or(UNIX_EPOCH)
}

fn time(system_time: SystemTime) -> Time {
    let seconds = |since: Duration| i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
    match system_time.duration_since(UNIX_EPOCH) {
        Ok(since) => Time::from_unix(since),
        Err(before) => {
            let before = before.duration();
            match before.subsec_nanos() {
                0 => Time { seconds: -seconds(before), nanos: 0 },
                nanos => Time { seconds: -seconds(before) - 1, nanos: NANOS - nanos },
            }
        }
    }
}

/// A new time stamp.
pub(crate) fn set_time(given: TimeOrNow) -> SetTime {
    match given {
        TimeOrNow::Now => SetTime::Now {},
        TimeOrNow::SpecificTime(given) => SetTime::To { time: time(given) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_and_after_1970_come_back_as_they_were() {
        for (seconds, nanos) in [(0, 0), (1, 5), (-1, 0), (-1, 999_999_999), (-5, 1), (1 << 33, 7)]
        {
            let given = Time { seconds, nanos };
            assert_eq!(time(system_time(given)), given);
        }
        assert!(system_time(Time { seconds: -1, nanos: 1 }) < UNIX_EPOCH);
    }

    #[test]
    fn device_numbers_come_back_as_they_were() {
        for numbers in [(0, 0), (1, 3), (8, 255), (8, 256), (4095, 1_048_575)] {
            assert_eq!(device_numbers(device(numbers.0, numbers.1)), numbers);
        }
        assert_eq!(device(8, 1), 0x801, "as stat tells it of /dev/sda1");
    }

    #[test]
    fn errors_have_the_numbers_of_posix() {
        let number = |error: Error| KernelError::from(error).0;
        assert_eq!(number(Error::NotFound {}), libc::ENOENT);
        assert_eq!(number(Error::NotEmpty {}), libc::ENOTEMPTY);
        assert_eq!(number(Error::NotPermitted {}), libc::EPERM);
        assert_eq!(number(Error::Stale {}), libc::ESTALE);
        assert_eq!(number(runtime::Undelivered::Busy.into()), libc::EIO);
        assert_eq!(KernelError::from(NameError::TooLong).0, libc::ENAMETOOLONG);
    }
}
