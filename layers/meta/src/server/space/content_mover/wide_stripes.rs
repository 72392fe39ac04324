//! Moving the shards of wide stripes, and dissolving wide stripes.

use std::ops::{Bound, Range};

use blockio::{BLOCK_SIZE, DROPPED};
use bytes::{Bytes, BytesMut};
use futures::StreamExt as _;
use futures::stream;

use super::{ContentMover, FILES_MAX, MovePlan, SCANNED_MAX, finish};
use crate::chunks::{put_places, subtract};
use crate::keys;
use crate::protocol::{Chunk, Error, Run, Unsynced, WideStripe};
use crate::server::content::chunk_records::{add_runs, put_chunk};
use crate::store::{Batch, StoreError};
use crate::wide_stripe::{are_apart, has_disks_for};
use runtime::wire::to_bytes;

/// A wide stripe and its chunks as they shall be.
pub(in crate::server::space) struct WideStripeChange {
    /// Its first chunk.
    pub(in crate::server::space) first: u64,
    /// `None` if there shall be none.
    pub(in crate::server::space) wide: Option<WideStripe>,
    /// Those that change.
    pub(in crate::server::space) chunks: Vec<(u64, Chunk)>,
    pub(in crate::server::space) taken: Vec<Run>,
    pub(in crate::server::space) freed: Vec<Run>,
}

impl ContentMover {
    /// Moves all shards that are there now.
    pub(super) async fn move_wide_stripes(&self, plan: &dyn MovePlan) -> Result<(), Error> {
        let (start, end) = keys::all(keys::KeyTable::WideStripe);
        let blocks = self.base.stripes.geometry().blocks_per_stripe();
        let (mut from, mut outcome) = (Bound::Included(start), Ok(()));
        loop {
            let after = from.as_ref().map(Vec::as_slice);
            let found = self.base.store.scan(after, &end, SCANNED_MAX).await?;
            let mut moving = Vec::new();
            for (key, value) in &found {
                let ino = keys::chunk_ino(key).ok_or(Error::Damaged {})?;
                let first = keys::chunk_index(key).ok_or(Error::Damaged {})?;
                let wide = self.wide_stripes.decode(value)?;
                let shards = wide.shards().filter(|shard| plan.is_moving(shard.start)).count();
                if shards > 0 {
                    moving.push((ino, first, shards as u64));
                }
            }
            let moves = moving.into_iter().map(|(ino, first, shards)| async move {
                if !plan.begin(shards * u64::from(blocks) * BLOCK_SIZE as u64).await {
                    return Ok(());
                }
                self.move_shards(plan, (ino, first)).await
            });
            let parts = Box::pin(stream::iter(moves).buffer_unordered(FILES_MAX));
            outcome = outcome.and(finish(parts).await);
            let Some((last, _)) = found.last().filter(|_| found.len() == SCANNED_MAX) else {
                return outcome;
            };
            from = Bound::Excluded(last.to_vec());
        }
    }

