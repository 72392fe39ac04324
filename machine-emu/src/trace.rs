//! A running hash of everything that happens, and counters. No addresses, no order of hash tables:
//! the same seed gives the same numbers on any day, in debug and release.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

/// What is noted in the trace. The numbers are part of the hash.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub(crate) enum TraceTag {
    Step = 1,
    Alarm,
    Request,
    Reply,
    Arrive,
    Refuse,
    DiskStart,
    DiskDone,
    Crash,
    Restart,
    Idle,
    Stream,
    FaultKind,
}

macro_rules! faults {
    ($( $variant:ident $name:literal, )*) => {
        /// The kinds of faults that a world can inject, for tables.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[allow(missing_docs, reason = "the names say it")]
        pub enum FaultKind {
            $( $variant, )*
        }

        impl FaultKind {
            /// All of them.
            pub const ALL: &[Self] = &[ $( Self::$variant ),* ];

            /// In words.
            pub fn name(self) -> &'static str {
                match self {
                    $( Self::$variant => $name, )*
                }
            }
        }
    };
}

faults! {
    MessageLost "message lost",
    MessageDuplicated "message duplicated",
    MessageReordered "message reordered",
    MessageDelayed "message delayed",
    MessageCorrupted "message corrupted",
    MessageCut "message cut",
    MessageToDeadNode "message to dead node",
    NodeKilled "node killed",
    NodeCrashed "node crashed",
    NodeFrozen "node frozen",
    NodeSlowed "node slowed",
    NodeClogged "node clogged",
    ClockJumped "clock jumped",
    DiskReadError "disk read error",
    DiskWriteError "disk write error",
    DiskSyncError "disk sync error",
    DiskWriteLost "disk write lost",
    DiskWriteMisdirected "disk write misdirected",
    DiskSyncIgnored "disk sync ignored",
    DiskBitsRotten "disk bits rotten",
    DiskSlowed "disk slowed",
    DiskWriteDroppedByCrash "disk write dropped by crash",
    DiskWriteTornByCrash "disk write torn by crash",
    DiskRestored "disk restored",
    // The numbers are part of the hash of a trace: new ones come last.
    StreamCut "stream cut",
    StreamDelayed "stream delayed",
    DiskWiped "disk wiped",
    DiskReadMisdirected "disk read misdirected",
    DiskReadStale "disk read stale",
    LinkSlowed "link slowed",
    ClockDrifts "clock drifts",
    DiskHostFull "disk host full",
}

/// What a world has done so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorldCounters {
    /// Events of the queue: alarms, arrivals, ends of disk operations.
    pub events: u64,
    /// Steps of tasks.
    pub steps: u64,
    /// Requests sent from node to node.
    pub messages: u64,
    /// Replies sent from node to node.
    pub replies: u64,
    /// Bytes of both, heads and payloads.
    pub bytes: u64,
    /// Disk operations begun.
    pub disk_operations: u64,
    /// How often each fault really hit.
    pub faults: BTreeMap<FaultKind, u64>,
}

#[derive(Debug, Default)]
pub(crate) struct WorldTrace {
    hash: Cell<u64>,
    events: Cell<u64>,
    steps: Cell<u64>,
    messages: Cell<u64>,
    replies: Cell<u64>,
    bytes: Cell<u64>,
    disk_operations: Cell<u64>,
    faults: RefCell<BTreeMap<FaultKind, u64>>,
}

fn add(counter: &Cell<u64>, by: u64) {
    counter.set(counter.get() + by);
}

/// One multiplication, both halves folded: each bit of the input moves half the bits of the result.
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

impl WorldTrace {
    /// Notes that `what` happened at `time_ns` at `node`.
    pub(crate) fn note(&self, time_ns: u64, node: u32, what: TraceTag, detail: u64) {
        let place = u64::from(node) << 8 | u64::from(what as u8);
        let hash = self.hash.get();
        let mixed = fold(hash ^ time_ns ^ 0x9E37_79B9_7F4A_7C15, place ^ 0xD6E8_FEB8_6659_FD93);
        self.hash
            .set(fold(mixed ^ detail, 0xA076_1D64_78BD_642F).wrapping_add(hash.rotate_left(7)));
        match what {
            TraceTag::Step => add(&self.steps, 1),
            TraceTag::DiskStart => add(&self.disk_operations, 1),
            _ => {}
        }
    }

    /// One event of the queue has happened.
    pub(crate) fn event(&self) {
        add(&self.events, 1);
    }

    pub(crate) fn request(&self, bytes: usize) {
        add(&self.messages, 1);
        add(&self.bytes, bytes as u64);
    }

    pub(crate) fn reply(&self, bytes: usize) {
        add(&self.replies, 1);
        add(&self.bytes, bytes as u64);
    }

    pub(crate) fn fault(&self, fault: FaultKind) {
        *self.faults.borrow_mut().entry(fault).or_default() += 1;
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash.get()
    }

    pub(crate) fn counters(&self) -> WorldCounters {
        WorldCounters {
            events: self.events.get(),
            steps: self.steps.get(),
            messages: self.messages.get(),
            replies: self.replies.get(),
            bytes: self.bytes.get(),
            disk_operations: self.disk_operations.get(),
            faults: self.faults.borrow().clone(),
        }
    }
}
