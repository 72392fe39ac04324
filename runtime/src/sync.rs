//! Waiting within one node: limits, locks by key, events. All first come, first served, none of
//! them for threads; and [`lock`], which is.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// Locks what threads share, also if one of them has panicked with it: what it holds is whole at
/// each moment.
pub fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Limits how many run and how many wait.
#[derive(Debug)]
pub struct Limit {
    free: Cell<usize>,
    waiting_max: usize,
    waiting: RefCell<VecDeque<oneshot::Sender<()>>>,
}

impl Limit {
    /// `running_max` permits; `waiting_max` may wait for one.
    pub fn new(running_max: usize, waiting_max: usize) -> Self {
        Self { free: Cell::new(running_max), waiting_max, waiting: RefCell::default() }
    }

    /// A permit is free; then there are no waiters.
    pub fn has_room(&self) -> bool {
        self.free.get() > 0
    }

    /// A permit, at once or in turn; `None` if too many wait already.
    pub async fn acquire(&self) -> Option<Permit<'_>> {
        if self.free.get() > 0 {
            self.free.set(self.free.get() - 1);
            return Some(Permit(self));
        }
        if self.waiting.borrow().len() >= self.waiting_max {
            return None;
        }
        let (turn, my_turn) = oneshot::channel();
        self.waiting.borrow_mut().push_back(turn);
        let mut waiter = Waiter { limit: self, my_turn: Some(my_turn) };
        if let Some(my_turn) = waiter.my_turn.as_mut() {
            my_turn.await.ok()?;
        }
        waiter.my_turn = None;
        Some(Permit(self))
    }

    /// Gives back a permit that was [forgotten](std::mem::forget) to outlive its borrow.
    pub fn put_back(&self) {
        self.release();
    }

    fn release(&self) {
        // The permit goes straight to the next in line, so none overtakes.
        loop {
            let Some(turn) = self.waiting.borrow_mut().pop_front() else {
                return self.free.set(self.free.get() + 1);
            };
            // A waiter that has gone away does not count.
            if turn.send(()).is_ok() {
                return;
            }
        }
    }
}

/// Passes a permit on that was granted to a waiter which no longer exists.
struct Waiter<'a> {
    limit: &'a Limit,
    my_turn: Option<oneshot::Receiver<()>>,
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        if let Some(mut my_turn) = self.my_turn.take() {
            my_turn.close();
            if my_turn.try_recv().is_ok() {
                self.limit.release();
            }
        }
    }
}

/// The right to run, given back when dropped.
#[derive(Debug)]
pub struct Permit<'a>(&'a Limit);

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.0.release();
    }
}

/// Locks by key, shared or exclusive: who comes first is served first, so writers do not starve.
#[derive(Debug)]
pub struct KeyedLock<K: Ord + Clone> {
    keys: Rc<RefCell<BTreeMap<K, LockState>>>,
}

impl<K: Ord + Clone> Default for KeyedLock<K> {
    fn default() -> Self {
        Self { keys: Rc::default() }
    }
}

impl<K: Ord + Clone> Clone for KeyedLock<K> {
    fn clone(&self) -> Self {
        Self { keys: self.keys.clone() }
    }
}

#[derive(Debug, Default)]
struct LockState {
    shared: usize,
    exclusive: bool,
    waiting: VecDeque<(bool, oneshot::Sender<()>)>,
}

impl LockState {
    fn admits(&self, exclusive: bool) -> bool {
        if exclusive { self.shared == 0 && !self.exclusive } else { !self.exclusive }
    }

    fn enter(&mut self, exclusive: bool) {
        if exclusive {
            self.exclusive = true;
        } else {
            self.shared += 1;
        }
    }

    fn leave(&mut self, exclusive: bool) {
        if exclusive {
            self.exclusive = false;
        } else {
            self.shared -= 1;
        }
    }

    fn wake(&mut self) {
        while let Some((exclusive, _)) = self.waiting.front() {
            let exclusive = *exclusive;
            if !self.admits(exclusive) {
                return;
            }
            let Some((_, turn)) = self.waiting.pop_front() else { return };
            if turn.send(()).is_ok() {
                self.enter(exclusive);
            }
        }
    }
}

impl<K: Ord + Clone> KeyedLock<K> {
    /// Waits until `key` is not locked exclusively.
    pub async fn shared(&self, key: K) -> KeyGuard<K> {
        self.lock(key, false).await
    }

    /// Waits until `key` is not locked.
    pub async fn exclusive(&self, key: K) -> KeyGuard<K> {
        self.lock(key, true).await
    }

    /// `key` is not locked exclusively and has no waiters: what is done without an await may be
    /// done now as if [`shared`](Self::shared) were held.
    pub fn is_open(&self, key: &K) -> bool {
        let keys = self.keys.borrow();
        keys.get(key).is_none_or(|state| state.waiting.is_empty() && state.admits(false))
    }

