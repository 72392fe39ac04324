//! The applications interface (thesis section 2.5.4): all that clients and gateways may ask.
//!
//! Every request stands alone: it names its objects in full and carries who asks. Those that are
//! not idempotent carry a call id too: with the same id they are done once, however often they
//! come, as long as the reply is kept ([`meta::REPLIES_MAX`], [`meta::REPLY_AGE_MAX`]).

use std::time::Duration;

use bytes::Bytes;
use runtime::protocol::Undelivered;

pub use meta::attributes::{
    Attributes, Change, Credentials, GROUPS_MAX, Kind, NAME_MAX, Name, NameError, SetTime, Time,
    WccAttr, WriteResult, XATTR_NAME_MAX, XATTR_VALUE_MAX, XATTRS_BYTES_MAX, XattrMode, XattrName,
    access,
};
pub use meta::protocol::CallId;

pub use crate::lock_types::{ByteRange, FileLock, LockKind, LockOwner, LockResult};
pub use crate::regions::Regions;

/// The root directory of every volume.
pub const ROOT: Handle = Handle { ino: 1, generation: 1 };

/// Bytes that one read or write may move, at most.
pub const TRANSFER_MAX: u32 = 4 << 20;

/// Directory entries in one reply, at most.
pub const ENTRIES_MAX: u32 = 4096;

/// Bytes of a symbolic link's target, at most.
pub const TARGET_MAX: usize = 4095;

/// Bytes in a file, at most.
pub const FILE_SIZE_MAX: u64 = i64::MAX as u64;

/// A lease ends this long after the client's last request at the node.
pub const LEASE: Duration = Duration::from_secs(30);

/// The interval of renewals: two in a row may be lost.
pub const RENEW_INTERVAL: Duration = Duration::from_secs(10);

/// Hard links of one file, at most.
pub const LINKS_MAX: u32 = 65_000;

runtime::record! {
    /// A file, for as long as it exists: the inode number and its incarnation.
    #[derive(Copy, PartialOrd, Ord, Hash)]
    pub struct Handle {
        /// The inode; `ino mod nodes` is its node.
        ino: u64,
        /// Which file of that number.
        generation: u64,
    }
}

runtime::choice! {
    /// What [`Create`] does if the name exists (RFC 1813 section 3.3.8).
    #[derive(Copy)]
    pub enum Existing {
        /// Use it, and apply the size of the change to it.
        1 Use {},
        /// Fail with [`Error::Exists`].
        2 Refuse {},
        /// Use it if it was created by this very verifier, else fail with [`Error::Exists`].
        3 UseIfSame {
            /// Chosen by the client; stored with the file.
            verifier: u64,
        },
    }
}

runtime::choice! {
    /// What [`MakeNode`] makes.
    pub enum NewNode {
        /// An empty directory.
        1 Directory {},
        /// A symbolic link.
        2 Symlink {
            /// Its target, at most [`TARGET_MAX`] bytes.
            target: Vec<u8>,
        },
        /// A block device.
        3 BlockDevice {
            /// Device numbers.
            major: u32,
            /// Device numbers.
            minor: u32,
        },
        /// A character device.
        4 CharDevice {
            /// Device numbers.
            major: u32,
            /// Device numbers.
            minor: u32,
        },
        /// A named pipe.
        5 Fifo {},
        /// A socket.
        6 Socket {},
    }
}

runtime::record! {
    /// One entry of a directory.
    pub struct DirectoryEntry {
        /// Where to go on after this entry. Stays valid while other entries come and go; above 2
        /// and below 2^63, so that gateways have the first two for `.` and `..`.
        cookie: u64,
        /// The name.
        name: Name,
        /// What it names.
        handle: Handle,
        /// What kind of thing that is.
        kind: Kind,
        /// Its attributes, if asked for (and if it still existed).
        attributes: Option<Box<Attributes>>,
    }
}

runtime::record! {
    /// A part of a directory.
    pub struct DirectoryPage {
        /// Entries in the order of their cookies.
        entries: Vec<DirectoryEntry>,
        /// Nothing follows.
        end: bool,
        /// The directory itself.
        directory: Attributes,
    }
}

