//! How a test disturbs the nodes and the network of a world.

use std::rc::Rc;
use std::time::Duration;

use runtime::{Epoch, NodeId};

use crate::core::Core;
use crate::link::{LinkError, MeshSetup};
use crate::mesh::{Mesh, Recorder};
use crate::network::{FaultTolerance, LinkTiming, NetworkFaults, NetworkTiming};
use crate::trace::FaultKind;

/// A node of a world.
pub struct NodeControl<'a> {
    pub(crate) core: &'a Core,
    pub(crate) place: u32,
}

impl NodeControl<'_> {
    /// The processor stops for `duration`, then continues.
    pub fn freeze(&self, duration: Duration) {
        let kernel = &self.core.kernel;
        kernel.fault(self.place, FaultKind::NodeFrozen);
        let until_ns = kernel.now_ns() + nanos(duration);
        kernel.nodes.borrow_mut().get_mut(self.place).cpu.freeze(until_ns);
    }

    /// The processor of a frozen node continues now.
    pub fn thaw(&self) {
        let mut nodes = self.core.kernel.nodes.borrow_mut();
        nodes.get_mut(self.place).cpu.thaw();
        nodes.freed(self.place);
    }

    /// Messages from and to the node take `factor` times as long from now on, and each step of it
    /// `step` of its processor; 1 and zero are normal. A restart changes neither.
    pub fn slow(&self, factor: u64, step: Duration) {
        self.core.kernel.fault(self.place, FaultKind::NodeSlowed);
        let mut nodes = self.core.kernel.nodes.borrow_mut();
        let state = nodes.get_mut(self.place);
        state.slowness = factor.max(1);
        state.cpu.set_step_ns(nanos(step));
    }

    /// The wall clock jumps by `seconds` seconds, either way.
    pub fn jump_clock(&self, seconds: i64) {
        self.core.kernel.fault(self.place, FaultKind::ClockJumped);
        let by_ns = seconds.saturating_mul(1_000_000_000);
        self.core.kernel.nodes.borrow_mut().get_mut(self.place).clock.jump(by_ns);
    }

    /// The monotonic clock, and timers with it, run `ppm` parts per million too fast from now on;
    /// too slow, if negative. A restart does not change that.
    pub fn drift_clock(&self, ppm: i32) {
        let kernel = &self.core.kernel;
        kernel.fault(self.place, FaultKind::ClockDrifts);
        let now_ns = kernel.now_ns();
        kernel.nodes.borrow_mut().get_mut(self.place).clock.drift(ppm, now_ns);
    }

    /// From now on the node, if it is alive, sends in `epoch` and refuses earlier ones.
    pub fn set_epoch(&self, epoch: Epoch) {
        if let Some(instance) = self.core.kernel.living(self.place) {
            instance.set_epoch(epoch);
        }
    }
}

/// The network of a world.
pub struct NetworkControl<'a> {
    pub(crate) core: &'a Rc<Core>,
}

impl NetworkControl<'_> {
    fn places(&self, from: NodeId, to: NodeId) -> (u32, u32) {
        (self.core.place(from), self.core.place(to))
    }

    /// From now on messages go through a mesh and take its time. The timing of the network and of
    /// links no longer counts; their faults do. To be called before anything is sent.
    pub fn use_mesh(&self, setup: MeshSetup) -> Result<(), LinkError> {
        self.core.mesh.use_mesh(setup)
    }

    /// The mesh, if there is one, records load and messages from now on.
    pub fn record_mesh(&self, recorder: Recorder) {
        if let Some(link) = self.core.mesh.link.borrow_mut().as_mut() {
            link.mesh.record(recorder);
        }
    }

    /// What `read` returns for the mesh; `None` without one.
    pub fn mesh<T>(&self, read: impl FnOnce(&Mesh) -> T) -> Option<T> {
        self.core.mesh.link.borrow().as_ref().map(|link| read(&link.mesh))
    }

    /// How long messages take from now on.
    pub fn set_timing(&self, timing: NetworkTiming) {
        self.core.network.state.borrow_mut().timing = timing;
    }

    /// How long messages from `from` to `to` take from now on, whatever other links do.
    pub fn slow_link(&self, from: NodeId, to: NodeId, timing: LinkTiming) {
        let (from, to) = self.places(from, to);
        self.core.kernel.fault(to, FaultKind::LinkSlowed);
        self.core.network.state.borrow_mut().set_link_timing(from, to, timing);
    }

    /// All links have the same timing again.
    pub fn reset_links(&self) {
        self.core.network.state.borrow_mut().forget_link_timings();
    }

    /// How often faults hit messages from now on.
    pub fn set_faults(&self, faults: NetworkFaults) {
        self.core.network.state.borrow_mut().faults = faults;
    }

    /// From now on random faults hit only requests, and their replies, that tolerate them by
    /// `tolerance_of(protocol, tag)`. Delays and cuts hit all.
    pub fn set_fault_tolerance(&self, tolerance_of: impl Fn(u8, u8) -> FaultTolerance + 'static) {
        self.core.network.state.borrow_mut().tolerance_of = Some(Box::new(tolerance_of));
    }

    /// Messages from `from` to `to` are lost from now on; the other direction works.
    pub fn cut(&self, from: NodeId, to: NodeId) {
        let (from, to) = self.places(from, to);
        self.core.network.state.borrow_mut().cut(from, to);
    }

    /// Cuts all links between the two sides, in both directions.
    pub fn partition(&self, one: &[NodeId], other: &[NodeId]) {
        for &here in one {
            for &there in other {
                self.cut(here, there);
                self.cut(there, here);
            }
        }
    }

    /// Mends everything that was cut.
    pub fn heal(&self) {
        self.core.network.state.borrow_mut().mend_all();
    }

    /// Messages from and to `node` wait from now on, until [`unclog`](Self::unclog): clog some
    /// nodes one after the other and unclog them in another order to see old messages arrive late.
    pub fn clog(&self, node: NodeId) {
        let place = self.core.place(node);
        self.core.kernel.fault(place, FaultKind::NodeClogged);
        self.core.network.state.borrow_mut().clog(place);
    }

    /// Messages that waited for `node` are sent on.
    pub fn unclog(&self, node: NodeId) {
        self.core.network.unclog(self.core.place(node));
    }
}

/// In nanoseconds, saturating.
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
