//! What went wrong, for people and for programs.

use std::fmt;
use std::io;

use fileio::protocol::{
    DiskRefusal, Error as FileIoError, NameError, PartitionRefusal, WriteObstacle,
};
use runtime::Undelivered;

/// An operation that failed: what was asked, of what, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// What was to be done, as in "cannot ... it".
    pub operation: &'static str,
    /// Of what; bytes that are not UTF-8 are replaced.
    pub path: String,
    /// Why it was not.
    pub cause: Cause,
}

/// Why an operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    /// The file system says no.
    #[error(transparent)]
    FileIo(#[from] FileIoError),
    /// A part of the path cannot be a name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// No path at all.
    #[error("the path is empty")]
    EmptyPath,
    /// More than [`SYMLINKS_MAX`](crate::SYMLINKS_MAX) links on the way.
    #[error("too many symbolic links on the way")]
    SymlinkLoop,
    /// The root, `.` or `..` cannot be made, renamed or removed.
    #[error("the path ends in the root, '.' or '..', which cannot be made, renamed or removed")]
    NoLastName,
    /// A device, a pipe or a socket has no bytes here.
    #[error("not a regular file")]
    NotRegular,
    /// The way of opening makes no sense.
    #[error("the ways of opening exclude each other")]
    BadOptions,
    /// Not opened for reading.
    #[error("the file was not opened for reading")]
    NotReadable,
    /// Not opened for writing.
    #[error("the file was not opened for writing")]
    NotWritable,
    /// Before the start of the file, or past the largest offset.
    #[error("the new position is outside of any file")]
    BadPosition,
    /// No room for one more byte to be read again.
    #[error("too many bytes were pushed back")]
    UnreadFull,
}

