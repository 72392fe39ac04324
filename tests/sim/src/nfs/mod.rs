//! NFS clients and gateways: hosts speak `NFSv3` over streams that break, to gateways on nodes that
//! die, and compare what they see with what may be.
//!
//! | file | holds |
//! | --- | --- |
//! | `rpc.rs` | calls and replies as bytes |
//! | `link.rs` | one host: its connection, and the calls under way |
//! | `files.rs` | content: writes, stable and not, commits, verifiers |
//! | `names.rs` | names: made, linked, moved, removed |
//! | `look.rs` | looking at a name, a file, a directory |
//! | `rules.rs` | what the oracle must bear |

mod files;
mod link;
mod look;
mod names;
mod rpc;
mod rules;

use std::time::Duration;

use futures::FutureExt as _;
use futures::future::{LocalBoxFuture, join_all};
use machine_emu::StreamFaults;
use nfs_gateway::{Config, Exports, Gateway, Settings};
use nfs3_types::mount;
use nfs3_types::nfs3::nfs_fh3;
use nfs3_types::xdr_codec::Opaque;
use runtime::NodeId;
use runtime::seed::Rng;

use crate::Planted;
use crate::files::Habits;
use crate::scene::{End, Scene, TRIES_MAX};
use files::Files;
use link::{Link, PowerCut};
use names::Names;

/// The first application node of a gateway.
const GATEWAY_FIRST: u32 = 4;
/// Gateways at most.
const GATEWAYS_MAX: u64 = 2;
/// Workers of one host at most: so many of its calls are under way at once.
const WORKERS_MAX: u64 = 3;
/// Calls whose client has gone away end in this time once no fault is left.
const QUIET_AFTER: Duration = Duration::from_secs(10);

/// Where the gateways are.
struct Gateways<'a> {
    scene: &'a Scene,
    homes: Vec<NodeId>,
}

impl<'a> Gateways<'a> {
    /// Some, on nodes of the volume, whose fate they share, or on nodes of their own.
    fn draw(scene: &'a Scene, rng: &mut Rng) -> Self {
        let count = 1 + rng.below(GATEWAYS_MAX) as u32;
        let fs_nodes = scene.cluster.geometry().fs_nodes;
        let apart = rng.chance(1, 2);
        let home = |index| {
            if apart {
                NodeId::application(GATEWAY_FIRST + index)
            } else {
                NodeId::fs(index % fs_nodes)
            }
        };
        Self { scene, homes: (0..count).map(home).collect() }
    }

    fn count(&self) -> u32 {
        self.homes.len() as u32
    }

    /// Those on nodes of their own die: the power went, or they must learn of a new epoch.
    fn end(&self) {
        for &home in &self.homes {
            if is_apart(home) {
                self.scene.cluster.world().restart(home);
            }
        }
    }

    /// All of them serve, in the epoch of their nodes.
    async fn start(&self) {
        for index in 0..self.count() {
            self.start_one(index).await;
        }
    }

    async fn start_one(&self, index: u32) {
        let context = self.scene.cluster.world().context(self.homes[index as usize]);
        let entropy = std::array::from_fn(|_| context.random() as u8);
        let volume = self.scene.cluster.geometry().volume;
        let config = Config { exports: exports(), ..Config::new(volume, entropy) };
        let started = Gateway::start(context, &link::address(index), config).await;
        started.unwrap_or_else(|error| panic!("gateway {index}: {error}"));
    }

    /// Now and then one on a node of its own dies and comes back, while the volume lives on.
    async fn restart_now_and_then(&self, mut rng: Rng) {
        while !self.scene.is_over() {
            self.scene.pass(Duration::from_millis(1 + rng.below(400))).await;
            let index = rng.below(u64::from(self.count())) as u32;
            let home = self.homes[index as usize];
            if is_apart(home) && !self.scene.is_over() && rng.chance(1, 4) {
                self.scene.cluster.world().restart(home);
                self.scene.pass(Duration::from_millis(rng.below(50))).await;
                self.start_one(index).await;
            }
        }
    }
}

/// As an operator would let the hosts in; they come from low ports and are root.
fn exports() -> Exports {
    let table = "[[export]]\npath = '/'\n[[export.client]]\nnetwork = '10.0.0.0/24'\naccess = 'rw'\nsquash = 'no_root_squash'\n";
    let settings = Settings::parse(table, "exports of the simulation");
    settings.unwrap_or_else(|error| panic!("{error}")).exports
}

