//! Decodes the flags and numbers of requests.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

use client::protocol::{NewNode, SeekTarget, TRANSFER_MAX, access};
use client::{ByteRange, LockKind, XattrMode, XattrName};
use fuser::{INodeNo, InitFlags, KernelConfig, OpenAccMode, OpenFlags, WriteFlags};

use crate::operations::{AccessMask, EntryName, Fallocation, NewInodeKind, WriteSource};
use crate::translate;

/// Background requests of the kernel (such as read-ahead), at most.
const BACKGROUND_MAX: u16 = 64;
/// The bits of a mode with the file type.
const KIND_BITS: u32 = libc::S_IFMT;
pub(super) const MODE_BITS: u32 = 0o7777;

/// Optional capabilities of the kernel; without one of them it is slower, or locks are local to
/// this host. See also [`KILL_PRIVILEGES`].
const CAPABILITIES: [InitFlags; 8] = [
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_DO_READDIRPLUS,
    InitFlags::FUSE_READDIRPLUS_AUTO,
    InitFlags::FUSE_AUTO_INVAL_DATA,
    InitFlags::FUSE_ASYNC_DIO,
    InitFlags::FUSE_CACHE_SYMLINKS,
    InitFlags::FUSE_POSIX_LOCKS,
    InitFlags::FUSE_FLOCK_LOCKS,
];

/// The volume itself clears set-user-id and set-group-id bits on a write, a truncation and a change
/// of the owner. The kernel would do it by a change of the mode that the writer may not make. With
/// the second of these it does not look for `security.capability` before each write.
const KILL_PRIVILEGES: [InitFlags; 2] =
    [InitFlags::FUSE_HANDLE_KILLPRIV_V2, InitFlags::FUSE_HANDLE_KILLPRIV];

/// The last possible offset in the kernel; in a lock it means the end of the file.
const OFFSET_MAX: u64 = i64::MAX as u64;

/// Negotiates capabilities and limits.
pub(super) fn configure(config: &mut KernelConfig) {
    for capability in CAPABILITIES {
        if config.add_capabilities(capability).is_err() {
            tracing::debug!(?capability, "this kernel lacks a capability");
        }
    }
    if !KILL_PRIVILEGES.into_iter().any(|capability| config.add_capabilities(capability).is_ok()) {
        tracing::warn!("this kernel is old: a write by another user keeps set-user-id bits");
    }
    let limits = [
        config.set_max_write(TRANSFER_MAX).err(),
        config.set_max_background(BACKGROUND_MAX).err().map(u32::from),
    ];
    for limit in limits.into_iter().flatten() {
        tracing::debug!(limit, "the kernel sets a lower limit");
    }
}

pub(super) fn entry_name(directory: INodeNo, name: &OsStr) -> EntryName {
    EntryName { directory: directory.0, name: name.as_bytes().to_vec() }
}

/// The access that an open with these flags requests.
pub(super) fn access_mask(flags: OpenFlags) -> AccessMask {
    // Set by the kernel for exec, which needs no read permission.
    const EXECUTES: i32 = 0x20;
    if flags.0 & EXECUTES != 0 {
        return AccessMask(access::EXECUTE);
    }
    let truncation = if flags.0 & libc::O_TRUNC != 0 { access::WRITE } else { 0 };
    AccessMask(match flags.acc_mode() {
        OpenAccMode::O_RDONLY => access::READ | truncation,
        OpenAccMode::O_WRONLY => access::WRITE,
        OpenAccMode::O_RDWR => access::READ | access::WRITE,
    })
}

/// Why the kernel writes, by the flags of the request and of the open file.
pub(super) fn write_source(write: WriteFlags, open: OpenFlags) -> WriteSource {
    if write.contains(WriteFlags::FUSE_WRITE_CACHE) {
        WriteSource::MappedPage
    } else if open.0 & libc::O_DIRECT != 0 {
        WriteSource::DirectWrite
    } else {
        WriteSource::CachedWrite
    }
}

/// The kind of inode that `mknod` creates; `None` if it is invalid.
pub(super) fn new_inode_kind(mode: u32, device: u32) -> Option<NewInodeKind> {
    let (major, minor) = translate::device_numbers(device);
    Some(match mode & KIND_BITS {
        libc::S_IFREG => NewInodeKind::File,
        libc::S_IFIFO => NewInodeKind::Other(NewNode::Fifo {}),
        libc::S_IFSOCK => NewInodeKind::Other(NewNode::Socket {}),
        libc::S_IFBLK => NewInodeKind::Other(NewNode::BlockDevice { major, minor }),
        libc::S_IFCHR => NewInodeKind::Other(NewNode::CharDevice { major, minor }),
        _ => return None,
    })
}

