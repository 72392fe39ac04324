//! Requests of root that several workloads send, with fresh call IDs.

use fileio::protocol::{
    Attributes, Change, Create, Credentials, Existing, GetSpace, Handle, Link, Lookup, MakeNode,
    Name, NewNode, ROOT, Remove, RemoveDirectory, Rename, Space, handle_of,
};

use super::harness::{CallFailure, Harness};
use super::names::name;

impl Harness {
    /// Makes a file that must not exist.
    pub(super) fn create_request(&self, directory: Handle, name: Name, durable: bool) -> Create {
        let (who, call) = (Credentials::root(), self.call_id());
        let (existing, change) = (Existing::Refuse {}, Change::default());
        Create { who, call, directory, name, existing, change, durable }
    }

    /// Makes a directory.
    pub(super) fn mkdir_request(&self, directory: Handle, name: Name, durable: bool) -> MakeNode {
        let (who, call) = (Credentials::root(), self.call_id());
        let (node, change) = (NewNode::Directory {}, Change::default());
        MakeNode { who, call, directory, name, node, change, durable }
    }

    /// Removes a name of a file.
    pub(super) fn remove_request(&self, directory: Handle, name: Name, durable: bool) -> Remove {
        Remove { who: Credentials::root(), call: self.call_id(), directory, name, durable }
    }

    /// Removes an empty directory.
    pub(super) fn rmdir_request(
        &self,
        directory: Handle,
        name: Name,
        durable: bool,
    ) -> RemoveDirectory {
        RemoveDirectory { who: Credentials::root(), call: self.call_id(), directory, name, durable }
    }

    /// Gives a file one more name.
    pub(super) fn link_request(
        &self,
        file: Handle,
        (directory, name): (Handle, Name),
        durable: bool,
    ) -> Link {
        Link { who: Credentials::root(), call: self.call_id(), file, directory, name, durable }
    }

    /// Renames, in place of what has the new name.
    pub(super) fn rename_request(
        &self,
        (from_directory, from_name): (Handle, Name),
        (to_directory, to_name): (Handle, Name),
        durable: bool,
    ) -> Rename {
        Rename {
            who: Credentials::root(),
            call: self.call_id(),
            from_directory,
            from_name,
            to_directory,
            to_name,
            replace: true,
            durable,
        }
    }

    /// Makes a durable directory in the root of a fresh volume.
    pub(super) async fn make_directory(&self, client: u32, text: &str) -> Handle {
        let made = self.ask(client, self.mkdir_request(ROOT, name(text), true)).await;
        handle_of(&made.expect("the root has room"))
    }

    /// Looks up a name.
    pub(super) async fn lookup(
        &self,
        client: u32,
        directory: Handle,
        name: Name,
    ) -> Result<Attributes, CallFailure> {
        self.ask(client, Lookup { who: Credentials::root(), directory, name }).await
    }

    /// The space and the inodes of the volume.
    pub(super) async fn space(&self) -> Space {
        let space = self.ask(0, GetSpace { partition: 0 }).await;
        space.unwrap_or_else(|failure| panic!("GetSpace failed: {failure:?}"))
    }
}