impl Cause {
    /// What the caller can do about it.
    pub fn advice(&self) -> &'static str {
        use FileIoError as E;
        match self {
            Self::FileIo(error) => match error {
                E::Undelivered { why } => undelivered_advice(*why),
                E::NotFound {} => "check the spelling, or make it first",
                E::Exists {} => "choose another name, or remove it first",
                E::NotDirectory {} => "check each part of the path",
                E::IsDirectory {} => "name a file in it",
                E::NotEmpty {} => "remove what is in it first",
                E::AccessDenied {} => "ask the owner, or root, to change the mode",
                E::NotPermitted {} => "ask the owner, or root, to do it",
                E::Invalid {} => "check the arguments and the kind of the file",
                E::FileTooLarge {} => "spread the data over several files",
                E::Unwritable { why: WriteObstacle::Full {}, .. } => {
                    "make space there; the volume goes on by itself"
                }
                E::Unwritable { why: WriteObstacle::ReadOnly {}, .. } => {
                    "make it writable; the volume goes on by itself"
                }
                E::DisksUnchanged { why } => disks_advice(why),
                E::Partitions { why } => partitions_advice(*why),
                E::NoSpace {} => "remove what is no longer needed",
                E::TooManyLinks {} => "use a symbolic link, or copy the file",
                E::Stale {} => "open it again by its path",
                E::ReadOnly {} => {
                    "copy out what is needed; `mdfs check --files` names what cannot be read"
                }
                E::Damaged {} | E::Unreadable { .. } => {
                    "restore it from a copy, and look at the server's log"
                }
                E::Changed {} => "look at it again and decide anew",
                E::LostWrites {} => "write it again from the last sync on",
                E::NoXattr {} => "list those that there are",
                E::TooLarge {} => "make it smaller, or keep it in a file",
                E::Unsupported {} => "choose a name that begins with 'user.'",
                E::BadCookie {} => "list the directory again from its start",
            },
            Self::Name(_) | Self::EmptyPath => "correct the path",
            Self::SymlinkLoop => "look at the links on the way, one points back",
            Self::NoLastName => "name what is meant by its own name",
            Self::NotRegular => "only regular files are read and written here",
            Self::BadOptions => "open for reading, for writing or for appending",
            Self::NotReadable | Self::NotWritable => "open it with a mode that allows it",
            Self::BadPosition => "choose a position from 0 to 2^63 - 1",
            Self::UnreadFull => "read some of them first",
        }
    }

    /// The POSIX number of the error.
    pub fn errno(&self) -> i32 {
        use FileIoError as E;
        match self {
            Self::FileIo(error) => match error {
                E::Undelivered { why: Undelivered::Busy } | E::Changed {} => libc::EAGAIN,
                E::AccessDenied {} | E::Undelivered { why: Undelivered::Refused } => libc::EACCES,
                E::Undelivered { why: Undelivered::TimedOut } => libc::ETIMEDOUT,
                E::Undelivered { .. } | E::Damaged {} | E::Unreadable { .. } | E::LostWrites {} => {
                    libc::EIO
                }
                E::NotFound {} => libc::ENOENT,
                E::Exists {} => libc::EEXIST,
                E::NotDirectory {} => libc::ENOTDIR,
                E::IsDirectory {} => libc::EISDIR,
                E::NotEmpty {} => libc::ENOTEMPTY,
                E::NotPermitted {} => libc::EPERM,
                E::Invalid {} | E::BadCookie {} => libc::EINVAL,
                E::FileTooLarge {} => libc::EFBIG,
                E::NoSpace {} | E::Unwritable { why: WriteObstacle::Full {}, .. } => libc::ENOSPC,
                E::ReadOnly {} | E::Unwritable { why: WriteObstacle::ReadOnly {}, .. } => {
                    libc::EROFS
                }
                E::TooManyLinks {} => libc::EMLINK,
                E::Stale {} => libc::ESTALE,
                E::NoXattr {} => libc::ENODATA,
                E::TooLarge {} => libc::E2BIG,
                E::Unsupported {} => libc::EOPNOTSUPP,
                E::DisksUnchanged { .. } => libc::EBUSY,
                E::Partitions { why } => partitions_errno(*why),
            },
            Self::Name(NameError::TooLong) => libc::ENAMETOOLONG,
            Self::EmptyPath => libc::ENOENT,
            Self::SymlinkLoop => libc::ELOOP,
            Self::NoLastName => libc::EBUSY,
            Self::Name(_) | Self::NotRegular | Self::BadOptions | Self::BadPosition => libc::EINVAL,
            Self::NotReadable | Self::NotWritable => libc::EBADF,
            Self::UnreadFull => libc::ENOBUFS,
        }
    }

    /// Is it that nothing has this name?
    pub fn is_not_found(&self) -> bool {
        *self == Self::FileIo(FileIoError::NotFound {})
    }

    /// Is it that the path names a directory, and none is allowed?
    pub fn is_directory(&self) -> bool {
        *self == Self::FileIo(FileIoError::IsDirectory {})
    }

    /// Is it that what is meant does not exist any more?
    pub fn is_stale(&self) -> bool {
        *self == Self::FileIo(FileIoError::Stale {})
    }

    /// Is it that the name is taken?
    pub fn is_exists(&self) -> bool {
        *self == Self::FileIo(FileIoError::Exists {})
    }
}

fn disks_advice(why: &DiskRefusal) -> &'static str {
    use DiskRefusal as R;
    match why {
        R::NoSuchDisk {} | R::OtherNumber { .. } => "look at `mdfs disk list`",
        R::NotDraining {} => "`mdfs disk drain` moves what it holds to other disks",
        R::NotDrained { .. } => "wait; `mdfs disk list` shows how far it is",
        R::NoRoom { .. } => "add a disk first, or remove files",
        R::TooFewDisks { .. } => "add a disk first",
        R::TooFewDiskNodes { .. } => {
            "add disks at the disk node of the others, or choose K+M with a smaller K"
        }
        R::TooMany { .. } => "wait until one of them is retired",
        R::BadSize {} => "use disks of another size",
        R::TooManySets { .. } => {
            "copy its content to a new volume; there, disks of one size that are added with one \
             command are one set"
        }
        R::TooManyStates { .. } => "copy its content to a new volume",
        R::NotReady {} => "mend what the log says, and give the command again: it goes on",
        R::NoRecord {} => {
            "see to the coordination engine, for a volume of one process by a restart of its \
             server, and give the command again"
        }
        R::NoPace {} => "choose gentle, balanced or fast",
        R::NotFailed {} => "if it is broken, let its host stop serving it first",
        R::NoClass {} => "choose none, 2x, 3x, or K+M as in 4+1",
        R::FewerMetadataCopies { .. } => {
            "choose one for the loss of fewer disks, or copy the volume to one that was made for more"
        }
        R::Weaker {} => {
            "choose one for the loss of as many; a volume of its own can have less redundancy"
        }
        R::TooManyClasses { .. } => "choose one of those that `mdfs redundancy show` names",
        R::LongStripes { .. } => "choose K+M with a smaller K",
        R::OnlyCopy {} => "bring back the host or the disk that is away; its data is kept",
    }
}

