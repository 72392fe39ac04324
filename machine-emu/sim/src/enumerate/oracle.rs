//! What may be found after a crash, by the reference model: each operation that was answered and
//! durable is there; each other one wholly or not at all; of a write each block by itself.

use std::collections::BTreeMap;

use blockio::BLOCK_SIZE;
use fileio::model::Model;
use futures::executor::block_on;

use super::crashes::WorkloadStage;
use super::perform::{CompletedOperation, perform};
use super::tree::{PathTree, WalkedEntry, walk};
use super::vocabulary::VolumeOperation;
use super::volume::{FoundVolume, setup};

/// What is thought of a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Sound,
    Wrong(String),
}

/// Trees that differ only in which writes they have: of these any mixture may be found.
#[derive(Default)]
struct TreeGroup {
    trees: Vec<PathTree>,
}

/// Groups by the operations that they have, writes that may be lost left out.
type TreeGroups = BTreeMap<Vec<usize>, TreeGroup>;

/// All that may be found at one stage of a workload.
pub(super) struct CrashOracle {
    sound: TreeGroups,
}

/// A workload that was run.
#[derive(Clone, Copy)]
struct WorkloadRun<'a> {
    ops: &'a [VolumeOperation],
    done: &'a [CompletedOperation],
    stage: WorkloadStage,
}

impl CrashOracle {
    /// For a workload with the answers `done`, at `stage`.
    pub(super) fn new(
        ops: &[VolumeOperation],
        done: &[CompletedOperation],
        stage: WorkloadStage,
    ) -> Self {
        let story = WorkloadRun { ops, done, stage };
        let all: Vec<usize> = (0..stage.begun).filter(|&i| story.changes(i)).collect();
        let sound = story.groups(&all);
        Self { sound }
    }

    /// What to think of what was found.
    pub(super) fn judge(&self, found: &Result<FoundVolume, String>) -> Verdict {
        let found = match found {
            Ok(found) => found,
            Err(error) => return Verdict::Wrong(error.clone()),
        };
        let differences: Vec<Option<String>> =
            self.sound.values().map(|group| group.difference(&found.tree)).collect();
        if differences.iter().any(Option::is_none) && found.flaws.is_empty() {
            return Verdict::Sound;
        }
        let mut why: Vec<String> = differences.into_iter().flatten().collect();
        why.extend(found.flaws.iter().cloned());
        Verdict::Wrong(why.join("; "))
    }
}

impl WorkloadRun<'_> {
    /// Operation `i` succeeded, and changes what is seen.
    fn changes(&self, i: usize) -> bool {
        !self.ops[i].is_silent() && self.done[i].outcome.is_ok()
    }

    /// What may be found if of the operations `possible` those that are not certain are there or
    /// not.
    fn groups(&self, possible: &[usize]) -> TreeGroups {
        let Self { ops, done, stage } = *self;
        let open: Vec<usize> =
            possible.iter().copied().filter(|&i| !is_certain(ops, done, stage, i)).collect();
        let mut groups = TreeGroups::new();
        for subset in 0_usize..1 << open.len() {
            let lost: Vec<usize> = open
                .iter()
                .enumerate()
                .filter(|(at, _)| subset >> at & 1 == 0)
                .map(|(_, &i)| i)
                .collect();
            let chosen: Vec<usize> =
                possible.iter().copied().filter(|i| !lost.contains(i)).collect();
            if let Some(tree) = replay(ops, &chosen) {
                let is_mixed = |i: &usize| {
                    open.contains(i)
                        && matches!(
                            ops[*i],
                            VolumeOperation::Write(..) | VolumeOperation::Punch(..)
                        )
                };
                let structure = chosen.into_iter().filter(|i| !is_mixed(i)).collect();
                groups.entry(structure).or_default().trees.push(tree);
            }
        }
        groups
    }
}

/// What must be as it is in one of the trees, besides size and content.
fn exact(entry: &WalkedEntry) -> WalkedEntry {
    WalkedEntry { size: 0, content: Vec::new(), ..entry.clone() }
}

/// Operation `i`, if it was answered, survives a crash at `stage`.
fn is_certain(
    ops: &[VolumeOperation],
    done: &[CompletedOperation],
    stage: WorkloadStage,
    i: usize,
) -> bool {
    if i >= stage.answered {
        return false;
    }
    if ops[i].is_durable() {
        return true;
    }
    for j in i + 1..stage.answered {
        let commits = done[j].outcome.is_ok()
            && done[j].file == done[i].file
            && ops[i].is_committed_with_file();
        match ops[j] {
            // It may have been lost, and no later operation restores it.
            VolumeOperation::Restart => return false,
            VolumeOperation::Flush | VolumeOperation::Pause => return true,
            VolumeOperation::Commit(_) if commits => return true,
            VolumeOperation::Sync(directory)
                if done[j].outcome.is_ok() && ops[i].is_synced_with(directory) =>
            {
                return true;
            }
            _ => {}
        }
    }
    stage.rested
}

/// The tree after the chosen operations; `None` if one of them cannot be without one left out.
fn replay(ops: &[VolumeOperation], chosen: &[usize]) -> Option<PathTree> {
    let model = Model::default();
    for (number, op) in setup() {
        block_on(perform(&model, op, number)).outcome.ok()?;
    }
    for &i in chosen {
        block_on(perform(&model, ops[i], i as u64)).outcome.ok()?;
    }
    Some(block_on(walk(&model)).unwrap_or_else(|error| panic!("the model: {error}")))
}

