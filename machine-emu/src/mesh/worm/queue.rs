//! The queues at the ends of routes: admission, waiting and spilling.

use super::{CycleStep, Mesh, channel_of, describe, entry, queue_of, rows};
use crate::mesh::geometry::Direction;
use crate::mesh::timing::Priority;

/// One queue of a node.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WormQueue {
    pub(super) used: u32,
    pub(super) spilled: u32,
    /// The worm that waits for it, and from when it could go in.
    pub(super) blocked: Option<(u32, u64)>,
    pub(super) spilling: bool,
}

/// The queues of all nodes, two for each.
#[derive(Debug)]
pub(in crate::mesh) struct WormQueues {
    pub(super) all: Vec<WormQueue>,
    /// What the handler of a queue waits for: see [`Mesh::handler_waits`].
    pub(in crate::mesh) handlers: Vec<Option<u64>>,
}

impl WormQueues {
    pub(super) fn new(nodes: u32) -> Self {
        let count = nodes as usize * 2;
        Self { all: vec![WormQueue::default(); count], handlers: vec![None; count] }
    }

    /// Takes room for a message of `rows` words. False if there is none.
    fn admit(&mut self, queue: u32, rows: u32, limit: Option<u32>) -> bool {
        let Some(limit) = limit else { return true };
        let state = &mut self.all[queue as usize];
        let fits = state.used + rows <= limit + state.spilled;
        if fits {
            state.used += rows;
        }
        fits
    }

    /// Each worm that waits for a full queue, and the queue.
    pub(in crate::mesh) fn blocked(&self) -> impl Iterator<Item = (u32, u32)> {
        (0..).zip(&self.all).filter_map(|(index, queue)| {
            queue.blocked.filter(|_| !queue.spilling).map(|(slot, _)| (slot, index))
        })
    }
}

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
        let state = &mut self.queues.all[queue as usize];
        state.used = state.used.checked_sub(rows).expect("only what came in is consumed");
        state.spilled -= state.spilled.min(rows);
        self.admit_blocked(queue, cycle);
    }

    /// A worm has reached the queue at its end.
    pub(super) fn admit(&mut self, slot: u32, channel: u32, cycle: u64) {
        let (node, level, _) = describe(channel);
        let queue = queue_of(node, level);
        if self.queues.admit(
            queue,
            self.worms.get(slot).queue_rows(&self.timing),
            self.timing.queue_words,
        ) {
            return self.cross(slot, channel, cycle);
        }
        self.counters.queue_full += 1;
        self.queues.all[queue as usize].blocked = Some((slot, cycle));
        self.begin_spill(slot, queue, cycle);
    }

    /// There is room in a queue: admits the worm that waits for it.
    fn admit_blocked(&mut self, queue: u32, cycle: u64) {
        let Some((slot, earliest)) = self.queues.all[queue as usize].blocked else { return };
        if self.queues.admit(
            queue,
            self.worms.get(slot).queue_rows(&self.timing),
            self.timing.queue_words,
        ) {
            self.queues.all[queue as usize].blocked = None;
            let level = self.worms.get(slot).level;
            let channel = channel_of(queue / 2, level, Direction::Out);
            self.cross(slot, channel, earliest.max(cycle));
            self.settle();
        }
    }

    /// The fault of the full queue starts to move as much out as the worm needs.
    fn begin_spill(&mut self, slot: u32, queue: u32, cycle: u64) {
        let Some(spill) = self.timing.spill else { return };
        let words = u64::from(self.worms.get(slot).queue_rows(&self.timing));
        let state = &mut self.queues.all[queue as usize];
        if !std::mem::replace(&mut state.spilling, true) {
            let done = cycle + spill.fixed_cycles + words * spill.cycles_per_word;
            self.calendar.push(done.max(self.calendar.now()), entry(CycleStep::Spilled, 0, queue));
        }
    }

    pub(super) fn spilled(&mut self, queue: u32, cycle: u64) {
        let state = &mut self.queues.all[queue as usize];
        state.spilling = false;
        // Else the handlers were faster.
        let Some((slot, _)) = state.blocked else { return };
        let words = self.worms.get(slot).queue_rows(&self.timing);
        self.queues.all[queue as usize].spilled += words;
        self.counters.spilled_words += u64::from(words);
        self.admit_blocked(queue, cycle);
        if let Some((slot, earliest)) = self.queues.all[queue as usize].blocked {
            self.begin_spill(slot, queue, earliest.max(cycle));
        }
    }

    /// Words in a queue.
    pub fn queue_words(&self, node: u32, priority: Priority) -> u32 {
        self.queues.all[queue_of(node, priority) as usize].used
    }

    /// The handler that works on the queue of `node` cannot go on, and take its message out, before
    /// the message `number` has left; `None` once it can. Only the search for deadlocks uses it.
    pub fn handler_waits(&mut self, node: u32, priority: Priority, number: Option<u64>) {
        self.queues.handlers[queue_of(node, priority) as usize] = number;
    }
}
