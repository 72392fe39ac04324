//! Operations on paths.

use fileio::hash::partition_of;
use std::sync::Arc;

use fileio::client::send_to_with_retries;
use fileio::protocol::access::{READ, WRITE};
use fileio::protocol::{
    Error as FileIoError, Existing, Flush, GetSpace, Handle, Link, MakeNode, Name, NewNode,
    OpenNew, OpenedNewFile, ReadLink, Remove, RemoveDirectory, Rename, SyncDirectory, handle_of,
};
use futures::{StreamExt as _, stream};
use runtime::client_handle::CallNumbers;
use runtime::{NodeId, Spawn};

use crate::directory::ReadDir;
use crate::error::{Cause, Error};
use crate::file::File;
use crate::leases::{LeaseReply, OpenFileGuard};
use crate::options::OpenOptions;
use crate::session::ClientSession;
use crate::unsynced::UnsyncedWrites;
use crate::walk::{FinalSymlink, PathTarget};
use crate::xattrs::FileXattrs;
use crate::{Attributes, Change, Credentials, Kind, Space};

/// Nodes that flush concurrently, at most.
const FLUSHES_CONCURRENCY_MAX: usize = 64;

/// Permission bits of a new directory, unless said otherwise.
pub const DIRECTORY_MODE: u32 = 0o755;

/// A mounted volume, as one user. Cheap to clone; clones share the numbering of calls, and the
/// leases under which open files are held.
#[derive(Clone, Debug)]
pub struct FileSystem<S> {
    pub(crate) session: ClientSession<S>,
}

impl<S: Spawn> FileSystem<S> {
    /// The file system that `machine` leads to, as the user `who`. `client` marks the calls of this
    /// client; no two clients of a volume may have the same, so draw it at random.
    pub fn new(machine: S, who: Credentials, client: u64) -> Self {
        Self::with_calls(machine, who, Arc::new(CallNumbers::new(client)))
    }

    /// As [`new`](Self::new), for a client whose calls are numbered by others too.
    pub fn with_calls(machine: S, who: Credentials, calls: Arc<CallNumbers>) -> Self {
        Self { session: ClientSession::new(machine, who, calls) }
    }

    /// Keeps at most `bytes_max` bytes of unsynced writes, to send them again if a server crashes;
    /// without this call [`RETAINED_BYTES_MAX`](crate::unsynced::RETAINED_BYTES_MAX). With 0 a loss
    /// is only reported. To be called before files are opened.
    #[must_use]
    pub fn retaining(mut self, bytes_max: usize) -> Self {
        self.session.retain(bytes_max);
        self
    }

    /// What the requests are sent from.
    pub fn machine(&self) -> &S {
        self.session.machine()
    }

    /// Opens a regular file.
    pub async fn open(
        &self,
        path: impl AsRef<[u8]>,
        options: OpenOptions,
    ) -> Result<File<S>, Error> {
        let path = path.as_ref();
        let operation = if options.creates() { "create" } else { "open" };
        let opened = self.open_place(path, options).await;
        let holding = opened.map_err(Error::of(operation, path))?;
        Ok(File::new(self.session.clone(), path, holding, options))
    }

    /// Opens a file for writing; it is made if it does not exist, and emptied if it does.
    pub async fn create(&self, path: impl AsRef<[u8]>) -> Result<File<S>, Error> {
        self.open(path, OpenOptions::new().write(true).create(true).truncate(true)).await
    }

    async fn open_place(
        &self,
        path: &[u8],
        options: OpenOptions,
    ) -> Result<OpenFileGuard<S>, Cause> {
        options.check()?;
        let _opening = self.session.leases().opening();
        if options.creates() {
            let place = self.session.place_of(path).await?;
            if let Some((directory, name)) = place {
                match self.open_new(directory, name, options).await {
                    // Perhaps a symbolic link to something.
                    Err(Cause::FileIo(FileIoError::Exists {})) if !options.create_new => {}
                    opened => return opened,
                }
            }
        }
        if options.create_new {
            let place = self.session.walk(path, FinalSymlink::Keep).await?;
            return match place.found {
                Some(_) => Err(FileIoError::Exists {}.into()),
                None => self.open_new_place(place, options).await,
            };
        }
        let place = self.session.walk(path, FinalSymlink::Open).await?;
        match place.found {
            Some(found) => self.open_existing(found, place.lease, options).await,
            None if options.creates() => self.open_new_place(place, options).await,
            None => Err(FileIoError::NotFound {}.into()),
        }
    }