    /// Moves shards of one wide stripe, each to another disk than the others; or dissolves it, if
    /// the plan wants that and there are too few disks.
    pub(in crate::server::space) async fn move_shards(
        &self,
        plan: &dyn MovePlan,
        (ino, first): (u64, u64),
    ) -> Result<(), Error> {
        let Some(_quiet) = self.quiet(ino).await? else { return Ok(()) };
        let Some(wide) = self.wide_stripes.get(ino, first).await? else { return Ok(()) };
        let shards = wide.shards().count() as u32;
        if plan.dissolves_wide_stripes() && !has_disks_for(&self.base.stripes.map(), shards) {
            let copies = 1 + wide.parity.len();
            return self.dissolve(plan, (ino, first), (&wide, copies)).await.map(drop);
        }
        let blocks = self.base.stripes.geometry().blocks_per_stripe();
        let mut moved = wide.clone();
        let chunks = self.wide_stripes.chunks(ino, first, wide.chunks()).await?;
        let mut changed = Vec::new();
        let (mut taken, mut freed, mut written) = (Vec::new(), Vec::new(), Vec::new());
        let mut outcome = Ok(());
        for (number, shard) in wide.shards().enumerate() {
            if outcome.is_err() || !plan.is_moving(shard.start) {
                continue;
            }
            let whole = 0..shard.checksums.len();
            let start = match self.place_shard(plan, (&moved, number), &mut taken).await {
                Ok(Some(start)) => start,
                Ok(None) | Err(Error::NoSpace {}) if plan.dissolves_for_room() => {
                    self.reclaim.discard_and_release(taken).await?;
                    let copies = 1 + wide.parity.len();
                    return self.dissolve(plan, (ino, first), (&wide, copies)).await.map(drop);
                }
                Ok(None) => continue,
                Err(error) => {
                    outcome = Err(error);
                    continue;
                }
            };
            let content = match self.read_shard(&wide, number, whole).await {
                Ok(content) => content,
                Err(error) => {
                    self.unreadable.set(Some(ino));
                    outcome = Err(error);
                    continue;
                }
            };
            let place = Run { start, count: blocks };
            match self.write(&[place], &[content]).await {
                Ok(done) => written.extend(done),
                Err(error) => outcome = Err(error),
            }
            if let Some(shard) = moved.shards_mut().nth(number) {
                shard.start = start;
            }
            freed.push(shard.run(blocks));
            if let Some(mut chunk) = chunks.get(number).cloned() {
                for run in chunk.runs.iter_mut().filter(|run| run.form.covered) {
                    run.start = start + run.start.saturating_sub(shard.start);
                }
                changed.push((first + number as u64, chunk));
            }
        }
        if outcome.is_err() || freed.is_empty() {
            self.reclaim.discard_and_release(taken).await?;
            return outcome;
        }
        let change = WideStripeChange { first, wide: Some(moved), chunks: changed, taken, freed };
        self.record_wide_stripe(plan, ino, change, written).await
    }

    /// A new place for a shard, apart from the others.
    async fn place_shard(
        &self,
        plan: &dyn MovePlan,
        (wide, number): (&WideStripe, usize),
        taken: &mut Vec<Run>,
    ) -> Result<Option<u64>, Error> {
        let blocks = self.base.stripes.geometry().blocks_per_stripe();
        let others = wide.runs(blocks).into_iter().enumerate();
        let others = others.filter(|(other, _)| *other != number).map(|(_, run)| run);
        let others: Vec<Run> = others.collect();
        let copies = others.iter().map(|&run| vec![run]).collect();
        let Some(found) = plan.allocate_beside(copies, blocks).await? else { return Ok(None) };
        let place = found.first().filter(|run| found.len() == 1 && run.count == blocks).copied();
        let is_good = place.is_some_and(|place| {
            are_apart(&self.base.stripes.map(), others.iter().chain([&place]))
        });
        if !is_good {
            self.base.store.space().release(&found)?;
            return Ok(None);
        }
        taken.extend(found);
        Ok(place.map(|place| place.start))
    }

    /// Gives what is live of a wide stripe as many copies of its own, and frees the rest. False if
    /// there is no room for them. The file is quiet.
    pub(in crate::server::space) async fn dissolve(
        &self,
        plan: &dyn MovePlan,
        (ino, first): (u64, u64),
        (wide, copies): (&WideStripe, usize),
    ) -> Result<bool, Error> {
        let mut change = WideStripeChange {
            first,
            wide: None,
            chunks: Vec::new(),
            taken: Vec::new(),
            freed: Vec::new(),
        };
        let (mut written, mut kept) = (Vec::new(), Vec::new());
        let chunks = self.wide_stripes.chunks(ino, first, wide.chunks()).await?;
        let mut outcome = Ok(true);
        for (number, chunk) in chunks.into_iter().enumerate() {
            if outcome == Ok(true) && chunk.runs.iter().any(|run| run.form.covered) {
                let part = (wide, number, first + number as u64, chunk);
                let work = (&mut change, &mut written, &mut kept);
                outcome = self.copy_covered(plan, (part, copies), work).await;
            }
        }
        if outcome != Ok(true) {
            self.reclaim.discard_and_release(change.taken).await?;
            return outcome;
        }
        let blocks = self.base.stripes.geometry().blocks_per_stripe();
        change.freed = subtract(&wide.runs(blocks), &kept, blocks as usize);
        self.record_wide_stripe(plan, ino, change, written).await?;
        Ok(true)
    }

