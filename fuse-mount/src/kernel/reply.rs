//! Encodes replies to the kernel.

use std::time::Duration;

use client::protocol::{Attributes, NAME_MAX, Space};
use fuser::{
    Errno, Generation, ReplyAttr, ReplyEmpty, ReplyEntry, ReplyLock, ReplyStatfs, ReplyXattr,
};
use runtime::Spawn;

use super::request::kernel_range;
use crate::operations::{ConflictingLock, MountOperations};
use crate::translate::{self, KernelResult};

/// The block size of `statfs`, in bytes.
const BLOCK_BYTES: u32 = 4096;

/// Replies with a file, which the kernel may then refer to by its number.
pub(super) fn reply_entry<S: Spawn>(
    operations: &MountOperations<S>,
    reply: ReplyEntry,
    found: KernelResult<Attributes>,
    cache: Duration,
) {
    match found {
        Ok(file) => {
            operations.inodes.add_lookup(&file);
            let generation = Generation(file.generation);
            reply.entry(&cache, &translate::attributes(&file), generation);
        }
        Err(error) => reply.error(error.into()),
    }
}

pub(super) fn reply_attr<S: Spawn>(
    operations: &MountOperations<S>,
    reply: ReplyAttr,
    found: KernelResult<Attributes>,
    cache: Duration,
) {
    match found {
        Ok(file) => {
            operations.inodes.note_sent(&file);
            reply.attr(&cache, &translate::attributes(&file));
        }
        Err(error) => reply.error(error.into()),
    }
}

pub(super) fn reply_empty(reply: ReplyEmpty, done: KernelResult<()>) {
    match done {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error.into()),
    }
}

/// Replies with the bytes, or with their number if `size` is 0.
pub(super) fn reply_xattr(reply: ReplyXattr, found: KernelResult<Vec<u8>>, size: u32) {
    match found {
        Ok(bytes) if size == 0 => reply.size(bytes.len() as u32),
        Ok(bytes) if bytes.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(bytes) => reply.data(&bytes),
        Err(error) => reply.error(error.into()),
    }
}

pub(super) fn reply_lock(reply: ReplyLock, found: KernelResult<Option<ConflictingLock>>) {
    match found {
        Ok(None) => reply.locked(0, 0, libc::F_UNLCK, 0),
        Ok(Some(ConflictingLock { lock, pid })) => {
            let (start, end) = kernel_range(lock.range);
            reply.locked(start, end, translate::lock_kind(lock.kind), pid);
        }
        Err(error) => reply.error(error.into()),
    }
}

pub(super) fn reply_statfs(reply: ReplyStatfs, space: &Space) {
    let &Space { total_bytes, free_bytes, available_bytes, inodes, .. } = space;
    let blocks = |bytes: u64| bytes / u64::from(BLOCK_BYTES);
    let (total, free) = (blocks(total_bytes), blocks(free_bytes));
    let available = blocks(available_bytes);
    // An inode takes space as data does, so there can be about as many as blocks.
    let files = inodes + free;
    let name_max = NAME_MAX as u32;
    reply.statfs(total, free, available, files, free, BLOCK_BYTES, name_max, BLOCK_BYTES);
}
