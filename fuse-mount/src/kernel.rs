//! Every operation that the kernel may ask for: handed on to a seat, which answers the kernel.
//!
//! The seat is that of the node which will be asked, so that on a machine of this process the request
//! does not leave the thread of that node.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use client::hash;
use client::protocol::{Attributes, Change, NAME_MAX, Name, NewNode, Space, TRANSFER_MAX, access};
use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, FopenFlags,
    Generation, INodeNo, InitFlags, KernelConfig, LockOwner, OpenAccMode, OpenFlags, RenameFlags,
    ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry,
    ReplyLock, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow,
    WriteFlags,
};
use futures::channel::oneshot;
use runtime::{NodeId, NodeKind, Spawn};

use crate::caller::Caller;
use crate::operations::{Listed, Node, Operations, Place, Wanted, handle_of, joined};
use crate::seat::Seat;
use crate::translate::{self, Failure};

/// Requests of the kernel that no process waits for (reading ahead, say), at most.
const BACKGROUND_MAX: u16 = 64;
/// The unit in which space is told, in bytes.
const BLOCK_BYTES: u32 = 4096;
/// The bits of a mode that say what kind of thing it is.
const KIND_BITS: u32 = libc::S_IFMT;
const MODE_BITS: u32 = 0o7777;

/// What the kernel may ask if it can; a missing one makes it slower, not wrong. That this side takes
/// the bits that let others act as the owner is asked for alone: [`KILL_PRIVILEGES`].
const CAPABILITIES: [InitFlags; 6] = [
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_DO_READDIRPLUS,
    InitFlags::FUSE_READDIRPLUS_AUTO,
    InitFlags::FUSE_AUTO_INVAL_DATA,
    InitFlags::FUSE_ASYNC_DIO,
    InitFlags::FUSE_CACHE_SYMLINKS,
];

/// The volume takes them itself on a write, a cut and a change of the owner. The kernel would do it by a
/// change of the mode that the writer may not make.
const KILL_PRIVILEGES: InitFlags = InitFlags::FUSE_HANDLE_KILLPRIV;

/// The side of a mount that the kernel talks to.
#[derive(Debug)]
pub(crate) struct Kernel<S> {
    seats: Vec<Seat<S>>,
    fs_nodes: u32,
    /// How long the kernel may keep names and attributes.
    cache: Duration,
    /// Told when the mount has ended.
    ended: Option<oneshot::Sender<()>>,
}

impl<S: Spawn> Kernel<S> {
    /// `seats`, at least one, of a volume of `fs_nodes` nodes.
    pub(crate) fn new(
        seats: Vec<Seat<S>>,
        fs_nodes: u32,
        cache: Duration,
        ended: oneshot::Sender<()>,
    ) -> Self {
        Self { seats, fs_nodes, cache, ended: Some(ended) }
    }

    /// The seat at the thread of `node`: node `i` is on thread `i mod threads`, as is seat `i`.
    fn seat(&self, node: NodeId) -> &Seat<S> {
        let (NodeKind::Fs(index) | NodeKind::Disk(index) | NodeKind::Application(index)) =
            node.kind();
        &self.seats[index as usize % self.seats.len()]
    }

    /// Hands on what is asked of a file.
    fn of_file<F>(
        &self,
        ino: INodeNo,
        work: impl FnOnce(Rc<Operations<S>>, u64) -> F + Send + 'static,
    ) where
        F: Future<Output = ()> + 'static,
    {
        let ino = ino.0;
        self.seat(hash::ino_node(ino, self.fs_nodes)).hand_on(move |system| work(system, ino));
    }

    /// Hands on what is asked of a name.
    fn of_name<F>(
        &self,
        directory: INodeNo,
        name: &OsStr,
        work: impl FnOnce(Rc<Operations<S>>, Place) -> F + Send + 'static,
    ) where
        F: Future<Output = ()> + 'static,
    {
        let place = place(directory, name);
        // A name that cannot be is refused at any seat.
        let node = Name::new(place.name.clone())
            .map_or(NodeId::fs(0), |name| hash::name_node(place.directory, &name, self.fs_nodes));
        self.seat(node).hand_on(move |system| work(system, place));
    }
}

fn place(directory: INodeNo, name: &OsStr) -> Place {
    Place { directory: directory.0, name: name.as_bytes().to_vec() }
}

