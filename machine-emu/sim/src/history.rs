//! What several clients did to a few names at the same time, and whether one order of it explains
//! all that they were answered: each operation happens at one moment between question and answer.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use fileio::protocol::Handle;

/// Operations of one history, at most: each is one bit of a set.
const OPERATIONS_MAX: usize = 128;

/// What each name names. Names are numbers here.
type NameTable = Vec<Option<Handle>>;

/// What was asked, and the answer.
#[derive(Clone, Copy, Debug)]
pub(super) enum NameOperation {
    /// Make a file; `None`: the name names something already.
    Make { name: usize, made: Option<Handle> },
    /// Make a file unless the name names one.
    Open { name: usize, file: Handle, new: bool },
    /// Look the name up.
    Look { name: usize, found: Option<Handle> },
    /// Remove the name; not `done`: it names nothing.
    Remove { name: usize, done: bool },
    /// Rename `from` to `to`, over what is there; not `done`: `from` names nothing.
    Rename { from: usize, to: usize, done: bool },
    /// Give a file that has a name another one; not `done`: that names something already.
    Link { file: Handle, name: usize, done: bool },
}

impl NameOperation {
    /// The names after it, if this may be the answer when they are `names` before it.
    fn after(self, names: &NameTable) -> Option<NameTable> {
        let with = |changes: &[(usize, Option<Handle>)]| {
            let mut after = names.clone();
            for &(name, named) in changes {
                after[name] = named;
            }
            Some(after)
        };
        match self {
            Self::Make { name, made: Some(file) }
            | Self::Open { name, file, new: true }
            | Self::Link { file, name, done: true }
                if names[name].is_none() =>
            {
                with(&[(name, Some(file))])
            }
            Self::Make { name, made: None } | Self::Link { name, done: false, .. }
                if names[name].is_some() =>
            {
                with(&[])
            }
            Self::Open { name, file, new: false } if names[name] == Some(file) => with(&[]),
            Self::Look { name, found } if names[name] == found => with(&[]),
            Self::Remove { name, done: true } if names[name].is_some() => with(&[(name, None)]),
            // Of two names of one file both stay.
            Self::Rename { from, to, done: true }
                if names[from].is_some() && names[from] == names[to] =>
            {
                with(&[])
            }
            Self::Rename { from, to, done: true } if names[from].is_some() => {
                with(&[(from, None), (to, names[from])])
            }
            Self::Remove { name, done: false } | Self::Rename { from: name, done: false, .. }
                if names[name].is_none() =>
            {
                with(&[])
            }
            _ => None,
        }
    }

