//! The FUSE operations: each is dispatched to a worker, which replies to the kernel.
//!
//! It is the worker at the node that owns the inode or name, so that in a process with nodes the
//! request does not leave the thread of that node.

mod dispatch;
mod reply;
mod request;

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use client::protocol::{Change, NewNode, access};
use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, Generation,
    INodeNo, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLock, ReplyLseek, ReplyOpen,
    ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use runtime::Spawn;

pub(crate) use self::dispatch::FuseFilesystem;
use self::dispatch::open_flags;
use self::reply::{reply_attr, reply_empty, reply_entry, reply_lock, reply_statfs, reply_xattr};
use self::request::{
    MODE_BITS, access_mask, byte_range, configure, entry_name, fallocation, lock_kind,
    new_inode_kind, seek_target, write_source, xattr_mode, xattr_name,
};
use crate::caller::CallerProcess;
use crate::operations::{AccessMask, ListedEntry, LockRequest, NewInodeKind, joined};
use crate::translate;
use crate::volume_client::OpenTarget;

impl<S: Spawn> Filesystem for FuseFilesystem<S> {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        configure(config);
        Ok(())
    }

    fn destroy(&mut self) {
        let Some(ended) = self.ended.take().map(Arc::new) else { return };
        for (index, worker) in self.workers.iter().enumerate() {
            // After all earlier tasks of the worker. The last worker drops the sender.
            let ended = ended.clone();
            worker.submit(move |operations| async move {
                operations.volume.send_all_collected().await;
                operations.volume.flush_closes().await;
                if index == 0 {
                    operations.volume.sync_all().await;
                }
                drop(ended);
            });
        }
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let (caller, cache) = (CallerProcess::of(request), self.cache);
        self.dispatch_name(request, parent, name, move |operations, entry_name| async move {
            let found = operations.look_up(caller, entry_name).await;
            reply_entry(&operations, reply, found, cache);
        });
    }

    fn forget(&self, _: &Request, ino: INodeNo, lookups: u64) {
        self.workers[0].inodes().forget(ino.0, lookups);
    }

    fn getattr(&self, request: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let cache = self.cache;
        self.dispatch_inode(request, ino, move |operations, ino| async move {
            let found = operations.get_attributes(ino).await;
            reply_attr(&operations, reply, found, cache);
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
        let (caller, cache) = (CallerProcess::of(request), self.cache);
        let change = Change {
            mode: mode.map(|mode| mode & MODE_BITS),
            uid,
            gid,
            size,
            atime: atime.map(translate::set_time),
            mtime: mtime.map(translate::set_time),
            redundancy: None,
        };
        self.dispatch_inode(request, ino, move |operations, ino| async move {
            let changed = operations.set_attributes(caller, ino, change, file.map(|it| it.0)).await;
            reply_attr(&operations, reply, changed, cache);
        });
    }

    fn readlink(&self, request: &Request, ino: INodeNo, reply: ReplyData) {
        self.dispatch_inode(request, ino, move |operations, ino| async move {
            match operations.read_link(ino).await {
                Ok(target) => reply.data(&target),
                Err(error) => reply.error(error.into()),
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
        let (caller, cache) = (CallerProcess::of(request), self.cache);
        let Some(kind) = new_inode_kind(mode, device) else { return reply.error(Errno::EINVAL) };
        self.dispatch_name(request, parent, name, move |operations, entry_name| async move {
            let new = operations.make(caller, entry_name, kind, Some(mode & MODE_BITS)).await;
            reply_entry(&operations, reply, new, cache);
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
        let (caller, cache) = (CallerProcess::of(request), self.cache);
        self.dispatch_name(request, parent, name, move |operations, entry_name| async move {
            let directory = NewInodeKind::Other(NewNode::Directory {});
            let new = operations.make(caller, entry_name, directory, Some(mode & MODE_BITS)).await;
            reply_entry(&operations, reply, new, cache);
        });
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let caller = CallerProcess::of(request);
        self.dispatch_name(request, parent, name, move |operations, entry_name| async move {
            reply_empty(reply, operations.remove(caller, entry_name).await);
        });
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let caller = CallerProcess::of(request);
        self.dispatch_name(request, parent, name, move |operations, entry_name| async move {
            reply_empty(reply, operations.remove_directory(caller, entry_name).await);
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
        let (caller, cache) = (CallerProcess::of(request), self.cache);
        let target = target.as_os_str().as_bytes().to_vec();
        self.dispatch_name(request, parent, name, move |operations, entry_name| async move {
            let link = NewInodeKind::Other(NewNode::Symlink { target });
            let new = operations.make(caller, entry_name, link, None).await;
            reply_entry(&operations, reply, new, cache);
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
        // RENAME_EXCHANGE is not supported.
        let replaces = match flags {
            flags if flags.is_empty() => true,
            RenameFlags::RENAME_NOREPLACE => false,
            _ => return reply.error(Errno::EINVAL),
        };
        let (caller, to) = (CallerProcess::of(request), entry_name(new_parent, new_name));
        self.dispatch_name(request, parent, name, move |operations, from| async move {
            reply_empty(reply, operations.rename(caller, from, to, replaces).await);
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
        let (caller, cache) = (CallerProcess::of(request), self.cache);
        let to = entry_name(new_parent, new_name);
        self.dispatch_inode(request, ino, move |operations, ino| async move {
            let linked = operations.link(caller, ino, to).await;
            reply_entry(&operations, reply, linked, cache);
        });
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        self.dispatch_open(request, ino, OpenTarget::File(access_mask(flags)), reply);
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
        let (caller, cache) = (CallerProcess::of(request), self.cache);
        let new_only = flags & libc::O_EXCL != 0;
        self.dispatch_name_to_end(parent, name, move |operations, entry_name| async move {
            let access_mask = access_mask(OpenFlags(flags));
            let mode = mode & MODE_BITS;
            let mut creating =
                pin!(operations.create(caller, entry_name, mode, new_only, access_mask));
            match operations.callers.until_killed(caller, &mut creating).await {
                Some(Ok((file, opened))) => {
                    let (attributes, generation) =
                        (translate::attributes(&file), Generation(file.generation));
                    let (number, flags) = (FileHandle(opened.number), open_flags(opened));
                    reply.created(&cache, &attributes, generation, number, flags);
                }
                Some(Err(error)) => reply.error(error.into()),
                None => {
                    reply.error(Errno::EINTR);
                    if let Ok((file, opened)) = creating.await {
                        operations.inodes.forget(file.ino, 1);
                        operations.close(opened.number).await;
                    }
                }
            }
        });
    }

    fn read(
        &self,
        request: &Request,
        ino: INodeNo,
        file: FileHandle,
        offset: u64,
        length: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.dispatch_inode(request, ino, move |operations, _| async move {
            match operations.read(file.0, offset, length).await {
                Ok(parts) => reply.data(&joined(parts)),
                Err(error) => reply.error(error.into()),
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
        write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let (length, source) = (data.len() as u32, write_source(write_flags, flags));
        if self.collect((ino, file), offset, data, source, flags) {
            return reply.written(length);
        }
        // The kernel's bytes are in a buffer that the next request overwrites.
        let data = Bytes::copy_from_slice(data);
        self.dispatch_inode(request, ino, move |operations, _| async move {
            let written = if flags.0 & libc::O_APPEND == 0 {
                operations.write(file.0, offset, data, source).await
            } else {
                operations.append(file.0, offset, data, source).await
            };
            match written {
                Ok(()) => reply.written(length),
                Err(error) => reply.error(error.into()),
            }
        });
    }

    fn flush(
        &self,
        request: &Request,
        ino: INodeNo,
        file: FileHandle,
        owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        let caller = CallerProcess::of(request);
        let used = self.inodes().used_file(file.0);
        let is_behind = used.is_some_and(|open| open.behind.concerns_close());
        if !is_behind && !self.inodes().has_locked(ino.0, file.0, owner.0) {
            return reply.ok();
        }
        self.dispatch_to_end(ino, move |operations, _| async move {
            let mut flushing = pin!(operations.flush(file.0, owner.0));
            if let Some(done) = operations.callers.until_killed(caller, &mut flushing).await {
                reply_empty(reply, done);
            } else {
                reply.error(Errno::EINTR);
                // The locks are released with the file, if not now.
                let _ = flushing.await;
            }
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
        // No process waits for it, and the mount may have ended when it is done.
        reply.ok();
        self.dispatch_to_end(
            ino,
            move |operations, _| async move { operations.close(file.0).await },
        );
    }

    fn fsync(&self, request: &Request, ino: INodeNo, file: FileHandle, _: bool, reply: ReplyEmpty) {
        self.dispatch_inode(request, ino, move |operations, _| async move {
            reply_empty(reply, operations.sync(file.0).await);
        });
    }

    fn opendir(&self, request: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        self.dispatch_open(request, ino, OpenTarget::Directory, reply);
    }

    fn releasedir(
        &self,
        _: &Request,
        ino: INodeNo,
        file: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        reply.ok();
        self.dispatch_to_end(
            ino,
            move |operations, _| async move { operations.close(file.0).await },
        );
    }

    fn readdir(
        &self,
        request: &Request,
        ino: INodeNo,
        file: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        self.dispatch_inode(request, ino, move |operations, _| async move {
            let add = |entry: &ListedEntry<'_>| {
                let (number, kind) = (INodeNo(entry.ino), translate::file_type(entry.kind));
                !reply.add(number, entry.cookie, kind, OsStr::from_bytes(entry.name))
            };
            match operations.list(file.0, offset, false, add).await {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(error.into()),
            }
        });
    }

    fn readdirplus(
        &self,
        request: &Request,
        ino: INodeNo,
        file: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let cache = self.cache;
        self.dispatch_inode(request, ino, move |operations, _| async move {
            let add = |entry: &ListedEntry<'_>| {
                // Entries without attributes are not listed.
                let Some(file) = entry.attributes else { return true };
                let (number, name) = (INodeNo(entry.ino), OsStr::from_bytes(entry.name));
                let generation = Generation(file.generation);
                let attributes = translate::attributes(file);
                let is_full =
                    reply.add(number, entry.cookie, name, &cache, &attributes, generation);
                if !is_full && !entry.is_dot {
                    operations.inodes.add_lookup(file);
                }
                !is_full
            };
            match operations.list(file.0, offset, true, add).await {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(error.into()),
            }
        });
    }

    fn fsyncdir(&self, request: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.dispatch_inode(request, ino, move |operations, ino| async move {
            reply_empty(reply, operations.sync_names(ino).await);
        });
    }

    fn statfs(&self, request: &Request, ino: INodeNo, reply: ReplyStatfs) {
        self.dispatch_inode(request, ino, move |operations, ino| async move {
            match operations.space(ino).await {
                Ok(space) => reply_statfs(reply, &space),
                Err(error) => reply.error(error.into()),
            }
        });
    }

    fn access(&self, request: &Request, ino: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        let caller = CallerProcess::of(request);
        self.dispatch_inode(request, ino, move |operations, ino| async move {
            let access_mask = AccessMask(
                mask.bits().cast_unsigned() & (access::READ | access::WRITE | access::EXECUTE),
            );
            reply_empty(reply, operations.check(caller, ino, access_mask).await.map(drop));
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
        let (caller, value) = (CallerProcess::of(request), value.to_vec());
        let Some(name) = xattr_name(name) else { return reply.error(Errno::EOPNOTSUPP) };
        self.dispatch_inode(request, ino, move |operations, ino| async move {
            let mode = xattr_mode(flags);
            reply_empty(reply, operations.set_xattr(caller, ino, name, value, mode).await);
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
        let caller = CallerProcess::of(request);
        // The kernel often requests other namespaces.
        let Some(name) = xattr_name(name) else { return reply.error(Errno::EOPNOTSUPP) };
        self.dispatch_inode(request, ino, move |operations, ino| async move {
            reply_xattr(reply, operations.get_xattr(caller, ino, name).await, size);
        });
    }

    fn listxattr(&self, request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let caller = CallerProcess::of(request);
        self.dispatch_inode(request, ino, move |operations, ino| async move {
            reply_xattr(reply, operations.list_xattrs(caller, ino).await, size);
        });
    }

    fn removexattr(&self, request: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let caller = CallerProcess::of(request);
        let Some(name) = xattr_name(name) else { return reply.error(Errno::EOPNOTSUPP) };
        self.dispatch_inode(request, ino, move |operations, ino| async move {
            reply_empty(reply, operations.remove_xattr(caller, ino, name).await);
        });
    }

    fn getlk(
        &self,
        call: &Request,
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
        let request = LockRequest { owner: owner.0, range: byte_range(start, end), kind };
        self.dispatch_inode(call, ino, move |operations, _| async move {
            reply_lock(reply, operations.test_lock(file.0, request).await);
        });
    }

    fn setlk(
        &self,
        call: &Request,
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
        let (caller, owner, range) = (CallerProcess::of(call), owner.0, byte_range(start, end));
        if kind == libc::F_UNLCK {
            return self.dispatch_inode(call, ino, move |operations, _| async move {
                reply_empty(reply, operations.unlock(file.0, owner, range).await);
            });
        }
        let Some(kind) = lock_kind(kind) else { return reply.error(Errno::EINVAL) };
        let request = LockRequest { owner, range, kind };
        self.dispatch_inode(call, ino, move |operations, _| async move {
            reply_empty(reply, operations.lock(caller, file.0, request, pid, waits).await);
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
        let Some(what) = fallocation(mode) else { return reply.error(Errno::EOPNOTSUPP) };
        self.dispatch_inode(request, ino, move |operations, _| async move {
            reply_empty(reply, operations.fallocate(file.0, (offset, length), what).await);
        });
    }

    fn lseek(
        &self,
        request: &Request,
        ino: INodeNo,
        file: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let Some(target) = seek_target(whence) else { return reply.error(Errno::EINVAL) };
        self.dispatch_inode(request, ino, move |operations, _| async move {
            match operations.seek(file.0, offset, target).await {
                Ok(found) => reply.offset(found),
                Err(error) => reply.error(error.into()),
            }
        });
    }

    /// Unsupported: after ENOSYS the kernel copies by reading and writing.
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
