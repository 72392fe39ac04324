//! Control messages of writers, nodes and the switch, and their addresses.

use super::transport::ActorId;

/// An actor at one of its boots.
pub(super) type BootedNode = (ActorId, u32);

/// What is said besides blocks. Each message names the writer it is about and its epoch.
#[derive(Clone, Debug)]
pub(super) struct StripeMessage {
    pub(super) writer: usize,
    pub(super) epoch: u32,
    pub(super) body: StripeNotice,
}

#[derive(Clone, Debug)]
pub(super) enum StripeNotice {
    /// Along the ring: these nodes have stored their blocks of the stripe, in these boots.
    Token { stripe: u64, boots: Vec<BootedNode> },
    /// To the writer: the same, at the end of the ring or from a single node.
    Stored { stripe: u64, boots: Vec<BootedNode> },
    /// The writer sends again what is not durable; whatever belongs to earlier epochs is void.
    NewEpoch,
    /// Make durable what is stored.
    Flush { number: u64 },
    /// All that was stored in this boot, before that flush was asked for, is durable.
    Flushed { number: u64, node: BootedNode },
    /// The switch cannot encode.
    Unable,
    /// Is the switch up?
    Probe,
    /// The switch is up.
    Present,
}

/// Who is who: writers first, then storage nodes, then the switch.
#[derive(Clone, Copy, Debug)]
pub(super) struct ActorMap {
    pub(super) writers: usize,
    pub(super) nodes: usize,
}

impl ActorMap {
    pub(super) fn storage(self, node: usize) -> ActorId {
        self.writers + node
    }

    pub(super) fn switch(self) -> ActorId {
        self.writers + self.nodes
    }
}
