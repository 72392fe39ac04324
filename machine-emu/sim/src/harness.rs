//! One run: a cluster, its faults, clients that come and go in rounds.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use fileio::protocol::{CallId, Error, FileIo, Flush};
use futures::future::{Either, LocalBoxFuture, join, join_all, select};
use runtime::protocol::Undelivered;
use runtime::seed::Rng;
use runtime::{Call, NodeId};
use volume::VolumeError;

use super::cluster::{Cluster, Layout, OBSERVER, Phases};
use super::disk_damage::DiskDamage;
use super::nemesis::{Ending, Nemesis};

/// Once no fault is left everything under way ends in this time, and a volume is mounted.
const LIVELY_WITHIN: Duration = Duration::from_mins(2);
/// The pause before a request that did not get through is asked again.
pub(super) const RETRY_PAUSE: Duration = Duration::from_millis(10);
/// What a host needs to end the disk operations of a process that died, at most: nobody else opens
/// the disks before.
const LANDING_TIME: Duration = Duration::from_secs(2);
/// Tries of one request while faults last.
pub(super) const TRIES_MAX: u32 = 20_000;

/// Bytes of a request's description in the log, at most.
const TOLD_BYTES_MAX: usize = 400;

/// How a request of a client ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The power went, or will go: whether it was done nobody knows.
    PowerCut,
    /// It was refused, and nothing was done.
    Refused(Error),
}

/// How a round ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// All requests were answered.
    Orderly,
    /// The power went.
    PowerCut,
}

/// One run.
#[derive(Debug)]
pub(super) struct Harness {
    /// The cluster.
    pub(super) cluster: Cluster,
    nemesis: Nemesis,
    rng: RefCell<Rng>,
    over: Cell<bool>,
    /// What is answered now does not count: the power has gone, or will for sure.
    powerless: Cell<bool>,
    operations: Cell<u64>,
    calls: Cell<u64>,
    phases: Phases,
}

impl Harness {
    /// A cluster of `layout` that suffers what `nemesis` does.
    pub(super) fn new(seed: u64, layout: Layout, nemesis: Nemesis, phases: Phases) -> Self {
        Self {
            cluster: Cluster::new(seed, layout),
            nemesis,
            rng: RefCell::new(Rng::new(seed ^ 0x0005_CE7E)),
            over: Cell::new(true),
            powerless: Cell::new(false),
            operations: Cell::new(0),
            calls: Cell::new(0),
            phases,
        }
    }

    /// A generator of its own for one client.
    pub(super) fn fork_rng(&self) -> Rng {
        Rng::new(self.rng.borrow_mut().bits())
    }

    /// Requests of clients that were answered.
    pub(super) fn operations(&self) -> u64 {
        self.operations.get()
    }

    /// Clients shall begin nothing new.
    pub(super) fn is_over(&self) -> bool {
        self.over.get()
    }

    /// A fresh id of a call.
    pub(super) fn call_id(&self) -> CallId {
        self.calls.set(self.calls.get() + 1);
        CallId { client: 7, number: self.calls.get() }
    }

    /// Lets `duration` pass.
    pub(super) async fn pass(&self, duration: Duration) {
        self.cluster.application(OBSERVER).sleep(duration).await;
    }

    /// Makes the volume; faults of the network begin after it.
    pub(super) async fn set_up(&self) {
        let made = self.cluster.format(self.phases).await;
        made.unwrap_or_else(|error| panic!("a fresh volume cannot be made: {error}"));
        self.nemesis.prepare(&self.cluster);
    }

