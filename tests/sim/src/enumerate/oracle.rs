//! What may be found after a crash, by the reference model: each operation that was answered and
//! durable is there; each other one wholly or not at all; of a write each block by itself.

use std::collections::BTreeMap;

use blockio::BLOCK_SIZE;
use fileio::model::Model;
use futures::executor::block_on;

use super::crashes::Stage;
use super::known::{self, Known};
use super::perform::{Done, perform};
use super::tree::{Entry, Tree, walk};
use super::volume::{Found, setup};
use super::vocabulary::Op;

/// What is thought of a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Sound,
    /// As it should not be, but as it is known to be.
    Known(&'static str),
    Wrong(String),
}

/// Trees that differ only in which writes they have: of these any mixture may be found.
struct Group {
    known: Option<Known>,
    trees: Vec<Tree>,
}

/// All that may be found at one stage of a workload.
pub(super) struct Oracle {
    groups: Vec<Group>,
    known: Vec<Known>,
}

impl Oracle {
    /// For a workload that ran as told by `done`, at `stage`.
    pub(super) fn new(fs_nodes: u32, ops: &[Op], done: &[Done], stage: Stage) -> Self {
        let possible: Vec<usize> =
            (0..stage.begun).filter(|&i| !ops[i].is_silent() && done[i].outcome.is_ok()).collect();
        let open: Vec<usize> =
            possible.iter().copied().filter(|&i| !is_certain(ops, done, stage, i)).collect();
        let mut groups = BTreeMap::new();
        for subset in 0_usize..1 << open.len() {
            let left_out = |i: usize| open.iter().position(|&o| o == i).is_some_and(|at| subset >> at & 1 == 0);
            let chosen: Vec<usize> = possible.iter().copied().filter(|&i| !left_out(i)).collect();
            let structure: Vec<usize> =
                chosen.iter().copied().filter(|&i| !matches!(ops[i], Op::Write(..)) || !open.contains(&i)).collect();
            if let Some(tree) = replay(ops, &chosen) {
                let group = groups.entry(structure).or_insert_with(|| Group { known: None, trees: vec![] });
                group.trees.push(tree);
            }
        }
        let under_way = (stage.begun > stage.answered).then(|| ops[stage.begun - 1]);
        let known = known::of(fs_nodes, under_way);
        Self { groups: groups.into_values().collect(), known }
    }

    /// What to think of what was found.
    pub(super) fn judge(&self, found: &Result<Found, String>) -> Verdict {
        let found = match found {
            Ok(found) => found,
            Err(error) => return Verdict::Wrong(error.clone()),
        };
        let _ = &self.known;
        let mut differences = Vec::new();
        for group in &self.groups {
            match group.difference(&found.tree) {
                None if found.flaws.is_empty() => return Verdict::Sound,
                None => return Verdict::Wrong(format!("flaws: {}", found.flaws.join(", "))),
                Some(difference) => differences.push(difference),
            }
        }
        let flaws = if found.flaws.is_empty() { String::new() } else { format!(" [flaws: {}]", found.flaws.join(", ")) };
        Verdict::Wrong(format!("{}{flaws}", differences.join("; or ")))
    }
}

/// Operation `i`, if it was answered, survives a crash at `stage`.
fn is_certain(ops: &[Op], done: &[Done], stage: Stage, i: usize) -> bool {
    if i >= stage.answered {
        return false;
    }
    if ops[i].is_durable() {
        return true;
    }
    for j in i + 1..stage.answered {
        match ops[j] {
            // Whether it was lost nobody knows, and nothing that follows brings it back.
            Op::Restart => return false,
            Op::Settle | Op::Pause => return true,
            Op::Commit(_) if done[j].outcome.is_ok() => {
                if ops[i].is_committed_with_file() && done[i].file == done[j].file {
                    return true;
                }
            }
            _ => {}
        }
    }
    stage.rested
}

/// The tree after the chosen operations; `None` if one of them cannot be without one left out.
fn replay(ops: &[Op], chosen: &[usize]) -> Option<Tree> {
    let model = Model::default();
    for (number, op) in setup() {
        block_on(perform(&model, op, number)).outcome.ok()?;
    }
    for &i in chosen {
        block_on(perform(&model, ops[i], i as u64)).outcome.ok()?;
    }
    Some(block_on(walk(&model)).unwrap_or_else(|error| panic!("the model: {error}")))
}

impl Group {
    /// How `found` differs from all mixtures of these trees.
    fn difference(&self, found: &Tree) -> Option<String> {
        let first = &self.trees[0];
        if let Some(path) = first.keys().find(|path| !found.contains_key(*path)) {
            return Some(format!("/{path} is missing"));
        }
        for (path, entry) in found {
            let possible: Vec<&Entry> = self.trees.iter().filter_map(|tree| tree.get(path)).collect();
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

fn difference(found: &Entry, possible: &[&Entry]) -> Option<String> {
    let fixed = |entry: &Entry| Entry { size: 0, content: Vec::new(), ..entry.clone() };
    let (mine, theirs) = (fixed(found), fixed(possible[0]));
    if mine != theirs {
        return Some(format!("is {mine:?} instead of {theirs:?}"));
    }
    if !possible.iter().any(|entry| entry.size == found.size) {
        let sizes: Vec<u64> = possible.iter().map(|entry| entry.size).collect();
        return Some(format!("has {} bytes instead of {sizes:?}", found.size));
    }
    for (number, block) in found.content.chunks(BLOCK_SIZE).enumerate() {
        let is_that = |entry: &&Entry| {
            let from = (number * BLOCK_SIZE).min(entry.content.len());
            let to = (from + block.len()).min(entry.content.len());
            let stored = &entry.content[from..to];
            block.starts_with(stored) && block[stored.len()..].iter().all(|&byte| byte == 0)
        };
        if !possible.iter().any(is_that) {
            return Some(format!("has block {number} as nobody wrote it"));
        }
    }
    None
}
