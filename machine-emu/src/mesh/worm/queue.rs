//! The queues at the ends of ways: who gets in, who stands before them, and spilling.

use super::{CycleStep, Mesh, channel_of, describe, entry, queue_of, rows};
use crate::mesh::geometry::Direction;
use crate::mesh::timing::Priority;

impl Mesh {
    /// The handlers of `node` have taken `words` words out of its queue by `cycle`: there is space
    /// again then, or in the first cycle that is not over.
    pub fn consume(&mut self, node: u32, priority: Priority, words: u32, cycle: u64) {
        let queue = queue_of(node, priority);
        let now = self.calendar.now();
        if cycle <= now {
            self.make_room(queue, rows(words), now);
        } else {
            self.calendar.push(cycle, entry(CycleStep::Room, u64::from(rows(words)), queue));
        }
    }

    pub(super) fn make_room(&mut self, queue: u32, rows: u32, cycle: u64) {
        if self.timing.queue_words.is_none() {
            return;
        }
        let state = &mut self.queues[queue as usize];
        state.used = state.used.checked_sub(rows).expect("only what came in is consumed");
        state.spilled -= state.spilled.min(rows);
        self.admit_blocked(queue, cycle);
    }

    /// A worm stands before the queue at its end.
    pub(super) fn admit(&mut self, slot: u32, channel: u32, cycle: u64) {
        let (node, level, _) = describe(channel);
        let queue = queue_of(node, level);
        if self.has_room(slot, queue) {
            return self.cross(slot, channel, cycle);
        }
        self.counters.queue_full += 1;
        self.queues[queue as usize].blocked = Some((slot, cycle));
        self.begin_spill(slot, queue, cycle);
    }

    /// Takes the room if it is there.
    fn has_room(&mut self, slot: u32, queue: u32) -> bool {
        let Some(limit) = self.timing.queue_words else { return true };
        let rows = self.rows_of(slot);
        let state = &mut self.queues[queue as usize];
        let fits = state.used + rows <= limit + state.spilled;
        if fits {
            state.used += rows;
        }
        fits
    }

    /// What the message takes in the queue at the end of this leg.
    fn rows_of(&self, slot: u32) -> u32 {
        // Flits are two to a word, after the header.
        rows((self.worms[slot as usize].flits - self.timing.header_flits) / 2)
    }

    /// There is room in a queue: lets in who stands before it.
    fn admit_blocked(&mut self, queue: u32, cycle: u64) {
        let Some((slot, earliest)) = self.queues[queue as usize].blocked else { return };
        if self.has_room(slot, queue) {
            self.queues[queue as usize].blocked = None;
            let level = self.worms[slot as usize].level;
            let channel = channel_of(queue / 2, level, Direction::Out);
            self.cross(slot, channel, earliest.max(cycle));
            self.settle();
        }
    }

    /// The fault of the full queue starts to move as much out as the worm needs.
    fn begin_spill(&mut self, slot: u32, queue: u32, cycle: u64) {
        let Some(spill) = self.timing.spill else { return };
        let words = u64::from(self.rows_of(slot));
        let state = &mut self.queues[queue as usize];
        if !std::mem::replace(&mut state.spilling, true) {
            let done = cycle + spill.fixed_cycles + words * spill.cycles_per_word;
            self.calendar.push(done.max(self.calendar.now()), entry(CycleStep::Spilled, 0, queue));
        }
    }

    pub(super) fn spilled(&mut self, queue: u32, cycle: u64) {
        let state = &mut self.queues[queue as usize];
        state.spilling = false;
        // Else the handlers were faster.
        let Some((slot, _)) = state.blocked else { return };
        let words = self.rows_of(slot);
        self.queues[queue as usize].spilled += words;
        self.counters.spilled_words += u64::from(words);
        self.admit_blocked(queue, cycle);
        if let Some((slot, earliest)) = self.queues[queue as usize].blocked {
            self.begin_spill(slot, queue, earliest.max(cycle));
        }
    }
}
