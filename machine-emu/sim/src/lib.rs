//! One seed, one world: the whole file system, unmodified, under the deterministic simulator.
//!
//! # Promise
//!
//! - [`run`] draws everything from one seed: the shape of the cluster, what the clients do, the
//!   faults. The same seed gives the same [`RunReport::trace_hash`], on any day.
//! - Each workload compares what it sees with a model of what may be, while it runs, after each
//!   crash, and at the end.
//! - The faults of a run are a [`Schedule`]: text that is printed, edited and replayed. [`shrink`]
//!   finds a shorter one that still shows a violation.
//! - Once the faults end everything under way must end in bounded virtual time.
//!
//! # Files
//!
//! | file | holds |
//! | --- | --- |
//! | `cluster.rs` | the cluster: all layers on the emulated machine, by the product's own boot code |
//! | `harness.rs` | one run: rounds of clients, power cuts, recovery |
//! | `schedule/` | faults as data |
//! | `nemesis.rs` | drawing faults, and doing them |
//! | `shrink.rs` | shorter schedules of a failure |
//! | `regressions.rs` | cases that failed once |
//! | `disk_damage.rs` | damage to disks: where it hurts, what it may cost |
//! | `requests.rs` | requests that several workloads send |
//! | `quiet.rs` | panics that are caught are not printed |
//! | `versions.rs`, `content.rs` | the oracles: what a register, a file may hold |
//! | `history.rs` | the oracle for what happens at the same time: one order explains it |
//! | `losses.rs` | what may be lost of a file when single nodes restart |
//! | `registers.rs` | workload: sectors of the logical disk |
//! | `files.rs` | workload: content of files, by several clients; also on a volume that fills up |
//! | `operator.rs` | the same while disks are added, drained and retired; `local_engine.rs` |
//! | `names.rs` | workload: names, compared with the reference of the file layer |
//! | `entries.rs` | workload: names, while the power goes |
//! | `contention.rs` | workload: names that several want at the same time |
//! | `delegated.rs` | workload: front ends that keep files until these are recalled |
//! | `open_unlinked/` | workload: files that lose their names while programs have them open; locks |
//! | `burst.rs` | workload: checkpoints |
//! | `enumerate/` | every crash of every small workload, one after the other |
//! | `programs/` | workload: programs that use the client |
//! | `nfs/` | two workloads: NFS clients of version 3 and of 4.1, and gateways on the nodes |
//! | `emulated/` | a volume on the J-Machine: checkpoints on its mesh, the gateway at its host |
//! | `remote/` | workload: clients on other hosts, whose links break |
//! | `retention.rs` | workload: native clients send again what a crashed node has lost |
//! | `members/` | workload: processes that come, go and take over |
//! | `damage.rs` | workload: files on disks that rot, lose writes or are replaced |

mod burst;
mod classes;
mod cluster;
mod content;
mod content_form;
mod contention;
mod damage;
mod delegated;
mod disk_damage;
pub mod emulated;
mod entries;
pub mod enumerate;
mod files;
mod harness;
mod history;
mod local_engine;
mod losses;
mod members;
mod names;
mod nemesis;
mod nfs;
mod open_unlinked;
mod operator;
mod partitions;
mod planted;
mod programs;
pub mod quiet;
mod random;
mod registers;
mod regressions;
mod remote;
mod report;
mod requests;
mod retention;
pub mod schedule;
mod shrink;
mod stamps;
mod versions;

use std::collections::BTreeSet;
use std::fmt;

use blockio::RedundancyClass;
use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use machine_emu::DiskFaults;
use runtime::seed::Rng;

use cluster::{ClusterLayout, Phases};
use content_form::ContentForm;
use files::Habits;
use harness::Harness;
use nemesis::{AllowedFaults, FaultSource, Nemesis, RestartableNodes, ScheduleRecord};
use report::RUN_TIME_MAX;

pub use planted::Planted;
pub use regressions::{REGRESSIONS, RegressionCase};
pub use report::RunReport;
pub use schedule::{Fault, Schedule, ScheduleError};
pub use shrink::{ShrinkResult, shrink};

/// Says in which runs of `files` single nodes restart. Chosen so that the seeds that failed once
/// keep the faults with which they did.
const RESTARTS_SALT: u64 = 0xB5;

/// Says in which runs the nodes know that they end together, as in one process. Where single nodes
/// come back they never do.
const TOGETHER_SALT: u64 = 0x70_6E;

