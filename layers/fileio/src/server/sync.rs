//! Making the names of one directory durable (POSIX fsync of a directory).

use futures::future::{try_join, try_join_all};
use meta::protocol::{ChangedAt, SettleNames};
use runtime::NodeId;

use super::FileServer;
use crate::protocol::{Error, Handle, Kind};

impl FileServer {
    /// Names are at many nodes: those that may have changed some are asked. What a name leans on at
    /// other nodes becomes durable with it (ADR 17).
    pub(super) async fn sync_directory(&self, directory: Handle) -> Result<(), Error> {
        if self.inode(directory).await?.attributes.kind != (Kind::Directory {}) {
            return Err(Error::NotDirectory {});
        }
        let Handle { ino, generation } = directory;
        let changed = self.meta_here(ChangedAt { directory: ino, generation }).await?;
        let nodes = changed.unwrap_or_else(|| (0..self.context.fs_nodes()).collect());
        let settled = nodes
            .into_iter()
            .map(|node| self.meta(NodeId::fs(node), SettleNames { directory: ino }));
        // The time of the last change is a change of its own.
        let times = async { self.commit(&directory).await };
        try_join(try_join_all(settled), times).await?;
        Ok(())
    }
}
