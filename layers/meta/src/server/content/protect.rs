//! What is between new content and its record where data is in wide stripes (ADR 97): chunks in a
//! row that are whole get parity, and the others the further copies for which they have places.

use std::rc::Rc;

use blockio::protocol::Error as DiskError;
use blockio::{BLOCK_SIZE, VolumeMap, WideStripeShape};
use bytes::Bytes;
use futures::future::{join_all, try_join_all};
use futures::{StreamExt as _, stream};

use crate::active::{ActiveInode, EncodedChunks, Uncommitted};
use crate::chunks::subtract;
use crate::erasure::ErasureCode;
use crate::protocol::{
    BlockRun, Error, Mirrors, PlacedWideStripe, Run, RunForm, Unsynced, WideStripe,
};
use crate::server::base::NodeBase;
use crate::server::space::reclaim::Reclaim;
use crate::server::wide_stripe_table::WideStripeTable;
use crate::store::StoreError;
use crate::wide_stripe::{are_apart, by_wide_stripe, is_deferred_stripe, parity_places};

/// Groups of chunks of one commit that are read at a time.
const GROUPS_MAX: usize = 4;

/// A change of a chunk.
type ChunkChange = (u64, Uncommitted);

/// Where the parity of a wide stripe is.
struct ParityPlaces {
    places: Vec<Run>,
    /// Those of them that were taken for it.
    found: Vec<Run>,
}

/// Protects the content of the files of one node.
pub(super) struct ContentProtection {
    base: Rc<NodeBase>,
    reclaim: Rc<Reclaim>,
    wide_stripes: WideStripeTable,
}

impl ContentProtection {
    pub(super) fn new(base: &Rc<NodeBase>, reclaim: Rc<Reclaim>) -> Self {
        Self { base: base.clone(), reclaim, wide_stripes: WideStripeTable::new(base) }
    }

