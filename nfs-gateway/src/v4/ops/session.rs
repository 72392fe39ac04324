//! `EXCHANGE_ID`, `CREATE_SESSION`, SEQUENCE, and the ends of clients and sessions.

use super::back_channel::{bind_connection, take_security};
use crate::v4::compound::{Compound, OperationXdr};
use crate::v4::limits::OWNER_BYTES_MAX;
use crate::v4::state::{
    BackChannel, CallbackAttrs, ChannelAttrs, ExchangeIdArgs, ExchangeIdResult, Nfs4Session,
    StateTables,
};
use crate::v4::status::{OperationResult, Status};
use crate::v4::types::{SessionId, take_bool};
use crate::xdr::{CallArguments, ProcedureError, XdrEncoder};

/// `EXCHGID4_FLAG_UPD_CONFIRMED_REC_A`.
const UPDATE: u32 = 0x4000_0000;
/// `EXCHGID4_FLAG_CONFIRMED_R`.
const CONFIRMED: u32 = 0x8000_0000;
/// `EXCHGID4_FLAG_USE_NON_PNFS`: no layouts here.
const USE_NON_PNFS: u32 = 0x0001_0000;
/// All flags of arguments that the RFC defines.
const FLAGS: u32 = 0x4007_0103;
/// All flags of `CREATE_SESSION` that the RFC defines.
const SESSION_FLAGS: u32 = 7;
/// `CREATE_SESSION4_FLAG_CONN_BACK_CHAN`: callbacks go over the connection of the call.
const CONN_BACK_CHAN: u32 = 2;
/// `SP4_NONE`.
const NO_PROTECTION: u32 = 0;

//= rfc8881 18.35
pub(super) fn exchange_id(compound: &Compound<'_>, xdr: &mut OperationXdr) -> OperationResult {
    let verifier = xdr.arguments.fixed()?;
    let name = xdr.arguments.opaque(OWNER_BYTES_MAX)?.to_vec();
    let flags = xdr.arguments.take::<u32>()?;
    let protection = xdr.arguments.take::<u32>()?;
    if protection != NO_PROTECTION {
        // Protection of state needs RPCSEC_GSS.
        return Err(if protection > 2 { Status::BADXDR } else { Status::NOTSUPP }.into());
    }
    take_implementation(&mut xdr.arguments)?;
    if flags & !FLAGS != 0 {
        return Err(Status::INVAL.into());
    }
    let principal = compound.context.credential().map(|user| user.uid);
    let args = ExchangeIdArgs { name, verifier, principal, update: flags & UPDATE != 0 };
    let state = compound.state();
    let result = state.tables_mut().exchange_id(&state.ctx, args)?;
    let ExchangeIdResult { client, next_session, confirmed } = result;
    state.start_expiry();
    xdr.out.u64(client);
    xdr.out.u32(next_session);
    xdr.out.u32(USE_NON_PNFS | if confirmed { CONFIRMED } else { 0 });
    xdr.out.u32(NO_PROTECTION);
    encode_server(compound, &mut xdr.out);
    Ok(())
}

/// Takes an array of `nfs_impl_id4` with one entry at most.
fn take_implementation(arguments: &mut CallArguments) -> Result<(), ProcedureError> {
    match arguments.take::<u32>()? {
        0 => Ok(()),
        1 => {
            arguments.opaque(OWNER_BYTES_MAX)?;
            arguments.opaque(OWNER_BYTES_MAX)?;
            arguments.fixed::<12>()?;
            Ok(())
        }
        _ => Err(ProcedureError::GarbageArguments),
    }
}

//= rfc8881 2.10.4: clients may use several paths to one server owner for one session, so each
//= instance of a gateway is its own; the scope says where file handles and states mean the same
fn encode_server(compound: &Compound<'_>, out: &mut XdrEncoder) {
    let instance = compound.state().tables().states.instance;
    let volume = compound.context.volume.id.0.to_be_bytes();
    out.u64(0);
    out.opaque(&[&volume[..], &instance.to_be_bytes()].concat());
    out.opaque(&volume);
    encode_implementation(out);
}

//= rfc8881 18.35.3: for diagnosis only
/// One `nfs_impl_id4`: no domain, the program with its version, no date.
fn encode_implementation(out: &mut XdrEncoder) {
    out.u32(1);
    out.opaque(&[]);
    out.opaque(concat!("MDFS ", env!("CARGO_PKG_VERSION")).as_bytes());
    out.u64(0);
    out.u32(0);
}

