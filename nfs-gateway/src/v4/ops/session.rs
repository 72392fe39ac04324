//! `EXCHANGE_ID`, `CREATE_SESSION`, SEQUENCE and what ends them.

use crate::rpc::{AUTH_NONE, AUTH_SYS, Claim};
use crate::v4::compound::Compound;
use crate::v4::limits::OWNER_BYTES_MAX;
use crate::v4::state::{Channel, Exchange, Named, Tables, Wanted};
use crate::v4::status::{Failed, Status};
use crate::v4::words::{SessionId, take_bool};
use crate::xdr::{Arguments, Fault, Out};

/// `EXCHGID4_FLAG_UPD_CONFIRMED_REC_A`.
const UPDATE: u32 = 0x4000_0000;
/// `EXCHGID4_FLAG_CONFIRMED_R`.
const CONFIRMED: u32 = 0x8000_0000;
/// `EXCHGID4_FLAG_USE_NON_PNFS`: no layouts here.
const USE_NON_PNFS: u32 = 0x0001_0000;
/// All flags that the RFC knows of arguments.
const FLAGS: u32 = 0x4007_0103;
/// `SP4_NONE`.
const NO_PROTECTION: u32 = 0;
/// `CDFS4_FORE`: there is no back channel.
const FORE: u32 = 1;
/// Items of an array that may have one at most, and of those that say how callbacks are to be made.
const SECURITY_MAX: u32 = 16;
/// Groups of `AUTH_SYS`.
const GROUPS_MAX: u32 = 16;

//= rfc8881 18.35
pub(super) fn exchange(
    compound: &Compound<'_>,
    arguments: &mut Arguments,
    out: &mut Out,
) -> Result<(), Failed> {
    let verifier = arguments.fixed()?;
    let name = arguments.opaque(OWNER_BYTES_MAX)?.to_vec();
    let flags = arguments.take::<u32>()?;
    let protection = arguments.take::<u32>()?;
    if protection != NO_PROTECTION {
        // Protection of state needs RPCSEC_GSS.
        return Err(if protection > 2 { Status::BADXDR } else { Status::NOTSUPP }.into());
    }
    take_implementation(arguments)?;
    if flags & !FLAGS != 0 {
        return Err(Status::INVAL.into());
    }
    let principal = match compound.asker.claim() {
        Claim::User { uid, .. } => Some(*uid),
        Claim::Nobody => None,
    };
    let exchange = Exchange { name, verifier, principal, update: flags & UPDATE != 0 };
    let kept = compound.kept();
    let Named { client, next_session, confirmed } = kept.change().exchange(kept, exchange)?;
    kept.reap();
    out.u64(client);
    out.u32(next_session);
    out.u32(USE_NON_PNFS | if confirmed { CONFIRMED } else { 0 });
    out.u32(NO_PROTECTION);
    tell_server(compound, out);
    Ok(())
}

/// `nfs_impl_id4`, at most one.
fn take_implementation(arguments: &mut Arguments) -> Result<(), Fault> {
    match arguments.take::<u32>()? {
        0 => Ok(()),
        1 => {
            arguments.opaque(OWNER_BYTES_MAX)?;
            arguments.opaque(OWNER_BYTES_MAX)?;
            arguments.fixed::<12>()?;
            Ok(())
        }
        _ => Err(Fault::GarbageArguments),
    }
}

//= rfc8881 2.10.4: clients may use several ways to one owner for one session, so each life of a gateway
//= is its own; the scope says where file handles and states mean the same
fn tell_server(compound: &Compound<'_>, out: &mut Out) {
    let instance = compound.kept().tables().instance();
    let volume = compound.asker.volume().id().0.to_be_bytes();
    out.u64(0);
    out.opaque(&[&volume[..], &instance.to_be_bytes()].concat());
    out.opaque(&volume);
    // Who made the server is nobody's business.
    out.u32(0);
}

/// `channel_attrs4`.
fn take_channel(arguments: &mut Arguments) -> Result<Channel, Fault> {
    let _padding = arguments.take::<u32>()?;
    let channel = Channel {
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
        _ => return Err(Fault::GarbageArguments),
    }
    Ok(channel)
}

fn tell_channel(channel: &Channel, out: &mut Out) {
    out.u32(0);
    out.u32(channel.request_bytes_max);
    out.u32(channel.reply_bytes_max);
    out.u32(channel.cached_bytes_max);
    out.u32(channel.operations_max);
    out.u32(channel.slots);
    out.u32(0);
}

