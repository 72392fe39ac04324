//! Where a pattern runs. Threads take the place of processes: all start together, and the slowest
//! counts.

use std::sync::Barrier;
use std::time::Duration;

use crate::exit::CommandFailure;
use crate::time::now;
use crate::tree::FileTree;

/// Ranks of one run, at most.
pub(super) const RANKS_MAX: i64 = 1024;

/// Where a pattern is done: one tree for each rank, all of the same files.
pub(super) struct BenchSide {
    pub(super) name: String,
    pub(super) trees: Vec<Box<dyn FileTree>>,
    /// A directory of this run.
    pub(super) directory: Vec<u8>,
}

impl BenchSide {
    /// Does `work` as each rank, all at once. Returns the time from the start of the first to the
    /// end of the last.
    #[allow(clippy::disallowed_methods, reason = "the program has threads of its own")]
    pub(super) fn as_ranks(
        &self,
        work: impl Fn(&dyn FileTree, u64) -> Result<(), CommandFailure> + Sync,
    ) -> Result<Duration, CommandFailure> {
        let begin = Barrier::new(self.trees.len());
        let (begin, work) = (&begin, &work);
        std::thread::scope(|scope| {
            let started: Vec<_> = (0..)
                .zip(&self.trees)
                .map(|(rank, tree)| {
                    scope.spawn(move || {
                        begin.wait();
                        // Measured by the ranks: the thread that waits for them may be scheduled
                        // late.
                        let start = now();
                        work(&**tree, rank).map(|()| (start, now()))
                    })
                })
                .collect();
            let panicked =
                |_| Err(CommandFailure::Wrong("a rank of the benchmark panicked".into()));
            let ended = started.into_iter().map(|rank| rank.join().unwrap_or_else(panicked));
            // All of them end before the first failure is returned.
            let outcomes: Vec<_> = ended.collect();
            let times = outcomes.into_iter().collect::<Result<Vec<_>, CommandFailure>>()?;
            let first = times.iter().map(|(start, _)| *start).min();
            let last = times.iter().map(|(_, end)| *end).max();
            Ok(last.zip(first).map(|(last, first)| last - first).unwrap_or_default())
        })
    }
}
