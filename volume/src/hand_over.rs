//! A file-system node moves to another process by plan, or a disk node ends in order and comes
//! back, and no client sees a loss (ADR 49, 46).
//!
//! The old process closes the layers of the node from above: files, metadata, cache. Each ends what
//! it has let in and makes durable what it has answered. What others need to end theirs is let in
//! until then, so that nodes which move at the same time never wait for each other in a circle:
//! files wait for any layer of others, metadata for metadata that still lets such requests in,
//! caches for disk nodes only.

use std::rc::Rc;

use cache::HandedBootId;
use fileio::protocol::{Error, Flush};
use fileio::{FileServer, FilesHandover};
use meta::{MetaHandover, MetaServer};
use runtime::Context;
use runtime::protocol::Undelivered;

runtime::record! {
    /// What the layers of a node tell those that take their place.
    #[derive(Default)]
    pub struct NodeHandover {
        /// Files.
        files: FilesHandover,
        /// Metadata.
        meta: MetaHandover,
        /// Cache.
        cache: Vec<HandedBootId>,
        /// The life of a disk node.
        disks: Option<u64>,
    }
}

impl NodeHandover {
    /// Without who has files open, where that is too much to tell: they are waited for, as after a
    /// crash.
    #[must_use]
    pub fn without_holders(&self) -> Self {
        let meta = MetaHandover { held: Vec::new(), grace_below: u64::MAX, ..self.meta.clone() };
        Self { files: self.files.without_holders(), meta, ..self.clone() }
    }

    /// To be called right after the cache of the resumed node is served, before any await.
    pub fn resume_cache(&self, cache: &cache::Server) {
        cache.resume(&self.cache);
    }

    /// The same for its metadata.
    pub fn resume_metadata(&self, meta: &MetaServer) {
        meta.resume(&self.meta);
    }

    /// The same for its files.
    pub fn resume_files(&self, files: &Rc<FileServer>) {
        files.resume(self.files.clone());
    }
}

/// The servers of one node, as far as it has come up.
#[derive(Clone, Default)]
pub struct NodeServers {
    /// Of a disk node.
    pub disks: Option<Rc<blockio::Server>>,
    /// Of a file-system node, as are all that follow.
    pub cache: Option<Rc<cache::Server>>,
    /// Metadata.
    pub meta: Option<Rc<MetaServer>>,
    /// Files.
    pub files: Option<Rc<FileServer>>,
}

impl NodeServers {
    /// Ends the node of `context` in order, at that node. After success it accepts no request, and
    /// all that it has answered is durable or in the hand-over. May be called again after an error.
    pub async fn hand_over(&self, context: &Context) -> Result<NodeHandover, Error> {
        // Most of the work, while requests are answered.
        context.spawn(context.node(), Flush {}).await?;
        tracing::debug!(node = %context.node(), "is settled");
        let Self { files: Some(files), meta: Some(meta), cache: Some(cache), .. } = self else {
            return Err(Undelivered::Unreachable.into());
        };
        let files = files.hand_over().await?;
        tracing::debug!(node = %context.node(), "its files are handed over");
        let meta = meta.hand_over().await?;
        tracing::debug!(node = %context.node(), "its metadata is handed over");
        let cache = cache.hand_over().await?;
        tracing::debug!(node = %context.node(), "its cache is handed over");
        Ok(NodeHandover { files, meta, cache, disks: None })
    }

    /// As [`hand_over`](Self::hand_over), for a node that serves no files.
    pub async fn hand_over_cache(&self) -> Result<NodeHandover, Error> {
        let cache = self.cache.as_ref().ok_or(Undelivered::Unreachable)?;
        Ok(NodeHandover { cache: cache.hand_over().await?, ..NodeHandover::default() })
    }

    /// As [`hand_over`](Self::hand_over), for a disk node. After an error there is nothing to hand
    /// over.
    pub async fn hand_over_disks(&self, context: &Context) -> Result<NodeHandover, Error> {
        let disks = self.disks.as_ref().ok_or(Undelivered::Unreachable)?;
        let disks = Some(disks.hand_over(context).await?);
        Ok(NodeHandover { disks, ..NodeHandover::default() })
    }
}
