//! Names: lookup, creation, rename, removal.

use client::protocol::{
    Attributes, Change, Create, Existing, Link, Lookup, MakeNode, Name, NewNode, OpenNew,
    OpenedNewFile, Remove, RemoveDirectory, Rename, handle_of,
};
use runtime::Spawn;

use super::{AccessMask, MountOperations, OpenedNumber};
use crate::caller::CallerProcess;
use crate::translate::KernelResult;
use crate::volume_client::OpenTarget;

/// A name in a directory.
#[derive(Clone, Debug)]
pub(crate) struct EntryName {
    pub(crate) directory: u64,
    pub(crate) name: Vec<u8>,
}

/// The kind of a new inode.
#[derive(Clone, Debug)]
pub(crate) enum NewInodeKind {
    /// A regular file.
    File,
    /// Anything else.
    Other(NewNode),
}

impl<S: Spawn> MountOperations<S> {
    /// Looks a name up.
    pub(crate) async fn look_up(
        &self,
        caller: CallerProcess,
        entry: EntryName,
    ) -> KernelResult<Attributes> {
        let (directory, name) = self.entry(entry)?;
        let found = self.volume.request(Lookup { who: caller.credentials(), directory, name });
        Ok(self.volume.with_own_writes(found.await?).await)
    }

    fn entry(&self, entry: EntryName) -> KernelResult<(client::protocol::Handle, Name)> {
        let name = Name::new(entry.name)?;
        Ok((self.handle(entry.directory)?, name))
    }

    /// Creates a file of any kind; fails if the name exists.
    pub(crate) async fn make(
        &self,
        caller: CallerProcess,
        entry: EntryName,
        node: NewInodeKind,
        mode: Option<u32>,
    ) -> KernelResult<Attributes> {
        self.volume.send_all_collected().await;
        let change = Change { mode, ..Change::default() };
        let node = match node {
            NewInodeKind::File => {
                let (directory, name) = self.entry(entry)?;
                let (who, call) = (caller.credentials(), self.volume.call());
                let (existing, durable) = (Existing::Refuse {}, self.volume.names_durably());
                let create = Create { who, call, directory, name, existing, change, durable };
                return Ok(self.volume.request(create).await?.attributes);
            }
            NewInodeKind::Other(node) => node,
        };
        let (directory, name) = self.entry(entry)?;
        let (who, call) = (caller.credentials(), self.volume.call());
        let durable = self.volume.names_durably();
        Ok(self
            .volume
            .request(MakeNode { who, call, directory, name, node, change, durable })
            .await?)
    }

    /// Creates a regular file and opens it; returns its attributes, counted as a lookup. Unless
    /// `new_only` is set, a file that another client has created meanwhile is opened, if the mode
    /// permits it.
    pub(crate) async fn create(
        &self,
        caller: CallerProcess,
        entry: EntryName,
        mode: u32,
        new_only: bool,
        access_mask: AccessMask,
    ) -> KernelResult<(Attributes, OpenedNumber)> {
        self.volume.send_all_collected().await;
        let (directory, name) = self.entry(entry)?;
        let existing = if new_only { Existing::Refuse {} } else { Existing::Use {} };
        let change = Change { mode: Some(mode), ..Change::default() };
        let _opening = self.volume.leases.opening();
        let (opener, call) = (caller.credentials(), self.volume.call());
        let (who, durable) = (opener.clone(), self.volume.names_durably());
        let create = OpenNew { who, call, directory, name, existing, change, durable };
        let restarts = self.volume.machine.restarts();
        let OpenedNewFile { created, lease } = self.volume.request(create).await?;
        let file = self.volume.with_own_writes(created.attributes).await;
        let mut holding = None;
        if lease != 0 {
            holding = Some(self.volume.record_new(&file, call, lease).await?);
        }
        let (holding, version) = match holding {
            // Its owner may read and write it, whatever the mode.
            Some(new) if created.new => (new, self.volume.version_since(restarts, &file)),
            // Closed after it is opened once more, for what its mode permits.
            _ => self.volume.open(&opener, handle_of(&file), OpenTarget::File(access_mask)).await?,
        };
        self.inodes.add_lookup(&file);
        Ok((file, self.add_open_file(holding, opener, version)))
    }

    /// Adds a name to a file.
    pub(crate) async fn link(
        &self,
        caller: CallerProcess,
        ino: u64,
        entry: EntryName,
    ) -> KernelResult<Attributes> {
        self.volume.send_all_collected().await;
        let file = self.handle(ino)?;
        let (directory, name) = self.entry(entry)?;
        let (who, call) = (caller.credentials(), self.volume.call());
        let durable = self.volume.names_durably();
        Ok(self.volume.request(Link { who, call, file, directory, name, durable }).await?)
    }

    /// Removes a name of a file that is not a directory.
    pub(crate) async fn remove(&self, caller: CallerProcess, entry: EntryName) -> KernelResult<()> {
        self.volume.send_all_collected().await;
        let (directory, name) = self.entry(entry)?;
        let (who, call) = (caller.credentials(), self.volume.call());
        Ok(self.volume.request(Remove { who, call, directory, name, durable: false }).await?)
    }

    /// Removes an empty directory.
    pub(crate) async fn remove_directory(
        &self,
        caller: CallerProcess,
        entry: EntryName,
    ) -> KernelResult<()> {
        self.volume.send_all_collected().await;
        let (directory, name) = self.entry(entry)?;
        let (who, call) = (caller.credentials(), self.volume.call());
        Ok(self
            .volume
            .request(RemoveDirectory { who, call, directory, name, durable: false })
            .await?)
    }

    /// Renames a file; replaces an existing one only if `replace` is set.
    pub(crate) async fn rename(
        &self,
        caller: CallerProcess,
        from: EntryName,
        to: EntryName,
        replace: bool,
    ) -> KernelResult<()> {
        let (from_directory, from_name) = self.entry(from)?;
        let (to_directory, to_name) = self.entry(to)?;
        self.volume.send_all_collected().await;
        let (who, call) = (caller.credentials(), self.volume.call());
        let rename = Rename {
            who,
            call,
            from_directory,
            from_name,
            to_directory,
            to_name,
            replace,
            durable: self.volume.names_durably(),
        };
        Ok(self.volume.request(rename).await?)
    }
}
