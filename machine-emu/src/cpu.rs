//! The processor of a node: what a step costs, and when the node may run again.
//!
//! By default a step takes no virtual time: the order of events matters, not the load. A slow or
//! frozen node, and the timing of the J-Machine, differ in this file only.

use std::rc::Rc;

use runtime::Class;

use crate::jmachine::{Levels, NodeCosts, PriorityLevel};

/// The processor of one node.
#[derive(Debug, Default)]
pub(crate) struct Cpu {
    step_ns: u64,
    free_at_ns: u64,
    mdp: Option<MdpCpu>,
}

/// A processor on which everything costs time.
#[derive(Debug)]
struct MdpCpu {
    costs: Rc<NodeCosts>,
    levels: Levels,
    /// Of the step that runs, or ran last.
    level: PriorityLevel,
}

/// Control overtakes bulk; the background is what waits for an idle node.
fn level_of(class: Class) -> PriorityLevel {
    match class {
        Class::Control => PriorityLevel::P1,
        Class::Bulk => PriorityLevel::P0,
    }
}

impl Cpu {
    /// What every step costs from now on.
    pub(crate) fn set_step_ns(&mut self, step_ns: u64) {
        self.step_ns = step_ns;
    }

    /// From now on messages and steps cost what they cost on a J-Machine.
    pub(crate) fn load(&mut self, costs: Rc<NodeCosts>) {
        self.mdp = Some(MdpCpu { costs, levels: Levels::default(), level: PriorityLevel::P0 });
    }

    /// Stands still until `until_ns`.
    pub(crate) fn freeze(&mut self, until_ns: u64) {
        self.free_at_ns = self.free_at_ns.max(until_ns);
    }

    /// Runs again at once, as fast or slow as before.
    pub(crate) fn thaw(&mut self) {
        self.free_at_ns = 0;
    }

    /// When the node may run a task of this class, if not now.
    pub(crate) fn busy_until_ns(&self, now_ns: u64, class: Class) -> Option<u64> {
        let level_ns = self.mdp.as_ref().map_or(0, |mdp| mdp.levels.free_ns(level_of(class)));
        let free_ns = self.free_at_ns.max(level_ns);
        (free_ns > now_ns).then_some(free_ns)
    }

    /// True if control need not wait for bulk that is at work.
    pub(crate) fn has_levels(&self) -> bool {
        self.mdp.is_some()
    }

    /// A step of a task of this class begins.
    pub(crate) fn begin_step(&mut self, now_ns: u64, class: Class) {
        self.free_at_ns = now_ns + self.step_ns;
        if let Some(mdp) = &mut self.mdp {
            mdp.level = level_of(class);
            mdp.levels.charge(mdp.level, now_ns, mdp.costs.resume_ns());
        }
    }

    /// The task of this step waits.
    pub(crate) fn suspend(&mut self, now_ns: u64) {
        if let Some(mdp) = &mut self.mdp {
            mdp.levels.charge(mdp.level, now_ns, mdp.costs.suspend_ns());
        }
    }

    /// The step sends a message of `bytes` bytes; when the last of them has left the processor.
    pub(crate) fn send(&mut self, now_ns: u64, bytes: usize) -> u64 {
        match &mut self.mdp {
            None => now_ns,
            Some(mdp) => mdp.levels.charge(mdp.level, now_ns, mdp.costs.send_ns(bytes as u64)),
        }
    }

    /// Time between the starts of two successive messages that carry `bytes` bytes.
    pub(crate) fn pace_ns(&self, bytes: usize) -> u64 {
        self.mdp.as_ref().map_or(0, |mdp| mdp.costs.pace_ns(bytes as u64))
    }

    /// The cost of feeding `bytes` bytes into the network.
    pub(crate) fn send_ns(&self, bytes: usize) -> u64 {
        self.mdp.as_ref().map_or(0, |mdp| mdp.costs.send_ns(bytes as u64))
    }

    /// One message of `words` data words is in its queue since `from_ns`; when it has been taken
    /// out. `None` if that costs this processor no time.
    pub(crate) fn take(&mut self, from_ns: u64, class: Class, words: u64) -> Option<u64> {
        let free_ns = self.free_at_ns;
        let mdp = self.mdp.as_mut()?;
        let take_ns = mdp.costs.take_ns(words);
        Some(mdp.levels.charge(level_of(class), from_ns.max(free_ns), take_ns))
    }

    /// The handler of a request, whose words have been taken in one by one, begins.
    pub(crate) fn handle(&mut self, now_ns: u64, class: Class, handler_ns: u64) {
        if let Some(mdp) = &mut self.mdp {
            mdp.levels.charge(level_of(class), now_ns, handler_ns);
        }
    }

    /// A message of `bytes` bytes has arrived, and takes `handler_ns` besides. A long message is
    /// many short ones, the first of which came when the sender began.
    pub(crate) fn receive(&mut self, now_ns: u64, class: Class, bytes: usize, handler_ns: u64) {
        let Some(mdp) = &mut self.mdp else { return };
        let (level, costs) = (level_of(class), &mdp.costs);
        let began_ns = now_ns.saturating_sub(costs.send_ns(bytes as u64));
        mdp.levels.charge(level, began_ns, costs.receive_ns(bytes as u64));
        mdp.levels.charge(level, now_ns, handler_ns);
    }

    /// The step does work of `work_ns`; from when to when.
    pub(crate) fn work(&mut self, now_ns: u64, work_ns: u64) -> (u64, u64) {
        let Some(mdp) = &mut self.mdp else { return (now_ns, now_ns) };
        let from_ns = mdp.levels.free_ns(mdp.level).max(now_ns);
        (from_ns, mdp.levels.charge(mdp.level, now_ns, work_ns))
    }

    /// What a level has worked so far.
    pub(crate) fn worked_ns(&self, level: PriorityLevel) -> u64 {
        self.mdp.as_ref().map_or(0, |mdp| mdp.levels.worked_ns(level))
    }
}
