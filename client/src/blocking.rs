//! The file system for ordinary threads: each call waits for its answer.
//!
//! Not to be called from inside an async executor: it would block the thread that shall answer.

use std::any::Any;
use std::sync::Arc;

use bytes::Bytes;
use fileio::protocol::DirectoryEntry;
use runtime::{ClientHandle, wait};

use crate::error::Error;
use crate::file_system::FileSystem;
use crate::options::OpenOptions;
use crate::stream::{Mode, Stream};
use crate::{
    Attributes, ByteRange, Change, Credentials, FileLock, Lock, LockKind, Regions, SetTime, Space,
    XattrMode, XattrName, file,
};

/// A volume as ordinary threads use it. Cheap to clone; may be used by many threads at once.
#[derive(Clone, Debug)]
pub struct Volume {
    file_system: FileSystem<ClientHandle>,
    /// What must live as long as the volume is used, as a machine in this process.
    machine: Option<Arc<dyn KeptAlive>>,
}

/// Anything that is kept only to be dropped last.
trait KeptAlive: Any + Send + Sync + std::fmt::Debug {}
impl<T: Any + Send + Sync + std::fmt::Debug> KeptAlive for T {}

/// An open file of a [`Volume`].
#[derive(Clone, Debug)]
pub struct BlockingFile {
    file: file::File<ClientHandle>,
    volume: Volume,
}

impl Volume {
    /// The volume behind `client_handle`, as the user `who`.
    pub fn new(client_handle: ClientHandle, who: Credentials) -> Self {
        Self { file_system: FileSystem::new(client_handle, who, random_client()), machine: None }
    }

    /// The same, which keeps `machine` alive as long as it or one of its files is used.
    pub fn holding(
        client_handle: ClientHandle,
        who: Credentials,
        machine: impl Send + Sync + std::fmt::Debug + 'static,
    ) -> Self {
        Self { machine: Some(Arc::new(machine)), ..Self::new(client_handle, who) }
    }

    /// The same file system for futures, to have many operations under way at once.
    pub fn file_system(&self) -> &FileSystem<ClientHandle> {
        &self.file_system
    }

    /// See [`FileSystem::open`].
    pub fn open(
        &self,
        path: impl AsRef<[u8]>,
        options: OpenOptions,
    ) -> Result<BlockingFile, Error> {
        let file = wait(self.file_system.open(path, options))?;
        Ok(BlockingFile { file, volume: self.clone() })
    }

    /// See [`FileSystem::create`].
    pub fn create(&self, path: impl AsRef<[u8]>) -> Result<BlockingFile, Error> {
        let file = wait(self.file_system.create(path))?;
        Ok(BlockingFile { file, volume: self.clone() })
    }

    /// Opens a stream in one of the modes of C's `fopen`, as in `"r+"`.
    pub fn stream(
        &self,
        path: impl AsRef<[u8]>,
        mode: Mode,
    ) -> Result<Stream<BlockingFile>, Error> {
        let file = self.open(path, mode.options())?;
        Stream::new(file, mode)
    }

    /// See [`FileSystem::metadata`].
    pub fn metadata(&self, path: impl AsRef<[u8]>) -> Result<Attributes, Error> {
        wait(self.file_system.metadata(path))
    }

    /// See [`FileSystem::symlink_metadata`].
    pub fn symlink_metadata(&self, path: impl AsRef<[u8]>) -> Result<Attributes, Error> {
        wait(self.file_system.symlink_metadata(path))
    }

    /// See [`FileSystem::set_attributes`].
    pub fn set_attributes(
        &self,
        path: impl AsRef<[u8]>,
        change: Change,
    ) -> Result<Attributes, Error> {
        wait(self.file_system.set_attributes(path, change))
    }

    /// See [`FileSystem::set_symlink_attributes`].
    pub fn set_symlink_attributes(
        &self,
        path: impl AsRef<[u8]>,
        change: Change,
    ) -> Result<Attributes, Error> {
        wait(self.file_system.set_symlink_attributes(path, change))
    }

    /// See [`FileSystem::set_mode`].
    pub fn set_mode(&self, path: impl AsRef<[u8]>, mode: u32) -> Result<Attributes, Error> {
        wait(self.file_system.set_mode(path, mode))
    }

