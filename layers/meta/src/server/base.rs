//! What the components of one node are built on.

use std::rc::Rc;
use std::sync::Arc;

use blockio::volume_map::classes_of;
use blockio::{RedundancyClass, Stripes};
use runtime::{Context, RequestInfo as _};

use super::inode_cache::InodeCache;
use super::open_file_table::OpenFileTable;
use super::record_log::RecordLog;
use super::replies::ReplyTable;
use crate::hash::is_owner;
use crate::memory::MemoryShare;
use crate::protocol::{Error, Request};
use crate::shared_attrs::SharedAttrCache;
use crate::shared_attrs::publisher::Publisher;
use crate::store::{Store, StoreError};

/// The state of one node that most components use. Each takes what it needs when it is built.
pub(super) struct NodeBase {
    pub(super) context: Context,
    /// This node's index.
    pub(super) node: u32,
    pub(super) stripes: Rc<dyn Stripes>,
    pub(super) store: Rc<Store>,
    pub(super) share: Rc<MemoryShare>,
    pub(super) publisher: Rc<Publisher>,
    pub(super) records: Rc<RecordLog>,
    pub(super) inodes: Rc<InodeCache>,
    pub(super) replies: Rc<ReplyTable>,
    pub(super) open_files: Rc<OpenFileTable>,
}

impl NodeBase {
    /// How the content of a file survives the loss of disks.
    pub(super) async fn class_of(&self, ino: u64) -> Result<RedundancyClass, Error> {
        if !self.inodes.contains(ino) && classes_of(&self.stripes.map()).differ() {
            self.inodes.load(ino, 0).await?;
        }
        Ok(self.class_at_hand(ino))
    }

    /// The same of a file that is in memory.
    pub(super) fn class_at_hand(&self, ino: u64) -> RedundancyClass {
        let own = self.inodes.attributes(ino).and_then(|attributes| attributes.redundancy);
        own.unwrap_or_else(|| self.stripes.map().redundancy())
    }

    /// Do the keys of a request belong to this node? Another node knows nothing of them, and would
    /// change what is not there, or make a second one of it.
    pub(super) fn owns(&self, request: &Request) -> bool {
        let nodes = self.context.fs_nodes();
        match request {
            Request::ApplyIntent(intent) => {
                intent.effects.iter().all(|effect| effect.node(nodes) == self.node)
            }
            _ => is_owner(self.context.node(), request.route(), nodes),
        }
    }

    pub(super) async fn open(
        context: Context,
        node: u32,
        stripes: Rc<dyn Stripes>,
        store: Rc<Store>,
        share: Rc<MemoryShare>,
        shared_attrs: Option<Arc<SharedAttrCache>>,
    ) -> Result<Self, StoreError> {
        let open_files = Rc::<OpenFileTable>::default();
        let publisher = Rc::new(Publisher::new(&context, node, shared_attrs, share.clone()));
        let records =
            Rc::new(RecordLog::new(context.clone(), node, store.clone(), publisher.clone()));
        let inodes = InodeCache::open(
            context.clone(),
            node,
            store.clone(),
            share.clone(),
            publisher.clone(),
            open_files.clone(),
        );
        let inodes = Rc::new(inodes.await?);
        let replies = Rc::<ReplyTable>::default();
        Ok(Self {
            context,
            node,
            stripes,
            store,
            share,
            publisher,
            records,
            inodes,
            replies,
            open_files,
        })
    }
}
