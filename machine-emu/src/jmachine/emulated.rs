//! What the parts of a world need to know of the J-Machine that it emulates.

use std::rc::Rc;

use runtime::NodeId;

use super::{NodeCosts, Numbers};

/// The machine that a world emulates.
pub(crate) struct Emulated {
    pub(crate) costs: Rc<NodeCosts>,
    pub(super) host: Option<NodeId>,
    pub(super) host_costs: Rc<NodeCosts>,
    pub(crate) numbers: Numbers,
}

/// What bytes from outside meet at the host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostWire {
    /// Interval at which bytes are polled.
    pub(crate) poll_ns: u64,
    /// The inverse of the bandwidth.
    pub(crate) picoseconds_per_byte: u64,
}

impl HostWire {
    /// When what is there at `at_ns` is looked at.
    pub(crate) fn seen_ns(self, at_ns: u64) -> u64 {
        if self.poll_ns == 0 { at_ns } else { at_ns.next_multiple_of(self.poll_ns) }
    }
}

impl Emulated {
    /// What software costs at a node.
    pub(crate) fn costs_of(&self, node: NodeId) -> Rc<NodeCosts> {
        if self.is_host(node) { self.host_costs.clone() } else { self.costs.clone() }
    }

    pub(crate) fn is_host(&self, node: NodeId) -> bool {
        self.host == Some(node)
    }

    /// How bytes, and messages, come to the host.
    pub(crate) fn host_wire(&self) -> HostWire {
        let host = &self.numbers.host;
        HostWire {
            poll_ns: (host.poll.value * 1e3).round() as u64,
            picoseconds_per_byte: (1e6 / host.wire.value).round() as u64,
        }
    }
}
