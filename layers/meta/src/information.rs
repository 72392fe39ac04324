//! The file information cache as the file layer of the same node sees it (thesis section 2.5.2): a
//! read or write at the inode's node needs no message for attributes and map.
//!
//! There is no second copy: this is a look at the inodes in use of the node's metadata server, so
//! it can never be behind a write, a cut, a commit or a removal, and it is gone with the node.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use blockio::RedundancyClass;
use runtime::sync::KeyedLock;

use crate::active::ActiveInode;
use crate::attributes::{Attributes, Name};
use crate::keys;
use crate::move_pace::MovePace;
use crate::partition::PartitionNumber;
use crate::protocol::{Chunk, CommitMark, Dentry, PartitionUse};
use crate::server::partition_use::PartitionUses;
use crate::server::verifiers::WriteVerifiers;
use crate::shared_attrs::publisher::Publisher;

/// The inodes in use of one node, by their numbers.
pub(crate) type Inodes = Rc<RefCell<BTreeMap<u64, Box<ActiveInode>>>>;

/// Locks of files by inode number.
pub(crate) type FileLocks = KeyedLock<u64>;

/// What the metadata server of this node has in memory
/// ([`MetaServer::information`](crate::MetaServer::information)).
#[derive(Clone, Debug)]
pub struct FileInformation {
    inodes: Inodes,
    publisher: Rc<Publisher>,
    verifiers: Rc<WriteVerifiers>,
    file_locks: FileLocks,
    pace: Arc<MovePace>,
    uses: Rc<PartitionUses>,
}

/// One inode that is at hand.
#[derive(Debug)]
pub struct InodeView<'a>(&'a ActiveInode);

impl FileInformation {
    pub(crate) fn new(
        inodes: Inodes,
        publisher: Rc<Publisher>,
        verifiers: Rc<WriteVerifiers>,
        file_locks: FileLocks,
        pace: Arc<MovePace>,
        uses: Rc<PartitionUses>,
    ) -> Self {
        Self { inodes, publisher, verifiers, file_locks, pace, uses }
    }

    /// What moves between disks gives way to requests of the file layer, which are told here.
    pub fn pace(&self) -> &Arc<MovePace> {
        &self.pace
    }

    /// What a partition uses at this node, with what is not committed yet; not of partition 0.
    pub fn partition_use(&self, partition: PartitionNumber) -> PartitionUse {
        self.uses.get(partition)
    }

    /// The locks of the files: shared by reads and writes of a file; exclusive to cut, seal, free
    /// or move it.
    pub fn file_locks(&self) -> KeyedLock<u64> {
        self.file_locks.clone()
    }

    /// The write verifier of a file.
    pub fn write_verifier(&self, ino: u64) -> u64 {
        self.verifiers.get(ino)
    }

    /// Looks at an inode, unless it is not at hand or has another `generation`: then `None`, and
    /// the metadata server has to be called. `look` must not call it.
    pub fn look<T>(
        &self,
        ino: u64,
        generation: u64,
        look: impl FnOnce(InodeView<'_>) -> Option<T>,
    ) -> Option<T> {
        let inodes = self.inodes.borrow();
        let active = inodes.get(&ino)?;
        if active.inode.attributes.generation != generation {
            return None;
        }
        active.used.set(true);
        look(InodeView(active))
    }

    /// The attributes of an inode that is at hand.
    pub fn attributes(&self, ino: u64, generation: u64) -> Option<Attributes> {
        self.look(ino, generation, |known| Some(*known.attributes()))
    }

    /// The class that a file itself has, if it is at hand.
    pub fn class(&self, ino: u64) -> Option<Option<RedundancyClass>> {
        let inodes = self.inodes.borrow();
        inodes.get(&ino).map(|active| active.inode.attributes.redundancy)
    }

    /// Shows the attributes of an inode that is at hand to all threads of the process, from now on.
    pub fn show(&self, ino: u64) {
        if let Some(active) = self.inodes.borrow().get(&ino) {
            self.publisher.show(active);
        }
    }

    /// Shows what a name of this node names, as the metadata server has just said.
    pub fn show_name(&self, directory: u64, name: &Name, dentry: Dentry) {
        self.publisher.publish_name(&keys::name(directory, name), dentry);
    }

    /// The present state of chunks, if all of them are at hand. The caller holds them.
    pub fn chunks(&self, ino: u64, generation: u64, indices: Range<u64>) -> Option<Vec<Chunk>> {
        self.look(ino, generation, |known| {
            indices.map(|index| known.chunk(index).cloned()).collect()
        })
    }
}

impl InodeView<'_> {
    /// What clients see of it.
    pub fn attributes(&self) -> &Attributes {
        &self.0.inode.attributes
    }

    /// The changes that its record covers.
    pub fn committed(&self) -> &CommitMark {
        &self.0.stored.committed
    }

    /// The changes that are in its content as clients see it.
    pub fn installed(&self) -> &CommitMark {
        &self.0.installed
    }

    /// The number of the last change that had been installed when it was sealed last.
    pub fn sealed_sequence(&self) -> u64 {
        self.0.sealed_state.mark.sequence
    }

    /// Changes up to this number are durable, as far as that is known.
    pub fn durable_sequence(&self) -> u64 {
        self.0.durable_sequence
    }

    /// Chunks with changes that no record names yet.
    pub fn uncommitted(&self) -> usize {
        self.0.uncommitted()
    }

    /// Appends that no record names yet.
    pub fn appends(&self) -> usize {
        self.0.appends.len()
    }

    /// The present state of a chunk, if it is at hand.
    pub fn chunk(&self, index: u64) -> Option<&Chunk> {
        self.0.chunk(index)
    }
}
