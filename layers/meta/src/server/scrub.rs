//! Reading what a node has on its disks while it is in use, a part at a time ([`Scrub`]).
//!
//! Data and pages are read past all caches and compared with their checksums. What a change of the
//! node has given back meanwhile is looked at again, so that nothing is called damaged by that.

use std::collections::BTreeSet;
use std::ops::{Bound, ControlFlow};
use std::rc::Rc;

use blockio::protocol::CheckSuperblocks;
use blockio::{BLOCK_SIZE, DiskName, Stripes};
use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream;
use runtime::wire::from_bytes;
use runtime::{NodeId, NodeKind};

use super::base::NodeBase;
use super::space::content_repair::ContentRepairer;
use super::wide_stripe_table::WideStripeTable;
use crate::audit::{bad_blocks, count_per_block};
use crate::keys;
use crate::protocol::{
    BlockRun, Chunk, Error, Run, Scrub, ScrubFlaw, ScrubPart, StripeShard, WideStripe,
};
use crate::store::{
    BadCopy, ScrubbedKeys, StoreError, scrub_keys, scrub_log, scrub_map, scrub_roots,
};

/// Keys of one part, at most.
const KEYS_MAX: usize = 512;
/// Bytes of data after which a part ends.
const DATA_BYTES: u64 = 4 << 20;
/// Times that a chunk may change while it is compared.
const CHANGES_MAX: usize = 16;
/// Runs of blocks that are read concurrently.
const READS_MAX: usize = 8;

/// What was found in a part, and on which disks.
#[derive(Default)]
pub(super) struct ScrubFindings {
    pub(super) part: ScrubPart,
    /// Blocks that are bad, each with its disk, and whether it was made anew.
    pub(super) bad: Vec<(DiskName, bool)>,
}

impl ScrubFindings {
    /// What was found in pages.
    fn add_pages(&mut self, found: &ScrubbedKeys, repair: bool) {
        self.part.read_bytes += found.read_bytes;
        self.part.flaws.extend(page_flaws(found, repair));
        self.bad.extend(found.bad.iter().map(|copy| (copy.disk, repair)));
    }

    /// A block of data on a disk is bad.
    fn add_data(&mut self, disk: DiskName, flaw: ScrubFlaw) {
        self.bad.push((disk, flaw.is_mended));
        self.part.flaws.push(flaw);
    }
}

/// Scrubs one node.
pub(super) struct Scrubber {
    base: Rc<NodeBase>,
    repairer: Rc<ContentRepairer>,
    wide_stripes: Rc<WideStripeTable>,
}

/// Something that is wrong with metadata.
fn note(what: String) -> ScrubFlaw {
    ScrubFlaw { inode: 0, offset: 0, disk_node: None, is_mended: false, what }
}

/// What is wrong with pages.
fn page_flaws(found: &ScrubbedKeys, repair: bool) -> impl Iterator<Item = ScrubFlaw> {
    let bad = found.bad.iter().map(move |BadCopy { block, disk, error }| {
        let what = format!("a copy of a page, at block {block} on disk {disk}, is bad: {error}");
        ScrubFlaw { is_mended: repair, ..note(what) }
    });
    found.damage.iter().map(|error| note(error.to_string())).chain(bad)
}

impl Scrubber {
    pub(super) fn new(
        base: &Rc<NodeBase>,
        repairer: Rc<ContentRepairer>,
        wide_stripes: Rc<WideStripeTable>,
    ) -> Self {
        Self { base: base.clone(), repairer, wide_stripes }
    }

