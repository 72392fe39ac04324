//! Why the store could not do as asked, in terms of what the caller can do about it.

use blockio::DiskName;
use blockio::protocol::Error as DiskError;

/// What the store returns.
pub type StoreResult<T> = Result<T, StoreError>;

/// Why the store could not do as asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// No disk holds a root of this node: the volume was never formatted, or its disks are wrong.
    #[error("no root record of this node was found: is the volume formatted?")]
    NoRoot,
    /// There is a root of this node, which names all that it has: it is not formatted again.
    /// Nothing was changed; mount it.
    #[error("the node has metadata on the disks already; it is mounted, not formatted again")]
    Formatted,
    /// The disks belong to another volume.
    #[error("the root records found belong to another volume")]
    ForeignVolume,
    /// A newer program wrote the volume; use that one.
    #[error("the volume has format version {version}, this program knows versions up to {known}")]
    FutureVersion {
        /// What the disk says.
        version: u16,
        /// What this program can read.
        known: u16,
    },
    /// The node was opened elsewhere in a later epoch: this host must not touch it any more.
    #[error("the node was opened in epoch {epoch}, which is later than ours")]
    Fenced {
        /// The epoch of the newest root.
        epoch: u64,
    },
    /// A disk lacks what was durable on it: it was put back from an older image, or it has answered
    /// writes and not done them. Nothing was changed.
    #[error(
        "disk {disk} is an older image of itself, or has lost writes: {what} are missing there that were durable; put its newest copy back"
    )]
    Outdated {
        /// The disk.
        disk: DiskName,
        /// What is missing.
        what: &'static str,
    },
    /// A checksum or an identity does not match, and no copy helps. Nothing was changed.
    #[error("{what} at block {block} is damaged")]
    Damaged {
        /// Which structure.
        what: &'static str,
        /// The first block of the damaged piece.
        block: u64,
    },
    /// The logical disk refused a read; the store itself goes on.
    #[error("the logical disk: {0}")]
    Disk(#[from] DiskError),
    /// A write or a sync went wrong: what was not yet durable is unknown, nothing is accepted any
    /// more. Mount the store again.
    #[error("the store has stopped ({0}); mount it again")]
    Failed(DiskError),
    /// Another node cannot make durable what records here depend on: nothing is accepted any more.
    /// Mount both again.
    #[error("the store of node {node}, on which this one depends, has stopped; mount both again")]
    DependencyStopped {
        /// The other node.
        node: u32,
    },
    /// The store was mounted to be read: nothing was changed.
    #[error("the metadata is only read")]
    ReadOnly,
    /// The log or the space must first be cleaned up, which has been started. Nothing was done;
    /// retry later.
    #[error("the store is busy with a checkpoint, nothing was done; retry later")]
    Busy,
    /// No block is free beyond the reserve; deletes still work.
    #[error("no space left in the allocation groups of this node")]
    NoSpace,
    /// The batch has more bytes than one log record may have; nothing was done.
    #[error("a batch of {length} bytes is too large, the limit is {limit}")]
    TooLarge {
        /// Its length in bytes.
        length: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// A bug of the caller, nothing was done.
    #[error("the batch is wrong: {0}")]
    BadBatch(&'static str),
    /// The node's share of the volume cannot hold a log and a checkpoint.
    #[error("the share of a node is {stripes} stripes, it needs {needed}")]
    TooSmall {
        /// Stripes it would own.
        stripes: u64,
        /// Stripes it needs.
        needed: u64,
    },
}

impl StoreError {
    /// The store was overloaded: nothing was done, retry later.
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Busy) || matches!(self, Self::Disk(error) if error.is_busy())
    }
}
