//! The faults: each is a word with fields, which a person can read and edit.

use std::fmt;
use std::str::FromStr;

use runtime::{NodeId, NodeKind};

/// What stands in a field of a [`Fault`].
trait Field: Sized {
    fn print(&self) -> String;
    fn parse(text: &str) -> Option<Self>;
}

macro_rules! number {
    ($($type:ty)*) => {$(
        impl Field for $type {
            fn print(&self) -> String {
                self.to_string()
            }

            fn parse(text: &str) -> Option<Self> {
                text.parse().ok()
            }
        }
    )*};
}

number!(u32 u64 i64 bool);

/// A disk by its path.
impl Field for String {
    fn print(&self) -> String {
        self.clone()
    }

    fn parse(text: &str) -> Option<Self> {
        (!text.is_empty()).then(|| text.to_owned())
    }
}

impl Field for NodeId {
    fn print(&self) -> String {
        match self.kind() {
            NodeKind::Fs(index) => format!("fs:{index}"),
            NodeKind::Disk(index) => format!("disk:{index}"),
            NodeKind::Application(index) => format!("application:{index}"),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let (kind, index) = text.split_once(':')?;
        let index = index.parse().ok()?;
        match kind {
            "fs" => Some(Self::fs(index)),
            "disk" => Some(Self::disk(index)),
            "application" => Some(Self::application(index)),
            _ => None,
        }
    }
}

macro_rules! faults {
    ($( $(#[$doc:meta])* $variant:ident $word:literal { $( $field:ident: $type:ty ),* $(,)? } )*) => {
        /// One fault, or the end of one.
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[allow(missing_docs, reason = "the names of the fields say what they are, with units")]
        pub enum Fault {
            $( $(#[$doc])* $variant { $( $field: $type ),* }, )*
        }

        impl Fault {
            /// The words of all faults.
            pub const WORDS: &[&str] = &[ $( $word ),* ];

            /// The word of this one.
            pub fn word(&self) -> &'static str {
                match self {
                    $( Self::$variant { .. } => $word, )*
                }
            }
        }

        impl fmt::Display for Fault {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.word())?;
                match self {
                    $( Self::$variant { $( $field ),* } => {
                        $( write!(f, " {}={}", stringify!($field), $field.print())?; )*
                    } )*
                }
                Ok(())
            }
        }

        impl FromStr for Fault {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                let mut words = text.split_whitespace();
                let word = words.next().ok_or("a fault is missing")?;
                let fields = Fields(words.collect());
                match word {
                    $( $word => Ok(Self::$variant {
                        $( $field: fields.take(stringify!($field))? ),*
                    }), )*
                    _ => Err(format!(
                        "there is no fault `{word}`; there are {}", Self::WORDS.join(", ")
                    )),
                }
            }
        }
    };
}

/// `name=value`, several times.
struct Fields<'a>(Vec<&'a str>);

impl Fields<'_> {
    fn take<T: Field>(&self, name: &str) -> Result<T, String> {
        let pairs = self.0.iter().filter_map(|pair| pair.split_once('='));
        let value = pairs.into_iter().find_map(|(key, value)| (key == name).then_some(value));
        let value = value.ok_or_else(|| format!("`{name}=` is missing"))?;
        T::parse(value).ok_or_else(|| format!("`{name}` cannot be `{value}`"))
    }
}

