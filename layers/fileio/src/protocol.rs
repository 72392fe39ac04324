//! The applications interface (thesis section 2.5.4): all requests of clients and gateways.
//!
//! Every request stands alone: it names its objects in full and carries the caller's credentials.
//! Fields of one name mean the same in every row:
//!
//! - `who`: the credentials of the caller.
//! - `call`: the id of the call. A call is executed once, however often it arrives, as long as the
//!   reply is kept ([`meta::REPLIES_MAX`], [`meta::REPLY_AGE_MAX`]).
//! - `file`: a file by its handle. `directory`, `name`: a name in a directory.
//! - `offset`: the first byte. `range`, `owner`, `kind`: the bytes of a lock, its owner, its kind.
//! - `durable`: the change is durable when it is answered.

use std::time::Duration;

use bytes::Bytes;
use runtime::delivery::{DeliveryTarget, DepositedRange};
use runtime::protocol::Undelivered;

pub use meta::attributes::{
    Attributes, Change, Credentials, GROUPS_MAX, Kind, NAME_MAX, Name, NameError, SetTime, Time,
    WccAttr, WriteResult, XATTR_NAME_MAX, XATTR_VALUE_MAX, XATTRS_BYTES_MAX, XattrMode, XattrName,
    access,
};
pub use meta::protocol::{CallId, ScrubFlaw, ScrubPart, WriteObstacle};

pub use crate::disk_types::{
    AddedDisk, DiskChange, DiskCondition, DiskList, DiskRefusal, DiskReport, NEVER_LOST, Space,
};
pub use crate::lock_types::{ByteRange, FileLock, LockKind, LockOwner, LockResult};
pub use crate::partition_types::{
    Partition, PartitionChange, PartitionRefusal, PartitionShare, PartitionState, PartitionTable,
};
pub use crate::regions::Regions;
pub use crate::reply_types::{
    Appended, Created, DirectData, DirectoryEntry, DirectoryPage, ListData, OpenedFile,
    OpenedNewFile, ReadData, SeekTarget,
};

/// The root directory of every volume.
pub const ROOT: Handle = Handle { ino: 1, generation: 1 };

/// Bytes that one read or write may move, at most.
pub const TRANSFER_MAX: u32 = 4 << 20;
/// Bytes of a block: what a client leaves elsewhere for a write are whole blocks of the file.
pub const BLOCK_SIZE: usize = 4096;

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

/// A holder of delegations trusts them for this long after it has sent the last [`GetRecalls`] that
/// was answered.
pub const DELEGATION_TRUST: Duration = Duration::from_secs(2);

/// Those to whom a holder of delegations has passed on what it holds ask it at least this often
/// whether it still knows them. Until then they trust it, even if it is gone.
pub const DELEGATION_LEASE: Duration = Duration::from_secs(7);

/// A holder of delegations asks for its recalls this often.
pub const RECALLS_INTERVAL: Duration = Duration::from_millis(100);

/// Hard links of one file, at most.
pub const LINKS_MAX: u32 = 65_000;

runtime::record! {
    /// A file, for as long as it exists: the inode number and its incarnation.
    #[derive(Copy, PartialOrd, Ord, Hash)]
    handle pub struct Handle {
        /// The inode; `ino mod nodes` is its node.
        ino: u64,
        /// Which file of that number; never 0.
        generation: u64,
    }
}

runtime::record! {
    /// A delegation that shall be returned.
    #[derive(Copy)]
    pub struct DelegationRecall {
        /// The file.
        file: Handle,
        /// The holder's number of the request by which it got it.
        number: u64,
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
        /// The root directory of a partition, in that of the volume. From servers only.
        7 PartitionRoot {
            /// The partition.
            partition: u16,
        },
    }
}

