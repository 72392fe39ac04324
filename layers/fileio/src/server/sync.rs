//! Making the names of one directory durable (POSIX fsync of a directory).

use futures::future::try_join;
use meta::protocol::SyncNames;

use super::commit::FileCommits;
use crate::protocol::{Error, Handle, Kind};

impl FileCommits {
    /// Names are at many nodes: those that may have changed some are asked. What a name depends on
    /// at other nodes becomes durable with it (ADR 17).
    pub(super) async fn sync_directory(&self, directory: Handle) -> Result<(), Error> {
        if self.base.inode(directory).await?.attributes.kind != (Kind::Directory {}) {
            return Err(Error::NotDirectory {});
        }
        let Handle { ino, generation } = directory;
        let names = self.base.meta_here(SyncNames { directory: ino, generation });
        // The time of the last change is a change of its own.
        let times = async { self.commit(&directory).await };
        try_join(names, times).await?;
        Ok(())
    }
}
