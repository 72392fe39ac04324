//! What is to come, in the order of virtual time; at one instant, in the order of scheduling.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use runtime::Undelivered;

use crate::slab::SlabKey;

/// Something that happens at an instant of virtual time. Small, since the heap moves it about; the
/// substance lies in a slab of the part of the world that it concerns.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WorldEvent {
    /// An alarm goes off.
    Alarm(SlabKey),
    /// A frame reaches its node.
    Arrive(SlabKey),
    /// A frame enters the mesh.
    Enter(SlabKey),
    /// The mesh has something to do.
    Mesh,
    /// A call fails for its caller.
    Refuse(SlabKey, Undelivered),
    /// A disk has done an operation.
    Disk(SlabKey),
    /// A disk of the bus of a node goes on with what it does.
    Bus(u32, u32),
    /// A node's processor is free again.
    Free(u32),
    /// A node may have become idle.
    Idle(u32),
}

struct QueuedEvent {
    /// Time in nanoseconds above, sequence below: one comparison.
    order: u128,
    event: WorldEvent,
}

impl PartialEq for QueuedEvent {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}
impl Eq for QueuedEvent {}
impl PartialOrd for QueuedEvent {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for QueuedEvent {
    /// Reversed: the heap brings its greatest entry first.
    fn cmp(&self, other: &Self) -> Ordering {
        other.order.cmp(&self.order)
    }
}

/// The queue of events.
#[derive(Default)]
pub(crate) struct Events {
    heap: BinaryHeap<QueuedEvent>,
    sequence: u64,
}

impl Events {
    pub(crate) fn push(&mut self, time_ns: u64, event: WorldEvent) {
        self.sequence += 1;
        let order = u128::from(time_ns) << 64 | u128::from(self.sequence);
        self.heap.push(QueuedEvent { order, event });
    }

    /// When the next event is due.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.heap.peek().map(|entry| (entry.order >> 64) as u64)
    }

    pub(crate) fn pop(&mut self) -> Option<(u64, WorldEvent)> {
        self.heap.pop().map(|entry| ((entry.order >> 64) as u64, entry.event))
    }

    pub(crate) fn clear(&mut self) {
        self.heap.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_and_then_in_the_order_of_scheduling() {
        let mut events = Events::default();
        for (time, node) in [(7, 0), (3, 1), (7, 2), (3, 3), (1, 4)] {
            events.push(time, WorldEvent::Free(node));
        }
        assert_eq!(events.next_ns(), Some(1));
        let order: Vec<u32> = std::iter::from_fn(|| events.pop())
            .map(|(_, event)| match event {
                WorldEvent::Free(node) => node,
                _ => unreachable!(),
            })
            .collect();
        assert_eq!(order, [4, 1, 3, 0, 2]);
    }
}