    /// Gives the covered runs of a chunk copies. False if there is no room.
    async fn copy_covered(
        &self,
        plan: &dyn MovePlan,
        ((wide, number, index, chunk), copies): ((&WideStripe, usize, u64, Chunk), usize),
        (change, written, kept): (&mut WideStripeChange, &mut Vec<Unsynced>, &mut Vec<Run>),
    ) -> Result<bool, Error> {
        let blocks = self.base.stripes.geometry().blocks_per_stripe();
        let unit = chunk.unit_or(1);
        let mut slots = chunk.slots(blocks as usize, unit);
        let is_moving = wide.data.get(number).is_some_and(|shard| plan.is_moving(shard.start));
        for run in chunk.runs.iter().filter(|run| run.form.covered) {
            let own = run.first_place();
            let first = if is_moving {
                let first = plan.allocate_beside(vec![vec![own]], unit).await?;
                change.taken.extend(first.iter().flatten());
                first
            } else {
                kept.push(own);
                Some(vec![own])
            };
            let Some(first) = first else { return Ok(false) };
            let mut places = vec![first];
            while places.len() < copies {
                let Some(further) = plan.allocate_beside(places.clone(), unit).await? else {
                    return Ok(false);
                };
                change.taken.extend(&further);
                places.push(further);
            }
            if places[..] != [vec![own]] {
                let range = wide.range_of(number, own, blocks);
                let content = self.read_shard(wide, number, range).await?;
                for copy in places.iter().filter(|copy| copy[..] != [own]) {
                    written.extend(self.write(copy, std::slice::from_ref(&content)).await?);
                }
            }
            put_places(&mut slots, (run, unit), &places);
        }
        change.chunks.push((index, Chunk::from_slots(&slots, blocks, unit)));
        Ok(true)
    }

    /// Logical blocks of a shard, checked: what cannot be read is made of the other shards.
    pub(in crate::server::space) async fn read_shard(
        &self,
        wide: &WideStripe,
        number: usize,
        range: Range<usize>,
    ) -> Result<Bytes, Error> {
        let stripes = &*self.base.stripes;
        let shard = wide.shards().nth(number).ok_or(Error::Damaged {})?;
        if let Ok(content) = wide.read_of(stripes, shard, range.clone()).await {
            return Ok(content);
        }
        if let Ok(content) = wide.reconstruct(stripes, number, range.clone()).await {
            return Ok(content);
        }
        let mut content = BytesMut::new();
        // Each may be bad somewhere else.
        for at in range {
            let block = match wide.read_of(stripes, shard, at..at + 1).await {
                Ok(block) => block,
                Err(_) => {
                    wide.reconstruct(stripes, number, at..at + 1).await.map_err(StoreError::from)?
                }
            };
            content.extend_from_slice(&block);
        }
        Ok(content.freeze())
    }

    /// Makes what was written for a change durable, and then records it; what it has taken is given
    /// back if that fails.
    pub(in crate::server::space) async fn record_wide_stripe(
        &self,
        plan: &dyn MovePlan,
        ino: u64,
        change: WideStripeChange,
        written: Vec<Unsynced>,
    ) -> Result<(), Error> {
        // A disk has gone away meanwhile, and with it what was written there.
        let is_dropped = written.iter().any(|written| written.boot_id == DROPPED);
        let mut outcome = Ok(());
        if !is_dropped {
            outcome = self.base.stripes.sync(written).await;
        }
        let WideStripeChange { first, wide, chunks, taken, freed } = change;
        if is_dropped || outcome.is_err() {
            self.reclaim.discard_and_release(taken).await?;
            return Ok(outcome.map_err(StoreError::from)?);
        }
        let make = || {
            let mut batch = Batch::new();
            batch.take_from_reserve();
            match &wide {
                Some(wide) => batch.put(keys::wide_stripe(ino, first), to_bytes(wide)),
                None => batch.delete(keys::wide_stripe(ino, first)),
            }
            for (index, chunk) in &chunks {
                put_chunk(&mut batch, ino, *index, chunk);
            }
            add_runs(&mut batch, &taken, &freed);
            Ok((batch, ()))
        };
        if let Err(error) = self.base.records.record_within(make).await {
            self.reclaim.discard_and_release(taken).await?;
            return Err(error);
        }
        plan.moved(&freed);
        self.base.inodes.with(ino, |active| {
            for (index, chunk) in &chunks {
                active.moved(*index, chunk);
            }
            Ok(())
        })
    }
}
