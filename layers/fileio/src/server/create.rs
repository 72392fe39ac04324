//! Finding and making names. A new file's inode is made at the node of its name (ADR 4).

use std::rc::Rc;
use std::time::Duration;

use meta::protocol::{
    AddFile, CallOutcome, CommitDependency, Dentry, Effect, Execute, FindName, FlushTo, GetInode,
    InodeChange, LockName, LockedName, NewInode, UnlockName,
};
use runtime::NodeId;
use runtime::protocol::Undelivered;

use super::calls::{CallIdRequest, other_call};
use super::remote_locks::RemoteLockGuard;
use super::{FileServer, ParentDir, RACES_MAX, count_directories, is_in_doubt};
use crate::hash::name_node;
use crate::protocol::{
    Attributes, CallId, Change, Create, Created, Error, Existing, Handle, Kind, LINKS_MAX, Link,
    Lookup, MakeNode, Name, NewNode, SetAttributes, TARGET_MAX, Time,
};
use crate::rules;

/// The first pause of a lookup that waits for the word of another node.
const WORD_PAUSE: Duration = Duration::from_millis(1);
/// Doublings of the pause: all pauses together take about two seconds.
const WORD_PAUSE_DOUBLINGS: usize = 5;

runtime::handlers! { FileServer;
    Lookup => |server, _, request| server.lookup(request).await;
}

impl CallIdRequest for Create {
    async fn perform(&self, server: &Rc<FileServer>) -> Result<Self::Reply, Error> {
        server.create(self).await
    }

    async fn repeat(
        &self,
        server: &FileServer,
        outcome: CallOutcome,
    ) -> Result<Self::Reply, Error> {
        match outcome {
            CallOutcome::Made { ino, generation } => {
                let file = Handle { ino, generation };
                let attributes = server.attributes_after_repeat(file, Kind::File {}, &self.who).await?;
                Ok(Created { attributes, new: true })
            }
            _ => other_call(),
        }
    }

    fn is_stored(answer: &Self::Reply) -> bool {
        answer.new
    }
}

impl CallIdRequest for MakeNode {
    async fn perform(&self, server: &Rc<FileServer>) -> Result<Self::Reply, Error> {
        server.make_node(self).await
    }

    async fn repeat(
        &self,
        server: &FileServer,
        outcome: CallOutcome,
    ) -> Result<Self::Reply, Error> {
        match outcome {
            CallOutcome::Made { ino, generation } => {
                let file = Handle { ino, generation };
                server.attributes_after_repeat(file, kind_of(&self.node), &self.who).await
            }
            _ => other_call(),
        }
    }

    fn is_stored(_: &Self::Reply) -> bool {
        true
    }
}

impl CallIdRequest for Link {
    async fn perform(&self, server: &Rc<FileServer>) -> Result<Self::Reply, Error> {
        server.link(self).await
    }

    async fn repeat(
        &self,
        server: &FileServer,
        outcome: CallOutcome,
    ) -> Result<Self::Reply, Error> {
        match outcome {
            CallOutcome::Done {} => server.attributes_after_repeat(self.file, Kind::File {}, &self.who).await,
            _ => other_call(),
        }
    }

    fn is_stored(_: &Self::Reply) -> bool {
        true
    }
}

impl FileServer {
    /// Answers [`Lookup`], if directory, name and inode are at hand on this thread.
    pub(super) fn try_look_up_now(&self, request: &Lookup) -> Option<Result<Attributes, Error>> {
        let &Lookup { ref who, directory, ref name } = request;
        let above = self.try_attributes_now(directory)?;
        if let Err(refused) = rules::check_search(who, &above) {
            return Some(Err(refused));
        }
        let find = FindName { directory: directory.ino, name: name.clone() };
        let found = self.context.try_now(self.context.node(), find)?.ok()?;
        match found {
            Some(dentry) => {
                self.information.show_name(directory.ino, name, dentry);
                self.try_attributes_now(handle_of(&dentry)).map(Ok)
            }
            None => Some(Err(Error::NotFound {})),
        }
    }

