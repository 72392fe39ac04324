//! Finding and making names. A new file's inode is made at the node of its name (ADR 4).

use std::rc::Rc;

use meta::protocol::{
    AddFile, ChangeInode, ChangeName, Dentry, DirectoryChange, FindName, InodeChange, NewInode,
};
use runtime::protocol::Undelivered;

use super::{FileServer, RACES_MAX};
use crate::protocol::{
    Attributes, Change, Create, Created, Error, Existing, Handle, Kind, LINKS_MAX, Link, Lookup,
    MakeNode, Name, NewNode, SetAttributes, TARGET_MAX,
};
use crate::rules;

impl FileServer {
    pub(super) async fn lookup(&self, request: Lookup) -> Result<Attributes, Error> {
        let Lookup { who, directory, name } = request;
        for _ in 0..RACES_MAX {
            let above = self.inode(directory).await?.attributes;
            rules::check_search(&who, &above)?;
            let found = self.find(directory, &name).await?.ok_or(Error::NotFound {})?;
            match self.inode(handle_of(&found)).await {
                // A name goes before its inode, so a name that is still there names nothing.
                Err(Error::Stale {}) if self.find(directory, &name).await? == Some(found) => {
                    return Err(Error::Damaged {});
                }
                // Removed between the two: look again.
                Err(Error::Stale {}) => {}
                inode => return Ok(inode?.attributes),
            }
        }
        Err(Undelivered::Busy.into())
    }

    /// What a name of this node names.
    pub(super) async fn find(
        &self,
        directory: Handle,
        name: &Name,
    ) -> Result<Option<Dentry>, Error> {
        self.meta_here(FindName { directory: directory.ino, name: name.clone() }).await
    }

    /// Tries again what lost a race against another change of the same name.
    pub(super) async fn racing<T>(
        &self,
        attempt: impl AsyncFn() -> Result<T, Error>,
    ) -> Result<T, Error> {
        for _ in 0..RACES_MAX {
            match attempt().await {
                Err(Error::Changed {}) => {}
                outcome => return outcome,
            }
        }
        Err(Undelivered::Busy.into())
    }

    pub(super) async fn create(self: &Rc<Self>, request: Create) -> Result<Created, Error> {
        let created = self
            .racing(async || {
                self.changing(request.directory, async |above| {
                    self.create_in(&request, above).await
                })
                .await
            })
            .await?;
        let size = request.change.size.filter(|size| created.new && *size > 0);
        let Some(size) = size else { return Ok(created) };
        let Attributes { ino, generation, .. } = created.attributes;
        let file = Handle { ino, generation };
        let attributes = self.set_size(file, size, self.now(), request.durable).await?;
        Ok(Created { attributes, new: true })
    }

    async fn create_in(
        &self,
        request: &Create,
        above: &Attributes,
    ) -> Result<(Created, Option<DirectoryChange>), Error> {
        let Create { who, directory, name, existing, change, durable, .. } = request;
        rules::check_search(who, above)?;
        if let Some(found) = self.find(*directory, name).await? {
            let attributes = self.create_existing(request, &found).await?;
            if *durable {
                self.make_name_durable(*directory, name, found).await?;
            }
            return Ok((Created { attributes, new: false }, None));
        }
        rules::check_add(who, above)?;
        let mut inode = rules::new_inode(who, above, Kind::File {}, change, self.now())?;
        if let Existing::UseIfSame { verifier } = existing {
            inode.verifier = Some(*verifier);
        }
        let (attributes, noted) = self.add(*directory, name, inode, *durable).await?;
        Ok((Created { attributes, new: true }, noted))
    }

    /// Somebody else's name may not be durable yet; it is recorded once more.
    async fn make_name_durable(
        &self,
        directory: Handle,
        name: &Name,
        found: Dentry,
    ) -> Result<(), Error> {
        let call = ChangeName {
            directory: directory.ino,
            name: name.clone(),
            expect: Some(found),
            set: Some(found),
            claimed: false,
            durable: true,
        };
        self.meta_here(call).await
    }

    async fn create_existing(&self, request: &Create, found: &Dentry) -> Result<Attributes, Error> {
        let file = handle_of(found);
        if let Existing::Refuse {} = request.existing {
            return Err(Error::Exists {});
        }
        let inode = match self.inode(file).await {
            Err(Error::Stale {}) => return Err(Error::Changed {}),
            inode => inode?,
        };
        if let Existing::UseIfSame { verifier } = request.existing {
            let same = inode.verifier == Some(verifier);
            return if same { Ok(inode.attributes) } else { Err(Error::Exists {}) };
        }
        match inode.attributes.kind {
            Kind::File {} => {}
            Kind::Directory {} => return Err(Error::IsDirectory {}),
            _ => return Err(Error::Exists {}),
        }
        if request.change.size.is_none() {
            return Ok(inode.attributes);
        }
        let cut = SetAttributes {
            who: request.who.clone(),
            file,
            change: Change { size: request.change.size, ..Change::default() },
            only_if_ctime: None,
            durable: request.durable,
        };
        self.context.spawn(self.node_of(file.ino), cut).await
    }

