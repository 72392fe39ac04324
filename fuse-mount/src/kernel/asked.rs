//! What the kernel asks for, out of its flags and numbers.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

use client::protocol::{NewNode, SeekTarget, TRANSFER_MAX, access};
use client::{ByteRange, LockKind, XattrMode, XattrName};
use fuser::{INodeNo, InitFlags, KernelConfig, OpenAccMode, OpenFlags};

use crate::operations::{Fallocation, Node, Place, Wanted};
use crate::translate;

/// Requests of the kernel that no process waits for (reading ahead, say), at most.
const BACKGROUND_MAX: u16 = 64;
/// The bits of a mode that say what kind of thing it is.
const KIND_BITS: u32 = libc::S_IFMT;
pub(super) const MODE_BITS: u32 = 0o7777;

/// What the kernel may ask if it can; a missing one makes it slower, or locks those of this host alone.
/// That this side takes the bits that let others act as the owner is asked for alone:
/// [`KILL_PRIVILEGES`].
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

/// The volume takes them itself on a write, a cut and a change of the owner. The kernel would do it by a
/// change of the mode that the writer may not make. With the second of these it need not ask before
/// each write whether there is an attribute that has to be taken, too.
const KILL_PRIVILEGES: [InitFlags; 2] =
    [InitFlags::FUSE_HANDLE_KILLPRIV_V2, InitFlags::FUSE_HANDLE_KILLPRIV];

/// The last byte of a file, as the kernel has it; in a lock it means all that follow.
const OFFSET_MAX: u64 = i64::MAX as u64;

/// Says what this side can do.
pub(super) fn configure(config: &mut KernelConfig) {
    for capability in CAPABILITIES {
        if config.add_capabilities(capability).is_err() {
            tracing::debug!(?capability, "this kernel cannot do it");
        }
    }
    if !KILL_PRIVILEGES.into_iter().any(|capability| config.add_capabilities(capability).is_ok()) {
        tracing::warn!("this kernel is old: set-user-id bits stay on a write by others");
    }
    let limits = [
        config.set_max_write(TRANSFER_MAX).err(),
        config.set_max_background(BACKGROUND_MAX).err().map(u32::from),
    ];
    for limit in limits.into_iter().flatten() {
        tracing::debug!(limit, "the kernel sets a lower limit");
    }
}

/// A name in a directory.
pub(super) fn place(directory: INodeNo, name: &OsStr) -> Place {
    Place { directory: directory.0, name: name.as_bytes().to_vec() }
}

/// What an open with these flags wants to do.
pub(super) fn wanted(flags: OpenFlags) -> Wanted {
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
pub(super) fn node(mode: u32, device: u32) -> Option<Node> {
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

/// The name of an extended attribute; none in a namespace that is not there.
pub(super) fn xattr_name(name: &OsStr) -> Option<XattrName> {
    let name = name.as_bytes();
    let is_there = name.starts_with(b"user.") || name.starts_with(b"trusted.");
    XattrName::new(name.to_vec()).ok().filter(|_| is_there)
}

/// What must be there before.
pub(super) fn xattr_mode(flags: i32) -> XattrMode {
    match flags {
        flags if flags & libc::XATTR_CREATE != 0 => XattrMode::Create {},
        flags if flags & libc::XATTR_REPLACE != 0 => XattrMode::Replace {},
        _ => XattrMode::Either {},
    }
}

/// What `fallocate` is to do; none if that is not there.
pub(super) fn fallocation(mode: i32) -> Option<Fallocation> {
    let keep_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
    match mode & !libc::FALLOC_FL_KEEP_SIZE {
        0 => Some(Fallocation::Allocate { keep_size }),
        libc::FALLOC_FL_PUNCH_HOLE if keep_size => Some(Fallocation::PunchHole),
        libc::FALLOC_FL_ZERO_RANGE => Some(Fallocation::ZeroRange { keep_size }),
        _ => None,
    }
}

/// What `lseek` looks for; all else the kernel does itself.
pub(super) fn seek_target(whence: i32) -> Option<SeekTarget> {
    match whence {
        libc::SEEK_DATA => Some(SeekTarget::Data {}),
        libc::SEEK_HOLE => Some(SeekTarget::Hole {}),
        _ => None,
    }
}

/// How to lock.
pub(super) fn lock_kind(kind: i32) -> Option<LockKind> {
    match kind {
        libc::F_RDLCK => Some(LockKind::Shared {}),
        libc::F_WRLCK => Some(LockKind::Exclusive {}),
        _ => None,
    }
}

/// What to lock, by its first and its last byte.
pub(super) fn byte_range(first: u64, last: u64) -> ByteRange {
    ByteRange { first, last: if last >= OFFSET_MAX { u64::MAX } else { last } }
}

/// The first and the last byte, as the kernel has them. Other clients may lock what no file can have.
pub(super) fn kernel_range(range: ByteRange) -> (u64, u64) {
    (range.first.min(OFFSET_MAX), range.last.min(OFFSET_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_to_the_end_is_one_of_all_bytes_that_follow_and_comes_back_as_it_was() {
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
    fn fallocate_does_what_is_there_and_nothing_else() {
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
    fn other_namespaces_of_extended_attributes_are_not_there() {
        assert!(xattr_name(OsStr::new("user.x")).is_some());
        assert!(xattr_name(OsStr::new("trusted.x")).is_some());
        assert!(xattr_name(OsStr::new("security.capability")).is_none());
        assert!(xattr_name(OsStr::new("system.posix_acl_access")).is_none());
    }
}