runtime::record! {
    /// What was read.
    pub struct ReadData {
        /// The bytes, in pieces; fewer than asked for only at the end of the file.
        data: Vec<Bytes>,
        /// The last byte read is the last of the file.
        end: bool,
        /// The file.
        attributes: Attributes,
    }
}

runtime::record! {
    /// What was read of a list.
    pub struct ListData {
        /// The packed bytes, in pieces, up to the last one that is in the file: what is missing of
        /// the window lies past its end. Bytes past the end between others are zeros.
        data: Vec<Bytes>,
        /// The file.
        attributes: Attributes,
    }
}

runtime::record! {
    /// What was appended.
    #[derive(Copy)]
    pub struct Appended {
        /// Where in the file it begins.
        offset: u64,
        /// The file afterwards.
        written: WriteResult,
    }
}

runtime::record! {
    /// What was created, or found in its place.
    #[derive(Copy)]
    pub struct Created {
        /// The file.
        attributes: Attributes,
        /// It did not exist before.
        new: bool,
    }
}

runtime::choice! {
    /// What [`Seek`] looks for.
    #[derive(Copy)]
    pub enum SeekTarget {
        /// A byte in a block.
        1 Data {},
        /// A byte in no block; the end of the file counts as one.
        2 Hole {},
    }
}

runtime::record! {
    /// A file that is held, or what is no regular file and need not be.
    #[derive(Copy)]
    pub struct OpenedFile {
        /// It.
        attributes: Attributes,
        /// The client's lease at the file's node; 0 if nothing is held. Another one than before
        /// says that the node has forgotten what the client held there: it must hold all of it
        /// again.
        lease: u64,
    }
}

runtime::record! {
    /// What was created, or found in its place, and is held.
    #[derive(Copy)]
    pub struct OpenedNewFile {
        /// The file.
        created: Created,
        /// As in [`OpenedFile`].
        lease: u64,
    }
}

runtime::record! {
    /// Space of the volume, in bytes and inodes.
    #[derive(Copy, Default)]
    pub struct Space {
        /// Bytes for data and metadata together.
        total_bytes: u64,
        /// Bytes that can still be allocated.
        free_bytes: u64,
        /// Files, directories and other inodes in existence.
        inodes: u64,
    }
}

