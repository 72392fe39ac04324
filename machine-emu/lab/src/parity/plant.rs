//! Faults that a run must find.

/// A fault in the code, on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ParityPlant {
    /// A node XORs partial parity with the block of another stripe
    WrongPartner,
    /// A block does not keep its slot until its XOR
    DroppedTail,
    /// Senders ignore the tails of their receivers
    NoCredit,
    /// All stages of the pipelines share the slots of one ring buffer
    OneRing,
    /// A token passes a node that has not stored its block
    EarlyToken,
    /// A writer does not compare the boot IDs of a token with those of the flush
    IgnoredBoot,
    /// A node applies a delta again that it has applied
    ForgottenSequence,
}
