//! NFS clients and gateways: hosts speak `NFSv3`, or `NFSv4.1` (`v4/`), over streams that break, to
//! gateways on nodes that die, and compare what they see with what may be.
//!
//! | file | holds |
//! | --- | --- |
//! | `gateways.rs` | the gateways, and their lives |
//! | `rpc.rs` | calls and replies as bytes |
//! | `link.rs` | one host: its connection, and the calls under way |
//! | `files.rs` | content: writes, stable and not, commits, verifiers |
//! | `names.rs` | names: made, linked, moved, removed |
//! | `lookup.rs` | looking at a name, a file, a directory |
//! | `rules.rs` | what the oracle must tolerate |
//! | `unstable.rs` | what was written and not committed yet |
//! | `v4/` | the other workload: version 4.1 |

mod files;
mod gateways;
mod ledger;
mod link;
mod lookup;
mod names;
mod rpc;
mod rules;
mod unstable;
mod v4;

use std::time::Duration;

use futures::FutureExt as _;
use futures::future::{LocalBoxFuture, join_all};
use machine_emu::StreamFaults;
use nfs3_types::mount;
use nfs3_types::nfs3::nfs_fh3;
use nfs3_types::xdr_codec::Opaque;
use runtime::seed::Rng;

use crate::files::Habits;
use crate::harness::{Harness, RoundEnd, TRIES_MAX};
use crate::planted::Planted;
pub(crate) use v4::run as run_v4;

use crate::harness::WorkResult;
use files::V3Files;
use gateways::Gateways;
use link::{HostLink, V3Worker};
use names::V3Names;

/// Workers of one host at most: the number of its calls in flight.
const WORKERS_MAX: u64 = 3;
/// Calls whose client has gone away end in this time once no fault is left.
const QUIET_AFTER: Duration = Duration::from_secs(10);

/// One host: its link, and the worker that does one thing at a time. Workers share the link.
struct V3Host<'a> {
    link: HostLink<'a>,
    /// The numbers of its workers, among all.
    workers: Vec<u32>,
}

/// Runs the workload to its end.
pub(crate) async fn run(harness: &Harness, habits: Habits, planted: Option<Planted>) {
    harness.set_up().await;
    let mut rng = harness.fork_rng();
    set_stream_faults(harness, &mut rng);
    let gateways = Gateways::draw(harness, &mut rng);
    gateways.start().await;
    let mut hosts = Vec::new();
    let mut workers = 0;
    for index in 0..habits.clients {
        let more = 1 + rng.below(WORKERS_MAX) as u32;
        let link = HostLink::new(harness, index, 0..gateways.count());
        hosts.push(V3Host { link, workers: (workers..workers + more).collect() });
        workers += more;
    }
    let checker = HostLink::new(harness, habits.clients, 0..gateways.count());
    let habits = Habits { clients: workers, ..habits };
    let made = checker.run(set_up(&checker, habits, planted, &mut rng)).await;
    let Ok((files, names)) = made else { panic!("no crash was asked for") };
    let workload = Nfs { harness, gateways, hosts, checker, files, names };
    for _ in 0..habits.rounds {
        workload.round(habits.round_ms, &mut rng).await;
    }
}

fn set_stream_faults(harness: &Harness, rng: &mut Rng) {
    let some = |rng: &mut Rng, ppm: u64| if rng.chance(1, 2) { rng.below(ppm) as u32 } else { 0 };
    harness.cluster.world().set_stream_faults(StreamFaults {
        cut_ppm: some(rng, 20_000),
        delay_ppm: some(rng, 50_000),
        delay_max_ns: 1_000 << rng.below(16),
        piece_bytes_max: if rng.chance(1, 4) { 1 << rng.below(14) } else { 0 },
    });
}

/// Makes the files and directories that all hosts use.
async fn set_up(
    link: &HostLink<'_>,
    habits: Habits,
    planted: Option<Planted>,
    rng: &mut Rng,
) -> WorkResult<(V3Files, V3Names)> {
    let root = mount_root(link).await?;
    let files = V3Files::create(link, &root, habits, planted, 1 + rng.below(12)).await?;
    Ok((files, V3Names::create(link, &root).await?))
}

async fn mount_root(link: &HostLink<'_>) -> WorkResult<nfs_fh3> {
    let procedure = mount::MOUNT_PROGRAM::MOUNTPROC3_MNT as u32;
    let path = mount::dirpath(Opaque::borrowed(b"/"));
    for _ in 0..TRIES_MAX {
        let call = link.prepare_any([mount::PROGRAM, mount::VERSION, procedure], &path);
        match rpc::decode(&link.exchange(&call).await?) {
            mount::mountres3::Ok(mounted) => return Ok(nfs_fh3 { data: mounted.fhandle.0 }),
            // MOUNT has no word for "later".
            mount::mountres3::Err(mount::mountstat3::MNT3ERR_SERVERFAULT) => {}
            mount::mountres3::Err(status) => panic!("the root cannot be mounted: {status}"),
        }
    }
    panic!("not mounted after {TRIES_MAX} tries");
}

struct Nfs<'a> {
    harness: &'a Harness,
    gateways: Gateways<'a>,
    hosts: Vec<V3Host<'a>>,
    checker: HostLink<'a>,
    files: V3Files,
    names: V3Names,
}

impl Nfs<'_> {
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
        harness.pass(QUIET_AFTER).await;
        self.forget_twins();
        self.check(false).await;
        if rng.chance(1, 2) {
            self.files.all_committed();
            harness.stop_and_recover().await;
            self.gateways.end();
            self.after_crash().await;
        }
    }

    async fn host(&self, host: &V3Host<'_>) {
        let working = host.workers.iter().map(|&worker| {
            let rng = self.harness.fork_rng();
            self.work(V3Worker { link: &host.link, number: worker }, rng)
        });
        host.link.run(join_all(working)).await;
    }

    async fn work(&self, worker: V3Worker<'_>, mut rng: Rng) {
        let resumed = async {
            self.files.resume(&worker).await?;
            self.names.resume(&worker).await
        };
        let mut done = resumed.await;
        while done.is_ok() && !self.harness.is_over() {
            done = match rng.below(100) {
                0..65 => self.files.step(&worker, &mut rng).await,
                65..98 => self.names.step(&worker, &mut rng).await,
                _ => {
                    self.harness.pass(Duration::from_millis(rng.below(1_000))).await;
                    Ok(())
                }
            };
        }
    }

    async fn after_crash(&self) {
        self.forget_twins();
        self.files.restarted();
        self.gateways.start().await;
        self.check(true).await;
    }

    fn forget_twins(&self) {
        self.files.forget_twins();
        self.names.forget_twins();
    }

    async fn check(&self, after_crash: bool) {
        let checking = self.checker.run(async {
            self.files.check(&self.checker, after_crash).await?;
            self.names.check(&self.checker, after_crash).await
        });
        let checked = self.harness.within_limit("a check", checking).await;
        assert!(checked.is_ok(), "no crash was asked for");
    }
}
