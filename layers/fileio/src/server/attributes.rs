//! Attributes, links and parents.

use std::rc::Rc;

use meta::attributes::access;
use meta::protocol::{ChangeInode, GetInode};

use super::base::MetadataAccess;
use super::space::FileSpace;
use crate::protocol::{Attributes, Error, Handle, Kind, Parent, ReadLink, SetAttributes};
use crate::rules;

/// Answers requests for attributes.
pub(super) struct FileAttributes {
    pub(super) base: MetadataAccess,
    space: Rc<FileSpace>,
}

impl FileAttributes {
    pub(super) fn new(base: MetadataAccess, space: Rc<FileSpace>) -> Self {
        Self { base, space }
    }

    pub(super) async fn parent(&self, request: Parent) -> Result<Attributes, Error> {
        let inode = self.base.inode(request.directory).await?;
        rules::check_search(&request.who, &inode.attributes)?;
        let call = GetInode { ino: inode.parent, generation: 0 };
        Ok(self.base.meta(self.base.node_of(inode.parent), call).await?.attributes)
    }

    pub(super) async fn read_link(&self, request: &ReadLink) -> Result<Vec<u8>, Error> {
        let inode = self.base.inode(request.file).await?;
        if inode.attributes.kind != (Kind::Symlink {}) {
            return Err(Error::Invalid {});
        }
        self.base.note_access(&inode.attributes).await?;
        Ok(inode.target)
    }

    pub(super) async fn set_attributes(&self, request: SetAttributes) -> Result<Attributes, Error> {
        let SetAttributes { who, file, change, only_if_ctime, durable } = request;
        let before = self.base.attributes(file).await?;
        if only_if_ctime.is_some_and(|expected| expected != before.ctime) {
            return Err(Error::Changed {});
        }
        let writes = |who: &_, file: &_| self.base.check_transfer(who, file, access::WRITE);
        rules::check_change(&who, &before, &change, writes)?;
        if change == crate::protocol::Change::default() {
            return Ok(before);
        }
        if change.redundancy.is_some_and(|class| !self.space.has_class(class)) {
            return Err(Error::Invalid {});
        }
        let now = self.base.now();
        let resizes = change.size.is_some();
        if let Some(size) = change.size {
            self.space.set_size(file, size, now, durable).await?;
        }
        let Handle { ino, generation } = file;
        let redundancy = change.redundancy;
        let change = rules::inode_change(&who, &before, &change, now);
        // Truncation has changed the ctime already.
        let only_if_ctime = only_if_ctime.filter(|_| !resizes);
        let call = ChangeInode { ino, generation, change, redundancy, only_if_ctime, durable };
        self.base.meta_here(call).await
    }
}
