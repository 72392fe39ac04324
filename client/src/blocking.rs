//! The file system for ordinary threads: each call waits for its answer.
//!
//! Not to be called from inside an async executor: it would block the thread that shall answer.

use std::any::Any;
use std::sync::Arc;

use bytes::Bytes;
use fileio::protocol::{DirectoryEntry, DiskChange, DiskList, PartitionChange, PartitionTable};
use runtime::client_handle::CallNumbers;
use runtime::{ClientHandle, wait};

use crate::disks::{change_disks, list_disks};
use crate::error::Error;
use crate::file_system::FileSystem;
use crate::options::OpenOptions;
use crate::partitions::{change_partitions, list_partitions, partition_space};
use crate::stream::{Mode, Stream};
use crate::wide::WideMode;
use crate::{
    Attributes, ByteRange, Change, Credentials, FileLock, FileXattrs, Lock, LockKind, Regions,
    Space, XattrMode, XattrName, file,
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

/// The extended attributes of a file of a [`Volume`].
#[derive(Clone, Debug)]
pub struct BlockingXattrs {
    xattrs: FileXattrs<ClientHandle>,
}

/// Methods that call those of the same name of the type `$of` in the field `$inner` and wait for
/// them.
macro_rules! blocking_methods {
    (impl $type:ty, $of:literal, $inner:ident {
        $(fn $name:ident($($argument:ident: $argument_type:ty),*) -> $output:ty;)*
    }) => {
        impl $type {
            $(
                #[doc = concat!("See [`", $of, "::", stringify!($name), "`].")]
                pub fn $name(&self, $($argument: $argument_type),*) -> Result<$output, Error> {
                    wait(self.$inner.$name($($argument),*))
                }
            )*
        }
    };
}

impl Volume {
    /// The volume behind `client_handle`, as the user `who`.
    pub fn new(client_handle: ClientHandle, who: Credentials) -> Self {
        let calls = client_handle.call_numbers();
        let calls = calls.unwrap_or_else(|| Arc::new(CallNumbers::new(random_client())));
        Self { file_system: FileSystem::with_calls(client_handle, who, calls), machine: None }
    }

    /// Reads over links with delay in this way. To be called before files are opened.
    #[must_use]
    pub fn reading_wide(mut self, mode: WideMode) -> Self {
        self.file_system.session.set_wide(mode);
        self
    }

    /// The same, which keeps `machine` alive as long as it or one of its files is used.
    pub fn holding(
        client_handle: ClientHandle,
        who: Credentials,
        machine: impl Send + Sync + std::fmt::Debug + 'static,
    ) -> Self {
        // What ends its nodes ends this process: nothing is left to send again.
        let file_system = FileSystem::new(client_handle, who, random_client()).retaining(0);
        Self { machine: Some(Arc::new(machine)), file_system }
    }

    /// Has this process opened the volume itself, without a server?
    pub fn is_embedded(&self) -> bool {
        self.machine.is_some()
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

    /// See [`list_disks`].
    pub fn disks(&self) -> Result<DiskList, Error> {
        wait(list_disks(&self.file_system))
    }

    /// See [`change_disks`].
    pub fn change_disks(&self, change: DiskChange) -> Result<(), Error> {
        wait(change_disks(&self.file_system, change))
    }

    /// See [`list_partitions`].
    pub fn partitions(&self) -> Result<PartitionTable, Error> {
        wait(list_partitions(&self.file_system))
    }

    /// See [`change_partitions`].
    pub fn change_partitions(&self, change: PartitionChange) -> Result<(), Error> {
        wait(change_partitions(&self.file_system, change))
    }

    /// See [`partition_space`].
    pub fn partition_space(&self, partition: u16) -> Result<Space, Error> {
        wait(partition_space(&self.file_system, partition))
    }

    /// See [`FileSystem::xattrs`].
    pub fn xattrs(&self, path: impl AsRef<[u8]>) -> BlockingXattrs {
        BlockingXattrs { xattrs: self.file_system.xattrs(path) }
    }

    /// The entries of a directory with their attributes, in no particular order.
    pub fn read_dir(&self, path: impl AsRef<[u8]>) -> Result<Vec<DirectoryEntry>, Error> {
        wait(async { self.file_system.read_dir(path).await?.with_attributes().rest().await })
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
}

blocking_methods! {
    impl Volume, "FileSystem", file_system {
        fn metadata(path: impl AsRef<[u8]>) -> Attributes;
        fn symlink_metadata(path: impl AsRef<[u8]>) -> Attributes;
        fn set_attributes(path: impl AsRef<[u8]>, change: Change) -> Attributes;
        fn set_symlink_attributes(path: impl AsRef<[u8]>, change: Change) -> Attributes;
        fn mkdir(path: impl AsRef<[u8]>) -> Attributes;
        fn mkdir_with_mode(path: impl AsRef<[u8]>, mode: u32) -> Attributes;
        fn mkdir_all(path: impl AsRef<[u8]>) -> Attributes;
        fn symlink(target: impl AsRef<[u8]>, path: impl AsRef<[u8]>) -> Attributes;
        fn read_link(path: impl AsRef<[u8]>) -> Vec<u8>;
        fn hard_link(original: impl AsRef<[u8]>, path: impl AsRef<[u8]>) -> Attributes;
        fn remove_file(path: impl AsRef<[u8]>) -> ();
        fn remove_dir(path: impl AsRef<[u8]>) -> ();
        fn remove_all(path: impl AsRef<[u8]>) -> ();
        fn rename(from: impl AsRef<[u8]>, to: impl AsRef<[u8]>) -> ();
        fn space() -> Space;
        fn sync_directory(path: impl AsRef<[u8]>) -> ();
        fn sync() -> ();
    }
}

blocking_methods! {
    impl BlockingXattrs, "FileXattrs", xattrs {
        fn get(name: impl AsRef<[u8]>) -> Vec<u8>;
        fn set(name: impl AsRef<[u8]>, value: impl AsRef<[u8]>, mode: XattrMode) -> Attributes;
        fn list() -> Vec<XattrName>;
        fn remove(name: impl AsRef<[u8]>) -> Attributes;
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

    /// The file, whatever its name is now.
    pub fn handle(&self) -> fileio::protocol::Handle {
        self.file.handle
    }
}

blocking_methods! {
    impl BlockingFile, "file::File", file {
        fn read_at(offset: u64, out: &mut [u8]) -> usize;
        fn read_bytes_at(offset: u64, length: usize) -> Vec<Bytes>;
        fn write_at(offset: u64, data: impl Into<Bytes>) -> ();
        fn read_list(regions: &Regions, out: &mut [u8]) -> usize;
        fn read_list_into(regions: &Regions, memory: &Regions, out: &mut [u8]) -> usize;
        fn write_list(regions: &Regions, data: impl Into<Bytes>) -> ();
        fn write_list_from(regions: &Regions, memory: &Regions, data: &[u8]) -> ();
        fn lock(range: ByteRange, kind: LockKind) -> Lock<ClientHandle>;
        fn try_lock(range: ByteRange, kind: LockKind) -> Option<Lock<ClientHandle>>;
        fn test_lock(range: ByteRange, kind: LockKind) -> Option<FileLock>;
        fn append(data: impl Into<Bytes>) -> u64;
        fn sync() -> ();
        fn set_len(size: u64) -> ();
        fn punch_hole(offset: u64, length: u64) -> ();
        fn allocate(offset: u64, length: u64, keep_size: bool) -> Attributes;
        fn zero_range(offset: u64, length: u64, keep_size: bool) -> ();
        fn seek_data(offset: u64) -> Option<u64>;
        fn seek_hole(offset: u64) -> Option<u64>;
        fn set_attributes(change: Change) -> Attributes;
        fn metadata() -> Attributes;
    }
}

/// The mark of one client, different from every other's, also from those of forked processes: it
/// marks its calls.
pub fn random_client() -> u64 {
    runtime::seed::fresh_seed()
}

/// Names the session of a client with its servers.
pub fn random_session() -> u128 {
    u128::from_ne_bytes(runtime::seed::fresh_bytes())
}