    /// Answers [`Scrub`].
    pub(super) async fn scrub(&self, request: Scrub) -> Result<ScrubFindings, Error> {
        let Scrub { after, data, repair } = request;
        let store = &self.base.store;
        let below = self.base.stripes.below().unwrap_or_else(|| self.base.stripes.clone());
        let mut findings = ScrubFindings::default();
        if after.is_empty() {
            let mut told = self.scrub_superblocks(repair).await?;
            told.extend(scrub_roots(store, repair).await);
            told.extend(scrub_log(store, &below, repair).await?);
            let flaw = |what| ScrubFlaw { is_mended: repair, ..note(what) };
            findings.part.flaws.extend(told.into_iter().map(flaw));
            let map = scrub_map(store, &below, repair).await?;
            findings.add_pages(&map, repair);
        }
        let found = match scrub_keys(store, &below, &after, (KEYS_MAX, repair)).await {
            Ok(found) => found,
            Err(error) if error.is_busy() => return Err(error.into()),
            Err(error) => {
                let what = format!("{error}; what lies behind it was not looked at");
                findings.part.flaws.push(note(what));
                return Ok(findings);
            }
        };
        findings.add_pages(&found, repair);
        findings.part.next = found.next.map(|next| next.to_vec());
        for (key, value) in found.entries {
            findings.part.keys += 1;
            if !data || !self.scrub_data(&below, (&key, value), repair, &mut findings).await? {
                continue;
            }
            if findings.part.read_bytes >= DATA_BYTES {
                findings.part.next = Some([&key, &[0][..]].concat());
                break;
            }
        }
        Ok(findings)
    }

    /// Compares a chunk, and the wide stripe that it is in, and makes anew what is bad.
    pub(super) async fn scrub_one(&self, (ino, index): (u64, u64)) -> Result<ScrubFindings, Error> {
        let below = self.base.stripes.below().unwrap_or_else(|| self.base.stripes.clone());
        let mut findings = ScrubFindings::default();
        let wide = self.wide_stripes.find(ino, index).await?;
        let wide = wide.map(|found| keys::wide_stripe(ino, found.first));
        for key in [Some(keys::chunk(ino, index)), wide].into_iter().flatten() {
            if let Some(value) = self.value(&key).await? {
                self.scrub_data(&below, (&key, value), true, &mut findings).await?;
            }
        }
        Ok(findings)
    }

    /// What is wrong with superblocks: each disk node is asked by one node.
    async fn scrub_superblocks(&self, repair: bool) -> Result<Vec<String>, Error> {
        let context = &self.base.context;
        let NodeKind::Fs(own) = context.node().kind() else { return Ok(Vec::new()) };
        let map = self.base.stripes.map();
        let there = map.disks().into_iter().filter(|disk| !map.state(*disk).is_absent());
        let nodes = there.map(|disk| disk.disk_node);
        let nodes: BTreeSet<u32> =
            nodes.filter(|disk_node| disk_node % context.fs_nodes() == own).collect();
        let mut told = Vec::new();
        for node in nodes.into_iter().map(NodeId::disk) {
            let found = context.spawn(node, CheckSuperblocks { repair }).await;
            told.extend(found.map_err(StoreError::from)?);
        }
        Ok(told)
    }

    /// Compares the data that a chunk or a wide stripe names; again, if that changes meanwhile.
    /// False if the key is of something else.
    async fn scrub_data(
        &self,
        below: &Rc<dyn Stripes>,
        (key, mut value): (&[u8], Bytes),
        repair: bool,
        findings: &mut ScrubFindings,
    ) -> Result<bool, Error> {
        let table = keys::table_of(key);
        let is_chunk = table == Some(keys::KeyTable::Chunk);
        if !is_chunk && table != Some(keys::KeyTable::WideStripe) {
            return Ok(false);
        }
        for _ in 0..=CHANGES_MAX {
            let entry = (key, &value[..]);
            let changed = if is_chunk {
                self.scrub_chunk(below, entry, repair, findings).await?
            } else {
                self.scrub_wide_stripe(below, entry, repair, findings).await?
            };
            let Some(now) = changed else { return Ok(true) };
            value = now;
        }
        let what = if is_chunk { "a chunk" } else { "a wide stripe" };
        findings.part.flaws.push(note(format!("{what} changes too fast to be compared")));
        Ok(true)
    }

