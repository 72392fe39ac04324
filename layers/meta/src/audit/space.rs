//! Whether each block has exactly one owner, or is free.

use super::flaw::{COPY_OUT, Flaw, Flaws, ONLY_SPACE};
use crate::protocol::Run;

/// What uses blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum BlockOwner {
    Tree,
    Map,
    Log,
    Chunk { ino: u64, index: u64 },
    WideStripe { ino: u64, first: u64 },
}

impl std::fmt::Display for BlockOwner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tree => f.write_str("the metadata tree"),
            Self::Map => f.write_str("the space map"),
            Self::Log => f.write_str("the log"),
            Self::Chunk { ino, index } => write!(f, "inode {ino} (chunk {index})"),
            Self::WideStripe { ino, first } => {
                write!(f, "inode {ino} (wide stripe of chunk {first})")
            }
        }
    }
}

/// Blocks and what uses them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct UsedBlocks {
    pub(crate) run: Run,
    pub(crate) owner: BlockOwner,
}

/// Compares the blocks that something names with those that the space map of `node` says are in
/// use. `used` has everything; what map and log use is not in `kept`.
pub(crate) fn compare(node: u32, mut used: Vec<UsedBlocks>, kept: &[Run], flaws: &mut Flaws) {
    used.sort_unstable();
    twice(node, &used, flaws);
    let is_kept = |used: &&UsedBlocks| !matches!(used.owner, BlockOwner::Map | BlockOwner::Log);
    let named = union(used.iter().filter(is_kept).map(|used| used.run));
    let kept = union(kept.iter().copied());
    for (start, end) in minus(&named, &kept) {
        let at = used.iter().filter(is_kept).find(|used| used.run.blocks().end > start);
        let owner = at.map_or(String::new(), |used| used.owner.to_string());
        let what = format!("used by {owner}, but free or not its own in the space map");
        flaws.push(Flaw::new(blocks(node, start, end), what, COPY_OUT));
    }
    for (start, end) in minus(&kept, &named) {
        let what = "in use in the space map, and nothing names them";
        flaws.push(Flaw::new(blocks(node, start, end), what, ONLY_SPACE));
    }
}

fn blocks(node: u32, start: u64, end: u64) -> String {
    let last = end.saturating_sub(1);
    if start == last {
        format!("block {start} of node {node}")
    } else {
        format!("blocks {start} to {last} of node {node}")
    }
}

/// Blocks with two owners.
fn twice(node: u32, used: &[UsedBlocks], flaws: &mut Flaws) {
    let Some(mut furthest) = used.first() else { return };
    for next in &used[1..] {
        let end = furthest.run.blocks().end;
        if next.run.start < end {
            let what = format!("two owners, {} and {}", furthest.owner, next.owner);
            let both = end.min(next.run.blocks().end);
            flaws.push(Flaw::new(blocks(node, next.run.start, both), what, COPY_OUT));
        }
        if next.run.blocks().end > end {
            furthest = next;
        }
    }
}

/// The same blocks in as few ranges as possible, in order.
fn union(runs: impl Iterator<Item = Run>) -> Vec<(u64, u64)> {
    let mut runs: Vec<Run> = runs.collect();
    runs.sort_unstable();
    let mut union: Vec<(u64, u64)> = Vec::new();
    for run in runs {
        let blocks = run.blocks();
        match union.last_mut() {
            Some((_, end)) if *end >= blocks.start => *end = blocks.end.max(*end),
            _ => union.push((blocks.start, blocks.end)),
        }
    }
    union
}

/// What is in `from` and not in `other`; both in order and without overlap.
fn minus(from: &[(u64, u64)], other: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let (mut left, mut skip) = (Vec::new(), 0);
    for &(mut start, end) in from {
        while skip < other.len() && other[skip].1 <= start {
            skip += 1;
        }
        for &(cut_start, cut_end) in &other[skip..] {
            if cut_start >= end {
                break;
            }
            if start < cut_start {
                left.push((start, cut_start));
            }
            start = start.max(cut_end);
        }
        if start < end {
            left.push((start, end));
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(start: u64, count: u32, owner: BlockOwner) -> UsedBlocks {
        UsedBlocks { run: Run { start, count }, owner }
    }

    fn listed(used: Vec<UsedBlocks>, kept: &[Run]) -> Vec<String> {
        let mut flaws = Flaws::default();
        compare(3, used, kept, &mut flaws);
        flaws.listed().iter().map(|flaw| format!("{}: {}", flaw.thing, flaw.what)).collect()
    }

    #[test]
    fn blocks_that_are_named_once_and_in_use_are_no_flaw() {
        let file = BlockOwner::Chunk { ino: 9, index: 0 };
        let uses =
            vec![used(4, 4, file), used(0, 4, BlockOwner::Tree), used(16, 16, BlockOwner::Log)];
        assert_eq!(listed(uses, &[Run { start: 0, count: 8 }]), Vec::<String>::new());
    }

    #[test]
    fn a_block_with_two_owners_a_lost_one_and_a_leaked_one_are_listed_with_their_places() {
        let file = BlockOwner::Chunk { ino: 9, index: 1 };
        let uses = vec![used(0, 4, BlockOwner::Tree), used(3, 2, file), used(20, 1, file)];
        let kept = [Run { start: 0, count: 5 }, Run { start: 7, count: 2 }];
        let expected = [
            "block 3 of node 3: two owners, the metadata tree and inode 9 (chunk 1)",
            "block 20 of node 3: used by inode 9 (chunk 1), but free or not its own in the space map",
            "blocks 7 to 8 of node 3: in use in the space map, and nothing names them",
        ];
        assert_eq!(listed(uses, &kept), expected);
    }
}