    /// See [`FileSystem::set_owner`].
    pub fn set_owner(
        &self,
        path: impl AsRef<[u8]>,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> Result<Attributes, Error> {
        wait(self.file_system.set_owner(path, uid, gid))
    }

    /// See [`FileSystem::set_times`].
    pub fn set_times(
        &self,
        path: impl AsRef<[u8]>,
        atime: Option<SetTime>,
        mtime: Option<SetTime>,
    ) -> Result<Attributes, Error> {
        wait(self.file_system.set_times(path, atime, mtime))
    }

    /// See [`FileSystem::set_len`].
    pub fn set_len(&self, path: impl AsRef<[u8]>, size: u64) -> Result<Attributes, Error> {
        wait(self.file_system.set_len(path, size))
    }

    /// See [`FileSystem::get_xattr`].
    pub fn get_xattr(
        &self,
        path: impl AsRef<[u8]>,
        name: impl AsRef<[u8]>,
    ) -> Result<Vec<u8>, Error> {
        wait(self.file_system.get_xattr(path, name))
    }

    /// See [`FileSystem::set_xattr`].
    pub fn set_xattr(
        &self,
        path: impl AsRef<[u8]>,
        name: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        mode: XattrMode,
    ) -> Result<Attributes, Error> {
        wait(self.file_system.set_xattr(path, name, value, mode))
    }

    /// See [`FileSystem::list_xattrs`].
    pub fn list_xattrs(&self, path: impl AsRef<[u8]>) -> Result<Vec<XattrName>, Error> {
        wait(self.file_system.list_xattrs(path))
    }

    /// See [`FileSystem::remove_xattr`].
    pub fn remove_xattr(
        &self,
        path: impl AsRef<[u8]>,
        name: impl AsRef<[u8]>,
    ) -> Result<Attributes, Error> {
        wait(self.file_system.remove_xattr(path, name))
    }

    /// See [`FileSystem::mkdir`].
    pub fn mkdir(&self, path: impl AsRef<[u8]>) -> Result<Attributes, Error> {
        wait(self.file_system.mkdir(path))
    }

    /// See [`FileSystem::mkdir_with_mode`].
    pub fn mkdir_with_mode(&self, path: impl AsRef<[u8]>, mode: u32) -> Result<Attributes, Error> {
        wait(self.file_system.mkdir_with_mode(path, mode))
    }

    /// See [`FileSystem::mkdir_all`].
    pub fn mkdir_all(&self, path: impl AsRef<[u8]>) -> Result<Attributes, Error> {
        wait(self.file_system.mkdir_all(path))
    }

    /// See [`FileSystem::symlink`].
    pub fn symlink(
        &self,
        target: impl AsRef<[u8]>,
        path: impl AsRef<[u8]>,
    ) -> Result<Attributes, Error> {
        wait(self.file_system.symlink(target, path))
    }

    /// See [`FileSystem::read_link`].
    pub fn read_link(&self, path: impl AsRef<[u8]>) -> Result<Vec<u8>, Error> {
        wait(self.file_system.read_link(path))
    }

    /// See [`FileSystem::hard_link`].
    pub fn hard_link(
        &self,
        original: impl AsRef<[u8]>,
        path: impl AsRef<[u8]>,
    ) -> Result<Attributes, Error> {
        wait(self.file_system.hard_link(original, path))
    }

    /// See [`FileSystem::remove_file`].
    pub fn remove_file(&self, path: impl AsRef<[u8]>) -> Result<(), Error> {
        wait(self.file_system.remove_file(path))
    }

    /// See [`FileSystem::remove_dir`].
    pub fn remove_dir(&self, path: impl AsRef<[u8]>) -> Result<(), Error> {
        wait(self.file_system.remove_dir(path))
    }

    /// See [`FileSystem::remove_all`].
    pub fn remove_all(&self, path: impl AsRef<[u8]>) -> Result<(), Error> {
        wait(self.file_system.remove_all(path))
    }

    /// See [`FileSystem::rename`].
    pub fn rename(&self, from: impl AsRef<[u8]>, to: impl AsRef<[u8]>) -> Result<(), Error> {
        wait(self.file_system.rename(from, to))
    }

    /// The entries of a directory with their attributes, in no particular order.
    pub fn read_dir(&self, path: impl AsRef<[u8]>) -> Result<Vec<DirectoryEntry>, Error> {
        wait(async { self.file_system.read_dir(path).await?.with_attributes().rest().await })
    }

    /// See [`FileSystem::space`].
    pub fn space(&self) -> Result<Space, Error> {
        wait(self.file_system.space())
    }

    /// See [`FileSystem::sync_directory`].
    pub fn sync_directory(&self, path: impl AsRef<[u8]>) -> Result<(), Error> {
        wait(self.file_system.sync_directory(path))
    }

    /// Ends the use of the volume. If this process has opened it itself everything is made durable;
    /// a server keeps it and does so in its own time, but hears which files are closed.
    pub fn finish(&self) -> Result<(), Error> {
        if self.machine.is_some() {
            return self.sync();
        }
        wait(self.file_system.wait_for_closes());
        Ok(())
    }

    /// See [`FileSystem::sync`].
    pub fn sync(&self) -> Result<(), Error> {
        wait(self.file_system.sync())
    }
}

impl BlockingFile {
    /// The volume that it is in.
    pub fn volume(&self) -> &Volume {
        &self.volume
    }