faults! {
    /// The seed decides which ready task runs next, for the whole run.
    Shuffle "shuffle" {}
    /// Nodes live in `count` processes: those of one kind with equal indices modulo `count` die and
    /// come back together, and know it.
    Processes "processes" { count: u32 }
    /// How messages fare from now on. Lost, doubled and damaged ones are requests that change
    /// nothing, or have a call id: of applications only, or of all nodes.
    Network "network" {
        loss_ppm: u32, corrupt_ppm: u32, duplicate_ppm: u32, reorder_ppm: u32, delay_ppm: u32,
        delay_max_ns: u64, jitter_ns: u64, loses_any: bool,
    }
    /// A processor stands still.
    Freeze "freeze" { node: NodeId, for_us: u64 }
    /// Messages of a node take `factor` times as long, and each of its steps `step_ns`.
    Slow "slow" { node: NodeId, factor: u64, step_ns: u64 }
    /// A disk takes `factor` times as long.
    SlowDisk "slow-disk" { disk: String, factor: u64 }
    /// Messages of a node are held.
    Clog "clog" { node: NodeId }
    /// They go on.
    Unclog "unclog" { node: NodeId }
    /// The lease of a process is revoked, as if others had found it dead.
    Evict "evict" { node: NodeId }
    /// The wall clock of a node jumps.
    ClockJump "clock-jump" { node: NodeId, seconds: i64 }
    /// The monotonic clock of a node, and its timers, run so much too fast from now on.
    ClockDrift "clock-drift" { node: NodeId, ppm: i64 }
    /// One read of a disk fails, after `after` more.
    FailRead "fail-read" { disk: String, after: u64 }
    /// All writes of a disk fail, after `after` more.
    FailWrite "fail-write" { disk: String, after: u64 }
    /// One flush of a disk fails, after `after` more, and the disk loses what it had not
    /// flushed.
    FailFlush "fail-flush" { disk: String, after: u64 }
    /// What lies below a disk is full: no write of it succeeds any more.
    FillDisk "fill-disk" { disk: String, after: u64 }
    /// During this time there is no space below a disk for what was never written; flushes may
    /// find out, too.
    HostFull "host-full" { disk: String, for_us: u64, fails_flushes: bool }
    /// Messages from one node to another are lost.
    CutLink "cut-link" { from: NodeId, to: NodeId }
    /// All nodes reach each other again.
    Heal "heal" {}
    /// Messages from one node to another have a latency and a bandwidth of their own.
    SlowLink "slow-link" { from: NodeId, to: NodeId, latency_ns: u64, picoseconds_per_byte: u64 }
    /// All links have the same again.
    ResetLinks "reset-links" {}
    /// The process of a node dies; its disks keep their power.
    Kill "kill" { node: NodeId }
    /// Bits of a disk change at rest.
    BitRot "bit-rot" { disk: String, offset: u64, length: u64 }
    /// A disk answers writes, in parts per million, and does not do them.
    LoseWrites "lose-writes" { disk: String, ppm: u32 }
    /// A disk does writes and reads, in parts per million, at a wrong offset.
    Misdirect "misdirect" { disk: String, write_ppm: u32, read_ppm: u32 }
    /// A disk answers reads, in parts per million, with what it had flushed, without later writes.
    StaleReads "stale-reads" { disk: String, ppm: u32 }
    /// A disk answers flushes, in parts per million, and does nothing.
    IgnoreFlushes "ignore-flushes" { disk: String, ppm: u32 }
    /// The bytes of a disk are kept for a later `restore-image`.
    SaveImage "save-image" { disk: String }
    /// A disk has the bytes again that were kept last.
    RestoreImage "restore-image" { disk: String }
    /// A disk of zeros takes a disk's place.
    Wipe "wipe" { disk: String }
    /// A disk of another volume takes a disk's place.
    ForeignDisk "foreign-disk" { disk: String }
    /// Two disks change places.
    SwapDisks "swap-disks" { disk: String, other: String }
    /// All processes die, the disks keep their power. A round ends with it.
    KillAll "kill-all" {}
    /// The process of a node dies, with the power of its disks unless they keep it, and starts
    /// again while all others live on. One at a time: those that come too early wait.
    Restart "restart" { node: NodeId, for_us: u64, keeps_power: bool }
    /// The file-system nodes of one process move to others by plan, or its disk nodes end in order
    /// and come back, while all others live on: they hand over, and each starts after a while. No
    /// node is notified of a loss. Takes turns with `restart`.
    Move "move" { node: NodeId, for_us: u64 }
    /// The power of everything goes. A round ends with it.
    PowerCut "power-cut" {}
    /// A round ends in order: clients end what they have begun.
    End "end" {}
}

impl Fault {
    /// Until the power is cut no request is sure to be answered: without an answer, or with an
    /// error, its outcome is unknown. What is acknowledged still counts.
    pub(crate) fn is_heavy(&self) -> bool {
        matches!(
            self,
            Self::FailWrite { .. }
                | Self::FailFlush { .. }
                | Self::FillDisk { .. }
                | Self::CutLink { .. }
                | Self::Kill { .. }
        )
    }

    /// Ends a round.
    pub(crate) fn is_end(&self) -> bool {
        matches!(self, Self::PowerCut {} | Self::KillAll {} | Self::End {})
    }

    /// Ends another fault, or a round.
    pub(crate) fn ends_fault(&self) -> bool {
        matches!(self, Self::Unclog { .. } | Self::Heal {} | Self::ResetLinks {} | Self::End {})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_read_back_as_it_was_printed() {
        let faults = [
            Fault::Freeze { node: NodeId::disk(3), for_us: 12 },
            Fault::FailRead { disk: "disk-0-1".into(), after: 4 },
            Fault::ClockJump { node: NodeId::fs(0), seconds: -5 },
            Fault::CutLink { from: NodeId::application(1), to: NodeId::fs(2) },
            Fault::Heal {},
        ];
        for fault in faults {
            assert_eq!(fault.to_string().parse(), Ok(fault));
        }
    }

    #[test]
    fn what_cannot_be_read_is_told() {
        let wrong = |text: &str| text.parse::<Fault>().unwrap_err();
        assert!(wrong("melt node=fs:1").contains("freeze"));
        assert_eq!(wrong("freeze for_us=1"), "`node=` is missing");
        assert_eq!(wrong("freeze node=1 for_us=1"), "`node` cannot be `1`");
    }

    #[test]
    fn the_page_of_the_simulator_tells_of_every_fault() {
        let page = include_str!("../../../../docs/simulation.md");
        for word in Fault::WORDS {
            assert!(page.contains(&format!("\n| `{word}` | ")), "no row for `{word}`");
        }
    }
}