/// Says in which runs nodes share memory. Chosen so that the seeds that failed once keep the way in
/// which they did.
const MEMORY_SALT: u64 = 0x21_DF4;

/// Says how long the logical blocks of files are. Chosen so that the seeds that failed once keep
/// the shortest ones.
const UNIT_SALT: u64 = 0x8_10E1;

/// Says in which runs files get other classes. Chosen so that kept seeds are as they were.
const CLASS_SALT: u64 = 0xC1_A57D;

/// Says in which runs the coordination engine is slow. Chosen in the same way.
const ENGINE_SALT: u64 = 0xE6_6106;

/// Draws the number of copies of data.
const COPIES_SALT: u64 = 0xC0_91E5;

/// Draws whether data is in wide stripes, apart from what else a seed draws.
const PARITY_SALT: u64 = 0x9A_2147;

/// Draws whether chunks become wide stripes at once.
const IDLE_SALT: u64 = 0x1D_7E00;

/// Says in which runs all data is compared with its checksums again and again.
const SCRUB_SALT: u64 = 0x5C_12B0;

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
    Contention,
    /// Checkpoints.
    Burst,
    /// Programs that use the client.
    Client,
    /// NFS clients, and gateways.
    Nfs,
    /// Files on disks that are damaged.
    Damage,
    /// Files that lose their names while they are open.
    OpenUnlinked,
    /// Front ends that keep files until these are recalled.
    Delegated,
    /// Processes that take over from each other.
    Members,
    /// NFS clients with sessions, open files and locks.
    Nfs4,
    /// Native clients on other hosts.
    Remote,
    /// Native clients that send again what a node has lost.
    Retention,
    /// Content of files, while disks come and go.
    Elastic,
    /// Content of files of one partition, while others come and go.
    Partitions,
}

impl Workload {
    /// All of them.
    pub const ALL: [Self; 19] = [
        Self::Disks,
        Self::Cache,
        Self::Files,
        Self::Full,
        Self::Names,
        Self::Entries,
        Self::Contention,
        Self::Burst,
        Self::Client,
        Self::Nfs,
        Self::Damage,
        Self::OpenUnlinked,
        Self::Members,
        Self::Nfs4,
        Self::Remote,
        Self::Retention,
        Self::Elastic,
        Self::Partitions,
        Self::Delegated,
    ];

    /// The name by which it is chosen.
    pub fn name(self) -> &'static str {
        match self {
            Self::Disks => "disks",
            Self::Cache => "cache",
            Self::Files => "files",
            Self::Full => "full",
            Self::Names => "names",
            Self::Entries => "entries",
            Self::Contention => "contention",
            Self::Burst => "burst",
            Self::Client => "client",
            Self::Nfs => "nfs",
            Self::Damage => "damage",
            Self::OpenUnlinked => "open-unlinked",
            Self::Members => "members",
            Self::Nfs4 => "nfs4",
            Self::Remote => "remote",
            Self::Retention => "retention",
            Self::Elastic => "elastic",
            Self::Partitions => "partitions",
            Self::Delegated => "delegated",
        }
    }

    /// The workload of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|workload| workload.name() == name)
    }

    fn allowed_faults(self, seed: u64) -> AllowedFaults {
        AllowedFaults {
            crashes: !matches!(self, Self::Names | Self::Retention),
            read_errors: matches!(
                self,
                Self::Disks
                    | Self::Cache
                    | Self::Files
                    | Self::Burst
                    | Self::Client
                    | Self::Nfs
                    | Self::Nfs4
            ),
            heavy: !matches!(
                self,
                Self::Names
                    | Self::Client
                    | Self::Nfs
                    | Self::Nfs4
                    | Self::Remote
                    | Self::Retention
                    | Self::Damage
                    | Self::OpenUnlinked
                    | Self::Delegated
            ),
            damage: self == Self::Damage,
            full_hosts_fail_flushes: matches!(self, Self::Disks | Self::Cache),
            full_hosts: matches!(
                self,
                Self::Disks
                    | Self::Cache
                    | Self::Files
                    | Self::Names
                    | Self::Entries
                    | Self::Contention
            ),
            late_relapses: self == Self::Entries,
            moves: matches!(
                self,
                Self::Cache
                    | Self::Files
                    | Self::Full
                    | Self::Names
                    | Self::Entries
                    | Self::Contention
                    | Self::OpenUnlinked
                    | Self::Retention
                    | Self::Partitions
                    | Self::Delegated
            ),
            restarts: match self {
                Self::Disks => RestartableNodes::Disks,
                Self::Cache | Self::OpenUnlinked | Self::Delegated => RestartableNodes::All,
                // What is lost twice cannot always be ordered.
                Self::Retention if Rng::new(seed ^ RESTARTS_SALT).chance(1, 4) => {
                    RestartableNodes::All
                }
                Self::Retention => RestartableNodes::Once,
                Self::Files if Rng::new(seed ^ RESTARTS_SALT).chance(1, 2) => RestartableNodes::All,
                _ => RestartableNodes::None,
            },
        }
    }

    fn phases(self) -> Phases {
        match self {
            Self::Disks | Self::Cache => Phases::Stripes,
            _ => Phases::All,
        }
    }
}

