//! Attributes, links and parents.

use meta::protocol::{ChangeInode, GetInode, InodeChange, RollBack, Truncate};

use super::{FileServer, despite_losses};
use crate::protocol::{
    Attributes, Credentials, Error, GetAttributes, Handle, Kind, Parent, ReadLink, SetAttributes,
    Time,
};
use crate::rules;

impl FileServer {
    pub(super) async fn get_attributes(
        &self,
        request: &GetAttributes,
    ) -> Result<Attributes, Error> {
        Ok(self.inode(request.file).await?.attributes)
    }

    pub(super) async fn parent(&self, request: Parent) -> Result<Attributes, Error> {
        let inode = self.inode(request.directory).await?;
        rules::check_search(&request.who, &inode.attributes)?;
        let call = GetInode { ino: inode.parent, generation: 0 };
        Ok(self.meta(self.node_of(inode.parent), call).await?.attributes)
    }

    pub(super) async fn read_link(&self, request: &ReadLink) -> Result<Vec<u8>, Error> {
        let inode = self.inode(request.file).await?;
        if inode.attributes.kind != (Kind::Symlink {}) {
            return Err(Error::Invalid {});
        }
        self.note_access(&inode.attributes).await?;
        Ok(inode.target)
    }

    /// Notes that the content was read, as seldom as `relatime` does.
    pub(super) async fn note_access(&self, file: &Attributes) -> Result<Attributes, Error> {
        let now = self.now();
        if !rules::notes_access(file, now) {
            return Ok(*file);
        }
        let change = InodeChange { atime: Some(now), ..InodeChange::default() };
        let Attributes { ino, generation, .. } = *file;
        let call = ChangeInode { ino, generation, change, only_if_ctime: None, durable: false };
        self.meta(self.node_of(ino), call).await
    }

    pub(super) async fn set_attributes(&self, request: SetAttributes) -> Result<Attributes, Error> {
        let SetAttributes { who, file, change, only_if_ctime, durable } = request;
        let before = self.inode(file).await?.attributes;
        if only_if_ctime.is_some_and(|expected| expected != before.ctime) {
            return Err(Error::Changed {});
        }
        rules::check_change(&who, &before, &change)?;
        if change == crate::protocol::Change::default() {
            return Ok(before);
        }
        let now = self.now();
        if let Some(size) = change.size {
            self.set_size(file, size, now, durable).await?;
        }
        let Handle { ino, generation } = file;
        let change = rules::inode_change(&who, &before, &change, now);
        // A cut has changed the ctime itself.
        let only_if_ctime = only_if_ctime.filter(|_| change.mtime == Some(before.mtime));
        self.meta_here(ChangeInode { ino, generation, change, only_if_ctime, durable }).await
    }

    /// Is byte `offset` of the file in a block, not in a hole?
    async fn is_stored(&self, file: Handle, offset: u64) -> Result<bool, Error> {
        let chunk_size = u64::from(self.geometry.stripe_size);
        let index = offset / chunk_size;
        let chunks = self.map(file, index..index + 1).await?;
        let block = (offset % chunk_size / blockio::BLOCK_SIZE as u64) as u32;
        let mut runs = chunks.iter().flat_map(|chunk| &chunk.runs);
        Ok(runs.any(|run| (u32::from(run.at)..run.end()).contains(&block)))
    }

    /// Cuts the content, or lengthens it by a hole.
    pub(super) async fn set_size(
        &self,
        file: Handle,
        size: u64,
        time: Time,
        durable: bool,
    ) -> Result<Attributes, Error> {
        let ino = file.ino;
        let _alone = self.files.exclusive(ino).await;
        let set = async || self.set_size_once(file, size, time, durable).await;
        // Lost are perhaps the zeros beyond the cut, too: once more from what is committed.
        let roll_back = async || self.meta_here(RollBack { ino }).await;
        despite_losses(set, roll_back).await
    }

    /// The caller holds the file alone.
    async fn set_size_once(
        &self,
        file: Handle,
        size: u64,
        time: Time,
        durable: bool,
    ) -> Result<Attributes, Error> {
        let Handle { ino, generation } = file;
        let before = self.inode(file).await?.attributes;
        let tail = size.next_multiple_of(blockio::BLOCK_SIZE as u64).min(before.size);
        if size < tail && self.is_stored(file, size).await? {
            // Should the file grow again, what was cut off must read as zeros.
            let zeros = super::read::zeros((tail - size) as usize);
            self.write_locked(&Credentials::root(), &before, size, vec![zeros]).await?;
        }
        self.meta_here(Truncate { ino, generation, size, time, durable }).await
    }
}
