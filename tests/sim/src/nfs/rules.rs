//! What clients must bear today: each rule is one relaxation of the oracle, to be taken away once
//! there is no reason for it any more.
//!
//! The first two stay until a call that is sent again gets its first answer, from whichever gateway
//! and after a restart too.

/// A call that was sent again may meet its own work: a guarded CREATE, a MKDIR, a LINK is told
/// `NFS3ERR_EXIST`, a REMOVE, a RMDIR, a RENAME `NFS3ERR_NOENT`, and has been done. Such an answer
/// promises nothing: that work may be lost with the power.
///
/// An exclusive CREATE bears no such thing: its verifier tells the server that it is the same call.
pub(super) const MEETS_ITS_OWN_WORK: bool = true;

/// A call that was sent again may be done once more, after its answer: as long as a gateway may
/// have the first sending under way, a client does nothing that the twin would undo. It leaves such
/// names alone, does not write other bytes to such a range, and does not cut such a file.
pub(super) const HAS_A_LATE_TWIN: bool = true;

/// A change of names that the power interrupts, or its late twin, may leave its file with more links than names: its
/// space is lost, its content never. Until such changes leave intents in the log.
pub(super) const LINKS_STAY_BEHIND: bool = true;
