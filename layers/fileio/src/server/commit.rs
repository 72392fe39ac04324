//! Making changes durable, and freeing the blocks of removed files.

use std::rc::Rc;

use futures::StreamExt as _;
use meta::protocol::{self as metadata, GetDirty, ListUntrimmed, RollBack, Seal};

use super::{COMMIT_AGE_MS, COMMIT_INTERVAL, COMMITS_MAX, FileServer, retry_after_rollback};
use crate::protocol::{Commit, Error, Flush, Handle, Trim, WriteResult};

runtime::handlers! { FileServer;
    Commit => |server, _, request| server.commit(&request.file).await;
    Flush => |server, _, _request| server.flush().await;
    Trim => |server, _, request| {
        server.trim(request.ino).await;
        Ok(())
    };
}

impl FileServer {
    /// Makes all that was written to a file durable.
    pub(super) async fn commit(&self, file: &Handle) -> Result<WriteResult, Error> {
        self.attributes(*file).await?;
        self.commit_ino(file.ino).await
    }

    /// After a loss the file is as last committed, and the write verifier tells everybody who wrote
    /// since.
    async fn commit_ino(&self, ino: u64) -> Result<WriteResult, Error> {
        let commit = async || {
            {
                // Writes under way are let in first; later ones go to new blocks.
                let _alone = self.files.exclusive(ino).await;
                self.meta_here(Seal { ino }).await?;
            }
            self.meta_here(metadata::Commit { ino }).await
        };
        let roll_back = async || {
            let _alone = self.files.exclusive(ino).await;
            self.meta_here(RollBack { ino }).await
        };
        retry_after_rollback(commit, roll_back).await
    }

    /// A block could not be read. If it was never committed it may be lost, which a commit finds
    /// out; then the file has its committed content again.
    pub(super) async fn recover_lost_writes(&self, file: Handle) {
        if let Err(error) = self.commit(&file).await {
            tracing::warn!(%error, ino = file.ino, "a damaged file could not be committed");
        }
    }

    /// Commits old changes and frees the blocks of removed files, as long as the node lives.
    pub(super) async fn commit_loop(self: &Rc<Self>) {
        loop {
            self.context.sleep(COMMIT_INTERVAL).await;
            for ino in self.meta_here(ListUntrimmed {}).await.unwrap_or_default() {
                self.trim(ino).await;
            }
            self.remove_unreferenced().await;
            if let Err(error) = self.commit_dirty(COMMIT_AGE_MS).await {
                tracing::warn!(%error, "a commit in the background failed, it will be tried again");
            }
        }
    }

    pub(super) async fn commit_dirty(&self, age_ms: u64) -> Result<(), Error> {
        let dirty = self.meta_here(GetDirty { age_ms }).await?;
        let commits = dirty.into_iter().map(|ino| self.commit_ino(ino));
        let mut outcomes = futures::stream::iter(commits).buffer_unordered(COMMITS_MAX);
        let mut first_failure = Ok(());
        while let Some(outcome) = outcomes.next().await {
            match outcome {
                // Removed meanwhile.
                Ok(_) | Err(Error::Stale {}) => {}
                Err(error) => first_failure = first_failure.and(Err(error)),
            }
        }
        first_failure
    }

    /// Makes everything of this node durable, and its log short.
    pub(super) async fn flush(self: &Rc<Self>) -> Result<(), Error> {
        self.commit_dirty(0).await?;
        self.meta_here(metadata::Flush {}).await
    }

    /// Frees the blocks of a file that is gone, in the background.
    pub(super) fn trim_later(self: &Rc<Self>, ino: u64) {
        let server = self.clone();
        self.context.task(async move { server.trim(ino).await });
    }

    /// Frees the blocks of a file that is gone, once the last reader has finished.
    pub(super) async fn trim(&self, ino: u64) {
        let _alone = self.files.exclusive(ino).await;
        if let Err(error) = self.meta_here(metadata::Trim { ino }).await {
            // The intent stays in the store: the next start of the node goes on.
            tracing::warn!(%error, ino, "the blocks of a removed file could not be freed yet");
        }
    }
}
