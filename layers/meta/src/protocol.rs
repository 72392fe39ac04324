//! The requests to the metadata of one node, and the replies.
//!
//! Most requests come from the file layer of the same node: then they are direct calls.
//!
//! Fields of one name mean the same in every row:
//!
//! - `ino`, `generation`: an inode and its incarnation. `directory`, `name`: a name in a directory.
//! - `lock`: the number of a remote lock of the caller.
//! - `call`: the call for which it is done; that it was is stored with it ([`FindReply`]).
//! - `durable`: durable when answered.
//! - `after`: the dependencies of the change, which is durable no earlier.

use runtime::protocol::Undelivered;

pub use crate::attributes::{
    Attributes, Kind, Name, RedundancyClass, Time, WccAttr, WriteResult, XattrMode, XattrName,
};
pub use crate::chunk_types::{
    BlockRun, Chunk, ChunkPage, ChunkUpdate, IndexedChunk, MIRRORS_MAX, Mirrors, PlacedWideStripe,
    RunForm, StripeShard, WideStripe,
};
pub use crate::disk_types::{DiskScrub, DiskShare, NodeMoves};
pub use crate::marks::{CommitMark, EPOCH_SHIFT, GAPS_MAX, SequenceGap};
pub use crate::operations::{
    AppliedIntent, CallId, CallOutcome, CommitDependency, IntentId, ScrubFlaw, ScrubPart,
    StoredReply,
};
pub use blockio::geometry::{Near, Run};
pub use blockio::protocol::{Unsynced, WriteObstacle};

/// Entries that one [`ScanNames`] returns, at most (plus those of equal hash): one directory page
/// and 1.
pub const SCAN_MAX: u32 = 4097;

/// Chunks that one [`FindChunks`] returns, at most.
pub const FOUND_MAX: u32 = 64;

runtime::record! {
    /// What a name names.
    #[derive(Copy, PartialOrd, Ord, Hash)]
    pub struct Dentry {
        /// The inode.
        ino: u64,
        /// Its incarnation.
        generation: u64,
        /// What it is.
        kind: Kind,
    }
}

runtime::record! {
    /// An append that is done, for a copy of it that may come after a crash.
    #[derive(Copy)]
    pub struct AppendRecord {
        /// The call.
        call: CallId,
        /// Where in the file it begins.
        offset: u64,
        /// The client waits for the answer to no append with a lower number.
        acknowledged: u64,
    }
}

runtime::record! {
    /// One inode with all that it holds.
    pub struct Inode {
        /// What clients see of it.
        attributes: Attributes,
        /// The directory above, for directories; else 0.
        parent: u64,
        /// The verifier of an exclusive create.
        verifier: Option<u64>,
        /// The target of a symbolic link, else empty.
        target: Vec<u8>,
        /// The changes of its content that this record covers.
        committed: CommitMark,
    }
}

runtime::record! {
    /// An inode to be made.
    pub struct NewInode {
        /// What it is.
        kind: Kind,
        /// Permission bits.
        mode: u32,
        /// Owner.
        uid: u32,
        /// Group.
        gid: u32,
        /// Device numbers.
        major: u32,
        /// Device numbers.
        minor: u32,
        /// Birth, and the first of the other times unless these are given.
        time: Time,
        /// Last read.
        atime: Option<Time>,
        /// Last change.
        mtime: Option<Time>,
        /// The verifier of an exclusive create.
        verifier: Option<u64>,
        /// The target of a symbolic link, else empty.
        target: Vec<u8>,
        /// Bytes of a file: all of them are a hole.
        size: u64,
        /// The partition to which it belongs.
        partition: u16,
        /// See [`Attributes::redundancy`].
        redundancy: Option<RedundancyClass>,
    }
}

runtime::record! {
    /// New values for parts of an inode; what is `None` or zero stays.
    #[derive(Copy, Default)]
    pub struct InodeChange {
        /// Permission bits.
        mode: Option<u32>,
        /// Owner.
        uid: Option<u32>,
        /// Group.
        gid: Option<u32>,
        /// Last read.
        atime: Option<Time>,
        /// Last change of the content.
        mtime: Option<Time>,
        /// Last change of all.
        ctime: Option<Time>,
        /// Added to the number of links.
        links: i64,
        /// The directory above.
        parent: Option<u64>,
    }
}

