//! The keeper of a process: it holds the process' lease, says that it is there, knows the node map,
//! and tells the process which nodes to serve and which to stop. Any of them makes the next map
//! when a process comes or goes.
//!
//! | file | holds |
//! | --- | --- |
//! | `lease.rs` | the lease: taking it, keeping it, returning after it could not be kept |
//! | `age.rs` | finding out that the engine has an older copy of its records |
//! | `evict.rs` | ending the lease of a process that is found dead |
//! | `observe.rs` | seeing members and map, proposing the next map |
//! | `duties.rs` | from the map to what the process serves |
//!
//! # Two stages
//!
//! A process answers for [`ANSWER_WINDOW`] (2.5 s) after it *began* the last reading in which its
//! own record was there, by its own clock. Past that it answers nothing, and keeps everything. Its
//! lease is longer ([`LEASE`], 10 s): when etcd elects a leader, or a member of it is gone,
//! processes are silent for a moment and nothing moves.
//!
//! The record of a process goes with its lease: when that is over, or when another process that
//! finds it dead revokes it. The others take over [`TAKE_OVER_PAUSE`] (3 s) after they first saw
//! that the record is missing. An incarnation never comes back: a process that returns is another
//! one.
//!
//! # Never two
//!
//! No reading finds the record that began after the record was gone, so a process answers no longer
//! than [`ANSWER_WINDOW`] after that. The others wait half a second more, so clocks may each be
//! wrong by [`CLOCK_ERROR_MAX_PPM`], 8 % (the bound is 1/11, 9.09 %); crystals are by 0.01 %. The
//! check is at each answer ([`Keeper::may_answer`]): a
//! process that was frozen must not trust its timers. If clocks are worse, the epochs at the disk
//! nodes stop writes.
//!
//! # Coming back
//!
//! | what a process finds that could not renew its lease | what it does |
//! | --- | --- |
//! | its record | it goes on |
//! | no record, and the map as it was | it publishes its next incarnation, then replaces the map by one that knows it; success proves that no other process came between; it goes on |
//! | no map | it tries again |
//! | older records than it has seen | it answers and changes nothing, keeps all, says what to do |
//! | another map | what it served is dropped ([`KeeperEvent::Fenced`]); it joins anew |
//!
//! # Take-over within five seconds
//!
//! A process that is killed is missed at once, as its host refuses connections; one that is silent
//! after a second. Both may be wrong, as a firewall refuses connections too: for [`REFUTE_TIME`]
//! the process may refute it, if it hears of it through etcd. Then 3 s pass, and the first of the
//! living swaps the map, the second [`PROPOSE_STEP`] later: 4 s, or 5 s.

mod age;
mod duties;
mod evict;
mod lease;
mod observe;

use age::RecordAge;
pub use evict::Evidence;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use futures::future::{Either, select};

use super::map::{NodeMap, ProcessId};
use crate::coordination::{Coordination, CoordinationError, CoordinationFuture, LeaseId};
use runtime::context::Context;
use runtime::ids::{Epoch, NodeId};
use runtime::sync::Event as Bell;

/// How long a process counts as living after its last renewal, unless it is found dead before.
pub const LEASE: Duration = Duration::from_secs(10);
/// How long a process answers after it began to read its own record.
pub const ANSWER_WINDOW: Duration = Duration::from_millis(2_500);
/// How long after they first missed its record others take over from a process.
pub const TAKE_OVER_PAUSE: Duration = Duration::from_secs(3);
/// How wrong the clock of a process may run, in parts per million: a slow one answers for longer,
/// and a fast one waits for less.
pub const CLOCK_ERROR_MAX_PPM: u64 = 80_000;
const _: () = {
    let (slow, fast) = (1_000_000 - CLOCK_ERROR_MAX_PPM, 1_000_000 + CLOCK_ERROR_MAX_PPM);
    let answers = ANSWER_WINDOW.as_millis() as u64 * 1_000_000 / slow;
    let waits = TAKE_OVER_PAUSE.as_millis() as u64 * 1_000_000 / fast;
    assert!(answers < waits, "others could take over from a process that still answers");
};
/// A process that is said to be dead has this time to refute it.
pub const REFUTE_TIME: Duration = Duration::from_millis(500);
/// How often the lease is renewed: four renewals may be lost before the process is silent.
pub const RENEW_EVERY: Duration = Duration::from_millis(500);
/// Time limit for one call to the engine.
pub const CALL_TIME_MAX: Duration = Duration::from_millis(400);
/// The delay of the second living process to propose a map after the first, of the third after the
/// second.
pub const PROPOSE_STEP: Duration = Duration::from_millis(200);
/// The delay is at most this many steps.
const PROPOSE_STEPS_MAX: usize = 5;
/// A process proposes nothing this long after it joined: processes that start together each keep
/// their nodes.
pub const GATHER: Duration = Duration::from_millis(500);
/// The interval at which all records are read, whether or not the watch reports changes.
pub const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Incarnations of its own that a process remembers as over, at most: each attempt to join whose
/// outcome is unknown makes one.
const PAST_MAX: usize = 1024;
/// The pause after a call that failed.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// The prefix of all keys of the membership.
pub(super) const PREFIX: &str = "cluster/";
/// The key of the node map.
pub(super) const MAP_KEY: &str = "cluster/map";
/// The prefix of the keys of members.
pub(super) const MEMBERS_PREFIX: &str = "cluster/members/";