    /// Makes an inode and its name at this node.
    async fn add(
        &self,
        directory: Handle,
        name: &Name,
        inode: NewInode,
        durable: bool,
    ) -> Result<(Attributes, Option<DirectoryChange>), Error> {
        let links = i64::from(inode.kind == (Kind::Directory {}));
        let noted = DirectoryChange { time: inode.time, links };
        let call = AddFile { directory: directory.ino, name: name.clone(), inode, durable };
        match self.meta_here(call).await {
            // It was not there when we looked.
            Err(Error::Exists {}) => Err(Error::Changed {}),
            added => Ok((added?, Some(noted))),
        }
    }

    pub(super) async fn make_node(&self, request: MakeNode) -> Result<Attributes, Error> {
        self.racing(async || {
            self.changing(request.directory, async |above| self.make_in(&request, above).await)
                .await
        })
        .await
    }

    async fn make_in(
        &self,
        request: &MakeNode,
        above: &Attributes,
    ) -> Result<(Attributes, Option<DirectoryChange>), Error> {
        let MakeNode { who, directory, name, node, change, .. } = request;
        rules::check_search(who, above)?;
        if self.find(*directory, name).await?.is_some() {
            return Err(Error::Exists {});
        }
        rules::check_add(who, above)?;
        let kind = kind_of(node);
        let change = Change { size: None, ..change.clone() };
        let mut inode = rules::new_inode(who, above, kind, &change, self.now())?;
        match node {
            NewNode::BlockDevice { major, minor } | NewNode::CharDevice { major, minor } => {
                if who.uid != 0 {
                    return Err(Error::NotPermitted {});
                }
                (inode.major, inode.minor) = (*major, *minor);
            }
            NewNode::Symlink { target } => {
                if target.is_empty() || target.len() > TARGET_MAX || target.contains(&0) {
                    return Err(Error::Invalid {});
                }
                inode.target.clone_from(target);
            }
            NewNode::Directory {} | NewNode::Fifo {} | NewNode::Socket {} => {}
        }
        self.add(*directory, name, inode, true).await
    }

    pub(super) async fn link(&self, request: Link) -> Result<Attributes, Error> {
        self.inode(request.file).await?;
        self.racing(async || {
            self.changing(request.directory, async |above| self.link_in(&request, above).await)
                .await
        })
        .await
    }

    async fn link_in(
        &self,
        request: &Link,
        above: &Attributes,
    ) -> Result<(Attributes, Option<DirectoryChange>), Error> {
        let Link { who, file, directory, name, .. } = request;
        let linked = self.inode(*file).await?.attributes;
        rules::check_search(who, above)?;
        if self.find(*directory, name).await?.is_some() {
            return Err(Error::Exists {});
        }
        rules::check_add(who, above)?;
        if linked.kind == (Kind::Directory {}) {
            return Err(Error::NotPermitted {});
        }
        if linked.links >= LINKS_MAX {
            return Err(Error::TooManyLinks {});
        }
        let now = self.now();
        // The link is counted before the name can be seen: a file is never missing a link.
        let attributes = self.count_link(*file, 1, now).await?;
        let dentry = Dentry { ino: file.ino, generation: file.generation, kind: linked.kind };
        let call = ChangeName {
            directory: directory.ino,
            name: name.clone(),
            expect: None,
            set: Some(dentry),
            claimed: false,
            durable: true,
        };
        if let Err(error) = self.meta_here(call).await {
            self.count_link(*file, -1, now).await?;
            return Err(error);
        }
        Ok((attributes, Some(DirectoryChange { time: now, links: 0 })))
    }

    pub(super) async fn count_link(
        &self,
        file: Handle,
        links: i64,
        time: crate::protocol::Time,
    ) -> Result<Attributes, Error> {
        let Handle { ino, generation } = file;
        let change = InodeChange { links, ctime: Some(time), ..InodeChange::default() };
        let call = ChangeInode { ino, generation, change, only_if_ctime: None, durable: true };
        self.meta(self.node_of(ino), call).await
    }
}

/// The handle of what a name names.
pub(super) fn handle_of(dentry: &Dentry) -> Handle {
    Handle { ino: dentry.ino, generation: dentry.generation }
}

fn kind_of(node: &NewNode) -> Kind {
    match node {
        NewNode::Directory {} => Kind::Directory {},
        NewNode::Symlink { .. } => Kind::Symlink {},
        NewNode::BlockDevice { .. } => Kind::BlockDevice {},
        NewNode::CharDevice { .. } => Kind::CharDevice {},
        NewNode::Fifo {} => Kind::Fifo {},
        NewNode::Socket {} => Kind::Socket {},
    }
}
