//! What a client of `NFSv3` without stored replies must bear: each rule is one relaxation of the
//! oracle. Once a call that is sent again gets its first answer, from whichever gateway and after a
//! restart too, take them away one by one.

/// A call that was sent again may meet its own work: a guarded CREATE, a MKDIR, a LINK is told
/// `NFS3ERR_EXIST`, a REMOVE, a RMDIR, a RENAME `NFS3ERR_NOENT`, and has been done.
///
/// An exclusive CREATE bears no such thing: its verifier tells the server that it is the same call.
pub(super) const MEETS_ITS_OWN_WORK: bool = true;

/// A call that was sent again may be done once more, after its answer: as long as a gateway may
/// have the first sending under way, a client does nothing that the twin would undo. It leaves such
/// names alone, does not write other bytes to such a range, and does not cut such a file.
pub(super) const HAS_A_LATE_TWIN: bool = true;