/// What a keeper tells its process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeeperEvent {
    /// Begin to serve this node. Its epoch is later than that of all who served it before.
    Serve {
        /// Which.
        node: NodeId,
        /// The epoch of the map with which that began.
        epoch: Epoch,
    },
    /// Stop serving this node: answer its requests with `Unreachable`, bring what it holds to the
    /// disks, then say so by [`Keeper::stopped`].
    Stop {
        /// Which.
        node: NodeId,
    },
    /// The node map is new: its epoch is that of the process from now on.
    Map(Rc<NodeMap>),
    /// Others have taken over: drop all nodes. What is not on the disks yet is lost. Say of each
    /// node by [`Keeper::stopped`] when nothing of it goes on. The keeper joins anew, and tells
    /// again what to serve.
    Fenced,
}

/// The process, as its keeper sees it.
pub trait Duties {
    /// Takes note of `event`; what takes longer is done in a task.
    fn tell(&self, event: KeeperEvent);
}

/// One life of a process in the cluster: as long as one lease.
#[derive(Clone, Copy, Debug)]
struct MembershipLease {
    incarnation: u64,
    lease: LeaseId,
    /// By our own clock: from then on nothing is answered.
    valid_until: Duration,
    /// When others could see it.
    begun: Duration,
}

/// What this process does for a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ServeState {
    /// It serves it.
    Serving(Epoch),
    /// It was told to stop, and has not yet.
    Stopping,
}

/// Keeps one process in the cluster. Cheap to clone.
#[derive(Clone)]
pub struct Keeper {
    context: Context,
    engine: Rc<dyn Coordination>,
    duties: Rc<dyn Duties>,
    id: ProcessId,
    addresses: Rc<[String]>,
    /// The length of leases.
    lease: Duration,
    state: Rc<KeeperState>,
}

impl std::fmt::Debug for Keeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keeper")
            .field("id", &self.id)
            .field("life", &self.state.life.get())
            .finish_non_exhaustive()
    }
}

/// The last incarnations of this process of which nothing goes on. One that is forgotten is waited
/// for like that of another process.
#[derive(Debug, Default)]
struct PastIncarnations(VecDeque<u64>);

impl PastIncarnations {
    fn insert(&mut self, incarnation: u64) {
        if self.contains(incarnation) {
            return;
        }
        if self.0.len() >= PAST_MAX {
            self.0.pop_front();
        }
        self.0.push_back(incarnation);
    }

    fn remove(&mut self, incarnation: u64) {
        self.0.retain(|known| *known != incarnation);
    }

    fn contains(&self, incarnation: u64) -> bool {
        self.0.contains(&incarnation)
    }

    /// Moves all of `tried` here.
    fn append(&mut self, tried: &mut Self) {
        std::mem::take(tried).0.into_iter().for_each(|incarnation| self.insert(incarnation));
    }
}

#[derive(Default)]
struct KeeperState {
    life: Cell<Option<MembershipLease>>,
    map: RefCell<Option<Rc<NodeMap>>>,
    standing: RefCell<BTreeMap<NodeId, ServeState>>,
    /// For which map a change was first seen to be needed, and when.
    noticed: Cell<Option<(Epoch, Duration)>>,
    /// Rings when there is a reason to look at once.
    look: Bell,
    /// Rings when a node was stopped.
    stopped: Bell,
    ending: Cell<bool>,
    /// How new the records of the engine are.
    age: RecordAge,
    /// They are an older copy, which was said.
    told_older: Cell<bool>,
    /// The lease cannot be renewed, which was said.
    paused: Cell<bool>,
    /// Processes against which this one has a suspicion that is not decided yet.
    suspected: RefCell<BTreeSet<ProcessId>>,
    /// Incarnations of this process of which nothing goes on.
    past: RefCell<PastIncarnations>,
    /// The incarnation by which the process returns, while that goes on.
    returning: Cell<Option<MembershipLease>>,
    /// All by which it has tried to, since its record was gone: the map may name any of them.
    tried: RefCell<PastIncarnations>,
    /// Processes that live by the map and whose record is missing: the incarnation, and since when.
    missing: RefCell<BTreeMap<ProcessId, (u64, Duration)>>,
}

