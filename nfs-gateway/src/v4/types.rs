//! Types that many operations use (RFC 8881 section 3.3).

use bytes::Bytes;

use super::limits::OWNER_BYTES_MAX;
use crate::xdr::{CallArguments, ProcedureError, XdrEncoder};

/// A session (`sessionid4`).
pub(crate) type SessionId = [u8; 16];
/// Chosen by its sender (`verifier4`).
pub(crate) type Verifier4 = [u8; 8];

/// A request of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SessionRequest {
    pub(crate) session: SessionId,
    pub(crate) slot: u32,
    /// The sequence id in the slot.
    pub(crate) sequence: u32,
}

/// Names the state of an open file or of its locks (RFC 8881 section 8.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stateid {
    /// The version of the state.
    pub(crate) seqid: u32,
    /// The state.
    pub(crate) other: [u8; 12],
}

impl Stateid {
    //= rfc8881 8.2.3: "other" and "seqid" all zeros: the anonymous state; all ones: READ bypass;
    //= "other" zero and seqid 1: the current state id; seqid NFS4_UINT32_MAX: the invalid one
    /// No state.
    pub(crate) const ANONYMOUS: Self = Self { seqid: 0, other: [0; 12] };
    /// No state, for READs that bypass locks.
    pub(crate) const BYPASS: Self = Self { seqid: u32::MAX, other: [0xff; 12] };
    /// The stateid that an earlier operation of the COMPOUND returned.
    pub(crate) const CURRENT: Self = Self { seqid: 1, other: [0; 12] };
    pub(crate) const INVALID: Self = Self { seqid: u32::MAX, other: [0; 12] };

    /// Takes one from the arguments.
    pub(crate) fn take(arguments: &mut CallArguments) -> Result<Self, ProcedureError> {
        Ok(Self { seqid: arguments.take()?, other: arguments.fixed()? })
    }

    pub(crate) fn encode(&self, out: &mut XdrEncoder) {
        out.u32(self.seqid);
        out.fixed(&self.other);
    }
}

/// Takes an `open_owner4` or `lock_owner4` from the arguments. Its client id is ignored: the
/// session determines the client (RFC 8881 section 18.16.3).
pub(crate) fn take_owner(arguments: &mut CallArguments) -> Result<Bytes, ProcedureError> {
    let _client = arguments.take::<u64>()?;
    let owner = arguments.opaque(OWNER_BYTES_MAX)?;
    // A slice would keep the receive buffer.
    Ok(Bytes::copy_from_slice(&owner))
}

/// Takes a bool (RFC 4506 section 4.4).
pub(crate) fn take_bool(arguments: &mut CallArguments) -> Result<bool, ProcedureError> {
    match arguments.take::<u32>()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(ProcedureError::GarbageArguments),
    }
}

/// The change attribute of a file before and after a change (`change_info4`). Others may have
/// changed it in between, so it is never reported as atomic.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChangeInfo {
    pub(crate) before: u64,
    pub(crate) after: u64,
}

impl ChangeInfo {
    pub(crate) fn encode(self, out: &mut XdrEncoder) {
        out.bool(false);
        out.u64(self.before);
        out.u64(self.after);
    }
}
