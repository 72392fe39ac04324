//! OPEN, `OPEN_DOWNGRADE` and CLOSE. The node of an open file keeps it after its last name was
//! removed (ADR 10).

use bytes::Bytes;
use client::leases::{LeaseReply, OpenFileGuard};
use fileio::protocol::access::{EXECUTE, READ as MAY_READ, WRITE as MAY_WRITE};
use fileio::protocol::{
    Attributes, ByteRange, Change, Existing, Handle, Lookup, Name, Open as OpenEntry, OpenHandle,
    OpenNew, OpenedFile, OpenedNewFile, handle_of,
};
use runtime::Context;

use super::delegations::{self, DelegationReclaim, DelegationWish, WANT_BITS};
use crate::nested_exports;
use crate::translate;
use crate::v4::attributes::{Bitmap, NewAttributes, SIZE, take_attributes};
use crate::v4::compound::{Compound, OperationXdr};
use crate::v4::current_fh::{CurrentFh, check_regular, name};
use crate::v4::pseudo_fs;
use crate::v4::state::{READ, ShareReservation, StateidTable, WRITE};
use crate::v4::status::{OperationError, OperationResult, Status};
use crate::v4::types::{ChangeInfo, Stateid, Verifier4, take_owner};
use crate::xdr::CallArguments;

/// Bits of `share_access` for the access.
const ACCESS_BITS: u32 = READ | WRITE;
/// Locks have POSIX semantics (`OPEN4_RESULT_LOCKTYPE_POSIX`).
const LOCKTYPE_POSIX: u32 = 4;
/// An open file outlives its last name (`OPEN4_RESULT_PRESERVE_UNLINKED`), so clients need not
/// rename it.
const PRESERVE_UNLINKED: u32 = 8;
/// The client is told when a lock for which it waits is free (`OPEN4_RESULT_MAY_NOTIFY_LOCK`).
const MAY_NOTIFY_LOCK: u32 = 0x20;

struct OpenArguments {
    share: ShareReservation,
    /// Which delegation is wanted ([`WANT_BITS`]).
    want: u32,
    owner: Bytes,
    how: OpenHow,
    claim: OpenClaim,
}

impl OpenArguments {
    fn wish(&self) -> DelegationWish {
        let reclaim = match self.claim {
            OpenClaim::Previous(reclaim) => reclaim,
            _ => DelegationReclaim::New,
        };
        DelegationWish { want: self.want, access: self.share.access, reclaim }
    }
}

/// Whether the file is created (`openflag4`).
enum OpenHow {
    /// It must exist.
    NoCreate,
    /// It is created with these attributes, unless it exists.
    OrCreate(Existing, NewAttributes),
}

/// Which file is opened (`open_claim4`).
enum OpenClaim {
    /// `CLAIM_NULL`: the entry of the current directory with this name.
    Null(Bytes),
    /// `CLAIM_FH`: the current file.
    Fh,
    /// `CLAIM_PREVIOUS`: the current file, reclaimed after a restart, with the delegation that the
    /// client had.
    Previous(DelegationReclaim),
    /// `CLAIM_DELEGATE_CUR`: like `Null`, by virtue of a delegation.
    DelegateCur(Stateid, Bytes),
    /// `CLAIM_DELEG_CUR_FH`: like `Fh`, by virtue of a delegation.
    DelegateCurFh(Stateid),
}

/// A file that its node has opened.
struct OpenResult {
    attributes: Attributes,
    holding: OpenFileGuard<Context>,
    /// Created by this call: its mode does not restrict the creator.
    new: bool,
    directory: ChangeInfo,
    /// The attributes that were set.
    attrset: Bitmap,
}

