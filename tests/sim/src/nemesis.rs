//! Faults drawn from the seed, and a list of what was done, for whoever reads a failure.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use machine_emu::{DiskOperation, NetworkFaults, NetworkTiming, World};
use runtime::Context;
use runtime::seed::Rng;

use super::cluster::Cluster;

/// What a workload can bear.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tolerance {
    /// Power cuts of the whole machine.
    pub(super) crashes: bool,
    /// Reads of a disk that fail once.
    pub(super) read_errors: bool,
}

/// The faults of one run.
pub(super) struct Nemesis {
    rng: RefCell<Rng>,
    tolerance: Tolerance,
    /// One step in so many milliseconds, on average half.
    pause_max_ms: u64,
    done: RefCell<Vec<String>>,
    read_errors: Cell<u64>,
    quiet: Cell<bool>,
}

impl std::fmt::Debug for Nemesis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Nemesis").field("tolerance", &self.tolerance).finish_non_exhaustive()
    }
}

/// Requests that may come twice: they change nothing.
fn is_read(protocol: u8, tag: u8) -> bool {
    match protocol {
        1 => matches!(tag, 1 | 3 | 4 | 6),
        2 => matches!(tag, 1 | 4 | 6),
        3 => matches!(tag, 3 | 5 | 6 | 13 | 14 | 16 | 23 | 26),
        4 => is_file_read(protocol, tag),
        _ => false,
    }
}

/// Requests of applications that change nothing: whoever loses one asks again.
fn is_file_read(protocol: u8, tag: u8) -> bool {
    protocol == 4 && matches!(tag, 1 | 2 | 3 | 11 | 12 | 13 | 16)
}

impl Nemesis {
    /// Faults for `cluster`, which begin with [`rage`](Self::rage).
    pub(super) fn new(seed: u64, tolerance: Tolerance) -> Self {
        let mut rng = Rng::new(seed ^ 0x000F_A017);
        let pause_max_ms = 10 << rng.below(6);
        Self {
            rng: RefCell::new(rng),
            tolerance,
            pause_max_ms,
            done: RefCell::default(),
            read_errors: Cell::new(0),
            quiet: Cell::new(true),
        }
    }

    /// What was done so far, a line each, with its virtual time.
    pub(super) fn schedule(&self) -> Vec<String> {
        self.done.borrow().clone()
    }

    /// A disk was told to fail reads: errors of storage are no bug.
    pub(super) fn has_failed_reads(&self) -> bool {
        self.read_errors.get() > 0
    }

    fn tell(&self, world: &World, what: &str) {
        self.done.borrow_mut().push(format!("{:?}: {what}", world.now()));
    }

    /// The faults of the network, for the whole run.
    pub(super) fn prepare(&self, world: &World) {
        let mut rng = self.rng.borrow_mut();
        if rng.chance(1, 2) {
            world.shuffle_steps();
        }
        let some =
            |rng: &mut Rng, ppm: u64| if rng.chance(1, 2) { rng.below(ppm) as u32 } else { 0 };
        let loses = rng.chance(1, 2);
        let faults = NetworkFaults {
            loss_ppm: if loses { some(&mut rng, 20_000) } else { 0 },
            corrupt_ppm: if loses { some(&mut rng, 5_000) } else { 0 },
            duplicate_ppm: some(&mut rng, 50_000),
            reorder_ppm: some(&mut rng, 200_000),
            delay_ppm: some(&mut rng, 50_000),
            delay_max_ns: 1_000 << rng.below(14),
        };
        if loses {
            world.set_expendable(is_file_read);
        } else {
            world.set_expendable(is_read);
        }
        world.set_network_timing(NetworkTiming {
            jitter_ns: 1_000 << rng.below(8),
            ..NetworkTiming::default()
        });
        world.set_network_faults(faults);
        drop(rng);
        self.tell(world, &format!("{faults:?}, losses: {loses}"));
    }

    /// Does harm for as long as [`calm`](Self::calm) is not called.
    pub(super) async fn rage(&self, cluster: &Cluster, context: &Context) {
        self.quiet.set(false);
        while !self.quiet.get() {
            let pause_ms = self.rng.borrow_mut().below(self.pause_max_ms) + 1;
            context.sleep(Duration::from_millis(pause_ms)).await;
            if !self.quiet.get() {
                self.strike(cluster);
            }
        }
    }

    /// Ends all faults but those of the network.
    pub(super) fn calm(&self, cluster: &Cluster) {
        self.quiet.set(true);
        let world = cluster.world();
        for node in cluster.nodes() {
            world.unclog(node);
            world.slow(node, 1, Duration::ZERO);
        }
        for path in world.disks() {
            world.disk(&path).repair();
        }
        self.tell(world, "calm");
    }

    fn strike(&self, cluster: &Cluster) {
        let world = cluster.world();
        let rng = &mut *self.rng.borrow_mut();
        let nodes = cluster.nodes();
        let node = nodes[rng.index(nodes.len())];
        let disks = world.disks();
        let path = &disks[rng.index(disks.len())];
        let what = match rng.below(8) {
            0 => {
                let duration = Duration::from_micros(1 << rng.below(18));
                world.freeze(node, duration);
                format!("{node} freezes for {duration:?}")
            }
            1 => {
                let factor = 1 + rng.below(50);
                let step = Duration::from_nanos(rng.below(20_000));
                world.slow(node, factor, step);
                format!("{node} is {factor} times as slow, a step takes {step:?}")
            }
            2 => {
                world.slow(node, 1, Duration::ZERO);
                format!("{node} is fast again")
            }
            3 => {
                let factor = 1 + rng.below(30);
                world.disk(path).slow(factor);
                format!("{path} is {factor} times as slow")
            }
            4 => {
                world.clog(node);
                format!("{node} is clogged")
            }
            5 => {
                for &node in &nodes {
                    world.unclog(node);
                }
                "nobody is clogged".to_owned()
            }
            6 => {
                let seconds = rng.below(200_000).cast_signed() - 100_000;
                world.jump_clock(node, seconds);
                format!("the clock of {node} jumps by {seconds} s")
            }
            _ => {
                if !self.tolerance.read_errors {
                    return;
                }
                self.read_errors.set(self.read_errors.get() + 1);
                let after = rng.below(20);
                world.disk(path).fail(DiskOperation::Read, after, false, std::io::ErrorKind::Other);
                format!("{path} will fail one read after {after} more")
            }
        };
        self.tell(world, &what);
    }

    /// Draws whether, and when, the power goes: `None` for an orderly end after the same time.
    pub(super) fn draw_end(&self, duration_max_ms: u64) -> (Duration, bool) {
        let mut rng = self.rng.borrow_mut();
        let after = Duration::from_micros(rng.below(duration_max_ms * 1000) + 1000);
        (after, self.tolerance.crashes && rng.chance(3, 4))
    }

    /// Draws when the power goes again while the nodes come up, if it does.
    pub(super) fn draw_relapse(&self) -> Option<Duration> {
        let mut rng = self.rng.borrow_mut();
        rng.chance(1, 4).then(|| Duration::from_micros(1 << rng.below(18)))
    }

    /// The power of everything goes.
    pub(super) fn crash(&self, cluster: &Cluster) {
        self.tell(cluster.world(), "the power of everything goes");
        cluster.world().crash_everything();
    }
}
