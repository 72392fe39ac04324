//! Renaming: the old name is claimed, so that nobody else changes it; the new name is set; then the
//! old one goes. So the file always has a name, and never one that is not counted for long.

use std::rc::Rc;

use meta::protocol::{
    ChangeInode, ChangeName, ClaimName, Dentry, DirectoryChange, FindName, GetInode, InodeChange,
    LockTree, UnclaimName, UnlockTree,
};
use runtime::NodeId;

use super::FileServer;
use super::create::handle_of;
use crate::hash::name_node;
use crate::protocol::{Attributes, Error, Handle, Kind, ROOT, Rename, Time};
use crate::rules;

/// Directories above one another, at most: a loop in a damaged tree must not be followed for ever.
const DEPTH_MAX: usize = 1 << 16;

/// What a rename is about, once everything was looked up.
struct Move {
    /// What moves.
    moved: Dentry,
    /// What has the new name now.
    replaced: Option<Dentry>,
    /// A directory changes its place in the tree.
    moves_up: bool,
    /// The node of the new name.
    to_node: NodeId,
    time: Time,
}

impl FileServer {
    pub(super) async fn rename(self: &Rc<Self>, request: Rename) -> Result<(), Error> {
        self.racing(async || {
            let found = self.find(request.from_directory, &request.from_name).await?;
            let moves_directory = found.is_some_and(|found| found.kind == (Kind::Directory {}));
            if !moves_directory || request.from_directory == request.to_directory {
                return self.rename_once(&request).await;
            }
            // Two directories moved into each other at the same time would be lost to the tree.
            let keeper = self.node_of(ROOT.ino);
            self.meta(keeper, LockTree {}).await?;
            let outcome = self.rename_once(&request).await;
            self.meta(keeper, UnlockTree {}).await?;
            outcome
        })
        .await
    }

    async fn rename_once(self: &Rc<Self>, request: &Rename) -> Result<(), Error> {
        let Rename { from_directory, to_directory, to_name, .. } = request;
        let to_node = name_node(to_directory.ino, to_name, self.context.fs_nodes());
        self.changing(*from_directory, async |from_above| {
            let from_change = self
                .changing_at(*to_directory, to_node, async |to_above| {
                    rules::check_search(&request.who, to_above)?;
                    rules::check_search(&request.who, from_above)?;
                    self.rename_claimed(request, from_above, to_above, to_node).await
                })
                .await?;
            Ok(((), from_change))
        })
        .await
    }

    /// Claims the old name for as long as the rename takes. Returns the changes of both directories.
    async fn rename_claimed(
        self: &Rc<Self>,
        request: &Rename,
        from_above: &Attributes,
        to_above: &Attributes,
        to_node: NodeId,
    ) -> Result<(Option<DirectoryChange>, Option<DirectoryChange>), Error> {
        let (directory, name) = (request.from_directory.ino, request.from_name.clone());
        let claim = ClaimName { directory, name: name.clone() };
        let moved = self.meta_here(claim).await?.ok_or(Error::NotFound {})?;
        let outcome = self.rename_found(request, moved, from_above, to_above, to_node).await;
        self.meta_here(UnclaimName { directory, name }).await?;
        outcome
    }

    async fn rename_found(
        self: &Rc<Self>,
        request: &Rename,
        moved: Dentry,
        from_above: &Attributes,
        to_above: &Attributes,
        to_node: NodeId,
    ) -> Result<(Option<DirectoryChange>, Option<DirectoryChange>), Error> {
        let plan = self.plan_rename(request, moved, from_above, to_above, to_node).await?;
        let Some(plan) = plan else { return Ok((None, None)) };
        self.carry_out(request, &plan).await?;
        let replaces_directory =
            plan.replaced.is_some_and(|found| found.kind == (Kind::Directory {}));
        let links = i64::from(plan.moves_up) - i64::from(replaces_directory);
        let to_change = DirectoryChange { time: plan.time, links };
        let from_links = -i64::from(plan.moves_up);
        let from_change = DirectoryChange { time: plan.time, links: from_links };
        Ok((Some(from_change), Some(to_change)))
    }