    /// The file in the answer.
    fn file(self) -> Option<Handle> {
        match self {
            Self::Make { made: file, .. } | Self::Look { found: file, .. } => file,
            Self::Open { file, .. } | Self::Link { file, .. } => Some(file),
            Self::Remove { .. } | Self::Rename { .. } => None,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct HistoryEntry {
    began: u64,
    ended: u64,
    operation: NameOperation,
}

/// The operations of some clients on a few names, none of which names anything at first.
#[derive(Debug, Default)]
pub(super) struct History {
    now: Cell<u64>,
    operations: RefCell<Vec<HistoryEntry>>,
}

impl History {
    /// Something is asked now: the moment, for [`answered`](Self::answered).
    pub(super) fn asked(&self) -> u64 {
        self.now.set(self.now.get() + 1);
        self.now.get()
    }

    /// What was asked at `began` is answered now.
    pub(super) fn answered(&self, began: u64, operation: NameOperation) {
        let ended = self.asked();
        self.operations.borrow_mut().push(HistoryEntry { began, ended, operation });
    }

    /// All files in the answers.
    pub(super) fn files(&self) -> BTreeSet<Handle> {
        self.operations.borrow().iter().filter_map(|operation| operation.operation.file()).collect()
    }

    /// Panics if no order of the operations on `count` names explains all answers.
    pub(super) fn check(&self, count: usize) {
        let operations = self.operations.borrow();
        assert!(operations.len() <= OPERATIONS_MAX, "{} operations", operations.len());
        assert!(can_be(&operations, count), "no order explains {:#?}", self.operations);
    }
}

/// Looks for an order in which nothing comes before what was answered before it was asked.
fn can_be(operations: &[HistoryEntry], count: usize) -> bool {
    let all = |done: u128| done.count_ones() as usize == operations.len();
    let mut tried = BTreeSet::new();
    let mut untried = vec![(0_u128, vec![None; count])];
    while let Some((done, names)) = untried.pop() {
        if all(done) {
            return true;
        }
        if !tried.insert((done, names.clone())) {
            continue;
        }
        let left = || (0..).zip(operations).filter(|(bit, _)| done & (1 << bit) == 0);
        let first_end = left().map(|(_, operation)| operation.ended).min().unwrap_or_default();
        let may_be_next = left().filter(|(_, operation)| operation.began < first_end);
        let next = may_be_next.filter_map(|(bit, operation)| {
            operation.operation.after(&names).map(|after| (done | 1 << bit, after))
        });
        let mut next: Vec<_> = next.collect();
        // What fits in and changes nothing can as well come now: no other order needs to be tried.
        if let Some(place) = next.iter().position(|(_, after)| *after == names) {
            next = vec![next.swap_remove(place)];
        }
        untried.extend(next);
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Handle = Handle { ino: 1, generation: 1 };
    const TWO: Handle = Handle { ino: 2, generation: 1 };

    fn history(operations: &[(u64, u64, NameOperation)]) -> bool {
        let operation = |&(began, ended, operation): &_| HistoryEntry { began, ended, operation };
        can_be(&operations.iter().map(operation).collect::<Vec<_>>(), 2)
    }

    /// The file ONE has the name 0, TWO the name 1; while 0 is renamed to 1 both are looked up.
    fn seen_during_a_rename(
        old: (u64, u64, Option<Handle>),
        new: (u64, u64, Option<Handle>),
    ) -> bool {
        history(&[
            (1, 2, NameOperation::Make { name: 0, made: Some(ONE) }),
            (3, 4, NameOperation::Make { name: 1, made: Some(TWO) }),
            (10, 20, NameOperation::Rename { from: 0, to: 1, done: true }),
            (old.0, old.1, NameOperation::Look { name: 0, found: old.2 }),
            (new.0, new.1, NameOperation::Look { name: 1, found: new.2 }),
        ])
    }

    #[test]
    fn a_file_on_its_way_has_one_name() {
        assert!(seen_during_a_rename((11, 12, Some(ONE)), (13, 14, Some(TWO))));
        assert!(seen_during_a_rename((11, 12, Some(ONE)), (13, 14, Some(ONE))));
        assert!(seen_during_a_rename((11, 12, None), (13, 14, Some(ONE))));
        assert!(seen_during_a_rename((11, 14, None), (12, 13, Some(TWO))));
        // Neither of them, and both of them.
        assert!(!seen_during_a_rename((11, 12, None), (13, 14, Some(TWO))));
        assert!(!seen_during_a_rename((13, 14, Some(ONE)), (11, 12, Some(ONE))));
        // After the answer nothing is as before.
        assert!(!seen_during_a_rename((21, 22, Some(ONE)), (13, 14, Some(TWO))));
    }

    #[test]
    fn of_two_that_make_or_remove_one_name_one_succeeds() {
        let make = |made| NameOperation::Make { name: 0, made };
        assert!(history(&[(1, 4, make(Some(ONE))), (2, 3, make(None))]));
        assert!(!history(&[(1, 4, make(Some(ONE))), (2, 3, make(Some(TWO)))]));
        let remove = |done| NameOperation::Remove { name: 0, done };
        let first = (1, 2, make(Some(ONE)));
        assert!(history(&[first, (3, 6, remove(false)), (4, 5, remove(true))]));
        assert!(!history(&[first, (3, 6, remove(true)), (4, 5, remove(true))]));
        assert!(!history(&[first, (3, 4, remove(false)), (5, 6, remove(true))]));
    }

    #[test]
    fn a_name_is_opened_linked_or_renamed_as_it_is() {
        let open = |file, new| NameOperation::Open { name: 0, file, new };
        assert!(history(&[(1, 2, open(ONE, true)), (3, 4, open(ONE, false))]));
        assert!(!history(&[(1, 2, open(ONE, true)), (3, 4, open(TWO, false))]));
        let link = (3, 4, NameOperation::Link { file: ONE, name: 1, done: true });
        let rename = (5, 6, NameOperation::Rename { from: 0, to: 1, done: true });
        let look = (7, 8, NameOperation::Look { name: 0, found: Some(ONE) });
        assert!(history(&[(1, 2, open(ONE, true)), link, rename, look]));
        assert!(!history(&[(1, 2, open(ONE, true)), rename, look]));
        assert!(!history(&[link, (5, 6, NameOperation::Rename { from: 1, to: 0, done: false })]));
    }
}
