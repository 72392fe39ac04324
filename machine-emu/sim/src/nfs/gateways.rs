//! The gateways: where they are, and when they die.

use std::cell::Cell;
use std::time::Duration;

use nfs_gateway::{Config, Exports, Gateway, Settings};
use runtime::NodeId;
use runtime::seed::Rng;

use super::link;
use crate::harness::Harness;

/// The first application node of a gateway.
const GATEWAY_FIRST: u32 = 4;
/// Gateways at most.
const GATEWAYS_MAX: u64 = 2;

pub(super) struct Gateways<'a> {
    harness: &'a Harness,
    homes: Vec<NodeId>,
    /// How often each has started.
    starts: Vec<Cell<u64>>,
}

impl<'a> Gateways<'a> {
    /// Some, on nodes of the volume, whose fate they share, or on nodes of their own.
    pub(super) fn draw(harness: &'a Harness, rng: &mut Rng) -> Self {
        let count = 1 + rng.below(GATEWAYS_MAX) as u32;
        let fs_nodes = harness.cluster.geometry().fs_nodes;
        let apart = rng.chance(1, 2);
        let home = |index| {
            if apart {
                NodeId::application(GATEWAY_FIRST + index)
            } else {
                NodeId::fs(index % fs_nodes)
            }
        };
        let starts = vec![Cell::new(0); count as usize];
        Self { harness, homes: (0..count).map(home).collect(), starts }
    }

    /// The run that they belong to.
    pub(super) fn harness(&self) -> &'a Harness {
        self.harness
    }

    pub(super) fn count(&self) -> u32 {
        self.homes.len() as u32
    }

    /// How often gateway `index` has started.
    pub(super) fn starts(&self, index: u32) -> u64 {
        self.starts[index as usize].get()
    }

    /// Those on nodes of their own die: the power went, or they must learn of a new epoch.
    pub(super) fn end(&self) {
        for &home in &self.homes {
            if is_apart(home) {
                self.harness.cluster.world().restart(home);
            }
        }
    }

    /// All of them serve, in the epoch of their nodes.
    pub(super) async fn start(&self) {
        for index in 0..self.count() {
            self.start_one(index).await;
        }
    }

    async fn start_one(&self, index: u32) {
        let starts = &self.starts[index as usize];
        starts.set(starts.get() + 1);
        let context = self.harness.cluster.world().context(self.homes[index as usize]);
        let entropy = std::array::from_fn(|_| context.random() as u8);
        let geometry = self.harness.cluster.geometry();
        let stripe_bytes = geometry.stripe_size as usize;
        let config =
            Config { exports: exports(), stripe_bytes, ..Config::new(geometry.volume, entropy) };
        let started = Gateway::start(context, &link::address(index), config).await;
        started.unwrap_or_else(|error| panic!("gateway {index}: {error}"));
    }

    /// Now and then one on a node of its own dies and comes back, while the volume lives on.
    pub(super) async fn restart_now_and_then(&self, mut rng: Rng) {
        while !self.harness.is_over() {
            self.harness.pass(Duration::from_millis(1 + rng.below(400))).await;
            let index = rng.below(u64::from(self.count())) as u32;
            let home = self.homes[index as usize];
            if is_apart(home) && !self.harness.is_over() && rng.chance(1, 4) {
                self.harness.cluster.world().restart(home);
                self.harness.pass(Duration::from_millis(rng.below(50))).await;
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
