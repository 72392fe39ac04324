//! Faults: drawn from the seed part by part, or taken from a schedule that was given; and done.

mod draw;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use futures::future::join_all;
use machine_emu::{DiskOperation, FaultTolerance, LinkTiming, NetworkFaults, NetworkTiming, World};
use runtime::seed::Rng;
use runtime::{Context, NodeId};
use volume::NodeHandover;

use crate::cluster::SimulatedCluster;
use crate::disk_damage::{self, DiskDamage};
use crate::harness::Harness;
use crate::schedule::{Fault, RunPart, Schedule, ScheduledFault};

use draw::draw_setup;

/// Which nodes may restart while the others live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RestartableNodes {
    /// None: no other node takes over their work.
    None,
    /// Disk nodes.
    Disks,
    All,
    /// All, but no more than once in a round.
    Once,
}

impl RestartableNodes {
    /// Nodes of all kinds may restart.
    fn is_all(self) -> bool {
        matches!(self, Self::All | Self::Once)
    }
}

/// The faults that a workload allows.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is a kind of fault, named where it is set")]
pub(super) struct AllowedFaults {
    /// Power cuts of the whole machine.
    pub(super) crashes: bool,
    /// Reads of a disk that fail once.
    pub(super) read_errors: bool,
    /// Restarts of single nodes.
    pub(super) restarts: RestartableNodes,
    /// Faults after which nothing is certain until the power was cut.
    pub(super) heavy: bool,
    /// Nodes that move by plan.
    pub(super) moves: bool,
    /// Damage to the bytes of disks.
    pub(super) damage: bool,
    /// Hosts of disks that are full for a while.
    pub(super) full_hosts: bool,
    /// Their disks may forget what was answered: as a node that restarts, which the workload knows.
    pub(super) full_hosts_fail_flushes: bool,
    /// The power may be cut once more after a mount, before any client uses the volume.
    pub(super) late_relapses: bool,
}

/// Where the faults of a run come from.
#[derive(Clone, Debug)]
pub(super) enum FaultSource {
    /// The seed; only faults of these words, if any are named.
    Drawn(Option<BTreeSet<String>>),
    Given(Schedule),
}

impl FaultSource {
    /// The faults of `part`: those given, or drawn by `draw`; they are added to `record`.
    pub(super) fn plan(
        &self,
        part: RunPart,
        record: &ScheduleRecord,
        draw: impl FnOnce() -> Vec<(u64, Fault)>,
    ) -> Vec<ScheduledFault> {
        let items = match self {
            Self::Given(schedule) => schedule.of(part),
            Self::Drawn(words) => {
                let allowed = |fault: &Fault| {
                    let word = fault.word();
                    fault.ends_fault() || words.as_ref().is_none_or(|words| words.contains(word))
                };
                let items = draw().into_iter().filter(|(_, fault)| allowed(fault));
                items.map(|(at_us, fault)| ScheduledFault { part, at_us, fault }).collect()
            }
        };
        record.borrow_mut().items.extend(items.iter().cloned());
        items
    }
}

/// The faults of a run so far; part of the report of a failure.
pub(super) type ScheduleRecord = Rc<RefCell<Schedule>>;

/// The faults of one run.
pub(super) struct Nemesis {
    source: FaultSource,
    rng: RefCell<Rng>,
    /// Draws what only some seeds suffer: slow links, swizzles, processes that die.
    more: Option<RefCell<Rng>>,
    allowed_faults: AllowedFaults,
    /// The longest pause between two faults; on average half of it.
    pause_max_us: u64,
    record: ScheduleRecord,
    rounds: Cell<u32>,
    rests: Cell<u32>,
    recoveries: Cell<u32>,
    disk_damage: DiskDamage,
    read_errors: Cell<u64>,
    /// What it was when the round began.
    read_errors_before: Cell<u64>,
    restarts: Cell<u64>,
    moves: Cell<u64>,
    moves_ended: Cell<u64>,
    /// Draws what moves by plan, which only some seeds suffer.
    moving: Option<RefCell<Rng>>,
    heavy: Cell<bool>,
    hosts_filled: Cell<u64>,
    /// Draws when hosts are full, which only some seeds suffer.
    filling: Option<RefCell<Rng>>,
    /// In how many processes the nodes live, if some share one.
    processes: Option<u32>,
}

impl std::fmt::Debug for Nemesis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Nemesis")
            .field("allowed_faults", &self.allowed_faults)
            .finish_non_exhaustive()
    }
}

/// The tolerance of requests if any may be lost, as on a link that breaks.
fn tolerance_if_lossy(protocol: u8, tag: u8) -> FaultTolerance {
    if is_repeatable(protocol, tag) { FaultTolerance::All } else { FaultTolerance::Loss }
}

