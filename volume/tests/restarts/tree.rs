//! Names that are on nodes of the test's choice: who changes them asks until there is an answer.

use std::cell::Cell;

use fileio::protocol::*;
use runtime::NodeId;

use crate::cluster::{Cluster, FS_NODES};

/// A name in a directory.
pub(crate) type Place = (Handle, Name);

/// Changes names of a cluster.
pub(crate) struct Tree<'a> {
    pub(crate) cluster: &'a Cluster,
    calls: Cell<u64>,
    names: Cell<u64>,
}

fn who() -> Credentials {
    Credentials::root()
}

/// The handle of that which has these.
pub(crate) fn handle(attributes: &Attributes) -> Handle {
    Handle { ino: attributes.ino, generation: attributes.generation }
}

impl<'a> Tree<'a> {
    pub(crate) fn new(cluster: &'a Cluster) -> Self {
        Self { cluster, calls: Cell::default(), names: Cell::default() }
    }

    pub(crate) fn call(&self) -> CallId {
        self.calls.set(self.calls.get() + 1);
        CallId { client: 7, number: self.calls.get() }
    }

    /// A name that was never used, on the node `node`.
    pub(crate) fn place(&self, directory: Handle, node: NodeId) -> Place {
        loop {
            self.names.set(self.names.get() + 1);
            let name = Name::new(self.names.get().to_string().into_bytes()).expect("a name");
            if fileio::hash::name_node(directory.ino, &name, FS_NODES) == node {
                return (directory, name);
            }
        }
    }

    /// To make an empty file, if there is none of this name.
    pub(crate) fn creation(&self, (directory, name): &Place, durable: bool) -> Create {
        Create {
            who: who(),
            call: self.call(),
            directory: *directory,
            name: name.clone(),
            existing: Existing::Refuse {},
            change: Change::default(),
            durable,
        }
    }

    pub(crate) async fn create(&self, place: &Place, durable: bool) -> Handle {
        handle(&self.cluster.ask(self.creation(place, durable)).await.attributes)
    }

    /// To make a directory.
    pub(crate) fn making(&self, (directory, name): &Place, durable: bool) -> MakeNode {
        MakeNode {
            who: who(),
            call: self.call(),
            directory: *directory,
            name: name.clone(),
            node: NewNode::Directory {},
            change: Change::default(),
            durable,
        }
    }

    pub(crate) async fn make_directory(&self, place: &Place) -> Handle {
        handle(&self.cluster.ask(self.making(place, true)).await)
    }

    /// To rename, in place of what is there.
    pub(crate) fn renaming(&self, from: &(Handle, Name), to: &(Handle, Name)) -> Rename {
        Rename {
            who: who(),
            call: self.call(),
            from_directory: from.0,
            from_name: from.1.clone(),
            to_directory: to.0,
            to_name: to.1.clone(),
            replace: true,
            durable: true,
        }
    }

    pub(crate) async fn rename(&self, from: &Place, to: &Place) {
        self.cluster.ask(self.renaming(from, to)).await;
    }

    pub(crate) async fn remove(&self, (directory, name): &Place) {
        let (directory, name) = (*directory, name.clone());
        self.cluster
            .ask(Remove { who: who(), call: self.call(), directory, name, durable: true })
            .await;
    }

    pub(crate) async fn remove_directory(&self, (directory, name): &Place) {
        let (directory, name) = (*directory, name.clone());
        let remove =
            RemoveDirectory { who: who(), call: self.call(), directory, name, durable: true };
        self.cluster.ask(remove).await;
    }

    /// The directory is not empty.
    pub(crate) async fn cannot_remove_directory(&self, (directory, name): &Place) {
        let (directory, name) = (*directory, name.clone());
        let remove =
            RemoveDirectory { who: who(), call: self.call(), directory, name, durable: true };
        assert_eq!(self.cluster.ask_for(remove).await, Err(Error::NotEmpty {}));
    }

    pub(crate) async fn link(&self, file: Handle, (directory, name): &Place) {
        let (directory, name) = (*directory, name.clone());
        let link = Link { who: who(), call: self.call(), file, directory, name, durable: true };
        self.cluster.ask(link).await;
    }

    /// A file of which the name `place` is not where its inode is, which is on the node `inode`.
    pub(crate) async fn file(&self, place: &Place, inode: NodeId) -> Handle {
        let first = self.place(place.0, inode);
        let file = self.create(&first, true).await;
        self.rename(&first, place).await;
        file
    }

    /// The same for a directory.
    pub(crate) async fn directory(&self, place: &Place, inode: NodeId) -> Handle {
        let first = self.place(place.0, inode);
        let directory = self.make_directory(&first).await;
        self.rename(&first, place).await;
        directory
    }

    pub(crate) async fn find(&self, (directory, name): &Place) -> Option<Handle> {
        self.cluster.find_in(*directory, name).await
    }
}