//= rfc8881 18.16
pub(super) async fn serve(compound: &mut Compound<'_>, xdr: &mut OperationXdr) -> OperationResult {
    let args = take(&mut xdr.arguments, compound.minor)?;
    check(compound, &args)?;
    let opened = match &args.claim {
        OpenClaim::Null(bytes) => {
            let name = name(bytes.clone())?;
            check_entry(compound, &args.how, &name).await?;
            match &args.how {
                OpenHow::NoCreate => open_entry(compound, name).await?,
                OpenHow::OrCreate(existing, new) => {
                    check_truncation(compound, &args, &name, new).await?;
                    open_new(compound, name, *existing, new).await?
                }
            }
        }
        OpenClaim::DelegateCur(_, bytes) => {
            let name = name(bytes.clone())?;
            check_entry(compound, &args.how, &name).await?;
            open_entry(compound, name).await?
        }
        OpenClaim::Fh | OpenClaim::Previous(_) | OpenClaim::DelegateCurFh(_) => {
            open_current(compound).await?
        }
    };
    let fh = compound.current_fh()?.with_file(&opened.attributes);
    if !opened.new {
        check_mode(&fh, &opened.attributes, args.share.access)?;
    }
    let file = opened.holding.file();
    check_delegation(compound, &args, file)?;
    if args.share.conflicts_with_readers() && !opened.new {
        delegations::recall_from_others(compound, &fh).await?;
    }
    let (share, owner) = (args.share, args.owner.clone());
    let added = compound.tables(|tables, client| {
        let open = |states: &mut StateidTable| states.open(client, owner.clone(), file, share);
        tables.attempt(&compound.state().ctx, file, open)
    });
    let (number, again) = added.map_err(|status| match (status, &args.claim) {
        (Status::SHARE_DENIED, OpenClaim::Previous(_)) => Status::RECLAIM_CONFLICT,
        _ => status,
    })?;
    if !again {
        // Open at its node until it is closed; at the second OPEN it is already.
        opened.holding.keep();
    }
    let offer = delegations::offer(compound, &fh, args.wish()).await;
    let stateid = compound.state().tables().states.stateid(number);
    stateid.encode(&mut xdr.out);
    opened.directory.encode(&mut xdr.out);
    let may_notify = if compound.has_proven_path()? { MAY_NOTIFY_LOCK } else { 0 };
    xdr.out.u32(LOCKTYPE_POSIX | PRESERVE_UNLINKED | may_notify);
    opened.attrset.encode(&mut xdr.out);
    offer.encode(&mut xdr.out);
    compound.set_current(fh);
    compound.stateid = Some(stateid);
    Ok(())
}

fn take(arguments: &mut CallArguments, minor: u32) -> Result<OpenArguments, OperationError> {
    let _seqid = arguments.take::<u32>()?;
    let access = arguments.take::<u32>()?;
    let (access, want) = (access & ACCESS_BITS, access & WANT_BITS);
    let deny = arguments.take::<u32>()?;
    let owner = take_owner(arguments)?;
    let how = take_how(arguments, minor)?;
    let claim = match arguments.take::<u32>()? {
        0 => OpenClaim::Null(arguments.opaque(usize::MAX)?),
        1 => OpenClaim::Previous(DelegationReclaim::of(arguments.take()?)?),
        2 => {
            let stateid = Stateid::take(arguments)?;
            OpenClaim::DelegateCur(stateid, arguments.opaque(usize::MAX)?)
        }
        4 => OpenClaim::Fh,
        5 => OpenClaim::DelegateCurFh(Stateid::take(arguments)?),
        //= rfc8881 18.16.3: CLAIM_DELEGATE_PREV, CLAIM_DELEG_PREV_FH: delegations do not outlive
        //= the client
        3 | 6 => return Err(Status::NOTSUPP.into()),
        _ => return Err(Status::BADXDR.into()),
    };
    //= rfc8881 18.16.3: no access at all, or creation of a file that has a handle
    if access == 0 || deny > ACCESS_BITS {
        return Err(Status::INVAL.into());
    }
    if !matches!(claim, OpenClaim::Null(_)) && !matches!(how, OpenHow::NoCreate) {
        return Err(Status::INVAL.into());
    }
    Ok(OpenArguments { share: ShareReservation { access, deny }, want, owner, how, claim })
}

/// Takes an `openflag4`.
fn take_how(arguments: &mut CallArguments, minor: u32) -> Result<OpenHow, OperationError> {
    match arguments.take::<u32>()? {
        0 => return Ok(OpenHow::NoCreate),
        1 => {}
        _ => return Err(Status::BADXDR.into()),
    }
    Ok(match arguments.take::<u32>()? {
        0 => OpenHow::OrCreate(Existing::Use {}, take_attributes(arguments, minor)??),
        1 => OpenHow::OrCreate(Existing::Refuse {}, take_attributes(arguments, minor)??),
        2 => OpenHow::OrCreate(take_verifier(arguments)?, NewAttributes::default()),
        3 => {
            let existing = take_verifier(arguments)?;
            OpenHow::OrCreate(existing, take_attributes(arguments, minor)??)
        }
        _ => return Err(Status::BADXDR.into()),
    })
}

fn take_verifier(arguments: &mut CallArguments) -> Result<Existing, OperationError> {
    let verifier: Verifier4 = arguments.fixed()?;
    Ok(Existing::UseIfSame { verifier: u64::from_be_bytes(verifier) })
}

