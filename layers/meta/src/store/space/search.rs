//! Where blocks are taken from.

use blockio::geometry::Near;

use super::set_search::{IsOfKind, StripeKind};
use super::{BlockAllocator, EmptyingGroups, GroupBlocks};
use crate::store::groups::Run;

/// Groups that a request looks through for a place that it wishes for, before it takes another:
/// partly used ones for a few blocks, ones with whole stripes for those of one process. Bounds the
/// time of an allocation on a fragmented disk.
pub(super) const GROUPS_SEARCHED_MAX: usize = 8;

impl BlockAllocator {
    /// The blocks that are wished for, if they are free: all `left` of them, within one stripe, and
    /// whole logical blocks of `unit` blocks.
    pub(super) fn near(
        &mut self,
        near: Near,
        (left, unit): (u64, u32),
        floor: u64,
        is_of: IsOfKind<'_>,
    ) -> Option<Run> {
        let wanted = u32::try_from(left).ok()?;
        let fits = |skip: u32| {
            let is_within = u64::from(skip) + left <= self.layout.blocks_per_stripe();
            is_within && skip.is_multiple_of(unit)
        };
        match near {
            Near::Anywhere {} => None,
            Near::At { block, or_apart } => {
                let run = Run { start: block, count: wanted };
                if block.is_multiple_of(unit.into()) && is_free(self, run, floor) {
                    return Some(run);
                }
                let skip = (block % self.layout.blocks_per_stripe()) as u32;
                if !or_apart {
                    return None;
                }
                self.near(Near::Apart { skip }, (left, unit), floor, is_of)
            }
            Near::Apart { skip } => {
                if fits(skip) {
                    of_whole(self, wanted, skip, floor)
                } else {
                    None
                }
            }
            Near::On { skip, .. } | Near::InDomain { skip, .. } if !fits(skip) => None,
            Near::On { skip, .. } | Near::InDomain { skip, .. } => {
                let mut kinds = StripeKind::wished(near).into_iter();
                kinds.find_map(|kind| {
                    of_kind(self, kind, (wanted, skip), floor, &|stripe| is_of(kind, stripe))
                })
            }
        }
    }

    /// The next wholly free stripe of a kind. What is between it and the last one is of other
    /// kinds, so each has a cursor of its own.
    fn next_whole_of(&mut self, kind: StripeKind, is_it: &dyn Fn(u64) -> bool) -> Option<u64> {
        let groups_max = match kind {
            StripeKind::OfProcess(_) => GROUPS_SEARCHED_MAX,
            // Each group may be on one disk, of many.
            StripeKind::InDomain(_) | StripeKind::InDomainOf(..) => 8 * GROUPS_SEARCHED_MAX,
        };
        let map = self.layout.map().clone();
        self.searches.order().into_iter().find_map(|set| {
            let search = self.searches.in_set(&map, set);
            search.begin_anew_if_much_is_free();
            if !search.is_worth_it(kind) {
                return None;
            }
            let cursor = search.cursor_of(kind);
            // All of the kind may be used, of many that are free.
            let found = self.whole_from(set, cursor, groups_max, is_it);
            let next = found.map_or_else(|end| end, |found| found + 1);
            let search = self.searches.in_set(&map, set);
            search.set_cursor_of(kind, next);
            if let Ok(found) = found {
                search.note_taken(found, cursor);
                self.searches.note_taken_from(set);
            } else if matches!(kind, StripeKind::InDomainOf(..)) {
                search.note_missing(kind);
            }
            found.ok()
        })
    }

    /// The next piece of an allocation of which `left` blocks are missing: whole logical blocks of
    /// `unit` blocks.
    pub(super) fn piece(&mut self, left: u64, unit: u32, floor: u64) -> Option<Run> {
        let per_stripe = self.layout.blocks_per_stripe();
        if left >= per_stripe && self.whole.total() > floor {
            return self.next_whole(|_| true).map(|stripe| self.layout.stripe_run(stripe));
        }
        let wanted = left.min(per_stripe) as u32;
        self.fitting(wanted, unit, GROUPS_SEARCHED_MAX)
            .or_else(|| self.broken_stripe(wanted, floor))
            .or_else(|| if unit == 1 { fragment(self, wanted) } else { units(self, wanted, unit) })
    }

