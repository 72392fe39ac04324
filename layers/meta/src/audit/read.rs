//! Reading a node that is not served. Nothing is written, and damage in one place does not keep the
//! rest from being read.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use blockio::protocol::Error as DiskError;
use blockio::{BLOCK_SIZE, Stripes, VolumeMap};
use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream;
use runtime::Context;

use super::flaw::{COPY_BACK, Flaw, HEALS, NO_ROOM, REPLACE, WRITTEN_ANEW};
use super::node::{DataEntry, NodeAudit};
use super::space::{BlockOwner, UsedBlocks, compare};
use crate::protocol::{Chunk, Run, WideStripe};
use crate::store::{BadCopy, GroupLayout, ImagePart, StoreError, StoreImage};

/// The longest wait, in microseconds.
const YEAR_US: u128 = 365 * 24 * 3600 * 1_000_000;
/// Runs of blocks that are read concurrently.
const READS_MAX: usize = 8;

/// How the data of files is read.
pub struct Data {
    /// Bytes per second, at most; 0 for as many as the disks give.
    pub rate_bytes: u64,
    /// Called with the number of bytes read since the last call.
    pub on_read: Box<dyn Fn(u64)>,
}

impl std::fmt::Debug for Data {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Data").field("rate_bytes", &self.rate_bytes).finish_non_exhaustive()
    }
}

/// How fast data was read so far.
struct ReadPace<'a> {
    context: &'a Context,
    stripes: &'a dyn Stripes,
    data: &'a Data,
    began: Duration,
    bytes: u64,
}

/// Reads all metadata of `node` from `stripes`, which are not written to; with `data` the blocks of
/// its files too, against the checksums that their chunks name.
///
/// Errors mean that not even the start was found: there is nothing to say about the node.
pub async fn read_node(
    context: &Context,
    stripes: Rc<dyn Stripes>,
    node: u32,
    data: Option<Data>,
) -> Result<NodeAudit, StoreError> {
    let image = StoreImage::read(context, stripes.clone(), node).await?;
    let space = image.space();
    let geometry = stripes.geometry();
    let mut found = NodeAudit {
        node,
        nodes: geometry.fs_nodes,
        chunk_blocks: geometry.blocks_per_stripe(),
        set_ends: GroupLayout::of(&stripes.map()).set_ends(),
        adopted_sets: stripes.map().born_sets() as u64,
        groups: space.groups.clone(),
        owned_blocks: space.owned_blocks,
        free_blocks: space.free_blocks,
        ..NodeAudit::default()
    };
    let (missing, of) = image.missing_roots();
    if missing > 0 {
        let what = format!("{missing} of {of} copies of it are missing or damaged");
        found.flaws.push(Flaw::new(format!("the root of node {node}"), what, HEALS));
    }
    note_bad_copies(&mut found, "the space map", HEALS, &image.bad_map_copies().await);
    for what in image.missing_log() {
        found.flaws.push(Flaw::new(format!("the log of node {node}"), what, HEALS));
    }
    if let Some(error) = image.outdated() {
        found.flaws.push(Flaw::new(format!("node {node}"), error.to_string(), COPY_BACK));
    }
    if let Some((needed, has)) = image.lacking_stripes() {
        let what = format!("it has no room to start: that takes {needed} stripes, {has} are free");
        found.flaws.push(Flaw::new(format!("node {node}"), what, NO_ROOM));
    }
    let mut pace = data.as_ref().map(|data| ReadPace {
        context,
        stripes: &*stripes,
        data,
        began: context.now(),
        bytes: 0,
    });
    let mut used = Vec::new();
    for error in image.damage() {
        found.lose_keys(error.to_string(), Bytes::new()..Bytes::new(), Vec::new());
    }
    let is_whole = read_keys(&image, &mut found, &mut used, &mut pace, &stripes.map()).await;
    let is_whole = is_whole && image.damage().is_empty();
    // Of what a lost page named nothing is known: neither its blocks nor its inodes.
    if is_whole {
        for (runs, owner) in [(&space.map, BlockOwner::Map), (&space.log, BlockOwner::Log)] {
            used.extend(runs.iter().map(|&run| UsedBlocks { run, owner }));
        }
        compare(node, used, &space.kept, &mut found.flaws);
        found.check();
    }
    Ok(found)
}

