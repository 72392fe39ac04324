//! The status of an operation (RFC 8881 section 15).

use nfs3_types::nfs3::nfsstat3;

use crate::xdr::ProcedureError;

/// An `nfsstat4`. Statuses that version 3 has, too, have the same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Status(pub(crate) u32);

macro_rules! statuses {
    ($($name:ident $number:literal)+) => {
        impl Status {
            $(#[allow(missing_docs, reason = "the RFC's word")] pub(crate) const $name: Self = Self($number);)+
        }
    };
}

statuses! {
    OK 0
    PERM 1
    NOENT 2
    NXIO 6
    ACCESS 13
    XDEV 18
    NOTDIR 20
    ISDIR 21
    INVAL 22
    FBIG 27
    NOSPC 28
    ROFS 30
    NAMETOOLONG 63
    DQUOT 69
    STALE 70
    BAD_COOKIE 10003
    NOTSUPP 10004
    TOOSMALL 10005
    SERVERFAULT 10006
    BADTYPE 10007
    DELAY 10008
    SAME 10009
    DENIED 10010
    EXPIRED 10011
    LOCKED 10012
    GRACE 10013
    SHARE_DENIED 10015
    CLID_INUSE 10017
    NOFILEHANDLE 10020
    MINOR_VERS_MISMATCH 10021
    STALE_CLIENTID 10022
    OLD_STATEID 10024
    BAD_STATEID 10025
    NOT_SAME 10027
    SYMLINK 10029
    RESTOREFH 10030
    ATTRNOTSUPP 10032
    NO_GRACE 10033
    RECLAIM_CONFLICT 10035
    BADXDR 10036
    LOCKS_HELD 10037
    OPENMODE 10038
    BADOWNER 10039
    BADCHAR 10040
    BADNAME 10041
    OP_ILLEGAL 10044
    BADSESSION 10052
    BADSLOT 10053
    COMPLETE_ALREADY 10054
    BACK_CHAN_BUSY 10057
    SEQ_MISORDERED 10063
    SEQUENCE_POS 10064
    REQ_TOO_BIG 10065
    REP_TOO_BIG 10066
    REP_TOO_BIG_TO_CACHE 10067
    RETRY_UNCACHED_REP 10068
    TOO_MANY_OPS 10070
    OP_NOT_IN_SESSION 10071
    CLIENTID_BUSY 10074
    SEQ_FALSE_RETRY 10076
    NOT_ONLY_OP 10081
    WRONG_TYPE 10083
    DELEG_REVOKED 10087
    PARTNER_NOTSUPP 10088
    NOXATTR 10095
    XATTR2BIG 10096
}

impl From<nfsstat3> for Status {
    fn from(status: nfsstat3) -> Self {
        match status {
            // Both do not exist in version 4, and no request here returns them.
            nfsstat3::NFS3ERR_NOT_SYNC | nfsstat3::NFS3ERR_REMOTE => Self::SERVERFAULT,
            other => Self(other as u32),
        }
    }
}

/// What an operation returns besides the result that it encodes.
pub(crate) type OperationResult = Result<(), OperationError>;

/// The error of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OperationError {
    pub(crate) status: Status,
    /// The encoded result after the status.
    pub(crate) body: Vec<u8>,
}

impl From<Status> for OperationError {
    fn from(status: Status) -> Self {
        Self { status, body: Vec::new() }
    }
}

impl From<nfsstat3> for OperationError {
    fn from(status: nfsstat3) -> Self {
        Status::from(status).into()
    }
}

impl From<ProcedureError> for OperationError {
    fn from(fault: ProcedureError) -> Self {
        match fault {
            ProcedureError::GarbageArguments => Status::BADXDR.into(),
            ProcedureError::NoProcedure => Status::OP_ILLEGAL.into(),
            ProcedureError::System => Status::SERVERFAULT.into(),
        }
    }
}
