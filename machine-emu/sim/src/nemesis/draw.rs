//! Drawing faults from the seed.

use runtime::seed::Rng;
use runtime::{NodeId, NodeKind};

use super::{Nemesis, RestartableNodes};
use crate::cluster::SimulatedCluster;
use crate::disk_damage;
use crate::random::pick;
use crate::schedule::Fault;

/// After a move a disk node restarts within this time, at most.
const AFTER_MOVE_MAX_US: u64 = 50_000;
/// How many seconds clocks of nodes differ at most: somewhat more than a day.
const CLOCK_SKEW_MAX: u64 = 100_000;

/// How long a node that restarts is down, at most.
const AWAY_MAX_US: u64 = 200_000;
/// The logarithm of how long a host is full, at most: four seconds.
const FULL_MAX_LOG_US: u64 = 23;
/// How long before the power cut a heavy fault comes, at most.
const HEAVY_MAX_US: u64 = 200_000;

impl Nemesis {
    pub(super) fn draw_round(
        &self,
        rng: &mut Rng,
        cluster: &SimulatedCluster,
        duration_max_us: u64,
    ) -> Vec<(u64, Fault)> {
        let end_us = rng.below(duration_max_us) + 1000;
        let power = self.allowed_faults.crashes && rng.chance(3, 4);
        // The worse the fault, the nearer the end: what follows it shows little.
        let heavy = power && self.allowed_faults.heavy && rng.chance(1, 3);
        let (nodes, disks) = (cluster.nodes(), cluster.world().disks());
        let mut faults = Vec::new();
        let mut at_us = 0;
        loop {
            at_us += rng.below(self.pause_max_us) + 1;
            if at_us >= end_us {
                break;
            }
            let fault = draw_light(rng, &nodes, &disks);
            faults.extend(fault.into_iter().map(|fault| (at_us, fault)));
        }
        if !self.allowed_faults.read_errors {
            faults.retain(|(_, fault)| !matches!(fault, Fault::FailRead { .. }));
        }
        if heavy {
            let last_us = end_us.min(HEAVY_MAX_US);
            let at_us = end_us - last_us + rng.below(last_us);
            let drawn = draw_heavy(rng, &nodes, &disks);
            faults.extend(drawn.into_iter().map(|fault| (at_us, fault)));
        }
        let mut end = if power { Fault::PowerCut {} } else { Fault::End {} };
        if let Some(more) = &self.more {
            let more = &mut more.borrow_mut();
            faults.extend(draw_links(more, &nodes, end_us));
            if power && !heavy && more.chance(1, 4) {
                end = Fault::KillAll {};
            }
            if power && !heavy && self.allowed_faults.heavy && more.chance(1, 4) {
                let at_us = end_us - more.below(end_us.min(HEAVY_MAX_US));
                faults.push((at_us, Fault::Kill { node: pick(more, &nodes) }));
            }
        }
        if self.allowed_faults.damage {
            faults.extend(disk_damage::draw_in_use(rng, cluster, end_us));
        }
        faults.extend(self.draw_restarts(rng, &nodes, end_us));
        if let Some(filling) = &self.filling {
            let fails = self.allowed_faults.full_hosts_fail_flushes;
            faults.extend(draw_full_hosts(&mut filling.borrow_mut(), &disks, end_us, fails));
            if fails && matches!(end, Fault::KillAll {}) {
                // The host still shows what a failed flush has dropped, until the power goes.
                end = Fault::PowerCut {};
            }
        }
        if let Some(moving) = &self.moving {
            let may_restart = self.may_restart_nodes();
            faults.extend(draw_moves(&mut moving.borrow_mut(), &nodes, end_us, may_restart));
        }
        faults.sort_by_key(|(at_us, _)| *at_us);
        if self.allowed_faults.restarts == RestartableNodes::Once {
            let mut left = 1;
            faults.retain(|(_, fault)| {
                let is_restart = matches!(fault, Fault::Restart { .. });
                let is_kept = !is_restart || left > 0;
                left -= usize::from(is_restart && is_kept);
                is_kept
            });
        }
        faults.push((end_us, end));
        faults
    }

