//! One run: a cluster, its faults, clients that come and go in rounds.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use fileio::protocol::{CallId, Credentials, Error, FileIo, Flush, ROOT, Scrub, ScrubFlaw};
use futures::future::{Either, LocalBoxFuture, join, join_all, select};
use meta::NodeAudit;
use meta::store::StoreError;
use runtime::protocol::Undelivered;
use runtime::seed::Rng;
use runtime::{Call, NodeId};
use volume::VolumeError;

use super::cluster::{ClusterLayout, OBSERVER, Phases, SimulatedCluster};
use super::disk_damage::DiskDamage;
use super::nemesis::{Nemesis, RoundEnding};

/// Once no fault is left everything under way ends in this time, and a volume is mounted.
const DONE_WITHIN: Duration = Duration::from_mins(2);
/// The pause before a request that did not get through is asked again.
pub(super) const RETRY_PAUSE: Duration = Duration::from_millis(10);
/// How long the disk operations of a process that died may continue, at most: no other process
/// opens the disks before.
const DISK_SETTLE_TIME: Duration = Duration::from_secs(2);
/// Tries of one request while faults last.
pub(super) const TRIES_MAX: u32 = 20_000;

/// Bytes of a request's description in the log, at most.
const DESCRIPTION_BYTES_MAX: usize = 400;

/// How a request of a client ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallFailure {
    /// The power is off, or will be: the outcome is unknown.
    PowerCut,
    /// It was refused, and nothing was done.
    Refused(Error),
}

/// The power was cut: the outcome of a call is unknown, and its client ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PowerCut;

/// The result of a client's work, which only a power cut ends early.
pub(super) type WorkResult<T = ()> = Result<T, PowerCut>;

