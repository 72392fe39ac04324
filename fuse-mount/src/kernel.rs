//! Every operation that the kernel may ask for: handed on to a seat, which answers the kernel.
//!
//! The seat is that of the node which will be asked, so that on a machine of this process the request
//! does not leave the thread of that node.

mod answers;
mod asked;
mod hand_on;

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use client::ByteRange;
use client::protocol::{Change, NewNode, access};
use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, FopenFlags,
    Generation, INodeNo, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLock, ReplyLseek,
    ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use runtime::Spawn;

use self::answers::{tell, tell_attributes, tell_bytes, tell_done, tell_lock, tell_space};
use self::asked::{
    MODE_BITS, byte_range, configure, fallocation, lock_kind, node, place, seek_target, wanted,
    xattr_mode, xattr_name,
};
pub(crate) use self::hand_on::Kernel;
use crate::caller::Caller;
use crate::operations::{Listed, LockAsked, Node, Wanted, joined};
use crate::translate;

/// Flags of an open file. Content is kept by the kernel only until the file is opened again: so every
/// byte is seen that somebody else has written before.
const OPENED: FopenFlags = FopenFlags::empty();

impl<S: Spawn> Filesystem for Kernel<S> {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        configure(config);
        Ok(())
    }

    fn destroy(&mut self) {
        let Some(ended) = self.ended.take().map(Arc::new) else { return };
        for worker in &self.workers {
            // After what it was handed before; the last one that is done tells it.
            let ended = ended.clone();
            worker.hand_on(move |system| async move {
                system.last_words().await;
                drop(ended);
            });
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
        self.workers[0].known().forget(ino.0, lookups);
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
                Ok((file, number)) => {
                    system.known().remember(&file);
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

    fn flush(
        &self,
        _: &Request,
        ino: INodeNo,
        file: FileHandle,
        owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        if !self.known().has_locked(ino.0, file.0, owner.0) {
            return reply.ok();
        }
        // Whoever closes a file has no locks on it any more, through whichever opening they came.
        self.of_file(ino, move |system, _| async move {
            tell_done(reply, system.unlock(file.0, owner.0, ByteRange::ALL).await);
        });
    }

    fn release(
        &self,
        _: &Request,
        ino: INodeNo,
        file: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        // Nobody waits for it, and the mount may be gone when it is done.
        reply.ok();
        self.of_file(ino, move |system, _| async move { system.close(file.0).await });
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
        self.of_file(ino, move |system, ino| async move {
            tell_done(reply, system.sync_names(ino).await);
        });
    }

    fn statfs(&self, _: &Request, ino: INodeNo, reply: ReplyStatfs) {
        self.of_file(ino, move |system, _| async move {
            match system.space().await {
                Ok(space) => tell_space(reply, &space),
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

    fn setxattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let (caller, value) = (Caller::of(request), value.to_vec());
        let Some(name) = xattr_name(name) else { return reply.error(Errno::EOPNOTSUPP) };
        self.of_file(ino, move |system, ino| async move {
            let mode = xattr_mode(flags);
            tell_done(reply, system.set_xattr(caller, ino, name, value, mode).await);
        });
    }

    fn getxattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        size: u32,
        reply: ReplyXattr,
    ) {
        let caller = Caller::of(request);
        // The kernel asks for those of other namespaces often.
        let Some(name) = xattr_name(name) else { return reply.error(Errno::EOPNOTSUPP) };
        self.of_file(ino, move |system, ino| async move {
            tell_bytes(reply, system.get_xattr(caller, ino, name).await, size);
        });
    }

    fn listxattr(&self, request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let caller = Caller::of(request);
        self.of_file(ino, move |system, ino| async move {
            tell_bytes(reply, system.list_xattrs(caller, ino).await, size);
        });
    }

    fn removexattr(&self, request: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let caller = Caller::of(request);
        let Some(name) = xattr_name(name) else { return reply.error(Errno::EOPNOTSUPP) };
        self.of_file(ino, move |system, ino| async move {
            tell_done(reply, system.remove_xattr(caller, ino, name).await);
        });
    }

    fn getlk(
        &self,
        _: &Request,
        ino: INodeNo,
        file: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        kind: i32,
        _pid: u32,
        reply: ReplyLock,
    ) {
        let Some(kind) = lock_kind(kind) else { return reply.error(Errno::EINVAL) };
        let asked = LockAsked { owner: owner.0, range: byte_range(start, end), kind };
        self.of_file(ino, move |system, _| async move {
            tell_lock(reply, system.test_lock(file.0, asked).await);
        });
    }

    fn setlk(
        &self,
        request: &Request,
        ino: INodeNo,
        file: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        kind: i32,
        pid: u32,
        waits: bool,
        reply: ReplyEmpty,
    ) {
        let (caller, owner, range) = (Caller::of(request), owner.0, byte_range(start, end));
        if kind == libc::F_UNLCK {
            return self.of_file(ino, move |system, _| async move {
                tell_done(reply, system.unlock(file.0, owner, range).await);
            });
        }
        let Some(kind) = lock_kind(kind) else { return reply.error(Errno::EINVAL) };
        let asked = LockAsked { owner, range, kind };
        self.of_file(ino, move |system, _| async move {
            tell_done(reply, system.lock(caller, file.0, asked, pid, waits).await);
        });
    }

    fn fallocate(
        &self,
        request: &Request,
        ino: INodeNo,
        file: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let caller = Caller::of(request);
        let Some(what) = fallocation(mode) else { return reply.error(Errno::EOPNOTSUPP) };
        self.of_file(ino, move |system, _| async move {
            tell_done(reply, system.fallocate(caller, file.0, (offset, length), what).await);
        });
    }

    fn lseek(
        &self,
        _: &Request,
        ino: INodeNo,
        file: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let Some(target) = seek_target(whence) else { return reply.error(Errno::EINVAL) };
        self.of_file(ino, move |system, _| async move {
            match system.seek(file.0, offset, target).await {
                Ok(found) => reply.offset(found),
                Err(failure) => reply.error(failure.into()),
            }
        });
    }

    /// Not there: the kernel hears it once, and copies by reading and writing.
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