/// Takes every key. False if some could not be read.
async fn read_keys(
    image: &StoreImage,
    found: &mut NodeAudit,
    used: &mut Vec<UsedBlocks>,
    pace: &mut Option<ReadPace<'_>>,
    map: &VolumeMap,
) -> bool {
    let (mut walk, mut is_whole) = (image.walk(), true);
    while let Some(part) = walk.next().await {
        match part {
            ImagePart::Entries(entries) => {
                for (key, value) in entries {
                    let Some(entry) = found.take(&key, &value, used) else { continue };
                    found.check_copies(map, &entry);
                    let Some(pace) = pace.as_mut() else { continue };
                    match entry {
                        DataEntry::Chunk { ino, index, chunk } => {
                            pace.read_chunk(ino, index, &chunk, found).await;
                        }
                        DataEntry::WideStripe { ino, first, wide } => {
                            pace.read_wide_stripe((ino, first), &wide, found).await;
                        }
                    }
                }
            }
            ImagePart::Damaged { error, from, to, known } => {
                is_whole = false;
                found.lose_keys(error.to_string(), from..to, known);
            }
        }
    }
    note_bad_copies(found, "the metadata", WRITTEN_ANEW, &walk.bad_copies);
    used.extend(walk.tree_runs.iter().map(|&run| UsedBlocks { run, owner: BlockOwner::Tree }));
    is_whole
}

/// Pages of `thing` that are whole in one copy only.
fn note_bad_copies(found: &mut NodeAudit, thing: &str, step: &'static str, bad: &[BadCopy]) {
    // Of a disk that is missing it is said once.
    let is_missing =
        |bad: &&BadCopy| matches!(bad.error, StoreError::Disk(DiskError::Missing { .. }));
    for BadCopy { block, disk, error } in bad.iter().filter(|bad| !is_missing(bad)) {
        let thing = format!("{thing} of node {}", found.node);
        let what = format!("the copy of a page at block {block} is bad ({error}), the other whole");
        found.flaws.push(Flaw::on(*disk, &thing, what, step));
    }
}