    /// The next wholly free stripe from the cursor on, round the groups of a set.
    pub(super) fn next_whole(&mut self, accept: impl Fn(u64) -> bool) -> Option<u64> {
        let map = self.layout.map().clone();
        self.searches.order().into_iter().find_map(|set| {
            let search = self.searches.in_set(&map, set);
            search.begin_anew_if_much_is_free();
            let cursor = search.cursor;
            let found = self.whole_from(set, cursor, usize::MAX, &accept).ok()?;
            let search = self.searches.in_set(&map, set);
            search.note_taken(found, cursor);
            search.cursor = found + 1;
            self.searches.note_taken_from(set);
            Some(found)
        })
    }

    /// The first wholly free stripe of a set from `cursor` on, round the groups, of which it looks
    /// through `groups_max`. The error is where to go on.
    pub(super) fn whole_from(
        &self,
        set: usize,
        cursor: u64,
        groups_max: usize,
        accept: impl Fn(u64) -> bool,
    ) -> Result<u64, u64> {
        let first = self.layout.group_of_stripe(cursor);
        let groups = self.layout.groups_of_set(set);
        let ahead = self.with_whole.range(first.clamp(groups.start, groups.end)..groups.end);
        let around =
            self.with_whole.range(groups.start..(first + 1).clamp(groups.start, groups.end));
        let ahead = ahead.map(|&group| (group, cursor));
        let around = around.map(|&group| (group, 0));
        let mut end = cursor;
        for (number, from) in ahead.chain(around).take(groups_max) {
            let Some(group) = self.groups.get(&number) else { continue };
            let stripes = self.layout.stripes_of(number);
            let found = (stripes.start.max(from)..stripes.end).find(|&stripe| {
                let local = group.local(self.layout.stripe_run(stripe).blocks());
                accept(stripe) && group.busy.ones_in(local) == 0
            });
            if let Some(found) = found {
                return Ok(found);
            }
            end = stripes.end;
        }
        Err(end)
    }

    /// The beginning of a whole stripe, if one may be broken.
    pub(super) fn broken_stripe(&mut self, wanted: u32, floor: u64) -> Option<Run> {
        let run = of_whole(self, wanted, 0, floor)?;
        self.small_cursor = self.layout.stripe_of(run.start);
        Some(run)
    }

    /// `wanted` blocks in a row in a partly used stripe, from the cursor on: whole logical blocks
    /// of `unit` blocks.
    pub(super) fn fitting(&mut self, wanted: u32, unit: u32, groups_max: usize) -> Option<Run> {
        let first = self.layout.group_of_stripe(self.small_cursor);
        let ahead = self.with_partial.range(first..);
        let candidates = ahead.chain(self.with_partial.range(..first)).take(groups_max);
        for number in candidates {
            let Some(group) = self.groups.get_mut(number) else { continue };
            if group.fit_max < wanted || group.unit_max < unit {
                continue;
            }
            let stripes = self.layout.stripes_of(*number);
            let middle = self.small_cursor.clamp(stripes.start, stripes.end);
            let mut order = (middle..stripes.end).chain(stripes.start..middle);
            let found = order.find_map(|stripe| {
                let run = fit_in_stripe(group, self.layout.stripe_run(stripe), wanted, unit)?;
                Some((stripe, run))
            });
            if let Some((stripe, run)) = found {
                self.small_cursor = stripe;
                return Some(run);
            }
            // In a longer row of free blocks `wanted` ones begin at a multiple of the unit.
            group.fit_max = group.fit_max.min(wanted + unit - 2);
            if wanted == unit {
                group.unit_max = unit / 2;
            }
        }
        None
    }
}

/// The first wholly free stripe of a group from which blocks are taken.
pub(super) fn whole_in(
    space: &BlockAllocator,
    number: u64,
    accept: impl Fn(u64) -> bool,
) -> Option<u64> {
    let group = space.groups.get(&number).filter(|_| space.with_whole.contains(&number))?;
    space.layout.stripes_of(number).find(|&stripe| {
        let local = group.local(space.layout.stripe_run(stripe).blocks());
        accept(stripe) && group.busy.ones_in(local) == 0
    })
}

