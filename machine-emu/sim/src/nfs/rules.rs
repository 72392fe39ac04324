//! What clients must tolerate: each rule is one relaxation of the oracle, to be removed once there
//! is no reason for it any more.
//!
//! A call that is sent again under its number gets its first answer, from whichever gateway and
//! after a power cut too: the oracle of names knows no exception. Two things NFS version 3 cannot
//! distinguish.

/// A call that was answered "later" (`NFS3ERR_JUKEBOX`) is made anew with another number. If an
/// earlier copy of it is still about, the new one may meet its work: a guarded CREATE, a MKDIR, a
/// LINK gets `NFS3ERR_EXIST`, a REMOVE, a RMDIR, a RENAME `NFS3ERR_NOENT`, and has been done. Such
/// an answer promises nothing: that work may be lost with the power.
///
/// An exclusive CREATE tolerates no such answer: its verifier identifies the call.
pub(super) const MEETS_ITS_OWN_WORK: bool = true;

/// Such a copy, and any copy of a WRITE or a SETATTR, may be done once more, after the answer: as
/// long as a gateway may have the first sending under way, a client does nothing that the twin
/// would undo. It leaves such names alone, does not write other bytes to such a range, and does not
/// cut such a file.
pub(super) const HAS_A_LATE_TWIN: bool = true;
