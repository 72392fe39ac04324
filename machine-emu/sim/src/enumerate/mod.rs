//! Every crash of every small workload, in the manner of B3: all workloads of one and two
//! operations over a small vocabulary, on a fresh tiny volume; the power goes at every moment that
//! makes a difference, and of the writes that no flush has covered every subset is left, and each
//! one torn.
//!
//! # Promise
//!
//! - [`run`] runs each workload once, in a world whose disks are recorded, puts each crash state
//!   together from the record, mounts it by the product's own code in a fresh world and compares
//!   what is found with the reference model: what was answered as durable is there, everything else
//!   wholly or not at all, of a write each block by itself; space, links and names add up; and a
//!   new file can be made, written, committed and read.
//! - What a mount finds follows from the bytes on the disks alone, so an image that was mounted
//!   once is not mounted again; it is compared with every state that has it.
//! - The same options give the same numbers and violations, on any number of threads.
//!
//! # Files
//!
//! | file | holds |
//! | --- | --- |
//! | `vocabulary.rs` | the operations |
//! | `perform.rs` | doing one, of a volume or of the model |
//! | `volume.rs` | making the volume, running a workload, mounting what is left and looking at it |
//! | `tree.rs` | what a walk sees |
//! | `crashes.rs` | from a record to its crash states |
//! | `oracle.rs` | what may be found |
//! | `hostile.rs` | volumes that were tampered with |
//! | `state.rs` | the name of one state, to look at it again |

mod crashes;
mod hostile;
mod oracle;
mod perform;
mod state;
mod tree;
mod vocabulary;
pub(crate) mod volume;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use runtime::Table;
use runtime::seed::Rng;

use self::crashes::{Crashes, Point};
use self::oracle::{CrashOracle, Verdict};
use self::state::CrashState;
use self::vocabulary::{VOCABULARY, VolumeOperation};
use self::volume::{DiskImages, FoundVolume, SHAPES, VolumeShape};
use crate::planted::Planted;
use crate::quiet;

pub use self::hostile::{HostileTally, hostile};
pub use self::state::replay;

/// Violations that are reported in full, of each group of workloads; each difference once.
const REPORTED_MAX: usize = 20;

/// What to enumerate.
#[derive(Clone, Copy, Debug)]
pub struct EnumerationOptions {
    /// Operations of a workload, at most.
    pub operations: usize,
    /// Crash states, at most: each first operation on each shape of the volume has an equal share
    /// of them, and drawn workloads of several operations share what that of one leaves.
    pub states_max: u64,
    /// What is left out if there are more, and what is torn.
    pub seed: u64,
    /// Threads.
    pub threads: usize,
    /// A bug switched on, to see that it is found.
    pub planted: Option<Planted>,
}

impl Default for EnumerationOptions {
    /// All workloads of one and two operations.
    fn default() -> Self {
        Self { operations: 2, states_max: u64::MAX, seed: 1, threads: 2, planted: None }
    }
}

/// A state in which something is found that must not be.
#[derive(Clone, Debug)]
pub struct CrashViolation {
    /// What is wrong, in which state, and how to look at it again.
    pub text: String,
    /// The state, for [`replay`].
    pub state: String,
}

/// What was enumerated so far.
#[derive(Clone, Debug, Default)]
pub struct EnumerationReport {
    /// Workloads run.
    pub workloads: u64,
    /// Moments at which the power went.
    pub points: u64,
    /// States compared with the model: one moment, one choice of what is left.
    pub states: u64,
    /// Images among them that were mounted: no two of one group of workloads have the same bytes.
    pub distinct: u64,
    /// States that are wrong.
    pub wrong: u64,
    /// The first of them.
    pub violations: Vec<CrashViolation>,
}

impl EnumerationReport {
    fn add(&mut self, other: Self) {
        self.workloads += other.workloads;
        self.points += other.points;
        self.states += other.states;
        self.distinct += other.distinct;
        self.wrong += other.wrong;
        self.violations.extend(other.violations);
    }
}

/// How many workloads have up to `operations` operations, in all shapes of the volume.
pub fn workloads(operations: usize) -> u64 {
    let count = VOCABULARY.len() as u64;
    let lengths = 0..=operations as u32;
    SHAPES.len() as u64 * lengths.map(|length| count.pow(length)).sum::<u64>()
}

/// All workloads with one first operation, on one shape of the volume.
#[derive(Clone, Copy, Debug)]
struct WorkloadGroup {
    shape: VolumeShape,
    /// None: the workload that only mounts.
    first: Option<VolumeOperation>,
}

/// Enumerates. `progress` receives the sum so far after each group of workloads.
pub fn run(
    options: &EnumerationOptions,
    progress: impl Fn(&EnumerationReport) + Sync,
) -> EnumerationReport {
    let firsts = || VOCABULARY.iter().map(|(_, op)| Some(*op));
    let groups = SHAPES.into_iter().flat_map(|shape| {
        let firsts = std::iter::once(None).chain(firsts());
        firsts.map(move |first| WorkloadGroup { shape, first })
    });
    let groups: Vec<WorkloadGroup> = groups.collect();
    let share = options.states_max / groups.len() as u64;
    let next = AtomicUsize::new(0);
    let reports = Mutex::new(BTreeMap::new());
    let work = || {
        let mut volumes = Volumes::default();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(&group) = groups.get(index) else { break };
            let report = Enumeration::new(options, group, share, &mut volumes).run();
            let mut reports = reports.lock().unwrap_or_else(PoisonError::into_inner);
            reports.insert(index, report);
            progress(&sum(&reports));
        }
    };
    #[allow(clippy::disallowed_methods, reason = "each thread has worlds of its own")]
    std::thread::scope(|scope| {
        let threads = 0..options.threads.max(1);
        let threads: Vec<_> = threads.map(|_| scope.spawn(|| quiet::catch(work))).collect();
        for thread in threads {
            // Pass on why a thread panicked.
            if let Ok(Err(panic)) = thread.join() {
                panic!("{panic}");
            }
        }
    });
    sum(&reports.into_inner().unwrap_or_else(PoisonError::into_inner))
}

