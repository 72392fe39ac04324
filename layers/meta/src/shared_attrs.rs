//! Names and attributes that the nodes of a process publish to all its threads (ADR 59).
//!
//! The state of a node belongs to its thread, and another thread has to send a message to read it,
//! which costs two wake-ups. By far the most frequent requests are lookups and attributes. So a
//! node publishes a copy of what was requested to the cache of its process, and changes or
//! invalidates the copy in the same step in which it changes the original: before any caller can
//! learn of the change. A reader of the cache sees what the node would have answered at that
//! moment.
//!
//! Only the node writes. It never waits for memory or for a reader in order to publish, and readers
//! never wait: a reader that does not get the lock immediately sends a message.

#[cfg(feature = "server")]
pub(crate) mod publisher;

use std::sync::{Arc, RwLock};

use runtime::{Table, ValidityToken};

use crate::attributes::{Attributes, Name};
use crate::hash::{ino_node, name_key, name_node};
use crate::protocol::Dentry;

/// The cache of a process.
#[derive(Debug)]
pub struct SharedAttrCache {
    /// By node.
    shards: Box<[RwLock<Shard>]>,
}

/// What one node shows.
#[derive(Debug, Default)]
struct Shard {
    /// The life of the node that shows it; none if that is over.
    boot_id: Option<Arc<ValidityToken>>,
    attributes: Table<u64, Attributes>,
    /// By the keys of names in the store.
    names: Table<Box<[u8]>, Dentry>,
}

impl SharedAttrCache {
    /// An empty one, for the nodes of a volume.
    pub fn new(nodes: u32) -> Self {
        Self { shards: (0..nodes).map(|_| RwLock::default()).collect() }
    }

    /// The present attributes of an inode, if they are shown.
    pub fn attributes(&self, ino: u64, generation: u64) -> Option<Attributes> {
        let node = ino_node(ino, self.shards.len() as u32).0;
        let shown = self.look(node, |shard| shard.attributes.get(&ino).copied())?;
        (shown.generation == generation).then_some(shown)
    }

    /// What a name names now, if that is shown.
    pub fn dentry(&self, directory: u64, name: &Name) -> Option<Dentry> {
        let node = name_node(directory, name, self.shards.len() as u32).0;
        self.look(node, |shard| shard.names.get(&name_key(directory, name)[..]).copied())
    }

    fn look<T>(&self, node: u32, look: impl FnOnce(&Shard) -> Option<T>) -> Option<T> {
        let shard = self.shards.get(node as usize)?.try_read().ok()?;
        let seen = look(&shard)?;
        // After the look: the process may have stood still before it.
        shard.boot_id.as_ref()?.holds().then_some(seen)
    }
}