    fn draw_restarts(&self, rng: &mut Rng, nodes: &[NodeId], end_us: u64) -> Vec<(u64, Fault)> {
        let mut faults = Vec::new();
        let restarts = |node: &NodeId| match self.allowed_faults.restarts {
            RestartableNodes::None => false,
            RestartableNodes::Disks => matches!(node.kind(), NodeKind::Disk(_)),
            RestartableNodes::All | RestartableNodes::Once => true,
        };
        let nodes: Vec<NodeId> = nodes.iter().copied().filter(restarts).collect();
        if nodes.is_empty() || rng.chance(1, 2) {
            return faults;
        }
        let pause_max_us = 1_000 + end_us / (1 << rng.below(5));
        let mut at_us = 1 + rng.below(pause_max_us);
        while at_us < end_us {
            let for_us = 1 + rng.below(AWAY_MAX_US);
            let (node, keeps_power) = (pick(rng, &nodes), rng.chance(1, 3));
            faults.push((at_us, Fault::Restart { node, for_us, keeps_power }));
            at_us += for_us + rng.below(pause_max_us);
        }
        faults
    }
}

/// The hosts of all disks, or of one, are full for a while, now and then.
fn draw_full_hosts(
    rng: &mut Rng,
    disks: &[String],
    end_us: u64,
    fails_flushes: bool,
) -> Vec<(u64, Fault)> {
    let mut faults = Vec::new();
    let pause_max_us = 1_000 + end_us / (1 << rng.below(4));
    let mut at_us = rng.below(pause_max_us);
    while at_us < end_us {
        let for_us = 1 << rng.below(FULL_MAX_LOG_US);
        let full = if rng.chance(1, 2) { disks.to_vec() } else { vec![pick(rng, disks)] };
        let full = full.into_iter().map(|disk| Fault::HostFull { disk, for_us, fails_flushes });
        faults.extend(full.map(|fault| (at_us, fault)));
        at_us += for_us + rng.below(pause_max_us);
    }
    faults
}

/// Some file-system nodes move, now and then. What a disk node was given by a cache that moved is
/// nowhere else: after some of the moves one ends in order and comes back, and if disk nodes may
/// restart one does.
pub(super) fn draw_moves(
    rng: &mut Rng,
    nodes: &[NodeId],
    end_us: u64,
    may_restart: bool,
) -> Vec<(u64, Fault)> {
    let (nodes, disk_nodes): (Vec<NodeId>, Vec<NodeId>) =
        nodes.iter().partition(|node| matches!(node.kind(), NodeKind::Fs(_)));
    let pause_max_us = 1_000 + end_us / (1 << rng.below(4));
    let mut faults = Vec::new();
    let mut at_us = 1 + rng.below(pause_max_us);
    while at_us < end_us {
        let for_us = 1 + rng.below(AWAY_MAX_US);
        faults.push((at_us, Fault::Move { node: pick(rng, &nodes), for_us }));
        at_us += for_us;
        let returns = rng.chance(1, 3);
        let restarts = may_restart && rng.chance(1, 3);
        if returns || restarts {
            let node = pick(rng, &disk_nodes);
            let for_us = 1 + rng.below(AWAY_MAX_US);
            let after_us = 1 + rng.below(AFTER_MOVE_MAX_US);
            let fault = if returns {
                Fault::Move { node, for_us }
            } else {
                Fault::Restart { node, for_us, keeps_power: false }
            };
            faults.push((at_us + after_us, fault));
        }
        at_us += rng.below(pause_max_us);
    }
    faults.retain(|(at_us, _)| *at_us < end_us);
    faults
}

pub(super) fn draw_setup(rng: &mut Rng, nodes: &[NodeId]) -> Vec<(u64, Fault)> {
    let mut faults = Vec::new();
    if rng.chance(1, 2) {
        faults.push(Fault::Shuffle {});
    }
    let some = |rng: &mut Rng, ppm: u64| if rng.chance(1, 2) { rng.below(ppm) as u32 } else { 0 };
    let loses = rng.chance(1, 2);
    faults.push(Fault::Network {
        loss_ppm: if loses { some(rng, 20_000) } else { 0 },
        corrupt_ppm: if loses { some(rng, 5_000) } else { 0 },
        duplicate_ppm: some(rng, 50_000),
        reorder_ppm: some(rng, 200_000),
        delay_ppm: some(rng, 50_000),
        delay_max_ns: 1_000 << rng.below(14),
        jitter_ns: 1_000 << rng.below(8),
        loses_any: loses,
    });
    if rng.chance(1, 2) {
        faults.extend(nodes.iter().map(|&node| draw_jump(rng, node)));
    }
    faults.into_iter().map(|fault| (0, fault)).collect()
}

