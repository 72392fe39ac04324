//! Answers to the kernel.

use std::time::Duration;

use client::protocol::{Attributes, NAME_MAX, Space};
use fuser::{
    Errno, Generation, ReplyAttr, ReplyEmpty, ReplyEntry, ReplyLock, ReplyStatfs, ReplyXattr,
};
use runtime::Spawn;

use super::asked::kernel_range;
use crate::operations::{LockFound, Operations};
use crate::translate::{self, Failure};

/// The unit in which space is told, in bytes.
const BLOCK_BYTES: u32 = 4096;

/// Tells the kernel of a file, from which on the kernel may mean it by its number.
pub(super) fn tell<S: Spawn>(
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

pub(super) fn tell_attributes(
    reply: ReplyAttr,
    found: Result<Attributes, Failure>,
    cache: Duration,
) {
    match found {
        Ok(file) => reply.attr(&cache, &translate::attributes(&file)),
        Err(failure) => reply.error(failure.into()),
    }
}

pub(super) fn tell_done(reply: ReplyEmpty, done: Result<(), Failure>) {
    match done {
        Ok(()) => reply.ok(),
        Err(failure) => reply.error(failure.into()),
    }
}

/// Tells as many bytes as there are, or how many there are if there is no room for any: `size` is 0.
pub(super) fn tell_bytes(reply: ReplyXattr, found: Result<Vec<u8>, Failure>, size: u32) {
    match found {
        Ok(bytes) if size == 0 => reply.size(bytes.len() as u32),
        Ok(bytes) if bytes.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(bytes) => reply.data(&bytes),
        Err(failure) => reply.error(failure.into()),
    }
}

/// Tells the lock that is in the way.
pub(super) fn tell_lock(reply: ReplyLock, found: Result<Option<LockFound>, Failure>) {
    match found {
        Ok(None) => reply.locked(0, 0, libc::F_UNLCK, 0),
        Ok(Some(LockFound { lock, pid })) => {
            let (start, end) = kernel_range(lock.range);
            reply.locked(start, end, translate::lock_kind(lock.kind), pid);
        }
        Err(failure) => reply.error(failure.into()),
    }
}

pub(super) fn tell_space(reply: ReplyStatfs, space: &Space) {
    let &Space { total_bytes, free_bytes, inodes } = space;
    let blocks = |bytes: u64| bytes / u64::from(BLOCK_BYTES);
    let (total, free) = (blocks(total_bytes), blocks(free_bytes));
    // An inode takes space as data does, so there can be about as many as blocks.
    let files = inodes + free;
    let name_max = NAME_MAX as u32;
    reply.statfs(total, free, free, files, free, BLOCK_BYTES, name_max, BLOCK_BYTES);
}