    /// The same open file for futures.
    pub fn shared(&self) -> file::File<ClientHandle> {
        self.file.clone()
    }

    /// The path by which it was opened.
    pub fn path(&self) -> &[u8] {
        self.file.path()
    }

    /// See [`file::File::read_at`].
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<usize, Error> {
        wait(self.file.read_at(offset, out))
    }

    /// See [`file::File::read_bytes_at`].
    pub fn read_bytes_at(&self, offset: u64, length: usize) -> Result<Vec<Bytes>, Error> {
        wait(self.file.read_bytes_at(offset, length))
    }

    /// See [`file::File::write_at`]. [`Bytes`] and vectors are handed on without a copy.
    pub fn write_at(&self, offset: u64, data: impl Into<Bytes>) -> Result<(), Error> {
        wait(self.file.write_at(offset, data))
    }

    /// See [`file::File::read_list`].
    pub fn read_list(&self, regions: &Regions, out: &mut [u8]) -> Result<usize, Error> {
        wait(self.file.read_list(regions, out))
    }

    /// See [`file::File::read_list_into`].
    pub fn read_list_into(
        &self,
        regions: &Regions,
        memory: &Regions,
        out: &mut [u8],
    ) -> Result<usize, Error> {
        wait(self.file.read_list_into(regions, memory, out))
    }

    /// See [`file::File::write_list`].
    pub fn write_list(&self, regions: &Regions, data: impl Into<Bytes>) -> Result<(), Error> {
        wait(self.file.write_list(regions, data))
    }

    /// See [`file::File::write_list_from`].
    pub fn write_list_from(
        &self,
        regions: &Regions,
        memory: &Regions,
        data: &[u8],
    ) -> Result<(), Error> {
        wait(self.file.write_list_from(regions, memory, data))
    }

    /// See [`file::File::lock`].
    pub fn lock(&self, range: ByteRange, kind: LockKind) -> Result<Lock<ClientHandle>, Error> {
        wait(self.file.lock(range, kind))
    }

    /// See [`file::File::try_lock`].
    pub fn try_lock(
        &self,
        range: ByteRange,
        kind: LockKind,
    ) -> Result<Option<Lock<ClientHandle>>, Error> {
        wait(self.file.try_lock(range, kind))
    }

    /// See [`file::File::test_lock`].
    pub fn test_lock(&self, range: ByteRange, kind: LockKind) -> Result<Option<FileLock>, Error> {
        wait(self.file.test_lock(range, kind))
    }

    /// See [`file::File::append`].
    pub fn append(&self, data: impl Into<Bytes>) -> Result<u64, Error> {
        wait(self.file.append(data))
    }

    /// See [`file::File::sync`].
    pub fn sync(&self) -> Result<(), Error> {
        wait(self.file.sync())
    }

    /// See [`file::File::set_len`].
    pub fn set_len(&self, size: u64) -> Result<(), Error> {
        wait(self.file.set_len(size))
    }

    /// See [`file::File::punch_hole`].
    pub fn punch_hole(&self, offset: u64, length: u64) -> Result<(), Error> {
        wait(self.file.punch_hole(offset, length))
    }

    /// See [`file::File::allocate`].
    pub fn allocate(&self, offset: u64, length: u64, keep_size: bool) -> Result<Attributes, Error> {
        wait(self.file.allocate(offset, length, keep_size))
    }

    /// See [`file::File::zero_range`].
    pub fn zero_range(&self, offset: u64, length: u64, keep_size: bool) -> Result<(), Error> {
        wait(self.file.zero_range(offset, length, keep_size))
    }

    /// See [`file::File::seek_data`].
    pub fn seek_data(&self, offset: u64) -> Result<Option<u64>, Error> {
        wait(self.file.seek_data(offset))
    }

    /// See [`file::File::seek_hole`].
    pub fn seek_hole(&self, offset: u64) -> Result<Option<u64>, Error> {
        wait(self.file.seek_hole(offset))
    }

    /// See [`file::File::set_attributes`].
    pub fn set_attributes(&self, change: Change) -> Result<Attributes, Error> {
        wait(self.file.set_attributes(change))
    }

    /// See [`file::File::metadata`].
    pub fn metadata(&self) -> Result<Attributes, Error> {
        wait(self.file.metadata())
    }
}

/// The mark of one client, different from every other's: it marks its calls.
#[allow(clippy::disallowed_types, reason = "an ordinary thread has no context to draw from")]
pub fn random_client() -> u64 {
    use std::hash::{BuildHasher as _, RandomState};
    RandomState::new().hash_one(0)
}
