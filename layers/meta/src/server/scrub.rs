//! Reading what a node has on its disks while it is in use, a part at a time ([`Scrub`]).
//!
//! Data and pages are read past all caches and compared with their checksums. What a change of the
//! node has given back meanwhile is looked at again, so that nothing is called damaged by that.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::rc::Rc;

use blockio::protocol::CheckSuperblocks;
use blockio::{BLOCK_SIZE, Stripes};
use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream;
use runtime::wire::from_bytes;
use runtime::{NodeId, NodeKind};

use super::base::NodeBase;
use super::space::content_repair::ContentRepairer;
use crate::audit::bad_blocks;
use crate::keys;
use crate::protocol::{
    BlockRun, Chunk, Error, Scrub, ScrubFlaw, ScrubPart, StripeShard, WideStripe,
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

/// Scrubs one node.
pub(super) struct Scrubber {
    base: Rc<NodeBase>,
    repairer: Rc<ContentRepairer>,
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
    pub(super) fn new(base: &Rc<NodeBase>, repairer: Rc<ContentRepairer>) -> Self {
        Self { base: base.clone(), repairer }
    }

    pub(super) async fn scrub(&self, request: Scrub) -> Result<ScrubPart, Error> {
        let Scrub { after, data, repair } = request;
        let store = &self.base.store;
        let below = self.base.stripes.below().unwrap_or_else(|| self.base.stripes.clone());
        let mut part = ScrubPart::default();
        if after.is_empty() {
            let mut told = self.scrub_superblocks(repair).await?;
            told.extend(scrub_roots(store, repair).await);
            told.extend(scrub_log(store, &below, repair).await?);
            let flaw = |what| ScrubFlaw { is_mended: repair, ..note(what) };
            part.flaws.extend(told.into_iter().map(flaw));
            let map = scrub_map(store, &below, repair).await?;
            part.read_bytes += map.read_bytes;
            part.flaws.extend(page_flaws(&map, repair));
        }
        let found = match scrub_keys(store, &below, &after, (KEYS_MAX, repair)).await {
            Ok(found) => found,
            Err(error) if error.is_busy() => return Err(error.into()),
            Err(error) => {
                part.flaws.push(note(format!("{error}; what lies behind it was not looked at")));
                return Ok(part);
            }
        };
        part.read_bytes += found.read_bytes;
        part.flaws.extend(page_flaws(&found, repair));
        part.next = found.next.map(|next| next.to_vec());
        for (key, value) in found.entries {
            part.keys += 1;
            match keys::table_of(&key).filter(|_| data) {
                Some(keys::KeyTable::Chunk) => {
                    self.scrub_chunk(&below, (&key, &value), repair, &mut part).await?;
                }
                Some(keys::KeyTable::WideStripe) => {
                    self.scrub_wide_stripe(&below, (&key, &value), repair, &mut part).await?;
                }
                _ => continue,
            }
            if part.read_bytes >= DATA_BYTES {
                part.next = Some([&key, &[0][..]].concat());
                break;
            }
        }
        Ok(part)
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

    /// Reads the blocks that a chunk names, all copies, and compares them; again, if it changes
    /// meanwhile.
    async fn scrub_chunk(
        &self,
        below: &Rc<dyn Stripes>,
        (key, value): (&[u8], &[u8]),
        repair: bool,
        part: &mut ScrubPart,
    ) -> Result<(), Error> {
        let mut changed = self.scrub_chunk_once(below, (key, value), repair, part).await?;
        for _ in 0..CHANGES_MAX {
            let Some(value) = changed else { return Ok(()) };
            changed = self.scrub_chunk_once(below, (key, &value), repair, part).await?;
        }
        if changed.is_some() {
            part.flaws.push(note("a chunk changes too fast to be compared".to_owned()));
        }
        Ok(())
    }

    /// The same once. Returns what the chunk is now, if it has changed.
    async fn scrub_chunk_once(
        &self,
        below: &Rc<dyn Stripes>,
        (key, value): (&[u8], &[u8]),
        repair: bool,
        part: &mut ScrubPart,
    ) -> Result<Option<Bytes>, Error> {
        let blocks = below.geometry().blocks_per_stripe();
        let (Some(ino), Some(index)) = (keys::chunk_ino(key), keys::chunk_index(key)) else {
            return Ok(None);
        };
        let flaw = |offset, what| ScrubFlaw { inode: ino, offset, ..note(what) };
        let Some(chunk) = from_bytes::<Chunk>(value).ok().filter(|chunk| chunk.is_valid(blocks))
        else {
            part.flaws.push(flaw(0, format!("the block map of chunk {index} cannot be")));
            return Ok(None);
        };
        // Covered runs are compared with their wide stripe.
        let own = chunk.runs.iter().filter(|run| !run.form.covered);
        let places = own.flat_map(|run| run.places().map(move |place| (run, place)));
        part.read_bytes += chunk.count_of_copies() * BLOCK_SIZE as u64;
        let runs = places.map(|(run, place)| async move {
            let bad = bad_blocks(&**below, place, &run.checksums).await;
            let bad = bad.into_iter();
            bad.map(|(block, why)| (u64::from(run.at) + block, place.start, why))
                .collect::<Vec<_>>()
        });
        let bad: Vec<_> = stream::iter(runs).buffered(READS_MAX).collect().await;
        if bad.iter().all(Vec::is_empty) {
            return Ok(None);
        }
        // Given back meanwhile: others may have written there.
        let now = self.value(key).await?;
        if now.as_ref().is_none_or(|now| now[..] != *value) {
            return Ok(now);
        }
        let copies: BTreeSet<u64> = bad.iter().flatten().map(|(_, copy, _)| *copy).collect();
        let is_mended = if repair && chunk.runs.iter().any(BlockRun::is_mirrored) {
            self.repair((ino, index), copies).await
        } else {
            BTreeSet::new()
        };
        let bytes = chunk.unit_or(1) as usize * BLOCK_SIZE;
        let mut bad_copies: BTreeMap<u64, usize> = BTreeMap::new();
        bad.iter().flatten().for_each(|(block, ..)| *bad_copies.entry(*block).or_default() += 1);
        let copies_of =
            |block: u64| chunk.slot(block as usize).map_or(0, |(slot, _)| slot.starts().count());
        for (block, copy, why) in bad.into_iter().flatten() {
            let has_good_copy = bad_copies[&block] < copies_of(block);
            let disk = below.map().place(below.geometry().block(copy).0).disk;
            let disk_node = has_good_copy.then_some(disk.disk_node);
            let offset = index.saturating_mul(blocks.into()).saturating_add(block);
            let offset = offset.saturating_mul(BLOCK_SIZE as u64);
            let what = format!("{bytes} bytes at offset {offset}: {why}");
            let is_mended = is_mended.contains(&copy);
            part.flaws.push(ScrubFlaw { disk_node, is_mended, ..flaw(offset, what) });
        }
        Ok(None)
    }

    /// What a key has now.
    async fn value(&self, key: &[u8]) -> Result<Option<Bytes>, Error> {
        let (first, end) = keys::only(key);
        let now = self.base.store.scan(Bound::Included(&first), &end, 1).await?;
        Ok(now.into_iter().next().map(|(_, now)| now))
    }

    /// Reads all shards of a wide stripe and compares them; again, if it changes meanwhile.
    async fn scrub_wide_stripe(
        &self,
        below: &Rc<dyn Stripes>,
        (key, value): (&[u8], &[u8]),
        repair: bool,
        part: &mut ScrubPart,
    ) -> Result<(), Error> {
        let mut changed = self.scrub_shards_once(below, (key, value), repair, part).await?;
        for _ in 0..CHANGES_MAX {
            let Some(value) = changed else { return Ok(()) };
            changed = self.scrub_shards_once(below, (key, &value), repair, part).await?;
        }
        if changed.is_some() {
            part.flaws.push(note("a wide stripe changes too fast to be compared".to_owned()));
        }
        Ok(())
    }

    /// The same once. Returns what the wide stripe is now, if it has changed.
    async fn scrub_shards_once(
        &self,
        below: &Rc<dyn Stripes>,
        (key, value): (&[u8], &[u8]),
        repair: bool,
        part: &mut ScrubPart,
    ) -> Result<Option<Bytes>, Error> {
        let blocks = below.geometry().blocks_per_stripe();
        let (Some(ino), Some(first)) = (keys::chunk_ino(key), keys::chunk_index(key)) else {
            return Ok(None);
        };
        let flaw = |offset, what| ScrubFlaw { inode: ino, offset, ..note(what) };
        let wide = from_bytes::<WideStripe>(value).ok().filter(|wide| wide.is_valid(blocks));
        let Some(wide) = wide else {
            part.flaws.push(flaw(0, format!("the wide stripe of chunk {first} cannot be")));
            return Ok(None);
        };
        let shards: Vec<&StripeShard> = wide.shards().collect();
        part.read_bytes += shards.len() as u64 * u64::from(blocks) * BLOCK_SIZE as u64;
        let reads = shards.iter().map(|shard| {
            let below = below.clone();
            async move { bad_blocks(&*below, shard.run(blocks), &shard.checksums).await }
        });
        let bad: Vec<_> = stream::iter(reads).buffered(READS_MAX).collect().await;
        if bad.iter().all(Vec::is_empty) {
            return Ok(None);
        }
        let now = self.value(key).await?;
        if now.as_ref().is_none_or(|now| now[..] != *value) {
            return Ok(now);
        }
        let is_bad =
            |(shard, bad): (&&StripeShard, &Vec<_>)| (!bad.is_empty()).then_some(shard.start);
        let bad_starts: BTreeSet<u64> = shards.iter().zip(&bad).filter_map(is_bad).collect();
        let is_mended = if repair {
            let repaired = self.repairer.repair_shards((ino, first), bad_starts).await;
            repaired.unwrap_or_else(|error| {
                tracing::warn!(ino, first, %error, "a bad shard stays as it is");
                BTreeSet::new()
            })
        } else {
            BTreeSet::new()
        };
        let mut bad_shards: BTreeMap<u64, usize> = BTreeMap::new();
        bad.iter().flatten().for_each(|(block, _)| *bad_shards.entry(*block).or_default() += 1);
        let bytes = wide.unit(blocks) as usize * BLOCK_SIZE;
        for (number, (shard, bad)) in shards.iter().zip(bad).enumerate() {
            let disk = below.map().place(below.geometry().block(shard.start).0).disk;
            for (block, why) in bad {
                let disk_node = (bad_shards[&block] == 1).then_some(disk.disk_node);
                let chunk = first.saturating_add(number as u64).saturating_mul(blocks.into());
                let offset = chunk.saturating_add(block).saturating_mul(BLOCK_SIZE as u64);
                let what = if number < wide.data.len() {
                    format!("{bytes} bytes at offset {offset}: {why}")
                } else {
                    format!("{bytes} bytes of the parity of chunk {first}: {why}")
                };
                let is_mended = is_mended.contains(&shard.start);
                part.flaws.push(ScrubFlaw { disk_node, is_mended, ..flaw(offset, what) });
            }
        }
        Ok(None)
    }

    /// Makes bad copies of a chunk anew, and returns which of them. What cannot be mended is told.
    async fn repair(&self, (ino, index): (u64, u64), copies: BTreeSet<u64>) -> BTreeSet<u64> {
        self.repairer.repair((ino, index), copies).await.unwrap_or_else(|error| {
            tracing::warn!(ino, index, %error, "a bad copy of data stays as it is");
            BTreeSet::new()
        })
    }
}