runtime::choice! {
    /// A change of one name or one inode, as a part of an operation that may touch several nodes.
    pub enum Effect {
        /// The name names something else from now on, or nothing.
        1 SetName {
            /// The directory.
            directory: u64,
            /// The name.
            name: Name,
            /// What it names until now.
            expect: Option<Dentry>,
            /// What it shall name.
            set: Option<Dentry>,
        },
        /// One name of an inode is gone. With the last one, or if it is a directory, the inode is
        /// gone too, and its blocks wait for [`Trim`]; an open file stays until it is closed.
        2 DropLink {
            /// The inode.
            ino: u64,
            /// Its incarnation.
            generation: u64,
            /// When.
            time: Time,
        },
        /// Parts of an inode change.
        3 ChangeParts {
            /// The inode.
            ino: u64,
            /// Its incarnation.
            generation: u64,
            /// What changes.
            change: InodeChange,
        },
    }
}

runtime::record! {
    /// A name that was locked.
    #[derive(Copy)]
    pub struct LockedName {
        /// What it names.
        dentry: Option<Dentry>,
        /// Its last change, which the change for which it was locked must not precede.
        changed: CommitDependency,
    }
}

runtime::record! {
    /// One name of a directory, at this node.
    pub struct NameEntry {
        /// The order of the scan: the upper 51 bits of the name's hash.
        position: u64,
        /// The name.
        name: Name,
        /// What it names.
        dentry: Dentry,
        /// Its attributes, if asked for and its inode is at this node.
        attributes: Option<Box<Attributes>>,
    }
}

runtime::record! {
    /// A directory, and where its names may be.
    pub struct Occupancy {
        /// The directory.
        inode: Inode,
        /// Nodes that may hold names of it; `None` if that is not known (after a restart).
        nodes: Option<Vec<u32>>,
    }
}

runtime::record! {
    /// A logical block that no map names yet, and whose content is in the cache.
    pub struct NewBlock {
        /// The number of its first block on the logical disk; it was [allocated](Allocate).
        block: u64,
        /// Its further copies.
        mirrors: Mirrors,
        /// The CRC-32C of its content.
        checksum: u32,
        /// Where the content is, and the life in which it was put there: one for each copy.
        written: Vec<Unsynced>,
    }
}

runtime::record! {
    /// Space of one node.
    #[derive(Copy, Default)]
    pub struct NodeSpace {
        /// Blocks in the groups of this node.
        total_blocks: u64,
        /// Of these, blocks that files of this node can allocate.
        free_blocks: u64,
        /// Of these, blocks that this node would give to others.
        spare_blocks: u64,
        /// Inodes in existence at this node.
        inodes: u64,
    }
}

runtime::record! {
    /// What a partition uses at one node.
    #[derive(Copy, Default)]
    pub struct PartitionUse {
        /// Bytes of the blocks of its files.
        bytes: u64,
        /// Its inodes.
        inodes: u64,
    }
}

runtime::choice! {
    /// How much a node needs allocation groups of others.
    #[derive(Copy)]
    pub enum GroupUrgency {
        /// It has some space still: a giver keeps twice what it needs itself.
        1 Ahead {},
        /// It has none.
        2 Needed {},
        /// It has none, and no other node has a free group: one that can empties some.
        3 Last {},
    }
}