fn is_apart(home: NodeId) -> bool {
    (0..GATEWAYS_MAX as u32).any(|index| home == NodeId::application(GATEWAY_FIRST + index))
}

/// One host: its link, and the worker that does one thing at a time. Workers share the link.
struct Host<'a> {
    link: Link<'a>,
    /// The numbers of its workers, among all.
    workers: Vec<u32>,
}

/// Runs the workload to its end.
pub(crate) async fn run(scene: &Scene, habits: Habits, planted: Option<Planted>) {
    scene.set_up().await;
    let mut rng = scene.fork_rng();
    set_stream_faults(scene, &mut rng);
    let gateways = Gateways::draw(scene, &mut rng);
    gateways.start().await;
    let mut hosts = Vec::new();
    let mut workers = 0;
    for index in 0..habits.clients {
        let more = 1 + rng.below(WORKERS_MAX) as u32;
        let link = Link::new(scene, index, gateways.count());
        hosts.push(Host { link, workers: (workers..workers + more).collect() });
        workers += more;
    }
    let checker = Link::new(scene, habits.clients, gateways.count());
    let habits = Habits { clients: workers, ..habits };
    let made = checker.run(set_up(&checker, habits, planted, &mut rng)).await;
    let Ok((files, names)) = made else { panic!("no crash was asked for") };
    let workload = Nfs { scene, gateways, hosts, checker, files, names };
    for _ in 0..habits.rounds {
        workload.round(habits.round_ms, &mut rng).await;
    }
}

fn set_stream_faults(scene: &Scene, rng: &mut Rng) {
    let some = |rng: &mut Rng, ppm: u64| if rng.chance(1, 2) { rng.below(ppm) as u32 } else { 0 };
    scene.cluster.world().set_stream_faults(StreamFaults {
        cut_ppm: some(rng, 20_000),
        delay_ppm: some(rng, 50_000),
        delay_max_ns: 1_000 << rng.below(16),
        piece_bytes_max: if rng.chance(1, 4) { 1 << rng.below(14) } else { 0 },
    });
}

/// Makes the files and directories that all hosts use.
async fn set_up(
    link: &Link<'_>,
    habits: Habits,
    planted: Option<Planted>,
    rng: &mut Rng,
) -> Result<(Files, Names), PowerCut> {
    let root = mount_root(link).await?;
    let files = Files::create(link, &root, habits, planted, 1 + rng.below(12)).await?;
    Ok((files, Names::create(link, &root).await?))
}

async fn mount_root(link: &Link<'_>) -> Result<nfs_fh3, PowerCut> {
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
    panic!("mounted in vain, {TRIES_MAX} times");
}

struct Nfs<'a> {
    scene: &'a Scene,
    gateways: Gateways<'a>,
    hosts: Vec<Host<'a>>,
    checker: Link<'a>,
    files: Files,
    names: Names,
}

impl Nfs<'_> {
    async fn round(&self, round_ms: u64, rng: &mut Rng) {
        let scene = self.scene;
        let hosts = self.hosts.iter().map(|host| self.host(host).boxed_local());
        let mut working: Vec<LocalBoxFuture<'_, ()>> = hosts.collect();
        working.push(self.gateways.restart_now_and_then(scene.fork_rng()).boxed_local());
        if scene.round(working, round_ms).await == End::PowerCut {
            self.gateways.end();
            scene.come_back().await;
            return self.after_crash().await;
        }
        scene.pass(QUIET_AFTER).await;
        self.forget_twins();
        self.check(false).await;
        if rng.chance(1, 2) {
            self.files.all_committed();
            scene.stop_and_start().await;
            self.gateways.end();
            self.after_crash().await;
        }
    }

    async fn host(&self, host: &Host<'_>) {
        let working = host.workers.iter().map(|&worker| {
            let rng = self.scene.fork_rng();
            self.work(&host.link, worker, rng)
        });
        host.link.run(join_all(working)).await;
    }

    async fn work(&self, link: &Link<'_>, worker: u32, mut rng: Rng) {
        let resumed = async {
            self.files.resume(link, worker).await?;
            self.names.resume(link, worker).await
        };
        let mut done = resumed.await;
        while done.is_ok() && !self.scene.is_over() {
            done = match rng.below(100) {
                0..65 => self.files.step(link, worker, &mut rng).await,
                65..98 => self.names.step(link, worker, &mut rng).await,
                _ => {
                    self.scene.pass(Duration::from_millis(rng.below(1_000))).await;
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
        let checked = self.scene.lively("a check", checking).await;
        assert!(checked.is_ok(), "no crash was asked for");
    }
}