/// May the file be opened with these arguments at this time?
fn check(compound: &Compound<'_>, args: &OpenArguments) -> Result<(), Status> {
    let fh = compound.current_fh()?;
    if args.share.access & WRITE != 0 || matches!(args.how, OpenHow::OrCreate(..)) {
        fh.check_writable()?;
    }
    let reclaim_complete = compound.is_reclaim_complete()?;
    let in_grace = compound.state().is_in_grace();
    match args.claim {
        //= rfc8881 8.4.2.1, 18.51.3
        OpenClaim::Previous(_) if reclaim_complete || !in_grace => Err(Status::NO_GRACE),
        OpenClaim::Previous(_) => Ok(()),
        _ if !reclaim_complete => Err(Status::GRACE),
        // Another client may still reclaim an open that this one would deny.
        _ if args.share.deny != 0 && in_grace => Err(Status::GRACE),
        _ => Ok(()),
    }
}

//= rfc8881 18.16.3: NFS4ERR_OPENMODE, if the delegation does not include the access
/// May the client open the file by virtue of the delegation that it claims, if any?
fn check_delegation(
    compound: &Compound<'_>,
    args: &OpenArguments,
    file: Handle,
) -> Result<(), Status> {
    let (OpenClaim::DelegateCur(stateid, _) | OpenClaim::DelegateCurFh(stateid)) = args.claim
    else {
        return Ok(());
    };
    let stateid = compound.resolve_stateid(stateid)?;
    compound.tables(|tables, client| {
        let number = tables.states.find(client, &stateid)?;
        match tables.states.delegation(number)? {
            delegation if delegation.file != file => Err(Status::BAD_STATEID),
            _ if args.share.access & WRITE != 0 => Err(Status::OPENMODE),
            _ => Ok(()),
        }
    })
}

/// May an entry of the current directory be opened? Above the exports there are only the
/// directories that lead to them. The root of a nested export is a directory, and no file can be
/// made in its place.
async fn check_entry(compound: &Compound<'_>, how: &OpenHow, name: &Name) -> Result<(), Status> {
    let fh = compound.current_fh()?;
    if fh.pseudo {
        pseudo_fs::look_up(fh, name.as_bytes()).await?;
        return Err(Status::ISDIR);
    }
    match (nested_exports::export_at(&fh.context, fh.file, name)?, how) {
        (None, _) => Ok(()),
        (Some(_), OpenHow::NoCreate) => Err(Status::ISDIR),
        (Some(_), OpenHow::OrCreate(..)) => Err(Status::ACCESS),
    }
}

/// A file that would be truncated must not be open with a reservation that denies it.
async fn check_truncation(
    compound: &Compound<'_>,
    args: &OpenArguments,
    name: &Name,
    new: &NewAttributes,
) -> Result<(), Status> {
    if new.change.size.is_none() || !compound.state().tables().states.has_denials() {
        return Ok(());
    }
    let fh = compound.current_fh()?;
    let (who, directory, name) = (fh.context.credentials(), fh.file, name.clone());
    let Ok(found) = fh.context.request(Lookup { who, directory, name }).await else {
        return Ok(());
    };
    compound.tables(|tables, client| {
        let file = handle_of(&found);
        let check =
            |states: &mut StateidTable| states.check_share(file, client, &args.owner, args.share);
        tables.attempt(&compound.state().ctx, file, check)
    })
}

async fn open_entry(compound: &Compound<'_>, name: Name) -> Result<OpenResult, OperationError> {
    let fh = compound.current_fh()?;
    let leases = compound.slot()?.leases.clone();
    let before = fh.change_attribute().await;
    let _opening = leases.opening();
    let (who, call, directory) = (fh.context.credentials(), leases.call(), fh.file);
    let OpenedFile { attributes, lease } =
        fh.context.request(OpenEntry { who, call, directory, name }).await?;
    let holding = record_open(compound, &attributes, LeaseReply { call, lease }).await?;
    let directory = ChangeInfo { before, after: before };
    Ok(OpenResult { attributes, holding, new: false, directory, attrset: Bitmap::default() })
}

