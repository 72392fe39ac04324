//! Wide stripes: whole chunks of a file, in a row, with parity of them. Each of these *shards* is a
//! stripe on another disk, so any one of them can be made of the others (ADR 97).
//!
//! A shard belongs to the wide stripe with all its blocks. Where a chunk has newer content, the
//! blocks that it had before are dead, but stay as they are: the others are made of them.

use std::collections::BTreeSet;
use std::ops::Range;

use blockio::checksum::first_mismatch;
use blockio::geometry::BLOCK_SIZE;
use blockio::protocol::Error as DiskError;
use blockio::redundancy::DATA_SHARDS_MAX;
use blockio::{Answer, DiskName, DiskStage, Stripes, VolumeMap};
use bytes::Bytes;
use futures::future::try_join_all;
use runtime::hash::crc32c;

use crate::protocol::{BlockRun, Chunk, Run, StripeShard, WideStripe};

impl StripeShard {
    /// Its blocks, of which a stripe has `blocks`.
    pub fn run(&self, blocks: u32) -> Run {
        Run { start: self.start, count: blocks }
    }
}

impl WideStripe {
    /// That of runs that are a stripe each, with these bytes of parity at block `start`.
    pub fn of_runs(runs: &[&BlockRun], (start, parity): (u64, &[u8])) -> Self {
        let unit = runs.first().map_or(1, |run| run.unit());
        let checksums = parity.chunks(unit as usize * BLOCK_SIZE).map(crc32c).collect();
        let shard =
            |run: &&BlockRun| StripeShard { start: run.start, checksums: run.checksums.clone() };
        let data = runs.iter().map(shard).collect();
        Self { data, parity: StripeShard { start, checksums } }
    }

    /// How many chunks it has.
    pub fn chunks(&self) -> u64 {
        self.data.len() as u64
    }

    /// The data shards, and then the parity.
    pub fn shards(&self) -> impl Iterator<Item = &StripeShard> {
        self.data.iter().chain([&self.parity])
    }

    /// The same, to be changed.
    pub(crate) fn shard_mut(&mut self, number: usize) -> &mut StripeShard {
        self.data.get_mut(number).unwrap_or(&mut self.parity)
    }

    /// Where all shards are, whose stripes have `blocks` blocks.
    pub fn runs(&self, blocks: u32) -> Vec<Run> {
        self.shards().map(|shard| shard.run(blocks)).collect()
    }

    /// Blocks of a logical block, if a stripe has `blocks` blocks.
    pub fn unit(&self, blocks: u32) -> u32 {
        blocks / (self.parity.checksums.len() as u32).max(1)
    }

    /// Is it well formed, where stripes have `blocks` blocks?
    pub fn is_valid(&self, blocks: u32) -> bool {
        let count = self.parity.checksums.len();
        let is_whole = |shard: &StripeShard| {
            shard.start.is_multiple_of(blocks.into()) && shard.checksums.len() == count
        };
        let fits = (blocks as usize).is_multiple_of(count.max(1)) && count.is_power_of_two();
        fits && (1..=DATA_SHARDS_MAX as usize).contains(&self.data.len())
            && self.shards().all(is_whole)
    }

    /// How many of its data blocks `chunks`, which are its own in order, do not have any more.
    pub(crate) fn dead_blocks(&self, chunks: &[Chunk], blocks: u32) -> u64 {
        let live = chunks.iter().flat_map(|chunk| &chunk.runs).filter(|run| run.form.covered);
        let live: u64 = live.map(|run| u64::from(run.count())).sum();
        (self.chunks() * u64::from(blocks)).saturating_sub(live)
    }

    /// The logical blocks of shard `number` that a run in it has, where stripes have `blocks`
    /// blocks.
    pub fn range_of(&self, number: usize, run: Run, blocks: u32) -> Range<usize> {
        let start = self.shards().nth(number).map_or(0, |shard| shard.start);
        let unit = self.unit(blocks).max(1);
        let first = (run.start.saturating_sub(start) / u64::from(unit)) as usize;
        first..first + (run.count / unit) as usize
    }

