//! Random traffic, and a hand that drives either mesh with it: for tests and measurements.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use runtime::seed::Rng;

use super::SendError;
use super::flit::FlitMesh;
use super::timing::{Delivery, Letter, Priority};
use super::worm::Mesh;

/// A mesh at any level of detail.
pub trait MeshModel {
    /// Sends a letter; see [`Mesh::send`].
    fn send(&mut self, cycle: u64, letter: Letter) -> Result<u64, SendError>;
    /// Gives room in a queue; see [`Mesh::consume`].
    fn consume(&mut self, node: u32, priority: Priority, words: u32, cycle: u64);
    /// Lets time pass up to the end of `cycle`.
    fn advance(&mut self, cycle: u64, out: &mut Vec<Delivery>);
    /// The next cycle in which anything happens.
    fn next_cycle(&self) -> Option<u64>;
}

impl MeshModel for Mesh {
    fn send(&mut self, cycle: u64, letter: Letter) -> Result<u64, SendError> {
        Mesh::send(self, cycle, letter)
    }
    fn consume(&mut self, node: u32, priority: Priority, words: u32, cycle: u64) {
        Mesh::consume(self, node, priority, words, cycle);
    }
    fn advance(&mut self, cycle: u64, out: &mut Vec<Delivery>) {
        Mesh::advance(self, cycle, out);
    }
    fn next_cycle(&self) -> Option<u64> {
        Mesh::next_cycle(self)
    }
}

impl MeshModel for FlitMesh {
    fn send(&mut self, cycle: u64, letter: Letter) -> Result<u64, SendError> {
        FlitMesh::send(self, cycle, letter)
    }
    fn consume(&mut self, node: u32, priority: Priority, words: u32, _: u64) {
        FlitMesh::consume(self, node, priority, words);
    }
    fn advance(&mut self, cycle: u64, out: &mut Vec<Delivery>) {
        FlitMesh::advance(self, cycle, out);
    }
    fn next_cycle(&self) -> Option<u64> {
        FlitMesh::next_cycle(self)
    }
}

/// Each node sends in each cycle with the same chance, to a node drawn from all.
#[derive(Clone, Debug)]
pub struct Traffic {
    rng: Rng,
    nodes: u32,
    words: u32,
    /// Chances of the binary digits of the distance to the next send, of 2^64.
    digits: Vec<u64>,
    /// Trials so far: one for each node in each cycle.
    trial: u64,
    /// Per cent that go to node 0.
    hot_percent: u64,
    /// Per cent of high priority.
    high_percent: u64,
    sent: u64,
}

impl Traffic {
    /// Uniform traffic of `nodes` main nodes: messages of `words` words at `rate` messages per node
    /// and cycle.
    #[allow(clippy::cast_sign_loss, reason = "a chance is positive")]
    pub fn uniform(seed: u64, nodes: u32, words: u32, rate: f64) -> Self {
        let (mut stay, mut digits) = (1.0 - rate, Vec::new());
        // The digits of a geometric number are independent: digit k is set with chance
        // q^(2^k) / (1 + q^(2^k)). Products and quotients only: the same on every machine.
        while stay > 1e-15 {
            digits.push((stay / (1.0 + stay) * 2f64.powi(64)) as u64);
            stay *= stay;
        }
        let mut traffic = Self {
            rng: Rng::new(seed),
            nodes,
            words,
            digits,
            trial: 0,
            hot_percent: 0,
            high_percent: 0,
            sent: 0,
        };
        traffic.pass();
        traffic
    }

    /// Percentage of messages to node 0.
    #[must_use]
    pub fn hot(self, percent: u64) -> Self {
        Self { hot_percent: percent, ..self }
    }

    /// Percentage of messages with high priority.
    #[must_use]
    pub fn high(self, percent: u64) -> Self {
        Self { high_percent: percent, ..self }
    }

    fn pass(&mut self) {
        for (digit, &chance) in self.digits.iter().enumerate() {
            self.trial += u64::from(self.rng.bits() < chance) << digit;
        }
    }
}