    /// The attributes of an inode that is in use at a node of this thread, or shown by one of this process.
    fn try_attributes_now(&self, Handle { ino, generation }: Handle) -> Option<Attributes> {
        let node = self.node_of(ino);
        if node == self.context.node() {
            let known = self.information.attributes(ino, generation)?;
            self.information.show(ino);
            return Some(known);
        }
        self.shown(Handle { ino, generation }).or_else(|| {
            let inode = self.context.try_now(node, GetInode { ino, generation })?;
            inode.ok().map(|inode| inode.attributes)
        })
    }

    /// The attributes of an inode that a node of this process shows.
    fn shown(&self, Handle { ino, generation }: Handle) -> Option<Attributes> {
        self.shared_attrs.as_ref()?.attributes(ino, generation)
    }

    pub(super) async fn lookup(&self, request: Lookup) -> Result<Attributes, Error> {
        self.look_up(&request, async |found| Ok(self.inode(handle_of(&found)).await?.attributes))
            .await
    }

    /// What `get` tells of that which a name names.
    pub(super) async fn look_up<T>(
        &self,
        request: &Lookup,
        get: impl AsyncFn(Dentry) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let &Lookup { ref who, directory, ref name } = request;
        let mut names_nothing = None;
        for race in 0..RACES_MAX {
            let above = match self.shown(directory) {
                Some(above) => above,
                None => self.inode(directory).await?.attributes,
            };
            rules::check_search(who, &above)?;
            let found = self.find(directory, name).await?.ok_or(Error::NotFound {})?;
            match get(found).await {
                // Removed between the two: look again.
                Err(Error::Stale {}) => {}
                got => return got,
            }
            names_nothing = self.find(directory, name).await?.filter(|now| *now == found);
            if names_nothing.is_some() {
                // A rename over it was decided where the inode was, and its word is on the way here.
                self.context.sleep(WORD_PAUSE * (1 << race.min(WORD_PAUSE_DOUBLINGS))).await;
            }
        }
        let found = names_nothing.ok_or(Undelivered::Busy)?;
        // As long as the word is on its way the name is claimed, so this is busy.
        match self.make_name_durable(directory, name, found).await {
            Ok(()) => Err(Error::Damaged {}),
            Err(Error::Changed {}) => Err(Undelivered::Busy.into()),
            Err(error) => Err(error),
        }
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
    pub(super) async fn retry_races<T>(
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

    pub(super) async fn create(self: &Rc<Self>, request: &Create) -> Result<Created, Error> {
        self.retry_races(async || {
            self.with_dir_locked(request.directory, async |above| self.create_in(request, above).await)
                .await
        })
        .await
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
        let mut inode = rules::new_inode(who, above, Kind::File {}, change, self.now())?;
        if let Existing::UseIfSame { verifier } = existing {
            inode.verifier = Some(*verifier);
        }
        let (attributes, noted) =
            self.add((request.call, since), (*directory, name), inode, (*durable, made)).await?;
        Ok((Created { attributes, new: true }, noted))
    }

    /// A name that another request made may not be durable yet; locking it waits until it is.
    async fn make_name_durable(
        &self,
        directory: Handle,
        name: &Name,
        found: Dentry,
    ) -> Result<(), Error> {
        let node = self.context.node();
        let (claimed, claim) = self.claim(node, directory, name).await?;
        self.unclaim(claim, directory, name).await;
        if claimed.dentry != Some(found) {
            return Err(Error::Changed {});
        }
        // It is at this node, which was told of no record to wait for.
        self.meta_here(FlushTo { position: u64::MAX }).await?;
        Ok(())
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
        match self.meta_here(add).await {
            // It was not there when we looked.
            Err(Error::Exists {}) => Err(Error::Changed {}),
            added => Ok((added?, noted)),
        }
    }

    pub(super) async fn make_node(&self, request: &MakeNode) -> Result<Attributes, Error> {
        self.retry_races(async || {
            self.with_dir_locked(request.directory, async |above| self.make_in(request, above).await).await
        })
        .await
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
        self.add((request.call, since), (*directory, name), inode, (*durable, made)).await
    }

    /// The file's node decides: a link is counted before a name can be seen that needs it.
    pub(super) async fn link(self: &Rc<Self>, request: &Link) -> Result<Attributes, Error> {
        let Link { file, directory, name, .. } = request;
        self.inode(*file).await?;
        let name_node = name_node(directory.ino, name, self.context.fs_nodes());
        self.retry_races(async || {
            self.with_dir_locked_at(*directory, name_node, async |above| {
                rules::check_search(&request.who, &above.attributes)?;
                let (found, claim) = self.claim(name_node, *directory, name).await?;
                let linked = self.link_claimed(request, found, above).await;
                match &linked {
                    Ok(_) => claim.finish(),
                    Err(error) if is_in_doubt(*error) => drop(claim),
                    Err(_) => self.unclaim(claim, *directory, name).await,
                }
                let (attributes, time) = linked?;
                Ok((attributes, Some(time)))
            })
            .await
        })
        .await
    }

    async fn link_claimed(
        self: &Rc<Self>,
        request: &Link,
        found: LockedName,
        &ParentDir { attributes: ref above, made, since }: &ParentDir,
    ) -> Result<(Attributes, Time), Error> {
        let &Link { call, ref who, file, directory, ref name, durable } = request;
        if found.dentry.is_some() {
            return Err(Error::Exists {});
        }
        rules::check_add(who, above)?;
        let linked = self.inode(file).await?.attributes;
        if linked.kind == (Kind::Directory {}) {
            return Err(Error::NotPermitted {});
        }
        if linked.links == 0 {
            // It lives for those who have it open, and gets no name again.
            return Err(Error::NotFound {});
        }
        if linked.links >= LINKS_MAX {
            return Err(Error::TooManyLinks {});
        }
        let now = self.now();
        let Handle { ino, generation } = file;
        let change = InodeChange { links: 1, ctime: Some(now), ..InodeChange::default() };
        let effects = vec![
            Effect::ChangeParts { ino, generation, change },
            Effect::SetName {
                directory: directory.ino,
                name: name.clone(),
                expect: None,
                set: Some(Dentry { ino, generation, kind: linked.kind }),
            },
        ];
        let after = vec![found.changed, made];
        self.execute(Execute { effects, claimed: true, since, durable, call, after }).await?;
        let attributes = match self.inode(file).await {
            // Removed again already.
            Err(Error::Stale {}) => Attributes { links: linked.links + 1, ctime: now, ..linked },
            inode => inode?.attributes,
        };
        Ok((attributes, now))
    }

    /// Keeps everybody else from changing a name at `node`; what it names.
    pub(super) async fn claim(
        &self,
        node: NodeId,
        directory: Handle,
        name: &Name,
    ) -> Result<(LockedName, RemoteLockGuard), Error> {
        let (directory, name) = (directory.ino, name.clone());
        self.lock_remote(node, |lock| LockName { directory, name, lock }).await
    }

    /// The name was not changed. If its node does not hear of it now, it will.
    pub(super) async fn unclaim(&self, claim: RemoteLockGuard, directory: Handle, name: &Name) {
        let (directory, name) = (directory.ino, name.clone());
        let _ = self.release_lock(claim, |lock| UnlockName { directory, name, lock }).await;
    }
}

/// The handle of what a name names.
pub(super) fn handle_of(dentry: &Dentry) -> Handle {
    Handle { ino: dentry.ino, generation: dentry.generation }
}

/// What such a request makes.
pub(super) fn kind_of(node: &NewNode) -> Kind {
    match node {
        NewNode::Directory {} => Kind::Directory {},
        NewNode::Symlink { .. } => Kind::Symlink {},
        NewNode::BlockDevice { .. } => Kind::BlockDevice {},
        NewNode::CharDevice { .. } => Kind::CharDevice {},
        NewNode::Fifo {} => Kind::Fifo {},
        NewNode::Socket {} => Kind::Socket {},
    }
}
