//! A file-system node moves to another process by plan, or a disk node ends in order and comes back, and
//! no client sees a loss (ADR 49, 46).
//!
//! The old process closes the layers of the node from above: files, metadata, cache. Each ends what it has
//! let in and makes durable what it has answered. What others need to end theirs is let in until then, so
//! that nodes which move at the same time never wait for each other in a circle: files wait for any layer
//! of others, metadata for metadata that still lets such requests in, caches for disk nodes only.

use cache::HandedBootId;
use meta::MetaHandover;
use runtime::Context;
use runtime::protocol::Undelivered;

use fileio::protocol::{Error, Flush};
use fileio::{FileServer, FilesHandover};

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
    /// Without who has files open, where that is too much to tell: they are waited for, as after a crash.
    #[must_use]
    pub fn without_holders(&self) -> Self {
        let meta = MetaHandover { held: Vec::new(), grace_below: u64::MAX, ..self.meta.clone() };
        Self { files: FilesHandover::unknown(), meta, ..self.clone() }
    }
}

/// Ends the node of `context` in order, at that node. When it returns well the node lets nothing in any
/// more, and has answered nothing that is not durable or told here. After an error it may be called again.
pub async fn hand_over(context: &Context) -> Result<NodeHandover, Error> {
    let gone = || Error::from(Undelivered::Unreachable);
    // Most of the work, while requests are answered.
    context.spawn(context.node(), Flush {}).await?;
    tracing::debug!(node = %context.node(), "is settled");
    let files = context.lent::<FileServer>().ok_or_else(gone)?.hand_over().await?;
    tracing::debug!(node = %context.node(), "its files are handed over");
    let meta = context.lent::<meta::MetaServer>().ok_or_else(gone)?.hand_over().await?;
    tracing::debug!(node = %context.node(), "its metadata is handed over");
    let cache = context.lent::<cache::Server>().ok_or_else(gone)?.hand_over().await?;
    tracing::debug!(node = %context.node(), "its cache is handed over");
    Ok(NodeHandover { files, meta, cache, disks: None })
}

/// As [`hand_over`], for a node that serves no files.
pub async fn hand_over_cache(context: &Context) -> Result<NodeHandover, Error> {
    let cache = context.lent::<cache::Server>().ok_or(Undelivered::Unreachable)?;
    Ok(NodeHandover { cache: cache.hand_over().await?, ..NodeHandover::default() })
}

/// As [`hand_over`], for a disk node. After an error there is nothing to hand over.
pub async fn hand_over_disks(context: &Context) -> Result<NodeHandover, Error> {
    let disks = context.lent::<blockio::Server>().ok_or(Undelivered::Unreachable)?;
    Ok(NodeHandover { disks: Some(disks.hand_over(context).await?), ..NodeHandover::default() })
}

/// To be called right after the cache of the node that goes on is served, before anything is awaited.
pub fn resume_cache(context: &Context, handed: &NodeHandover) {
    if let Some(cache) = context.lent::<cache::Server>() {
        cache.resume(&handed.cache);
    }
}

/// The same for its metadata.
pub fn resume_metadata(context: &Context, handed: &NodeHandover) {
    if let Some(meta) = context.lent::<meta::MetaServer>() {
        meta.resume(&handed.meta);
    }
}

/// The same for its files.
pub fn resume_files(context: &Context, handed: &NodeHandover) {
    if let Some(files) = context.lent::<FileServer>() {
        files.resume(handed.files.clone());
    }
}
