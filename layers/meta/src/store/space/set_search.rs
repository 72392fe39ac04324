//! The search for whole stripes: in each disk set one stripe after the other, so that they go round
//! its disks, and in the sets in proportion to what is free, so that disks of any age and size fill
//! alike.

use std::collections::BTreeMap;

use blockio::VolumeMap;
use blockio::geometry::Near;

/// The search starts over once this many of the stripes behind it are free again, and these are
/// half of what it has allocated since. Blocks that were written before are faster to write than
/// others (the host has allocated them), and a volume uses at most twice its live data.
pub(super) const FREED_MIN: u64 = 16;

/// Searches for a kind of stripes that are left out after one that found none.
const RESTS: u32 = 64;

/// The search in one disk set.
#[derive(Debug, Default)]
pub(super) struct SetSearch {
    /// Where it goes on.
    pub(super) cursor: u64,
    /// The same for whole stripes of some kinds.
    cursors: BTreeMap<StripeKind, u64>,
    /// How often it is not searched for a kind of which it had none.
    rests: BTreeMap<StripeKind, u32>,
    /// Where it begins.
    begin: u64,
    /// Whole stripes handed out since it began, and those behind it that are free again.
    taken: u64,
    pub(super) freed: u64,
    /// Whole stripes that may be taken.
    pub(super) whole: u64,
    /// What it was given less than its share.
    credit: i128,
}

/// Stripes that are looked for apart from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum StripeKind {
    /// The nodes of this process cache them.
    OfProcess(u32),
    /// On disks of this failure domain.
    InDomain(u32),
    /// On disks of this failure domain, and the nodes of this process cache them.
    InDomainOf(u32, u32),
}

/// Tells whether a stripe is of a kind.
pub(crate) type IsOfKind<'a> = &'a dyn Fn(StripeKind, u64) -> bool;

impl StripeKind {
    /// Those that are wished for, the most wanted ones first.
    pub(crate) fn wished(near: Near) -> Vec<Self> {
        match near {
            Near::On { process, .. } => vec![Self::OfProcess(process)],
            Near::InDomain { domain, process: None, .. } => vec![Self::InDomain(domain)],
            Near::InDomain { domain, process: Some(process), .. } => {
                vec![Self::InDomainOf(domain, process), Self::InDomain(domain)]
            }
            Near::Anywhere {} | Near::At { .. } | Near::Apart { .. } => Vec::new(),
        }
    }
}

impl SetSearch {
    /// It begins there from now on.
    pub(super) fn begin_at(&mut self, begin: u64) {
        self.begin = begin;
        self.begin_anew();
    }

    fn begin_anew(&mut self) {
        self.cursor = self.begin;
        self.cursors.clear();
        self.rests.clear();
        (self.taken, self.freed) = (0, 0);
    }

    pub(super) fn begin_anew_if_much_is_free(&mut self) {
        if self.freed >= FREED_MIN && 2 * self.freed >= self.taken {
            self.begin_anew();
        }
    }

    /// Where the search for stripes of a kind goes on.
    pub(super) fn cursor_of(&self, kind: StripeKind) -> u64 {
        self.cursors.get(&kind).copied().unwrap_or(self.begin)
    }

    /// Is the search for a kind worth its time? Not soon after there was none of it: a process may
    /// cache no stripe at all of a disk.
    pub(super) fn is_worth_it(&mut self, kind: StripeKind) -> bool {
        match self.rests.get_mut(&kind) {
            None | Some(0) => true,
            Some(rests) => {
                *rests -= 1;
                false
            }
        }
    }

    /// There was none of a kind.
    pub(super) fn note_missing(&mut self, kind: StripeKind) {
        self.rests.insert(kind, RESTS);
    }

    pub(super) fn set_cursor_of(&mut self, kind: StripeKind, cursor: u64) {
        self.cursors.insert(kind, cursor);
    }

    /// A stripe was found from `cursor` on.
    pub(super) fn note_taken(&mut self, found: u64, cursor: u64) {
        if found < cursor {
            (self.taken, self.freed) = (0, 0);
        }
        self.taken += 1;
    }

    /// A stripe is whole again.
    pub(super) fn note_freed(&mut self, stripe: u64) {
        let cursors = self.cursors.values().copied();
        let behind = self.begin..cursors.fold(self.cursor, u64::max);
        self.freed += u64::from(behind.contains(&stripe));
    }
}

/// The searches in all disk sets.
#[derive(Debug, Default)]
pub(super) struct SetSearches(Vec<SetSearch>);

impl SetSearches {
    /// The search in the disk set of `stripe`.
    pub(super) fn of(&mut self, map: &VolumeMap, stripe: u64) -> &mut SetSearch {
        self.in_set(map, map.set_number(stripe))
    }

    /// The search in set number `set` of `map`, in which there are more and more.
    pub(super) fn in_set(&mut self, map: &VolumeMap, set: usize) -> &mut SetSearch {
        for placed in map.sets().skip(self.0.len()) {
            let begin = placed.set.first;
            self.0.push(SetSearch { cursor: begin, begin, ..SetSearch::default() });
        }
        &mut self.0[set]
    }

    /// Where the search in a set begins.
    pub(super) fn begin(&self, set: usize) -> u64 {
        self.0[set].begin
    }

    /// The sets in the order in which they are looked at: first the one that is due by what is free
    /// in each.
    pub(super) fn order(&self) -> Vec<usize> {
        let due = |set: &usize| self.0[*set].credit + i128::from(self.0[*set].whole);
        let mut order: Vec<usize> =
            (0..self.0.len()).filter(|&set| self.0[set].whole > 0).collect();
        if order.len() > 1 {
            order.sort_by_key(|set| std::cmp::Reverse(due(set)));
        }
        order
    }

    /// A stripe of `set` was taken: all sets have earned their parts of it.
    pub(super) fn note_taken_from(&mut self, set: usize) {
        if self.0.len() < 2 {
            return;
        }
        let all: u64 = self.0.iter().map(|search| search.whole).sum();
        for search in &mut self.0 {
            search.credit += i128::from(search.whole);
        }
        self.0[set].credit -= i128::from(all);
    }
}