fn partitions_advice(why: PartitionRefusal) -> &'static str {
    use PartitionRefusal as R;
    match why {
        R::Crossing {} => "`mdfs cp` copies it, `mv` through a mount too",
        R::IsRoot {} => "name something in it",
        R::IsGoing {} => "wait; `mdfs partition list` shows how far it is",
        R::NotFound {} => "look at `mdfs partition list`",
        R::Exists {} => "choose another name",
        R::BadBlock { .. } => "choose 4KiB, or a power of two of it up to the stripe",
        R::TooMany { .. } => "remove one first",
        R::NotEmpty {} => "remove what is in it first, or say --with-content",
        R::NotReady {} => "give the command again: it goes on",
    }
}

fn partitions_errno(why: PartitionRefusal) -> i32 {
    use PartitionRefusal as R;
    match why {
        R::Crossing {} => libc::EXDEV,
        R::IsRoot {} | R::IsGoing {} => libc::EBUSY,
        R::NotFound {} => libc::ENOENT,
        R::Exists {} => libc::EEXIST,
        R::BadBlock { .. } => libc::EINVAL,
        R::TooMany { .. } => libc::ENOSPC,
        R::NotEmpty {} => libc::ENOTEMPTY,
        R::NotReady {} => libc::EAGAIN,
    }
}

fn undelivered_advice(why: Undelivered) -> &'static str {
    match why {
        Undelivered::Busy => "if this lasts, lower the load",
        Undelivered::Unreachable => "check that the server of the volume runs",
        Undelivered::Lost | Undelivered::Gone => "look whether it was done before doing it again",
        Undelivered::ProtocolMismatch => "use the same version of mdfs on both sides",
        Undelivered::Fenced => "open the volume again",
        Undelivered::TimedOut => "check that the servers of the volume run, and can be reached",
        Undelivered::Refused => "ask for a token or a host certificate that allows it",
    }
}

impl Error {
    /// Puts operation and path around a cause.
    pub(crate) fn of<C: Into<Cause>>(
        operation: &'static str,
        path: &[u8],
    ) -> impl FnOnce(C) -> Self {
        move |cause| Self {
            operation,
            path: String::from_utf8_lossy(path).into_owned(),
            cause: cause.into(),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { operation, path, cause } = self;
        write!(f, "cannot {operation} {path}: {cause}; {}", cause.advice())
    }
}

impl std::error::Error for Error {}

/// Of the kind that the POSIX number has; the text stays.
impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = Self::from_raw_os_error(error.cause.errno()).kind();
        Self::new(kind, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_the_thing_the_cause_and_the_next_step() {
        let error = Error::of("read", b"/a/b")(FileIoError::NotFound {});
        let text =
            "cannot read /a/b: no such file or directory; check the spelling, or make it first";
        assert_eq!(error.to_string(), text);
        let io = io::Error::from(error);
        assert_eq!((io.kind(), io.to_string().as_str()), (io::ErrorKind::NotFound, text));
    }

    #[test]
    fn errors_turn_into_the_kind_of_their_number() {
        use io::ErrorKind as K;
        let kind = |cause: Cause| io::Error::from(Error::of("x", b"/")(cause)).kind();
        let of = |error: FileIoError| kind(error.into());
        assert_eq!(of(FileIoError::Exists {}), K::AlreadyExists);
        assert_eq!(of(FileIoError::NotEmpty {}), K::DirectoryNotEmpty);
        assert_eq!(of(FileIoError::IsDirectory {}), K::IsADirectory);
        assert_eq!(of(FileIoError::NotDirectory {}), K::NotADirectory);
        assert_eq!(of(FileIoError::AccessDenied {}), K::PermissionDenied);
        assert_eq!(of(FileIoError::NoSpace {}), K::StorageFull);
        assert_eq!(of(FileIoError::Undelivered { why: Undelivered::Busy }), K::WouldBlock);
        assert_eq!(kind(Cause::BadPosition), K::InvalidInput);
        assert_eq!(kind(NameError::TooLong.into()), K::InvalidFilename);
    }
}