/// A run, before it runs.
#[derive(Clone, Debug)]
pub struct Case {
    /// What clients do.
    pub workload: Workload,
    /// Draws everything that is not given here.
    pub seed: u64,
    /// The faults, if they are not to be drawn.
    pub schedule: Option<Schedule>,
    /// Of the faults that are drawn only these words are done, see [`Fault::WORDS`].
    pub faults: Option<BTreeSet<String>>,
    /// A bug switched on.
    pub planted: Option<Planted>,
}

/// A promise of the file system was broken.
#[derive(Clone, Debug)]
pub struct Violation {
    /// What was seen, and where.
    pub message: String,
    /// The shape of the cluster.
    pub layout: String,
    /// The faults up to then.
    pub schedule: Schedule,
}

impl Case {
    /// The run of `seed`, with all faults that `workload` allows.
    pub fn new(workload: Workload, seed: u64) -> Self {
        Self { workload, seed, schedule: None, faults: None, planted: None }
    }

    fn layout(&self, rng: &mut Rng) -> ClusterLayout {
        let mut layout = ClusterLayout::draw(rng);
        if self.workload == Workload::Full {
            layout.stripes_per_node = stripes_of_small_volume(&layout, rng);
        }
        if matches!(self.workload, Workload::Elastic | Workload::Partitions) {
            // What clients write fits on a part of the disks.
            layout.stripes_per_node *= 4;
        }
        if self.workload == Workload::Damage {
            // A file without room would be told as damage.
            layout.stripes_per_node *= 2;
        }
        let (unit, copies) = (self.unit(&layout), self.copies(&layout));
        if self.workload == Workload::Elastic && copies > 1 {
            // It goes on without one of them.
            layout.disk_nodes = layout.disk_nodes.max(3);
        }
        let redundancy = self.redundancy(&mut layout, copies);
        let encodes_at_once = Rng::new(self.seed ^ IDLE_SALT).chance(3, 4);
        let changes_classes =
            self.workload == Workload::Elastic && Rng::new(self.seed ^ CLASS_SALT).chance(1, 2);
        let is_scrubbed = Rng::new(self.seed ^ SCRUB_SALT).chance(1, 2);
        layout.content =
            ContentForm { unit, redundancy, changes_classes, encodes_at_once, is_scrubbed };
        layout.stripes_per_node *= u64::from(layout.content.copies_max());
        // Between the steps of a change of disks the power may go.
        layout.slow_engine =
            self.workload == Workload::Elastic && Rng::new(self.seed ^ ENGINE_SALT).chance(1, 2);
        layout
    }

    /// Does it not count blocks? Then files may be stored in other ways than usual.
    fn varies_content(&self) -> bool {
        matches!(
            self.workload,
            Workload::Files
                | Workload::Full
                | Workload::Elastic
                | Workload::Remote
                | Workload::Retention
                | Workload::Damage
                | Workload::Burst
                | Workload::Client
        )
    }

    /// Blocks of a logical block of a file: several in some runs of workloads that do not count
    /// blocks, and in those of partitions.
    fn unit(&self, layout: &ClusterLayout) -> u32 {
        let mut rng = Rng::new(self.seed ^ UNIT_SALT);
        let is_usual = !self.varies_content() || rng.chance(3, 4);
        if is_usual && self.workload != Workload::Partitions {
            return 1;
        }
        1 << (1 + rng.below(layout.geometry().blocks_per_stripe().ilog2().into()))
    }