/// Tells the kernel of a file, from which on the kernel may mean it by its number.
fn tell<S: Spawn>(
    system: &Operations<S>,
    reply: ReplyEntry,
    found: Result<Attributes, Failure>,
    cache: Duration,
) {
    match found {
        Ok(file) => {
            system.known().remember(&file);
            let generation = Generation(file.generation);
            reply.entry(&cache, &translate::attributes(&file), generation);
        }
        Err(failure) => reply.error(failure.into()),
    }
}

fn tell_attributes(reply: ReplyAttr, found: Result<Attributes, Failure>, cache: Duration) {
    match found {
        Ok(file) => reply.attr(&cache, &translate::attributes(&file)),
        Err(failure) => reply.error(failure.into()),
    }
}

fn tell_done(reply: ReplyEmpty, done: Result<(), Failure>) {
    match done {
        Ok(()) => reply.ok(),
        Err(failure) => reply.error(failure.into()),
    }
}

/// What an open with these flags wants to do.
fn wanted(flags: OpenFlags) -> Wanted {
    // Set by the kernel when a program is run, which needs no right to read.
    const EXECUTES: i32 = 0x20;
    if flags.0 & EXECUTES != 0 {
        return Wanted(access::EXECUTE);
    }
    let cuts = if flags.0 & libc::O_TRUNC != 0 { access::WRITE } else { 0 };
    Wanted(match flags.acc_mode() {
        OpenAccMode::O_RDONLY => access::READ | cuts,
        OpenAccMode::O_WRONLY => access::WRITE,
        OpenAccMode::O_RDWR => access::READ | access::WRITE,
    })
}

/// What `mknod` is to make; none if the kernel may not ask for that.
fn node(mode: u32, device: u32) -> Option<Node> {
    let (major, minor) = translate::device_numbers(device);
    Some(match mode & KIND_BITS {
        libc::S_IFREG => Node::File,
        libc::S_IFIFO => Node::Other(NewNode::Fifo {}),
        libc::S_IFSOCK => Node::Other(NewNode::Socket {}),
        libc::S_IFBLK => Node::Other(NewNode::BlockDevice { major, minor }),
        libc::S_IFCHR => Node::Other(NewNode::CharDevice { major, minor }),
        _ => return None,
    })
}

/// Flags of an open file. Content is kept by the kernel only until the file is opened again: so every
/// byte is seen that somebody else has written before. There is nothing to flush on a close.
const OPENED: FopenFlags = FopenFlags::FOPEN_NOFLUSH;

