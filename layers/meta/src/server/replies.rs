//! Replies to calls that changed something (ADR 9). A reply is stored by the very
//! record that does what was asked, so that a call which comes again is answered and not done
//! twice, also after a crash.
//!
//! The table is a ring of slots. A new reply takes the slot of the oldest one if that is old
//! enough, or if there are too many: so nothing is ever deleted, and all of them are known in
//! memory.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::time::Duration;

use runtime::Context;
use runtime::wire::to_bytes;

use super::record_log::decode;
use crate::keys;
use crate::operations::{REPLIES_MAX, REPLY_AGE_MAX};
use crate::protocol::{CallId, CallOutcome, StoredReply};
use crate::store::{Batch, Position, Store, StoreError};

/// Bytes of one reply in memory, with its slots in both tables.
pub(super) const REPLY_BYTES: usize =
    size_of::<ReplySlot>() + (size_of::<CallId>() + size_of::<ReplyEntry>()) * 3 / 2;

/// One reply that is kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReplyEntry {
    sequence: u64,
    pub(super) outcome: CallOutcome,
    /// The record that has it.
    pub(super) position: Position,
    /// The intent of that record, if the call touches other nodes and was decided in this life.
    pub(super) intent: Option<u64>,
}

/// A slot and what is in it.
#[derive(Clone, Copy, Debug)]
struct ReplySlot {
    number: u64,
    call: CallId,
    sequence: u64,
    since: Duration,
}

/// All replies of a node.
#[derive(Debug, Default)]
pub(super) struct ReplyTable {
    kept: RefCell<BTreeMap<CallId, ReplyEntry>>,
    /// All slots, that with the oldest reply first.
    slots: RefCell<VecDeque<ReplySlot>>,
    /// The number of the next reply.
    sequence: Cell<u64>,
}

impl ReplyTable {
    /// Puts the reply of a call into the batch that does what was asked.
    pub(super) fn put(
        &self,
        (call, outcome): (CallId, CallOutcome),
        now: Duration,
        batch: &mut Batch,
    ) {
        let reply = StoredReply { sequence: self.sequence.get(), call, outcome };
        batch.put(keys::reply(self.next_slot(now)), to_bytes(&reply));
    }

    /// Puts replies of several calls into the batch that does what was asked.
    pub(super) fn put_all(
        &self,
        replies: &[(CallId, CallOutcome)],
        now: Duration,
        batch: &mut Batch,
    ) {
        for (later, &(call, outcome)) in replies.iter().enumerate() {
            let reply = StoredReply { sequence: self.sequence.get() + later as u64, call, outcome };
            batch.put(keys::reply(self.slot_after(later, now)), to_bytes(&reply));
        }
    }

    /// That batch was committed just now.
    pub(super) fn stored(
        &self,
        (call, outcome): (CallId, CallOutcome),
        now: Duration,
        position: Position,
        intent: Option<u64>,
    ) {
        let (number, sequence) = (self.next_slot(now), self.sequence.get());
        let is_reused = number < self.slots.borrow().len() as u64;
        let reused = is_reused.then(|| self.slots.borrow_mut().pop_front()).flatten();
        if let Some(oldest) = reused {
            let mut kept = self.kept.borrow_mut();
            // Unless the same call was done anew when its reply had been too old.
            if kept.get(&oldest.call).is_some_and(|kept| kept.sequence == oldest.sequence) {
                kept.remove(&oldest.call);
            }
        }
        self.sequence.set(sequence + 1);
        self.slots.borrow_mut().push_back(ReplySlot { number, call, sequence, since: now });
        self.kept.borrow_mut().insert(call, ReplyEntry { sequence, outcome, position, intent });
    }

    /// Slots are taken in order, so those in use are the first ones.
    fn next_slot(&self, now: Duration) -> u64 {
        self.slot_after(0, now)
    }

    /// The slot that a reply takes after `later` others that come now.
    fn slot_after(&self, later: usize, now: Duration) -> u64 {
        let slots = self.slots.borrow();
        let (mut reused, mut added) = (0, 0);
        for _ in 0..later {
            match Self::reusable(&slots, reused, added, now) {
                Some(_) => reused += 1,
                None => added += 1,
            }
        }
        let oldest = Self::reusable(&slots, reused, added, now);
        oldest.map_or((slots.len() + added) as u64, |oldest| oldest.number)
    }

