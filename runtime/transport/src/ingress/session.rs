//! The session of a client with this process: its open calls, and the outcomes that it may not have
//! received.
//!
//! A call has the same number in each copy, and its outcome is kept until the client says that it
//! has it, so a copy never does anything twice. Outcomes of requests that may be repeated are not
//! kept. (RFC 8881 section 2.10.6 has slots; numbers need none, and no order.)

use std::cell::{Cell, RefCell, RefMut};
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use runtime::wire::Encoder;

use super::budget::BudgetShare;
use super::deposit_table::DepositTable;
use crate::frame::{FrameHeader, frame_length, pack};
use crate::replies::{ReplyQueue, length_of};

/// Calls of one session that run or whose outcome is kept, at most.
pub(super) const CALLS_MAX: usize = 2048;
/// What a kept outcome takes besides its bytes, about.
const OUTCOME_BYTES: usize = 512;

/// What is known of a call.
enum CallState {
    Running,
    /// The reply, to be sent again, and what it counts in the budget.
    Done(Vec<Bytes>, Option<Rc<BudgetShare>>),
}

/// What a call that has come is.
pub(super) enum Arrival {
    /// Nothing is known of it: it is to be done.
    New,
    /// Another copy is being done, or the client has its outcome: nothing is to be done.
    Duplicate,
    /// Another copy was done: this is the reply, and what it counts in the budget.
    Done(Vec<Bytes>, Option<Rc<BudgetShare>>),
}

/// Why a link of a client has ended with an error.
#[derive(Debug, thiserror::Error)]
pub(super) enum LinkEnd {
    /// The connection is broken.
    #[error(transparent)]
    Broken(io::Error),
    /// The client has more calls open than it may.
    #[error("the client has {CALLS_MAX} calls open")]
    TooManyCalls,
    /// The token of the client is no longer valid.
    #[error("the token of the client is no longer valid")]
    NoLongerAdmitted,
    /// A later link of the same session has taken its place.
    #[error("a later link of the session has taken its place")]
    Replaced,
}

/// A client as this process knows it.
#[derive(Default)]
pub(super) struct SessionState {
    /// The number of its latest link.
    link: Cell<u64>,
    /// When its last link ended; none while it has one.
    left: Cell<Option<Duration>>,
    replies: RefCell<Option<Rc<ReplyQueue>>>,
    calls: RefCell<BTreeMap<u64, CallState>>,
    /// Calls that run.
    running: Cell<usize>,
    /// Bytes of the outcomes that are kept.
    kept_bytes: Cell<usize>,
    /// The client has the outcomes of all calls below this number.
    acknowledged: Cell<u64>,
    /// What it has left here. The client counts on it only for as long as its link lasts.
    deposits: RefCell<DepositTable>,
}

impl SessionState {
    /// A link has come; from now on earlier ones do not count. Refused if it is no later one.
    pub(super) fn take_over(&self, link: u64) -> Result<(), String> {
        if link <= self.link.get() {
            return Err("a later link of the same session is here already".to_owned());
        }
        self.link.set(link);
        self.left.set(None);
        if let Some(earlier) = self.replies.take() {
            earlier.close();
        }
        Ok(())
    }

    /// Replies go to this link from now on, if it is still the latest.
    pub(super) fn attach(&self, link: u64, replies: Rc<ReplyQueue>) {
        if self.is_latest(link) {
            self.replies.replace(Some(replies));
        }
    }

    /// Does this link count?
    pub(super) fn is_latest(&self, link: u64) -> bool {
        self.link.get() == link
    }

    /// A link has ended.
    pub(super) fn leave(&self, link: u64, now: Duration) {
        if self.is_latest(link) {
            self.replies.take();
            self.deposits.borrow_mut().clear();
            self.left.set(Some(now));
        }
    }

    /// Does a call of the client still run?
    pub(super) fn has_running(&self) -> bool {
        self.running.get() > 0
    }

    pub(super) fn absent_since(&self) -> Option<Duration> {
        self.left.get()
    }

    /// The client has the outcomes of all calls below `number`.
    pub(super) fn acknowledge(&self, number: u64) {
        if number > self.acknowledged.get() {
            self.acknowledged.set(number);
            let mut calls = self.calls.borrow_mut();
            let later = calls.split_off(&number);
            // One that still runs must not be done again, should an older copy come.
            let earlier = std::mem::replace(&mut *calls, later);
            for (number, call) in earlier {
                match call {
                    CallState::Running => drop(calls.insert(number, call)),
                    CallState::Done(reply, _) => {
                        let freed = length_of(&reply) + OUTCOME_BYTES;
                        self.kept_bytes.set(self.kept_bytes.get() - freed);
                    }
                }
            }
        }
    }

    /// A call has come.
    pub(super) fn arrive(&self, number: u64) -> Result<Arrival, LinkEnd> {
        let mut calls = self.calls.borrow_mut();
        match calls.get(&number) {
            Some(CallState::Running) => return Ok(Arrival::Duplicate),
            Some(CallState::Done(reply, share)) => {
                return Ok(Arrival::Done(reply.clone(), share.clone()));
            }
            None if number < self.acknowledged.get() => return Ok(Arrival::Duplicate),
            None => {}
        }
        if calls.len() >= CALLS_MAX {
            return Err(LinkEnd::TooManyCalls);
        }
        calls.insert(number, CallState::Running);
        self.running.set(self.running.get() + 1);
        Ok(Arrival::New)
    }

