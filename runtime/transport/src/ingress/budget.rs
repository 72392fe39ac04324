//! Memory that all clients of a process take together: requests that run, replies on their way, and
//! outcomes that are kept.

use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// Bytes of all clients of a process, at most; past it the server stops reading from those that
/// have most.
pub(super) const CLIENT_BYTES_MAX: usize = 1 << 30;
/// The part of this that clients may have besides for bytes that they leave before they ask for
/// them to be written. It is apart from the rest: a request never waits because of bytes that wait
/// for another request.
const DEPOSITS_PART: usize = 4;

/// A user or host; none for those who may act as anyone.
pub(super) type Account = Option<u64>;

/// What the clients of one process may take.
///
/// Each account may have as much as is free then for the others: one alone gets half of all, two
/// get a third each. So what one takes never leaves another without. Within an account requests get
/// their memory in the order in which they came: small ones do not keep a large one out.
#[derive(Debug)]
pub struct ClientBudget {
    bytes_max: usize,
    used: Mutex<UsedBytes>,
    /// For deposits; none in that itself.
    deposits: Option<Arc<Self>>,
}

#[derive(Debug, Default)]
struct UsedBytes {
    all: usize,
    by_account: BTreeMap<Account, usize>,
    /// Requests that wait, by account, in the order in which they came.
    waiting: BTreeMap<Account, VecDeque<WaitingRequest>>,
    last_ticket: u64,
}

/// A request that waits for memory.
#[derive(Debug)]
struct WaitingRequest {
    ticket: u64,
    bytes: usize,
    waker: Option<Waker>,
}

impl Default for ClientBudget {
    fn default() -> Self {
        Self::with_deposits(CLIENT_BYTES_MAX)
    }
}

impl UsedBytes {
    /// May an account have so much more?
    fn fits(&self, bytes_max: usize, account: Account, bytes: usize) -> bool {
        let own = self.by_account.get(&account).copied().unwrap_or(0);
        let free = bytes_max.saturating_sub(self.all);
        // What is larger than all is let in alone.
        self.all == 0 || (bytes <= free && (own == 0 || own + bytes <= free))
    }

    /// Those who are next, and may have what they wait for now.
    fn next_wakers(&mut self, bytes_max: usize) -> Vec<Waker> {
        let mut next = Vec::new();
        let heads: Vec<(Account, usize)> = self
            .waiting
            .iter()
            .filter_map(|(account, waiting)| Some((*account, waiting.front()?.bytes)))
            .filter(|(account, bytes)| self.fits(bytes_max, *account, *bytes))
            .collect();
        for (account, _) in heads {
            let head = self.waiting.get_mut(&account).and_then(VecDeque::front_mut);
            next.extend(head.and_then(|head| head.waker.take()));
        }
        next
    }

    fn leave_queue(&mut self, account: Account, ticket: u64) {
        let Some(waiting) = self.waiting.get_mut(&account) else { return };
        waiting.retain(|request| request.ticket != ticket);
        if waiting.is_empty() {
            self.waiting.remove(&account);
        }
    }

    fn add(&mut self, account: Account, bytes: usize) {
        self.all += bytes;
        *self.by_account.entry(account).or_default() += bytes;
    }

    fn remove(&mut self, account: Account, bytes: usize) {
        self.all -= bytes;
        if let Some(own) = self.by_account.get_mut(&account) {
            *own -= bytes;
            if *own == 0 {
                self.by_account.remove(&account);
            }
        }
    }
}

impl ClientBudget {
    /// A budget of this size.
    pub fn of(bytes_max: usize) -> Arc<Self> {
        Arc::new(Self::with_deposits(bytes_max))
    }

    fn with_deposits(bytes_max: usize) -> Self {
        let part = bytes_max / DEPOSITS_PART;
        let deposits = Self { bytes_max: part, used: Mutex::default(), deposits: None };
        Self { bytes_max, used: Mutex::default(), deposits: Some(Arc::new(deposits)) }
    }

    /// The same as [`take`](Self::take) for bytes that are left here, which have a budget of their
    /// own.
    pub(super) fn take_for_deposit(&self, account: Account, bytes: usize) -> Option<BudgetShare> {
        self.deposits.as_ref()?.take(account, bytes)
    }

    fn used(&self) -> MutexGuard<'_, UsedBytes> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes bytes for an account, if it may have them and no request of it waits.
    pub(super) fn take(self: &Arc<Self>, account: Account, bytes: usize) -> Option<BudgetShare> {
        let mut used = self.used();
        if used.waiting.contains_key(&account) || !used.fits(self.bytes_max, account, bytes) {
            return None;
        }
        used.add(account, bytes);
        drop(used);
        Some(BudgetShare { budget: self.clone(), account, bytes })
    }

    /// Queues for bytes behind the requests of the account that wait already. The place is lost
    /// when the ticket is dropped.
    pub(super) fn queue(self: &Arc<Self>, account: Account, bytes: usize) -> BudgetTicket {
        let mut used = self.used();
        used.last_ticket += 1;
        let ticket = used.last_ticket;
        let request = WaitingRequest { ticket, bytes, waker: None };
        used.waiting.entry(account).or_default().push_back(request);
        drop(used);
        BudgetTicket { budget: self.clone(), account, ticket, bytes }
    }

    fn wake_next(&self) {
        let next = self.used().next_wakers(self.bytes_max);
        next.into_iter().for_each(Waker::wake);
    }
}

/// A place in the queue of an account: resolves when it is the first and may have its bytes.
#[derive(Debug)]
pub(super) struct BudgetTicket {
    budget: Arc<ClientBudget>,
    account: Account,
    ticket: u64,
    bytes: usize,
}

