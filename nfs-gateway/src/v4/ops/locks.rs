//! LOCK, LOCKT and LOCKU. The nodes keep the locks, so they exclude every client of the volume. The
//! server never blocks: the client retries.

use client::lock::LockAttempt;
use fileio::protocol::{ByteRange, FileLock, Kind, LockKind, TestLock};

use crate::v4::compound::{Compound, OperationXdr};
use crate::v4::state::{Locker, owner_id};
use crate::v4::status::{OperationError, OperationResult, Status};
use crate::v4::types::{Stateid, take_bool, take_owner};
use crate::xdr::{CallArguments, ProcedureError, XdrEncoder};

/// `nfs_lock_type4`.
const READ: u32 = 1;
const WRITE: u32 = 2;

/// Takes an `nfs_lock_type4`; with 3 and 4 the client announces that it will retry.
fn take_kind(arguments: &mut CallArguments) -> Result<LockKind, ProcedureError> {
    match arguments.take::<u32>()? {
        1 | 3 => Ok(LockKind::Shared {}),
        2 | 4 => Ok(LockKind::Exclusive {}),
        _ => Err(ProcedureError::GarbageArguments),
    }
}

/// Takes an offset and a length; a length of all ones means up to the end.
//= rfc8881 18.10.3: a length of zero, or past the last byte, is NFS4ERR_INVAL
fn take_range(arguments: &mut CallArguments) -> Result<Result<ByteRange, Status>, ProcedureError> {
    let (first, length) = (arguments.take::<u64>()?, arguments.take::<u64>()?);
    Ok(match length {
        0 => Err(Status::INVAL),
        u64::MAX => Ok(ByteRange { first, last: u64::MAX }),
        _ => match first.checked_add(length - 1) {
            Some(last) => Ok(ByteRange { first, last }),
            None => Err(Status::INVAL),
        },
    })
}

//= rfc8881 18.10
pub(super) async fn lock(compound: &mut Compound<'_>, xdr: &mut OperationXdr) -> OperationResult {
    let kind = take_kind(&mut xdr.arguments)?;
    let reclaim = take_bool(&mut xdr.arguments)?;
    let range = take_range(&mut xdr.arguments)?;
    let locker = take_locker(compound, &mut xdr.arguments)?;
    let (range, leases) = (range?, compound.slot()?.leases.clone());
    let reclaim_complete = compound.is_reclaim_complete()?;
    let tried = match reclaim {
        true if reclaim_complete => Ok(LockAttempt::Late),
        //= rfc8881 18.51.3: nothing new before RECLAIM_COMPLETE
        false if !reclaim_complete => Ok(LockAttempt::Later),
        _ => {
            let ctx = compound.context.ctx();
            let wanted = (locker.owner_id, range, kind);
            leases.lock_again_or_anew(ctx, locker.file, wanted, reclaim).await
        }
    };
    let tried = tried.map_err(crate::translate::status);
    if tried != Ok(LockAttempt::Granted) {
        compound.state().tables_mut().states.remove_unused(locker.number);
    }
    match tried? {
        LockAttempt::Granted => {
            let stateid = compound.state().tables_mut().states.set_has_locks(locker.number, true);
            stateid.encode(&mut xdr.out);
            compound.stateid = Some(stateid);
            Ok(())
        }
        LockAttempt::Conflict(_) if reclaim => Err(Status::RECLAIM_CONFLICT.into()),
        LockAttempt::Conflict(lock) => Err(denied(compound, lock)),
        LockAttempt::Later => Err(Status::GRACE.into()),
        LockAttempt::Late => Err(Status::NO_GRACE.into()),
    }
}

/// Takes a `locker4`: an owner that is new to an open file, or one with a lock state.
fn take_locker(
    compound: &Compound<'_>,
    arguments: &mut CallArguments,
) -> Result<Locker, OperationError> {
    let is_new = take_bool(arguments)?;
    let file = compound.current_fh()?.file;
    let locker = if is_new {
        let _open_seqid = arguments.take::<u32>()?;
        let stateid = compound.resolve_stateid(Stateid::take(arguments)?)?;
        let _lock_seqid = arguments.take::<u32>()?;
        let owner = take_owner(arguments)?;
        compound.tables(|tables, client| {
            let open = tables.states.find(client, &stateid)?;
            tables.states.locker_of_open(open, owner)
        })?
    } else {
        let stateid = compound.resolve_stateid(Stateid::take(arguments)?)?;
        let _lock_seqid = arguments.take::<u32>()?;
        compound
            .tables(|tables, client| tables.states.locker(tables.states.find(client, &stateid)?))?
    };
    if locker.file != file {
        return Err(Status::BAD_STATEID.into());
    }
    Ok(locker)
}

/// DENIED, with the conflicting lock. The name of an owner at another gateway is its id.
fn denied(compound: &Compound<'_>, lock: FileLock) -> OperationError {
    let mut out = XdrEncoder::default();
    let FileLock { owner, range: ByteRange { first, last }, kind } = lock;
    out.u64(first);
    out.u64(if last == u64::MAX { u64::MAX } else { last - first + 1 });
    out.u32(if kind == (LockKind::Shared {}) { READ } else { WRITE });
    if let Some((client, name)) = compound.state().tables().states.name_of(owner) {
        out.u64(client);
        out.opaque(&name);
    } else {
        out.u64(owner.client);
        out.opaque(&owner.id.to_be_bytes());
    }
    OperationError { status: Status::DENIED, body: out.body(Vec::new()).head }
}

//= rfc8881 18.11
pub(super) async fn test(compound: &Compound<'_>, xdr: &mut OperationXdr) -> OperationResult {
    let kind = take_kind(&mut xdr.arguments)?;
    let range = take_range(&mut xdr.arguments)?;
    let owner = take_owner(&mut xdr.arguments)?;
    let (fh, range) = (compound.current_fh()?, range?);
    match fh.attributes().await?.kind {
        Kind::File {} => {}
        Kind::Directory {} => return Err(Status::ISDIR.into()),
        Kind::Symlink {} => return Err(Status::SYMLINK.into()),
        _ => return Err(Status::WRONG_TYPE.into()),
    }
    let owner = compound.tables(|tables, client| {
        Ok(tables.client(client)?.leases.owner(owner_id(client, &owner)))
    })?;
    match fh.context.request(TestLock { file: fh.file, owner, range, kind }).await? {
        None => Ok(()),
        Some(lock) => Err(denied(compound, lock)),
    }
}

//= rfc8881 18.12
pub(super) async fn unlock(compound: &mut Compound<'_>, xdr: &mut OperationXdr) -> OperationResult {
    let _kind = take_kind(&mut xdr.arguments)?;
    let _seqid = xdr.arguments.take::<u32>()?;
    let stateid = Stateid::take(&mut xdr.arguments)?;
    let range = take_range(&mut xdr.arguments)?;
    let (stateid, range) = (compound.resolve_stateid(stateid)?, range?);
    let locker = compound
        .tables(|tables, client| tables.states.locker(tables.states.find(client, &stateid)?))?;
    let Locker { number, file, owner_id } = locker;
    let leases = compound.slot()?.leases.clone();
    let unlocked = leases.unlock(compound.context.ctx(), file, owner_id, range).await;
    unlocked.map_err(crate::translate::status)?;
    let stateid = compound
        .state()
        .tables_mut()
        .states
        .set_has_locks(number, leases.has_locks(file, owner_id));
    stateid.encode(&mut xdr.out);
    compound.stateid = Some(stateid);
    Ok(())
}