    /// Reads the blocks that a chunk names, all copies, and compares them. Returns what the chunk
    /// is now, if it has changed.
    async fn scrub_chunk(
        &self,
        below: &Rc<dyn Stripes>,
        (key, value): (&[u8], &[u8]),
        repair: bool,
        findings: &mut ScrubFindings,
    ) -> Result<Option<Bytes>, Error> {
        let blocks = below.geometry().blocks_per_stripe();
        let (Some(ino), Some(index)) = (keys::chunk_ino(key), keys::chunk_index(key)) else {
            return Ok(None);
        };
        let flaw = |offset, what| ScrubFlaw { inode: ino, offset, ..note(what) };
        let Some(chunk) = from_bytes::<Chunk>(value).ok().filter(|chunk| chunk.is_valid(blocks))
        else {
            findings.part.flaws.push(flaw(0, format!("the block map of chunk {index} cannot be")));
            return Ok(None);
        };
        // Covered runs are compared with their wide stripe.
        let own = chunk.runs.iter().filter(|run| !run.form.covered);
        let places = own.flat_map(|run| run.places().map(move |place| (run, place)));
        findings.part.read_bytes += chunk.count_of_copies() * BLOCK_SIZE as u64;
        let runs = places.map(|(run, place)| async move {
            let bad = bad_unless_away(&**below, place, &run.checksums).await;
            let bad = bad.into_iter();
            bad.map(|(block, why)| (u64::from(run.at) + block, place.start, why))
                .collect::<Vec<_>>()
        });
        let bad: Vec<_> = stream::iter(runs).buffered(READS_MAX).collect().await;
        if bad.iter().all(Vec::is_empty) {
            return Ok(None);
        }
        // Given back meanwhile: others may have written there.
        if let ControlFlow::Break(now) = self.compare(key, value).await? {
            return Ok(now);
        }
        let copies: BTreeSet<u64> = bad.iter().flatten().map(|(_, copy, _)| *copy).collect();
        let is_mended = if repair && chunk.runs.iter().any(BlockRun::is_mirrored) {
            mended((ino, index), self.repairer.repair((ino, index), copies).await)
        } else {
            BTreeSet::new()
        };
        if is_mended.is_empty()
            && let ControlFlow::Break(now) = self.compare(key, value).await?
        {
            return Ok(now);
        }
        let bytes = chunk.unit_or(1) as usize * BLOCK_SIZE;
        let bad_copies = count_per_block(bad.iter().flatten().map(|(block, ..)| *block));
        let copies_of =
            |block: u64| chunk.slot(block as usize).map_or(0, |(slot, _)| slot.starts().count());
        for (block, copy, why) in bad.into_iter().flatten() {
            let has_good_copy = bad_copies[&block] < copies_of(block);
            let disk = below.map().place(below.geometry().block(copy).0).disk;
            let disk_node = has_good_copy.then_some(disk.disk_node);
            let offset = offset_of(index, block, blocks);
            let what = format!("{bytes} bytes at offset {offset}: {why}");
            let is_mended = is_mended.contains(&copy);
            findings.add_data(disk, ScrubFlaw { disk_node, is_mended, ..flaw(offset, what) });
        }
        Ok(None)
    }

    /// Breaks with what a key has now, if it is not `value` any more: it was mended, say.
    async fn compare(&self, key: &[u8], value: &[u8]) -> Result<ControlFlow<Option<Bytes>>, Error> {
        let now = self.value(key).await?;
        let is_same = now.as_ref().is_some_and(|now| now[..] == *value);
        Ok(if is_same { ControlFlow::Continue(()) } else { ControlFlow::Break(now) })
    }

    /// What a key has now.
    async fn value(&self, key: &[u8]) -> Result<Option<Bytes>, Error> {
        let (first, end) = keys::only(key);
        let now = self.base.store.scan(Bound::Included(&first), &end, 1).await?;
        Ok(now.into_iter().next().map(|(_, now)| now))
    }

