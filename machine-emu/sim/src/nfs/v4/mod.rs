//! Clients of version 4.1: hosts with sessions, open files and locks, whose connections break and
//! whose gateways start again, and a model of what may be seen.
//!
//! | file | holds |
//! | --- | --- |
//! | `wire.rs` | calls and replies as bytes |
//! | `host.rs` | one host: its session, and how it gets back what a gateway has forgotten |
//! | `worker.rs` | one call at a time in a slot of a host |
//! | `content.rs` | content: open, write, commit, cut, read, close |
//! | `names.rs` | names: made, linked, moved, removed |
//! | `open_unlinked_v4.rs` | files that lose their name while they are open |
//! | `conflicts.rs` | locks and share modes |
//! | `back_channel_v4.rs` | calls of a gateway to a host, and what is recalled |
//! | `delegations_v4.rs` | files that hosts keep while they have a delegation |
//!
//! A host that is alive keeps its lease, also between rounds; now and then one starts again and has
//! forgotten everything.

mod back_channel_v4;
mod conflicts;
mod content;
mod delegations_v4;
mod host;
mod names;
mod open_unlinked_v4;
mod wire;
mod worker;

use std::cell::Cell;
use std::pin::pin;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::{LocalBoxFuture, join, join_all, select};
use runtime::seed::Rng;
use runtime::sync::Event;

use super::gateways::Gateways;
use super::set_stream_faults;
use crate::files::Habits;
use crate::harness::{Harness, RoundEnd};
use conflicts::ConflictingOpens;
use content::V4Files;
use delegations_v4::DelegatedFilesV4;
use host::{LEASE, RENEW_PAUSE, V4Host};
use names::V4Names;
use open_unlinked_v4::OpenUnlinkedV4;
use worker::V4Worker;

/// Workers of one host at most.
const WORKERS_MAX: u64 = 3;
/// Calls whose client has gone away end in this time once no fault is left.
const QUIET_AFTER: Duration = Duration::from_secs(10);
/// After this a grace period is over: nothing waits for clients from before a restart.
const GRACE_OVER: Duration = Duration::from_secs(61);

/// Everything of one run.
struct Nfs4<'a> {
    harness: &'a Harness,
    gateways: &'a Gateways<'a>,
    hosts: &'a [V4Host<'a>],
    checker: &'a V4Host<'a>,
    workers: Vec<V4Worker<'a>>,
    files: V4Files,
    names: V4Names,
    open_unlinked_v4: OpenUnlinkedV4,
    conflicts: ConflictingOpens,
    delegations: DelegatedFilesV4,
}

/// Runs the workload to its end.
pub(crate) async fn run(harness: &Harness, habits: Habits) {
    harness.set_up().await;
    let mut rng = harness.fork_rng();
    set_stream_faults(harness, &mut rng);
    let gateways = Gateways::draw(harness, &mut rng);
    gateways.start().await;
    let counts: Vec<usize> =
        (0..habits.clients).map(|_| 1 + rng.below(WORKERS_MAX) as usize).collect();
    let host = |(index, &count): (u32, &usize)| V4Host::new(&gateways, index, count);
    let hosts: Vec<V4Host<'_>> = (0..).zip(&counts).map(host).collect();
    let of_host = |(host, &count)| (0..count).map(move |slot| (host, slot));
    let workers = hosts.iter().zip(&counts).flat_map(of_host);
    let worker = |(number, (host, slot))| V4Worker { host, slot, number };
    let workers: Vec<V4Worker<'_>> = (0..).zip(workers).map(worker).collect();
    let checker = V4Host::new(&gateways, habits.clients, 1);
    let habits = Habits { clients: workers.len() as u32, ..habits };
    let files = V4Files::new(habits, 1 + rng.below(12));
    let maker = V4Worker { host: &checker, slot: 0, number: habits.clients };
    let Ok(names) = checker.link.run(V4Names::create(&maker)).await else {
        panic!("no crash was asked for")
    };
    let (open_unlinked_v4, conflicts) = (OpenUnlinkedV4::default(), ConflictingOpens::default());
    let (gateways, hosts, checker) = (&gateways, &hosts[..], &checker);
    let all = Nfs4 {
        harness,
        gateways,
        hosts,
        checker,
        workers,
        files,
        names,
        open_unlinked_v4,
        conflicts,
        delegations: DelegatedFilesV4::default(),
    };
    for _ in 0..habits.rounds {
        if rng.chance(1, 2) {
            all.keep_alive(harness.pass(GRACE_OVER)).await;
        }
        all.round(habits.round_ms, &mut rng).await;
    }
    all.end().await;
}

impl<'a> Nfs4<'a> {
    /// The host of the worker of this number.
    fn host_of(&self, worker: u32) -> &'a V4Host<'a> {
        self.workers[worker as usize].host
    }