impl ReadPace<'_> {
    async fn read_chunk(&mut self, ino: u64, index: u64, chunk: &Chunk, found: &mut NodeAudit) {
        let stripes = self.stripes;
        let layout = &GroupLayout::of(&stripes.map());
        // Covered runs are read with their wide stripe.
        let own = chunk.runs.iter().filter(|run| !run.form.covered);
        let runs = own.map(|run| async move {
            let mut bad = BTreeMap::<u64, (usize, String)>::new();
            for place in run.places() {
                for (block, why) in bad_within(stripes, layout, place, &run.checksums).await {
                    bad.entry(u64::from(run.at) + block).or_insert((0, why)).0 += 1;
                }
            }
            let copies = run.places().count();
            bad.into_iter().map(move |(block, (of, why))| (block, why, copies - of))
        });
        let bad: Vec<_> = stream::iter(runs).buffered(READS_MAX).collect().await;
        let per_chunk = u64::from(found.chunk_blocks);
        let bytes = chunk.unit_or(1) as usize * BLOCK_SIZE;
        for (block, why, whole_copies) in bad.into_iter().flatten() {
            let offset = index.saturating_mul(per_chunk).saturating_add(block);
            let offset = offset.saturating_mul(BLOCK_SIZE as u64);
            if whole_copies > 0 {
                let what = format!("a copy of {bytes} bytes at offset {offset} is bad: {why}");
                found.flaws.push(Flaw::of(ino, what, WRITTEN_ANEW));
                continue;
            }
            let what = format!("{bytes} bytes of data at offset {offset} are damaged: {why}");
            found.lose_data(ino, (offset, bytes), why);
            found.flaws.push(Flaw::of(ino, what, REPLACE));
        }
        self.rest(chunk.count_of_copies() * BLOCK_SIZE as u64).await;
    }

    /// Reads all shards. What is bad in one of them can be made of the others.
    async fn read_wide_stripe(
        &mut self,
        (ino, first): (u64, u64),
        wide: &WideStripe,
        found: &mut NodeAudit,
    ) {
        let (stripes, blocks) = (self.stripes, found.chunk_blocks);
        let layout = &GroupLayout::of(&stripes.map());
        let reads = wide
            .shards()
            .map(|shard| bad_within(stripes, layout, shard.run(blocks), &shard.checksums));
        let bad: Vec<_> = stream::iter(reads).buffered(READS_MAX).collect().await;
        let bad_shards = count_per_block(bad.iter().flatten().map(|(block, _)| *block));
        let bytes = wide.unit(blocks) as usize * BLOCK_SIZE;
        for (number, bad) in bad.iter().enumerate() {
            for (block, why) in bad {
                let offset = (first + number as u64) * u64::from(blocks) + block;
                let offset = offset * BLOCK_SIZE as u64;
                if bad_shards[block] <= wide.parity.len() {
                    let what = format!("{bytes} bytes in the wide stripe of chunk {first}: {why}");
                    found.flaws.push(Flaw::of(ino, what, WRITTEN_ANEW));
                } else if number < wide.data.len() {
                    let what = format!("{bytes} bytes of data at offset {offset} are lost: {why}");
                    found.lose_data(ino, (offset, bytes), why.clone());
                    found.flaws.push(Flaw::of(ino, what, REPLACE));
                }
            }
        }
        let shards = wide.shards().count() as u64;
        self.rest(shards * u64::from(blocks) * BLOCK_SIZE as u64).await;
    }

    /// Waits until that many bytes more may have been read.
    async fn rest(&mut self, bytes: u64) {
        self.bytes += bytes;
        (self.data.on_read)(bytes);
        if self.data.rate_bytes == 0 {
            return;
        }
        let due_us = u128::from(self.bytes) * 1_000_000 / u128::from(self.data.rate_bytes);
        let due = self.began.saturating_add(Duration::from_micros(due_us.min(YEAR_US) as u64));
        let ahead = due.saturating_sub(self.context.now());
        if !ahead.is_zero() {
            self.context.sleep(ahead).await;
        }
    }
}

/// As [`bad_blocks`], of blocks that may be named wrongly.
async fn bad_within(
    stripes: &dyn Stripes,
    layout: &GroupLayout,
    run: Run,
    expect: &[u32],
) -> Vec<(u64, String)> {
    if layout.is_run(run) {
        bad_blocks(stripes, run, expect).await
    } else {
        vec![(0, "its blocks are outside of the disk".to_owned())]
    }
}

/// How often each of these is bad: of each block, in how many places.
pub(crate) fn count_per_block(bad: impl Iterator<Item = u64>) -> BTreeMap<u64, usize> {
    let mut counts = BTreeMap::new();
    bad.for_each(|block| *counts.entry(block).or_default() += 1);
    counts
}

/// The first blocks of the logical blocks of a run that cannot be read as they were written, and
/// why. `expect` has a checksum for each of these.
pub(crate) async fn bad_blocks(
    stripes: &dyn Stripes,
    run: Run,
    expect: &[u32],
) -> Vec<(u64, String)> {
    let (mut bad, mut next) = (Vec::new(), 0);
    let (stripe, offset) = stripes.geometry().block(run.start);
    let first = offset / BLOCK_SIZE as u32;
    let unit = run.count.checked_div(expect.len() as u32).unwrap_or(1).max(1);
    while ((next / unit) as usize) < expect.len() {
        let length = run.count.saturating_sub(next) * BLOCK_SIZE as u32;
        let from = offset + next * BLOCK_SIZE as u32;
        let rest = expect[(next / unit) as usize..].to_vec();
        match stripes.read(stripe, from, length, rest).await {
            Ok(_) => break,
            Err(error @ DiskError::Corrupt { block, .. }) => {
                let at = block.saturating_sub(first).max(next) / unit * unit;
                bad.push((u64::from(at), error.to_string()));
                next = at + unit;
            }
            Err(error) => {
                bad.push((u64::from(next), error.to_string()));
                break;
            }
        }
    }
    bad
}