    /// Logical blocks of shard `number`, made of the others and compared with their checksums.
    pub async fn reconstruct(
        &self,
        stripes: &dyn Stripes,
        number: usize,
        range: Range<usize>,
    ) -> Result<Bytes, DiskError> {
        let others = self.shards().enumerate().filter(|(other, _)| *other != number);
        let reads: Vec<Answer<Bytes>> =
            others.map(|(_, other)| self.read_of(stripes, other, range.clone())).collect();
        let made = exclusive_or(&try_join_all(reads).await?);
        let Some(shard) = self.shards().nth(number) else { return Ok(made) };
        match first_mismatch(&made, &shard.checksums[range.clone()]) {
            None => Ok(made),
            Some(at) => {
                let (stripe, _) = stripes.geometry().block(shard.start);
                let unit = self.unit(stripes.geometry().blocks_per_stripe());
                let block = range.start as u32 * unit + (at / BLOCK_SIZE) as u32;
                Err(DiskError::Corrupt { stripe, block })
            }
        }
    }

    /// Reads logical blocks of a shard.
    pub(crate) fn read_of(
        &self,
        stripes: &dyn Stripes,
        shard: &StripeShard,
        range: Range<usize>,
    ) -> Answer<Bytes> {
        let geometry = stripes.geometry();
        let bytes = self.unit(geometry.blocks_per_stripe()) * BLOCK_SIZE as u32;
        let (stripe, _) = geometry.block(shard.start);
        let (offset, length) = (range.start as u32 * bytes, range.len() as u32 * bytes);
        stripes.read(stripe, offset, length, shard.checksums[range].to_vec())
    }
}

/// A place for the parity of runs that are a stripe each, if each of them is in another failure
/// domain: that of one of their mirrors, if it is apart from all of them.
pub fn parity_place(map: &VolumeMap, runs: &[&BlockRun]) -> Option<Run> {
    let blocks = map.geometry().blocks_per_stripe();
    let whole = |start: u64| Run { start, count: blocks };
    let shards: Vec<Run> = runs.iter().map(|run| whole(run.start)).collect();
    let mirrors = runs.iter().flat_map(|run| run.mirrors.starts()).map(|&start| whole(start));
    let mut places = mirrors.filter(|place| place.start.is_multiple_of(blocks.into()));
    places.find(|place| {
        let all = shards.iter().chain([place]);
        are_online(map, all.clone()) && are_apart(map, all)
    })
}

/// Is the chunk one stripe, with a place for a copy that has no content yet?
pub fn is_deferred_stripe(chunk: &Chunk, blocks: u32) -> bool {
    matches!(&chunk.runs[..], [run] if run.form.deferred
        && run.count() == blocks
        && run.start.is_multiple_of(blocks.into()))
}

/// Disks in use, as they fail together.
pub(crate) struct FailureDomains {
    /// In order.
    domains: Vec<DiskName>,
    are_nodes: bool,
}

impl FailureDomains {
    /// Those of the disks that are in use.
    pub(crate) fn in_use(map: &VolumeMap) -> Self {
        let disks = map.disks();
        let are_nodes = disks.windows(2).any(|pair| pair[0].disk_node != pair[1].disk_node);
        let mut found = Self { domains: Vec::new(), are_nodes };
        let online = disks.into_iter().filter(|disk| map.state(*disk) == DiskStage::Online {});
        let domains: BTreeSet<DiskName> = online.map(|disk| found.of(disk)).collect();
        found.domains = domains.into_iter().collect();
        found
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u32 {
        self.domains.len() as u32
    }

    /// The number of that of a disk.
    pub(crate) fn number(&self, disk: DiskName) -> Option<u32> {
        self.domains.binary_search(&self.of(disk)).ok().map(|number| number as u32)
    }

    /// Who fails together with a disk: its disk node, unless there is only one.
    fn of(&self, disk: DiskName) -> DiskName {
        if self.are_nodes { DiskName { disk: 0, ..disk } } else { disk }
    }
}

fn disk_of(map: &VolumeMap, start: u64) -> DiskName {
    map.place(map.geometry().block(start).0).disk
}

/// Where a run is, that does not fail together with others in another place.
pub(crate) fn failure_domain_of(map: &VolumeMap, start: u64) -> DiskName {
    FailureDomains::in_use(map).of(disk_of(map, start))
}

/// Do no two of these runs fail together?
pub(crate) fn are_apart<'a>(map: &VolumeMap, runs: impl Iterator<Item = &'a Run>) -> bool {
    let (domains, mut seen) = (FailureDomains::in_use(map), BTreeSet::new());
    runs.into_iter().all(|run| seen.insert(domains.of(disk_of(map, run.start))))
}