impl Future for BudgetTicket {
    type Output = BudgetShare;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<BudgetShare> {
        let Self { ref budget, account, ticket, bytes } = *self;
        let mut used = budget.used();
        let fits = used.fits(budget.bytes_max, account, bytes);
        let waiting = used.waiting.get_mut(&account);
        let place = waiting.and_then(|waiting| {
            let at = waiting.iter().position(|request| request.ticket == ticket)?;
            Some((at, waiting.get_mut(at)?))
        });
        match place {
            Some((at, request)) if at > 0 || !fits => {
                request.waker = Some(context.waker().clone());
                Poll::Pending
            }
            _ => {
                used.leave_queue(account, ticket);
                used.add(account, bytes);
                drop(used);
                // The next one may fit too.
                budget.wake_next();
                Poll::Ready(BudgetShare { budget: budget.clone(), account, bytes })
            }
        }
    }
}

impl Drop for BudgetTicket {
    fn drop(&mut self) {
        self.budget.used().leave_queue(self.account, self.ticket);
        self.budget.wake_next();
    }
}

/// Bytes that an account has, until it is dropped.
#[derive(Debug)]
pub(crate) struct BudgetShare {
    budget: Arc<ClientBudget>,
    account: Account,
    bytes: usize,
}

impl BudgetShare {
    /// From now on it is this. More than before is not refused: what is known only now is there
    /// already.
    pub(super) fn set(&mut self, bytes: usize) {
        let before = std::mem::replace(&mut self.bytes, bytes);
        let mut used = self.budget.used();
        used.add(self.account, bytes);
        used.remove(self.account, before);
        drop(used);
        self.budget.wake_next();
    }
}

impl Drop for BudgetShare {
    fn drop(&mut self) {
        self.budget.used().remove(self.account, self.bytes);
        self.budget.wake_next();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use futures::FutureExt as _;
    use futures::executor::LocalPool;
    use futures::task::LocalSpawnExt as _;

    use super::*;

    #[test]
    fn one_account_leaves_half_and_each_further_one_its_share() {
        let budget = ClientBudget::of(100);
        let take_all = |account| {
            let shares: Vec<_> =
                std::iter::from_fn(|| budget.take(Some(account), 1)).take(1000).collect();
            shares
        };
        let first = take_all(1);
        assert_eq!(first.len(), 50);
        let second = take_all(2);
        assert_eq!(second.len(), 25, "half of what the first has left");
        assert!(budget.take(None, 20).is_some(), "a third one is let in");
        assert!(budget.take(Some(1), 1).is_none());
        drop(second);
        drop(first);
        assert_eq!(take_all(2).len(), 50);
        assert!(budget.used().by_account.is_empty() && budget.used().all == 0);
    }

    #[test]
    fn what_is_too_large_comes_alone_and_a_share_may_grow() {
        let budget = ClientBudget::of(100);
        let large = budget.take(None, 1000).unwrap();
        assert!(budget.take(Some(1), 1).is_none());
        drop(large);
        let mut share = budget.take(Some(1), 10).unwrap();
        share.set(95);
        assert!(budget.take(Some(2), 6).is_none());
        share.set(5);
        assert!(budget.take(Some(2), 6).is_some());
    }

    #[test]
    fn a_large_request_waits_for_its_turn_and_no_small_one_passes_it() {
        let budget = ClientBudget::of(100);
        let small = || budget.take(Some(1), 10);
        let mut running: Vec<_> = (0..4).map(|_| small().unwrap()).collect();
        let mut large = budget.queue(Some(1), 45);
        assert!((&mut large).now_or_never().is_none());
        for _ in 0..100 {
            running.remove(0);
            assert!(small().is_none(), "it came later");
            let mut later = budget.queue(Some(1), 10);
            assert!((&mut later).now_or_never().is_none(), "it came later");
            if let Some(share) = (&mut large).now_or_never() {
                assert_eq!(running.len(), 2, "45 fit beside 20 of 100");
                drop((later, share));
                assert!(small().is_some(), "no request waits any more");
                assert!(budget.used().waiting.is_empty());
                return;
            }
        }
        panic!("it never gets its turn");
    }

    #[test]
    fn who_waits_is_woken_when_it_is_its_turn_and_other_accounts_do_not_wait_for_it() {
        let budget = ClientBudget::of(100);
        let held = budget.take(Some(1), 50).unwrap();
        let waiting = budget.clone();
        let (first, second) = (waiting.queue(Some(1), 60), waiting.queue(Some(1), 1));
        let given_up = waiting.queue(Some(1), 70);
        assert!(budget.take(Some(2), 20).is_some(), "of another account");
        drop(given_up);
        let order = Rc::new(RefCell::new(Vec::new()));
        let mut pool = LocalPool::new();
        for (name, ticket) in [("first", first), ("second", second)] {
            let order = order.clone();
            let work = async move {
                let share = ticket.await;
                order.borrow_mut().push((name, share));
            };
            pool.spawner().spawn_local(work).unwrap();
        }
        pool.run_until_stalled();
        assert!(order.borrow().is_empty());
        drop(held);
        pool.run_until_stalled();
        let done = order.take();
        assert_eq!((done.len(), done[0].0), (1, "first"), "60 and 1 of 100 are more than half");
        drop(done);
        pool.run_until_stalled();
        assert_eq!(order.take().pop().map(|(name, _)| name), Some("second"));
        assert!(budget.used().waiting.is_empty() && budget.used().all == 0);
    }
}
