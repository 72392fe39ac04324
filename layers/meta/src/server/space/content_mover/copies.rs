//! Giving content more copies, or fewer.

use blockio::DROPPED;
use blockio::protocol::Unsynced;

use super::{ContentMover, MovePlan, MovedChunk};
use crate::audit::bad_blocks;
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
            outcome = self.sync_copies(written).await.map(|()| true);
        }
        if outcome != Ok(true) {
            self.give_back(moved).await?;
            return outcome;
        }
        self.record_all(plan, ino, moved).await.map(|()| true)
    }

    /// Makes what was written durable.
    async fn sync_copies(&self, written: Vec<Unsynced>) -> Result<(), Error> {
        // A disk has gone away meanwhile, and with it what was written there.
        if written.iter().any(|written| written.boot_id == DROPPED) {
            return Err(Error::LostWrites {});
        }
        if !written.is_empty() {
            self.base.stripes.sync(written).await.map_err(StoreError::from)?;
        }
        Ok(())
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
            let (mut kept, dropped) = self.choose_copies(run, copies).await?;
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

    /// The places of a run that stay, `copies` at most, and the others. Where some go, those that
    /// stay have the content, and are on disks that are in use.
    async fn choose_copies(
        &self,
        run: &BlockRun,
        copies: usize,
    ) -> Result<(Vec<Vec<Run>>, Vec<Run>), Error> {
        let mut dropped: Vec<Run> = run.places().collect();
        let mut kept = Vec::with_capacity(copies);
        if dropped.len() <= copies {
            kept.extend(dropped.into_iter().map(|place| vec![place]));
            return Ok((kept, Vec::new()));
        }
        let (map, stripes) = (self.base.stripes.map(), &self.base.stripes);
        // What a cache has says nothing of the disk.
        let disks = stripes.below().unwrap_or_else(|| stripes.clone());
        for place in run.places() {
            let is_good = is_online(&map, place.start)
                && bad_blocks(&*disks, place, &run.checksums).await.is_empty();
            if is_good && kept.len() < copies {
                dropped.retain(|other| *other != place);
                kept.push(vec![place]);
            }
        }
        // A scrub makes bad ones anew, and disks come back.
        if kept.len() < copies { Err(Error::Damaged {}) } else { Ok((kept, dropped)) }
    }
}
