//! Words about files that all layers above share: names, attributes, credentials.

pub use blockio::RedundancyClass;
use bytes::Bytes;
pub use runtime::identity::{Credentials, GROUPS_MAX};
use runtime::seed::Rng;
use runtime::wire::{Decoder, Encoder, Malformed, Wire};

/// Bytes in one name, at most.
pub const NAME_MAX: usize = 255;

/// One name in a directory: 1 to [`NAME_MAX`] bytes, without `/` and NUL, not `.` or `..`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Bytes);

/// Why bytes are not a [`Name`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// No bytes at all.
    #[error("a name cannot be empty")]
    Empty,
    /// More than [`NAME_MAX`] bytes.
    #[error("a name has at most 255 bytes")]
    TooLong,
    /// Contains `/` or NUL.
    #[error("a name cannot contain '/' or a zero byte")]
    Forbidden,
    /// `.` or `..`.
    #[error("'.' and '..' are not names of entries")]
    Dots,
}

impl Name {
    /// Checks and takes `bytes`.
    pub fn new(bytes: impl Into<Bytes>) -> Result<Self, NameError> {
        let bytes = bytes.into();
        match &bytes[..] {
            [] => Err(NameError::Empty),
            b"." | b".." => Err(NameError::Dots),
            name if name.len() > NAME_MAX => Err(NameError::TooLong),
            name if name.iter().any(|byte| matches!(byte, 0 | b'/')) => Err(NameError::Forbidden),
            _ => Ok(Self(bytes)),
        }
    }

    /// The bytes; not always UTF-8.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        String::from_utf8_lossy(&self.0).fmt(f)
    }
}

/// Length (u8), then the bytes.
impl Wire for Name {
    fn put(&self, out: &mut Encoder) {
        put_short(&self.0, out);
    }
    fn take(input: &mut Decoder) -> Result<Self, Malformed> {
        Self::new(take_short(input)?).map_err(|_| Malformed("not a name"))
    }
    fn sample(rng: &mut Rng) -> Self {
        Self(sample_short(NAME_MAX, rng))
    }
}

fn put_short(bytes: &[u8], out: &mut Encoder) {
    out.bytes(&[bytes.len() as u8]);
    out.bytes(bytes);
}

fn take_short(input: &mut Decoder) -> Result<Bytes, Malformed> {
    let length = u8::take(input)?;
    Ok(Bytes::copy_from_slice(input.bytes(usize::from(length))?))
}

fn sample_short(length_max: usize, rng: &mut Rng) -> Bytes {
    let length = 1 + rng.index(length_max);
    (0..length).map(|_| b'a' + rng.below(26) as u8).collect::<Vec<_>>().into()
}

/// Bytes in the name of an extended attribute, at most.
pub const XATTR_NAME_MAX: usize = 255;

/// Bytes in the value of an extended attribute, at most. It must fit one record: on volumes with
/// stripes below 64 KiB less is possible.
pub const XATTR_VALUE_MAX: usize = 32 << 10;

/// Bytes in the names and values of all extended attributes of one inode, at most.
pub const XATTRS_BYTES_MAX: usize = 64 << 10;

/// The name of an extended attribute, with its namespace as in `user.comment`: 1 to
/// [`XATTR_NAME_MAX`] bytes without NUL.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct XattrName(Bytes);

impl XattrName {
    /// Checks and takes `bytes`.
    pub fn new(bytes: impl Into<Bytes>) -> Result<Self, NameError> {
        let bytes = bytes.into();
        match &bytes[..] {
            [] => Err(NameError::Empty),
            name if name.len() > XATTR_NAME_MAX => Err(NameError::TooLong),
            name if name.contains(&0) => Err(NameError::Forbidden),
            _ => Ok(Self(bytes)),
        }
    }

    /// The bytes; not always UTF-8.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Length (u8), then the bytes.
impl Wire for XattrName {
    fn put(&self, out: &mut Encoder) {
        put_short(&self.0, out);
    }
    fn take(input: &mut Decoder) -> Result<Self, Malformed> {
        let bytes = take_short(input)?;
        Self::new(bytes).map_err(|_| Malformed("not the name of an extended attribute"))
    }
    fn sample(rng: &mut Rng) -> Self {
        Self(sample_short(XATTR_NAME_MAX, rng))
    }
}

runtime::choice! {
    /// What setting an extended attribute does if there is one of this name, or none.
    #[derive(Copy)]
    pub enum XattrMode {
        /// Set it in any case.
        1 Either {},
        /// Only if there is none, else it exists.
        2 CreateNew {},
        /// Only if there is one, else there is no such attribute.
        3 Replace {},
    }
}

runtime::record! {
    /// A point in time.
    #[derive(Copy, Default, PartialOrd, Ord, Hash)]
    pub struct Time {
        /// Seconds since 1970.
        seconds: i64,
        /// Nanoseconds, below one billion.
        nanos: u32,
    }
}

impl Time {
    /// The time that is `since` after 1970.
    pub fn from_unix(since: std::time::Duration) -> Self {
        let seconds = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
        Self { seconds, nanos: since.subsec_nanos() }
    }

    /// This time, or if it is that of the change `before`, the next one. It may be earlier, if the
    /// clock was set back: the next after a time that a crash takes back would come twice.
    #[must_use]
    pub fn other_than(self, before: Self) -> Self {
        match self.nanos + 1 {
            _ if self != before => self,
            1_000_000_000 => Self { seconds: self.seconds.saturating_add(1), nanos: 0 },
            nanos => Self { nanos, ..self },
        }
    }