impl Iterator for Traffic {
    type Item = (u64, Letter);

    fn next(&mut self) -> Option<(u64, Letter)> {
        let nodes = u64::from(self.nodes);
        let (cycle, from) = (self.trial / nodes, (self.trial % nodes) as u32);
        self.trial += 1;
        self.pass();
        let mut to = self.rng.below(nodes) as u32;
        if self.hot_percent > 0 && self.rng.chance(self.hot_percent, 100) {
            to = 0;
        }
        let mut letter = Letter::new(from, to, self.words, self.sent);
        if self.high_percent > 0 && self.rng.chance(self.high_percent, 100) {
            letter.priority = Priority::High;
        }
        self.sent += 1;
        Some((cycle, letter))
    }
}

/// Latencies of messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latencies {
    /// Messages.
    pub count: u64,
    /// Cycles of all together.
    pub total: u64,
    /// Of the slowest.
    pub max: u64,
}

impl Latencies {
    /// One more.
    pub fn add(&mut self, cycles: u64) {
        self.count += 1;
        self.total += cycles;
        self.max = self.max.max(cycles);
    }

    /// In cycles.
    #[allow(clippy::cast_precision_loss, reason = "a mean has a few digits")]
    pub fn mean(&self) -> f64 {
        self.total as f64 / self.count.max(1) as f64
    }
}

impl Traffic {
    /// Sends all up to `cycles` and lets the mesh run empty. Mesh queues must never fill.
    pub fn drive(
        &mut self,
        mesh: &mut impl MeshModel,
        cycles: u64,
        mut hear: impl FnMut(&Delivery),
    ) -> Result<(), SendError> {
        let mut out = Vec::new();
        for (cycle, letter) in self.by_ref().take_while(|(cycle, _)| *cycle < cycles) {
            if let Some(before) = cycle.checked_sub(1) {
                mesh.advance(before, &mut out);
            }
            out.drain(..).for_each(|delivery| hear(&delivery));
            mesh.send(cycle, letter)?;
        }
        while let Some(next) = mesh.next_cycle() {
            mesh.advance(next, &mut out);
            out.drain(..).for_each(|delivery| hear(&delivery));
        }
        Ok(())
    }

    /// The same with queues that fill: each node takes its messages out one after the other, and
    /// `service_cycles` for each.
    pub fn drive_served(
        &mut self,
        mesh: &mut impl MeshModel,
        cycles: u64,
        service_cycles: u64,
        mut hear: impl FnMut(&Delivery),
    ) -> Result<(), SendError> {
        let mut letters = self.take_while(|(cycle, _)| *cycle < cycles).peekable();
        let mut served = BinaryHeap::new();
        let mut free_at = std::collections::BTreeMap::new();
        let mut out = Vec::new();
        let mut cycle = 0;
        loop {
            while let Some(Reverse((_, node, priority, words))) = served
                .peek()
                .copied()
                .filter(|Reverse((due, ..)): &Reverse<(u64, u32, Priority, u32)>| *due <= cycle)
            {
                served.pop();
                mesh.consume(node, priority, words, cycle);
            }
            while let Some((_, letter)) = letters.next_if(|(due, _)| *due <= cycle) {
                mesh.send(cycle, letter)?;
            }
            mesh.advance(cycle, &mut out);
            for delivery in out.drain(..) {
                let Delivery { to, priority, words, .. } = delivery;
                let free = free_at.entry((to, priority)).or_insert(0);
                *free = delivery.cycle.max(*free) + service_cycles.max(1);
                served.push(Reverse((*free, to, priority, words)));
                hear(&delivery);
            }
            let sent = letters.peek().map(|(cycle, _)| *cycle);
            let freed = served.peek().map(|Reverse((cycle, ..))| *cycle);
            let next = [mesh.next_cycle(), sent, freed].into_iter().flatten().min();
            let Some(next) = next else { return Ok(()) };
            cycle = next.max(cycle + 1);
        }
    }
}
