//! What chunks and wide stripes say of each other.

use std::collections::{BTreeMap, BTreeSet};

use blockio::VolumeMap;

use super::flaw::{COPY_OUT, Flaw, Flaws, ONLY_SPACE, REPLACE};
use crate::protocol::{BlockRun, Chunk, WideStripe};
use crate::wide_stripe::are_apart;

/// The wide stripes of a node, and what chunks have in them.
#[derive(Clone, Debug, Default)]
pub(crate) struct WideStripeAudit {
    /// By file and first chunk.
    wide_stripes: BTreeMap<(u64, u64), WideStripe>,
    /// The covered runs of each chunk.
    covered: BTreeMap<(u64, u64), Vec<BlockRun>>,
}

impl WideStripeAudit {
    pub(super) fn add_chunk(&mut self, chunk_id: (u64, u64), chunk: &Chunk) {
        let runs = chunk.runs.iter().filter(|run| run.form.covered).cloned();
        let runs: Vec<BlockRun> = runs.collect();
        if !runs.is_empty() {
            self.covered.insert(chunk_id, runs);
        }
    }

    pub(super) fn add(&mut self, place: (u64, u64), wide: WideStripe) {
        self.wide_stripes.insert(place, wide);
    }

    /// All is there, and these are the files, those that are going among them. Chunks have `blocks`
    /// blocks.
    pub(super) fn check(self, files: &BTreeSet<u64>, blocks: u32, flaws: &mut Flaws) {
        for &(ino, first) in self.wide_stripes.keys().filter(|(ino, _)| !files.contains(ino)) {
            let what = format!("it is not there, but the wide stripe of its chunk {first} is");
            flaws.push(Flaw::of(ino, what, ONLY_SPACE));
        }
        for ((ino, index), runs) in self.covered {
            let before = self.wide_stripes.range(..=(ino, index)).next_back();
            let shard = before.filter(|((of, _), _)| *of == ino).and_then(|((_, first), wide)| {
                let number = (index - first) as usize;
                wide.data.get(number).map(|shard| (wide, number, shard))
            });
            let is_in = |run: &BlockRun| {
                shard.is_some_and(|(wide, number, shard)| {
                    let is_inside = shard.run(blocks).blocks().contains(&run.start);
                    let known =
                        shard.checksums.get(wide.range_of(number, run.first_place(), blocks));
                    is_inside && known == Some(&run.checksums[..])
                })
            };
            if !runs.iter().all(is_in) {
                let what = format!("chunk {index} names blocks that its wide stripe does not have");
                flaws.push(Flaw::of(ino, what, COPY_OUT));
            }
        }
    }
}

/// Each shard is to be on a disk of its own.
pub(super) fn check_places(
    map: &VolumeMap,
    (ino, first): (u64, u64),
    wide: &WideStripe,
    flaws: &mut Flaws,
) {
    let runs = wide.runs(map.geometry().blocks_per_stripe());
    let is_there = |start: u64| map.geometry().block(start).0 < map.stripes();
    if runs.iter().all(|run| is_there(run.start)) && !are_apart(map, runs.iter()) {
        let what = format!("the wide stripe of chunk {first} has two shards that fail together");
        flaws.push(Flaw::of(ino, what, REPLACE));
    }
}