    async fn open_existing(
        &self,
        found: Attributes,
        lease: Option<LeaseReply>,
        options: OpenOptions,
    ) -> Result<OpenFileGuard<S>, Cause> {
        match found.kind {
            Kind::File {} => {}
            Kind::Directory {} => return Err(FileIoError::IsDirectory {}.into()),
            _ => return Err(Cause::NotRegular),
        }
        let lease = lease.ok_or(Cause::NotRegular)?;
        let holding =
            self.session.leases().opened(self.session.machine(), handle_of(&found), lease).await?;
        self.permit_open(&found, options).await?;
        Ok(holding)
    }

    /// Checks that a file may be opened so, and empties it if that is wanted.
    async fn permit_open(&self, found: &Attributes, options: OpenOptions) -> Result<(), Cause> {
        let read = if options.read { READ } else { 0 };
        let write = if options.writes() { WRITE } else { 0 };
        if !found.permits(&self.session.who(), read | write) {
            return Err(FileIoError::AccessDenied {}.into());
        }
        if options.truncate {
            self.session.change(found, Change { size: Some(0), ..Change::default() }).await?;
        }
        Ok(())
    }

    async fn open_new_place(
        &self,
        place: PathTarget,
        options: OpenOptions,
    ) -> Result<OpenFileGuard<S>, Cause> {
        if place.directory_meant {
            return Err(FileIoError::IsDirectory {}.into());
        }
        let (directory, name) = place.named()?;
        self.open_new(directory, name, options).await
    }

    /// Makes a file, or opens the one that is there.
    async fn open_new(
        &self,
        directory: Handle,
        name: Name,
        options: OpenOptions,
    ) -> Result<OpenFileGuard<S>, Cause> {
        let existing = if options.create_new { Existing::Refuse {} } else { Existing::Use {} };
        let change = Change { mode: Some(options.mode), ..Change::default() };
        let (who, call) = (self.session.who(), self.session.call());
        let durable = self.session.names_durably();
        let create = OpenNew { who, call, directory, name, existing, change, durable };
        let OpenedNewFile { created, lease } = self.session.ask(create).await?;
        let (file, answered) = (created.attributes, LeaseReply { call, lease });
        let holding = self
            .session
            .leases()
            .opened(self.session.machine(), handle_of(&file), answered)
            .await?;
        if !created.new {
            self.permit_open(&file, options).await?;
        }
        Ok(holding)
    }

    /// What is known of the file; of a symbolic link's target.
    pub async fn metadata(&self, path: impl AsRef<[u8]>) -> Result<Attributes, Error> {
        let path = path.as_ref();
        self.session.find(path, FinalSymlink::Follow).await.map_err(Error::of("look up", path))
    }

    /// What is known of the file; of a symbolic link itself.
    pub async fn symlink_metadata(&self, path: impl AsRef<[u8]>) -> Result<Attributes, Error> {
        let path = path.as_ref();
        self.session.find(path, FinalSymlink::Keep).await.map_err(Error::of("look up", path))
    }

    /// Changes mode, owner, times or size; of a symbolic link's target.
    pub async fn set_attributes(
        &self,
        path: impl AsRef<[u8]>,
        change: Change,
    ) -> Result<Attributes, Error> {
        self.change_at(path.as_ref(), FinalSymlink::Follow, change).await
    }

    /// Changes attributes; of a symbolic link itself.
    pub async fn set_symlink_attributes(
        &self,
        path: impl AsRef<[u8]>,
        change: Change,
    ) -> Result<Attributes, Error> {
        self.change_at(path.as_ref(), FinalSymlink::Keep, change).await
    }

    async fn change_at(
        &self,
        path: &[u8],
        last: FinalSymlink,
        change: Change,
    ) -> Result<Attributes, Error> {
        let changed =
            async { self.session.change(&self.session.find(path, last).await?, change).await };
        changed.await.map_err(Error::of("change", path))
    }

    /// The extended attributes of the file; of a symbolic link's target.
    pub fn xattrs(&self, path: impl AsRef<[u8]>) -> FileXattrs<S> {
        FileXattrs::new(self.session.clone(), path.as_ref())
    }

    /// Makes a directory.
    pub async fn mkdir(&self, path: impl AsRef<[u8]>) -> Result<Attributes, Error> {
        self.mkdir_with_mode(path, DIRECTORY_MODE).await
    }