runtime::protocol! {
    /// File I/O: files and directories by handle and name.
    FileIo id 4 version 1;

    /// Find a name. Asked of the name's node.
    1 Control Lookup {
        /// Who asks.
        who: Credentials,
        /// The directory.
        directory: Handle,
        /// The name in it; not `.` or `..`.
        name: Name,
    } -> Attributes, by name(directory.ino, name), retry idempotent, from any, after recovery;

    /// The directory above. Asked of the directory's node.
    2 Control Parent {
        /// Who asks.
        who: Credentials,
        /// The directory.
        directory: Handle,
    } -> Attributes, by inode(directory.ino), retry idempotent, from any, after recovery;

    /// Attributes. Asked of the file's node, like all that follow by handle.
    3 Control GetAttributes {
        /// The file.
        file: Handle,
    } -> Attributes, by inode(file.ino), retry idempotent, from any, after recovery;

    /// Change attributes; the size too.
    4 Control SetAttributes {
        /// Who asks.
        who: Credentials,
        /// The file.
        file: Handle,
        /// What to change.
        change: Change,
        /// Only if the file's ctime is this, else [`Error::Changed`].
        only_if_ctime: Option<Time>,
        /// Durable when answered.
        durable: bool,
    } -> Attributes, by inode(file.ino), retry never, from any, after recovery;

    /// Create a regular file. Asked of the name's node.
    5 Bulk Create {
        /// Who asks.
        who: Credentials,
        /// Which call this is.
        call: CallId,
        /// The directory.
        directory: Handle,
        /// The name in it.
        name: Name,
        /// What to do if it exists.
        existing: Existing,
        /// Attributes of the new file.
        change: Change,
        /// Durable when answered.
        durable: bool,
    } -> Created, by name(directory.ino, name), retry by_call_id, from any, after recovery;

    /// Create anything but a regular file. Asked of the name's node.
    6 Bulk MakeNode {
        /// Who asks.
        who: Credentials,
        /// Which call this is.
        call: CallId,
        /// The directory.
        directory: Handle,
        /// The name in it.
        name: Name,
        /// What to make.
        node: NewNode,
        /// Its attributes.
        change: Change,
        /// Durable when answered.
        durable: bool,
    } -> Attributes, by name(directory.ino, name), retry by_call_id, from any, after recovery;

    /// Remove a name that is not a directory's, and the file with its last name. Asked of the
    /// name's node.
    7 Bulk Remove {
        /// Who asks.
        who: Credentials,
        /// Which call this is.
        call: CallId,
        /// The directory.
        directory: Handle,
        /// The name in it.
        name: Name,
        /// Durable when answered.
        durable: bool,
    } -> (), by name(directory.ino, name), retry by_call_id, from any, after recovery;

    /// Remove an empty directory. Asked of the name's node.
    8 Bulk RemoveDirectory {
        /// Who asks.
        who: Credentials,
        /// Which call this is.
        call: CallId,
        /// The directory above.
        directory: Handle,
        /// The name in it.
        name: Name,
        /// Durable when answered.
        durable: bool,
    } -> (), by name(directory.ino, name), retry by_call_id, from any, after recovery;

    /// Give a file another name. Asked of the old name's node.
    9 Bulk Rename {
        /// Who asks.
        who: Credentials,
        /// Which call this is.
        call: CallId,
        /// The directory of the old name.
        from_directory: Handle,
        /// The old name.
        from_name: Name,
        /// The directory of the new name.
        to_directory: Handle,
        /// The new name.
        to_name: Name,
        /// Replace what has the new name; else that fails with [`Error::Exists`].
        replace: bool,
        /// Durable when answered.
        durable: bool,
    } -> (), by name(from_directory.ino, from_name), retry by_call_id, from any, after recovery;

    /// Give a file one more name. Asked of the file's node.
    10 Bulk Link {
        /// Who asks.
        who: Credentials,
        /// Which call this is.
        call: CallId,
        /// The file, not a directory.
        file: Handle,
        /// The directory of the new name.
        directory: Handle,
        /// The new name.
        name: Name,
        /// Durable when answered.
        durable: bool,
    } -> Attributes, by inode(file.ino), retry by_call_id, from any, after recovery;

    /// Entries of a directory after a cookie. Asked of the directory's node.
    11 Control ReadDirectory {
        /// Who asks.
        who: Credentials,
        /// The directory.
        directory: Handle,
        /// Where to go on; 0 for the start.
        after: u64,
        /// How many entries, at most ([`ENTRIES_MAX`]).
        count_max: u32,
        /// With the attributes of each.
        attributes: bool,
    } -> DirectoryPage, by inode(directory.ino), retry idempotent, from any, after recovery;

    /// The target of a symbolic link.
    12 Control ReadLink {
        /// The link.
        file: Handle,
    } -> Vec<u8>, by inode(file.ino), retry idempotent, from any, after recovery;

    /// Read bytes.
    13 Bulk Read {
        /// Who asks.
        who: Credentials,
        /// The file.
        file: Handle,
        /// The first byte.
        offset: u64,
        /// How many bytes, at most [`TRANSFER_MAX`].
        length: u32,
    } -> ReadData, by inode(file.ino), retry idempotent, from any, after recovery;

    /// Write bytes.
    14 Bulk Write {
        /// Who asks.
        who: Credentials,
        /// The file.
        file: Handle,
        /// The first byte.
        offset: u64,
        /// The bytes, in pieces; together at most [`TRANSFER_MAX`].
        data: Vec<Bytes>,
        /// Durable when answered.
        durable: bool,
    } -> WriteResult, by inode(file.ino), retry never, from any, after recovery;

    /// Make all that was written to the file durable, as far as it was answered with the write
    /// verifier that comes back: what was answered with another one is lost.
    15 Bulk Commit {
        /// The file.
        file: Handle,
    } -> WriteResult, by inode(file.ino), retry idempotent, from any, after recovery;

    /// Space of the whole volume. Asked of any node.
    16 Control GetSpace {} -> Space, by caller, retry idempotent, from any, after recovery;

    /// Make everything of this node durable, and its log short: before a clean stop.
    17 Bulk Flush {} -> (), by caller, retry never, from any, after recovery;

    /// Between nodes: the file is gone, with its last name; free its blocks once no reader is
    /// left. Asked of the file's node.
    18 Control Trim {
        /// Its inode number.
        ino: u64,
    } -> (), by inode(ino), retry never, from servers, after recovery;

    /// Make a hole: blocks that lie in the range as a whole are freed, the rest of it becomes
    /// zeros, the size stays. Seen at once, durable like a write, and as atomic: one record of the
    /// log holds at least all of one chunk. Works on a full volume.
    19 Bulk PunchHole {
        /// Who asks.
        who: Credentials,
        /// The file.
        file: Handle,
        /// The first byte.
        offset: u64,
        /// How many bytes, at least one. What is past the end of the file is ignored.
        length: u64,
        /// Durable when answered.
        durable: bool,
    } -> WriteResult, by inode(file.ino), retry never, from any, after recovery;

    /// Prepare for writes to a range: if the volume cannot hold it now, [`Error::NoSpace`] comes at
    /// once. No block is set aside, since each write goes to new blocks (design D6): others may
    /// take the space before the writes come.
    20 Control Allocate {
        /// Who asks.
        who: Credentials,
        /// The file.
        file: Handle,
        /// The first byte.
        offset: u64,
        /// How many bytes, at least one.
        length: u64,
        /// Leave the size as it is; otherwise a file that ends before the range's end is lengthened
        /// to there, by a hole.
        keep_size: bool,
        /// Durable when answered.
        durable: bool,
    } -> Attributes, by inode(file.ino), retry never, from any, after recovery;

    /// The first byte at or after an offset that is data, or in a hole, in blocks as the file has
    /// them now, committed or not. `None` if the offset is not before the end of the file, or if no
    /// data follows (ENXIO).
    21 Control Seek {
        /// Who asks.
        who: Credentials,
        /// The file.
        file: Handle,
        /// Where to begin.
        offset: u64,
        /// What to look for.
        target: SeekTarget,
    } -> Option<u64>, by inode(file.ino), retry idempotent, from any, after recovery;

    /// The value of an extended attribute. `user.` and `trusted.` are the namespaces that there
    /// are.
    22 Bulk GetXattr {
        /// Who asks.
        who: Credentials,
        /// The file.
        file: Handle,
        /// The attribute.
        name: XattrName,
    } -> Vec<u8>, by inode(file.ino), retry idempotent, from any, after recovery;

    /// Set an extended attribute.
    23 Bulk SetXattr {
        /// Who asks.
        who: Credentials,
        /// Which call this is.
        call: CallId,
        /// The file.
        file: Handle,
        /// The attribute.
        name: XattrName,
        /// Its value, at most [`XATTR_VALUE_MAX`] bytes; all of a file's names and values have at
        /// most [`XATTRS_BYTES_MAX`].
        value: Vec<u8>,
        /// What must be there before.
        mode: XattrMode,
        /// Durable when answered.
        durable: bool,
    } -> Attributes, by inode(file.ino), retry by_call_id, from any, after recovery;

    /// The names of all extended attributes that the asker may know of, in order.
    24 Bulk ListXattrs {
        /// Who asks.
        who: Credentials,
        /// The file.
        file: Handle,
    } -> Vec<XattrName>, by inode(file.ino), retry idempotent, from any, after recovery;

    /// Remove an extended attribute.
    25 Bulk RemoveXattr {
        /// Who asks.
        who: Credentials,
        /// Which call this is.
        call: CallId,
        /// The file.
        file: Handle,
        /// The attribute.
        name: XattrName,
        /// Durable when answered.
        durable: bool,
    } -> Attributes, by inode(file.ino), retry by_call_id, from any, after recovery;

    /// Hold a file that is open at the client: it lives on without a name until the last client
    /// lets go, or its lease ends. The lease begins anew. Nothing is held of what is no regular
    /// file.
    26 Control OpenHandle {
        /// The client, and its number of this call: an earlier [`CloseHandle`] that comes later
        /// does not count.
        call: CallId,
        /// The file.
        file: Handle,
    } -> OpenedFile, by inode(file.ino), retry never, from any, after recovery;

    /// The client has closed the file, and has no lock on it any more.
    27 Control CloseHandle {
        /// The client, and its number of this call.
        call: CallId,
        /// The file.
        file: Handle,
    } -> (), by inode(file.ino), retry never, from any, after recovery;

    /// The client lives: its lease at this node begins anew. It has held again all that it held in
    /// an earlier lease. False if the node does not know the lease (it ended, or the node has
    /// restarted): then the client holds its files again, and renews the lease that it gets.
    28 Control Renew {
        /// The client.
        client: u64,
        /// The lease.
        lease: u64,
    } -> bool, by caller, retry never, from any, after recovery;

    /// [`Lookup`], and hold what is found. Asked of the name's node.
    29 Bulk Open {
        /// Who asks.
        who: Credentials,
        /// The client, and its number of this call.
        call: CallId,
        /// The directory.
        directory: Handle,
        /// The name in it.
        name: Name,
    } -> OpenedFile, by name(directory.ino, name), retry never, from any, after recovery;

    /// [`Create`], and hold the file. Asked of the name's node.
    30 Bulk OpenNew {
        /// Who asks.
        who: Credentials,
        /// Which call this is.
        call: CallId,
        /// The directory.
        directory: Handle,
        /// The name in it.
        name: Name,
        /// What to do if it exists.
        existing: Existing,
        /// Attributes of the new file.
        change: Change,
        /// Durable when answered.
        durable: bool,
    } -> OpenedNewFile, by name(directory.ino, name), retry by_call_id, from any, after recovery;

    /// Lock bytes of a file that the client holds, in place of what the owner has locked of them.
    /// Never waits for other locks: the client tries again, with pauses. The lease begins anew.
    31 Control Lock {
        /// The file.
        file: Handle,
        /// For whom.
        owner: LockOwner,
        /// Which bytes.
        range: ByteRange,
        /// How.
        kind: LockKind,
        /// The lease under which the client holds the file.
        lease: u64,
        /// The owner had this lock before the node restarted.
        reclaim: bool,
    } -> LockResult, by inode(file.ino), retry never, from any, after recovery;

    /// The lock of another owner that conflicts with such a lock.
    32 Control TestLock {
        /// The file.
        file: Handle,
        /// For whom.
        owner: LockOwner,
        /// Which bytes.
        range: ByteRange,
        /// How.
        kind: LockKind,
    } -> Option<FileLock>, by inode(file.ino), retry idempotent, from any, after recovery;

    /// Give up what an owner has locked of some bytes.
    33 Control Unlock {
        /// The file.
        file: Handle,
        /// Whose locks.
        owner: LockOwner,
        /// Which bytes.
        range: ByteRange,
    } -> (), by inode(file.ino), retry never, from any, after recovery;

    /// Make all names of a directory durable as they are, also those that are gone, with what they
    /// name; and the directory's own attributes. Asked of the directory's node.
    34 Bulk SyncDirectory {
        /// The directory.
        directory: Handle,
    } -> (), by inode(directory.ino), retry idempotent, from any, after recovery;

    /// Read a window of a list of regions, packed. The list travels as it was described; which
    /// chunks, stripes and blocks its regions lie in, their node finds out.
    35 Bulk ReadList {
        /// Who asks.
        who: Credentials,
        /// The file.
        file: Handle,
        /// The regions, which may overlap.
        regions: Regions,
        /// The first packed byte that is wanted.
        skip: u64,
        /// How many packed bytes, at most [`TRANSFER_MAX`]; of at most
        /// [`REGIONS_MAX`](crate::regions::REGIONS_MAX) regions.
        length: u32,
    } -> ListData, by inode(file.ino), retry idempotent, from any, after recovery;

    /// Write a window of a list of regions. Where regions overlap, the later one stays. Each chunk
    /// is written as a whole, as [`Write`] does it; readers may see one chunk before another.
    36 Bulk WriteList {
        /// Who asks.
        who: Credentials,
        /// The file.
        file: Handle,
        /// The regions.
        regions: Regions,
        /// The first packed byte that is written.
        skip: u64,
        /// The packed bytes from there on, at most [`TRANSFER_MAX`]; for at most
        /// [`REGIONS_MAX`](crate::regions::REGIONS_MAX) regions.
        data: Bytes,
        /// Durable when answered.
        durable: bool,
    } -> WriteResult, by inode(file.ino), retry never, from any, after recovery;

    /// Write at the end of the file, wherever that is by then: appends of many never overlap, and a
    /// reader sees all of one or nothing of it. Done once, as long as the node lives.
    37 Bulk Append {
        /// Who asks.
        who: Credentials,
        /// Which call this is.
        call: CallId,
        /// The lease of the client at the node under which it sent this before, without an answer.
        /// If the node does not know that lease any more, nor what came of the call, it does
        /// nothing, and the answer is [`Undelivered::Lost`].
        sent_under: Option<u64>,
        /// The file.
        file: Handle,
        /// The bytes, in pieces; together at most [`TRANSFER_MAX`].
        data: Vec<Bytes>,
    } -> Appended, by inode(file.ino), retry never, from any, after recovery;

    /// Was this call done by this node, and is its reply stored (ADR 9)? Waits for a copy of it
    /// that is under way; that it was done is durable then. Asked of all nodes.
    38 Control WasDone {
        /// Which call.
        call: CallId,
    } -> bool, by caller, retry idempotent, from any, after recovery;
}

