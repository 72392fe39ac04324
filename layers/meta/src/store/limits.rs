//! How large the parts of a store may become, from the share of the volume that the node owns.

use blockio::{BLOCK_SIZE, Geometry, VolumeMap};
use runtime::VolumeId;

use super::batch::{BATCH_BYTES_MAX, RECORD_HEAD};
use super::groups::GroupLayout;
use super::log::format::ENTRY_HEAD;
use super::page::PAGE_BLOCKS_MAX;
use super::tree::TreeRoot;

/// A checkpoint starts when the log is this long, in bytes of one copy, at the latest.
pub const LOG_BYTES_CHECKPOINT: u64 = 4 << 20;
/// The log of a node on a large volume, in bytes of one copy; past it commits are `Busy`.
pub const LOG_BYTES_MAX: u64 = 8 << 20;
/// The log of a node on a small volume, in bytes of one copy.
const LOG_BYTES_MIN: u64 = 512 << 10;
/// Spreads neighbouring node numbers over all numbers: 2^32 divided by the golden ratio.
const SPREAD: u32 = 0x9E37_79B9;
/// Segments of a log, at least: one is written, one waits, one may be replaced, one to spare.
const LOG_SEGMENTS_MIN: u64 = 4;
/// Segments with which a mount starts its log, while the log before is still needed.
pub(crate) const MOUNT_SEGMENTS: u64 = 2;
/// The part of a node's [share](share_stripes) that a copy of the log may take: one in this many.
const LOG_SHARE: u64 = 32;

/// Blocks that are kept back from data, so that deletions and checkpoints work on a full volume:
/// one block in this many, between the two limits, with two copies of metadata.
const RESERVE_SHARE: u64 = 32;
const RESERVE_BLOCKS_MIN: u64 = 384;
const RESERVE_BLOCKS_MAX: u64 = 4096;

/// Bytes that a copy of the tree grows by for a byte of a record, at most: pages are half full at
/// least.
const GROWTH: u64 = 2;

/// Bytes of a chunk's record besides its runs and blocks.
const RECORD_BYTES_PER_CHUNK: u64 = 36;
/// Bytes that it has for each run.
const RECORD_BYTES_PER_RUN: u64 = 12;
/// Bytes that it has for each block.
const RECORD_BYTES_PER_BLOCK: u64 = 4;

/// A node of a volume whose number of nodes is not given has at least this many stripes for each
/// that it keeps back.
const SHARE_PER_KEPT_MIN: u64 = 16;

/// Stripes that a node needs besides log and reserve, to hold anything at all.
const USEFUL_STRIPES_MIN: u64 = 8;

/// Stripes of the disks in use for each node. What a node keeps back is measured by this and not by
/// what it owns: else part of each group that it gets from another node would be kept back too, and
/// no node could say what another can store.
fn share_stripes(map: &VolumeMap) -> u64 {
    map.online_stripes() / u64::from(map.geometry().fs_nodes.max(1))
}

/// Copies of metadata.
pub(crate) fn copies(map: &VolumeMap) -> u64 {
    map.redundancy().metadata_copies().into()
}

/// Segments of the log, at most.
pub(crate) fn log_segments_max(map: &VolumeMap) -> u64 {
    let geometry = map.geometry();
    let least = log_segments_least(&geometry);
    let most = (LOG_BYTES_MAX / u64::from(geometry.stripe_size)).max(least);
    (share_stripes(map) / LOG_SHARE).clamp(least, most)
}

fn log_segments_least(geometry: &Geometry) -> u64 {
    (LOG_BYTES_MIN / u64::from(geometry.stripe_size)).max(LOG_SEGMENTS_MIN)
}

/// Segments from which on a checkpoint of `node` is due. The nodes of a volume fill alike:
/// each has another threshold, between half of [`LOG_BYTES_CHECKPOINT`] and all of it, so that they
/// do not write, and do not keep in memory what is to be written, all at the same time.
pub(crate) fn log_segments_checkpoint(map: &VolumeMap, node: u32) -> u64 {
    let most = LOG_BYTES_CHECKPOINT / u64::from(map.geometry().stripe_size);
    let wanted = most - most * spread(node) / 512;
    wanted.min(log_segments_max(map) / 2).max(3)
}

/// A number below 256 that differs between neighbouring nodes.
pub(crate) fn spread(node: u32) -> u64 {
    u64::from(node.wrapping_mul(SPREAD) >> 24)
}

/// Blocks kept back from data, besides what the log may take.
pub(crate) fn reserve_blocks(map: &VolumeMap) -> u64 {
    let share = share_stripes(map) * u64::from(map.geometry().blocks_per_stripe());
    let for_two = (share / RESERVE_SHARE).clamp(RESERVE_BLOCKS_MIN, RESERVE_BLOCKS_MAX);
    for_two * copies(map) / 2
}