pub(super) fn draw_jump(rng: &mut Rng, node: NodeId) -> Fault {
    let seconds = rng.below(2 * CLOCK_SKEW_MAX).cast_signed() - CLOCK_SKEW_MAX.cast_signed();
    Fault::ClockJump { node, seconds }
}

pub(super) fn draw_light(rng: &mut Rng, nodes: &[NodeId], disks: &[String]) -> Vec<Fault> {
    let node = pick(rng, nodes);
    let disk = pick(rng, disks);
    let one = match rng.below(9) {
        0 => Fault::Freeze { node, for_us: 1 << rng.below(18) },
        1 => Fault::Slow { node, factor: 1 + rng.below(50), step_ns: rng.below(20_000) },
        2 => Fault::Slow { node, factor: 1, step_ns: 0 },
        3 => Fault::SlowDisk { disk, factor: 1 + rng.below(30) },
        4 => Fault::Clog { node },
        5 | 6 => return nodes.iter().map(|&node| Fault::Unclog { node }).collect(),
        7 => draw_jump(rng, node),
        _ => Fault::FailRead { disk, after: rng.below(20) },
    };
    vec![one]
}

/// A slow link, or a swizzle: some nodes are clogged one by one, and freed in another order.
pub(super) fn draw_links(rng: &mut Rng, nodes: &[NodeId], end_us: u64) -> Vec<(u64, Fault)> {
    let mut faults = Vec::new();
    let times = |rng: &mut Rng, count: usize| {
        let mut times: Vec<u64> = (0..count).map(|_| rng.below(end_us)).collect();
        times.sort_unstable();
        times
    };
    if rng.chance(1, 2) {
        let (from, to) = (pick(rng, nodes), pick(rng, nodes));
        let (latency_ns, picoseconds_per_byte) = (1_000 << rng.below(12), 100 << rng.below(10));
        let slow = Fault::SlowLink { from, to, latency_ns, picoseconds_per_byte };
        let times = times(rng, 2);
        faults.extend([(times[0], slow), (times[1], Fault::ResetLinks {})]);
    }
    if rng.chance(1, 2) {
        let mut some: Vec<NodeId> = nodes.iter().filter(|_| rng.chance(1, 2)).copied().collect();
        let times = times(rng, 2 * some.len());
        let (early, late) = times.split_at(some.len());
        faults.extend(early.iter().zip(&some).map(|(&at, &node)| (at, Fault::Clog { node })));
        for place in (1..some.len()).rev() {
            some.swap(place, rng.index(place + 1));
        }
        faults.extend(late.iter().zip(&some).map(|(&at, &node)| (at, Fault::Unclog { node })));
    }
    faults
}

pub(super) fn draw_heavy(rng: &mut Rng, nodes: &[NodeId], disks: &[String]) -> Vec<Fault> {
    let disk = pick(rng, disks);
    let after = rng.below(10);
    match rng.below(5) {
        0 => vec![Fault::FailWrite { disk, after }],
        1 => vec![Fault::FailFlush { disk, after }],
        2 => vec![Fault::FillDisk { disk, after }],
        3 => {
            let (from, to) = (pick(rng, nodes), pick(rng, nodes));
            vec![Fault::CutLink { from, to }]
        }
        _ => {
            // Two sides that do not hear each other.
            let (here, there): (Vec<NodeId>, Vec<NodeId>) =
                nodes.iter().partition(|_| rng.chance(1, 2));
            let ways = here.iter().flat_map(|&one| there.iter().map(move |&other| (one, other)));
            let both = |(one, other)| {
                [Fault::CutLink { from: one, to: other }, Fault::CutLink { from: other, to: one }]
            };
            ways.flat_map(both).collect()
        }
    }
}