    /// Copies of the data of files: several in some runs, on volumes of several disks.
    fn copies(&self, layout: &ClusterLayout) -> u32 {
        let mut rng = Rng::new(self.seed ^ COPIES_SALT);
        let draws = self.varies_content() && self.workload != Workload::Full;
        let disks = layout.disk_nodes * layout.disks_per_node;
        let most = disks.min(blockio::redundancy::COPIES_MAX);
        // The operator leaves room for two.
        let most = if self.workload == Workload::Elastic { most.min(2) } else { most };
        if draws && rng.chance(1, 3) { 1 + rng.below(most.into()) as u32 } else { 1 }
    }

    /// Whole chunks are in wide stripes in some runs in which disks come and go, or data has two
    /// copies. In some of the latter data has three.
    fn redundancy(&self, layout: &mut ClusterLayout, copies: u32) -> RedundancyClass {
        let mut rng = Rng::new(self.seed ^ PARITY_SALT);
        let draws = self.workload == Workload::Elastic || copies == 2;
        if draws && rng.chance(1, 3) {
            // With one more there may be a domain to spare.
            let parity = if rng.chance(1, 3) { 2 } else { 1 };
            layout.disk_nodes = 2 + parity + rng.below(2) as u32;
            let data = 2 + rng.below(u64::from(layout.disk_nodes - parity) - 1) as u8;
            return RedundancyClass::Parity { data, parity: parity as u8 };
        }
        if self.workload == Workload::Elastic && copies == 2 && rng.chance(1, 2) {
            // Two may be away, and three are left for what is written.
            layout.disk_nodes = 5;
            return RedundancyClass::Copies { count: 3 };
        }
        match copies {
            1 => RedundancyClass::None {},
            count => RedundancyClass::Copies { count: count as u8 },
        }
    }

    /// Runs it.
    pub fn run(&self) -> Result<RunReport, Violation> {
        let record = ScheduleRecord::default();
        let layout = format!("{:?}", self.layout(&mut Rng::new(self.seed)));
        let outcome = quiet::catch(|| self.run_recorded(record.clone()));
        let schedule = record.take();
        match outcome {
            Ok(report) => Ok(RunReport { schedule, ..report }),
            Err(message) => Err(Violation { message, layout, schedule }),
        }
    }

    /// Runs it; a violation panics.
    fn run_recorded(&self, record: ScheduleRecord) -> RunReport {
        let Self { workload, seed, .. } = *self;
        let mut rng = Rng::new(seed);
        let layout = self.layout(&mut rng);
        let source = match &self.schedule {
            Some(schedule) => FaultSource::Given(schedule.clone()),
            None => FaultSource::Drawn(self.faults.clone()),
        };
        if workload == Workload::Members {
            return members::run(seed, &source, &record);
        }
        let nemesis = Nemesis::new(seed, workload.allowed_faults(seed), source, record);
        let harness = Harness::new(seed, layout, nemesis, workload.phases());
        let together = workload.allowed_faults(seed).restarts == RestartableNodes::None
            && Rng::new(seed ^ TOGETHER_SALT).chance(2, 3);
        if together {
            harness.cluster.world().set_processes(1);
        }
        let mut memory = Rng::new(seed ^ MEMORY_SALT);
        if memory.chance(1, 2) {
            harness.cluster.share_memory(1 + memory.below(2) as u32);
        }
        if self.planted == Some(Planted::LyingDisks) {
            plant_lying_disks(&harness);
        }
        let world = harness.cluster.world().clone();
        let working = drive(workload, &harness, &mut rng, self.planted);
        let done = world.run_within(RUN_TIME_MAX, working);
        assert!(done.is_some(), "the world stands still, or never ends");
        RunReport {
            trace_hash: world.trace_hash(),
            counters: world.counters(),
            virtual_time: world.now(),
            operations: harness.operations(),
            schedule: Schedule::default(),
        }
    }

    /// The command that repeats it. If a schedule was given, the caller adds `--schedule` and its
    /// file.
    pub fn command(&self) -> String {
        let (name, seed) = (self.workload.name(), self.seed);
        let mut words = vec![format!("mdfs-lab sim --workload {name} --seed {seed}")];
        if self.schedule.is_none() {
            words.push("--seeds 1".to_owned());
            let faults = self.faults.iter().map(|faults| {
                let faults: Vec<&str> = faults.iter().map(String::as_str).collect();
                format!("--faults {}", faults.join(","))
            });
            words.extend(faults);
        }
        words.extend(self.planted.map(|planted| format!("--plant {}", planted.name())));
        words.join(" ")
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n{}\n{}", self.message, self.layout, self.schedule)
    }
}

