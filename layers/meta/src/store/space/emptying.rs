//! Groups from which nothing is taken, so that they become empty and can be given away.

use super::{BlockAllocator, GroupBlocks, count_group, open_stripes};

/// From now on nothing, or again something, is taken from an owned group.
pub(crate) fn set_emptying(space: &mut BlockAllocator, number: u64, emptying: bool) {
    let Some(group) = space.groups.get_mut(&number) else { return };
    if std::mem::replace(&mut group.emptying, emptying) == emptying {
        return;
    }
    let free = u64::from(group.free_blocks());
    if emptying {
        space.free_blocks -= free;
        count_group(space, number, -1);
    } else {
        space.free_blocks += free;
        count_group(space, number, 1);
    }
    space.note_free(number);
}

/// The groups that are being emptied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EmptyingGroups<'a>(pub(crate) &'a BlockAllocator);

impl<'a> EmptyingGroups<'a> {
    /// Each with its blocks in use, in order.
    pub(crate) fn list(self) -> impl Iterator<Item = (u64, u64)> + 'a {
        let emptying = self.0.groups.iter().filter(|(_, group)| group.emptying);
        emptying.map(|(&number, group)| (number, u64::from(group.used_blocks())))
    }

    /// Is the block in one?
    pub(crate) fn has(self, block: u64) -> bool {
        let found = self.0.groups.get(&self.0.layout.group_of(block));
        found.is_some_and(|group| group.emptying)
    }

    /// Is it one, and empty?
    pub(crate) fn is_empty(self, group: u64) -> bool {
        let found = self.0.groups.get(&group);
        found.is_some_and(|group| group.emptying && group.used_blocks() == 0)
    }

    /// Their free blocks, in logical blocks of `unit` blocks.
    pub(crate) fn free_blocks(self, unit: u32) -> u64 {
        let emptying = self.0.groups.values().filter(|group| group.emptying);
        let free = |group: &GroupBlocks| match unit {
            1 => group.free_blocks(),
            _ => group.busy.clear_rows(unit) * unit,
        };
        emptying.map(|group| u64::from(free(group))).sum()
    }

    /// The other groups that are partly used and of which something could be handed out, with
    /// their blocks in use, the least used first; those of which blocks are handed out come last.
    pub(crate) fn candidates(self) -> Vec<(u64, u64)> {
        let others = self.0.groups.iter().filter(|(_, group)| !group.emptying);
        let partial = others.filter(|(_, group)| group.used_blocks() > 0);
        let open = partial.filter(|(group, _)| open_stripes(self.0, **group) > 0);
        let mut used: Vec<(bool, u64, u64)> = open
            .map(|(&number, group)| (group.loaned.ones() > 0, group.used_blocks().into(), number))
            .collect();
        used.sort_unstable();
        used.into_iter().map(|(_, busy, number)| (number, busy)).collect()
    }
}
