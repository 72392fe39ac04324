//! Blocks for new content, with all its copies.

use blockio::{RedundancyClass, has_disk_behind, has_lost_disk};
use meta::chunks::BlockSlot;
use meta::protocol::{Allocate, AllocateMirrors, Chunk, Mirrors, Near, Run};

use super::content::ContentAccess;
use crate::protocol::Error;

/// Blocks that are reserved for new content.
#[derive(Debug, Default)]
pub(super) struct ReservedBlocks {
    /// All of them: those of further copies, too.
    runs: Vec<Run>,
    /// Where each logical block, and its further copies, begin.
    places: std::vec::IntoIter<(u64, Mirrors)>,
    /// The further copies wait for the commit.
    deferred: bool,
}

impl ReservedBlocks {
    /// The next logical block, with this checksum.
    pub(super) fn take(&mut self, checksum: u32) -> Option<BlockSlot> {
        let (block, mirrors) = self.places.next()?;
        let (sealed, covered, deferred) = (false, false, self.deferred);
        Some(BlockSlot { block, checksum, sealed, covered, deferred, mirrors })
    }

    /// All blocks.
    pub(super) fn into_runs(self) -> Vec<Run> {
        self.runs
    }
}

impl ContentAccess {
    /// Are the further copies of `blocks` new blocks of a chunk, from block `first` on, left to the
    /// commit, which may make a wide stripe instead? If the chunk may become whole until then.
    pub(super) fn defers_copies(
        &self,
        class: RedundancyClass,
        (index, old): (u64, &Chunk),
        (first, blocks): (u32, u32),
    ) -> bool {
        let map = self.stripes.map();
        if class.wide_stripes().is_none() || has_lost_disk(&map) || has_disk_behind(&map) {
            return false;
        }
        let is_begun = !old.runs.is_empty() && old.runs.iter().all(|run| run.form.deferred);
        let begins = old.runs.is_empty() && first == 0;
        // Most files of one chunk never have a whole one.
        blocks == self.geometry.blocks_per_stripe() || index > 0 && (begins || is_begun)
    }

    /// Where a chunk that defers its copies is to be: apart from its neighbours, and if possible
    /// where this process caches it.
    pub(super) fn in_domain((ino, index): (u64, u64), skip: u32, process: Option<u32>) -> Near {
        // Parity comes behind the chunks of a wide stripe, where the next one begins: all domains
        // have their share of it, so that a file is read from all disks.
        let domain = ino.wrapping_add(index);
        Near::InDomain { domain: domain as u32, process, skip }
    }

    /// Where its further copies are to be, of which one may become parity: apart from the chunks of
    /// its wide stripe.
    fn behind_domains(
        class: RedundancyClass,
        (ino, index): (u64, u64),
        process: Option<u32>,
    ) -> Near {
        let shape = class.wide_stripes();
        let data = shape.map_or(1, |shape| u64::from(shape.data));
        let domain = ino.wrapping_add((index / data + 1) * data);
        Near::InDomain { domain: domain as u32, process, skip: 0 }
    }

    /// Reserves blocks of a file, each with as many copies as its class wants; for a chunk that is
    /// `deferred`, by inode and number, without content in the further ones until the commit.
    pub(super) async fn reserve(
        &self,
        call: Allocate,
        class: RedundancyClass,
        deferred: Option<(u64, u64)>,
    ) -> Result<ReservedBlocks, Error> {
        let Allocate { unit, from_reserve, near, .. } = call;
        let first = self.base.meta_here(call).await?;
        let mirrors = class.copies() - 1;
        if mirrors == 0 {
            return Ok(reserved(first, &[], unit));
        }
        let near = match (near, deferred) {
            (Near::InDomain { process, .. }, Some(chunk)) => {
                Self::behind_domains(class, chunk, process)
            }
            _ => Near::Anywhere {},
        };
        let copies = vec![first.clone()];
        let call = AllocateMirrors { copies, unit, mirrors, from_reserve, near };
        match self.base.meta_here(call).await {
            Ok(further) => {
                let deferred = deferred.is_some();
                Ok(ReservedBlocks { deferred, ..reserved(first, &further, unit) })
            }
            Err(error) => {
                self.give_back(first).await;
                Err(error)
            }
        }
    }
}

fn reserved(first: Vec<Run>, further: &[Vec<Run>], unit: u32) -> ReservedBlocks {
    let starts = |runs: &[Run]| -> Vec<u64> {
        runs.iter().flat_map(|run| run.blocks().step_by(unit as usize)).collect()
    };
    let mut places: Vec<_> =
        starts(&first).into_iter().map(|block| (block, Mirrors::default())).collect();
    for copy in further {
        for ((_, mirrors), start) in places.iter_mut().zip(starts(copy)) {
            mirrors.push(start);
        }
    }
    let runs = first.into_iter().chain(further.iter().flatten().copied());
    ReservedBlocks { runs: runs.collect(), places: places.into_iter(), deferred: false }
}