runtime::protocol! {
    /// Metadata of one node: the inodes with `ino mod nodes`, the names of its hashes, space.
    Meta id 3 version 9;

    /// Names of this directory are about to change at `node`; until [`UnlockDirShared`] it will not
    /// be removed. Returns it, and the record that made it.
    1 Control LockDirShared {
        directory: u64,
        generation: u64,
        /// Where the names are.
        node: u32,
        lock: u64,
    } -> (Inode, CommitDependency), by inode(directory), retry never, from servers, after recovery;

    /// The change announced by [`LockDirShared`] is done, or was not made.
    2 Control UnlockDirShared {
        directory: u64,
        /// When names changed; `None` if none did, or the directory knows.
        time: Option<Time>,
        /// Where they are.
        node: u32,
        lock: u64,
    } -> (), by inode(directory), retry never, from servers, after recovery;

    /// One inode.
    3 Control GetInode {
        ino: u64,
        /// Its incarnation; 0 for any.
        generation: u64,
    } -> Inode, by inode(ino), retry idempotent, from servers, after recovery;

    /// Change one inode.
    4 Control ChangeInode {
        ino: u64,
        generation: u64,
        change: InodeChange,
        /// How its content is to survive the loss of disks; if that stays, `None`.
        redundancy: Option<RedundancyClass>,
        /// Only if its ctime is this.
        only_if_ctime: Option<Time>,
        durable: bool,
    } -> Attributes, by inode(ino), retry never, from servers, after recovery;

    /// Look a name up, at its node.
    5 Control FindName { directory: u64, name: Name } -> Option<Dentry>,
        by name(directory, name), retry idempotent, from servers, after recovery;

    /// Names of a directory at this node, in the order of their positions.
    6 Control ScanNames {
        directory: u64,
        /// After this position; `None` for the start.
        after: Option<u64>,
        /// How many, at most [`SCAN_MAX`]; names of equal position are never separated.
        count_max: u32,
        /// With attributes, of inodes that are at this node.
        attributes: bool,
    } -> Vec<NameEntry>, by caller, retry idempotent, from servers, after recovery;

    /// Make an inode and its first name, both at this node, and do what belongs to it, at any node:
    /// all or nothing, as [`Execute`] does.
    7 Control AddFile {
        directory: u64,
        name: Name,
        inode: NewInode,
        /// What else is to be done.
        effects: Vec<Effect>,
        /// The epoch in which the caller began ([`Execute`]).
        since: u64,
        /// Durable when answered; always if an effect is at a node that may outlive this one.
        durable: bool,
        call: CallId,
        after: Vec<CommitDependency>,
    } -> Attributes, by name(directory, name), retry never, from servers, after recovery;

    /// Do all of these, at any nodes, or nothing, also over a crash. One record of this node
    /// decides it: it holds the effects here and, as an intent, the others. Names at other nodes
    /// must be locked. Returns inodes that are gone, at any node. After [`Undelivered::Lost`] it
    /// will be done, or was not decided: the locks stay.
    8 Control Execute {
        effects: Vec<Effect>,
        /// The caller has locked the names of this node too; they are unlocked when all is done.
        claimed: bool,
        /// The epoch in which the caller began, and took its locks. In
        /// another epoch a node may have forgotten that, and the answer is busy.
        since: u64,
        /// Durable when answered; always if an effect is at a node that may outlive this one.
        durable: bool,
        call: CallId,
        after: Vec<CommitDependency>,
    } -> Vec<u64>, by caller, retry never, from servers, after recovery;

    /// Apply an intent of another node, once. Its names are unlocked afterwards.
    9 Bulk ApplyIntent {
        intent: IntentId,
        /// All of its effects at this node.
        effects: Vec<Effect>,
        durable: bool,
        /// The LSN of the record that decided it, if that is not durable yet, else 0: what is done
        /// here is durable no earlier.
        position: u64,
    } -> AppliedIntent, by caller, retry idempotent, from servers, during recovery;

    /// Free the blocks of an inode that is gone. No reads of them may be in flight.
    10 Control Trim { ino: u64 } -> (), by inode(ino), retry never, from servers, after recovery;

    /// Stop changes of a directory's names, wait for those under way, tell where names may be.
    11 Control LockDirExclusive { directory: u64, generation: u64, lock: u64 } -> Occupancy,
        by inode(directory), retry never, from servers, after recovery;

    /// Let changes go on: the directory was not removed.
    12 Control UnlockDirExclusive { directory: u64, lock: u64 } -> (),
        by inode(directory), retry idempotent, from servers, during recovery;

    /// Are there names of this directory at this node? If not, there are none after a crash either
    /// that finds a record which depends on this answer, on the last removal (returned).
    13 Control HasNames { directory: u64 } -> (bool, CommitDependency),
        by caller, retry idempotent, from servers, after recovery;

    /// A directory, and where its names may be.
    14 Control GetOccupancy { directory: u64, generation: u64 } -> Occupancy,
        by inode(directory), retry idempotent, from servers, after recovery;

    /// These nodes were found to hold names of the directory.
    15 Control SetOccupancy {
        directory: u64,
        /// All nodes that answered yes to [`HasNames`].
        nodes: Vec<u32>,
    } -> (), by inode(directory), retry never, from servers, after recovery;

    /// Where the chunks of a file are: as many as asked for.
    16 Bulk Map {
        ino: u64,
        generation: u64,
        /// The first chunk.
        first: u64,
        /// How many chunks.
        count: u32,
    } -> Vec<Chunk>, by inode(ino), retry idempotent, from servers, after recovery;

    /// Reserve blocks at this node.
    17 Bulk Allocate {
        /// How many.
        blocks: u32,
        /// Each run has whole logical blocks of this number of blocks, at multiples of their size.
        unit: u32,
        /// For a change that frees space: on a full volume a few may come from the reserve.
        from_reserve: bool,
        /// Where they had best be.
        near: Near,
    } -> Vec<Run>, by caller, retry never, from servers, after recovery;

    /// Reserve blocks for further copies of blocks that are reserved already, each on another disk
    /// than the others: on another disk node, if there are enough of them.
    59 Bulk AllocateMirrors {
        /// Where the copies are that the blocks have already, in the order of the blocks.
        copies: Vec<Vec<Run>>,
        /// See [`Allocate::unit`].
        unit: u32,
        /// How many further copies, at most [`MIRRORS_MAX`].
        mirrors: u32,
        /// See [`Allocate::from_reserve`].
        from_reserve: bool,
        /// Where the first had best be, and the next ones in the failure domains after that.
        near: Near,
    } -> Vec<Vec<Run>>, by caller, retry never, from servers, after recovery;

    /// Give reserved blocks back that were never installed.
    18 Control Release { runs: Vec<Run> } -> (),
        by caller, retry never, from servers, during recovery;

    /// New chunks of a file, whose content is in the cache. Seen by readers at once, durable with
    /// the next [`Commit`].
    19 Control Install {
        ino: u64,
        updates: Vec<ChunkUpdate>,
        /// The file is at least this long now.
        size_min: u64,
        /// mtime and ctime.
        time: Time,
        /// Clear setuid and setgid: the writer is not root.
        drop_setid: bool,
        /// The number of this change, higher than those of all earlier ones of the file, and what
        /// is missing of earlier ones.
        mark: CommitMark,
        /// The append that this is.
        append: Option<AppendRecord>,
    } -> WriteResult, by inode(ino), retry never, from servers, after recovery;

    /// Nothing installed so far will be rewritten in place any more. No writes may be in flight.
    20 Control Seal { ino: u64 } -> (),
        by inode(ino), retry idempotent, from servers, after recovery;

    /// Make all that was sealed durable: data first, then the record that names it. If some of it
    /// is lost nothing is committed until [`RollBack`].
    21 Bulk Commit { ino: u64 } -> WriteResult,
        by inode(ino), retry idempotent, from servers, after recovery;

    /// Set the size; cuts whole blocks off. No reads or writes may be in flight.
    22 Control Truncate {
        ino: u64,
        generation: u64,
        size: u64,
        /// mtime and ctime.
        time: Time,
        durable: bool,
        /// Takes the place of the last logical block, in the record of the cut: its content up to
        /// the size, then zeros. Not needed if what is cut off within it is zeros already.
        last: Option<NewBlock>,
        /// As in [`Install`]. All changes before a cut are recorded with it.
        mark: CommitMark,
    } -> Attributes, by inode(ino), retry never, from servers, after recovery;

    /// Files that have waited for a [`Commit`] for this long, or hold this many chunks.
    23 Control GetDirty {
        /// Milliseconds since the first uncommitted change.
        age_ms: u64,
    } -> Vec<u64>, by caller, retry idempotent, from servers, after recovery;

    /// Give whole free allocation groups to a node that ran out of space, or return those that were
    /// offered to it already.
    24 Control RequestGroups {
        /// The node that will own them.
        to: u32,
        /// How many, at most; with 0 only those that were offered already.
        count: u32,
        /// How much it needs them.
        urgency: GroupUrgency,
        /// Only groups of this disk set; of any without it.
        set: Option<u32>,
    } -> Vec<u64>, by caller, retry never, from servers, during recovery;

    /// The groups have arrived in the receiver's log.
    25 Control AckGroups {
        /// The node that has them now.
        to: u32,
        groups: Vec<u64>,
    } -> (), by caller, retry idempotent, from servers, during recovery;

    /// Space of this node.
    26 Control GetSpace {
        /// What is to be had in logical blocks of this number of blocks.
        unit: u32,
    } -> NodeSpace, by caller, retry idempotent, from servers, after recovery;

    /// Lock renames of directories into other directories: one at a time. At the root's node.
    27 Control LockRename { lock: u64 } -> (), by caller, retry never, from servers, after recovery;

    /// Unlock renames. Nothing happens if another lock is held: a node that restarts forgets whose
    /// it was.
    28 Control UnlockRename { lock: u64 } -> (),
        by caller, retry idempotent, from servers, during recovery;

    /// Make all records durable and the log short.
    29 Bulk Flush {} -> (), by caller, retry idempotent, from servers, after recovery;

    /// Lock a name against changes by others, until [`UnlockName`] or the effect for which it was
    /// locked. Returns what it names, also after a crash that finds a record which depends on this
    /// answer; busy if it is locked.
    30 Control LockName { directory: u64, name: Name, lock: u64 } -> LockedName,
        by name(directory, name), retry never, from servers, after recovery;

    /// The change was not made.
    31 Control UnlockName { directory: u64, name: Name, lock: u64 } -> (),
        by name(directory, name), retry idempotent, from servers, during recovery;

    /// Make all effects durable that `node` has sent. It will not send intents below a number
    /// again. Returns the boot ID: what was applied with an earlier one may be lost.
    32 Control FlushApplied {
        /// The node that decided them.
        node: u32,
        /// Its intents below this number are retired.
        below: u64,
    } -> u64, by caller, retry idempotent, from servers, during recovery;

    /// At a mount, after all nodes have replayed their logs: apply the intents of this node.
    33 Bulk FinishIntents {} -> (), by caller, retry never, from servers, during recovery;

    /// At a mount, after all nodes have finished their intents: forget what was applied for them,
    /// and free what is gone.
    34 Bulk EndRecovery {} -> (), by caller, retry never, from servers, during recovery;

    /// Inodes that are gone and wait for [`Trim`].
    35 Control ListUntrimmed {} -> Vec<u64>,
        by caller, retry idempotent, from servers, after recovery;

    // 36 is dead: it counted what a node holds.

    /// After [`Error::LostWrites`]: the file is as last committed, and its write verifier is
    /// another one. Nothing changes if nothing was lost. No reads or writes may be in flight.
    37 Control RollBack { ino: u64 } -> (),
        by inode(ino), retry never, from servers, after recovery;

    /// The write verifier of a file.
    38 Control GetVerifier { ino: u64 } -> u64,
        by inode(ino), retry idempotent, from servers, after recovery;

    /// What came of a call, if this node has decided it and still keeps the reply. By then its
    /// effects are seen everywhere; [`Undelivered::Lost`] if they are not yet.
    39 Control FindReply { call: CallId, durable: bool } -> Option<CallOutcome>,
        by caller, retry idempotent, from servers, after recovery;

    /// The next chunks of a file that have blocks, with what is not committed yet.
    40 Bulk FindChunks {
        ino: u64,
        generation: u64,
        /// The first chunk.
        first: u64,
        /// How many chunks, at most [`FOUND_MAX`].
        count_max: u32,
    } -> ChunkPage, by inode(ino), retry idempotent, from servers, after recovery;

    /// The wide stripe that a chunk is in, if it is in one, and the first chunk of that.
    61 Bulk FindWideStripe { ino: u64, index: u64 } -> Option<PlacedWideStripe>,
        by inode(ino), retry idempotent, from servers, after recovery;

    /// The value of an extended attribute.
    41 Bulk GetXattr { ino: u64, generation: u64, name: XattrName } -> Vec<u8>,
        by inode(ino), retry idempotent, from servers, after recovery;

    /// Set or remove an extended attribute.
    42 Bulk ChangeXattr {
        ino: u64,
        generation: u64,
        name: XattrName,
        /// The value; `None` removes it.
        value: Option<Vec<u8>>,
        /// What must be there before.
        mode: XattrMode,
        /// ctime.
        time: Time,
        durable: bool,
        call: CallId,
    } -> Attributes, by inode(ino), retry never, from servers, after recovery;

    /// The names of all extended attributes, in order.
    43 Bulk ListXattrs { ino: u64, generation: u64 } -> Vec<XattrName>,
        by inode(ino), retry idempotent, from servers, after recovery;

    /// A file is open: until [`CloseHandle`] it outlives its last name. Forgotten when the node
    /// restarts; that something was held is not. What is no regular file is not kept.
    44 Control OpenHandle { ino: u64, generation: u64 } -> Inode,
        by inode(ino), retry never, from servers, after recovery;

    /// The file is not open any more. True if it had no name: then it waits for [`Trim`].
    45 Control CloseHandle { ino: u64 } -> bool,
        by inode(ino), retry never, from servers, after recovery;

    /// Files with numbers below this may be held by those whom the node knew before it started:
    /// they outlive their last names until [`EndGrace`]. Zero if there are none.
    46 Control GraceBelow {} -> u64, by caller, retry idempotent, from servers, after recovery;

    /// Clients that had files open before the node started have reclaimed them, or their time is
    /// over. Returns files that are removed because they are not open. Idempotent.
    47 Bulk EndGrace {} -> Vec<u64>, by caller, retry never, from servers, after recovery;

    /// In place of [`FinishIntents`] and [`EndRecovery`], at a node that has come back while others
    /// stayed up: apply its intents, and let all others send theirs for it.
    48 Bulk Rejoin {} -> (), by caller, retry never, from servers, during recovery;

    /// `node` has restarted alone, and calls in a new epoch. Locks that it took here before are
    /// void. When this is answered it has been sent again what it may have lost of names.
    49 Bulk NodeRestarted {
        node: u32,
        /// The remote locks that it took before have numbers below this.
        below: u64,
    } -> (), by caller, retry never, from servers, during recovery;

    /// Files of this node may be delegated (ADR 101), which a later start finds; or none is any
    /// more. What is said last counts.
    71 Control NoteDelegations { may_be: bool } -> (),
        by caller, retry idempotent, from servers, after recovery;

    /// Files with numbers below this may have been delegated before the node started. Zero if none
    /// was.
    72 Control DelegatedBelow {} -> u64,
        by caller, retry idempotent, from servers, after recovery;

    /// At the end of a clean stop, after [`Flush`]: one root more, so that a disk which is put back
    /// from before the last one is known to be old.
    50 Bulk FinalCheckpoint {} -> (), by caller, retry never, from servers, after recovery;

    /// Make this node's records durable up to a place in their order. Returns how far they are.
    51 Control FlushTo {
        /// The place, as in [`CommitDependency`]; a place to come stands for all that there is.
        position: u64,
    } -> u64, by caller, retry idempotent, from servers, during recovery;

    /// Make all changes of a directory's names at this node durable, removals too.
    52 Control FlushNames { directory: u64 } -> (),
        by caller, retry idempotent, from servers, after recovery;

    /// Make all changes of a directory's names durable, at all nodes. At the directory's node.
    53 Control SyncNames { directory: u64, generation: u64 } -> (),
        by inode(directory), retry idempotent, from servers, after recovery;

    /// A reply was lost: of all remote locks with numbers below one, the caller holds only these
    /// here, and will hold no others. The rest is void.
    54 Control ReleaseOrphanedLocks {
        /// Above all numbers that the caller has given so far.
        below: u64,
        /// What it has.
        keep: Vec<u64>,
    } -> (), by caller, retry idempotent, from servers, during recovery;

    /// Wait until another node has applied all that this one has decided so far; `Lost` if that
    /// takes long.
    55 Bulk WaitForIntents { node: u32 } -> (),
        by caller, retry idempotent, from servers, during recovery;

    /// A node has given groups to this one ([`RequestGroups`]) that may not have arrived: they have
    /// no owner until then.
    56 Control ConfirmGroups {
        /// That node.
        donor: u32,
    } -> (), by caller, retry never, from servers, after recovery;

    /// Follow a record of the volume that all disk nodes follow: take over the groups that are born
    /// here of sets that are new, durably; move what is on disks that are being drained.
    57 Bulk AdoptRecord {
        /// An encoded `VolumeRecord`.
        record: Vec<u8>,
    } -> (), by caller, retry idempotent, from servers, after recovery;

    /// What this node has on each disk, and what it moves.
    58 Control GetMoves {} -> NodeMoves, by caller, retry idempotent, from servers, after recovery;

    /// Could this node do without a disk that has failed? All its metadata must have a copy on
    /// another one. Its log says why it could not.
    60 Control CheckLoss {
        /// The disk node.
        disk_node: u32,
        /// The disk within its node.
        disk: u32,
    } -> bool, by caller, retry idempotent, from servers, after recovery;

    /// A block of a chunk was bad where it is, and was read from elsewhere: compare the chunk with
    /// its checksums, and make anew what is bad, in the background.
    62 Control HealChunk {
        /// The file.
        ino: u64,
        /// The chunk.
        index: u64,
    } -> (), by caller, retry idempotent, from servers, after recovery;

    /// Compare a part of what this node has on the disks with its checksums.
    70 Bulk Scrub {
        /// Where to go on ([`ScrubPart::next`]); empty for the start.
        after: Vec<u8>,
        /// The data of files, too.
        data: bool,
        /// Write anew what has a good copy.
        repair: bool,
    } -> ScrubPart, by caller, retry idempotent, from servers, after recovery;
}