    /// The first later time that clients with a resolution of microseconds distinguish from it.
    #[must_use]
    pub fn next(self) -> Self {
        match self.nanos.checked_add(1000).filter(|&nanos| nanos < 1_000_000_000) {
            Some(nanos) => Self { nanos, ..self },
            None => Self { seconds: self.seconds.saturating_add(1), nanos: 0 },
        }
    }
}

runtime::choice! {
    /// What an inode is.
    #[derive(Copy, PartialOrd, Ord, Hash)]
    pub enum Kind {
        /// A regular file.
        1 File {},
        /// A directory.
        2 Directory {},
        /// A symbolic link.
        3 Symlink {},
        /// A block device.
        4 BlockDevice {},
        /// A character device.
        5 CharDevice {},
        /// A named pipe.
        6 Fifo {},
        /// A socket.
        7 Socket {},
    }
}

runtime::record! {
    /// What is known of a file besides its content and its names.
    #[derive(Copy)]
    handle pub struct Attributes {
        /// The inode number.
        ino: u64,
        /// Which file of that number.
        generation: u64,
        /// What it is.
        kind: Kind,
        /// Permission bits, `0o7777`.
        mode: u32,
        /// Names (for a directory: 2 and one for each directory in it).
        links: u32,
        /// The owner.
        uid: u32,
        /// The group.
        gid: u32,
        /// Device number, for devices.
        major: u32,
        /// Device number, for devices.
        minor: u32,
        /// Bytes of the content.
        size: u64,
        /// Bytes of disk space in use by it.
        used_bytes: u64,
        /// Last read (kept as `relatime` does).
        atime: Time,
        /// Last change of the content.
        mtime: Time,
        /// Last change of content or attributes.
        ctime: Time,
        /// Creation.
        birth: Time,
        /// How its content survives the loss of disks; of a directory, that of what is made in it.
        /// `None` for the class of the volume.
        redundancy: Option<RedundancyClass>,
    }
}

impl Attributes {
    /// A file of which nothing else is known: all times are `time`, and the rest is zero.
    pub fn blank(ino: u64, generation: u64, kind: Kind, time: Time) -> Self {
        Self {
            ino,
            generation,
            kind,
            mode: 0,
            links: 0,
            uid: 0,
            gid: 0,
            major: 0,
            minor: 0,
            size: 0,
            used_bytes: 0,
            atime: time,
            mtime: time,
            ctime: time,
            birth: time,
            redundancy: None,
        }
    }
}

runtime::choice! {
    /// A new time stamp.
    #[derive(Copy)]
    pub enum SetTime {
        /// The server's time.
        1 Now {},
        /// A given time.
        2 To {
            /// It.
            time: Time,
        },
    }
}

runtime::record! {
    /// By what a client tells whether a file is still as it knows it (RFC 1813 section 2.6,
    /// `wcc_attr`).
    #[derive(Copy)]
    pub struct WccAttr {
        /// Bytes of the file.
        size: u64,
        /// Last change of the content.
        mtime: Time,
        /// Last change of anything.
        ctime: Time,
    }
}

impl WccAttr {
    /// That of a file with these attributes.
    pub fn of(&Attributes { size, mtime, ctime, .. }: &Attributes) -> Self {
        Self { size, mtime, ctime }
    }
}

runtime::record! {
    /// A file after a write or a commit.
    #[derive(Copy)]
    pub struct WriteResult {
        /// What is known of it.
        attributes: Attributes,
        /// Changes whenever something that was written to the file and not committed is lost. What
        /// was answered with another one must be written again.
        write_verifier: u64,
        /// The file just before, if nothing but this has changed it up to `attributes`.
        before: Option<WccAttr>,
        /// The number of the change: of two changes of one byte the later one has the higher
        /// number. 0 if nothing was changed.
        sequence: u64,
        /// Changes with numbers up to this one, answered with the same verifier, are durable; 0 if
        /// that is not known.
        committed: u64,
    }
}

runtime::record! {
    /// New values for some attributes.
    #[derive(Default)]
    pub struct Change {
        /// Permission bits.
        mode: Option<u32>,
        /// Owner.
        uid: Option<u32>,
        /// Group.
        gid: Option<u32>,
        /// Size: cuts the content, or lengthens it by a hole.
        size: Option<u64>,
        /// Last read.
        atime: Option<SetTime>,
        /// Last change of the content.
        mtime: Option<SetTime>,
        /// Redundancy, of files and directories: one of the volume's, or of those that its operator
        /// has allowed. What a file has is changed in the background.
        redundancy: Option<RedundancyClass>,
    }
}

/// Wanted access, as bits of the mode's lowest triple.
pub mod access {
    /// Read.
    pub const READ: u32 = 4;
    /// Write.
    pub const WRITE: u32 = 2;
    /// Execute, or search a directory.
    pub const EXECUTE: u32 = 1;
}

impl Attributes {
    /// May `who` do all of `wanted` (bits of [`access`])? As POSIX has it: the first matching class
    /// of owner, group and others decides; root may do anything but execute a file without any
    /// execute bit.
    pub fn permits(&self, who: &Credentials, wanted: u32) -> bool {
        if who.uid == 0 {
            let runs = self.kind == (Kind::Directory {}) || self.mode & 0o111 != 0;
            return wanted & access::EXECUTE == 0 || runs;
        }
        let granted = if who.uid == self.uid {
            self.mode >> 6
        } else if who.in_group(self.gid) {
            self.mode >> 3
        } else {
            self.mode
        };
        granted & wanted == wanted
    }
}
