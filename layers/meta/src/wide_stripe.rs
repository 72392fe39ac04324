//! Wide stripes: whole chunks of a file, in a row, with parity of them. Each of these *shards* is a
//! stripe on another disk, and any of them can be made of as many others as there are chunks
//! (ADR 97).
//!
//! A shard belongs to the wide stripe with all its blocks. Where a chunk has newer content, the
//! blocks that it had before are dead, but stay as they are: the others are made of them.

use std::collections::BTreeSet;
use std::ops::Range;

use blockio::checksum::first_mismatch;
use blockio::geometry::BLOCK_SIZE;
use blockio::protocol::Error as DiskError;
use blockio::redundancy::{DATA_SHARDS_MAX, PARITY_SHARDS_MAX};
use blockio::{
    Answer, DiskName, DiskStage, FailureDomains, RedundancyClass, Stripes, VolumeMap,
    WideStripeShape,
};
use bytes::Bytes;
use futures::future::join_all;
use runtime::hash::crc32c;

use crate::erasure::ErasureCode;
use crate::protocol::{BlockRun, Chunk, Run, StripeShard, WideStripe};

impl StripeShard {
    /// One at this block, with this content, of logical blocks of `unit` blocks.
    pub fn of_content(start: u64, content: &[u8], unit: u32) -> Self {
        let checksums = content.chunks(unit as usize * BLOCK_SIZE).map(crc32c).collect();
        Self { start, checksums }
    }

    /// Its blocks, of which a stripe has `blocks`.
    pub fn run(&self, blocks: u32) -> Run {
        Run { start: self.start, count: blocks }
    }
}

impl WideStripe {
    /// How many stripes it has.
    pub fn shape(&self) -> WideStripeShape {
        WideStripeShape { data: self.data.len() as u32, parity: self.parity.len() as u32 }
    }

    /// That of runs that are a stripe each, with this parity in these places.
    pub fn of_runs(runs: &[&BlockRun], places: &[Run], parity: &[Bytes]) -> Self {
        let unit = runs.first().map_or(1, |run| run.unit());
        let mut wide = Self::unchecked(runs, places);
        wide.set_parity(parity, unit);
        wide
    }

    /// Its parity has this content, of logical blocks of `unit` blocks.
    pub fn set_parity(&mut self, parity: &[Bytes], unit: u32) {
        for (shard, content) in self.parity.iter_mut().zip(parity) {
            *shard = StripeShard::of_content(shard.start, content, unit);
        }
    }

    /// The same before the checksums of its parity are known.
    fn unchecked(runs: &[&BlockRun], places: &[Run]) -> Self {
        let shard =
            |run: &&BlockRun| StripeShard { start: run.start, checksums: run.checksums.clone() };
        let parity = |place: &Run| StripeShard { start: place.start, checksums: Vec::new() };
        Self { data: runs.iter().map(shard).collect(), parity: places.iter().map(parity).collect() }
    }

    /// How many chunks it has.
    pub fn chunks(&self) -> u64 {
        self.data.len() as u64
    }

    /// The data shards, and then the parity.
    pub fn shards(&self) -> impl Iterator<Item = &StripeShard> {
        self.data.iter().chain(&self.parity)
    }

    /// The same, to be changed.
    pub(crate) fn shards_mut(&mut self) -> impl Iterator<Item = &mut StripeShard> {
        self.data.iter_mut().chain(&mut self.parity)
    }

    /// Where all shards are, whose stripes have `blocks` blocks.
    pub fn runs(&self, blocks: u32) -> Vec<Run> {
        self.shards().map(|shard| shard.run(blocks)).collect()
    }

    /// Blocks of a logical block, if a stripe has `blocks` blocks.
    pub fn unit(&self, blocks: u32) -> u32 {
        blocks / (self.checksums() as u32).max(1)
    }

    /// Logical blocks of each shard.
    fn checksums(&self) -> usize {
        self.data.first().map_or(0, |shard| shard.checksums.len())
    }

    /// Is it well formed, where stripes have `blocks` blocks?
    pub fn is_valid(&self, blocks: u32) -> bool {
        let count = self.checksums();
        let is_whole = |shard: &StripeShard| {
            shard.start.is_multiple_of(blocks.into()) && shard.checksums.len() == count
        };
        let fits = (blocks as usize).is_multiple_of(count.max(1)) && count.is_power_of_two();
        fits && (1..=DATA_SHARDS_MAX as usize).contains(&self.data.len())
            && (1..=PARITY_SHARDS_MAX as usize).contains(&self.parity.len())
            && self.shards().all(is_whole)
    }