    async fn round(&self, round_ms: u64, rng: &mut Rng) {
        let harness = self.harness;
        let hosts = self.hosts.iter().map(|host| self.host(host).boxed_local());
        let mut working: Vec<LocalBoxFuture<'_, ()>> = hosts.collect();
        working.push(self.gateways.restart_now_and_then(harness.fork_rng()).boxed_local());
        if harness.round(working, round_ms).await == RoundEnd::PowerCut {
            self.gateways.end();
            harness.recover().await;
            return self.after_crash().await;
        }
        self.keep_alive(harness.pass(QUIET_AFTER)).await;
        self.forget_twins();
        self.check(false).await;
        if rng.chance(1, 2) {
            self.files.all_committed();
            harness.stop_and_recover().await;
            self.gateways.end();
            self.after_crash().await;
        }
    }

    /// All workers of a host.
    async fn host(&self, host: &V4Host<'_>) {
        let is_own = |worker: &&V4Worker<'_>| std::ptr::eq(worker.host, host);
        let mut rng = self.harness.fork_rng();
        if rng.chance(1, 8) {
            host.reboot();
        }
        let working = async {
            // After a start the gateway forgets what was before.
            if host.renew().await.is_ok() && host.is_fresh() {
                self.conflicts.forget(self, host);
            }
            let working = self.workers.iter().filter(is_own);
            join_all(working.map(|worker| self.work(worker, self.harness.fork_rng()))).await;
        };
        let called = pin!(host.back_channel.serve(&host.link));
        host.link.run(select(pin!(working), called)).await;
    }

    async fn work(&self, worker: &V4Worker<'_>, mut rng: Rng) {
        let mut done = Ok(());
        while done.is_ok() && !self.harness.is_over() {
            done = match rng.below(100) {
                0..40 => self.files.step(worker, &mut rng).await,
                40..65 => self.names.step(worker, &mut rng).await,
                65..73 => self.open_unlinked_v4.step(worker, &mut rng).await,
                73..86 => self.conflicts.lock_ranges(self, worker, &mut rng).await,
                86..93 => self.conflicts.share(self, worker, &mut rng).await,
                93..98 => self.delegations.step(worker, &mut rng).await,
                _ => {
                    self.harness.pass(Duration::from_millis(rng.below(1_000))).await;
                    Ok(())
                }
            };
        }
    }

    /// All hosts renew their leases during `work`.
    async fn keep_alive<T>(&self, work: impl Future<Output = T>) -> T {
        let (over, reply) = (Cell::new(false), Event::default());
        let renewing = self.hosts.iter().map(|host| {
            let renewing = async {
                // What was begun is ended: a slot must not be left in doubt.
                loop {
                    let end = reply.next();
                    if over.get() || host.renew().await.is_err() {
                        return;
                    }
                    select(pin!(end), pin!(self.harness.pass(RENEW_PAUSE))).await;
                }
            };
            async move {
                let called = pin!(host.back_channel.serve(&host.link));
                host.link.run(select(pin!(renewing), called)).await;
            }
        });
        let working = async {
            let done = work.await;
            over.set(true);
            reply.tell();
            done
        };
        join(working, join_all(renewing)).await.0
    }

    async fn after_crash(&self) {
        self.forget_twins();
        self.files.restarted();
        self.hosts.iter().for_each(V4Host::power_is_back);
        self.gateways.start().await;
        // Each host gets back what it had before it does anything else.
        let recovering = self.hosts.iter().map(|host| host.link.run(host.renew()));
        let recovered = self.harness.within_limit("a recovery", join_all(recovering)).await;
        assert!(recovered.iter().all(Result::is_ok), "no crash was asked for");
        self.check(true).await;
    }

    fn forget_twins(&self) {
        self.files.forget_twins();
        self.names.forget_twins();
        self.delegations.settle();
    }

    fn on_checker(&self) -> V4Worker<'_> {
        V4Worker { host: self.checker, slot: 0, number: self.workers.len() as u32 }
    }

    async fn check(&self, after_crash: bool) {
        let worker = self.on_checker();
        let checking = self.checker.link.run(Box::pin(async {
            self.files.check(&worker, after_crash).await?;
            self.names.check(&worker, after_crash).await
        }));
        let checked = self.harness.within_limit("a check", self.keep_alive(checking)).await;
        assert!(checked.is_ok(), "no crash was asked for");
    }

    /// When all hosts have gone, nothing of theirs is left.
    async fn end(&self) {
        self.harness.pass(GRACE_OVER + LEASE).await;
        let ending = self.checker.link.run(async {
            let worker = self.on_checker();
            self.conflicts.end(&worker).await
        });
        let ended = self.harness.within_limit("the end", ending).await;
        assert!(ended.is_ok(), "no crash was asked for");
    }
}
