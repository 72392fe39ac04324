//! One seed, one world: the whole file system, unmodified, under the deterministic simulator.
//!
//! # Promise
//!
//! - [`run`] draws everything from one seed: the shape of the cluster, what the clients do, the
//!   faults. The same seed gives the same [`Report::trace_hash`], on any day.
//! - Each workload compares what it sees with a model of what may be, while it runs, after each
//!   crash, and at the end. A violation panics; the seed, the shape, the faults and the command that
//!   repeats the run are printed.
//! - Once the faults end everything under way must end in bounded virtual time.
//!
//! # Rooms
//!
//! | file | holds |
//! | --- | --- |
//! | `cluster.rs` | the cluster: all layers on the emulated machine, by the product's own boot code |
//! | `scene.rs` | one run: rounds of clients, power cuts, recovery |
//! | `nemesis.rs` | the faults |
//! | `versions.rs`, `content.rs` | the oracles: what a register, a file may hold |
//! | `registers.rs` | workload: sectors of the logical disk |
//! | `files.rs` | workload: content of files, by several clients; also on a volume that fills up |
//! | `names.rs` | workload: names, compared with the reference of the file layer |
//! | `entries.rs` | workload: names, while the power goes |
//! | `rivals.rs` | workload: names that several want at the same time |
//! | `burst.rs` | workload: checkpoints |

mod burst;
mod cluster;
mod content;
mod entries;
mod files;
mod names;
mod nemesis;
mod registers;
mod rivals;
mod scene;
mod versions;

use std::time::Duration;

use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use machine_emu::{Counters, DiskFaults};
use runtime::seed::Rng;

use cluster::{Layout, Phases};
use files::Habits;
use nemesis::Tolerance;
use scene::Scene;

/// No run takes so much virtual time.
const RUN_TIME_MAX: Duration = Duration::from_hours(2);

/// What clients do in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Workload {
    /// Sectors of the logical disk, without the cache.
    Disks,
    /// Sectors of the logical disk, through the cache.
    Cache,
    /// Content of a few files.
    Files,
    /// The same on a volume that is too small.
    Full,
    /// Names, compared with the reference.
    Names,
    /// Names, amid power cuts.
    Entries,
    /// Names that several clients want at the same time.
    Rivals,
    /// Checkpoints.
    Burst,
}

impl Workload {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Disks,
        Self::Cache,
        Self::Files,
        Self::Full,
        Self::Names,
        Self::Entries,
        Self::Rivals,
        Self::Burst,
    ];

    /// The name by which a test is told to run it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Disks => "disks",
            Self::Cache => "cache",
            Self::Files => "files",
            Self::Full => "full",
            Self::Names => "names",
            Self::Entries => "entries",
            Self::Rivals => "rivals",
            Self::Burst => "burst",
        }
    }

    /// The workload of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|workload| workload.name() == name)
    }

    fn tolerance(self) -> Tolerance {
        Tolerance {
            crashes: self != Self::Names,
            read_errors: matches!(self, Self::Disks | Self::Cache | Self::Files | Self::Burst),
        }
    }

    fn phases(self) -> Phases {
        match self {
            Self::Disks | Self::Cache => Phases::Stripes,
            _ => Phases::All,
        }
    }
}

/// A bug switched on, to see that it is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// Disks answer a flush and do nothing.
    LyingDisks,
}

/// What a run did.
#[derive(Clone, Debug)]
pub struct Report {
    /// Equal for equal seeds.
    pub trace_hash: u64,
    /// What happened in the world.
    pub counters: Counters,
    /// Virtual time.
    pub virtual_time: Duration,
    /// Requests of clients that were answered.
    pub operations: u64,
}

/// Runs `workload` under `seed`. Panics at the first violation.
pub fn run(workload: Workload, seed: u64) -> Report {
    run_with(workload, seed, None)
}

