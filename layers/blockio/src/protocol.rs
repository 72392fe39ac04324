//! What may be asked of a disk node, and what is heard back.

use bytes::Bytes;
use runtime::protocol::Undelivered;

/// Bytes of one root slot: the unit of the slot area at the start of each disk.
pub const SLOT_SIZE: usize = 4096;

runtime::protocol! {
    /// Block I/O: the disks of one disk node (thesis section 2.3).
    BlockIo id 1 version 2;

    /// Read within one stripe. Bytes never written are undefined.
    1 Bulk Read {
        /// The logical stripe.
        stripe: u64,
        /// The first byte within the stripe.
        offset: u32,
        /// How many bytes.
        length: u32,
    } -> Bytes, by stripe(stripe), retry idempotent, from servers, during recovery;

    /// Replace bytes within one stripe. Returns the life of the disk node: durable after the next
    /// [`Sync`] that is answered in the same one.
    2 Bulk Write {
        /// The logical stripe.
        stripe: u64,
        /// The first byte within the stripe.
        offset: u32,
        /// The new content, in one or more pieces.
        data: Vec<Bytes>,
    } -> u64, by stripe(stripe), retry never, from servers, during recovery;

    /// Make every write of this disk node that was answered before in this life durable, and return
    /// the life. Disks without such writes are left alone.
    3 Bulk Sync {} -> u64, by caller, retry idempotent, from servers, during recovery;

    /// Read one root slot of one disk of this node.
    4 Control ReadSlot {
        /// The disk within the node.
        disk: u32,
        /// The slot.
        slot: u32,
    } -> Bytes, by caller, retry idempotent, from servers, during recovery;

    /// Replace one root slot; durable when answered.
    5 Control WriteSlot {
        /// The disk within the node.
        disk: u32,
        /// The slot.
        slot: u32,
        /// [`SLOT_SIZE`] bytes.
        data: Bytes,
    } -> (), by caller, retry never, from servers, during recovery;

    /// What this node's disks are and have done.
    6 Control Describe {} -> Vec<DiskStatus>,
        by caller, retry idempotent, from any, during recovery;

    /// Make the disks of this node ready that are new in this record of the volume: nothing of what
    /// they hold is kept. They are not used before the record is the volume's.
    7 Bulk PrepareDisks {
        /// An encoded `VolumeRecord`.
        record: Vec<u8>,
    } -> (), by caller, retry idempotent, from servers, during recovery;

    /// Follow a record of the volume: durable in the superblocks of all disks of this node when
    /// answered. Disks that are new in it are served from now on, retired ones are given up.
    8 Bulk FollowRecord {
        /// An encoded `VolumeRecord`.
        record: Vec<u8>,
    } -> (), by caller, retry idempotent, from servers, during recovery;

    /// Compare the superblocks of the disks of this node with their checksums, as the disks have
    /// them now. Returns what is wrong, in words.
    9 Bulk CheckSuperblocks {
        /// A bad one is written anew if the other one is good.
        repair: bool,
    } -> Vec<String>, by caller, retry idempotent, from servers, during recovery;
}

runtime::record! {
    /// A stripe with writes that are not synced yet, and the boot ID under which they were
    /// answered.
    #[derive(Copy, PartialOrd, Ord)]
    pub struct Unsynced {
        /// The stripe.
        stripe: u64,
        /// The life of the server that answered.
        boot_id: u64,
    }
}

runtime::record! {
    /// Bytes of a stripe.
    #[derive(Copy)]
    pub struct Extent {
        /// The first byte within the stripe.
        offset: u32,
        /// How many bytes, at least one.
        length: u32,
    }
}

runtime::record! {
    /// Bytes, and where in a stripe they belong.
    pub struct Placed {
        /// The first byte within the stripe.
        offset: u32,
        /// The bytes.
        data: Bytes,
    }
}

runtime::record! {
    /// One disk, as its disk node sees it. Counters since the node started.
    pub struct DiskStatus {
        /// The disk within the node.
        disk: u32,
        /// Usable stripes.
        stripes: u64,
        /// Requests waiting.
        queued: u32,
        /// False once the disk has failed for good.
        healthy: bool,
        /// Read requests done.
        reads: u64,
        /// Write requests done.
        writes: u64,
        /// Flushes of the disk's volatile cache done.
        syncs: u64,
        /// Bytes read.
        read_bytes: u64,
        /// Bytes written.
        written_bytes: u64,
        /// Transfers bypass the page cache of the host.
        direct: bool,
        /// Of the reads and writes, those that went to the disk together with a neighbour.
        merged: u64,
        /// Requests refused because too many waited.
        busy: u64,
        /// Of reads, from the question to the answer.
        read_latency: Latency,
        /// Of writes.
        write_latency: Latency,
        /// Of those who waited for a flush.
        sync_latency: Latency,
        /// Its path at its host.
        path: String,
        /// Why it takes no writes for now.
        obstacle: Option<WriteObstacle>,
        /// Unix time since then, in seconds; 0 if there is none.
        obstacle_since: u64,
    }
}