/// Runs `workload` under `seed`. Panics at a violation.
pub fn run(workload: Workload, seed: u64) -> RunReport {
    let case = Case::new(workload, seed);
    case.run().unwrap_or_else(|violation| {
        panic!("{violation}to repeat this run: {}", case.command());
    })
}

/// Just enough stripes per node, and a few more.
fn stripes_of_small_volume(layout: &ClusterLayout, rng: &mut Rng) -> u64 {
    let copies = layout.map().redundancy().metadata_copies();
    let needed = meta::store::stripes_min(&layout.geometry(), copies);
    let more = rng.below(64);
    let suffices = |&stripes_per_node: &u64| {
        let layout = ClusterLayout { stripes_per_node, ..*layout };
        meta::store::smallest_share(&layout.map()) >= needed
    };
    (needed + more..2 * needed).find(suffices).unwrap_or(2 * needed)
}

fn plant_lying_disks(harness: &Harness) {
    let faults = DiskFaults { ignored_sync_ppm: 1_000_000, ..DiskFaults::default() };
    let world = harness.cluster.world();
    for path in world.disks() {
        world.disk(&path).set_faults(faults);
    }
}

fn drive<'a>(
    workload: Workload,
    harness: &'a Harness,
    rng: &mut Rng,
    planted: Option<Planted>,
) -> LocalBoxFuture<'a, ()> {
    let clients = 1 + rng.below(4) as u32;
    let rounds = 1 + rng.below(3) as u32;
    let round_ms = 200 << rng.below(6);
    let habits = Habits {
        clients,
        files: 1 + rng.index(4),
        blocks: 16 << rng.below(4),
        write_blocks: 1 << rng.below(5),
        fills: false,
        operates: false,
        partitions: false,
        rounds,
        round_ms,
    };
    match workload {
        Workload::Disks | Workload::Cache => {
            let cached = workload == Workload::Cache;
            registers::run(harness, cached, clients, rounds, round_ms.min(1_000)).boxed_local()
        }
        Workload::Files => files::run(harness, habits).boxed_local(),
        Workload::Elastic => {
            // Files of which soon no block is missing are in wide stripes.
            let (blocks, write_blocks) = if harness.cluster.content().may_have_wide_stripes() {
                // Several whole chunks are written at once.
                (96, 4 * habits.write_blocks.max(8))
            } else {
                (512, habits.write_blocks)
            };
            let habits = Habits { blocks, write_blocks, operates: true, ..habits };
            files::run(harness, habits).boxed_local()
        }
        Workload::Partitions => {
            let habits = Habits { partitions: true, ..habits };
            files::run(harness, habits).boxed_local()
        }
        Workload::Full => {
            let habits = Habits { blocks: 3_000, write_blocks: 200, fills: true, ..habits };
            files::run(harness, habits).boxed_local()
        }
        Workload::Names => names::run(harness, clients, rounds, round_ms.min(2_000)).boxed_local(),
        Workload::Entries => entries::run(harness, clients, rounds, round_ms).boxed_local(),
        Workload::Contention => {
            contention::run(harness, clients, rounds, round_ms.min(1_000)).boxed_local()
        }
        Workload::Burst => {
            // Four generations of all clients fit on one node.
            let bytes = 1 + rng.index(512 << 10);
            burst::run(harness, clients, bytes, rounds, round_ms.min(1_000)).boxed_local()
        }
        Workload::Client => programs::run(harness, habits, planted).boxed_local(),
        Workload::Nfs => nfs::run(harness, habits, planted).boxed_local(),
        Workload::Nfs4 => nfs::run_v4(harness, habits).boxed_local(),
        Workload::Remote => {
            remote::run(harness, clients, rounds, round_ms.min(3_000)).boxed_local()
        }
        Workload::Retention => retention::run(harness, clients, rounds, round_ms).boxed_local(),
        Workload::Members => unreachable!("it has a world of its own"),
        Workload::OpenUnlinked => {
            open_unlinked::run(harness, clients, rounds, round_ms).boxed_local()
        }
        Workload::Delegated => {
            // Changes wait up to 13 s for those who are silent.
            delegated::run(harness, clients, rounds, 4 * round_ms.max(1_000)).boxed_local()
        }
        Workload::Damage => {
            damage::run(harness, clients, rounds, round_ms.min(2_000)).boxed_local()
        }
    }
}