/// Takes a `channel_attrs4`.
fn take_channel(arguments: &mut CallArguments) -> Result<ChannelAttrs, ProcedureError> {
    let _padding = arguments.take::<u32>()?;
    let channel = ChannelAttrs {
        request_bytes_max: arguments.take()?,
        reply_bytes_max: arguments.take()?,
        cached_bytes_max: arguments.take()?,
        operations_max: arguments.take()?,
        slots: arguments.take()?,
    };
    match arguments.take::<u32>()? {
        0 => {}
        1 => {
            let _rdma = arguments.take::<u32>()?;
        }
        _ => return Err(ProcedureError::GarbageArguments),
    }
    Ok(channel)
}

fn encode_channel(channel: &ChannelAttrs, out: &mut XdrEncoder) {
    out.u32(0);
    out.u32(channel.request_bytes_max);
    out.u32(channel.reply_bytes_max);
    out.u32(channel.cached_bytes_max);
    out.u32(channel.operations_max);
    out.u32(channel.slots);
    out.u32(0);
}

//= rfc8881 18.36
pub(super) fn create(compound: &Compound<'_>, xdr: &mut OperationXdr) -> OperationResult {
    let client = xdr.arguments.take::<u64>()?;
    let sequence = xdr.arguments.take::<u32>()?;
    // Sessions are not persistent.
    let flags = xdr.arguments.take::<u32>()?;
    let fore = take_channel(&mut xdr.arguments)?;
    let offered = take_channel(&mut xdr.arguments)?;
    let program = xdr.arguments.take::<u32>()?;
    let credential = take_security(&mut xdr.arguments)??;
    if flags & !SESSION_FLAGS != 0 {
        return Err(Status::INVAL.into());
    }
    offered.check_back()?;
    let back =
        BackChannel::new(CallbackAttrs { minor: compound.minor, program, credential }, offered);
    let binds = flags & CONN_BACK_CHAN != 0 && back.is_usable();
    let principal = compound.context.credential().map(|user| user.uid);
    let state = compound.state();
    let encode = |id: &SessionId, session: &Nfs4Session| {
        let mut result = XdrEncoder::default();
        result.fixed(id);
        result.u32(sequence);
        result.u32(if binds { CONN_BACK_CHAN } else { 0 });
        encode_channel(&session.channel, &mut result);
        encode_channel(&session.back.channel, &mut result);
        result.body(Vec::new()).head
    };
    let (who, channels) = ((client, principal), (fore, back));
    let created = state.tables_mut().create_session(&state.ctx, who, sequence, channels, encode)?;
    xdr.out.fixed(&created);
    if let Some(id) = created.first_chunk()
        && binds
    {
        // Its first field. If the reply is a cached one the session may be gone already.
        let _ = bind_connection(compound, id);
    }
    Ok(())
}

//= rfc8881 18.46
pub(super) fn sequence(compound: &mut Compound<'_>, xdr: &mut OperationXdr) -> OperationResult {
    let id: SessionId = xdr.arguments.fixed()?;
    let (sequence, slot) = (xdr.arguments.take::<u32>()?, xdr.arguments.take::<u32>()?);
    let _highest_slot = xdr.arguments.take::<u32>()?;
    let cached = take_bool(&mut xdr.arguments)?;
    compound.begin(id, (slot, sequence), cached)?;
    let last =
        compound.state().tables().sessions.get(&id).map_or(slot, |known| known.channel.slots - 1);
    xdr.out.fixed(&id);
    xdr.out.u32(sequence);
    xdr.out.u32(slot);
    xdr.out.u32(last);
    xdr.out.u32(last);
    let client = compound.slot().map(|slot| slot.client);
    let flags = client.map_or(0, |client| compound.state().tables().status_flags(client, &id));
    xdr.out.u32(flags);
    Ok(())
}

//= rfc8881 18.37
pub(super) fn destroy(compound: &Compound<'_>, xdr: &mut OperationXdr) -> OperationResult {
    let id: SessionId = xdr.arguments.fixed()?;
    compound.state().tables_mut().sessions.destroy(&id)?;
    Ok(())
}

//= rfc8881 18.50
pub(super) fn destroy_client(compound: &Compound<'_>, xdr: &mut OperationXdr) -> OperationResult {
    let client = xdr.arguments.take::<u64>()?;
    compound.state().tables_mut().destroy_client(client)?;
    Ok(())
}

//= rfc8881 18.51: for one file system it means nothing here, there is no migration
pub(super) fn reclaim_complete(compound: &Compound<'_>, xdr: &mut OperationXdr) -> OperationResult {
    let one_file_system = take_bool(&mut xdr.arguments)?;
    if one_file_system {
        compound.current_fh()?;
        return Ok(());
    }
    compound.tables(StateTables::reclaim_complete)?;
    Ok(())
}
