//! Blocks for new content, with all its copies.

use meta::chunks::BlockSlot;
use meta::protocol::{Allocate, AllocateMirrors, Mirrors, Run};

use super::content::ContentAccess;
use crate::protocol::Error;

/// Blocks that are reserved for new content.
#[derive(Debug, Default)]
pub(super) struct ReservedBlocks {
    /// All of them: those of further copies, too.
    runs: Vec<Run>,
    /// Where each logical block, and its further copies, begin.
    places: std::vec::IntoIter<(u64, Mirrors)>,
}

impl ReservedBlocks {
    /// The next logical block, with this checksum.
    pub(super) fn take(&mut self, checksum: u32) -> Option<BlockSlot> {
        let (block, mirrors) = self.places.next()?;
        Some(BlockSlot { block, checksum, sealed: false, covered: false, mirrors })
    }

    /// All blocks.
    pub(super) fn into_runs(self) -> Vec<Run> {
        self.runs
    }
}

impl ContentAccess {
    /// Reserves blocks of a file, each with as many copies as its data shall have.
    pub(super) async fn reserve(&self, call: Allocate) -> Result<ReservedBlocks, Error> {
        let Allocate { unit, from_reserve, .. } = call;
        let first = self.base.meta_here(call).await?;
        let mirrors = self.copies() - 1;
        if mirrors == 0 {
            return Ok(reserved(first, &[], unit));
        }
        let call = AllocateMirrors { copies: vec![first.clone()], unit, mirrors, from_reserve };
        match self.base.meta_here(call).await {
            Ok(further) => Ok(reserved(first, &further, unit)),
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
    ReservedBlocks { runs: runs.collect(), places: places.into_iter() }
}