/// The name of an extended attribute; `None` in an unsupported namespace.
pub(super) fn xattr_name(name: &OsStr) -> Option<XattrName> {
    let name = name.as_bytes();
    let is_supported = name.starts_with(b"user.") || name.starts_with(b"trusted.");
    XattrName::new(name.to_vec()).ok().filter(|_| is_supported)
}

/// Whether the attribute must exist.
pub(super) fn xattr_mode(flags: i32) -> XattrMode {
    match flags {
        flags if flags & libc::XATTR_CREATE != 0 => XattrMode::CreateNew {},
        flags if flags & libc::XATTR_REPLACE != 0 => XattrMode::Replace {},
        _ => XattrMode::Either {},
    }
}

/// The operation of `fallocate`; `None` if it is unsupported.
pub(super) fn fallocation(mode: i32) -> Option<Fallocation> {
    let keep_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
    match mode & !libc::FALLOC_FL_KEEP_SIZE {
        0 => Some(Fallocation::Allocate { keep_size }),
        libc::FALLOC_FL_PUNCH_HOLE if keep_size => Some(Fallocation::PunchHole),
        libc::FALLOC_FL_ZERO_RANGE => Some(Fallocation::ZeroRange { keep_size }),
        _ => None,
    }
}

/// What `lseek` looks for; the kernel handles all other cases.
pub(super) fn seek_target(whence: i32) -> Option<SeekTarget> {
    match whence {
        libc::SEEK_DATA => Some(SeekTarget::Data {}),
        libc::SEEK_HOLE => Some(SeekTarget::Hole {}),
        _ => None,
    }
}

pub(super) fn lock_kind(kind: i32) -> Option<LockKind> {
    match kind {
        libc::F_RDLCK => Some(LockKind::Shared {}),
        libc::F_WRLCK => Some(LockKind::Exclusive {}),
        _ => None,
    }
}

/// The range of a lock.
pub(super) fn byte_range(first: u64, last: u64) -> ByteRange {
    ByteRange { first, last: if last >= OFFSET_MAX { u64::MAX } else { last } }
}

/// The first and the last byte for the kernel. Other clients may lock beyond its largest offset.
pub(super) fn kernel_range(range: ByteRange) -> (u64, u64) {
    (range.first.min(OFFSET_MAX), range.last.min(OFFSET_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_locks_are_converted_both_ways() {
        assert_eq!(byte_range(0, OFFSET_MAX), ByteRange::ALL);
        for range in [(0, 0), (5, 9), (7, OFFSET_MAX), (OFFSET_MAX, OFFSET_MAX)] {
            assert_eq!(kernel_range(byte_range(range.0, range.1)), range);
        }
        assert_eq!(
            kernel_range(ByteRange { first: 1 << 63, last: 1 << 63 }),
            (OFFSET_MAX, OFFSET_MAX)
        );
    }

    #[test]
    fn fallocate_rejects_unsupported_modes() {
        use libc::{FALLOC_FL_COLLAPSE_RANGE, FALLOC_FL_KEEP_SIZE as KEEP, FALLOC_FL_PUNCH_HOLE};
        assert_eq!(fallocation(0), Some(Fallocation::Allocate { keep_size: false }));
        assert_eq!(fallocation(KEEP), Some(Fallocation::Allocate { keep_size: true }));
        assert_eq!(fallocation(FALLOC_FL_PUNCH_HOLE | KEEP), Some(Fallocation::PunchHole));
        let zero = libc::FALLOC_FL_ZERO_RANGE;
        assert_eq!(fallocation(zero), Some(Fallocation::ZeroRange { keep_size: false }));
        for other in [FALLOC_FL_PUNCH_HOLE, FALLOC_FL_COLLAPSE_RANGE, zero | FALLOC_FL_PUNCH_HOLE] {
            assert_eq!(fallocation(other), None);
        }
    }

    #[test]
    fn other_namespaces_of_extended_attributes_are_unsupported() {
        assert!(xattr_name(OsStr::new("user.x")).is_some());
        assert!(xattr_name(OsStr::new("trusted.x")).is_some());
        assert!(xattr_name(OsStr::new("security.capability")).is_none());
        assert!(xattr_name(OsStr::new("system.posix_acl_access")).is_none());
    }
}
