//! Ring buffers: the receiver's slots with their tails, and what the sender knows of them.
//!
//! A block lands in a slot and stays as long as one of its readers needs it: the medium, the relay
//! to the next node, the XOR with its partner. Each reader has a tail in the slot. The tail of the
//! ring is the oldest slot that a reader still needs. The sender may not overtake it.

/// Readers of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotTail {
    /// The medium has not taken the block.
    Medium,
    /// The block, or the result in its place, has not been sent on.
    Relay,
    /// The XOR with the partner of the block has not been made.
    Xor,
}

#[derive(Clone, Debug, Default)]
struct RingSlot {
    /// Which block this is, counted from the start of the ring.
    serial: u64,
    tails: Vec<SlotTail>,
    words: Vec<u64>,
}

/// The receiver's half.
#[derive(Clone, Debug)]
pub(super) struct ReceiveRing {
    slots: Vec<RingSlot>,
    /// The block that is expected next.
    head: u64,
    /// The oldest block that is needed.
    tail: u64,
}

impl ReceiveRing {
    pub(super) fn new(slots: usize) -> Self {
        Self { slots: vec![RingSlot::default(); slots], head: 0, tail: 0 }
    }

    fn slot(&mut self, serial: u64) -> &mut RingSlot {
        let place = (serial % self.slots.len() as u64) as usize;
        &mut self.slots[place]
    }

    /// A block has come by a one-sided write, to the slot that its sender chose. False if that slot
    /// was needed: the sender has overtaken a tail.
    pub(super) fn land(&mut self, serial: u64, words: &[u64]) -> bool {
        let was_free =
            self.slot(serial).tails.is_empty() && serial < self.tail + self.slots.len() as u64;
        self.head = serial + 1;
        let slot = self.slot(serial);
        slot.serial = serial;
        slot.tails.clear();
        slot.words.clear();
        slot.words.extend_from_slice(words);
        was_free
    }

    /// The slot of a block gets tails. It is free at once if it gets none.
    pub(super) fn hold(&mut self, serial: u64, tails: &[SlotTail]) {
        self.slot(serial).tails.extend_from_slice(tails);
        self.advance();
    }

    /// A reader has passed. Answers with the tail of the ring if that moved.
    pub(super) fn pass(&mut self, serial: u64, tail: SlotTail) -> Option<u64> {
        let slot = self.slot(serial);
        if let Some(at) = slot.tails.iter().position(|held| *held == tail) {
            slot.tails.swap_remove(at);
        }
        let before = self.tail;
        self.advance();
        (self.tail != before).then_some(self.tail)
    }

    fn advance(&mut self) {
        while self.tail < self.head && self.slot(self.tail).tails.is_empty() {
            self.tail += 1;
        }
    }

    pub(super) fn tail(&self) -> u64 {
        self.tail
    }

    /// Readers that a block still waits for, if it is still in its slot.
    pub(super) fn readers(&mut self, serial: u64) -> usize {
        self.slot(serial).tails.len()
    }

    /// The words of a block; the flag is false if another one is in its place.
    pub(super) fn words(&mut self, serial: u64) -> (&mut Vec<u64>, bool) {
        let slot = self.slot(serial);
        let is_there = slot.serial == serial;
        (&mut slot.words, is_there)
    }
}

/// The sender's half.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendCredit {
    slots: u64,
    /// The current pointer.
    sent: u64,
    /// The last that the receiver told of its tail.
    tail: u64,
}

impl SendCredit {
    pub(super) fn new(slots: usize) -> Self {
        Self { slots: slots as u64, sent: 0, tail: 0 }
    }

    pub(super) fn is_open(&self) -> bool {
        self.sent < self.tail + self.slots
    }

    /// Takes the next slot.
    pub(super) fn take(&mut self) -> u64 {
        self.sent += 1;
        self.sent - 1
    }

    pub(super) fn learn(&mut self, tail: u64) {
        self.tail = self.tail.max(tail);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_free_when_all_tails_have_passed_it() {
        let mut ring = ReceiveRing::new(2);
        for serial in 0..2 {
            assert!(ring.land(serial, &[serial]));
            ring.hold(serial, &[SlotTail::Medium, SlotTail::Xor]);
        }
        // The second block is free first, but the ring is as far as its oldest one.
        assert_eq!(ring.pass(1, SlotTail::Medium), None);
        assert_eq!(ring.pass(1, SlotTail::Xor), None);
        assert_eq!(ring.pass(0, SlotTail::Xor), None);
        assert_eq!(ring.readers(0), 1);
        assert_eq!(ring.pass(0, SlotTail::Medium), Some(2));
        assert!(ring.land(2, &[2]) && ring.land(3, &[3]));
    }

    #[test]
    fn a_live_slot_that_is_overwritten_is_seen() {
        let mut ring = ReceiveRing::new(2);
        assert!(ring.land(0, &[0]));
        ring.hold(0, &[SlotTail::Relay]);
        assert!(!ring.land(2, &[2]));
        assert!(!ring.words(0).1);
    }

    #[test]
    fn a_sender_stops_at_the_tail_of_its_receiver() {
        let mut credit = SendCredit::new(2);
        assert_eq!((credit.take(), credit.take()), (0, 1));
        assert!(!credit.is_open());
        credit.learn(1);
        assert!(credit.is_open());
        assert_eq!(credit.take(), 2);
        credit.learn(0);
        assert!(!credit.is_open());
    }
}