    /// Makes a directory with these permission bits.
    pub async fn mkdir_with_mode(
        &self,
        path: impl AsRef<[u8]>,
        mode: u32,
    ) -> Result<Attributes, Error> {
        let path = path.as_ref();
        let change = Change { mode: Some(mode), ..Change::default() };
        let attributes = self.make(path, NewNode::Directory {}, change).await;
        attributes.map_err(Error::of("make directory", path))
    }

    /// Makes a symbolic link at `path` that points to `target`.
    pub async fn symlink(
        &self,
        target: impl AsRef<[u8]>,
        path: impl AsRef<[u8]>,
    ) -> Result<Attributes, Error> {
        let path = path.as_ref();
        let node = NewNode::Symlink { target: target.as_ref().to_vec() };
        let made = self.make(path, node, Change::default()).await;
        made.map_err(Error::of("make symbolic link", path))
    }

    async fn make(&self, path: &[u8], node: NewNode, change: Change) -> Result<Attributes, Cause> {
        let (directory, name) = self.place_of_new(path, node == (NewNode::Directory {})).await?;
        let (who, call) = (self.session.who(), self.session.call());
        let durable = self.session.names_durably();
        self.session.ask(MakeNode { who, call, directory, name, node, change, durable }).await
    }

    /// Where a symbolic link points.
    pub async fn read_link(&self, path: impl AsRef<[u8]>) -> Result<Vec<u8>, Error> {
        let path = path.as_ref();
        let target = async {
            let file = handle_of(&self.session.find(path, FinalSymlink::Keep).await?);
            self.session.ask(ReadLink { file }).await
        };
        target.await.map_err(Error::of("read symbolic link", path))
    }

    /// Gives the file `original` the further name `path`.
    pub async fn hard_link(
        &self,
        original: impl AsRef<[u8]>,
        path: impl AsRef<[u8]>,
    ) -> Result<Attributes, Error> {
        let path = path.as_ref();
        let linked = async {
            let file = handle_of(&self.session.find(original.as_ref(), FinalSymlink::Keep).await?);
            let (directory, name) = self.place_of_new(path, false).await?;
            let (who, call) = (self.session.who(), self.session.call());
            let durable = self.session.names_durably();
            self.session.ask(Link { who, call, file, directory, name, durable }).await
        };
        linked.await.map_err(Error::of("make link", path))
    }

    /// Removes a name that is not a directory's.
    pub async fn remove_file(&self, path: impl AsRef<[u8]>) -> Result<(), Error> {
        let path = path.as_ref();
        let removed = async {
            let (directory, name) = self.place_of_existing(path).await?;
            self.remove_name(directory, name).await
        };
        removed.await.map_err(Error::of("remove", path))
    }

    /// Removes an empty directory.
    pub async fn remove_dir(&self, path: impl AsRef<[u8]>) -> Result<(), Error> {
        let path = path.as_ref();
        let removed = async {
            let (directory, name) = self.place_of_existing(path).await?;
            self.remove_directory_name(directory, name).await
        };
        removed.await.map_err(Error::of("remove directory", path))
    }

    /// The directory and the name of something that is expected not to exist; the request that
    /// makes it checks.
    async fn place_of_new(&self, path: &[u8], is_directory: bool) -> Result<(Handle, Name), Cause> {
        if let Some(place) = self.session.place_of(path).await? {
            return Ok(place);
        }
        let place = self.session.walk(path, FinalSymlink::Keep).await?;
        if place.found.is_some() {
            return Err(FileIoError::Exists {}.into());
        }
        if place.directory_meant && !is_directory {
            return Err(FileIoError::NotFound {}.into());
        }
        place.named()
    }

    /// The directory and the name of something that is expected to exist; the next request checks.
    async fn place_of_existing(&self, path: &[u8]) -> Result<(Handle, Name), Cause> {
        if let Some(place) = self.session.place_of(path).await? {
            return Ok(place);
        }
        let place = self.session.walk(path, FinalSymlink::Keep).await?;
        place.found.ok_or(FileIoError::NotFound {})?;
        place.named()
    }

    pub(crate) async fn remove_name(&self, directory: Handle, name: Name) -> Result<(), Cause> {
        let (who, call) = (self.session.who(), self.session.call());
        self.session.ask(Remove { who, call, directory, name, durable: false }).await
    }