    /// Lets `clients` work, amid faults, for a while drawn up to `duration_max_ms`; then the power
    /// goes, or they end what they have begun. Panics if they do not in bounded time.
    pub(super) async fn round(
        &self,
        clients: Vec<LocalBoxFuture<'_, ()>>,
        duration_max_ms: u64,
    ) -> End {
        let round = self.nemesis.begin_round(&self.cluster, duration_max_ms);
        let context = self.cluster.application(OBSERVER);
        self.over.set(false);
        let raging = async {
            self.nemesis.rage(&round, &self.cluster, &context).await;
            self.over.set(true);
            self.powerless.set(round.ending != Ending::Orderly);
            match round.ending {
                Ending::Orderly => {}
                Ending::Power => self.nemesis.crash(&self.cluster),
                Ending::Death => {
                    self.nemesis.kill(&self.cluster);
                    context.sleep(LANDING_TIME).await;
                }
            }
            Nemesis::calm(&self.cluster);
        };
        let restarting = self.nemesis.restart_nodes(&round, self, &context);
        let all = join(join(join_all(clients), restarting), raging);
        match select(pin!(all), context.sleep(round.end + LIVELY_WITHIN)).await {
            Either::Left(_) if round.ending == Ending::Orderly => End::Orderly,
            Either::Left(_) => End::PowerCut,
            Either::Right(_) => panic!("clients still wait {LIVELY_WITHIN:?} after the last fault"),
        }
    }

    /// Brings the cluster up after a power cut; the power may go again meanwhile, or right after.
    pub(super) async fn come_back(&self) {
        let context = self.cluster.application(OBSERVER);
        loop {
            self.cluster.restart();
            let relapse = self.nemesis.relapse();
            let limit = relapse.unwrap_or(LIVELY_WITHIN);
            let mounting = pin!(self.cluster.mount(self.phases));
            match select(mounting, pin!(context.sleep(limit))).await {
                Either::Left((Ok(()), rest)) => {
                    if relapse.is_none() || !self.nemesis.relapses_late() {
                        break;
                    }
                    rest.await;
                    self.nemesis.crash(&self.cluster);
                }
                Either::Left((Err(error), _)) => panic!("the volume cannot be mounted: {error}"),
                Either::Right(_) if relapse.is_none() => {
                    panic!("the volume is not mounted after {LIVELY_WITHIN:?}")
                }
                Either::Right(_) => self.nemesis.crash(&self.cluster),
            }
        }
        self.powerless.set(false);
    }

    /// Ends the volume cleanly, cuts the power and comes back.
    pub(super) async fn stop_and_start(&self) {
        self.stop().await;
        self.come_back().await;
    }

    /// Brings the cluster up once, or tells why it cannot be. Panics if that takes too long.
    pub(super) async fn try_to_come_back(&self) -> Result<(), VolumeError> {
        self.cluster.restart();
        let mounted = self.lively("a mount", self.cluster.mount(self.phases)).await;
        self.powerless.set(mounted.is_err());
        mounted
    }

    /// Does the damage that the nemesis has for a volume at rest.
    pub(super) fn hurt(&self) {
        self.nemesis.hurt(&self.cluster);
    }

    /// What was done to the disks.
    pub(super) fn disk_damage(&self) -> &DiskDamage {
        self.nemesis.disk_damage()
    }

    /// The power of everything goes.
    pub(super) fn cut_power(&self) {
        self.powerless.set(true);
        self.nemesis.crash(&self.cluster);
    }

    /// Ends the volume cleanly and cuts the power.
    pub(super) async fn stop(&self) {
        let nodes = self.cluster.geometry().fs_nodes;
        let context = self.cluster.application(OBSERVER);
        for node in (0..nodes).map(NodeId::fs) {
            let settling = until_told(
                || context.spawn(node, Flush {}),
                |error| matches!(error, Error::Undelivered { why: Undelivered::Lost }),
            );
            let flushed = self.lively("a clean stop", settling).await;
            flushed.unwrap_or_else(|error| panic!("a clean stop of {node} failed: {error}"));
        }
        let concluding = until_told(
            || self.cluster.final_checkpoint(self.phases),
            |error| {
                matches!(error, VolumeError::Flush(Error::Undelivered { why: Undelivered::Lost }))
            },
        );
        let final_checkpointd = self.lively("a clean stop", concluding).await;
        final_checkpointd.unwrap_or_else(|error| panic!("a clean stop failed: {error}"));
        self.cut_power();
    }

    /// The outcome of `work`, which no fault holds up. Panics if it takes too long.
    pub(super) async fn lively<T>(&self, what: &str, work: impl Future<Output = T>) -> T {
        let limit = self.cluster.application(OBSERVER).sleep(LIVELY_WITHIN);
        match select(pin!(work), limit).await {
            Either::Left((outcome, _)) => outcome,
            Either::Right(_) => panic!("{what} takes more than {LIVELY_WITHIN:?}"),
        }
    }

