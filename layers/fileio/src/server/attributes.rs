//! Attributes, links and parents.

use meta::protocol::{ChangeInode, GetInode, InodeChange};

use super::FileServer;
use crate::protocol::{
    Attributes, Error, GetAttributes, Handle, Kind, Parent, ReadLink, SetAttributes,
};
use crate::rules;

runtime::handlers! { FileServer;
    Parent => |server, _, request| server.parent(request).await;
    GetAttributes => |server, _, request| server.get_attributes(&request).await;
    SetAttributes => |server, _, request| server.set_attributes(request).await;
    ReadLink => |server, _, request| server.read_link(&request).await;
}

impl FileServer {
    pub(super) async fn get_attributes(
        &self,
        request: &GetAttributes,
    ) -> Result<Attributes, Error> {
        self.attributes(request.file).await
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
        let before = self.attributes(file).await?;
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
}
