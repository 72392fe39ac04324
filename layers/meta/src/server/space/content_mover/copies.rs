//! Giving content more copies, or fewer.

use blockio::DROPPED;
use blockio::protocol::Unsynced;

use super::{ContentMover, MovePlan, MovedChunk, RESERVE_CHUNKS_MAX};
use crate::chunks::put_places;
use crate::keys;
use crate::protocol::{BlockRun, Chunk, Error, Run};
use crate::server::record_log::decode;
use crate::store::StoreError;
use crate::wide_stripe::is_online;

impl ContentMover {
    /// Gives what these chunks of a file have in no wide stripe as many copies. False if there is
    /// no room for them. The file is quiet.
    pub(crate) async fn set_copies(
        &self,
        plan: &dyn MovePlan,
        (ino, indices): (u64, impl Iterator<Item = u64>),
        copies: usize,
    ) -> Result<bool, Error> {
        let (mut moved, mut written, mut outcome) = (Vec::new(), Vec::new(), Ok(true));
        for index in indices {
            if outcome == Ok(true) {
                let work = (&mut moved, &mut written);
                outcome = self.set_copies_of(plan, (ino, index), copies, work).await;
            }
        }
        if outcome == Ok(true) {
            outcome = self.record_copies(ino, &moved, written).await.map(|()| true);
        }
        if outcome != Ok(true) {
            let taken = moved.into_iter().flat_map(|chunk| chunk.taken).collect();
            self.reclaim.discard_and_release(taken).await?;
            return outcome;
        }
        for chunk in &moved {
            plan.moved(&chunk.freed);
        }
        Ok(true)
    }

    /// Makes what was written durable, and then records it: all chunks or none.
    async fn record_copies(
        &self,
        ino: u64,
        moved: &[MovedChunk],
        written: Vec<Unsynced>,
    ) -> Result<(), Error> {
        // A disk has gone away meanwhile, and with it what was written there.
        if written.iter().any(|written| written.boot_id == DROPPED) {
            return Err(Error::LostWrites {});
        }
        if !written.is_empty() {
            self.base.stripes.sync(written).await.map_err(StoreError::from)?;
        }
        debug_assert!(moved.len() <= RESERVE_CHUNKS_MAX, "one record has them");
        self.record(ino, moved).await
    }

    async fn set_copies_of(
        &self,
        plan: &dyn MovePlan,
        (ino, index): (u64, u64),
        copies: usize,
        (moved, written): (&mut Vec<MovedChunk>, &mut Vec<Unsynced>),
    ) -> Result<bool, Error> {
        let value = self.base.store.get(&keys::chunk(ino, index)).await?;
        let Some(value) = value else { return Ok(true) };
        let old: Chunk = decode(&value)?;
        let blocks = self.base.stripes.geometry().blocks_per_stripe();
        if !old.is_valid(blocks) {
            return Err(Error::Damaged {});
        }
        let unit = old.unit_or(1);
        let mut slots = old.slots(blocks as usize, unit);
        moved.push(MovedChunk { index, chunk: old.clone(), taken: Vec::new(), freed: Vec::new() });
        let Some(change) = moved.last_mut() else { return Ok(true) };
        for run in old.runs.iter().filter(|run| !run.form.covered) {
            let (mut kept, dropped) = self.choose_copies(run, copies);
            change.freed.extend(dropped);
            let known = kept.len();
            while kept.len() < copies {
                let Some(further) = plan.allocate_beside(kept.clone(), unit).await? else {
                    return Ok(false);
                };
                change.taken.extend(&further);
                kept.push(further);
            }
            if kept.len() > known {
                let content = self.read_any(run).await?;
                for copy in &kept[known..] {
                    written.extend(self.write(copy, std::slice::from_ref(&content)).await?);
                }
            }
            put_places(&mut slots, (run, unit), &kept);
        }
        change.chunk = Chunk::from_slots(&slots, blocks, unit);
        if change.taken.is_empty() && change.freed.is_empty() {
            moved.pop();
        }
        Ok(true)
    }

    /// The places of a run that stay, `copies` at most, and the others: those on disks that are in
    /// use stay first.
    fn choose_copies(&self, run: &BlockRun, copies: usize) -> (Vec<Vec<Run>>, Vec<Run>) {
        let map = self.base.stripes.map();
        let mut places: Vec<Run> = run.places().collect();
        places.sort_by_key(|place| !is_online(&map, place.start));
        let dropped = places.split_off(copies.min(places.len()));
        (places.into_iter().map(|place| vec![place]).collect(), dropped)
    }
}
