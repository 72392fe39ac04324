//! Names: found, made, moved, removed.

use client::leases::Answered;
use client::protocol::{
    Attributes, Change, Create, Existing, Link, Lookup, MakeNode, Name, NewNode, OpenNew,
    OpenedNewFile, Remove, RemoveDirectory, Rename,
};
use runtime::Spawn;

use super::attributes::permitted;
use super::{Operations, Wanted};
use crate::caller::Caller;
use crate::translate::Failure;

/// A name in a directory that the kernel knows.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) directory: u64,
    pub(crate) name: Vec<u8>,
}

/// What to make.
#[derive(Clone, Debug)]
pub(crate) enum Node {
    /// A regular file.
    File,
    /// Anything else.
    Other(NewNode),
}

impl<S: Spawn> Operations<S> {
    /// What a name names.
    pub(crate) async fn look_up(
        &self,
        caller: Caller,
        place: Place,
    ) -> Result<Attributes, Failure> {
        let (directory, name) = self.place(place)?;
        Ok(self.ask(Lookup { who: caller.credentials(), directory, name }).await?)
    }

    fn place(&self, place: Place) -> Result<(client::protocol::Handle, Name), Failure> {
        let name = Name::new(place.name)?;
        Ok((self.handle(place.directory)?, name))
    }

    /// Makes what does not exist yet.
    pub(crate) async fn make(
        &self,
        caller: Caller,
        place: Place,
        node: Node,
        mode: Option<u32>,
    ) -> Result<Attributes, Failure> {
        let change = Change { mode, ..Change::default() };
        let node = match node {
            Node::File => {
                let (directory, name) = self.place(place)?;
                let (who, call) = (caller.credentials(), self.call());
                let (existing, durable) = (Existing::Refuse {}, false);
                let create = Create { who, call, directory, name, existing, change, durable };
                return Ok(self.ask(create).await?.attributes);
            }
            Node::Other(node) => node,
        };
        let (directory, name) = self.place(place)?;
        let (who, call) = (caller.credentials(), self.call());
        Ok(self.ask(MakeNode { who, call, directory, name, node, change, durable: false }).await?)
    }

    /// Makes a regular file and opens it; the number of the open file, too. If `new_only` is not set, one
    /// that somebody else has made meanwhile will do, if it may be opened as `wanted`.
    pub(crate) async fn create(
        &self,
        caller: Caller,
        place: Place,
        mode: u32,
        new_only: bool,
        wanted: Wanted,
    ) -> Result<(Attributes, u64), Failure> {
        let (directory, name) = self.place(place)?;
        let existing = if new_only { Existing::Refuse {} } else { Existing::Use {} };
        let change = Change { mode: Some(mode), ..Change::default() };
        let _opening = self.leases.opening();
        let (who, call) = (caller.credentials(), self.call());
        let create = OpenNew { who, call, directory, name, existing, change, durable: false };
        let OpenedNewFile { created, lease } = self.ask(create).await?;
        let file = created.attributes;
        let holding = self.held(&file, Answered { call, lease }).await?;
        if !created.new {
            permitted(&file, caller, wanted)?;
        }
        Ok((file, self.open_held(holding)))
    }

    /// Gives a file one more name.
    pub(crate) async fn link(
        &self,
        caller: Caller,
        ino: u64,
        place: Place,
    ) -> Result<Attributes, Failure> {
        let file = self.handle(ino)?;
        let (directory, name) = self.place(place)?;
        let (who, call) = (caller.credentials(), self.call());
        Ok(self.ask(Link { who, call, file, directory, name, durable: false }).await?)
    }

    /// Removes a name that is not a directory's.
    pub(crate) async fn remove(&self, caller: Caller, place: Place) -> Result<(), Failure> {
        let (directory, name) = self.place(place)?;
        let (who, call) = (caller.credentials(), self.call());
        Ok(self.ask(Remove { who, call, directory, name, durable: false }).await?)
    }

    /// Removes an empty directory.
    pub(crate) async fn remove_directory(
        &self,
        caller: Caller,
        place: Place,
    ) -> Result<(), Failure> {
        let (directory, name) = self.place(place)?;
        let (who, call) = (caller.credentials(), self.call());
        Ok(self.ask(RemoveDirectory { who, call, directory, name, durable: false }).await?)
    }

    /// Gives a file another name; it takes the place of what has that only if `replace` is set.
    pub(crate) async fn rename(
        &self,
        caller: Caller,
        from: Place,
        to: Place,
        replace: bool,
    ) -> Result<(), Failure> {
        let (from_directory, from_name) = self.place(from)?;
        let (to_directory, to_name) = self.place(to)?;
        let (who, call) = (caller.credentials(), self.call());
        let rename = Rename {
            who,
            call,
            from_directory,
            from_name,
            to_directory,
            to_name,
            replace,
            durable: false,
        };
        Ok(self.ask(rename).await?)
    }
}