/// May `run` be handed out?
fn is_free(space: &BlockAllocator, run: Run, floor: u64) -> bool {
    let is_unused = |run| space.count_in(run, |group| &group.busy) == Some(0);
    let stripe = space.layout.stripe_run(space.layout.stripe_of(run.start));
    let is_taken_from = !EmptyingGroups(space).has(run.start);
    is_taken_from && is_unused(run) && !(is_unused(stripe) && space.whole.total() <= floor)
}

/// `wanted` blocks of a wholly free stripe of a kind, after the first `skip` of it.
pub(super) fn of_kind(
    space: &mut BlockAllocator,
    kind: StripeKind,
    (wanted, skip): (u32, u32),
    floor: u64,
    is_it: &dyn Fn(u64) -> bool,
) -> Option<Run> {
    if space.whole.total() <= floor {
        return None;
    }
    let stripe = space.next_whole_of(kind, is_it)?;
    let start = space.layout.stripe_run(stripe).start + u64::from(skip);
    Some(Run { start, count: wanted })
}

/// Blocks of the next whole stripe from its block `skip` on, if one may be broken.
fn of_whole(space: &mut BlockAllocator, wanted: u32, skip: u32, floor: u64) -> Option<Run> {
    if space.whole.total() <= floor {
        return None;
    }
    let stripe = space.next_whole(|_| true)?;
    let start = space.layout.stripe_run(stripe).start + u64::from(skip);
    Some(Run { start, count: wanted })
}

/// The first free blocks of any partly used stripe, at most `wanted`.
fn fragment(space: &BlockAllocator, wanted: u32) -> Option<Run> {
    let number = *space.with_partial.first()?;
    let group = space.groups.get(&number)?;
    let run = space
        .layout
        .stripes_of(number)
        .find_map(|stripe| fit_in_stripe(group, space.layout.stripe_run(stripe), 1, 1))?;
    let stripe = space.layout.stripe_run(space.layout.stripe_of(run.start)).blocks();
    let free = group.busy.runs(group.local(run.start..stripe.end), false).next()?;
    Some(Run { start: run.start, count: (free.end - free.start).min(wanted) })
}

/// The first free logical blocks of `unit` blocks of any partly used stripe, at most `wanted`
/// blocks.
fn units(space: &mut BlockAllocator, wanted: u32, unit: u32) -> Option<Run> {
    let per_stripe = space.layout.blocks_per_stripe() as u32;
    for number in &space.with_partial {
        let Some(group) = space.groups.get_mut(number) else { continue };
        if group.unit_max < unit {
            continue;
        }
        if group.partial_units(unit, per_stripe) == 0 {
            group.unit_max = unit / 2;
            continue;
        }
        let found = space.layout.stripes_of(*number).find_map(|stripe| {
            let stripe = space.layout.stripe_run(stripe);
            let one = fit_in_stripe(group, stripe, unit, unit)?;
            let free =
                group.busy.runs(group.local(one.start..stripe.blocks().end), false).next()?;
            let count = (free.end - free.start) / unit * unit;
            Some(Run { start: one.start, count: count.min(wanted) })
        });
        if found.is_some() {
            return found;
        }
    }
    None
}

/// `wanted` free blocks in a row of a stripe that is partly used, from a multiple of `unit` on.
pub(super) fn fit_in_stripe(
    group: &GroupBlocks,
    stripe: Run,
    wanted: u32,
    unit: u32,
) -> Option<Run> {
    let local = group.local(stripe.blocks());
    let used = group.busy.ones_in(local.clone());
    if used == 0 || local.end - local.start - used < wanted {
        return None;
    }
    // Groups begin with a stripe, so that places in them are multiples if blocks are.
    let mut starts = group.busy.runs(local, false).filter_map(|run| {
        let start = run.start.next_multiple_of(unit);
        (start.saturating_add(wanted) <= run.end).then_some(start)
    });
    let start = starts.next()?;
    Some(Run { start: group.start + u64::from(start), count: wanted })
}
