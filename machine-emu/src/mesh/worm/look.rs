//! What stands still in a mesh, for the search for deadlocks.

use std::collections::BTreeSet;

use super::{Mesh, NONE, queue_of};
use crate::mesh::timing::Priority;

impl Mesh {
    /// Each message that waits in the line for a channel: its number, the channel, and the number of
    /// the message that holds it.
    pub(in crate::mesh) fn waiters(&self) -> impl Iterator<Item = (u64, u32, u64)> {
        let held = (0..).zip(&self.channels).filter(|(_, channel)| channel.held);
        held.flat_map(move |(index, channel)| {
            let owner = self.worms[channel.owner as usize].number;
            let first = Some(channel.first_waiter).filter(|&slot| slot != NONE);
            let line = std::iter::successors(first, |&slot| {
                Some(self.worms[slot as usize].next).filter(|&next| next != NONE)
            });
            line.map(move |slot| (self.worms[slot as usize].number, index, owner))
        })
    }

    /// Each message that stands before a full queue, and the queue.
    pub(in crate::mesh) fn blocked(&self) -> impl Iterator<Item = (u64, u32)> {
        let blocked = (0..).zip(&self.queues).filter_map(|(index, queue)| {
            queue.blocked.filter(|_| !queue.spilling).map(|(slot, _)| (slot, index))
        });
        blocked.map(|(slot, index)| (self.worms[slot as usize].number, index))
    }

    /// Each message that still takes room in the queue of its forwarder, and the queue.
    pub(in crate::mesh) fn passing(&self) -> impl Iterator<Item = (u64, u32)> {
        let free: BTreeSet<u32> = self.free.iter().copied().collect();
        let live = (0..).zip(&self.worms).filter(move |(slot, _)| !free.contains(slot));
        live.filter_map(|(_, worm)| worm.room.map(|queue| (worm.number, queue)))
    }

    /// Words in a queue.
    pub fn queue_words(&self, node: u32, priority: Priority) -> u32 {
        self.queues[queue_of(node, priority) as usize].used
    }

    /// The message of this number, from and to whom, if it is under way.
    pub(in crate::mesh) fn ends_of(&self, number: u64) -> Option<(u32, u32)> {
        let worm = self.worms.iter().rev().find(|worm| worm.number == number)?;
        Some((worm.letter.from, worm.letter.to))
    }

    /// The handler that works on the queue of `node` cannot go on, and take its message out, before
    /// the message `number` has left; `None` once it can. Only the search for deadlocks uses it.
    pub fn handler_waits(&mut self, node: u32, priority: Priority, number: Option<u64>) {
        self.handlers[queue_of(node, priority) as usize] = number;
    }
}
