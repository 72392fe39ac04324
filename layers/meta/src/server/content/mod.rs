//! Content of files: where it is, and how a change of it becomes durable.

pub(super) mod chunk_map;
pub(super) mod chunk_records;
pub(super) mod commit;
pub(super) mod install;
mod protect;
pub(super) mod truncate;

use std::rc::Rc;

use self::chunk_map::ChunkMap;
use self::commit::{CommitLocks, Commits};
use self::install::Installer;
use self::truncate::Truncation;
use super::base::NodeBase;
use super::space::encode_queue::EncodeQueue;
use super::space::reclaim::Reclaim;
use super::verifiers::WriteVerifiers;

/// The content of the files of one node.
pub(super) struct FileContent {
    pub(super) chunks: Rc<ChunkMap>,
    pub(super) installer: Rc<Installer>,
    pub(super) commits: Rc<Commits>,
    pub(super) truncation: Truncation,
    pub(super) commit_locks: CommitLocks,
}

impl FileContent {
    pub(super) fn new(
        base: &Rc<NodeBase>,
        reclaim: &Rc<Reclaim>,
        verifiers: &Rc<WriteVerifiers>,
        queue: &Rc<EncodeQueue>,
    ) -> Self {
        let locks = CommitLocks::default();
        let chunks = Rc::new(ChunkMap::new(base, reclaim.clone()));
        let installer =
            Rc::new(Installer::new(base, chunks.clone(), reclaim.clone(), verifiers.clone()));
        let parts = (verifiers.clone(), queue.clone());
        let commits = Rc::new(Commits::new(base, reclaim.clone(), parts, locks.clone()));
        let truncation = Truncation::new(
            base,
            chunks.clone(),
            installer.clone(),
            commits.clone(),
            reclaim.clone(),
            locks.clone(),
        );
        Self { chunks, installer, commits, truncation, commit_locks: locks }
    }
}