    /// Sends a frame that answers no call, unless there is no link or more than `bytes_max` bytes
    /// wait on it already.
    pub(super) fn deliver(
        &self,
        frame: impl FnOnce() -> (FrameHeader, Encoder),
        bytes_max: usize,
    ) -> bool {
        let replies = self.replies.borrow();
        let Some(replies) = replies.as_ref().filter(|replies| replies.bytes() <= bytes_max) else {
            return false;
        };
        let (header, body) = frame();
        replies.push_once(header, body, None);
        !replies.is_broken()
    }

    /// A call was done: its reply is sent by the link that there is, and kept if the call must not
    /// be repeated.
    pub(super) fn answer(
        &self,
        number: u64,
        (header, body): (FrameHeader, Encoder),
        keep: bool,
        share: Option<BudgetShare>,
    ) {
        let length = frame_length(&body);
        let share = share.map(|mut share| {
            share.set(length + OUTCOME_BYTES);
            Rc::new(share)
        });
        self.running.set(self.running.get() - 1);
        let mut calls = self.calls.borrow_mut();
        let replies = self.replies.borrow();
        if keep && number >= self.acknowledged.get() {
            let reply = pack(header, body);
            self.kept_bytes.set(self.kept_bytes.get() + length + OUTCOME_BYTES);
            calls.insert(number, CallState::Done(reply.clone(), share.clone()));
            drop(calls);
            if let Some(replies) = &*replies {
                replies.push_with(reply, share);
            }
            return;
        }
        calls.remove(&number);
        drop(calls);
        if let Some(replies) = &*replies {
            replies.push_once(header, body, share);
        }
    }

    /// What the client has left here.
    pub(super) fn deposits(&self) -> RefMut<'_, DepositTable> {
        self.deposits.borrow_mut()
    }

    /// Bytes of the outcomes that are kept.
    pub(super) fn kept_bytes(&self) -> usize {
        self.kept_bytes.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{FRAME_HEADER_SIZE, bulk_reply};

    fn reply(text: &'static str) -> (FrameHeader, Encoder) {
        bulk_reply(Bytes::from_static(text.as_bytes()))
    }

    #[test]
    fn a_copy_joins_the_first_or_gets_its_outcome_and_is_never_done_again() {
        let session = SessionState::default();
        assert!(matches!(session.arrive(5), Ok(Arrival::New)));
        assert!(matches!(session.arrive(5), Ok(Arrival::Duplicate)));
        session.answer(5, reply("done"), true, None);
        let Ok(Arrival::Done(again, _)) = session.arrive(5) else { panic!("it was answered") };
        assert_eq!(again.last().unwrap(), "done");
        session.acknowledge(6);
        assert!(session.calls.borrow().is_empty() && session.kept_bytes() == 0);
        assert!(matches!(session.arrive(5), Ok(Arrival::Duplicate)), "an old copy comes late");
        assert!(matches!(session.arrive(6), Ok(Arrival::New)));
    }

    #[test]
    fn a_call_that_may_be_repeated_is_not_kept_and_is_done_again() {
        let session = SessionState::default();
        assert!(matches!(session.arrive(1), Ok(Arrival::New)));
        session.answer(1, reply("read"), false, None);
        assert!(session.calls.borrow().is_empty());
        assert!(matches!(session.arrive(1), Ok(Arrival::New)));
    }

    #[test]
    fn what_runs_is_known_even_if_the_client_says_that_it_was_answered() {
        let session = SessionState::default();
        assert!(matches!(session.arrive(1), Ok(Arrival::New)));
        session.acknowledge(10);
        assert!(matches!(session.arrive(1), Ok(Arrival::Duplicate)));
        session.answer(1, reply("late"), true, None);
        assert!(session.calls.borrow().is_empty());
    }

    #[test]
    fn the_latest_link_counts_and_takes_the_replies() {
        let session = SessionState::default();
        session.take_over(1).unwrap();
        let first = Rc::new(ReplyQueue::default());
        session.attach(1, first.clone());
        assert!(matches!(session.arrive(1), Ok(Arrival::New)));
        session.take_over(3).unwrap();
        assert!(session.take_over(2).is_err() && session.take_over(3).is_err());
        let second = Rc::new(ReplyQueue::default());
        session.attach(3, second.clone());
        session.answer(1, reply("done"), true, None);
        assert_eq!((first.bytes(), second.bytes()), (0, FRAME_HEADER_SIZE + 4));
        session.leave(1, Duration::ZERO);
        assert!(session.is_latest(3) && session.absent_since().is_none());
        session.leave(3, Duration::from_secs(1));
        assert_eq!(session.absent_since(), Some(Duration::from_secs(1)));
    }

    #[test]
    fn calls_are_limited() {
        let session = SessionState::default();
        for number in 0..CALLS_MAX as u64 {
            assert!(matches!(session.arrive(number), Ok(Arrival::New)));
        }
        assert!(matches!(session.arrive(CALLS_MAX as u64), Err(LinkEnd::TooManyCalls)));
    }
}
