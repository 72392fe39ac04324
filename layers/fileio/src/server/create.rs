//! Making names. A new file's inode is made at the node of its name (ADR 4).

use meta::protocol::{AddFile, CallOutcome, CommitDependency, Dentry, NewInode};

use super::call_requests::{CallIdRequest, attributes_after_repeat, made};
use super::names::{Names, ParentDir, count_directories, handle_of};
use crate::protocol::{
    Attributes, CallId, Change, Create, Created, Error, Existing, Handle, Kind, MakeNode, Name,
    NewNode, SetAttributes, TARGET_MAX, Time,
};
use crate::rules;

impl CallIdRequest for Create {
    type Executor = Names;

    async fn perform(&self, names: &Names) -> Result<Created, Error> {
        names.create(self).await
    }

    async fn repeat(&self, names: &Names, outcome: CallOutcome) -> Result<Created, Error> {
        let file = made(outcome)?;
        let attributes =
            attributes_after_repeat(&names.base, file, Kind::File {}, &self.who).await?;
        Ok(Created { attributes, new: true })
    }

    fn is_stored(answer: &Created) -> bool {
        answer.new
    }
}

impl CallIdRequest for MakeNode {
    type Executor = Names;

    async fn perform(&self, names: &Names) -> Result<Attributes, Error> {
        names.change_dir(self.directory, async |above| names.make_in(self, above).await).await
    }

    async fn repeat(&self, names: &Names, outcome: CallOutcome) -> Result<Attributes, Error> {
        let file = made(outcome)?;
        attributes_after_repeat(&names.base, file, kind_of(&self.node), &self.who).await
    }
}

impl Names {
    pub(super) async fn create(&self, request: &Create) -> Result<Created, Error> {
        let create = async |above: &ParentDir| self.create_in(request, above).await;
        self.change_dir(request.directory, create).await
    }

    async fn create_in(
        &self,
        request: &Create,
        &ParentDir { attributes: ref above, made, since }: &ParentDir,
    ) -> Result<(Created, Option<Time>), Error> {
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
        self.base.partitions.check_make(directory.ino).await?;
        let mut inode = rules::new_inode(who, above, Kind::File {}, change, self.base.now())?;
        if let Existing::UseIfSame { verifier } = existing {
            inode.verifier = Some(*verifier);
        }
        let (attributes, noted) =
            self.add((request.call, since), (*directory, name), inode, (*durable, made)).await?;
        Ok((Created { attributes, new: true }, noted))
    }

    async fn create_existing(&self, request: &Create, found: &Dentry) -> Result<Attributes, Error> {
        let file = handle_of(found);
        if let Existing::Refuse {} = request.existing {
            return Err(Error::Exists {});
        }
        let inode = match self.base.inode(file).await {
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
        self.base.context.spawn(self.base.node_of(file.ino), cut).await
    }

    /// Makes an inode and its name at this node.
    async fn add(
        &self,
        (call, since): (CallId, u64),
        (directory, name): (Handle, &Name),
        inode: NewInode,
        (durable, above_made): (bool, CommitDependency),
    ) -> Result<(Attributes, Option<Time>), Error> {
        let is_directory = inode.kind == (Kind::Directory {});
        let noted = (!is_directory).then_some(inode.time);
        let counted = is_directory.then(|| count_directories(directory, 1, inode.time));
        let (directory, name, effects) =
            (directory.ino, name.clone(), counted.into_iter().collect());
        let after = vec![above_made];
        let add = AddFile { directory, name, inode, effects, since, durable, call, after };
        match self.base.meta_here(add).await {
            // It was not there when we looked.
            Err(Error::Exists {}) => Err(Error::Changed {}),
            added => Ok((added?, noted)),
        }
    }

    async fn make_in(
        &self,
        request: &MakeNode,
        &ParentDir { attributes: ref above, made, since }: &ParentDir,
    ) -> Result<(Attributes, Option<Time>), Error> {
        let MakeNode { who, directory, name, node, change, durable, .. } = request;
        rules::check_search(who, above)?;
        if self.find(*directory, name).await?.is_some() {
            return Err(Error::Exists {});
        }
        rules::check_add(who, above)?;
        self.base.partitions.check_make(directory.ino).await?;
        let kind = kind_of(node);
        let change = Change { size: None, ..change.clone() };
        let mut inode = rules::new_inode(who, above, kind, &change, self.base.now())?;
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
            NewNode::PartitionRoot { partition } => inode.partition = *partition,
            NewNode::Directory {} | NewNode::Fifo {} | NewNode::Socket {} => {}
        }
        self.add((request.call, since), (*directory, name), inode, (*durable, made)).await
    }
}

/// What such a request makes.
pub(super) fn kind_of(node: &NewNode) -> Kind {
    match node {
        NewNode::Directory {} | NewNode::PartitionRoot { .. } => Kind::Directory {},
        NewNode::Symlink { .. } => Kind::Symlink {},
        NewNode::BlockDevice { .. } => Kind::BlockDevice {},
        NewNode::CharDevice { .. } => Kind::CharDevice {},
        NewNode::Fifo {} => Kind::Fifo {},
        NewNode::Socket {} => Kind::Socket {},
    }
}