//= rfc8881 18.36
pub(super) fn create(
    compound: &Compound<'_>,
    arguments: &mut Arguments,
    out: &mut Out,
) -> Result<(), Failed> {
    let client = arguments.take::<u64>()?;
    let sequence = arguments.take::<u32>()?;
    // Sessions do not outlive the gateway, and there is no back channel.
    let _flags = arguments.take::<u32>()?;
    let fore = take_channel(arguments)?;
    let back = take_channel(arguments)?;
    let _callback_program = arguments.take::<u32>()?;
    take_callback_security(arguments)?;
    let kept = compound.kept();
    let told =
        kept.change().create_session(kept, client, sequence, Wanted(fore), |id, session| {
            let mut told = Out::default();
            told.fixed(id);
            told.u32(sequence);
            told.u32(0);
            tell_channel(&session.channel(), &mut told);
            tell_channel(&back, &mut told);
            told.body(Vec::new()).head
        })?;
    out.fixed(&told);
    Ok(())
}

/// `callback_sec_parms4`: of no use without callbacks.
fn take_callback_security(arguments: &mut Arguments) -> Result<(), Fault> {
    let count = arguments.take::<u32>()?;
    if count > SECURITY_MAX {
        return Err(Fault::GarbageArguments);
    }
    for _ in 0..count {
        match arguments.take::<u32>()? {
            AUTH_NONE => {}
            AUTH_SYS => {
                let _stamp = arguments.take::<u32>()?;
                arguments.opaque(OWNER_BYTES_MAX)?;
                let _user_and_group = arguments.take::<u64>()?;
                let groups = arguments.take::<u32>()?;
                if groups > GROUPS_MAX {
                    return Err(Fault::GarbageArguments);
                }
                for _ in 0..groups {
                    arguments.take::<u32>()?;
                }
            }
            // RPCSEC_GSS: the service, and two handles.
            6 => {
                let _service = arguments.take::<u32>()?;
                arguments.opaque(OWNER_BYTES_MAX)?;
                arguments.opaque(OWNER_BYTES_MAX)?;
            }
            _ => return Err(Fault::GarbageArguments),
        }
    }
    Ok(())
}

//= rfc8881 18.46
pub(super) fn sequence(
    compound: &mut Compound<'_>,
    arguments: &mut Arguments,
    out: &mut Out,
) -> Result<(), Failed> {
    let id: SessionId = arguments.fixed()?;
    let (sequence, slot) = (arguments.take::<u32>()?, arguments.take::<u32>()?);
    let _highest_slot = arguments.take::<u32>()?;
    let cached = take_bool(arguments)?;
    compound.begin(id, (slot, sequence), cached)?;
    let last =
        compound.kept().tables().session(&id).map_or(slot, |known| known.channel().slots - 1);
    out.fixed(&id);
    out.u32(sequence);
    out.u32(slot);
    out.u32(last);
    out.u32(last);
    // Nothing that the client should look at.
    out.u32(0);
    Ok(())
}

//= rfc8881 18.34: any connection may be used for any session of ours
pub(super) fn bind(
    compound: &Compound<'_>,
    arguments: &mut Arguments,
    out: &mut Out,
) -> Result<(), Failed> {
    let id: SessionId = arguments.fixed()?;
    let _direction = arguments.take::<u32>()?;
    let _rdma = take_bool(arguments)?;
    compound.kept().tables().session(&id)?;
    out.fixed(&id);
    out.u32(FORE);
    out.bool(false);
    Ok(())
}

//= rfc8881 18.37
pub(super) fn destroy(compound: &Compound<'_>, arguments: &mut Arguments) -> Result<(), Failed> {
    let id: SessionId = arguments.fixed()?;
    compound.kept().change().destroy_session(&id)?;
    Ok(())
}

//= rfc8881 18.50
pub(super) fn destroy_client(
    compound: &Compound<'_>,
    arguments: &mut Arguments,
) -> Result<(), Failed> {
    let client = arguments.take::<u64>()?;
    compound.kept().change().destroy_client(client)?;
    Ok(())
}

//= rfc8881 18.51: for one file system only it says nothing here, there are no moved ones
pub(super) fn reclaim_complete(
    compound: &Compound<'_>,
    arguments: &mut Arguments,
) -> Result<(), Failed> {
    let one_file_system = take_bool(arguments)?;
    if one_file_system {
        compound.here()?;
        return Ok(());
    }
    compound.tables(Tables::reclaimed)?;
    Ok(())
}