    /// Looks everything up and checks the rules; `None` if there is nothing to do.
    async fn plan_rename(
        &self,
        request: &Rename,
        moved: Dentry,
        from_above: &Attributes,
        to_above: &Attributes,
        to_node: NodeId,
    ) -> Result<Option<Move>, Error> {
        let Rename { who, from_directory, to_directory, to_name, .. } = request;
        let call = FindName { directory: to_directory.ino, name: to_name.clone() };
        let replaced = self.meta(to_node, call).await?;
        if replaced.is_some_and(|replaced| replaced.ino == moved.ino) {
            return Ok(None);
        }
        let moves_directory = moved.kind == (Kind::Directory {});
        if moves_directory && self.is_below(*to_directory, moved.ino).await? {
            return Err(Error::Invalid {});
        }
        let file = self.named(&moved).await?;
        rules::check_take(who, from_above, file.uid)?;
        match &replaced {
            None => rules::check_add(who, to_above)?,
            Some(replaced) => {
                let replaced = self.named(replaced).await?;
                rules::check_take(who, to_above, replaced.uid)?;
                match (moves_directory, replaced.kind) {
                    (true, Kind::Directory {}) => {} // must be empty: seen when it is frozen
                    (true, _) => return Err(Error::NotDirectory {}),
                    (false, Kind::Directory {}) => return Err(Error::IsDirectory {}),
                    (false, _) => {}
                }
            }
        }
        let moves_up = moves_directory && from_directory != to_directory;
        if moves_up {
            // Its entry `..` changes.
            rules::permit(file.permits(who, meta::attributes::access::WRITE))?;
        }
        if let Some(replaced) = replaced
            && moves_directory
            && self.is_below(request.from_directory, replaced.ino).await?
        {
            // Not empty, and it must not be frozen to find that out: changes in it, ours among them,
            // would wait for each other.
            return Err(Error::NotEmpty {});
        }
        Ok(Some(Move { moved, replaced, moves_up, to_node, time: self.now() }))
    }

    /// Is `directory` the directory `above`, or in it at any depth?
    async fn is_below(&self, directory: Handle, above: u64) -> Result<bool, Error> {
        let mut ino = directory.ino;
        for _ in 0..DEPTH_MAX {
            if ino == above {
                return Ok(true);
            }
            if ino == ROOT.ino {
                return Ok(false);
            }
            ino = self.meta(self.node_of(ino), GetInode { ino, generation: 0 }).await?.parent;
        }
        Err(Error::Damaged {})
    }

    async fn carry_out(self: &Rc<Self>, request: &Rename, plan: &Move) -> Result<(), Error> {
        let frozen = plan.replaced.filter(|replaced| replaced.kind == (Kind::Directory {}));
        if let Some(replaced) = &frozen {
            self.freeze_empty(replaced).await?;
        }
        if let Err(error) = self.exchange_counted(request, plan).await {
            if let Some(replaced) = &frozen {
                self.thaw(replaced).await?;
            }
            return Err(error);
        }
        if let Some(replaced) = &plan.replaced {
            self.drop_link_at_its_node(replaced, plan.time, true).await?;
        }
        let change = InodeChange {
            ctime: Some(plan.time),
            parent: plan.moves_up.then_some(request.to_directory.ino),
            links: -extra_link(plan),
            ..InodeChange::default()
        };
        let Handle { ino, generation } = handle_of(&plan.moved);
        let durable = plan.moves_up || extra_link(plan) > 0;
        let call = ChangeInode { ino, generation, change, only_if_ctime: None, durable };
        match self.meta(self.node_of(ino), call).await {
            // Removed by its new name already.
            Ok(_) | Err(Error::Stale {}) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// A file has a link for each of its names also between the two steps, where a crash may leave
    /// both of them: removing one must not take the file from the other.
    async fn exchange_counted(&self, request: &Rename, plan: &Move) -> Result<(), Error> {
        let (moved, extra) = (handle_of(&plan.moved), extra_link(plan));
        if extra == 0 {
            return self.exchange_names(request, plan).await;
        }
        match self.count_link(moved, extra, plan.time).await {
            // What was looked up is gone: look again.
            Err(Error::Stale {}) => return Err(Error::Changed {}),
            counted => counted?,
        };
        let exchanged = self.exchange_names(request, plan).await;
        if exchanged.is_err() {
            self.count_link(moved, -extra, plan.time).await?;
        }
        exchanged
    }

    /// Sets the new name, then removes the old one, which nobody else can have changed.
    async fn exchange_names(&self, request: &Rename, plan: &Move) -> Result<(), Error> {
        let Rename { from_directory, from_name, to_directory, to_name, .. } = request;
        let set_new = ChangeName {
            directory: to_directory.ino,
            name: to_name.clone(),
            expect: plan.replaced,
            set: Some(plan.moved),
            claimed: false,
            durable: true,
        };
        self.meta(plan.to_node, set_new).await?;
        self.take_name(*from_directory, from_name, &plan.moved, true).await
    }
}

/// Links that are counted for what moves while it may have both names. The links of a directory
/// count something else.
fn extra_link(plan: &Move) -> i64 {
    i64::from(plan.moved.kind != (Kind::Directory {}))
}