    pub(crate) async fn remove_directory_name(
        &self,
        directory: Handle,
        name: Name,
    ) -> Result<(), Cause> {
        let (who, call) = (self.session.who(), self.session.call());
        self.session.ask(RemoveDirectory { who, call, directory, name, durable: false }).await
    }

    /// Gives a file or a directory another name, replacing what has it.
    pub async fn rename(&self, from: impl AsRef<[u8]>, to: impl AsRef<[u8]>) -> Result<(), Error> {
        let from = from.as_ref();
        let renamed = async {
            let places =
                (self.session.place_of(from).await?, self.session.place_of(to.as_ref()).await?);
            let ((from_directory, from_name), (to_directory, to_name)) = match places {
                (Some(from), Some(to)) => (from, to),
                _ => self.places_of_rename(from, to.as_ref()).await?,
            };
            let (who, call) = (self.session.who(), self.session.call());
            self.session
                .ask(Rename {
                    who,
                    call,
                    from_directory,
                    from_name,
                    to_directory,
                    to_name,
                    replace: true,
                    durable: self.session.names_durably(),
                })
                .await
        };
        renamed.await.map_err(Error::of("rename", from))
    }

    /// The names of a rename of which one ends in `/`, say.
    async fn places_of_rename(
        &self,
        from: &[u8],
        to: &[u8],
    ) -> Result<((Handle, Name), (Handle, Name)), Cause> {
        let place = self.session.walk(from, FinalSymlink::Keep).await?;
        let moved = place.found.ok_or(FileIoError::NotFound {})?;
        let from = place.named()?;
        let place = self.session.walk(to, FinalSymlink::Keep).await?;
        if place.directory_meant && moved.kind != (Kind::Directory {}) {
            return Err(FileIoError::NotDirectory {}.into());
        }
        Ok((from, place.named()?))
    }

    /// Lists a directory.
    pub async fn read_dir(&self, path: impl AsRef<[u8]>) -> Result<ReadDir<S>, Error> {
        let path = path.as_ref();
        let found = self.session.find(path, FinalSymlink::Follow).await;
        let attributes = found.map_err(Error::of("list", path))?;
        if attributes.kind != (Kind::Directory {}) {
            return Err(Error::of("list", path)(FileIoError::NotDirectory {}));
        }
        Ok(ReadDir::new(self.session.clone(), path, handle_of(&attributes)))
    }

    /// Space of the volume; of a partition, if this client is limited to it.
    pub async fn space(&self) -> Result<Space, Error> {
        let partition = partition_of(self.session.root().ino);
        self.session
            .ask(GetSpace { partition })
            .await
            .map_err(Error::of("ask for the space of", b"/"))
    }

    /// Makes all earlier changes durable, of all clients. Reports once if writes of this client are
    /// lost because a node has restarted.
    pub async fn sync(&self) -> Result<(), Error> {
        self.wait_for_closes().await;
        let synced = sync_all(self.session.machine(), self.session.unsynced()).await;
        synced.map_err(Error::of("sync", b"/"))
    }

    /// Makes all names of a directory durable as they are, also those that are gone, with what they
    /// name: what POSIX has `fsync` of a directory for.
    pub async fn sync_directory(&self, path: impl AsRef<[u8]>) -> Result<(), Error> {
        let path = path.as_ref();
        let synced = async {
            let directory = handle_of(&self.session.find(path, FinalSymlink::Follow).await?);
            self.session.ask(SyncDirectory { directory }).await
        };
        synced.await.map_err(Error::of("sync directory", path))
    }

    /// Waits until the nodes have heard which files were closed, or do not answer.
    pub(crate) async fn wait_for_closes(&self) {
        self.session.leases().wait_for_closes(self.session.machine()).await;
    }
}

/// Makes all earlier changes durable, of all clients. [`FileIoError::LostWrites`] if writes of this
/// one are lost, once.
pub async fn sync_all<S: Spawn>(
    machine: &S,
    unsynced: &Arc<UnsyncedWrites>,
) -> Result<(), FileIoError> {
    unsynced.sync_all(machine).await?;
    let nodes = stream::iter((0..machine.fs_nodes()).map(NodeId::fs));
    let flushed = nodes
        .map(|node| send_to_with_retries(machine, node, Flush {}))
        .buffer_unordered(FLUSHES_CONCURRENCY_MAX);
    let results: Vec<Result<(), FileIoError>> = flushed.collect().await;
    results.into_iter().collect()
}
