//! The processor of a node: what a step costs, and when the node may run again.
//!
//! By default a step takes no virtual time: the order of events matters, not the load. A slow or
//! frozen node, and later the timing of the J-Machine, differ in this file only.

/// The processor of one node.
#[derive(Debug, Default)]
pub(crate) struct Cpu {
    step_ns: u64,
    free_at_ns: u64,
}

impl Cpu {
    /// What every step costs from now on.
    pub(crate) fn set_step_ns(&mut self, step_ns: u64) {
        self.step_ns = step_ns;
    }

    /// Stands still until `until_ns`.
    pub(crate) fn freeze(&mut self, until_ns: u64) {
        self.free_at_ns = self.free_at_ns.max(until_ns);
    }

    /// Runs again at once, as fast or slow as before.
    pub(crate) fn thaw(&mut self) {
        self.free_at_ns = 0;
    }

    /// When the node may run, if not now.
    pub(crate) fn busy_until_ns(&self, now_ns: u64) -> Option<u64> {
        (self.free_at_ns > now_ns).then_some(self.free_at_ns)
    }

    /// A step begins.
    pub(crate) fn begin_step(&mut self, now_ns: u64) {
        self.free_at_ns = now_ns + self.step_ns;
    }
}