    /// Can its first parity shard be the exclusive or of the data, where stripes have `blocks`
    /// blocks? The CRC of an exclusive or is that of the CRCs, and of the CRC of zeros if their
    /// number is even.
    pub fn has_parity_of_data(&self, blocks: u32) -> bool {
        let zeros = || crc32c(&vec![0; self.unit(blocks) as usize * BLOCK_SIZE]);
        let start = if self.data.len().is_multiple_of(2) { zeros() } else { 0 };
        let of_data = |place: usize| {
            let mut sums = self.data.iter().map(|shard| shard.checksums.get(place));
            sums.try_fold(start, |all, sum| Some(all ^ sum?))
        };
        let Some(first) = self.parity.first() else { return false };
        let mut sums = first.checksums.iter().enumerate();
        first.checksums.len() == self.checksums()
            && sums.all(|(place, sum)| of_data(place) == Some(*sum))
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

    /// Logical blocks of shard `number`, made of others and compared with their checksums.
    pub async fn reconstruct(
        &self,
        stripes: &dyn Stripes,
        number: usize,
        range: Range<usize>,
    ) -> Result<Bytes, DiskError> {
        let known = self.read_others(stripes, number, range.clone()).await?;
        let unusable = || {
            let (stripe, _) = stripes.geometry().block(self.data.first().map_or(0, |it| it.start));
            DiskError::Corrupt { stripe, block: 0 }
        };
        let code = ErasureCode::new(self.data.len(), self.parity.len()).ok_or_else(unusable)?;
        let made = code.reconstruct(&known, number).ok_or_else(unusable)?;
        let shard = self.shards().nth(number).ok_or_else(unusable)?;
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

    /// The same blocks of as many other shards as there are of data, of parity only if one of the
    /// data cannot be read. The error of one of those if there are not enough.
    async fn read_others(
        &self,
        stripes: &dyn Stripes,
        number: usize,
        range: Range<usize>,
    ) -> Result<Vec<Option<Bytes>>, DiskError> {
        let shards: Vec<&StripeShard> = self.shards().collect();
        let mut known = vec![None; shards.len()];
        let mut left = (0..shards.len()).filter(|other| *other != number);
        let (mut missing, mut failure) = (self.data.len(), None);
        while missing > 0 {
            let next: Vec<usize> = left.by_ref().take(missing).collect();
            if next.len() < missing {
                let (stripe, _) = stripes.geometry().block(shards.first().map_or(0, |it| it.start));
                return Err(failure.unwrap_or(DiskError::Corrupt { stripe, block: 0 }));
            }
            let reads = next.iter().map(|&at| self.read_of(stripes, shards[at], range.clone()));
            for (at, read) in next.iter().zip(join_all(reads).await) {
                match read {
                    Ok(content) => {
                        known[*at] = Some(content);
                        missing -= 1;
                    }
                    Err(error) => failure = Some(error),
                }
            }
        }
        Ok(known)
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

/// Places for up to `parity` stripes of parity of runs that are a stripe each, if each of them is
/// in another failure domain: those of their mirrors that are apart from all of them, and from each
/// other. `None` if the runs themselves cannot be in a wide stripe.
pub fn parity_places(map: &VolumeMap, runs: &[&BlockRun], parity: usize) -> Option<Vec<Run>> {
    let blocks = map.geometry().blocks_per_stripe();
    let whole = |start: u64| Run { start, count: blocks };
    let mut shards: Vec<Run> = runs.iter().map(|run| whole(run.start)).collect();
    if !are_online(map, shards.iter()) || !are_apart(map, shards.iter()) {
        return None;
    }
    let mirrors = runs.iter().flat_map(|run| run.mirrors.starts()).map(|&start| whole(start));
    for place in mirrors.filter(|place| place.start.is_multiple_of(blocks.into())) {
        if shards.len() == runs.len() + parity {
            break;
        }
        if is_online(map, place.start) && are_apart(map, shards.iter().chain([&place])) {
            shards.push(place);
        }
    }
    Some(shards.split_off(runs.len()))
}

/// The wide stripe that these chunks in a row can be, with parity in places that are reserved for
/// their copies; the checksums of the parity are still missing. None if they cannot be one.
pub fn of_deferred_chunks(
    map: &VolumeMap,
    shape: WideStripeShape,
    chunks: &[&Chunk],
) -> Option<WideStripe> {
    let blocks = map.geometry().blocks_per_stripe();
    let is_whole = chunks.iter().all(|chunk| is_deferred_stripe(chunk, blocks));
    let runs: Vec<&BlockRun> = chunks.iter().flat_map(|chunk| &chunk.runs).collect();
    let (unit, parity) = (runs.first()?.unit(), shape.parity as usize);
    let fits = is_whole && chunks.len() == shape.data as usize;
    if !fits || runs.iter().any(|run| run.unit() != unit) {
        return None;
    }
    let places = parity_places(map, &runs, parity)?;
    (places.len() == parity).then(|| WideStripe::unchecked(&runs, &places))
}

/// Chunks of a file of this class that are looked at together, counted from its start: those of a
/// wide stripe.
pub(crate) fn chunks_together(class: RedundancyClass) -> u64 {
    class.wide_stripes().map_or(u64::from(DATA_SHARDS_MAX), |shape| shape.data.into())
}

/// May a chunk of a file of this class have to be stored in another way?
pub(crate) fn may_change(class: RedundancyClass, chunk: &Chunk) -> bool {
    let has_wide_stripes = class.wide_stripes().is_some();
    let may_be_covered = |run: &BlockRun| has_wide_stripes && !run.form.covered;
    chunk.runs.iter().any(|run| may_be_covered(run) || !is_stored_as(class, run))
}

/// Is a run stored as its class wants, whatever the shape of the wide stripe that it is in?
pub(crate) fn is_stored_as(class: RedundancyClass, run: &BlockRun) -> bool {
    if run.form.covered {
        class.wide_stripes().is_some()
    } else {
        run.places().count() == class.copies() as usize
    }
}

/// Is the chunk one stripe, with places for copies that have no content yet?
pub fn is_deferred_stripe(chunk: &Chunk, blocks: u32) -> bool {
    matches!(&chunk.runs[..], [run] if run.form.deferred
        && run.count() == blocks
        && run.start.is_multiple_of(blocks.into()))
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

#[cfg(test)]
mod tests {
    use runtime::seed::with_seed;

    use super::*;

    #[test]
    fn parity_is_compared_with_the_data_by_checksums() {
        with_seed(|rng| {
            for (data, parity, unit) in [(1, 1, 1), (2, 1, 1), (3, 1, 2), (4, 2, 4), (5, 4, 1)] {
                let bytes = 4 * BLOCK_SIZE;
                let contents: Vec<Bytes> = (0..data)
                    .map(|_| {
                        let mut content = vec![0; bytes];
                        rng.fill(&mut content);
                        content.into()
                    })
                    .collect();
                let code = ErasureCode::new(data, parity).expect("there is such a code");
                let shard = |content: &Bytes| StripeShard::of_content(0, content, unit);
                let mut wide = WideStripe {
                    data: contents.iter().map(shard).collect(),
                    parity: code.encode(&contents).iter().map(shard).collect(),
                };
                assert!(wide.has_parity_of_data(4), "{data}+{parity} of {unit} blocks");
                let place = rng.index(4 / unit as usize);
                wide.data[rng.index(data)].checksums[place] ^= 1 << rng.below(32);
                assert!(!wide.has_parity_of_data(4));
                wide.parity[0].checksums.clear();
                assert!(!wide.has_parity_of_data(4), "nothing is known of it");
            }
        });
    }

    fn shard(start: u64, checksums: usize) -> StripeShard {
        StripeShard { start, checksums: vec![crc32c(b""); checksums] }
    }

    #[test]
    fn wide_stripes_that_cannot_be_are_known() {
        let wide = |data: &[(u64, usize)], parity| WideStripe {
            data: data.iter().map(|&(start, count)| shard(start, count)).collect(),
            parity: vec![parity],
        };
        let good = wide(&[(0, 16), (32, 16)], shard(64, 16));
        assert!(good.is_valid(16) && good.unit(16) == 1 && good.chunks() == 2);
        assert!(wide(&[(0, 4), (32, 4)], shard(64, 4)).is_valid(16));
        assert!(!wide(&[(0, 16), (8, 16)], shard(64, 16)).is_valid(16), "not a stripe");
        assert!(!wide(&[(0, 16), (32, 8)], shard(64, 16)).is_valid(16), "of two units");
        assert!(!wide(&[(0, 32), (32, 32)], shard(64, 32)).is_valid(16), "too many checksums");
        assert!(!wide(&[], shard(64, 16)).is_valid(16));
        let no_parity = WideStripe { parity: Vec::new(), ..good.clone() };
        assert!(!no_parity.is_valid(16));
        let more_parity = WideStripe { parity: vec![shard(64, 16), shard(96, 16)], ..good };
        assert!(more_parity.is_valid(16));
    }
}
