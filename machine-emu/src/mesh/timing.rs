//! What a mesh costs: the parameters, and what is sent through it.

/// A message of more words cannot be sent: its header has ten bits for the length.
pub const LETTER_WORDS_MAX: u32 = 1023;
/// Messages in a queue take multiples of this number of words: rows of its buffer.
pub const ROW_WORDS: u32 = 4;
pub(super) const FLITS_PER_WORD: u32 = 2;

/// The two classes of messages. High overtakes Normal wherever they meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Priority {
    /// Level 0 of the machine.
    Normal = 0,
    /// Level 1.
    High = 1,
}

/// Who shares a wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wires {
    /// Every channel has its own: exact at worm level.
    #[default]
    Own,
    /// The two priorities share the wire of a direction; High takes it flit by flit.
    Priorities,
    /// The two directions of a link share it as well, as in the J-Machine.
    Links,
}

/// Room for spilling when a queue overflows, in place of holding the worm in the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spill {
    /// Cycles for the fault and its handler.
    pub fixed_cycles: u64,
    /// Cycles per word that goes to the external memory.
    pub cycles_per_word: u64,
}

/// The parameters of a mesh, in cycles and flits (half words).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeshTiming {
    /// From crossing one channel to asking for the next: d, at least 1.
    pub hop_cycles: u64,
    /// From leaving a buffer to the room being known upstream: c, at least 1.
    pub credit_cycles: u64,
    /// Flits that a worm may have between two channels: B, at least d + c, so that a stream flows.
    pub buffer_flits: u32,
    /// Idle cycles of a channel between two worms.
    pub gap_cycles: u64,
    /// Flits before the first word: one per dimension.
    pub header_flits: u32,
    /// What the interfaces at both ends add, once.
    pub interface_cycles: u64,
    /// Words of each of the two queues of a node; `None` for queues that never fill.
    pub queue_words: Option<u32>,
    /// What a full queue does, if not holding up the network.
    pub spill: Option<Spill>,
    /// From the head of a message at a forwarder to the first flit that it sends: dispatch 4, and
    /// about 8 to read the header and build a new one.
    pub forward_cycles: u64,
    /// Who shares a wire.
    pub wires: Wires,
    /// What a cycle takes.
    pub cycle_ns: u64,
}

impl Default for MeshTiming {
    /// The J-Machine at its 10 MHz: one cycle per hop, half a word per cycle, queues of 512 words.
    fn default() -> Self {
        Self {
            hop_cycles: 1,
            credit_cycles: 1,
            buffer_flits: 8,
            gap_cycles: 0,
            header_flits: 3,
            interface_cycles: 3,
            queue_words: Some(512),
            spill: None,
            forward_cycles: 12,
            wires: Wires::Own,
            cycle_ns: 100,
        }
    }
}

impl MeshTiming {
    /// Flits of a message of `words` words.
    pub fn flits(&self, words: u32) -> u32 {
        FLITS_PER_WORD * words + self.header_flits
    }

    /// Cycles from the send to the last word, over `hops` links, if nothing is in the way: H + 7 +
    /// 2 L for the J-Machine (hop 1, header 3, interface 3).
    pub fn zero_load_cycles(&self, hops: u32, words: u32) -> u64 {
        let head = (u64::from(hops) + 1) * self.hop_cycles;
        head + u64::from(self.flits(words)) + self.interface_cycles
    }

    /// Whether flits take time, and a buffer keeps a stream going.
    pub(super) fn can_be(&self) -> bool {
        let Self { hop_cycles, credit_cycles, buffer_flits, cycle_ns, .. } = *self;
        let flowing = u64::from(buffer_flits) >= hop_cycles.saturating_add(credit_cycles);
        hop_cycles > 0 && credit_cycles > 0 && cycle_ns > 0 && flowing
    }

    /// Panics if the parameters cannot be: called where a mesh is made.
    pub(super) fn check(&self) {
        assert!(self.can_be(), "flits take time, and buffers keep a stream going: {self:?}");
    }
}

/// What is sent: one message, or a row of equal ones, each sent when the one before has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Letter {
    /// The sender, a node of the geometry.
    pub from: u32,
    /// The receiver.
    pub to: u32,
    /// Of the message.
    pub priority: Priority,
    /// Of each message, 1 to [`LETTER_WORDS_MAX`].
    pub words: u32,
    /// Messages in the row, at least 1.
    pub count: u32,
    /// Words of the last of the row.
    pub last_words: u32,
    /// Given back with each delivery.
    pub tag: u64,
}

impl Letter {
    /// A single message of normal priority.
    pub fn new(from: u32, to: u32, words: u32, tag: u64) -> Self {
        let priority = Priority::Normal;
        Self { from, to, priority, words, count: 1, last_words: words, tag }
    }
}

/// A message has arrived whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Delivery {
    /// Its last word is in the queue since then.
    pub cycle: u64,
    /// The number of the message: in the order of sending.
    pub number: u64,
    /// The sender.
    pub from: u32,
    /// The receiver.
    pub to: u32,
    /// Of the queue that it is in: normal for what a forwarder passed on.
    pub priority: Priority,
    /// Of the message.
    pub words: u32,
    /// When it was sent, or its turn in the row came.
    pub sent: u64,
    /// When its first word was in the queue: a handler may start then.
    pub head: u64,
    /// From the letter.
    pub tag: u64,
    /// Who passed it on.
    pub via: Option<u32>,
    /// The last of its row.
    pub last: bool,
}

impl Delivery {
    /// Cycles from the send to the last word.
    pub fn latency(&self) -> u64 {
        self.cycle - self.sent
    }
}

/// Declares counters with their sum and their difference.
macro_rules! counters {
    ($(#[$about:meta])* $Name:ident { $( $(#[$doc:meta])* $field:ident, )* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $Name {
            $( $(#[$doc])* pub $field: u64, )*
        }

        impl std::ops::Add for $Name {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self { $( $field: self.$field + other.$field, )* }
            }
        }

        impl std::ops::Sub for $Name {
            type Output = Self;
            fn sub(self, before: Self) -> Self {
                Self { $( $field: self.$field - before.$field, )* }
            }
        }
    };
}

counters! {
/// What a mesh has done.
MeshCounters {
    /// Messages sent.
    injected,
    /// Messages delivered.
    delivered,
    /// Messages that went through a forwarder.
    forwarded,
    /// Channels crossed by heads.
    crossings,
    /// Cycles that heads waited for channels or for room in a queue.
    stalled_cycles,
    /// Heads that found a queue full.
    queue_full,
    /// Words that went to the external memory.
    spilled_words,
    /// Flits that were taken or held up on a shared wire.
    stolen_flits,
}
}
