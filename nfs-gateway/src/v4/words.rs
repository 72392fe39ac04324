//! Words that many operations use: state ids, sessions, owners, what a directory was and is.

use bytes::Bytes;

use super::limits::OWNER_BYTES_MAX;
use crate::xdr::{Arguments, Fault, Out};

/// A session (`sessionid4`).
pub(crate) type SessionId = [u8; 16];
/// Chosen by whoever sends it (`verifier4`).
pub(crate) type Verifier = [u8; 8];

/// Stands for the state of a client's open file, or of its locks there (RFC 8881 section 8.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stateid {
    /// How often the state was changed.
    pub(crate) seqid: u32,
    /// Which state.
    pub(crate) other: [u8; 12],
}

impl Stateid {
    //= rfc8881 8.2.3: "other" and "seqid" all zeros: the anonymous state; all ones: READ bypass;
    //= "other" zero and seqid 1: the current state id; seqid NFS4_UINT32_MAX: the invalid one
    /// No state at all.
    pub(crate) const ANONYMOUS: Self = Self { seqid: 0, other: [0; 12] };
    /// The same, for reads that go past locks.
    pub(crate) const BYPASS: Self = Self { seqid: u32::MAX, other: [0xff; 12] };
    /// The one that the operation before has told.
    pub(crate) const CURRENT: Self = Self { seqid: 1, other: [0; 12] };
    /// None.
    pub(crate) const INVALID: Self = Self { seqid: u32::MAX, other: [0; 12] };

    /// From the arguments.
    pub(crate) fn take(arguments: &mut Arguments) -> Result<Self, Fault> {
        Ok(Self { seqid: arguments.take()?, other: arguments.fixed()? })
    }

    /// Into the result.
    pub(crate) fn tell(&self, out: &mut Out) {
        out.u32(self.seqid);
        out.fixed(&self.other);
    }
}

/// Who opened a file, or locked its bytes (`open_owner4`, `lock_owner4`). The client in it is ignored: the
/// session says which one it is (RFC 8881 section 18.16.3).
pub(crate) fn take_owner(arguments: &mut Arguments) -> Result<Bytes, Fault> {
    let _client = arguments.take::<u64>()?;
    let owner = arguments.opaque(OWNER_BYTES_MAX)?;
    // A slice would keep the receive buffer.
    Ok(Bytes::copy_from_slice(&owner))
}

/// A bool (RFC 4506 section 4.4).
pub(crate) fn take_bool(arguments: &mut Arguments) -> Result<bool, Fault> {
    match arguments.take::<u32>()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Fault::GarbageArguments),
    }
}

/// What a directory was before a change, and is after it (`change_info4`). Others may have changed it in
/// between, so it is never called atomic.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChangeInfo {
    /// Before.
    pub(crate) before: u64,
    /// After.
    pub(crate) after: u64,
}

impl ChangeInfo {
    /// Into the result.
    pub(crate) fn tell(self, out: &mut Out) {
        out.bool(false);
        out.u64(self.before);
        out.u64(self.after);
    }
}