/// Their tolerance if none is lost for good.
fn tolerance_of_reads(protocol: u8, tag: u8) -> FaultTolerance {
    if is_read(protocol, tag) { FaultTolerance::All } else { FaultTolerance::Nothing }
}

/// Requests that may come twice: they change nothing, or are done once.
fn is_read(protocol: u8, tag: u8) -> bool {
    match protocol {
        1 => matches!(tag, 1 | 3 | 4 | 6),
        2 => matches!(tag, 1 | 4 | 6),
        // Groups in transfer too: requests about them stay valid however old they are.
        3 => matches!(tag, 3 | 5 | 6 | 13 | 14 | 16 | 23..=26 | 56),
        4 => is_repeatable(protocol, tag),
        _ => false,
    }
}

/// Requests of applications that change nothing, or have a call id: a lost one is repeated.
fn is_repeatable(protocol: u8, tag: u8) -> bool {
    protocol == 4 && matches!(tag, 1 | 2 | 3 | 5..=10 | 11 | 12 | 13 | 16)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RoundEnding {
    /// In order.
    Orderly,
    /// The power of everything goes.
    Power,
    /// All processes die, the disks keep their power.
    Death,
}

#[derive(Debug)]
pub(super) struct FaultRound {
    faults: Vec<ScheduledFault>,
    /// Virtual time since its beginning.
    pub(super) end: Duration,
    pub(super) ending: RoundEnding,
}

impl Nemesis {
    /// Faults from `source`, which are added to `record`.
    pub(super) fn new(
        seed: u64,
        allowed_faults: AllowedFaults,
        source: FaultSource,
        record: ScheduleRecord,
    ) -> Self {
        let mut rng = Rng::new(seed ^ 0x000F_A017);
        let mut more = Rng::new(seed ^ MORE_SALT);
        let mut processes = Rng::new(seed ^ PROCESSES_SALT);
        let mut moving = Rng::new(seed ^ MOVES_SALT);
        let mut filling = Rng::new(seed ^ FULL_HOSTS_SALT);
        // A start that cannot read a disk ends the process.
        let tolerates_failed_starts =
            allowed_faults.restarts.is_all() || !allowed_faults.read_errors;
        let may_move = allowed_faults.moves && tolerates_failed_starts;
        let pause_max_us = 10_000 << rng.below(6);
        Self {
            source,
            rng: RefCell::new(rng),
            more: (more.chance(1, 2) || allowed_faults.damage).then(|| RefCell::new(more)),
            allowed_faults,
            pause_max_us,
            record,
            rounds: Cell::new(0),
            rests: Cell::new(0),
            recoveries: Cell::new(0),
            disk_damage: DiskDamage::default(),
            read_errors: Cell::new(0),
            read_errors_before: Cell::new(0),
            restarts: Cell::new(0),
            moves: Cell::new(0),
            moves_ended: Cell::new(0),
            moving: (may_move && moving.chance(1, 2)).then(|| RefCell::new(moving)),
            heavy: Cell::new(false),
            hosts_filled: Cell::new(0),
            filling: (allowed_faults.full_hosts && filling.chance(1, 3))
                .then(|| RefCell::new(filling)),
            processes: (allowed_faults.restarts.is_all() && processes.chance(1, 2))
                .then(|| 1 + processes.below(3) as u32),
        }
    }

    /// Read errors were injected: storage errors are no bug.
    pub(super) fn has_failed_reads(&self) -> bool {
        self.read_errors.get() > 0
    }

    /// The same since the present round began.
    pub(super) fn has_failed_reads_now(&self) -> bool {
        self.read_errors.get() > self.read_errors_before.get()
    }

    /// Single nodes may restart while others live.
    pub(super) fn may_restart_nodes(&self) -> bool {
        !matches!(self.allowed_faults.restarts, RestartableNodes::None)
    }

    /// A host was full: writes were refused.
    pub(super) fn has_filled_hosts(&self) -> bool {
        self.hosts_filled.get() > 0
    }

    /// Errors mean nothing until the power is cut.
    pub(super) fn is_heavy(&self) -> bool {
        self.heavy.get()
    }

    /// The faults of `part`: those given, or drawn by `draw`.
    fn plan(
        &self,
        part: RunPart,
        draw: impl FnOnce(&mut Rng) -> Vec<(u64, Fault)>,
    ) -> Vec<ScheduledFault> {
        let draw = || draw(&mut self.rng.borrow_mut());
        self.source.plan(part, &self.record, draw)
    }

    /// The faults of the whole run: those of messages, and shared processes.
    pub(super) fn prepare(&self, cluster: &SimulatedCluster) {
        let nodes = cluster.nodes();
        let draw = |rng: &mut Rng| {
            let mut faults = draw_setup(rng, &nodes);
            faults.extend(self.processes.map(|count| (0, Fault::Processes { count })));
            faults
        };
        for item in self.plan(RunPart::Setup, draw) {
            self.inject(cluster, &item.fault);
        }
    }

    /// The faults of the next round, which takes `duration_max_ms` at most.
    pub(super) fn begin_round(
        &self,
        cluster: &SimulatedCluster,
        duration_max_ms: u64,
    ) -> FaultRound {
        self.rounds.set(self.rounds.get() + 1);
        self.read_errors_before.set(self.read_errors.get());
        let part = RunPart::Round(self.rounds.get());
        let faults = self.plan(part, |rng| self.draw_round(rng, cluster, duration_max_ms * 1000));
        let end = faults.iter().position(|item| item.fault.is_end());
        let count = end.unwrap_or(faults.len());
        let end_us = end.map_or(duration_max_ms * 1000, |at| faults[at].at_us);
        let heavy = faults[..count].iter().any(|item| item.fault.is_heavy());
        let ending = match end.map(|at| &faults[at].fault) {
            Some(Fault::KillAll {}) => RoundEnding::Death,
            Some(Fault::PowerCut {}) => RoundEnding::Power,
            _ if heavy => RoundEnding::Power,
            _ => RoundEnding::Orderly,
        };
        let faults = faults.into_iter().take(count).collect();
        FaultRound { faults, end: Duration::from_micros(end_us), ending }
    }

    /// Injects the faults of `round`, and returns when it ends.
    pub(super) async fn inject_round(
        &self,
        round: &FaultRound,
        cluster: &SimulatedCluster,
        context: &Context,
    ) {
        let mut now = Duration::ZERO;
        for item in &round.faults {
            let at = Duration::from_micros(item.at_us);
            context.sleep(at.saturating_sub(now)).await;
            now = now.max(at);
            self.inject(cluster, &item.fault);
        }
        context.sleep(round.end.saturating_sub(now)).await;
    }

    /// Ends all faults but those of the network.
    pub(super) fn calm(cluster: &SimulatedCluster) {
        let world = cluster.world();
        world.network().heal();
        world.network().reset_links();
        for node in cluster.nodes() {
            world.network().unclog(node);
            world.node(node).slow(1, Duration::ZERO);
        }
        for path in world.disks() {
            world.disk(&path).repair();
        }
    }

    /// Restarts or moves one node after the other, as `round` says, until the round is over.
    pub(super) async fn restart_nodes(&self, round: &FaultRound, harness: &Harness) {
        let world = harness.cluster.world();
        let begin = world.now();
        for item in &round.faults {
            if !matches!(item.fault, Fault::Restart { .. } | Fault::Move { .. }) {
                continue;
            }
            let at = begin + Duration::from_micros(item.at_us);
            harness.pass(at.saturating_sub(world.now())).await;
            if harness.is_over() {
                return;
            }
            match item.fault {
                Fault::Restart { node, for_us, keeps_power } => {
                    let nodes = world.process_of(node);
                    for node in &nodes {
                        if keeps_power {
                            world.kill(*node);
                        } else {
                            world.crash(*node);
                        }
                    }
                    self.count_restart();
                    let pause = Duration::from_micros(for_us);
                    self.restart_until_up(&nodes, pause, harness).await;
                }
                Fault::Move { node, for_us } => {
                    let pause = Duration::from_micros(for_us);
                    let kind = |node: &NodeId| std::mem::discriminant(&node.kind());
                    let mut nodes = world.process_of(node);
                    nodes.retain(|other| kind(other) == kind(&node));
                    self.move_nodes(nodes, pause, harness).await;
                }
                _ => {}
            }
            if harness.is_power_off() || self.is_heavy() {
                return;
            }
        }
    }

    /// Starts nodes again that have died.
    async fn restart_until_up(&self, nodes: &[NodeId], pause: Duration, harness: &Harness) {
        // The start may meet an injected read error: then it is tried once more.
        for tries in 1.. {
            harness.pass(pause).await;
            if harness.is_power_off() {
                return;
            }
            if tries > 1 {
                // What it was given since the last try is lost.
                self.count_restart();
            }
            match harness.cluster.restart_some(nodes, harness.phases()).await {
                Ok(()) => return,
                Err(_) if harness.is_power_off() || harness.is_uncertain() => return,
                Err(error) => assert!(tries < STARTS_MAX, "{nodes:?} cannot come back: {error}"),
            }
        }
    }

    /// The disk nodes of a process end in order and start again, or its file-system nodes move: all
    /// hand over at the same time, and each starts as soon as it has.
    async fn move_nodes(&self, nodes: Vec<NodeId>, pause: Duration, harness: &Harness) {
        self.moves.set(self.moves.get() + 1);
        let moving = nodes.into_iter().map(async |node| {
            let Some(handed) = self.hand_over(node, harness).await else { return };
            harness.pass(pause).await;
            if harness.is_power_off() {
                return;
            }
            match harness.cluster.take_over(node, handed, harness.phases()).await {
                Ok(()) => {}
                Err(_) if harness.is_power_off() || harness.is_uncertain() => {}
                Err(_) if self.may_restart_nodes() => {
                    // A process that cannot begin a node ends, and begins it anew.
                    self.count_restart();
                    self.restart_until_up(&[node], pause, harness).await;
                }
                Err(error) => panic!("{node} cannot go on elsewhere: {error}"),
            }
        });
        join_all(moving).await;
        self.moves_ended.set(self.moves_ended.get() + 1);
    }

    /// Asks a node to hand over until it has; `None` if it never will.
    async fn hand_over(&self, node: NodeId, harness: &Harness) -> Option<NodeHandover> {
        for _ in 0..HAND_OVERS_MAX {
            match harness.cluster.hand_over(node, harness.phases()).await {
                Ok(handed) => return Some(handed),
                Err(_) if harness.is_power_off() || harness.is_uncertain() => return None,
                Err(error) => tracing::debug!(%node, %error, "it does not hand over yet"),
            }
            harness.pass(HAND_OVER_PAUSE).await;
        }
        panic!("{node} does not hand over");
    }

    /// Times at which nodes were moved by plan.
    pub(super) fn moves(&self) -> u64 {
        self.moves.get()
    }

    /// Those of them that are over.
    pub(super) fn moves_ended(&self) -> u64 {
        self.moves_ended.get()
    }

    /// Single nodes that have restarted so far while others lived, and what else
    /// [counts as one](Self::count_restart).
    pub(super) fn restarts(&self) -> u64 {
        self.restarts.get()
    }

    /// What no commit covers may be lost, as when a node restarts.
    pub(super) fn count_restart(&self) {
        self.restarts.set(self.restarts.get() + 1);
    }

    /// When the power goes again while the nodes come up, if it does.
    pub(super) fn relapse(&self) -> Option<Duration> {
        self.recoveries.set(self.recoveries.get() + 1);
        let items = self.plan(RunPart::Recovery(self.recoveries.get()), |rng| {
            let at_us = if rng.chance(1, 4) {
                Some(1 << rng.below(18))
            } else {
                let late = self.relapses_late() && rng.chance(1, 4);
                late.then(|| LATE_MIN_US + rng.below(LATE_MIN_US))
            };
            at_us.map(|at_us| (at_us, Fault::PowerCut {})).into_iter().collect()
        });
        let power = items.iter().find(|item| item.fault == Fault::PowerCut {});
        power.map(|item| Duration::from_micros(item.at_us))
    }

    /// A relapse may come when the volume is mounted already.
    pub(super) fn relapses_late(&self) -> bool {
        self.allowed_faults.late_relapses
    }

    /// Does the damage of the next time at which nothing runs.
    pub(super) fn damage_disks(&self, cluster: &SimulatedCluster) {
        self.rests.set(self.rests.get() + 1);
        let part = RunPart::Rest(self.rests.get());
        for item in self.plan(part, |rng| disk_damage::draw_at_rest(rng, cluster)) {
            self.inject(cluster, &item.fault);
        }
    }

    /// What was done to the bytes of disks since [`DiskDamage::forget`].
    pub(super) fn disk_damage(&self) -> &DiskDamage {
        &self.disk_damage
    }

    /// All processes die, the disks keep their power.
    pub(super) fn kill(&self, cluster: &SimulatedCluster) {
        cluster.nodes().into_iter().for_each(|node| cluster.world().kill(node));
        self.heavy.set(false);
    }

    /// The power of everything goes.
    pub(super) fn crash(&self, cluster: &SimulatedCluster) {
        cluster.world().crash_everything();
        self.heavy.set(false);
    }

    fn inject(&self, cluster: &SimulatedCluster, fault: &Fault) {
        let world = cluster.world();
        tracing::debug!(now = ?world.now(), %fault);
        if fault.is_heavy() {
            self.heavy.set(true);
        }
        let fail = |disk: &str, operation, after, sticky, kind| {
            world.disk(disk).fail(operation, after, sticky, kind);
        };
        let broken = std::io::ErrorKind::Other;
        match fault {
            Fault::Network { .. } => set_network(cluster, fault),
            Fault::Slow { node, factor, step_ns } => {
                world.node(*node).slow(*factor, Duration::from_nanos(*step_ns));
            }
            Fault::SlowDisk { disk, factor } => world.disk(disk).slow(*factor),
            Fault::Processes { count } => world.set_processes(*count),
            Fault::ClockJump { node, seconds } => world.node(*node).jump_clock(*seconds),
            Fault::FailRead { disk, after } => {
                self.read_errors.set(self.read_errors.get() + 1);
                fail(disk, DiskOperation::Read, *after, false, broken);
            }
            // Where data have copies, a disk that fails is given up: the operator breaks them.
            Fault::FailWrite { .. } | Fault::FailFlush { .. } if cluster.data_copies() > 1 => {}
            Fault::FailWrite { disk, after } => {
                fail(disk, DiskOperation::Write, *after, true, broken);
            }
            Fault::FailFlush { disk, after } => {
                fail(disk, DiskOperation::Sync, *after, false, broken);
            }
            Fault::FillDisk { disk, after } => {
                let full = std::io::ErrorKind::StorageFull;
                self.hosts_filled.set(self.hosts_filled.get() + 1);
                fail(disk, DiskOperation::Write, *after, true, full);
            }
            Fault::HostFull { disk, for_us, fails_flushes } => {
                self.hosts_filled.set(self.hosts_filled.get() + 1);
                world.disk(disk).fill_host(Duration::from_micros(*for_us), *fails_flushes);
            }
            // The caller of the round does these.
            Fault::Restart { .. }
            | Fault::Move { .. }
            | Fault::PowerCut {}
            | Fault::KillAll {}
            | Fault::End {} => {}
            fault if inject_into_nodes(world, fault) => {}
            damage => self.disk_damage.inject(cluster, damage),
        }
    }
}

/// Chosen so that the seeds that failed once keep the faults with which they did.
const MORE_SALT: u64 = 0x00E7_7A68;
/// The same for seeds whose nodes share processes.
const PROCESSES_SALT: u64 = 0x0009_40CE;
const MOVES_SALT: u64 = 0x000A_30FE;
const FULL_HOSTS_SALT: u64 = 0x00F0_1105;
/// Tries of a hand-over, with a pause between.
const HAND_OVERS_MAX: u32 = 1_000;
const HAND_OVER_PAUSE: Duration = Duration::from_millis(20);
/// Starts of one node until it comes back, at most.
const STARTS_MAX: u32 = 100;
/// Most volumes are mounted after this.
const LATE_MIN_US: u64 = 200_000;

/// Does a fault of nodes, or of the links between them. False if it is another fault.
pub(super) fn inject_into_nodes(world: &World, fault: &Fault) -> bool {
    match *fault {
        Fault::Shuffle {} => world.shuffle_steps(),
        Fault::Freeze { node, for_us } => world.node(node).freeze(Duration::from_micros(for_us)),
        Fault::Clog { node } => world.network().clog(node),
        Fault::Unclog { node } => world.network().unclog(node),
        Fault::ClockDrift { node, ppm } => {
            world.node(node).drift_clock(i32::try_from(ppm).unwrap_or_default());
        }
        Fault::CutLink { from, to } => world.network().cut(from, to),
        Fault::Heal {} => world.network().heal(),
        Fault::SlowLink { from, to, latency_ns, picoseconds_per_byte } => {
            let timing = LinkTiming { latency_ns, picoseconds_per_byte, tcp: None };
            world.network().slow_link(from, to, timing);
        }
        Fault::ResetLinks {} => world.network().reset_links(),
        Fault::Kill { node } => world.kill(node),
        _ => return false,
    }
    true
}

fn set_network(cluster: &SimulatedCluster, fault: &Fault) {
    let &Fault::Network {
        loss_ppm,
        corrupt_ppm,
        duplicate_ppm,
        reorder_ppm,
        delay_ppm,
        delay_max_ns,
        jitter_ns,
        loses_any,
    } = fault
    else {
        return;
    };
    let network = cluster.world().network();
    network.set_fault_tolerance(if loses_any { tolerance_if_lossy } else { tolerance_of_reads });
    network.set_timing(NetworkTiming { jitter_ns, ..NetworkTiming::default() });
    network.set_faults(NetworkFaults {
        loss_ppm,
        duplicate_ppm,
        reorder_ppm,
        corrupt_ppm,
        delay_ppm,
        delay_max_ns,
    });
}
