//! Faults of processes, of the engine, and of the links between them.

use std::time::Duration;

use cluster::membership::CLOCK_ERROR_MAX_PPM;
use machine_emu::{NetworkFaults, NetworkTiming};
use runtime::NodeId;
use runtime::seed::Rng;

use super::MembersCluster;
use super::oracle::ENGINE;
use crate::nemesis;
use crate::random::pick;
use crate::schedule::{Fault, ScheduledFault};

/// Drift of clocks against the world's, at most: two of them differ by 4 %. Keepers tolerate more.
const DRIFT_PPM_MAX: u64 = 20_000;
const _: () = assert!(DRIFT_PPM_MAX < CLOCK_ERROR_MAX_PPM, "keepers tolerate no more");
/// How late answers are that are in time still.
const LATE_MIN_US: u64 = 250_000;
const LATE_MAX_US: u64 = 390_000;
/// Duration of a round of faults, at most.
const ROUND_MAX_US: u64 = 30_000_000;
/// How long a process is down or frozen, at most: longer than its lease.
const DOWN_MAX_US: u64 = 16_000_000;
/// How long the engine is down, at most: longer than an election takes, and than a lease.
const ENGINE_DOWN_MAX_US: u64 = 16_000_000;

pub(super) struct MembersFaults<'a> {
    cluster: &'a MembersCluster,
    pause_max_us: u64,
}

impl<'a> MembersFaults<'a> {
    pub(super) fn new(cluster: &'a MembersCluster, rng: &mut Rng) -> Self {
        Self { cluster, pause_max_us: 100_000 << rng.below(6) }
    }

    fn nodes(&self) -> Vec<NodeId> {
        self.cluster.processes.iter().map(|process| process.node()).collect()
    }

    pub(super) fn draw_setup(&self, rng: &mut Rng) -> Vec<(u64, Fault)> {
        let mut faults = Vec::new();
        if rng.chance(1, 2) {
            faults.push(Fault::Shuffle {});
        }
        if rng.chance(1, 2) {
            let drifts = self.nodes().into_iter().chain([ENGINE]).map(|node| {
                let ppm = rng.below(2 * DRIFT_PPM_MAX).cast_signed() - DRIFT_PPM_MAX.cast_signed();
                Fault::ClockDrift { node, ppm }
            });
            faults.extend(drifts);
        }
        faults.into_iter().map(|fault| (0, fault)).collect()
    }

    pub(super) fn draw_round(&self, rng: &mut Rng) -> Vec<(u64, Fault)> {
        let end_us = 1_000_000 + rng.below(ROUND_MAX_US);
        let mut faults = vec![(0, draw_network(rng))];
        let mut at_us = 0;
        loop {
            at_us += 1 + rng.below(self.pause_max_us);
            if at_us >= end_us {
                break;
            }
            let drawn = if rng.chance(1, 12) {
                draw_late_answers(rng, &self.nodes())
            } else {
                draw(rng, &self.nodes()).into_iter().map(|fault| (0, fault)).collect()
            };
            faults.extend(drawn.into_iter().map(|(after_us, fault)| (at_us + after_us, fault)));
        }
        faults.sort_by_key(|(at_us, _)| *at_us);
        let end_us = faults.last().map_or(end_us, |(last_us, _)| end_us.max(*last_us));
        faults.push((end_us, Fault::End {}));
        faults
    }

    /// Does all of `items`, each at its time.
    pub(super) async fn inject(&self, items: &[ScheduledFault]) {
        let begun = self.cluster.world.now();
        for item in items {
            let at = begun + Duration::from_micros(item.at_us);
            self.cluster.sleep(at.saturating_sub(self.cluster.world.now())).await;
            self.do_one(&item.fault);
        }
    }

    fn do_one(&self, fault: &Fault) {
        let world = &self.cluster.world;
        tracing::debug!(now = ?world.now(), %fault);
        let of = |node: NodeId| self.cluster.processes.iter().find(|one| one.node() == node);
        match *fault {
            Fault::Network { loss_ppm, delay_ppm, delay_max_ns, jitter_ns, .. } => {
                world.network().set_timing(NetworkTiming { jitter_ns, ..NetworkTiming::default() });
                let rest = NetworkFaults::default();
                let faults = NetworkFaults { loss_ppm, delay_ppm, delay_max_ns, ..rest };
                world.network().set_faults(faults);
            }
            Fault::Kill { node } if node != ENGINE => {
                if let Some(process) = of(node) {
                    process.kill();
                }
            }
            Fault::Restart { node, for_us, .. } => self.restart(node, for_us),
            Fault::Evict { node } => {
                if let Some(process) = of(node) {
                    self.cluster.oracle.evict(process.id());
                }
            }
            // A schedule may hold faults of other workloads.
            _ => drop(nemesis::inject_into_nodes(world, fault)),
        }
    }