/// Blocks that a node keeps back from data: for its log, and for deletions and checkpoints.
pub fn kept_blocks(map: &VolumeMap) -> u64 {
    let log = copies(map) * (log_segments_max(map) + MOUNT_SEGMENTS);
    log * u64::from(map.geometry().blocks_per_stripe()) + reserve_blocks(map)
}

/// Stripes that a node's share of a volume of this shape must have, at least, with this number of
/// copies of metadata.
pub fn stripes_min(geometry: &Geometry, metadata_copies: u32) -> u64 {
    let log = u64::from(metadata_copies) * (log_segments_least(geometry) + MOUNT_SEGMENTS);
    let reserve = RESERVE_BLOCKS_MIN * u64::from(metadata_copies) / 2;
    let reserve = reserve.div_ceil(u64::from(geometry.blocks_per_stripe()));
    log + reserve + USEFUL_STRIPES_MIN
}

/// How many nodes a volume of `stripes` stripes of this size gets if nothing else is wished, at
/// most `most`: what each keeps back ([`stripes_min`]) is a small part of its share then.
pub fn suitable_nodes((stripe_size, metadata_copies): (u32, u32), stripes: u64, most: u32) -> u32 {
    let geometry = Geometry { volume: VolumeId(0), stripe_size, fs_nodes: 1 };
    let nodes = stripes / (SHARE_PER_KEPT_MIN * stripes_min(&geometry, metadata_copies)).max(1);
    let nodes = nodes.clamp(1, u64::from(most.max(1))) as u32;
    1 << nodes.ilog2()
}

/// Stripes of the node that gets the fewest in a volume of this shape: groups are given whole. Of
/// those that no disk has room for further copies of, none counts.
pub fn smallest_share(map: &VolumeMap) -> u64 {
    let layout = GroupLayout::of(map);
    let share_of = |node| {
        let groups = layout.born(node);
        groups
            .map(|group| layout.stripes_of(group))
            .map(|stripes| stripes.end - stripes.start)
            .sum()
    };
    let least = (0..map.geometry().fs_nodes).map(share_of).min().unwrap_or(0);
    let copies = map.redundancy().copies();
    let in_copies = map.stripes_in_copies(copies) * u64::from(copies);
    least.min(in_copies / u64::from(map.geometry().fs_nodes.max(1)))
}

/// Bytes of one batch, at most: its record fits a segment besides the segment's header.
pub(crate) fn batch_bytes_max(geometry: &Geometry) -> usize {
    let segment = geometry.stripe_size as usize - BLOCK_SIZE - ENTRY_HEAD - RECORD_HEAD;
    segment.min(BATCH_BYTES_MAX)
}

/// What is left of them beside `tree`.
pub(crate) fn data_reserve_blocks(map: &VolumeMap, tree: &TreeRoot) -> u64 {
    let reserve = reserve_blocks(map);
    let tree_blocks = copies(map) * tree.pages * u64::from(PAGE_BLOCKS_MAX);
    reserve - tree_blocks.min(reserve / 3)
}

/// Bytes that all copies of the tree grow by, at most, once records name what is handed out:
/// `blocks` blocks in `runs` runs, of `chunks` chunks that had none.
pub(crate) fn record_bytes(map: &VolumeMap, chunks: u64, runs: u64, blocks: u64) -> u64 {
    let bytes = chunks * RECORD_BYTES_PER_CHUNK + runs * RECORD_BYTES_PER_RUN;
    copies(map) * GROWTH * (bytes + blocks * RECORD_BYTES_PER_BLOCK)
}

/// The same in blocks.
pub(crate) fn record_blocks(bytes: u64) -> u64 {
    bytes.div_ceil(BLOCK_SIZE as u64)
}

/// Blocks that a checkpoint allocates for one copy of each page before it frees any, at most, if
/// `keys` keys with `bytes` bytes have changed in `tree` and a copy of the space map has as many as
/// the last one had.
pub(crate) fn checkpoint_blocks(tree: &TreeRoot, keys: u64, bytes: u64, map_blocks: u64) -> u64 {
    let (page, height) = (u64::from(PAGE_BLOCKS_MAX), u64::from(tree.height));
    // Each key may be in a leaf of its own and lets all pages above it be written, of which all
    // have the top one; a page that is cut in two takes a block more than it had.
    let own = keys * height.saturating_sub(1);
    let rewritten = (page + 1) * (own + 1).min(tree.pages) * u64::from(keys > 0);
    let added = 2 * (bytes / BLOCK_SIZE as u64 + keys / 64) + page * (height + 1);
    rewritten + added + 2 * map_blocks
}