/// The same with a planted bug.
pub fn run_with(workload: Workload, seed: u64, planted: Option<Planted>) -> Report {
    let mut rng = Rng::new(seed);
    let mut layout = Layout::draw(&mut rng);
    if workload == Workload::Full {
        layout.stripes_per_node = stripes_of_small_volume(&layout, &mut rng);
    }
    let scene = Scene::new(seed, layout, workload.tolerance(), workload.phases());
    let told = Told { workload, seed, scene: &scene, layout };
    if planted == Some(Planted::LyingDisks) {
        plant_lying_disks(&scene);
    }
    let world = scene.cluster.world().clone();
    let working = drive(workload, &scene, &mut rng);
    let done = world.run_within(RUN_TIME_MAX, working);
    assert!(done.is_some(), "the world stands still, or never ends");
    std::mem::forget(told);
    Report {
        trace_hash: world.trace_hash(),
        counters: world.counters(),
        virtual_time: world.now(),
        operations: scene.operations(),
    }
}

/// Just enough stripes per node, and a few more.
fn stripes_of_small_volume(layout: &Layout, rng: &mut Rng) -> u64 {
    let needed = meta::store::stripes_min(&layout.geometry());
    let more = rng.below(64);
    let suffices = |&stripes_per_node: &u64| {
        let layout = Layout { stripes_per_node, ..*layout };
        meta::store::smallest_share(&layout.geometry()) >= needed
    };
    (needed + more..2 * needed).find(suffices).unwrap_or(2 * needed)
}

fn plant_lying_disks(scene: &Scene) {
    let faults = DiskFaults { ignored_sync_ppm: 1_000_000, ..DiskFaults::default() };
    let world = scene.cluster.world();
    for path in world.disks() {
        world.disk(&path).set_faults(faults);
    }
}

fn drive<'a>(workload: Workload, scene: &'a Scene, rng: &mut Rng) -> LocalBoxFuture<'a, ()> {
    let clients = 1 + rng.below(4) as u32;
    let rounds = 1 + rng.below(3) as u32;
    let round_ms = 200 << rng.below(6);
    let habits = Habits {
        clients,
        files: 1 + rng.index(4),
        blocks: 16 << rng.below(4),
        write_blocks: 1 << rng.below(5),
        fills: false,
        rounds,
        round_ms,
    };
    match workload {
        Workload::Disks | Workload::Cache => {
            let cached = workload == Workload::Cache;
            registers::run(scene, cached, clients, rounds, round_ms.min(1_000)).boxed_local()
        }
        Workload::Files => files::run(scene, habits).boxed_local(),
        Workload::Full => {
            let habits = Habits { blocks: 3_000, write_blocks: 200, fills: true, ..habits };
            files::run(scene, habits).boxed_local()
        }
        Workload::Names => names::run(scene, clients, rounds, round_ms.min(2_000)).boxed_local(),
        Workload::Entries => entries::run(scene, clients, rounds, round_ms).boxed_local(),
        Workload::Rivals => rivals::run(scene, clients, rounds, round_ms.min(1_000)).boxed_local(),
        Workload::Burst => {
            // Four generations of all clients fit on one node.
            let bytes = 1 + rng.index(512 << 10);
            burst::run(scene, clients, bytes, rounds, round_ms.min(1_000)).boxed_local()
        }
    }
}

/// Tells, if the run panics, what it was and how to repeat it.
struct Told<'a> {
    workload: Workload,
    seed: u64,
    scene: &'a Scene,
    layout: Layout,
}

impl Drop for Told<'_> {
    fn drop(&mut self) {
        let (name, seed) = (self.workload.name(), self.seed);
        eprintln!("{:?}", self.layout);
        for line in self.scene.schedule() {
            eprintln!("  {line}");
        }
        eprintln!(
            "to repeat this run: SEED={seed} WORKLOAD={name} \
             cargo test -p sim --test gate one_seed -- --ignored --nocapture"
        );
    }
}
