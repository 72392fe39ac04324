//! `BIND_CONN_TO_SESSION` and `BACKCHANNEL_CTL`, and the security of callbacks.

use bytes::Bytes;

use crate::rpc::{AUTH_NONE, AUTH_SYS, AUTH_SYS_GROUPS_MAX, MACHINE_NAME_BYTES_MAX};
use crate::v4::callbacks;
use crate::v4::compound::{Compound, OperationXdr};
use crate::v4::limits::OWNER_BYTES_MAX;
use crate::v4::status::{OperationResult, Status};
use crate::v4::types::{SessionId, take_bool};
use crate::xdr::{CallArguments, ProcedureError, XdrEncoder};

/// Entries of an array of callback security parameters, at most.
const SECURITY_MAX: u32 = 16;
/// The flavour of `RPCSEC_GSS`.
const RPCSEC_GSS: u32 = 6;

/// `CDFC4_*`: what a client wants a connection to carry, requests or callbacks.
const WANT_FORE: u32 = 1;
const WANT_BACK: u32 = 2;
const WANT_FORE_OR_BOTH: u32 = 3;
const WANT_BACK_OR_BOTH: u32 = 7;
/// `CDFS4_*`: what it carries.
const FORE: u32 = 1;
const BACK: u32 = 2;
const BOTH: u32 = 3;

/// The flavour and the body of a credential for callbacks.
pub(super) type CallbackCredential = (u32, Bytes);

//= rfc8881 18.33.3: NFS4ERR_NOENT for a handle of RPCSEC_GSS that the server does not know, and
//= here are none
/// Takes an array of `callback_sec_parms4`: the first one with a flavour that is supported; `None`
/// if there are no entries.
pub(super) fn take_security(
    arguments: &mut CallArguments,
) -> Result<Result<Option<CallbackCredential>, Status>, ProcedureError> {
    let count = arguments.take::<u32>()?;
    if count > SECURITY_MAX {
        return Err(ProcedureError::GarbageArguments);
    }
    let mut first = None;
    for _ in 0..count {
        let credential = match arguments.take::<u32>()? {
            AUTH_NONE => Some((AUTH_NONE, Bytes::new())),
            AUTH_SYS => Some((AUTH_SYS, take_auth_sys(arguments)?)),
            RPCSEC_GSS => {
                let _service = arguments.take::<u32>()?;
                arguments.opaque(OWNER_BYTES_MAX)?;
                arguments.opaque(OWNER_BYTES_MAX)?;
                None
            }
            _ => return Err(ProcedureError::GarbageArguments),
        };
        first = first.or(credential);
    }
    Ok(if count > 0 && first.is_none() { Err(Status::NOENT) } else { Ok(first) })
}

/// Takes an `authsys_parms` and encodes it as the body of a credential.
fn take_auth_sys(arguments: &mut CallArguments) -> Result<Bytes, ProcedureError> {
    let mut out = XdrEncoder::default();
    out.u32(arguments.take()?);
    out.opaque(&arguments.opaque(MACHINE_NAME_BYTES_MAX)?);
    out.u64(arguments.take()?);
    let groups = arguments.take::<u32>()?;
    if groups > AUTH_SYS_GROUPS_MAX {
        return Err(ProcedureError::GarbageArguments);
    }
    out.u32(groups);
    for _ in 0..groups {
        out.u32(arguments.take()?);
    }
    Ok(out.body(Vec::new()).head.into())
}

/// Binds the connection of the call to the back channel of a session; true if callbacks can be sent
/// then.
pub(super) fn bind_connection(compound: &Compound<'_>, id: &SessionId) -> Result<bool, Status> {
    let link = compound.context.callbacks.clone();
    {
        let mut tables = compound.state().tables_mut();
        let back = tables.sessions.back(id)?;
        if !back.is_usable() {
            return Ok(false);
        }
        back.bind(link.clone());
    }
    callbacks::probe(compound.state(), *id, link);
    Ok(true)
}

//= rfc8881 18.34: any connection may carry requests of any session; callbacks only go over those
//= that are bound for them
pub(super) fn bind(compound: &Compound<'_>, xdr: &mut OperationXdr) -> OperationResult {
    let id: SessionId = xdr.arguments.fixed()?;
    let wanted = xdr.arguments.take::<u32>()?;
    let _rdma = take_bool(&mut xdr.arguments)?;
    if !matches!(wanted, WANT_FORE | WANT_BACK | WANT_FORE_OR_BOTH | WANT_BACK_OR_BOTH) {
        return Err(Status::BADXDR.into());
    }
    compound.state().tables().sessions.get(&id)?;
    let is_bound = wanted != WANT_FORE && bind_connection(compound, &id)?;
    let direction = match (wanted, is_bound) {
        (WANT_BACK, true) => BACK,
        (WANT_BACK, false) => return Err(Status::INVAL.into()),
        (_, true) => BOTH,
        (_, false) => FORE,
    };
    xdr.out.fixed(&id);
    xdr.out.u32(direction);
    xdr.out.bool(false);
    Ok(())
}

//= rfc8881 18.33
pub(super) fn control(compound: &Compound<'_>, xdr: &mut OperationXdr) -> OperationResult {
    let program = xdr.arguments.take::<u32>()?;
    let credential = take_security(&mut xdr.arguments)??;
    let id = compound.session_request()?.session;
    let mut tables = compound.state().tables_mut();
    let attrs = &mut tables.sessions.back(&id)?.attrs;
    attrs.program = program;
    if credential.is_some() {
        attrs.credential = credential;
    }
    Ok(())
}