    /// A process, or the engine, dies and starts again after a while.
    fn restart(&self, node: NodeId, for_us: u64) {
        let world = self.cluster.world.clone();
        let process = self.cluster.processes.iter().find(|one| one.node() == node).cloned();
        let store = self.cluster.store.clone();
        match &process {
            Some(process) => process.kill(),
            None => world.kill(ENGINE),
        }
        let operator = self.cluster.operator().0;
        let weak = process.map(|process| std::rc::Rc::downgrade(&process));
        let rest = operator.sleep(Duration::from_micros(for_us));
        operator.task(async move {
            rest.await;
            match weak {
                Some(process) => process.upgrade().into_iter().for_each(|process| process.start()),
                None if !world.is_alive(ENGINE) => store.serve(&world.restart(ENGINE)),
                None => {}
            }
        });
    }

    /// All faults end, and the processes that are down start.
    pub(super) fn calm(&self) {
        let world = &self.cluster.world;
        world.network().heal();
        world.network().reset_links();
        world.network().set_faults(NetworkFaults::default());
        for node in self.nodes().into_iter().chain([ENGINE]) {
            world.network().unclog(node);
            world.node(node).thaw();
        }
        if !world.is_alive(ENGINE) {
            self.cluster.store.serve(&world.restart(ENGINE));
        }
        self.cluster.processes.iter().for_each(|process| process.start());
    }
}

/// Calls to the engine are carried by TCP: nothing comes twice, or is damaged. What is lost is a
/// connection that broke.
fn draw_network(rng: &mut Rng) -> Fault {
    let some = |rng: &mut Rng, ppm: u64| if rng.chance(1, 2) { rng.below(ppm) as u32 } else { 0 };
    Fault::Network {
        loss_ppm: some(rng, 100_000),
        corrupt_ppm: 0,
        duplicate_ppm: 0,
        reorder_ppm: 0,
        delay_ppm: some(rng, 200_000),
        delay_max_ns: 1_000 << rng.below(21),
        jitter_ns: 1_000 << rng.below(12),
        loses_any: false,
    }
}

/// The answers of the engine are late for a process, but in time. Then its record goes, and it
/// hears nothing more: it must not count from the last answer. Each with its time after the first.
fn draw_late_answers(rng: &mut Rng, nodes: &[NodeId]) -> Vec<(u64, Fault)> {
    let node = pick(rng, nodes);
    let latency_ns = 1_000 * (LATE_MIN_US + rng.below(LATE_MAX_US - LATE_MIN_US));
    let late = Fault::SlowLink { from: ENGINE, to: node, latency_ns, picoseconds_per_byte: 100 };
    let at_us = 1_000_000 + rng.below(2_000_000);
    // The record goes between a reading and its answer, or about then.
    let cut_us = at_us + rng.below(LATE_MIN_US);
    vec![
        (0, late),
        (at_us, Fault::Evict { node }),
        (cut_us, Fault::CutLink { from: node, to: ENGINE }),
    ]
}

fn draw(rng: &mut Rng, nodes: &[NodeId]) -> Vec<Fault> {
    let node = pick(rng, nodes);
    let cut = |from, to| Fault::CutLink { from, to };
    let both = |node| [cut(node, ENGINE), cut(ENGINE, node)];
    // Most pauses are short, some longer than a lease.
    let longest_us = DOWN_MAX_US >> rng.below(6);
    let for_us = rng.below(longest_us);
    match rng.below(15) {
        0..=2 => vec![Fault::Freeze { node, for_us }],
        3 | 4 => vec![Fault::Restart { node, for_us, keeps_power: true }],
        5 | 6 => both(node).into(),
        7 => vec![cut(ENGINE, node)],
        8 => vec![cut(node, ENGINE)],
        9 => vec![Fault::Heal {}],
        10 => vec![Fault::Clog { node }],
        11 => nodes.iter().map(|&node| Fault::Unclog { node }).collect(),
        12 => {
            let longest_us = ENGINE_DOWN_MAX_US >> rng.below(4);
            let for_us = rng.below(longest_us);
            vec![Fault::Restart { node: ENGINE, for_us, keeps_power: true }]
        }
        // No process can renew its lease until links heal, and leases end.
        13 => nodes.iter().flat_map(|&node| both(node)).collect(),
        _ => {
            let (from, to) = if rng.chance(1, 2) { (node, ENGINE) } else { (ENGINE, node) };
            let (latency_ns, picoseconds_per_byte) = (1_000 << rng.below(19), 100);
            vec![Fault::SlowLink { from, to, latency_ns, picoseconds_per_byte }]
        }
    }
}
