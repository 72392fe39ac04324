//! Bytes that connections hold, bounded for all peers together and for each of them.
//!
//! A reservation is given back when it is dropped. Past a bound the next one waits: a peer at its
//! own bound holds up no other, and at the bound of all the peer is next that has least, or else
//! had its last reservation before the others. A reservation larger than a bound is granted alone.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use futures::channel::oneshot;
use runtime::sync::Event;

/// The bound, and who waits for room below it.
#[derive(Debug)]
pub(crate) struct ByteQuota {
    bytes_max: usize,
    peer_bytes_max: usize,
    used: Cell<usize>,
    /// Reservations so far.
    granted: Cell<u64>,
    /// In the order in which they came.
    waiting: RefCell<VecDeque<QuotaWaiter>>,
    /// A reservation began to wait, of this quota or another with the same event.
    pressure: Rc<Event>,
}

#[derive(Debug)]
struct QuotaWaiter {
    share: Rc<QuotaShare>,
    bytes: usize,
    turn: oneshot::Sender<ByteReservation>,
}

/// The part of one peer.
#[derive(Debug)]
pub(crate) struct QuotaShare {
    quota: Rc<ByteQuota>,
    used: Cell<usize>,
    /// The number of the last reservation among all.
    last_granted: Cell<u64>,
}

/// Reserved bytes.
#[derive(Debug)]
pub(crate) struct ByteReservation {
    share: Rc<QuotaShare>,
    bytes: usize,
}

/// Is there room for `bytes` more below `most`?
fn fits(used: usize, bytes: usize, most: usize) -> bool {
    used == 0 || used.saturating_add(bytes) <= most
}

impl ByteQuota {
    /// At most `bytes_max` in all and `peer_bytes_max` of one peer; waiters raise `pressure`.
    pub(crate) fn new(bytes_max: usize, peer_bytes_max: usize, pressure: Rc<Event>) -> Rc<Self> {
        let (used, granted, waiting) = (Cell::default(), Cell::default(), RefCell::default());
        Rc::new(Self { bytes_max, peer_bytes_max, used, granted, waiting, pressure })
    }

    /// Does a reservation wait?
    pub(crate) fn has_waiters(&self) -> bool {
        self.waiting.borrow().iter().any(|waiter| !waiter.turn.is_canceled())
    }

    /// Does a reservation wait for bytes that the peer of `share` has?
    pub(crate) fn has_waiters_for(&self, share: &Rc<QuotaShare>) -> bool {
        share.used() > 0
            && self.waiting.borrow().iter().filter(|waiter| !waiter.turn.is_canceled()).any(
                |waiter| {
                    Rc::ptr_eq(&waiter.share, share)
                        || !fits(self.used.get(), waiter.bytes, self.bytes_max)
                },
            )
    }

    /// The next one that can be granted: the oldest of the peer whose turn it is.
    fn next(&self) -> Option<QuotaWaiter> {
        let mut waiting = self.waiting.borrow_mut();
        waiting.retain(|waiter| !waiter.turn.is_canceled());
        let may_have =
            |waiter: &QuotaWaiter| fits(waiter.share.used.get(), waiter.bytes, self.peer_bytes_max);
        let ready = waiting.iter().enumerate().filter(|(_, waiter)| may_have(waiter));
        let (at, next) = ready.min_by_key(|(_, waiter)| waiter.share.turn())?;
        // None overtakes it, or else small reservations would hold up large ones for ever.
        if fits(self.used.get(), next.bytes, self.bytes_max) { waiting.remove(at) } else { None }
    }

    fn grant(&self) {
        while let Some(QuotaWaiter { share, bytes, turn }) = self.next() {
            // If the waiter is gone, the bytes are given back.
            drop(turn.send(share.add(bytes)));
        }
    }
}

impl QuotaShare {
    /// A share of `quota`.
    pub(crate) fn new(quota: Rc<ByteQuota>) -> Rc<Self> {
        Rc::new(Self { quota, used: Cell::default(), last_granted: Cell::default() })
    }

    /// The quota.
    pub(crate) fn quota(&self) -> &ByteQuota {
        &self.quota
    }

    /// Reserved bytes of the peer.
    pub(crate) fn used(&self) -> usize {
        self.used.get()
    }

    /// The peer that has the least of these is next.
    fn turn(&self) -> (usize, u64) {
        (self.used.get(), self.last_granted.get())
    }

    /// Reserves `bytes`, also past the bounds.
    pub(crate) fn take(self: &Rc<Self>, bytes: usize) -> ByteReservation {
        let reservation = self.add(bytes);
        // It may be the turn of another peer now.
        self.quota.grant();
        reservation
    }

    fn add(self: &Rc<Self>, bytes: usize) -> ByteReservation {
        self.used.set(self.used.get() + bytes);
        self.quota.used.set(self.quota.used.get() + bytes);
        self.quota.granted.set(self.quota.granted.get() + 1);
        self.last_granted.set(self.quota.granted.get());
        ByteReservation { share: self.clone(), bytes }
    }

    /// Reserves `bytes` as soon as the bounds permit; `None` never comes while the quota is in use.
    pub(crate) async fn reserve(self: &Rc<Self>, bytes: usize) -> Option<ByteReservation> {
        let quota = &self.quota;
        let has_room = fits(quota.used.get(), bytes, quota.bytes_max)
            && fits(self.used.get(), bytes, quota.peer_bytes_max);
        if has_room && quota.waiting.borrow().is_empty() {
            return Some(self.take(bytes));
        }
        let (turn, my_turn) = oneshot::channel();
        let mut waiting = WaitingReservation { quota, turn: my_turn };
        quota.waiting.borrow_mut().push_back(QuotaWaiter { share: self.clone(), bytes, turn });
        quota.grant();
        quota.pressure.tell();
        (&mut waiting.turn).await.ok()
    }
}

