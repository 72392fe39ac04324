//! Records of chunks: how much fits into one, and how it is put into a batch.

use runtime::wire::to_bytes;

use crate::active::Uncommitted;
use crate::keys;
use crate::protocol::{Chunk, Run};
use crate::store::{Batch, Store};

/// Bytes that the chunks of one record may take, at most, and half of what the store takes: small
/// stripes have short records.
const RECORD_BYTES: usize = 20 << 10;
/// Bytes that one block of a chunk takes in a record, at most: a run of its own, taken and freed.
const RECORD_BYTES_PER_BLOCK: usize = 48;

/// Chunks in one record of a change that frees space, at most: on a full volume it must fit the
/// reserve.
pub(crate) const RESERVE_CHUNKS_MAX: usize = 16;

/// Chunks in one record of a commit for which there is no space otherwise. What was accepted must
/// become durable, and leave the space that deletions need.
pub(crate) const TIGHT_CHUNKS_MAX: usize = 4;

/// Chunks of `blocks_per_stripe` blocks that one record holds, at most.
pub(crate) fn chunks_per_record(store: &Store, blocks_per_stripe: u32) -> usize {
    let bytes = RECORD_BYTES.min(store.batch_bytes_max() / 2);
    (bytes / (RECORD_BYTES_PER_BLOCK * blocks_per_stripe as usize)).max(1)
}

/// The first chunk of `stripe_size` bytes that a file of `size` bytes does not have.
pub(crate) fn first_gone(size: u64, stripe_size: u32) -> u64 {
    size.div_ceil(u64::from(stripe_size))
}

/// A record of changed chunks, or a part of one.
pub(crate) fn batch_of(ino: u64, changes: &[(u64, Uncommitted)], from_reserve: bool) -> Batch {
    let mut batch = Batch::new();
    if from_reserve {
        batch.take_from_reserve();
    } else {
        batch.take_kept_room();
    }
    for (index, change) in changes {
        put_chunk(&mut batch, ino, *index, &change.chunk);
        if let Some(encoded) = &change.encoded {
            batch.put(keys::wide_stripe(ino, *index), to_bytes(&encoded.wide));
        }
        add_runs(&mut batch, &change.taken, &change.freed);
    }
    batch
}

/// Puts a chunk into a batch; one without blocks has no key.
pub(crate) fn put_chunk(batch: &mut Batch, ino: u64, index: u64, chunk: &Chunk) {
    if chunk.runs.is_empty() {
        batch.delete(keys::chunk(ino, index));
    } else {
        batch.put(keys::chunk(ino, index), to_bytes(chunk));
    }
}

/// Puts into a batch that these blocks come into use, and that those are free.
pub(crate) fn add_runs(batch: &mut Batch, taken: &[Run], freed: &[Run]) {
    for &run in taken {
        batch.allocated(run);
    }
    for &run in freed {
        batch.freed(run);
    }
}