runtime::protocol! {
    /// File I/O: files and directories by handle and name.
    FileIo id 4 version 9;

    /// Find a name.
    1 Control Lookup {
        who: Credentials,
        directory: Handle,
        /// The name in it; not `.` or `..`.
        name: Name,
    } -> Attributes, by name(directory.ino, name), retry idempotent, from any, after recovery;

    /// The directory above.
    2 Control Parent { who: Credentials, directory: Handle } -> Attributes,
        by inode(directory.ino), retry idempotent, from any, after recovery;

    /// Attributes.
    3 Control GetAttributes { file: Handle } -> Attributes,
        by inode(file.ino), retry idempotent, from any, after recovery;

    /// Change attributes; the size too.
    4 Control SetAttributes {
        who: Credentials,
        file: Handle,
        change: Change,
        /// Only if the file's ctime is this, else [`Error::Changed`].
        only_if_ctime: Option<Time>,
        durable: bool,
    } -> Attributes, by inode(file.ino), retry never, from any, after recovery;

    /// Create a regular file.
    5 Bulk Create {
        who: Credentials,
        call: CallId,
        directory: Handle,
        name: Name,
        /// What to do if it exists.
        existing: Existing,
        /// Attributes of the new file.
        change: Change,
        durable: bool,
    } -> Created, by name(directory.ino, name), retry by_call_id, from any, after recovery;

    /// Create anything but a regular file.
    6 Bulk MakeNode {
        who: Credentials,
        call: CallId,
        directory: Handle,
        name: Name,
        node: NewNode,
        change: Change,
        durable: bool,
    } -> Attributes, by name(directory.ino, name), retry by_call_id, from any, after recovery;

    /// Remove a name that is not a directory's, and the file with its last name.
    7 Bulk Remove {
        who: Credentials,
        call: CallId,
        directory: Handle,
        name: Name,
        durable: bool,
    } -> (), by name(directory.ino, name), retry by_call_id, from any, after recovery;

    /// Remove an empty directory.
    8 Bulk RemoveDirectory {
        who: Credentials,
        call: CallId,
        /// The directory above.
        directory: Handle,
        name: Name,
        durable: bool,
    } -> (), by name(directory.ino, name), retry by_call_id, from any, after recovery;

    /// Give a file another name.
    9 Bulk Rename {
        who: Credentials,
        call: CallId,
        /// The directory of the old name.
        from_directory: Handle,
        from_name: Name,
        /// The directory of the new name.
        to_directory: Handle,
        to_name: Name,
        /// Replace what has the new name; else that fails with [`Error::Exists`].
        replace: bool,
        durable: bool,
    } -> (), by name(from_directory.ino, from_name), retry by_call_id, from any, after recovery;

    /// Give a file one more name.
    10 Bulk Link {
        who: Credentials,
        call: CallId,
        /// The file, not a directory.
        file: Handle,
        /// The directory of the new name.
        directory: Handle,
        name: Name,
        durable: bool,
    } -> Attributes, by inode(file.ino), retry by_call_id, from any, after recovery;

    /// Entries of a directory after a cookie.
    11 Control ReadDirectory {
        who: Credentials,
        directory: Handle,
        /// Where to go on; 0 for the start.
        after: u64,
        /// How many entries, at most ([`ENTRIES_MAX`]).
        count_max: u32,
        /// With the attributes of each.
        attributes: bool,
    } -> DirectoryPage, by inode(directory.ino), retry idempotent, from any, after recovery;

    /// The target of a symbolic link.
    12 Control ReadLink { file: Handle } -> Vec<u8>,
        by inode(file.ino), retry idempotent, from any, after recovery;

    /// Read bytes.
    13 Bulk Read {
        who: Credentials,
        file: Handle,
        offset: u64,
        /// How many bytes, at most [`TRANSFER_MAX`].
        length: u32,
    } -> ReadData, by inode(file.ino), retry idempotent, from any, after recovery;

    /// Write bytes.
    14 Bulk Write {
        who: Credentials,
        file: Handle,
        offset: u64,
        /// The bytes, in pieces; together at most [`TRANSFER_MAX`].
        data: Vec<Bytes>,
        durable: bool,
    } -> WriteResult, by inode(file.ino), retry never, from any, after recovery;

    /// Make the file durable. Writes that were answered with the same write verifier as this are
    /// durable then; writes with another one are lost.
    15 Bulk Commit { file: Handle } -> WriteResult,
        by inode(file.ino), retry idempotent, from any, after recovery;

    /// Space of a partition; of partition 0 that of the whole volume.
    16 Control GetSpace { partition: u16 } -> Space,
        by caller, retry idempotent, from any, after recovery;

    /// Make everything of this node durable and write a checkpoint: before a clean stop.
    17 Bulk Flush {} -> (), by caller, retry idempotent, from any, after recovery;

    /// Between nodes: the file was removed. Free its blocks once no reader is left.
    18 Control Trim { ino: u64 } -> (),
        by inode(ino), retry never, from servers, after recovery;

    /// Make a hole: blocks that lie in the range as a whole are freed, the rest of it becomes
    /// zeros, the size stays. Seen at once, durable like a write, and as atomic: one record of the
    /// log holds at least all of one chunk. Works on a full volume.
    19 Bulk PunchHole {
        who: Credentials,
        file: Handle,
        offset: u64,
        /// How many bytes, at least one. What is past the end of the file is ignored.
        length: u64,
        durable: bool,
    } -> WriteResult, by inode(file.ino), retry never, from any, after recovery;

    /// Check that the volume has space for writes to a range; [`Error::NoSpace`] if not. No block
    /// is reserved, since each write goes to new blocks.
    20 Control Allocate {
        who: Credentials,
        file: Handle,
        offset: u64,
        /// How many bytes, at least one.
        length: u64,
        /// Leave the size as it is; otherwise a file that ends before the range's end is lengthened
        /// to there, by a hole.
        keep_size: bool,
        durable: bool,
    } -> Attributes, by inode(file.ino), retry never, from any, after recovery;

    /// The first byte at or after an offset that is data, or in a hole, in blocks as the file has
    /// them now, committed or not. `None` if the offset is not before the end of the file, or if no
    /// data follows (ENXIO).
    21 Control Seek {
        who: Credentials,
        file: Handle,
        /// Where to begin.
        offset: u64,
        target: SeekTarget,
    } -> Option<u64>, by inode(file.ino), retry idempotent, from any, after recovery;

    /// The value of an extended attribute. The namespaces are `user.` and `trusted.`.
    22 Bulk GetXattr { who: Credentials, file: Handle, name: XattrName } -> Vec<u8>,
        by inode(file.ino), retry idempotent, from any, after recovery;

    /// Set an extended attribute.
    23 Bulk SetXattr {
        who: Credentials,
        call: CallId,
        file: Handle,
        name: XattrName,
        /// Its value, at most [`XATTR_VALUE_MAX`] bytes; all of a file's names and values have at
        /// most [`XATTRS_BYTES_MAX`].
        value: Vec<u8>,
        /// What must be there before.
        mode: XattrMode,
        durable: bool,
    } -> Attributes, by inode(file.ino), retry by_call_id, from any, after recovery;

    /// The names of all extended attributes that the caller may see, in order.
    24 Bulk ListXattrs { who: Credentials, file: Handle } -> Vec<XattrName>,
        by inode(file.ino), retry idempotent, from any, after recovery;

    /// Remove an extended attribute.
    25 Bulk RemoveXattr {
        who: Credentials,
        call: CallId,
        file: Handle,
        name: XattrName,
        durable: bool,
    } -> Attributes, by inode(file.ino), retry by_call_id, from any, after recovery;

    /// The client opens a file: it exists without a name until the last client has closed it or
    /// lost its lease. Renews the lease. Only regular files are kept open, and directories that are
    /// opened to be listed.
    26 Control OpenHandle {
        who: Credentials,
        /// An earlier [`CloseHandle`] that arrives later does not count.
        call: CallId,
        file: Handle,
        /// For what the caller opens it ([`access`]); 0 for nothing, which needs no permission.
        /// What the mode permits now is granted until the client closes the file: requests of this
        /// user are judged by that too.
        access: u32,
    } -> OpenedFile, by inode(file.ino), retry never, from any, after recovery;

    /// The client has closed the file, and has no lock on it any more.
    27 Control CloseHandle { call: CallId, file: Handle } -> (),
        by inode(file.ino), retry never, from any, after recovery;

    /// Renew the client's lease at this node. False if the node does not know the lease (it has
    /// expired, or the node has restarted): then the client reopens its files and renews the lease
    /// that it gets.
    28 Control Renew { client: u64, lease: u64 } -> bool,
        by caller, retry never, from any, after recovery;

    /// [`Lookup`] and [`OpenHandle`].
    29 Bulk Open { who: Credentials, call: CallId, directory: Handle, name: Name } -> OpenedFile,
        by name(directory.ino, name), retry never, from any, after recovery;

    /// [`Create`] and [`OpenHandle`].
    30 Bulk OpenNew {
        who: Credentials,
        call: CallId,
        directory: Handle,
        name: Name,
        /// What to do if it exists.
        existing: Existing,
        /// Attributes of the new file.
        change: Change,
        durable: bool,
    } -> OpenedNewFile, by name(directory.ino, name), retry by_call_id, from any, after recovery;

    /// Lock bytes of a file that the client has open; replaces what the owner has locked of them.
    /// Never waits for other locks: the client retries, with pauses. Renews the lease.
    31 Control Lock {
        file: Handle,
        owner: LockOwner,
        range: ByteRange,
        kind: LockKind,
        /// The lease under which the client has the file open.
        lease: u64,
        /// The owner had this lock before the node restarted.
        reclaim: bool,
    } -> LockResult, by inode(file.ino), retry never, from any, after recovery;

    /// The lock of another owner that conflicts with such a lock.
    32 Control TestLock {
        file: Handle,
        owner: LockOwner,
        range: ByteRange,
        kind: LockKind,
    } -> Option<FileLock>, by inode(file.ino), retry idempotent, from any, after recovery;

    /// Release what an owner has locked of some bytes.
    33 Control Unlock { file: Handle, owner: LockOwner, range: ByteRange } -> (),
        by inode(file.ino), retry never, from any, after recovery;

    /// Make all names of a directory durable, removals too, with what they name, and the
    /// directory's own attributes.
    34 Bulk SyncDirectory { directory: Handle } -> (),
        by inode(directory.ino), retry idempotent, from any, after recovery;

    /// Read a window of a list of regions, packed. The list travels as it was described;
    /// the node finds the chunks, stripes and blocks.
    35 Bulk ReadList {
        who: Credentials,
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
        who: Credentials,
        file: Handle,
        regions: Regions,
        /// The first packed byte that is written.
        skip: u64,
        /// The packed bytes from there on, at most [`TRANSFER_MAX`]; for at most
        /// [`REGIONS_MAX`](crate::regions::REGIONS_MAX) regions.
        data: Bytes,
        durable: bool,
    } -> WriteResult, by inode(file.ino), retry never, from any, after recovery;

    /// Write at the end of the file: appends of several clients never overlap, and a reader sees
    /// all of one or nothing. Executed once: its outcome is stored with the record that makes it
    /// durable, until the client acknowledges it.
    37 Bulk Append {
        who: Credentials,
        call: CallId,
        /// It was sent before. If the node has dropped too many outcomes to know whether it was
        /// done, it does nothing and answers [`Undelivered::Lost`].
        again: bool,
        /// The client waits for the answer to no append with a lower number.
        acknowledged: u64,
        /// The file must have this write verifier, if it is not done yet. Else appends before it
        /// may be lost, and are to be sent again first ([`Error::LostWrites`]).
        only_if_verifier: Option<u64>,
        file: Handle,
        /// The bytes, in pieces; together at most [`TRANSFER_MAX`].
        data: Vec<Bytes>,
    } -> Appended, by inode(file.ino), retry never, from any, after recovery;

    /// Was this call executed by this node, and is its reply stored (ADR 9)? Waits for a running
    /// copy; the reply is durable then.
    38 Control WasDone { call: CallId } -> bool,
        by caller, retry idempotent, from any, after recovery;

    /// Write again what was answered and lost with another write verifier (ADR 73). What is there
    /// already, or was changed later, stays. In the answer, `sequence` is the number that the bytes
    /// have now. Without data it is only asked whether they are there.
    /// [`Error::LostWrites`] if they are not, or if the node cannot tell what was later.
    39 Bulk ReplayWrite {
        who: Credentials,
        file: Handle,
        offset: u64,
        /// The bytes, in pieces; together at most [`TRANSFER_MAX`].
        data: Vec<Bytes>,
        /// The number of the first answer.
        order: u64,
        /// The number of the last answer: another one if it was sent again before.
        sequence: u64,
        /// It was an append. If another append has taken a part of its place since, nothing is
        /// done: [`Error::Changed`].
        is_append: bool,
    } -> WriteResult, by inode(file.ino), retry idempotent, from any, after recovery;

    /// The same for a hole.
    40 Bulk ReplayPunch {
        who: Credentials,
        file: Handle,
        offset: u64,
        /// How many bytes, at least one.
        length: u64,
        /// As in [`ReplayWrite`].
        order: u64,
        /// As in [`ReplayWrite`].
        sequence: u64,
    } -> WriteResult, by inode(file.ino), retry idempotent, from any, after recovery;

    /// Read bytes; other processes send the client what they have of them.
    41 Bulk ReadDirect {
        who: Credentials,
        file: Handle,
        offset: u64,
        /// How many bytes, at most [`TRANSFER_MAX`].
        length: u32,
        deliver: DeliveryTarget,
    } -> DirectData, by inode(file.ino), retry idempotent, from any, after recovery;

    /// Write bytes, of which the client has left some at other processes. None if these do not
    /// have them, or cannot store them: then nothing was written. Send it as a [`Write`].
    42 Bulk WriteDirect {
        who: Credentials,
        file: Handle,
        offset: u64,
        /// The bytes that were left nowhere, in order; with the others at most [`TRANSFER_MAX`].
        data: Vec<Bytes>,
        /// Whose they are, and where it is let in.
        source: DeliveryTarget,
        /// The others, in order; places count from `offset`.
        deposited: Vec<DepositedRange>,
        /// None, or parity that was left too, at places behind the bytes: the shards of each wide
        /// stripe of which the write has all bytes, one after the other.
        parity: Vec<DepositedRange>,
    } -> Option<WriteResult>, by inode(file.ino), retry never, from any, after recovery;

    /// The disks of the volume. `root` is its root directory. Where they are on their hosts only
    /// those learn who may change them.
    43 Control GetDisks { who: Credentials, root: Handle } -> DiskList,
        by inode(root.ino), retry idempotent, from any, after recovery;
    /// Change the disks of the volume: root and the owner of its root directory may.
    44 Bulk ChangeDisks { who: Credentials, root: Handle, change: DiskChange } -> (),
        by inode(root.ino), retry idempotent, from any, after recovery;

    /// The partitions of the volume besides partition 0. `root` is its root directory.
    48 Control GetPartitions { root: Handle } -> PartitionTable,
        by inode(root.ino), retry idempotent, from any, after recovery;

    /// Change the partitions of the volume: root and the owner of its root directory may.
    49 Bulk ChangePartitions { who: Credentials, root: Handle, change: PartitionChange } -> (),
        by inode(root.ino), retry idempotent, from any, after recovery;

    /// From now on these are the partitions, if the table is newer than the one that is known.
    50 Control AdoptPartitions { table: PartitionTable } -> (),
        by caller, retry idempotent, from servers, after recovery;

    /// What a partition uses at this node, and what of its size limit the node may use.
    51 Control GetPartitionShare {
        partition: u16,
        /// The node claims no more than it uses from now on.
        give_up: bool,
    } -> PartitionShare, by caller, retry idempotent, from servers, after recovery;

    /// Let a node use more of the size limit of a partition, as far as that allows; returns what it
    /// may use in all. At the node of the partition.
    52 Control ClaimSpace {
        partition: u16,
        /// The node that will use it.
        node: u32,
        /// What it may use so far.
        share: PartitionShare,
        /// Bytes that it wants besides.
        wanted_bytes: u64,
    } -> u64, by caller, retry idempotent, from servers, after recovery;

    /// Compare a part of what this node has on the disks with its checksums. Root and the owner of
    /// the root directory may.
    47 Bulk Scrub {
        who: Credentials,
        /// The root directory of the volume.
        root: Handle,
        /// As in [`meta::protocol::Scrub`].
        after: Vec<u8>,
        data: bool,
        repair: bool,
    } -> ScrubPart, by caller, retry idempotent, from any, after recovery;

    /// Let the holder keep what it reads of a file until that is recalled (ADR 101). Who may not
    /// have it now, and why does not matter, gets None.
    53 Control Delegate {
        /// The front end, by a number that is drawn when it starts.
        holder: u64,
        /// The lease that the node has given it; 0 if it has none: then what it had is void.
        lease: u64,
        /// The holder's number of the request, above all before.
        number: u64,
        file: Handle,
    } -> Option<u64>, by inode(file.ino), retry never, from any, after recovery;

    /// The holder does not keep the file any more, of all requests up to a number.
    54 Control ReturnDelegation { holder: u64, number: u64, file: Handle } -> (),
        by inode(file.ino), retry never, from any, after recovery;

    /// All that the node wants back from a holder. None if it does not know the lease: then all
    /// that the holder had there is void.
    55 Control GetRecalls { holder: u64, lease: u64 } -> Option<Vec<DelegationRecall>>,
        by caller, retry idempotent, from any, after recovery;

    /// Has a client a file open at this node, or may one claim that it had before the node
    /// started?
    57 Control HasOpens {} -> bool, by caller, retry idempotent, from any, after recovery;

    /// Recall a file from all holders, since it is about to be changed; [`Undelivered::Busy`] while
    /// one of them has it.
    56 Control BreakDelegations {
        file: Handle,
        /// A holder that may keep it; 0 for none.
        except: u64,
    } -> (), by inode(file.ino), retry idempotent, from any, after recovery;
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
        /// EIO: uncommitted writes were lost, because a node has restarted. Write again.
        #[error("what was written was lost before it was durable: a node has restarted")]
        17 LostWrites {},
        /// ENODATA: the file has no extended attribute of this name that the caller may see.
        #[error("no such extended attribute")]
        18 NoXattr {},
        /// E2BIG: the value, or all extended attributes of the file together, are too large.
        #[error("too large to be stored")]
        19 TooLarge {},
        /// EOPNOTSUPP: there is no such namespace of extended attributes here.
        #[error("not supported: extended attributes begin with 'user.' or 'trusted.'")]
        20 Unsupported {},
        /// ENOSPC or EROFS: a disk takes no writes for now. Reads go on; the same request succeeds
        /// once there is space.
        #[error(
            "the host file system below disk n{disk_node}d{disk} is {why}: \
             the volume is read-only until that ends"
        )]
        21 Unwritable {
            /// The disk node.
            disk_node: u32,
            /// The disk within the node.
            disk: u32,
            /// What is in the way.
            why: WriteObstacle,
        },
        /// EROFS: the volume was opened to be read. Nothing was changed.
        #[error("the volume is open to be read only, since a part of it is missing or damaged")]
        22 ReadOnly {},
        /// EIO: it is on a disk that is missing, or damaged there, of a volume opened to be read.
        #[error("what disk n{disk_node}d{disk} has of it is missing or damaged")]
        23 Unreadable {
            /// The disk node.
            disk_node: u32,
            /// The disk within the node.
            disk: u32,
        },
        /// EBUSY: the disks of the volume are not changed.
        #[error(transparent)]
        24 DisksUnchanged { /// Why.
            #[from]
            why: DiskRefusal },
        /// EXDEV, EBUSY or others: partitions do not let it be done, or are not changed.
        #[error(transparent)]
        25 Partitions { /// Why.
            #[from]
            why: PartitionRefusal },
    }
}

impl Error {
    /// Nothing was done and a later try may succeed.
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Undelivered { why: Undelivered::Busy })
    }

    /// A disk takes no writes for now.
    pub fn is_unwritable(&self) -> bool {
        matches!(self, Self::Unwritable { .. })
    }

    /// It may or may not have been done.
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Undelivered { why } if why.is_lost())
    }

    /// Nothing was done, the node may answer later.
    pub fn not_applied(&self) -> bool {
        matches!(self, Self::Undelivered { why } if why.not_applied())
    }
}

/// The handle of the file with these attributes.
pub fn handle_of(attributes: &Attributes) -> Handle {
    Handle { ino: attributes.ino, generation: attributes.generation }
}

impl OpenHandle {
    /// Keeps the file for the client; each request is judged by the mode that the file has then.
    pub fn unjudged(call: CallId, file: Handle) -> Self {
        Self { who: Credentials::root(), call, file, access: 0 }
    }
}

impl OpenNew {
    /// The request that makes the file.
    pub fn creation(&self) -> Create {
        let Self { who, call, directory, name, existing, change, durable } = self.clone();
        Create { who, call, directory, name, existing, change, durable }
    }
}