    /// The oldest slot, if it may be used again after `reused` others were and as many as `added`
    /// are new.
    fn reusable(
        slots: &VecDeque<ReplySlot>,
        reused: usize,
        added: usize,
        now: Duration,
    ) -> Option<&ReplySlot> {
        let is_full = slots.len() + added >= REPLIES_MAX;
        slots.get(reused).filter(|oldest| is_full || is_too_old(oldest.since, now))
    }

    /// Bytes that they take in memory.
    pub(super) fn memory_bytes(&self) -> usize {
        self.slots.borrow().len() * REPLY_BYTES
    }

    /// The reply to a call, if it is still kept.
    pub(super) fn find(&self, call: CallId, now: Duration) -> Option<ReplyEntry> {
        let kept = self.kept.borrow().get(&call).copied()?;
        let slots = self.slots.borrow();
        let index = slots.binary_search_by_key(&kept.sequence, |slot| slot.sequence).ok()?;
        (!is_too_old(slots[index].since, now)).then_some(kept)
    }

    /// Reads all replies. At a mount.
    pub(super) async fn load(&self, store: &Store, context: &Context) -> Result<(), StoreError> {
        let bad = || StoreError::Damaged { what: "a stored reply", block: 0 };
        let (from, end) = keys::all(keys::KeyTable::Reply);
        let found = store.scan(Bound::Included(&from), &end, usize::MAX).await?;
        let mut slots = Vec::with_capacity(found.len());
        for (number, (key, value)) in (0..).zip(found) {
            let reply: StoredReply = decode(&value).map_err(|_| bad())?;
            if keys::reply_slot(&key) != Some(number) {
                return Err(bad());
            }
            slots.push((number, reply));
        }
        slots.sort_unstable_by_key(|(_, reply)| reply.sequence);
        let since = context.now();
        for (number, StoredReply { sequence, call, outcome }) in slots {
            let kept =
                ReplyEntry { sequence, outcome, position: Position::default(), intent: None };
            self.kept.borrow_mut().insert(call, kept);
            self.slots.borrow_mut().push_back(ReplySlot { number, call, sequence, since });
            self.sequence.set(sequence.checked_add(1).ok_or_else(bad)?);
        }
        Ok(())
    }
}

fn is_too_old(since: Duration, now: Duration) -> bool {
    now.saturating_sub(since) >= REPLY_AGE_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(number: u64) -> CallId {
        CallId { client: 1, number }
    }

    fn store(replies: &ReplyTable, number: u64, now: Duration) -> Vec<u8> {
        let (mut batch, reply) = (Batch::new(), (call(number), CallOutcome::Done {}));
        let slot = replies.next_slot(now);
        replies.put(reply, now, &mut batch);
        replies.stored(reply, now, Position::default(), None);
        keys::reply(slot)
    }

    #[test]
    fn a_reply_adds_few_bytes_to_the_record() {
        let bytes = |outcome| {
            let mut batch = Batch::new();
            ReplyTable::default().put((call(1), outcome), Duration::ZERO, &mut batch);
            batch.length_bytes()
        };
        assert_eq!(bytes(CallOutcome::Done {}), 39);
        assert_eq!(bytes(CallOutcome::Made { ino: 1, generation: 2 }), 55);
    }

    #[test]
    fn the_oldest_reply_gives_way_when_there_are_too_many() {
        let (replies, now) = (ReplyTable::default(), Duration::ZERO);
        for number in 0..REPLIES_MAX as u64 {
            assert_eq!(store(&replies, number, now), keys::reply(number));
        }
        assert!(replies.find(call(0), now).is_some());
        assert_eq!(store(&replies, 9999, now), keys::reply(0));
        assert!(replies.find(call(0), now).is_none() && replies.find(call(1), now).is_some());
        assert_eq!(replies.kept.borrow().len(), REPLIES_MAX);
    }

    #[test]
    fn an_old_reply_is_not_given_and_its_slot_is_used_again() {
        let replies = ReplyTable::default();
        let second = Duration::from_secs(1);
        store(&replies, 1, Duration::ZERO);
        store(&replies, 2, second);
        let late = REPLY_AGE_MAX;
        assert!(replies.find(call(1), late).is_none() && replies.find(call(2), late).is_some());
        assert_eq!(store(&replies, 3, late), keys::reply(0));
        assert_eq!(store(&replies, 4, late), keys::reply(2));
        // Done anew: when its older reply leaves, the newer one stays.
        let later = late + second;
        assert!(replies.find(call(2), later).is_none());
        store(&replies, 2, later);
        assert_eq!(replies.slots.borrow().len(), 3);
        store(&replies, 5, later + REPLY_AGE_MAX);
        assert!(replies.find(call(2), later + second).is_some());
    }
}
