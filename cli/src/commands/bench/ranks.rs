//! Threads in the place of processes: all start at once, and the slowest counts.

use std::sync::Barrier;
use std::time::Duration;

use super::Side;
use crate::exit::Failure;
use crate::time::now;
use crate::tree::Tree;

/// Ranks of one run, at most.
pub(super) const RANKS_MAX: i64 = 1024;

impl Side {
    /// Does `work` as each rank, all at once. How long it took from the start of the first to the end of the
    /// last.
    #[allow(clippy::disallowed_methods, reason = "the program has threads of its own")]
    pub(super) fn as_ranks(
        &self,
        work: impl Fn(&dyn Tree, u64) -> Result<(), Failure> + Sync,
    ) -> Result<Duration, Failure> {
        let begin = Barrier::new(self.trees.len());
        let (begin, work) = (&begin, &work);
        std::thread::scope(|scope| {
            let started: Vec<_> = (0..)
                .zip(&self.trees)
                .map(|(rank, tree)| {
                    scope.spawn(move || {
                        begin.wait();
                        // By the ranks themselves: whoever waits for them may be scheduled late.
                        let start = now();
                        work(&**tree, rank).map(|()| (start, now()))
                    })
                })
                .collect();
            let panicked = |_| Err(Failure::Wrong("a rank of the benchmark panicked".into()));
            let ended = started.into_iter().map(|rank| rank.join().unwrap_or_else(panicked));
            // All of them end before the first failure is told.
            let outcomes: Vec<_> = ended.collect();
            let times = outcomes.into_iter().collect::<Result<Vec<_>, Failure>>()?;
            let first = times.iter().map(|(start, _)| *start).min();
            let last = times.iter().map(|(_, end)| *end).max();
            Ok(last.zip(first).map(|(last, first)| last - first).unwrap_or_default())
        })
    }
}