    /// Reads all shards of a wide stripe and compares them. Returns what the wide stripe is now, if
    /// it has changed.
    async fn scrub_wide_stripe(
        &self,
        below: &Rc<dyn Stripes>,
        (key, value): (&[u8], &[u8]),
        repair: bool,
        findings: &mut ScrubFindings,
    ) -> Result<Option<Bytes>, Error> {
        let blocks = below.geometry().blocks_per_stripe();
        let (Some(ino), Some(first)) = (keys::chunk_ino(key), keys::chunk_index(key)) else {
            return Ok(None);
        };
        let flaw = |offset, what| ScrubFlaw { inode: ino, offset, ..note(what) };
        let wide = from_bytes::<WideStripe>(value).ok().filter(|wide| wide.is_valid(blocks));
        let Some(wide) = wide else {
            findings
                .part
                .flaws
                .push(flaw(0, format!("the wide stripe of chunk {first} cannot be")));
            return Ok(None);
        };
        let shards: Vec<&StripeShard> = wide.shards().collect();
        let shard_bytes = u64::from(blocks) * BLOCK_SIZE as u64;
        findings.part.read_bytes += shards.len() as u64 * shard_bytes;
        let reads = shards.iter().map(|shard| {
            let below = below.clone();
            async move { bad_unless_away(&*below, shard.run(blocks), &shard.checksums).await }
        });
        let bad: Vec<_> = stream::iter(reads).buffered(READS_MAX).collect().await;
        if bad.iter().all(Vec::is_empty) {
            return Ok(None);
        }
        if let ControlFlow::Break(now) = self.compare(key, value).await? {
            return Ok(now);
        }
        let is_bad =
            |(shard, bad): (&&StripeShard, &Vec<_>)| (!bad.is_empty()).then_some(shard.start);
        let bad_starts: BTreeSet<u64> = shards.iter().zip(&bad).filter_map(is_bad).collect();
        let is_mended = if repair {
            mended((ino, first), self.repairer.repair_shards((ino, first), bad_starts).await)
        } else {
            BTreeSet::new()
        };
        if is_mended.is_empty()
            && let ControlFlow::Break(now) = self.compare(key, value).await?
        {
            return Ok(now);
        }
        let bad_shards = count_per_block(bad.iter().flatten().map(|(block, _)| *block));
        let bytes = wide.unit(blocks) as usize * BLOCK_SIZE;
        for (number, (shard, bad)) in shards.iter().zip(bad).enumerate() {
            let disk = below.map().place(below.geometry().block(shard.start).0).disk;
            for (block, why) in bad {
                let is_elsewhere = bad_shards[&block] <= wide.parity.len();
                let disk_node = is_elsewhere.then_some(disk.disk_node);
                let offset = offset_of(first.saturating_add(number as u64), block, blocks);
                let what = if number < wide.data.len() {
                    format!("{bytes} bytes at offset {offset}: {why}")
                } else {
                    format!("{bytes} bytes of the parity of chunk {first}: {why}")
                };
                let is_mended = is_mended.contains(&shard.start);
                findings.add_data(disk, ScrubFlaw { disk_node, is_mended, ..flaw(offset, what) });
            }
        }
        Ok(None)
    }
}

/// As [`bad_blocks`]; nothing of a disk whose host is away, which keeps what is there.
async fn bad_unless_away(stripes: &dyn Stripes, run: Run, expect: &[u32]) -> Vec<(u64, String)> {
    let map = stripes.map();
    let disk = map.place(map.geometry().block(run.start).0).disk;
    if map.state(disk).is_absent() {
        return Vec::new();
    }
    bad_blocks(stripes, run, expect).await
}

/// Which bad copies of data were made anew. What cannot be mended is told.
fn mended((ino, index): (u64, u64), repaired: Result<BTreeSet<u64>, Error>) -> BTreeSet<u64> {
    repaired.unwrap_or_else(|error| {
        tracing::warn!(ino, index, %error, "a bad copy of data stays as it is");
        BTreeSet::new()
    })
}

/// Where block `block` of a chunk of `blocks` blocks begins in its file.
fn offset_of(chunk: u64, block: u64, blocks: u32) -> u64 {
    let block = chunk.saturating_mul(blocks.into()).saturating_add(block);
    block.saturating_mul(BLOCK_SIZE as u64)
}