    /// Asks until there is an answer, also after it may have been done: the same request, so that one
    /// with a call id is done once.
    pub(super) async fn ask<C>(&self, client: u32, call: C) -> Result<C::Reply, Failure>
    where
        C: Call<Protocol = FileIo> + Clone + fmt::Debug,
    {
        // What was under way when it went may have been done or not: what builds on it would be in doubt twice.
        if self.powerless.get() {
            return Err(Failure::PowerCut);
        }
        tracing::debug!(now = ?self.cluster.world().now(), client, call = %Short(&call));
        let context = self.cluster.application(client);
        for _ in 0..TRIES_MAX {
            let answer = fileio::client::ask(&context, call.clone()).await;
            tracing::debug!(now = ?self.cluster.world().now(), client, failed = ?answer.as_ref().err());
            if self.powerless.get() {
                return Err(Failure::PowerCut);
            }
            match answer {
                Ok(reply) => {
                    self.operations.set(self.operations.get() + 1);
                    return Ok(reply);
                }
                Err(Error::Undelivered { .. } | Error::Damaged {}) if self.is_hopeless() => {
                    return Err(Failure::PowerCut);
                }
                Err(error) if self.excuses(error) => {}
                Err(error) => return Err(Failure::Refused(error)),
            }
            context.sleep(RETRY_PAUSE).await;
        }
        panic!("asked in vain, {TRIES_MAX} times");
    }

    /// A request failed: nobody knows whether it was done, if a fault lasts that only a power cut
    /// ends. Then nothing that comes after it is certain either.
    pub(super) fn is_hopeless(&self) -> bool {
        if self.nemesis.is_heavy() {
            self.powerless.set(true);
        }
        self.nemesis.is_heavy()
    }

    /// The power has gone, and nothing is served yet.
    pub(super) fn is_powerless(&self) -> bool {
        self.powerless.get()
    }

    /// A failure that the faults explain: whoever asked may ask again.
    pub(super) fn excuses(&self, error: Error) -> bool {
        match error {
            Error::Undelivered { why } => {
                matches!(why, Undelivered::Busy | Undelivered::Lost)
                    || self.restarts() + self.nemesis.moves() > 0
            }
            // What a node lost that has restarted is found out when it is asked for.
            Error::Damaged {} => self.nemesis.has_failed_reads() || self.restarts() > 0,
            _ => false,
        }
    }

    /// Single nodes that have restarted so far while others lived.
    pub(super) fn restarts(&self) -> u64 {
        self.nemesis.restarts()
    }

    /// Moves by plan so far.
    pub(super) fn moves(&self) -> u64 {
        self.nemesis.moves()
    }

    /// Those of them that are over.
    pub(super) fn moves_ended(&self) -> u64 {
        self.nemesis.moves_ended()
    }

    /// Single nodes may restart in this run.
    pub(super) fn may_restart_nodes(&self) -> bool {
        self.nemesis.may_restart_nodes()
    }

    /// A disk was told in this round to fail a read.
    pub(super) fn has_failed_reads_now(&self) -> bool {
        self.nemesis.has_failed_reads_now()
    }

    /// How much is served.
    pub(super) fn phases(&self) -> Phases {
        self.phases
    }

    /// Notes an answer of another layer; true if the power has gone meanwhile.
    pub(super) fn answered(&self) -> bool {
        self.operations.set(self.operations.get() + 1);
        self.powerless.get()
    }
}

/// The beginning of what a request says: data is of no use to whoever reads it.
struct Short<'a, C>(&'a C);

impl<C: fmt::Debug> fmt::Display for Short<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{:?}", self.0);
        f.write_str(text.get(..TOLD_BYTES_MAX).unwrap_or(&text))
    }
}

/// The outcome of `work`, which is done again as long as its reply is lost.
async fn until_told<T, E, F: Future<Output = Result<T, E>>>(
    work: impl Fn() -> F,
    is_lost: impl Fn(&E) -> bool,
) -> Result<T, E> {
    loop {
        match work().await {
            Err(error) if is_lost(&error) => {}
            outcome => return outcome,
        }
    }
}