impl Keeper {
    /// Begins to keep the process `id`, reached at `addresses`, by leases of the length `lease`, in
    /// tasks of `context`.
    pub fn start(
        context: &Context,
        engine: Rc<dyn Coordination>,
        (id, addresses): (ProcessId, &[String]),
        lease: Duration,
        duties: Rc<dyn Duties>,
    ) -> Self {
        let (context, state, addresses) = (context.clone(), Rc::default(), addresses.into());
        let keeper = Self { context, engine, duties, id, addresses, lease, state };
        let (living, looking) = (keeper.clone(), keeper.clone());
        keeper.context.task(async move { living.live().await });
        keeper.context.task(async move { looking.look_around().await });
        keeper
    }

    /// The epoch in which this process may answer for `node` now; `None` if it must not. To be
    /// asked when the answer is about to leave: what was begun before may have taken too long. The
    /// nodes of the machine itself look at the same instant
    /// ([`Machine::answer_until`](runtime::Machine::answer_until)).
    pub fn may_answer(&self, node: NodeId) -> Option<Epoch> {
        match self.state.standing.borrow().get(&node) {
            Some(ServeState::Serving(epoch)) if self.valid_lease().is_some() => Some(*epoch),
            _ => None,
        }
    }

    /// The last map that was seen.
    pub fn map(&self) -> Option<Rc<NodeMap>> {
        self.state.map.borrow().clone()
    }

    /// The process has stopped `node`, as it was told.
    pub fn stopped(&self, node: NodeId) {
        let mut standing = self.state.standing.borrow_mut();
        if standing.get(&node) == Some(&ServeState::Stopping) {
            standing.remove(&node);
            self.state.stopped.tell();
            self.state.look.tell();
        }
    }

    /// Ends the process' part: all its nodes are stopped, then its lease is given back, so that the
    /// others take over at once. To lose no request, let it [leave](super::leave) first.
    pub async fn end(&self) {
        self.state.ending.set(true);
        self.look_to_duties();
        loop {
            let stopped = self.state.stopped.next();
            if self.state.standing.borrow().is_empty() {
                break;
            }
            stopped.await;
        }
        if let Some(life) = self.drop_lease() {
            self.leave_in_order(life).await;
        }
    }

    /// A life goes on: until then the process may answer.
    fn set_lease(&self, life: MembershipLease) {
        self.state.life.set(Some(life));
        self.context.answer_until(life.valid_until);
    }

    /// Nothing is answered any more.
    fn drop_lease(&self) -> Option<MembershipLease> {
        self.context.answer_until(Duration::ZERO);
        self.state.life.take()
    }

    /// The present life, if its lease holds for sure.
    fn valid_lease(&self) -> Option<MembershipLease> {
        let life = self.state.life.get()?;
        (self.context.now() < life.valid_until).then_some(life)
    }

    /// Limits the time of a call.
    fn within<'a, T: 'a>(
        &self,
        limit: Duration,
        answer: CoordinationFuture<'a, T>,
    ) -> impl Future<Output = Result<T, CoordinationError>> + 'a {
        let limit = self.context.sleep(limit);
        async move {
            match select(answer, limit).await {
                Either::Left((answer, _)) => answer,
                Either::Right(_) => Err(CoordinationError::Unknown("no answer in time".to_owned())),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_incarnations_are_remembered_however_many_attempts_fail() {
        let mut past = PastIncarnations::default();
        let last = 3 * PAST_MAX as u64;
        (1..=last).for_each(|incarnation| past.insert(incarnation));
        past.insert(last);
        assert_eq!(past.0.len(), PAST_MAX);
        assert!(past.contains(last) && !past.contains(1));
        let mut tried = PastIncarnations::default();
        tried.insert(last + 1);
        past.append(&mut tried);
        past.remove(last);
        assert!(past.contains(last + 1) && !past.contains(last) && tried.0.is_empty());
        assert!(past.0.len() < PAST_MAX);
    }
}