impl<S: Spawn> Filesystem for Kernel<S> {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for capability in CAPABILITIES {
            if config.add_capabilities(capability).is_err() {
                tracing::debug!(?capability, "this kernel cannot do it");
            }
        }
        if config.add_capabilities(KILL_PRIVILEGES).is_err() {
            tracing::warn!("this kernel is old: set-user-id bits stay on a write by others");
        }
        let limits = [
            config.set_max_write(TRANSFER_MAX).err(),
            config.set_max_background(BACKGROUND_MAX).err().map(u32::from),
        ];
        for limit in limits.into_iter().flatten() {
            tracing::debug!(limit, "the kernel sets a lower limit");
        }
        Ok(())
    }

    fn destroy(&mut self) {
        if let Some(ended) = self.ended.take() {
            // Whoever waited may be gone.
            let _ = ended.send(());
        }
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let (caller, cache) = (Caller::of(request), self.cache);
        self.of_name(parent, name, move |system, place| async move {
            let found = system.look_up(caller, place).await;
            tell(&system, reply, found, cache);
        });
    }

    fn forget(&self, _: &Request, ino: INodeNo, lookups: u64) {
        self.seats[0].known().forget(ino.0, lookups);
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let cache = self.cache;
        self.of_file(ino, move |system, ino| async move {
            tell_attributes(reply, system.get_attributes(ino).await, cache);
        });
    }

    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        file: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let (caller, cache) = (Caller::of(request), self.cache);
        let change = Change {
            mode: mode.map(|mode| mode & MODE_BITS),
            uid,
            gid,
            size,
            atime: atime.map(translate::set_time),
            mtime: mtime.map(translate::set_time),
        };
        self.of_file(ino, move |system, ino| async move {
            let changed = system.set_attributes(caller, ino, change, file.is_some()).await;
            tell_attributes(reply, changed, cache);
        });
    }

    fn readlink(&self, _: &Request, ino: INodeNo, reply: ReplyData) {
        self.of_file(ino, move |system, ino| async move {
            match system.read_link(ino).await {
                Ok(target) => reply.data(&target),
                Err(failure) => reply.error(failure.into()),
            }
        });
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        device: u32,
        reply: ReplyEntry,
    ) {
        let (caller, cache) = (Caller::of(request), self.cache);
        let Some(node) = node(mode, device) else { return reply.error(Errno::EINVAL) };
        self.of_name(parent, name, move |system, place| async move {
            let new = system.make(caller, place, node, Some(mode & MODE_BITS)).await;
            tell(&system, reply, new, cache);
        });
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        let (caller, cache) = (Caller::of(request), self.cache);
        self.of_name(parent, name, move |system, place| async move {
            let directory = Node::Other(NewNode::Directory {});
            let new = system.make(caller, place, directory, Some(mode & MODE_BITS)).await;
            tell(&system, reply, new, cache);
        });
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let caller = Caller::of(request);
        self.of_name(parent, name, move |system, place| async move {
            tell_done(reply, system.remove(caller, place).await);
        });
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let caller = Caller::of(request);
        self.of_name(parent, name, move |system, place| async move {
            tell_done(reply, system.remove_directory(caller, place).await);
        });
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let (caller, cache) = (Caller::of(request), self.cache);
        let target = target.as_os_str().as_bytes().to_vec();
        self.of_name(parent, name, move |system, place| async move {
            let link = Node::Other(NewNode::Symlink { target });
            let new = system.make(caller, place, link, None).await;
            tell(&system, reply, new, cache);
        });
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        // Two names that change places at once are not there yet.
        let replaces = match flags {
            flags if flags.is_empty() => true,
            RenameFlags::RENAME_NOREPLACE => false,
            _ => return reply.error(Errno::EINVAL),
        };
        let (caller, to) = (Caller::of(request), place(new_parent, new_name));
        self.of_name(parent, name, move |system, from| async move {
            tell_done(reply, system.rename(caller, from, to, replaces).await);
        });
    }

    fn link(
        &self,
        request: &Request,
        ino: INodeNo,
        new_parent: INodeNo,
        new_name: &OsStr,
        reply: ReplyEntry,
    ) {
        let (caller, cache) = (Caller::of(request), self.cache);
        let to = place(new_parent, new_name);
        self.of_file(ino, move |system, ino| async move {
            let linked = system.link(caller, ino, to).await;
            tell(&system, reply, linked, cache);
        });
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let caller = Caller::of(request);
        self.of_file(ino, move |system, ino| async move {
            match system.open(caller, ino, wanted(flags)).await {
                Ok(number) => reply.opened(FileHandle(number), OPENED),
                Err(failure) => reply.error(failure.into()),
            }
        });
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let (caller, cache) = (Caller::of(request), self.cache);
        let new_only = flags & libc::O_EXCL != 0;
        self.of_name(parent, name, move |system, place| async move {
            let wanted = wanted(OpenFlags(flags));
            match system.create(caller, place, mode & MODE_BITS, new_only, wanted).await {
                Ok(file) => {
                    system.known().remember(&file);
                    let number = system.known().open(handle_of(&file));
                    let (number, generation) = (FileHandle(number), Generation(file.generation));
                    reply.created(
                        &cache,
                        &translate::attributes(&file),
                        generation,
                        number,
                        OPENED,
                    );
                }
                Err(failure) => reply.error(failure.into()),
            }
        });
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        file: FileHandle,
        offset: u64,
        length: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.of_file(ino, move |system, _| async move {
            match system.read(file.0, offset, length).await {
                Ok(parts) => reply.data(&joined(parts)),
                Err(failure) => reply.error(failure.into()),
            }
        });
    }

    fn write(
        &self,
        request: &Request,
        ino: INodeNo,
        file: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let caller = Caller::of(request);
        // The kernel's bytes are in a buffer that the next request overwrites.
        let data = Bytes::copy_from_slice(data);
        let length = data.len() as u32;
        self.of_file(ino, move |system, _| async move {
            match system.write(caller, file.0, offset, data).await {
                Ok(()) => reply.written(length),
                Err(failure) => reply.error(failure.into()),
            }
        });
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        file: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.seats[0].known().close(file.0);
        reply.ok();
    }

    fn fsync(&self, _: &Request, ino: INodeNo, file: FileHandle, _: bool, reply: ReplyEmpty) {
        self.of_file(ino, move |system, _| async move {
            tell_done(reply, system.sync(file.0).await);
        });
    }

    fn opendir(&self, request: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let caller = Caller::of(request);
        self.of_file(ino, move |system, ino| async move {
            match system.check(caller, ino, Wanted(access::READ)).await {
                Ok(_) => reply.opened(FileHandle(0), FopenFlags::empty()),
                Err(failure) => reply.error(failure.into()),
            }
        });
    }

    fn readdir(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        self.of_file(ino, move |system, ino| async move {
            let add = |entry: &Listed<'_>| {
                let (number, kind) = (INodeNo(entry.ino), translate::file_type(entry.kind));
                !reply.add(number, entry.cookie, kind, OsStr::from_bytes(entry.name))
            };
            match system.list(ino, offset, false, add).await {
                Ok(()) => reply.ok(),
                Err(failure) => reply.error(failure.into()),
            }
        });
    }

    fn readdirplus(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let cache = self.cache;
        self.of_file(ino, move |system, ino| async move {
            let add = |entry: &Listed<'_>| {
                // Entries without attributes are not given to us.
                let Some(file) = entry.attributes else { return true };
                let (number, name) = (INodeNo(entry.ino), OsStr::from_bytes(entry.name));
                let generation = Generation(file.generation);
                let attributes = translate::attributes(file);
                let is_full =
                    reply.add(number, entry.cookie, name, &cache, &attributes, generation);
                if !is_full && !entry.is_dot {
                    system.known().remember(file);
                }
                !is_full
            };
            match system.list(ino, offset, true, add).await {
                Ok(()) => reply.ok(),
                Err(failure) => reply.error(failure.into()),
            }
        });
    }

    fn fsyncdir(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.of_file(ino, move |system, _| async move {
            tell_done(reply, system.sync_names().await);
        });
    }

    fn statfs(&self, _: &Request, ino: INodeNo, reply: ReplyStatfs) {
        self.of_file(ino, move |system, _| async move {
            match system.space().await {
                Ok(Space { total_bytes, free_bytes, inodes }) => {
                    let blocks = |bytes: u64| bytes / u64::from(BLOCK_BYTES);
                    let (total, free) = (blocks(total_bytes), blocks(free_bytes));
                    // An inode takes space as data does, so there can be about as many as blocks.
                    let files = inodes + free;
                    let name_max = NAME_MAX as u32;
                    reply.statfs(
                        total,
                        free,
                        free,
                        files,
                        free,
                        BLOCK_BYTES,
                        name_max,
                        BLOCK_BYTES,
                    );
                }
                Err(failure) => reply.error(failure.into()),
            }
        });
    }

    fn access(&self, request: &Request, ino: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        let caller = Caller::of(request);
        self.of_file(ino, move |system, ino| async move {
            let wanted = Wanted(
                mask.bits().cast_unsigned() & (access::READ | access::WRITE | access::EXECUTE),
            );
            tell_done(reply, system.check(caller, ino, wanted).await.map(drop));
        });
    }

    // What is not there yet. The kernel hears it once, and then does without or says so to programs.

    fn setxattr(
        &self,
        _: &Request,
        _: INodeNo,
        _name: &OsStr,
        _value: &[u8],
        _flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn getxattr(&self, _: &Request, _: INodeNo, _name: &OsStr, _size: u32, reply: ReplyXattr) {
        reply.error(Errno::ENOSYS);
    }

    fn listxattr(&self, _: &Request, _: INodeNo, _size: u32, reply: ReplyXattr) {
        reply.error(Errno::ENOSYS);
    }

    fn removexattr(&self, _: &Request, _: INodeNo, _name: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    /// Not asked for as long as the kernel keeps the locks of this host itself.
    fn getlk(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: LockOwner,
        _start: u64,
        _end: u64,
        _kind: i32,
        _pid: u32,
        reply: ReplyLock,
    ) {
        reply.error(Errno::ENOSYS);
    }

    /// As [`getlk`](Self::getlk).
    fn setlk(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: LockOwner,
        _start: u64,
        _end: u64,
        _kind: i32,
        _pid: u32,
        _sleep: bool,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn fallocate(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _offset: u64,
        _length: u64,
        _mode: i32,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn lseek(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _offset: i64,
        _whence: i32,
        reply: ReplyLseek,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn copy_file_range(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _offset: u64,
        _to: INodeNo,
        _to_file: FileHandle,
        _to_offset: u64,
        _length: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        reply.error(Errno::ENOSYS);
    }
}