runtime::choice! {
    /// Why file I/O could not do as asked. Each says what the caller can do about it; the names
    /// follow the POSIX errors that clients turn them into.
    #[derive(Copy, thiserror::Error)]
    pub enum Error {
        /// The request did not reach its node.
        #[error(transparent)]
        1 Undelivered {
            /// What happened.
            #[from]
            why: Undelivered,
        },
        /// ENOENT: no such name.
        #[error("no such file or directory")]
        2 NotFound {},
        /// EEXIST: the name is taken.
        #[error("the name exists already")]
        3 Exists {},
        /// ENOTDIR: what should be a directory is none.
        #[error("not a directory")]
        4 NotDirectory {},
        /// EISDIR: a directory where none is allowed.
        #[error("is a directory")]
        5 IsDirectory {},
        /// ENOTEMPTY: the directory still has entries.
        #[error("the directory is not empty")]
        6 NotEmpty {},
        /// EACCES: the mode forbids it.
        #[error("permission denied")]
        7 AccessDenied {},
        /// EPERM: only the owner or root may.
        #[error("only the owner or root may do this")]
        8 NotPermitted {},
        /// EINVAL: makes no sense for this kind of file, or a value out of range.
        #[error("invalid argument")]
        9 Invalid {},
        /// EFBIG: past the largest file.
        #[error("the file would be too large")]
        10 FileTooLarge {},
        /// ENOSPC: the volume is full; removing files helps.
        #[error("no space left on the volume")]
        11 NoSpace {},
        /// EMLINK: too many hard links.
        #[error("too many links")]
        12 TooManyLinks {},
        /// ESTALE: the handle's file does not exist any more. Look it up again.
        #[error("the file of this handle was removed")]
        13 Stale {},
        /// EIO: stored bytes are damaged or their disk failed.
        #[error("the stored data cannot be read: damaged, or its disk failed")]
        14 Damaged {},
        /// The guard of [`SetAttributes`] did not hold. Read the attributes and decide again.
        #[error("the file was changed by another caller")]
        15 Changed {},
        /// A directory cursor that this volume never gave out.
        #[error("unknown directory cookie")]
        16 BadCookie {},
        /// EIO: what was written and not committed is gone, because a node has restarted. Write it
        /// again.
        #[error("what was written was lost before it was durable: a node has restarted")]
        17 LostWrites {},
        /// ENODATA: the file has no extended attribute of this name that the asker may know of.
        #[error("no such extended attribute")]
        18 NoXattr {},
        /// E2BIG: the value, or all extended attributes of the file together, are too large.
        #[error("too large to be stored")]
        19 TooLarge {},
        /// EOPNOTSUPP: there is no such namespace of extended attributes here.
        #[error("not supported: extended attributes begin with 'user.' or 'trusted.'")]
        20 Unsupported {},
    }
}

impl Error {
    /// Nothing was done and a later try may succeed.
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Undelivered { why: Undelivered::Busy })
    }

    /// Nothing was done, the node may answer later.
    pub fn not_applied(&self) -> bool {
        matches!(self, Self::Undelivered { why } if why.not_applied())
    }
}

impl OpenNew {
    /// The request that makes the file.
    pub fn creation(&self) -> Create {
        let Self { who, call, directory, name, existing, change, durable } = self.clone();
        Create { who, call, directory, name, existing, change, durable }
    }
}