impl TreeGroup {
    /// How `found` differs from all mixtures of these trees.
    fn difference(&self, found: &PathTree) -> Option<String> {
        let first = self.trees.first()?;
        if let Some(path) = first.keys().find(|path| !found.contains_key(*path)) {
            return Some(format!("/{path} is missing"));
        }
        for (path, entry) in found {
            let possible: Vec<&WalkedEntry> =
                self.trees.iter().filter_map(|tree| tree.get(path)).collect();
            if possible.is_empty() {
                return Some(format!("/{path} should not be there"));
            }
            if let Some(difference) = difference(entry, &possible) {
                return Some(format!("/{path} {difference}"));
            }
        }
        None
    }
}

fn difference(found: &WalkedEntry, possible: &[&WalkedEntry]) -> Option<String> {
    let (mine, theirs) = (exact(found), exact(possible[0]));
    if mine != theirs {
        return Some(format!("is {mine} instead of {theirs}"));
    }
    if !possible.iter().any(|entry| entry.size == found.size) {
        let sizes: Vec<u64> = possible.iter().map(|entry| entry.size).collect();
        return Some(format!("has {} bytes instead of {sizes:?}", found.size));
    }
    for (number, block) in found.content.chunks(BLOCK_SIZE).enumerate() {
        let is_that = |entry: &&WalkedEntry| {
            let from = (number * BLOCK_SIZE).min(entry.content.len());
            let to = (from + block.len()).min(entry.content.len());
            let stored = &entry.content[from..to];
            block.starts_with(stored) && block[stored.len()..].iter().all(|&byte| byte == 0)
        };
        if !possible.iter().any(is_that) {
            return Some(format!("has block {number} that was never written"));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use fileio::protocol::Handle;

    use super::super::perform::Durability::{Acknowledged, Later};
    use super::*;

    const LATE: VolumeOperation = VolumeOperation::Write("f", 0, 10_000, Later);

    /// The verdict on the tree after `survived`, if `ops` were answered.
    fn judge(
        ops: &[VolumeOperation],
        survived: &[usize],
        change: impl FnOnce(&mut PathTree),
    ) -> Verdict {
        let file = Some(Handle { ino: 7, generation: 1 });
        let done: Vec<CompletedOperation> =
            ops.iter().map(|_| CompletedOperation { outcome: Ok(()), file }).collect();
        let stage = WorkloadStage { begun: ops.len(), answered: ops.len(), rested: false };
        let mut tree = replay(ops, survived).expect("a workload that can be");
        change(&mut tree);
        CrashOracle::new(ops, &done, stage).judge(&Ok(FoundVolume { tree, flaws: vec![] }))
    }

    fn is_wrong(verdict: &Verdict) -> bool {
        matches!(verdict, Verdict::Wrong(_))
    }

    #[test]
    fn what_was_durable_must_be_there_and_all_else_may() {
        let made = [VolumeOperation::Create("n", Acknowledged)];
        assert_eq!(judge(&made, &[0], |_| {}), Verdict::Sound);
        assert!(is_wrong(&judge(&made, &[], |_| {})));
        let late = [VolumeOperation::Create("n", Later)];
        assert_eq!(judge(&late, &[], |_| {}), Verdict::Sound);
        assert!(is_wrong(&judge(&[late[0], VolumeOperation::Commit("n")], &[], |_| {})));
        assert!(is_wrong(&judge(&[late[0], VolumeOperation::Pause], &[], |_| {})));
        assert_eq!(judge(&[late[0], VolumeOperation::Restart], &[], |_| {}), Verdict::Sound);
    }

    #[test]
    fn of_a_write_that_was_not_committed_any_block_may_be_there_and_nothing_else() {
        let old = replay(&[], &[]).expect("nothing");
        let block = |tree: &mut PathTree, number: usize, with: &PathTree| {
            let range = number * BLOCK_SIZE..(number + 1) * BLOCK_SIZE;
            let content = &mut tree.get_mut("f").expect("it was made").content;
            content[range.clone()].copy_from_slice(&with["f"].content[range]);
        };
        assert_eq!(judge(&[LATE], &[0], |tree| block(tree, 1, &old)), Verdict::Sound);
        let half = |tree: &mut PathTree| {
            let content = &mut tree.get_mut("f").expect("it was made").content;
            content[..512].copy_from_slice(&old["f"].content[..512]);
        };
        assert!(is_wrong(&judge(&[LATE], &[0], half)), "a torn block");
        let committed = [LATE, VolumeOperation::Commit("f")];
        assert!(is_wrong(&judge(&committed, &[0], |tree| block(tree, 1, &old))));
    }

    #[test]
    fn a_name_too_many_and_a_link_too_many_are_wrong() {
        let again = |tree: &mut PathTree| {
            let entry = tree["f"].clone();
            tree.insert("m".to_owned(), entry);
        };
        assert!(is_wrong(&judge(&[], &[], again)));
        let links = |tree: &mut PathTree| tree.get_mut("f").expect("it was made").links += 1;
        assert!(is_wrong(&judge(&[], &[], links)));
    }
}
