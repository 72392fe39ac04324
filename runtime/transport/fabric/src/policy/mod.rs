//! Which mechanism moves a message: measured costs in, a choice out. Nothing here knows a provider,
//! a clock or a buffer.
//!
//! The rules are those of two papers, with measured numbers where they had constants: the classes
//! of messages of Wu 2004 (section 2.5), and the adaptive rendezvous with throttle of PVFS2 over
//! Quadrics (section 5.1).

#![allow(clippy::cast_precision_loss, reason = "costs are estimates")]

mod calibrate;
mod table;

#[cfg(test)]
mod tests;

pub use calibrate::{CALIBRATES, Calibration, answer, answer_one, calibrate, calibrate_alone};
pub use table::Costs;

/// How a message moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mechanism {
    /// In one send that the provider copies at once.
    Inline,
    /// In one send from a buffer, into a receive buffer that was posted before.
    Eager,
    /// By a write with a number, into a slot that the peer has set aside for this connection.
    Fast,
    /// The receiver reads it from where it lies.
    Read,
    /// The receiver grants memory, and the sender writes it there.
    Write,
}

impl Mechanism {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Inline, Self::Eager, Self::Fast, Self::Read, Self::Write];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Inline => "inline",
            Self::Eager => "eager",
            Self::Fast => "fast",
            Self::Read => "read",
            Self::Write => "write",
        }
    }

    /// Whether the receiver is asked before the data moves.
    pub fn is_rendezvous(self) -> bool {
        matches!(self, Self::Read | Self::Write)
    }
}

/// How the segments of a message are brought together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SegmentLayout {
    /// Copied into one buffer first.
    Pack,
    /// From where each lies, by operations that complete as one.
    Gather,
}

/// A message, as far as it matters here.
#[derive(Clone, Copy, Debug)]
pub struct MessageShape {
    /// Bytes of header and head.
    pub head: usize,
    /// Bytes of the bulk.
    pub bulk: usize,
    /// Segments that the bulk lies in.
    pub segments: usize,
}

/// What can be used now, in bytes of header, head and bulk together; 0 where it cannot.
#[derive(Clone, Copy, Debug)]
pub struct MechanismSizes {
    /// The provider's inject size.
    pub inline: usize,
    /// A receive buffer.
    pub eager: usize,
    /// A fast slot, if one is free.
    pub fast: usize,
    /// Segments that one frame can describe.
    pub segments: usize,
}

/// A choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferPlan {
    /// By which mechanism; of the two kinds of rendezvous the receiver chooses one later.
    pub mechanism: Mechanism,
    /// How the segments are brought together.
    pub layout: SegmentLayout,
}

/// The load of both ends of a rendezvous, told by the frame that asks for it.
#[derive(Clone, Copy, Debug)]
pub struct Loads {
    /// Operations on remote memory that the receiver has open.
    pub receiver: u32,
    /// Those of the sender.
    pub sender: u32,
    /// The receiver is a server under heavy load.
    pub receiver_is_heavy_server: bool,
    /// The sender is one.
    pub sender_is_heavy_server: bool,
}

/// Operations on remote memory that a process has open, at most: more of them slow each other down.
pub const THROTTLE: u32 = 16;
/// A server with this many of them open is under heavy load.
pub const HEAVY: u32 = THROTTLE / 2;

/// What is forced on a policy, to measure it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicyOverride {
    /// Always this mechanism, wherever it has room.
    pub mechanism: Option<Mechanism>,
    /// Always this layout.
    pub layout: Option<SegmentLayout>,
}

/// Costs, and what is forced.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    /// As measured.
    pub costs: Costs,
    /// For measurements only.
    pub forced: PolicyOverride,
}

impl Policy {
    /// A policy that follows `costs`.
    pub fn new(costs: Costs) -> Self {
        Self { costs, forced: PolicyOverride::default() }
    }

    /// How `shape` is sent. A rendezvous always has room, so there is always an answer.
    pub fn choose(&self, shape: MessageShape, room: MechanismSizes) -> TransferPlan {
        let mechanism = self.mechanism(shape, room);
        TransferPlan { mechanism, layout: self.layout(shape, room, mechanism) }
    }

    fn mechanism(&self, shape: MessageShape, room: MechanismSizes) -> Mechanism {
        let total = shape.head + shape.bulk;
        let has_room = |mechanism: Mechanism| match mechanism {
            Mechanism::Inline => total <= room.inline,
            Mechanism::Eager => total <= room.eager,
            Mechanism::Fast => total <= room.fast,
            // There must be something to be read, and its head goes ahead in a frame.
            Mechanism::Read | Mechanism::Write => shape.bulk > 0,
        };
        if let Some(forced) = self.forced.mechanism.filter(|forced| has_room(*forced)) {
            return forced;
        }
        let allowed = Mechanism::ALL.into_iter().filter(|mechanism| has_room(*mechanism));
        let cost = |mechanism: &Mechanism| {
            let unpacked = if mechanism.is_rendezvous() {
                self.costs.pack(shape.segments, shape.bulk).min(self.costs.gather(shape.segments))
            } else {
                self.costs.pack(shape.segments, shape.bulk)
            };
            let lists = if shape.segments > 1 { unpacked } else { 0.0 };
            self.costs.of(*mechanism, total) + lists
        };
        allowed.min_by(|a, b| cost(a).total_cmp(&cost(b))).unwrap_or(Mechanism::Eager)
    }

    fn layout(
        &self,
        shape: MessageShape,
        room: MechanismSizes,
        mechanism: Mechanism,
    ) -> SegmentLayout {
        if shape.segments > room.segments {
            return SegmentLayout::Pack;
        }
        if let Some(forced) = self.forced.layout {
            return forced;
        }
        if shape.segments <= 1 {
            return SegmentLayout::Gather;
        }
        let packed = self.costs.pack(shape.segments, shape.bulk);
        let gathered = self.costs.gather(shape.segments);
        // What travels in one frame lies in one buffer.
        if !mechanism.is_rendezvous() || packed <= gathered {
            SegmentLayout::Pack
        } else {
            SegmentLayout::Gather
        }
    }

    /// Who moves the bulk of a rendezvous: the receiver reads, or the sender writes.
    ///
    /// A heavily loaded server lets its client do it. Else the cheaper one does, counting what each
    /// already has to do: at equal costs that is the receiver if it has less open than the sender.
    pub fn direction(&self, bulk: usize, loads: Loads) -> Mechanism {
        if let Some(forced) = self.forced.mechanism.filter(|forced| forced.is_rendezvous()) {
            return forced;
        }
        if loads.receiver_is_heavy_server != loads.sender_is_heavy_server {
            let reads = loads.sender_is_heavy_server;
            return if reads { Mechanism::Read } else { Mechanism::Write };
        }
        let busy = |open: u32| 1.0 + f64::from(open) / f64::from(THROTTLE);
        let read = self.costs.of(Mechanism::Read, bulk) * busy(loads.receiver);
        let write = self.costs.of(Mechanism::Write, bulk) * busy(loads.sender);
        if read < write { Mechanism::Read } else { Mechanism::Write }
    }

    /// Bytes of one piece of a bulk of `bulk` bytes: several are on their way at once, but never
    /// more than half of it in one (Wu, section 2.3.4).
    pub fn piece(&self, bulk: usize) -> usize {
        let piece = self.costs.piece;
        if bulk <= piece { bulk } else { piece.min(bulk.div_ceil(2)) }
    }
}