/// Gives its place to those behind it when it is dropped.
struct WaitingReservation<'a> {
    quota: &'a ByteQuota,
    turn: oneshot::Receiver<ByteReservation>,
}

impl Drop for WaitingReservation<'_> {
    fn drop(&mut self) {
        self.turn.close();
        self.quota.grant();
    }
}

impl ByteReservation {
    /// The reserved bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for ByteReservation {
    fn drop(&mut self) {
        let Self { share, bytes } = self;
        share.used.set(share.used.get() - *bytes);
        share.quota.used.set(share.quota.used.get() - *bytes);
        share.quota.grant();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn shares<const PEERS: usize>(
        bytes_max: usize,
        peer_bytes_max: usize,
    ) -> [Rc<QuotaShare>; PEERS] {
        let quota = ByteQuota::new(bytes_max, peer_bytes_max, Rc::default());
        std::array::from_fn(|_| QuotaShare::new(quota.clone()))
    }

    #[test]
    fn a_peer_at_its_bound_waits_and_holds_up_no_other() {
        let [greedy, modest] = shares(100, 40);
        let held = greedy.reserve(40).now_or_never().unwrap();
        let mut waiting = Box::pin(greedy.reserve(1));
        assert!(waiting.as_mut().now_or_never().is_none());
        let other = modest.reserve(40).now_or_never().expect("another peer does not wait");
        assert!(greedy.quota.has_waiters_for(&greedy) && !greedy.quota.has_waiters_for(&modest));
        drop(held);
        let granted = waiting.as_mut().now_or_never().expect("there is room again").unwrap();
        assert_eq!((granted.bytes(), greedy.used(), greedy.quota.used.get()), (1, 1, 41));
        drop((other, granted));
        assert_eq!((greedy.used(), greedy.quota.used.get()), (0, 0));
    }

    #[test]
    fn at_the_bound_of_all_reservations_are_granted_in_turn() {
        let [first, second, third] = shares(100, 100);
        let held = first.reserve(90).now_or_never().unwrap();
        let mut large = Box::pin(second.reserve(50));
        assert!(large.as_mut().now_or_never().is_none());
        let mut small = Box::pin(third.reserve(5));
        assert!(small.as_mut().now_or_never().is_none(), "it does not overtake");
        assert!(first.quota.has_waiters_for(&first), "any may give way");
        drop(held);
        assert!(large.as_mut().now_or_never().is_some());
        assert!(small.as_mut().now_or_never().is_some());
    }

    #[test]
    fn peers_that_have_nothing_take_turns() {
        let [first, second, newcomer] = shares(10, 10);
        let held = first.reserve(10).now_or_never().unwrap();
        let mut waiting: Vec<_> = [&first, &second, &first, &newcomer]
            .map(|share| Box::pin(share.reserve(10)))
            .into_iter()
            .collect();
        assert!(waiting.iter_mut().all(|turn| turn.as_mut().now_or_never().is_none()));
        drop(held);
        // Each is given back as soon as it is granted.
        for expected in [1, 2, 0, 0] {
            let mut turns = waiting.iter_mut().map(|turn| turn.as_mut().now_or_never());
            let at = turns.position(|granted| granted.flatten().is_some()).unwrap();
            assert_eq!(at, expected);
            drop(waiting.remove(at));
        }
    }

    #[test]
    fn the_peer_that_has_least_is_next() {
        let [greedy, modest] = shares(100, 90);
        let first = greedy.reserve(50).now_or_never().unwrap();
        let second = greedy.reserve(30).now_or_never().unwrap();
        let mut third = Box::pin(greedy.reserve(30));
        assert!(third.as_mut().now_or_never().is_none());
        let mut modest = Box::pin(modest.reserve(30));
        assert!(modest.as_mut().now_or_never().is_none());
        drop(second);
        assert!(third.as_mut().now_or_never().is_none());
        assert!(modest.as_mut().now_or_never().is_some());
        drop(first);
        assert!(third.as_mut().now_or_never().is_some());
    }

    #[test]
    fn a_waiter_that_goes_lets_those_behind_it_in() {
        let [first, second, third] = shares(100, 100);
        let _held = first.reserve(90).now_or_never().unwrap();
        let mut large = Box::pin(second.reserve(50));
        assert!(large.as_mut().now_or_never().is_none());
        let mut small = Box::pin(third.reserve(5));
        assert!(small.as_mut().now_or_never().is_none());
        drop(large);
        assert!(small.as_mut().now_or_never().is_some());
    }

    #[test]
    fn a_waiter_that_is_gone_takes_nothing() {
        let [first, second] = shares(100, 100);
        let held = first.reserve(100).now_or_never().unwrap();
        let mut waiting = Box::pin(second.reserve(100));
        assert!(waiting.as_mut().now_or_never().is_none());
        drop(waiting);
        assert!(!first.quota.has_waiters());
        let mut granted = Box::pin(second.reserve(100));
        assert!(granted.as_mut().now_or_never().is_none());
        drop(held);
        // It is granted, and given up before it knows.
        drop(granted);
        assert_eq!(first.quota.used.get(), 0);
    }

    #[test]
    fn more_than_a_bound_is_granted_alone() {
        let [only] = shares(100, 40);
        let held = only.reserve(500).now_or_never().expect("nothing else is reserved");
        assert!(only.reserve(1).now_or_never().is_none());
        drop(held);
        assert!(only.reserve(1).now_or_never().is_some());
    }
}