fn sum(reports: &BTreeMap<usize, EnumerationReport>) -> EnumerationReport {
    reports.values().fold(EnumerationReport::default(), |mut sum, report| {
        sum.add(report.clone());
        sum
    })
}

/// The volumes of a thread, made once.
#[derive(Default)]
struct Volumes(BTreeMap<&'static str, DiskImages>);

impl Volumes {
    fn of(&mut self, shape: VolumeShape) -> DiskImages {
        self.0.entry(shape.name).or_insert_with(|| volume::make(shape)).clone()
    }
}

/// One group at work.
struct Enumeration<'a> {
    options: &'a EnumerationOptions,
    group: WorkloadGroup,
    states_max: u64,
    disks: DiskImages,
    rng: Rng,
    /// What was found, by the hash of the image.
    found: Vec<Result<FoundVolume, String>>,
    mounted: Table<u64, usize>,
    /// What was reported: each difference once.
    reported: BTreeSet<(usize, String)>,
    report: EnumerationReport,
}

impl<'a> Enumeration<'a> {
    fn new(
        options: &'a EnumerationOptions,
        group: WorkloadGroup,
        states_max: u64,
        volumes: &mut Volumes,
    ) -> Self {
        let name = format!("{} {:?} {}", group.shape.name, group.first, options.seed);
        Self {
            options,
            group,
            states_max,
            disks: volumes.of(group.shape),
            rng: Rng::new(runtime::hash::xxh3(name.as_bytes())),
            found: Vec::new(),
            mounted: Table::default(),
            reported: BTreeSet::new(),
            report: EnumerationReport::default(),
        }
    }

    fn run(mut self) -> EnumerationReport {
        let Some(first) = self.group.first else {
            self.workload(&[]);
            return self.report;
        };
        self.workload(&[first]);
        for length in 2..=self.options.operations {
            for rest in self.rests(length - 1) {
                if self.is_over() {
                    return self.report;
                }
                let ops: Vec<VolumeOperation> = std::iter::once(first).chain(rest).collect();
                self.workload(&ops);
            }
        }
        self.report
    }

    fn is_over(&self) -> bool {
        self.report.states >= self.states_max
    }

    /// All sequences of `length` operations, in a drawn order.
    fn rests(&mut self, length: usize) -> Vec<Vec<VolumeOperation>> {
        let mut rests: Vec<Vec<VolumeOperation>> = vec![vec![]];
        for _ in 0..length {
            let longer = rests.iter().flat_map(|rest| {
                VOCABULARY.iter().map(move |(_, op)| {
                    let mut rest = rest.clone();
                    rest.push(*op);
                    rest
                })
            });
            rests = longer.collect();
        }
        for last in (1..rests.len()).rev() {
            rests.swap(last, self.rng.index(last + 1));
        }
        rests
    }

    fn workload(&mut self, ops: &[VolumeOperation]) {
        self.report.workloads += 1;
        let recorded = volume::record(self.group.shape, &self.disks, ops, self.options.planted);
        let mut oracles = BTreeMap::new();
        let crashes = Crashes::new(&recorded, self.disks.clone(), first_mark(ops));
        for (number, point) in crashes.enumerate() {
            if self.is_over() {
                return;
            }
            self.report.points += 1;
            let oracle = oracles
                .entry(point.stage)
                .or_insert_with(|| CrashOracle::new(ops, &recorded.done, point.stage));
            self.point(ops, number, &point, oracle);
        }
    }

    fn point(
        &mut self,
        ops: &[VolumeOperation],
        number: usize,
        point: &Point,
        oracle: &CrashOracle,
    ) {
        let mut room = Vec::new();
        let mut verdicts: BTreeMap<usize, Verdict> = BTreeMap::new();
        for fates in point.fates(&mut self.rng) {
            if self.is_over() {
                return;
            }
            self.report.states += 1;
            let hash = point.hash(&fates, &mut room);
            let found = self.mounted.get(&hash).copied().unwrap_or_else(|| {
                self.report.distinct += 1;
                self.inspect(point, &fates)
            });
            self.mounted.insert(hash, found);
            let verdict = verdicts.entry(found).or_insert_with(|| oracle.judge(&self.found[found]));
            match verdict {
                Verdict::Sound => {}
                Verdict::Wrong(why) => {
                    self.report.wrong += 1;
                    if self.reported.len() < REPORTED_MAX
                        && self.reported.insert((ops.len(), why.clone()))
                    {
                        let shape = self.group.shape;
                        let (ops, planted) = (ops.to_vec(), self.options.planted);
                        let state = CrashState { shape, ops, point: number, fates, planted };
                        self.report.violations.push(state.violation(why, point));
                    }
                }
            }
        }
    }

    /// Mounts an image; where what it holds is kept. Many images hold the same.
    fn inspect(&mut self, point: &Point, fates: &[crashes::WriteFate]) -> usize {
        let found = volume::inspect(self.group.shape, &point.image(fates));
        let known = self.found.iter().position(|known| *known == found);
        known.unwrap_or_else(|| {
            self.found.push(found);
            self.found.len() - 1
        })
    }
}

/// Crashes of a workload are those since its last operation began: what was before belongs to
/// a shorter workload.
fn first_mark(ops: &[VolumeOperation]) -> usize {
    2 * ops.len()
}