    async fn lock(&self, key: K, exclusive: bool) -> KeyGuard<K> {
        let my_turn = {
            let mut keys = self.keys.borrow_mut();
            let state = keys.entry(key.clone()).or_default();
            if state.waiting.is_empty() && state.admits(exclusive) {
                state.enter(exclusive);
                None
            } else {
                let (turn, my_turn) = oneshot::channel();
                state.waiting.push_back((exclusive, turn));
                Some(my_turn)
            }
        };
        let mut guard = KeyGuard { keys: self.keys.clone(), key, exclusive, my_turn };
        if let Some(my_turn) = guard.my_turn.as_mut() {
            my_turn.await.expect("a lock is never destroyed while there are waiters");
        }
        guard.my_turn = None;
        guard
    }
}

/// The hold on a key, given back when dropped.
#[derive(Debug)]
pub struct KeyGuard<K: Ord + Clone> {
    keys: Rc<RefCell<BTreeMap<K, LockState>>>,
    key: K,
    exclusive: bool,
    /// Still waiting; a guard dropped in this state may have been granted the lock meanwhile.
    my_turn: Option<oneshot::Receiver<()>>,
}

impl<K: Ord + Clone> Drop for KeyGuard<K> {
    fn drop(&mut self) {
        let held = match self.my_turn.take() {
            None => true,
            Some(mut my_turn) => {
                my_turn.close();
                my_turn.try_recv().is_ok()
            }
        };
        let mut keys = self.keys.borrow_mut();
        let Some(state) = keys.get_mut(&self.key) else { return };
        if held {
            state.leave(self.exclusive);
        }
        state.wake();
        if state.shared == 0 && !state.exclusive && state.waiting.is_empty() {
            keys.remove(&self.key);
        }
    }
}

/// Something that happens now and then; those who wait learn of the next time.
#[derive(Debug, Default)]
pub struct Event {
    waiting: RefCell<Vec<oneshot::Sender<()>>>,
}

impl Event {
    /// Tells everybody who waits.
    pub fn tell(&self) {
        for turn in self.waiting.take() {
            let _ = turn.send(());
        }
    }

    /// Resolves at the next [`tell`](Self::tell) after this call (not after the first poll).
    pub fn next(&self) -> impl Future<Output = ()> + 'static {
        let (turn, told) = oneshot::channel();
        self.waiting.borrow_mut().push(turn);
        async move {
            let _ = told.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use futures::executor::block_on;

    use super::*;

    #[test]
    fn a_full_queue_refuses_and_a_dropped_waiter_passes_its_turn_on() {
        block_on(async {
            let limit = Limit::new(1, 2);
            let permit = limit.acquire().await.unwrap();
            let mut first = Box::pin(limit.acquire());
            let mut second = Box::pin(limit.acquire());
            assert!(first.as_mut().now_or_never().is_none());
            assert!(second.as_mut().now_or_never().is_none());
            assert!(limit.acquire().await.is_none());
            drop(permit);
            drop(first);
            assert!(second.now_or_never().flatten().is_some());
        });
    }

    #[test]
    fn an_exclusive_lock_waits_for_the_shared_ones_and_holds_back_later_ones() {
        block_on(async {
            let locks = KeyedLock::default();
            let reader = locks.shared(1).await;
            let mut writer = Box::pin(locks.exclusive(1));
            assert!(writer.as_mut().now_or_never().is_none());
            let mut late = Box::pin(locks.shared(1));
            assert!(late.as_mut().now_or_never().is_none());
            drop(locks.exclusive(2).await);
            drop(reader);
            let held = writer.await;
            assert!(late.as_mut().now_or_never().is_none());
            drop(held);
            drop(late.await);
            assert!(locks.keys.borrow().is_empty());
        });
    }

    #[test]
    fn a_key_is_open_unless_it_is_locked_exclusively_or_waited_for() {
        block_on(async {
            let locks = KeyedLock::default();
            assert!(locks.is_open(&1));
            let reader = locks.shared(1).await;
            assert!(locks.is_open(&1));
            let mut writer = Box::pin(locks.exclusive(1));
            assert!(writer.as_mut().now_or_never().is_none());
            assert!(!locks.is_open(&1), "who looks now would overtake the writer");
            drop(reader);
            let held = writer.await;
            assert!(!locks.is_open(&1) && locks.is_open(&2));
            drop(held);
            assert!(locks.is_open(&1));
        });
    }

    #[test]
    fn a_waiter_that_gives_up_does_not_block_the_lock() {
        block_on(async {
            let locks = KeyedLock::default();
            let held = locks.exclusive(1).await;
            let mut waiting = Box::pin(locks.exclusive(1));
            assert!(waiting.as_mut().now_or_never().is_none());
            drop(waiting);
            drop(held);
            drop(locks.exclusive(1).await);
            assert!(locks.keys.borrow().is_empty());
        });
    }
}
