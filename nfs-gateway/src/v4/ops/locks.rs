//! LOCK, LOCKT and LOCKU. The locks are those of the nodes below, so they hold against every client of the
//! volume, whatever way it came. Nobody waits in the server: the client tries again.

use client::lock::Tried;
use fileio::protocol::{ByteRange, FileLock, Kind, LockKind, TestLock};

use crate::v4::compound::Compound;
use crate::v4::state::{Locker, owner_id};
use crate::v4::status::{Failed, Status};
use crate::v4::words::{Stateid, take_bool, take_owner};
use crate::xdr::{Arguments, Fault, Out};

/// `nfs_lock_type4`.
const READ: u32 = 1;
const WRITE: u32 = 2;

/// `nfs_lock_type4`: with 3 and 4 the client says that it will try again.
fn take_kind(arguments: &mut Arguments) -> Result<LockKind, Fault> {
    match arguments.take::<u32>()? {
        1 | 3 => Ok(LockKind::Shared {}),
        2 | 4 => Ok(LockKind::Exclusive {}),
        _ => Err(Fault::GarbageArguments),
    }
}

/// Offset and length; a length of all ones is all that follows.
//= rfc8881 18.10.3: a length of zero, or past the last byte, is NFS4ERR_INVAL
fn take_range(arguments: &mut Arguments) -> Result<Result<ByteRange, Status>, Fault> {
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
pub(super) async fn lock(
    compound: &mut Compound<'_>,
    arguments: &mut Arguments,
    out: &mut Out,
) -> Result<(), Failed> {
    let kind = take_kind(arguments)?;
    let reclaim = take_bool(arguments)?;
    let range = take_range(arguments)?;
    let locker = take_locker(compound, arguments)?;
    let (range, leases) = (range?, locker.leases.clone());
    let reclaimed = compound.tables(|tables, client| Ok(tables.client(client)?.reclaimed))?;
    let tried = match reclaim {
        true if reclaimed => Ok(Tried::Late),
        //= rfc8881 18.51.3: nothing new before RECLAIM_COMPLETE
        false if !reclaimed => Ok(Tried::Later),
        _ => {
            let ctx = compound.asker.ctx();
            let wanted = (locker.id, range, kind);
            leases.lock_again_or_anew(ctx, locker.file, wanted, reclaim).await
        }
    };
    let tried = tried.map_err(crate::translate::status);
    if tried != Ok(Tried::Granted) {
        compound.kept().change().forget_unused(locker.number);
    }
    match tried? {
        Tried::Granted => {
            let stateid = compound.kept().change().locked(locker.number, true);
            stateid.tell(out);
            compound.stateid = Some(stateid);
            Ok(())
        }
        Tried::Conflict(_) if reclaim => Err(Status::RECLAIM_CONFLICT.into()),
        Tried::Conflict(lock) => Err(denied(compound, lock)),
        Tried::Later => Err(Status::GRACE.into()),
        Tried::Late => Err(Status::NO_GRACE.into()),
    }
}

/// `locker4`: an owner that is new to an open file, or one that has locks there.
fn take_locker(compound: &Compound<'_>, arguments: &mut Arguments) -> Result<Locker, Failed> {
    let is_new = take_bool(arguments)?;
    let file = compound.here()?.file;
    let locker = if is_new {
        let _open_seqid = arguments.take::<u32>()?;
        let stateid = compound.meant(Stateid::take(arguments)?)?;
        let _lock_seqid = arguments.take::<u32>()?;
        let owner = take_owner(arguments)?;
        compound.tables(|tables, client| {
            let open = tables.find(client, &stateid)?;
            tables.locker_of_open(open, owner)
        })?
    } else {
        let stateid = compound.meant(Stateid::take(arguments)?)?;
        let _lock_seqid = arguments.take::<u32>()?;
        compound.tables(|tables, client| tables.locker(tables.find(client, &stateid)?))?
    };
    if locker.file != file {
        return Err(Status::BAD_STATEID.into());
    }
    Ok(locker)
}

/// DENIED, with the lock that is in the way. Of a client elsewhere the name is what the nodes know of it.
fn denied(compound: &Compound<'_>, lock: FileLock) -> Failed {
    let mut out = Out::default();
    let FileLock { owner, range: ByteRange { first, last }, kind } = lock;
    out.u64(first);
    out.u64(if last == u64::MAX { u64::MAX } else { last - first + 1 });
    out.u32(if kind == (LockKind::Shared {}) { READ } else { WRITE });
    if let Some((client, name)) = compound.kept().tables().name_of(owner) {
        out.u64(client);
        out.opaque(&name);
    } else {
        out.u64(owner.client);
        out.opaque(&owner.id.to_be_bytes());
    }
    Failed { status: Status::DENIED, body: out.body(Vec::new()).head }
}

//= rfc8881 18.11
pub(super) async fn test(compound: &Compound<'_>, arguments: &mut Arguments) -> Result<(), Failed> {
    let kind = take_kind(arguments)?;
    let range = take_range(arguments)?;
    let owner = take_owner(arguments)?;
    let (here, range) = (compound.here()?, range?);
    match here.attributes().await?.kind {
        Kind::File {} => {}
        Kind::Directory {} => return Err(Status::ISDIR.into()),
        Kind::Symlink {} => return Err(Status::SYMLINK.into()),
        _ => return Err(Status::WRONG_TYPE.into()),
    }
    let owner = compound.tables(|tables, client| {
        Ok(tables.client(client)?.leases.owner(owner_id(client, &owner)))
    })?;
    match here.asker.ask(TestLock { file: here.file, owner, range, kind }).await? {
        None => Ok(()),
        Some(lock) => Err(denied(compound, lock)),
    }
}

//= rfc8881 18.12
pub(super) async fn unlock(
    compound: &mut Compound<'_>,
    arguments: &mut Arguments,
    out: &mut Out,
) -> Result<(), Failed> {
    let _kind = take_kind(arguments)?;
    let _seqid = arguments.take::<u32>()?;
    let stateid = Stateid::take(arguments)?;
    let range = take_range(arguments)?;
    let (stateid, range) = (compound.meant(stateid)?, range?);
    let locker = compound.tables(|tables, client| tables.locker(tables.find(client, &stateid)?))?;
    let Locker { number, file, id, leases } = locker;
    let unlocked = leases.unlock(compound.asker.ctx(), file, id, range).await;
    unlocked.map_err(crate::translate::status)?;
    let stateid = compound.kept().change().locked(number, leases.has_locks(file, id));
    stateid.tell(out);
    compound.stateid = Some(stateid);
    Ok(())
}