async fn open_new(
    compound: &Compound<'_>,
    name: Name,
    existing: Existing,
    new: &NewAttributes,
) -> Result<OpenResult, OperationError> {
    let fh = compound.current_fh()?;
    let leases = compound.slot()?.leases.clone();
    let before = fh.change_attribute().await;
    let _opening = leases.opening();
    let (who, call, directory) = (fh.context.credentials(), compound.open_call()?, fh.file);
    let change: Change = new.change.clone();
    let durable = fh.context.is_sync();
    let create = OpenNew { who, call, directory, name, existing, change, durable };
    let OpenedNewFile { created, lease } = fh.context.request_once(create).await?;
    let attributes = created.attributes;
    let mut answered = LeaseReply { call, lease };
    if compound.is_retransmission() {
        // A later call may have closed the file that an earlier transmission opened.
        let call = leases.call();
        let hold = OpenHandle::unjudged(call, handle_of(&attributes));
        answered = LeaseReply { call, lease: fh.context.request(hold).await?.lease };
    }
    let holding = record_open(compound, &attributes, answered).await?;
    // With the same verifier this is a retry by the creator.
    let own = created.new || matches!(existing, Existing::UseIfSame { .. });
    let directory = fh.change_info(before).await;
    //= rfc8881 18.16.4: of an existing file only the size is set
    let attrset = if own { new.which } else { new.which.and(&Bitmap::of(&[SIZE])) };
    Ok(OpenResult { attributes, holding, new: own, directory, attrset })
}

async fn open_current(compound: &Compound<'_>) -> Result<OpenResult, OperationError> {
    let fh = compound.current_fh()?;
    let leases = compound.slot()?.leases.clone();
    let _opening = leases.opening();
    let call = leases.call();
    let OpenedFile { attributes, lease } =
        fh.context.request(OpenHandle::unjudged(call, fh.file)).await?;
    let holding = record_open(compound, &attributes, LeaseReply { call, lease }).await?;
    let directory = ChangeInfo { before: 0, after: 0 };
    Ok(OpenResult { attributes, holding, new: false, directory, attrset: Bitmap::default() })
}

/// Records that a node has opened the file.
async fn record_open(
    compound: &Compound<'_>,
    attributes: &Attributes,
    answered: LeaseReply,
) -> Result<OpenFileGuard<Context>, OperationError> {
    check_regular(attributes.kind)?;
    let (leases, ctx) = (&compound.slot()?.leases, compound.context.ctx());
    let held = leases.opened(ctx, handle_of(attributes), answered).await;
    Ok(held.map_err(translate::status)?)
}

/// Does the mode permit the caller to open the file? Permission to execute includes reading.
fn check_mode(fh: &CurrentFh, attributes: &Attributes, access: u32) -> Result<(), Status> {
    let who = fh.context.credentials();
    let reads = attributes.permits(&who, MAY_READ) || attributes.permits(&who, EXECUTE);
    let writes = attributes.permits(&who, MAY_WRITE);
    if access & READ != 0 && !reads || access & WRITE != 0 && !writes {
        return Err(Status::ACCESS);
    }
    Ok(())
}

//= rfc8881 18.18
pub(super) fn downgrade(compound: &mut Compound<'_>, xdr: &mut OperationXdr) -> OperationResult {
    let stateid = Stateid::take(&mut xdr.arguments)?;
    let _seqid = xdr.arguments.take::<u32>()?;
    let access = xdr.arguments.take::<u32>()? & ACCESS_BITS;
    let deny = xdr.arguments.take::<u32>()?;
    let number = open_number(compound, stateid)?;
    let to = ShareReservation { access, deny };
    let stateid = compound.tables(|tables, _| tables.states.downgrade(number, to))?;
    stateid.encode(&mut xdr.out);
    compound.stateid = Some(stateid);
    Ok(())
}

//= rfc8881 18.2: the locks of its owners are released; the state id is invalid
pub(super) async fn close(compound: &mut Compound<'_>, xdr: &mut OperationXdr) -> OperationResult {
    let _seqid = xdr.arguments.take::<u32>()?;
    let stateid = Stateid::take(&mut xdr.arguments)?;
    let number = open_number(compound, stateid)?;
    let closed = compound.tables(|tables, _| tables.states.close(number))?;
    let (leases, ctx) = (compound.slot()?.leases.clone(), compound.context.ctx());
    for owner_id in closed.lock_owners {
        if let Err(error) = leases.unlock(ctx, closed.file, owner_id, ByteRange::ALL).await {
            tracing::warn!(target: "mdfs::nfs", %error, "cannot unlock before the last close of the file");
        }
    }
    leases.close(ctx, closed.file);
    compound.state().tables_mut().lock_waiters.note_release(closed.file);
    Stateid::INVALID.encode(&mut xdr.out);
    compound.stateid = None;
    Ok(())
}

/// The number of the open state of the current file.
fn open_number(compound: &Compound<'_>, stateid: Stateid) -> Result<u64, Status> {
    let (file, stateid) = (compound.current_fh()?.file, compound.resolve_stateid(stateid)?);
    compound.tables(|tables, client| {
        let number = tables.states.find(client, &stateid)?;
        let (open_file, _) = tables.states.open_file(number)?;
        if open_file == file { Ok(number) } else { Err(Status::BAD_STATEID) }
    })
}