/// Is the block on a disk that is in use?
pub(crate) fn is_online(map: &VolumeMap, start: u64) -> bool {
    map.state(disk_of(map, start)) == DiskStage::Online {}
}

/// Are all of these runs on such disks?
pub(crate) fn are_online<'a>(map: &VolumeMap, mut runs: impl Iterator<Item = &'a Run>) -> bool {
    runs.all(|run| is_online(map, run.start))
}

/// Parts of a write or a commit, in the order of their chunks, by the wide stripe of `count` chunks
/// that each may be in.
pub fn by_wide_stripe<T>(parts: Vec<T>, count: u64, index_of: impl Fn(&T) -> u64) -> Vec<Vec<T>> {
    let mut groups: Vec<Vec<T>> = Vec::new();
    for part in parts {
        let group = index_of(&part) / count;
        match groups.last_mut().filter(|last| index_of(&last[0]) / count == group) {
            Some(last) => last.push(part),
            None => groups.push(vec![part]),
        }
    }
    groups
}

/// Are there disks in use for `shards` shards?
pub(crate) fn has_disks_for(map: &VolumeMap, shards: u32) -> bool {
    FailureDomains::in_use(map).count() >= shards
}

/// The exclusive or of pieces of the same length.
pub(crate) fn exclusive_or(pieces: &[Bytes]) -> Bytes {
    let mut pieces = pieces.iter();
    let mut all = pieces.next().map(|piece| piece.to_vec()).unwrap_or_default();
    for piece in pieces {
        all.iter_mut().zip(&piece[..]).for_each(|(byte, other)| *byte ^= other);
    }
    all.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shard(start: u64, checksums: usize) -> StripeShard {
        StripeShard { start, checksums: vec![crc32c(b""); checksums] }
    }

    #[test]
    fn wide_stripes_that_cannot_be_are_known() {
        let wide = |data: &[(u64, usize)], parity| WideStripe {
            data: data.iter().map(|&(start, count)| shard(start, count)).collect(),
            parity,
        };
        let good = wide(&[(0, 16), (32, 16)], shard(64, 16));
        assert!(good.is_valid(16) && good.unit(16) == 1 && good.chunks() == 2);
        assert!(wide(&[(0, 4), (32, 4)], shard(64, 4)).is_valid(16));
        assert!(!wide(&[(0, 16), (8, 16)], shard(64, 16)).is_valid(16), "not a stripe");
        assert!(!wide(&[(0, 16), (32, 8)], shard(64, 16)).is_valid(16), "of two units");
        assert!(!wide(&[(0, 32), (32, 32)], shard(64, 32)).is_valid(16), "too many checksums");
        assert!(!wide(&[], shard(64, 16)).is_valid(16));
    }

    #[test]
    fn what_is_left_of_some_pieces_is_the_missing_one() {
        let pieces: Vec<Bytes> = (1..5_u8).map(|seed| vec![seed * 37; 100].into()).collect();
        let parity = exclusive_or(&pieces);
        let others = [pieces[0].clone(), pieces[2].clone(), pieces[3].clone(), parity];
        assert_eq!(exclusive_or(&others), pieces[1]);
    }
}
