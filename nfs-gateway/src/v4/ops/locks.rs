//! LOCK, LOCKT and LOCKU. The nodes keep the locks, so they exclude every client of the volume. The
//! server never blocks: the client retries, when it is told that the lock is free.

use client::lock::LockAttempt;
use fileio::protocol::{ByteRange, FileLock, LockKind, TestLock};

use crate::v4::callbacks;
use crate::v4::compound::{Compound, OperationXdr};
use crate::v4::current_fh::check_regular;
use crate::v4::limits::LOCK_WAITER_NAME_BYTES_MAX;
use crate::v4::state::{AwaitedLock, LockWaiter, LockWaiters, Locker, owner_id, owner_name};
use crate::v4::status::{OperationError, OperationResult, Status};
use crate::v4::types::{Stateid, take_bool, take_owner};
use crate::xdr::{CallArguments, ProcedureError, XdrEncoder};

/// `nfs_lock_type4`.
const READ: u32 = 1;
const WRITE: u32 = 2;

/// Takes an `nfs_lock_type4`: the kind, and whether the client will retry.
fn take_kind(arguments: &mut CallArguments) -> Result<(LockKind, bool), ProcedureError> {
    match arguments.take::<u32>()? {
        1 => Ok((LockKind::Shared {}, false)),
        2 => Ok((LockKind::Exclusive {}, false)),
        3 => Ok((LockKind::Shared {}, true)),
        4 => Ok((LockKind::Exclusive {}, true)),
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
    let (kind, will_retry) = take_kind(&mut xdr.arguments)?;
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
            match leases.lock_again_or_anew(ctx, locker.file, wanted, reclaim).await {
                Ok(LockAttempt::Conflict(lock)) if end_silent_owner(compound, lock).await => {
                    leases.lock_again_or_anew(ctx, locker.file, wanted, reclaim).await
                }
                tried => tried,
            }
        }
    };
    let tried = tried.map_err(crate::translate::status);
    note_waiter(compound, locker, (range, kind), will_retry && is_conflict(&tried))?;
    if tried != Ok(LockAttempt::Granted) {
        let mut tables = compound.state().tables_mut();
        tables.states.note_failed_lock(locker.number, tried.is_err());
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

/// If the client that has `lock` through this gateway is silent, ends it; true if its locks are
/// released then.
async fn end_silent_owner(compound: &Compound<'_>, lock: FileLock) -> bool {
    let ctx = compound.context.ctx();
    let ended = {
        let mut tables = compound.state().tables_mut();
        let owner = tables.states.name_of(lock.owner);
        owner.and_then(|(client, _)| tables.end_if_silent(ctx, client))
    };
    match ended {
        Some(leases) => {
            leases.wait_for_closes(ctx).await;
            true
        }
        None => false,
    }
}

fn is_conflict<E>(tried: &Result<LockAttempt, E>) -> bool {
    matches!(tried, Ok(LockAttempt::Conflict(_)))
}

//= rfc8881 18.10.3, 20.11
/// Records whether the lock owner waits for a lock on the file.
fn note_waiter(
    compound: &Compound<'_>,
    locker: Locker,
    (range, kind): (ByteRange, LockKind),
    waits: bool,
) -> Result<(), Status> {
    let (slot, state) = (compound.slot()?, compound.state());
    let mut tables = state.tables_mut();
    let Some(owner) = owner_name(&tables.states, locker.number) else { return Ok(()) };
    let is_short = owner.len() <= LOCK_WAITER_NAME_BYTES_MAX;
    let waiter = LockWaiter { client: slot.client, file: locker.file, owner };
    if waits && is_short && tables.sessions.has_path(slot.client) {
        let owner = slot.leases.owner(locker.owner_id);
        let until = LockWaiters::deadline(state.ctx.now());
        let handle = compound.current_fh()?.handle()?.data.into_owned();
        tables.lock_waiters.add(waiter, AwaitedLock { owner, range, kind, handle, until });
        drop(tables);
        callbacks::start_lock_notices(state);
    } else {
        tables.lock_waiters.remove(&waiter);
    }
    Ok(())
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
    let (kind, _) = take_kind(&mut xdr.arguments)?;
    let range = take_range(&mut xdr.arguments)?;
    let owner = take_owner(&mut xdr.arguments)?;
    let (fh, range) = (compound.current_fh()?, range?);
    check_regular(fh.attributes().await?.kind)?;
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
    let stateid = {
        let mut tables = compound.state().tables_mut();
        tables.lock_waiters.note_release(file);
        tables.states.set_has_locks(number, leases.has_locks(file, owner_id))
    };
    stateid.encode(&mut xdr.out);
    compound.stateid = Some(stateid);
    Ok(())
}