runtime::choice! {
    /// Why metadata could not do as asked.
    #[derive(Copy, thiserror::Error)]
    pub enum Error {
        /// The request did not reach the node.
        #[error(transparent)]
        1 Undelivered {
            /// What happened.
            #[from]
            why: Undelivered,
        },
        /// The inode does not exist any more.
        #[error("the inode does not exist any more")]
        2 Stale {},
        /// The name is taken.
        #[error("the name exists already")]
        3 Exists {},
        /// What the caller expected is not so any more: look up again.
        #[error("changed by another request meanwhile")]
        4 Changed {},
        /// The inode is no directory.
        #[error("not a directory")]
        5 NotDirectory {},
        /// No space on the whole volume.
        #[error("no space left on the volume")]
        6 NoSpace {},
        /// Stored metadata is damaged, or its disk failed.
        #[error("stored metadata cannot be read: damaged, or its disk failed")]
        7 Damaged {},
        /// A value too large to be stored.
        #[error("too large to be stored")]
        8 TooLarge {},
        /// Content that was not committed yet is lost: a node that had it has restarted.
        #[error("a node restarted: what was written and not committed is lost, write it again")]
        9 LostWrites {},
        /// The inode has no extended attribute of this name.
        #[error("no such extended attribute")]
        10 NoXattr {},
        /// A disk takes no writes for now: nothing was changed. Reads go on.
        #[error("the host file system below disk n{disk_node}d{disk} is {why}")]
        11 Unwritable {
            /// The disk node.
            disk_node: u32,
            /// The disk within the node.
            disk: u32,
            /// What is in the way.
            why: WriteObstacle,
        },
        /// The volume was opened to be read: nothing was changed.
        #[error("the volume is only read")]
        12 ReadOnly {},
        /// It is on a disk that is missing.
        #[error("disk n{disk_node}d{disk} is missing")]
        13 Missing {
            /// The disk node.
            disk_node: u32,
            /// The disk within the node.
            disk: u32,
        },
    }
}

impl Error {
    /// A disk takes no writes for now.
    pub fn is_unwritable(&self) -> bool {
        matches!(self, Self::Unwritable { .. })
    }

    /// Nothing was done, the node may answer later.
    pub fn not_applied(&self) -> bool {
        match self {
            Self::Undelivered { why } => why.not_applied(),
            Self::Unwritable { .. } => true,
            _ => false,
        }
    }
}