impl CallFailure {
    /// The power cut. Panics if the call was refused.
    pub(super) fn power_cut<T>(self) -> WorkResult<T> {
        match self {
            Self::PowerCut => Err(PowerCut),
            Self::Refused(error) => panic!("refused: {error}"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RoundEnd {
    /// All requests were answered.
    Orderly,
    /// The power went.
    PowerCut,
}

/// One run.
#[derive(Debug)]
pub(super) struct Harness {
    pub(super) cluster: SimulatedCluster,
    nemesis: Nemesis,
    rng: RefCell<Rng>,
    over: Cell<bool>,
    /// What is answered now does not count: the power has gone, or will for sure.
    power_off: Cell<bool>,
    operations: Cell<u64>,
    calls: Cell<u64>,
    phases: Phases,
}

impl Harness {
    /// A cluster of `layout` that suffers what `nemesis` does.
    pub(super) fn new(seed: u64, layout: ClusterLayout, nemesis: Nemesis, phases: Phases) -> Self {
        Self {
            cluster: SimulatedCluster::new(seed, layout),
            nemesis,
            rng: RefCell::new(Rng::new(seed ^ 0x0005_CE7E)),
            over: Cell::new(true),
            power_off: Cell::new(false),
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
    ) -> RoundEnd {
        let round = self.nemesis.begin_round(&self.cluster, duration_max_ms);
        let context = self.cluster.application(OBSERVER);
        self.over.set(false);
        let injecting = async {
            self.nemesis.inject_round(&round, &self.cluster, &context).await;
            self.over.set(true);
            self.power_off.set(round.ending != RoundEnding::Orderly);
            match round.ending {
                RoundEnding::Orderly => {}
                RoundEnding::Power => self.nemesis.crash(&self.cluster),
                RoundEnding::Death => {
                    self.nemesis.kill(&self.cluster);
                    context.sleep(DISK_SETTLE_TIME).await;
                }
            }
            Nemesis::calm(&self.cluster);
        };
        let restarting = self.nemesis.restart_nodes(&round, self);
        let all = join(join(join_all(clients), restarting), injecting);
        match select(pin!(all), context.sleep(round.end + DONE_WITHIN)).await {
            Either::Left(_) if round.ending == RoundEnding::Orderly => RoundEnd::Orderly,
            Either::Left(_) => RoundEnd::PowerCut,
            Either::Right(_) => panic!("clients still wait {DONE_WITHIN:?} after the last fault"),
        }
    }

    /// Brings the cluster up after a power cut; the power may go again meanwhile, or right after.
    pub(super) async fn recover(&self) {
        let context = self.cluster.application(OBSERVER);
        loop {
            self.cluster.restart();
            let relapse = self.nemesis.relapse();
            let limit = relapse.unwrap_or(DONE_WITHIN);
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
                    panic!("the volume is not mounted after {DONE_WITHIN:?}")
                }
                Either::Right(_) => self.nemesis.crash(&self.cluster),
            }
        }
        self.power_off.set(false);
    }

    /// Ends the volume cleanly, cuts the power and comes back.
    pub(super) async fn stop_and_recover(&self) {
        self.stop().await;
        self.recover().await;
    }

    /// Brings the cluster up once; the error says why it cannot be. Panics if that takes too long.
    pub(super) async fn try_recover(&self) -> Result<(), VolumeError> {
        self.cluster.restart();
        let mounted = self.within_limit("a mount", self.cluster.mount(self.phases)).await;
        self.power_off.set(mounted.is_err());
        mounted
    }

    /// Does the damage that the nemesis has for a volume at rest.
    pub(super) fn damage_disks(&self) {
        self.nemesis.damage_disks(&self.cluster);
    }

    /// What was done to the disks.
    pub(super) fn disk_damage(&self) -> &DiskDamage {
        self.nemesis.disk_damage()
    }

    /// The power of everything goes.
    pub(super) fn cut_power(&self) {
        self.power_off.set(true);
        self.nemesis.crash(&self.cluster);
    }

    /// Ends the volume cleanly and cuts the power.
    pub(super) async fn stop(&self) {
        let nodes = self.cluster.geometry().fs_nodes;
        let context = self.cluster.application(OBSERVER);
        for node in (0..nodes).map(NodeId::fs) {
            let settling = retry_while_lost(
                || context.spawn(node, Flush {}),
                |error| {
                    matches!(
                        error,
                        Error::Undelivered { why: Undelivered::Lost } | Error::Unwritable { .. }
                    )
                },
            );
            let flushed = self.within_limit("a clean stop", settling).await;
            flushed.unwrap_or_else(|error| panic!("a clean stop of {node} failed: {error}"));
        }
        let concluding = retry_while_lost(
            || self.cluster.final_checkpoint(self.phases),
            |error| {
                matches!(
                    error,
                    VolumeError::Flush(
                        Error::Undelivered { why: Undelivered::Lost } | Error::Unwritable { .. }
                    )
                )
            },
        );
        let checkpointed = self.within_limit("a clean stop", concluding).await;
        checkpointed.unwrap_or_else(|error| panic!("a clean stop failed: {error}"));
        self.cut_power();
    }

    /// The outcome of `work`, which no fault holds up. Panics if it takes too long.
    pub(super) async fn within_limit<T>(&self, what: &str, work: impl Future<Output = T>) -> T {
        let limit = self.cluster.application(OBSERVER).sleep(DONE_WITHIN);
        match select(pin!(work), limit).await {
            Either::Left((outcome, _)) => outcome,
            Either::Right(_) => panic!("{what} takes more than {DONE_WITHIN:?}"),
        }
    }

    /// What is wrong at all nodes.
    pub(super) async fn scrub(&self, repair: bool) -> Vec<ScrubFlaw> {
        let context = self.cluster.application(0);
        let mut flaws = Vec::new();
        for node in (0..self.cluster.geometry().fs_nodes).map(NodeId::fs) {
            let mut next = Some(Vec::new());
            while let Some(after) = next {
                let who = Credentials::root();
                let call = Scrub { who, root: ROOT, after: after.clone(), data: true, repair };
                let asked = self.within_limit("a scrub", context.spawn(node, call)).await;
                match asked {
                    Ok(part) => {
                        flaws.extend(part.flaws);
                        next = part.next;
                    }
                    // Checkpoints came between again and again, or the network lost it.
                    Err(error) if error.not_applied() || error.is_lost() => {
                        context.sleep(RETRY_PAUSE).await;
                        next = Some(after);
                    }
                    Err(error) => panic!("a scrub of node {node}: {error}"),
                }
            }
        }
        flaws
    }

    /// What all stores hold: read again as long as checkpoints come between.
    pub(super) async fn audit(&self) -> Result<NodeAudit, StoreError> {
        let audit = async {
            loop {
                match self.cluster.audit().await {
                    Err(StoreError::Busy) => self.pass(Duration::from_millis(100)).await,
                    audit => return audit,
                }
            }
        };
        Box::pin(self.within_limit("an audit", audit)).await
    }

    /// Asks until there is an answer, also after it may have been done: the same request, so that
    /// one with a call id is done once.
    pub(super) async fn ask<C>(&self, client: u32, call: C) -> Result<C::Reply, CallFailure>
    where
        C: Call<Protocol = FileIo> + Clone + fmt::Debug,
    {
        // What was under way when it went may have been done or not: what builds on it would be in
        // doubt twice.
        if self.power_off.get() {
            return Err(CallFailure::PowerCut);
        }
        tracing::debug!(now = ?self.cluster.world().now(), client, call = %Short(&call));
        let context = self.cluster.application(client);
        for _ in 0..TRIES_MAX {
            let answer = fileio::client::ask(&context, call.clone()).await;
            tracing::debug!(now = ?self.cluster.world().now(), client, failed = ?answer.as_ref().err());
            if self.power_off.get() {
                return Err(CallFailure::PowerCut);
            }
            match answer {
                Ok(reply) => {
                    self.operations.set(self.operations.get() + 1);
                    return Ok(reply);
                }
                Err(Error::Undelivered { .. } | Error::Damaged {}) if self.is_uncertain() => {
                    return Err(CallFailure::PowerCut);
                }
                Err(error) if self.is_expected(error) => {}
                Err(error) => return Err(CallFailure::Refused(error)),
            }
            context.sleep(RETRY_PAUSE).await;
        }
        panic!("no answer after {TRIES_MAX} tries");
    }

    /// A request failed: its outcome is unknown while a fault is active that only a power cut
    /// ends. Then nothing that comes after it is certain either.
    pub(super) fn is_uncertain(&self) -> bool {
        if self.nemesis.is_heavy() {
            self.power_off.set(true);
        }
        self.nemesis.is_heavy()
    }

    /// The power has gone, and nothing is served yet.
    pub(super) fn is_power_off(&self) -> bool {
        self.power_off.get()
    }

    /// True if the injected faults explain the failure: the caller may retry.
    pub(super) fn is_expected(&self, error: Error) -> bool {
        match error {
            Error::Undelivered { why } => {
                matches!(why, Undelivered::Busy | Undelivered::Lost)
                    || self.restarts() + self.nemesis.moves() > 0
            }
            // What a node lost that has restarted is found out when it is asked for.
            Error::Damaged {} => self.nemesis.has_failed_reads() || self.restarts() > 0,
            Error::Unwritable { .. } => self.nemesis.has_filled_hosts(),
            _ => false,
        }
    }

    /// Single nodes that have restarted so far while others lived, and disks that may have lost
    /// what no commit covers.
    pub(super) fn restarts(&self) -> u64 {
        self.nemesis.restarts()
    }

    /// A disk is lost, or away for a while: what is to be in a wide stripe has one copy until its
    /// commit.
    pub(super) fn lose_uncommitted(&self) {
        if self.cluster.content().may_have_wide_stripes() {
            self.nemesis.count_restart();
        }
    }

    /// Moves by plan so far.
    pub(super) fn moves(&self) -> u64 {
        self.nemesis.moves()
    }

    /// Those of them that are over.
    pub(super) fn moves_ended(&self) -> u64 {
        self.nemesis.moves_ended()
    }

    /// A host was full in this run.
    pub(super) fn has_filled_hosts(&self) -> bool {
        self.nemesis.has_filled_hosts()
    }

    /// Single nodes may restart in this run.
    pub(super) fn may_restart_nodes(&self) -> bool {
        self.nemesis.may_restart_nodes()
    }

    /// A read error was injected in this round.
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
        self.power_off.get()
    }
}

/// The beginning of a request's description, for the log; its data is left out.
struct Short<'a, C>(&'a C);

impl<C: fmt::Debug> fmt::Display for Short<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{:?}", self.0);
        f.write_str(text.get(..DESCRIPTION_BYTES_MAX).unwrap_or(&text))
    }
}

/// The outcome of `work`, which is done again as long as its reply is lost.
async fn retry_while_lost<T, E, F: Future<Output = Result<T, E>>>(
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
