//! Removing names.

use std::rc::Rc;

use futures::future::try_join_all;
use meta::protocol::{ChangeName, Dentry, DirectoryChange, Freeze, HasNames, Occupancy, Thaw};
use runtime::NodeId;

use super::FileServer;
use super::create::handle_of;
use crate::protocol::{
    Attributes, DropLink, Error, Handle, Kind, Name, Remove, RemoveDirectory, Time,
};
use crate::rules;

impl FileServer {
    pub(super) async fn remove(self: &Rc<Self>, request: Remove) -> Result<(), Error> {
        self.racing(async || {
            self.changing(request.directory, async |above| self.remove_in(&request, above).await)
                .await
        })
        .await
    }

    async fn remove_in(
        self: &Rc<Self>,
        request: &Remove,
        above: &Attributes,
    ) -> Result<((), Option<DirectoryChange>), Error> {
        let Remove { who, directory, name, durable, .. } = request;
        rules::check_search(who, above)?;
        let found = self.find(*directory, name).await?.ok_or(Error::NotFound {})?;
        let now = self.now();
        let change = DirectoryChange { time: now, links: 0 };
        let file = match self.named(&found).await {
            Err(Error::Changed {}) if self.find(*directory, name).await? == Some(found) => {
                // A name goes before its inode, so this is damage, which can be removed.
                rules::check_add(who, above)?;
                self.take_name(*directory, name, &found, false).await?;
                return Ok(((), Some(change)));
            }
            file => file?,
        };
        rules::check_take(who, above, file.uid)?;
        if file.kind == (Kind::Directory {}) {
            return Err(Error::IsDirectory {});
        }
        self.remove_name(*directory, name, &found, now, *durable).await?;
        Ok(((), Some(change)))
    }

    /// Removes a name of this node, durably; `claimed` if the asker has claimed it.
    pub(super) async fn take_name(
        &self,
        directory: Handle,
        name: &Name,
        found: &Dentry,
        claimed: bool,
    ) -> Result<(), Error> {
        let call = ChangeName {
            directory: directory.ino,
            name: name.clone(),
            expect: Some(*found),
            set: None,
            claimed,
            durable: true,
        };
        self.meta_here(call).await
    }

    /// The attributes of what a name names; `Changed` if it was removed just now.
    pub(super) async fn named(&self, dentry: &Dentry) -> Result<Attributes, Error> {
        match self.inode(handle_of(dentry)).await {
            Err(Error::Stale {}) => Err(Error::Changed {}),
            inode => Ok(inode?.attributes),
        }
    }

    /// Removes a name of this node and drops the link: in one record if the inode is here too.
    async fn remove_name(
        self: &Rc<Self>,
        directory: Handle,
        name: &Name,
        found: &Dentry,
        time: Time,
        durable: bool,
    ) -> Result<(), Error> {
        if self.node_of(found.ino) == self.context.node() {
            let name = Some((directory.ino, name.clone()));
            return match self.drop_link_here(handle_of(found), name, time, durable).await {
                // Somebody else has removed this name, and with it the file: look again.
                Err(Error::Stale {}) => Err(Error::Changed {}),
                outcome => outcome,
            };
        }
        // The inode's node has another log: were its record durable and this one not, a crash
        // would leave a name of nothing.
        self.take_name(directory, name, found, false).await?;
        self.drop_link_at_its_node(found, time, durable).await
    }

    pub(super) async fn drop_link_at_its_node(
        &self,
        found: &Dentry,
        time: Time,
        durable: bool,
    ) -> Result<(), Error> {
        let call = DropLink { file: handle_of(found), time, durable };
        self.context.spawn(self.node_of(found.ino), call).await
    }

    pub(super) async fn remove_directory(
        self: &Rc<Self>,
        request: RemoveDirectory,
    ) -> Result<(), Error> {
        self.racing(async || {
            self.changing(request.directory, async |above| {
                self.remove_directory_in(&request, above).await
            })
            .await
        })
        .await
    }

    async fn remove_directory_in(
        self: &Rc<Self>,
        request: &RemoveDirectory,
        above: &Attributes,
    ) -> Result<((), Option<DirectoryChange>), Error> {
        let RemoveDirectory { who, directory, name, .. } = request;
        rules::check_search(who, above)?;
        let found = self.find(*directory, name).await?.ok_or(Error::NotFound {})?;
        let removed = self.named(&found).await?;
        rules::check_take(who, above, removed.uid)?;
        if removed.kind != (Kind::Directory {}) {
            return Err(Error::NotDirectory {});
        }
        let now = self.now();
        self.freeze_empty(&found).await?;
        let gone = self.remove_name(*directory, name, &found, now, true).await;
        if gone.is_err() {
            self.thaw(&found).await?;
        }
        gone?;
        Ok(((), Some(DirectoryChange { time: now, links: -1 })))
    }

    /// Stops changes in a directory that is empty; `NotEmpty` if it is not, and then lets changes
    /// go on.
    pub(super) async fn freeze_empty(&self, found: &Dentry) -> Result<(), Error> {
        let Handle { ino, generation } = handle_of(found);
        let node = self.node_of(ino);
        let freeze = Freeze { directory: ino, generation };
        let occupancy = match self.meta(node, freeze).await {
            Err(Error::Stale {}) => return Err(Error::Changed {}),
            occupancy => occupancy?,
        };
        let empty = self.is_empty(ino, &occupancy).await;
        match empty {
            Ok(true) => Ok(()),
            Ok(false) => {
                self.thaw(found).await?;
                Err(Error::NotEmpty {})
            }
            Err(error) => {
                self.thaw(found).await?;
                Err(error)
            }
        }
    }

    pub(super) async fn thaw(&self, found: &Dentry) -> Result<(), Error> {
        self.meta(self.node_of(found.ino), Thaw { directory: found.ino }).await
    }

    async fn is_empty(&self, directory: u64, occupancy: &Occupancy) -> Result<bool, Error> {
        let nodes = match &occupancy.nodes {
            Some(nodes) => nodes.clone(),
            None => (0..self.context.fs_nodes()).collect(),
        };
        Ok(self.occupied_nodes(directory, nodes).await?.is_empty())
    }

    /// Those of `nodes` that hold names of `directory`.
    pub(super) async fn occupied_nodes(
        &self,
        directory: u64,
        nodes: Vec<u32>,
    ) -> Result<Vec<u32>, Error> {
        let asked = nodes.into_iter().map(|node| async move {
            let has = self.meta(NodeId::fs(node), HasNames { directory }).await?;
            Ok::<_, Error>(has.then_some(node))
        });
        Ok(try_join_all(asked).await?.into_iter().flatten().collect())
    }
}