    /// Makes these changes of a file, in the order of their chunks, fit to be recorded: those of
    /// the chunks of a wide stripe together.
    pub(super) async fn protect(
        &self,
        ino: u64,
        changes: Vec<ChunkChange>,
    ) -> Result<Vec<ChunkChange>, Error> {
        let is_deferred = |run: &BlockRun| run.form.deferred;
        if !changes.iter().any(|(_, change)| change.chunk.runs.iter().any(is_deferred)) {
            return Ok(changes);
        }
        // Those that were written for a wide stripe before the file got a class without any have
        // copies.
        let shape = self.base.class_at_hand(ino).wide_stripes();
        let count = shape.map_or(1, |shape| shape.data.into());
        let groups = by_wide_stripe(changes, count, |(index, _)| *index);
        let protected = groups.into_iter().map(|group| self.protect_group(ino, group, shape));
        let mut protected = stream::iter(protected).buffered(GROUPS_MAX);
        let (mut all, mut outcome) = (Vec::new(), Ok(()));
        while let Some(group) = protected.next().await {
            match group {
                Ok(group) => all.extend(group),
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        if let Err(error) = outcome {
            self.abandon(&all).await?;
            return Err(error);
        }
        Ok(all)
    }

    /// These changes are not recorded.
    pub(super) async fn abandon(&self, changes: &[ChunkChange]) -> Result<(), Error> {
        let encoded = changes.iter().filter_map(|(_, change)| change.encoded.as_ref());
        let found: Vec<Run> = encoded.flat_map(|encoded| &encoded.found).copied().collect();
        self.reclaim.discard_and_release(found).await
    }

    /// These changes are recorded.
    pub(super) async fn conclude(&self, changes: &[ChunkChange]) -> Result<(), Error> {
        let encoded = changes.iter().filter_map(|(_, change)| change.encoded.as_ref());
        let unused: Vec<Run> = encoded.flat_map(|encoded| &encoded.unused).copied().collect();
        self.reclaim.discard_and_release(unused).await
    }

    async fn protect_group(
        &self,
        ino: u64,
        mut group: Vec<ChunkChange>,
        shape: Option<WideStripeShape>,
    ) -> Result<Vec<ChunkChange>, Error> {
        let blocks = self.base.stripes.geometry().blocks_per_stripe();
        let is_whole = |(_, change): &ChunkChange| is_deferred_stripe(&change.chunk, blocks);
        let unit = group[0].1.chunk.unit();
        let is_complete = |shape: &WideStripeShape| {
            group.len() == shape.data as usize && group.iter().all(is_whole)
        };
        if let Some(shape) = shape.filter(is_complete)
            && group.iter().all(|(_, change)| change.chunk.unit() == unit)
            && let Some(encoded) = self.encode(ino, &group, shape.parity as usize).await?
        {
            return Ok(encoded);
        }
        // A copy may take the place of parity that was written.
        let forget = |active: &mut ActiveInode| {
            // In wide stripes of another class it was noted with another chunk.
            for (index, _) in &group {
                active.forget_parity(*index);
            }
            Ok(())
        };
        self.base.inodes.with(ino, forget)?;
        try_join_all(group.iter_mut().map(|(_, change)| self.write_copies(change))).await?;
        Ok(group)
    }

    /// Makes a wide stripe of whole chunks, if each of them and the parity can be in another
    /// failure domain.
    async fn encode(
        &self,
        ino: u64,
        group: &[ChunkChange],
        parity: usize,
    ) -> Result<Option<Vec<ChunkChange>>, Error> {
        let (map, first) = (self.base.stripes.map(), group[0].0);
        let blocks = map.geometry().blocks_per_stripe();
        let whole = |start: u64| Run { start, count: blocks };
        let runs: Vec<&BlockRun> =
            group.iter().flat_map(|(_, change)| &change.chunk.runs).collect();
        let mut known = self.wide_stripes.within(ino, first..first + group.len() as u64).await?;
        let is_it =
            |it: &PlacedWideStripe| it.first == first && it.wide.chunks() == group.len() as u64;
        // Those of another class are dissolved in the background first.
        if !known.iter().all(is_it) {
            return Ok(None);
        }
        let known = known.pop().map(|it| it.wide);
        let Some(ParityPlaces { places, found }) = self.place_parity(&map, &runs, parity)? else {
            return Ok(None);
        };
        let is_same = |wide: &&WideStripe| {
            let data = wide.data.iter().map(|shard| (shard.start, &shard.checksums));
            wide.parity.iter().map(|shard| shard.start).eq(places.iter().map(|run| run.start))
                && data.eq(runs.iter().map(|run| (run.start, &run.checksums)))
                && wide.has_parity_of_data(blocks)
        };
        let (wide, written) = match group[0].1.wide.as_deref().filter(is_same) {
            Some(wide) => (wide.clone(), Vec::new()),
            None => match self.write_parity(&runs, &places).await {
                Ok(written) => written,
                Err(error) => {
                    self.reclaim.discard_and_release(found).await?;
                    return Err(error);
                }
            },
        };
        let mirrors = runs.iter().flat_map(|run| run.mirrors.starts()).map(|&start| whole(start));
        let unused: Vec<Run> = mirrors.filter(|place| !places.contains(place)).collect();
        let mut changes: Vec<ChunkChange> = group.to_vec();
        for (_, change) in &mut changes {
            for run in &mut change.chunk.runs {
                (run.form, run.mirrors) = (RunForm::covered(run.unit()), Mirrors::default());
            }
            change.taken = subtract(&change.taken, &unused, blocks as usize);
        }
        let (_, leader) = &mut changes[0];
        leader.taken.extend(&found);
        leader.freed.extend(known.iter().flat_map(|known| known.runs(blocks)));
        leader.written.extend(written);
        leader.encoded = Some(Box::new(EncodedChunks { wide, unused, found }));
        tracing::debug!(ino, first, "chunks are recorded in a wide stripe");
        Ok(Some(changes))
    }

    /// Places for the parity of these runs; `None` if they cannot be a wide stripe.
    fn place_parity(
        &self,
        map: &VolumeMap,
        runs: &[&BlockRun],
        parity: usize,
    ) -> Result<Option<ParityPlaces>, Error> {
        let Some(mut places) = parity_places(map, runs, parity) else { return Ok(None) };
        let missing = (parity - places.len()) as u32;
        if missing == 0 {
            return Ok(Some(ParityPlaces { places, found: Vec::new() }));
        }
        let blocks = map.geometry().blocks_per_stripe();
        let data = runs.iter().map(|run| Run { start: run.start, count: blocks });
        let shards: Vec<Run> = data.chain(places.iter().copied()).collect();
        let copies: Vec<Vec<Run>> = shards.iter().map(|&shard| vec![shard]).collect();
        let space = self.base.store.space();
        let beside = space.allocate_mirrors(&copies, (blocks, missing), false);
        let found = beside.unwrap_or_default().concat();
        let are_good = found.len() as u32 == missing
            && found.iter().all(|place| place.count == blocks)
            && are_apart(map, shards.iter().chain(&found));
        if !are_good {
            space.release(&found)?;
            return Ok(None);
        }
        places.extend(&found);
        Ok(Some(ParityPlaces { places, found }))
    }

    /// Writes the parity of these runs. Their wide stripe, and what is to be synced.
    async fn write_parity(
        &self,
        runs: &[&BlockRun],
        places: &[Run],
    ) -> Result<(WideStripe, Vec<Unsynced>), Error> {
        let contents = try_join_all(runs.iter().map(|run| self.read(run))).await?;
        let code = ErasureCode::new(runs.len(), places.len()).ok_or(Error::Damaged {})?;
        let parity = code.encode(&contents);
        let wide = WideStripe::of_runs(runs, places, &parity);
        let writes = places.iter().zip(parity);
        let writes = writes.map(|(place, content)| self.write(place.start, content));
        // None is left on its way where one has failed: the places are given back then.
        let written = join_all(writes).await.into_iter().collect::<Result<Vec<_>, Error>>()?;
        Ok((wide, written))
    }

    /// Writes the further copies of what is deferred.
    async fn write_copies(&self, change: &mut Uncommitted) -> Result<(), Error> {
        for run in &mut change.chunk.runs {
            if !std::mem::take(&mut run.form.deferred) {
                continue;
            }
            let content = self.read(run).await?;
            for &start in run.mirrors.starts() {
                change.written.insert(self.write(start, content.clone()).await?);
            }
        }
        Ok(())
    }

    /// The content of a run, from the cache if that still has it. What is nowhere was lost.
    async fn read(&self, run: &BlockRun) -> Result<Bytes, Error> {
        let (stripe, offset) = self.base.stripes.geometry().block(run.start);
        let length = run.count() * BLOCK_SIZE as u32;
        match self.base.stripes.read(stripe, offset, length, run.checksums.clone()).await {
            Ok(content) => Ok(content),
            Err(
                error @ (DiskError::Corrupt { .. }
                | DiskError::Missing { .. }
                | DiskError::Unreadable { .. }),
            ) => {
                tracing::warn!(%error, "content is lost before it was recorded");
                Err(Error::LostWrites {})
            }
            Err(error) => Err(StoreError::from(error).into()),
        }
    }

    async fn write(&self, start: u64, content: Bytes) -> Result<Unsynced, Error> {
        let (stripe, offset) = self.base.stripes.geometry().block(start);
        let writing = self.base.stripes.write(stripe, offset, vec![content]);
        Ok(Unsynced { stripe, boot_id: writing.await.map_err(StoreError::from)? })
    }
}