runtime::record! {
    /// How long requests took since the node started, waiting in the queue included. Percentiles
    /// are up to an eighth too large.
    #[derive(Copy, Default)]
    pub struct Latency {
        /// Requests.
        count: u64,
        /// Half of them took no longer.
        p50_ns: u64,
        /// 99 of 100 took no longer.
        p99_ns: u64,
        /// The longest.
        max_ns: u64,
    }
}

runtime::choice! {
    /// Why a disk takes no writes for now. They are tried again, and go on by themselves.
    #[derive(Copy)]
    pub enum WriteObstacle {
        /// The host file system, or the quota in it, has no space for the file.
        1 Full {},
        /// The host file system is read-only.
        2 ReadOnly {},
    }
}

impl std::fmt::Display for WriteObstacle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Full {} => "full",
            Self::ReadOnly {} => "read-only",
        })
    }
}

runtime::choice! {
    /// Why block I/O could not do as asked, in terms of what the caller can do about it.
    #[derive(Copy, thiserror::Error)]
    pub enum Error {
        /// The request did not reach the disk node.
        #[error(transparent)]
        1 Undelivered {
            /// What happened.
            #[from]
            why: Undelivered,
        },
        /// Place or length is outside the disk: a bug of the caller, do not retry.
        #[error("bytes {offset}..+{length} of stripe {stripe} do not exist")]
        2 OutOfRange {
            /// The stripe asked for.
            stripe: u64,
            /// The first byte.
            offset: u32,
            /// How many bytes.
            length: u32,
        },
        /// The disk has failed for good; what it held must come from elsewhere.
        #[error("disk {disk} of the disk node has failed")]
        3 DiskFailed {
            /// The disk within its node.
            disk: u32,
        },
        /// What the disk returned is not what was written there.
        #[error("block {block} of stripe {stripe} is damaged: its checksum does not match")]
        4 Corrupt {
            /// The stripe.
            stripe: u64,
            /// The 4 KiB block within the stripe.
            block: u32,
        },
        /// The disk could not read there, the rest of it goes on; what was there must come from
        /// elsewhere.
        #[error("disk {disk} of the disk node cannot read at byte {offset}")]
        5 Unreadable {
            /// The disk within its node.
            disk: u32,
            /// The byte of the disk where the read began.
            offset: u64,
        },
        /// There is no such root slot: a bug of the caller, do not retry.
        #[error("slot {slot} of disk {disk} does not exist, or {length} bytes are not one slot")]
        6 NoSuchSlot {
            /// The disk.
            disk: u32,
            /// The slot.
            slot: u32,
            /// Bytes of the slot in the request.
            length: u64,
        },
        /// The server that took the writes has restarted since: what no flush covered may be gone.
        /// Write it again.
        #[error(
            "the node that took writes of stripe {stripe} has restarted since; \
             what was written and not flushed may be gone: write it again"
        )]
        7 LostWrites {
            /// A stripe written before.
            stripe: u64,
            /// The life of the server now.
            boot_id: u64,
        },
        /// The disk takes no writes for now: nothing was done. Reads go on. Ask again later.
        #[error("the host file system below disk n{disk_node}d{disk} is {why}")]
        8 Unwritable {
            /// The disk node.
            disk_node: u32,
            /// The disk within the node.
            disk: u32,
            /// What is in the way.
            why: WriteObstacle,
        },
        /// The volume was opened without this disk: what it held must come from elsewhere.
        #[error("disk n{disk_node}d{disk} is missing")]
        9 Missing {
            /// The disk node.
            disk_node: u32,
            /// The disk within the node.
            disk: u32,
        },
        /// The disk cannot become one of the volume, or cannot follow its record. The log of the
        /// disk node says why.
        #[error("disk n{disk_node}d{disk} cannot be made ready; the log of its server says why")]
        10 NotReady {
            /// The disk node.
            disk_node: u32,
            /// The disk within the node.
            disk: u32,
        },
        /// The record is not one of this volume, or not a later one.
        #[error("the disk node does not take this record of the volume")]
        11 BadRecord {},
    }
}

impl Error {
    /// The server was full: nothing was done, ask again later.
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Undelivered { why: Undelivered::Busy })
    }

    /// The disk takes no writes for now.
    pub fn is_unwritable(&self) -> bool {
        matches!(self, Self::Unwritable { .. })
    }

    /// The same request may succeed later. All requests of this layer and of the cache may be asked
    /// twice, even if it is unknown whether the first was done.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Undelivered { why } if why.is_transient())
    }
}
