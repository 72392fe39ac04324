//! Delegations: what OPEN grants, what an OPEN recalls, and DELEGRETURN. All of them are for
//! reading (ADR 101).

use fileio::protocol::{BreakDelegations, Handle};

use crate::v4::callbacks::{self, CallbackOperation};
use crate::v4::compound::{Compound, OperationXdr};
use crate::v4::current_fh::CurrentFh;
use crate::v4::limits::DELEGATIONS_PER_CLIENT_MAX;
use crate::v4::state::{ClientDelegation, WRITE};
use crate::v4::status::{OperationResult, Status};
use crate::v4::types::Stateid;
use crate::xdr::XdrEncoder;

/// Bits of `share_access` that say which delegation is wanted (`OPEN4_SHARE_ACCESS_WANT_*`).
pub(super) const WANT_BITS: u32 = 0xFF00;
const WANT_WRITE: u32 = 0x0200;
/// None (`OPEN4_SHARE_ACCESS_WANT_NO_DELEG`), or no more (`OPEN4_SHARE_ACCESS_WANT_CANCEL`).
const WANT_NONE: u32 = 0x0400;
const WANT_CANCEL: u32 = 0x0500;

/// `open_delegation_type4`; the last is none, with the reason.
const NO_DELEGATION: u32 = 0;
const READ_DELEGATION: u32 = 1;
const WRITE_DELEGATION: u32 = 2;
const NO_DELEGATION_BECAUSE: u32 = 3;

/// Why no delegation is granted (`why_no_delegation4`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoDelegation {
    NotWanted = 0,
    Contention = 1,
    Resource = 2,
    WriteNotSupported = 4,
    Cancelled = 7,
}

/// What an OPEN returns about delegations.
#[derive(Clone, Copy, Debug)]
pub(super) enum DelegationOffer {
    /// A delegation to read.
    Read(Stateid),
    /// None, and why, if the client has said what it wants.
    None(Option<NoDelegation>),
}

/// What the arguments of an OPEN say about delegations.
#[derive(Clone, Copy, Debug)]
pub(super) struct DelegationWish {
    /// [`WANT_BITS`].
    pub(super) want: u32,
    /// What the file is opened for.
    pub(super) access: u32,
    pub(super) reclaim: DelegationReclaim,
}

/// The delegation that a client had before a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DelegationReclaim {
    /// The OPEN is no reclaim.
    New,
    /// It had none.
    None,
    Read,
    /// It had one by another implementation.
    Write,
}

impl DelegationReclaim {
    /// Decodes an `open_delegation_type4`.
    pub(super) fn of(number: u32) -> Result<Self, Status> {
        match number {
            NO_DELEGATION => Ok(Self::None),
            READ_DELEGATION => Ok(Self::Read),
            WRITE_DELEGATION => Ok(Self::Write),
            _ => Err(Status::BADXDR),
        }
    }
}

impl DelegationWish {
    /// Is a delegation to read wanted?
    fn check(&self) -> Result<(), NoDelegation> {
        match self.reclaim {
            DelegationReclaim::New => {}
            DelegationReclaim::Read => return Ok(()),
            DelegationReclaim::None => return Err(NoDelegation::NotWanted),
            DelegationReclaim::Write => return Err(NoDelegation::WriteNotSupported),
        }
        match self.want {
            WANT_NONE => Err(NoDelegation::NotWanted),
            WANT_CANCEL => Err(NoDelegation::Cancelled),
            WANT_WRITE => Err(NoDelegation::WriteNotSupported),
            // Its own writes would recall it.
            _ if self.access & WRITE != 0 => Err(NoDelegation::Resource),
            _ => Ok(()),
        }
    }
}

//= rfc8881 10.4: a delegation is granted only if it can be recalled
/// Grants a delegation of the file that was opened, if it is wanted, and its node allows that.
pub(super) async fn offer(
    compound: &Compound<'_>,
    fh: &CurrentFh,
    wish: DelegationWish,
) -> DelegationOffer {
    match try_grant(compound, fh, wish).await {
        Ok(stateid) => DelegationOffer::Read(stateid),
        //= rfc8881 18.16.3: who says what it wants is told why it does not get it
        Err(why) => DelegationOffer::None((wish.want != 0).then_some(why)),
    }
}

async fn try_grant(
    compound: &Compound<'_>,
    fh: &CurrentFh,
    wish: DelegationWish,
) -> Result<Stateid, NoDelegation> {
    wish.check()?;
    check(compound, fh.file, wish)?;
    let state = compound.state();
    callbacks::start_recalls(state);
    let holder = state.tables().holder.clone();
    if !holder.delegate(compound.context.ctx(), fh.file).await {
        return Err(NoDelegation::Contention);
    }
    // From here on nothing waits: a recall finds the delegation, or that there is none.
    let added = check(compound, fh.file, wish).and_then(|()| {
        if !holder.holds(fh.file) {
            return Err(NoDelegation::Contention);
        }
        let granted = delegation(compound, fh).map_err(|_| NoDelegation::Resource)?;
        let added = state.tables_mut().states.add_delegation(granted);
        added.map_err(|_| NoDelegation::Resource)
    });
    let tables = state.tables();
    if added.is_err() {
        tables.release_undelegated(&state.ctx, fh.file);
    }
    added.map(|number| tables.states.stateid(number))
}

/// The state of a delegation of the file to the client.
fn delegation(compound: &Compound<'_>, fh: &CurrentFh) -> Result<ClientDelegation, Status> {
    Ok(ClientDelegation {
        client: compound.slot()?.client,
        file: fh.file,
        handle: fh.handle()?.data.into_owned(),
        granted_by: compound.session_request()?,
        is_recalled: false,
        is_revoked: false,
    })
}

/// May the client be granted a delegation, as far as is known without its node?
fn check(compound: &Compound<'_>, file: Handle, wish: DelegationWish) -> Result<(), NoDelegation> {
    let Ok(slot) = compound.slot() else { return Err(NoDelegation::Resource) };
    let (client, tables) = (slot.client, compound.state().tables());
    // A client that reclaims may not have answered a call yet; it has had delegations before.
    let has_path = match wish.reclaim {
        DelegationReclaim::New => tables.sessions.has_proven_path(client, &slot.id),
        _ => tables.sessions.has_path(client),
    };
    if !has_path || tables.states.has_delegation(client, file) {
        return Err(NoDelegation::Resource);
    }
    if tables.states.is_contended(file) {
        return Err(NoDelegation::Contention);
    }
    if tables.states.delegations_of(client) >= DELEGATIONS_PER_CLIENT_MAX {
        drop(tables);
        recall_some(compound, client);
        return Err(NoDelegation::Resource);
    }
    Ok(())
}

//= rfc8881 20.6: the client chooses which ones it returns
/// Asks a client that has too many delegations to return half of them.
fn recall_some(compound: &Compound<'_>, client: u64) {
    let state = compound.state().clone();
    if !state.tables_mut().begin_recall_any(client) {
        return;
    }
    state.ctx.clone().task(async move {
        let keep = (DELEGATIONS_PER_CLIENT_MAX / 2) as u32;
        let operation = CallbackOperation::RecallAny { keep };
        if let Err(error) = callbacks::send(&state, client, operation).await {
            tracing::debug!(target: "mdfs::nfs", client, %error, "CB_RECALL_ANY has failed");
        }
        state.tables_mut().end_recall_any(client);
    });
}

//= rfc8881 10.4: an OPEN to write, or to deny others reading, conflicts with their delegations
/// Recalls the file that is opened from all but its opener, and waits until it is
/// returned or revoked.
pub(super) async fn recall_from_others(
    compound: &Compound<'_>,
    fh: &CurrentFh,
) -> Result<(), Status> {
    let (state, file) = (compound.state(), fh.file);
    let except = state.tables().holder.number();
    fh.context.request(BreakDelegations { file, except }).await?;
    let client = compound.slot()?.client;
    loop {
        let ended = {
            let mut tables = state.tables_mut();
            if !tables.states.begin_recall(file, Some(client)) {
                return Ok(());
            }
            tables.states.delegation_ended.next()
        };
        ended.await;
    }
}

impl DelegationOffer {
    /// Encodes an `open_delegation4`.
    pub(super) fn encode(self, out: &mut XdrEncoder) {
        match self {
            Self::None(None) => out.u32(NO_DELEGATION),
            Self::None(Some(why)) => {
                out.u32(NO_DELEGATION_BECAUSE);
                out.u32(why as u32);
                if matches!(why, NoDelegation::Contention | NoDelegation::Resource) {
                    // Nor will the client be told when there is one.
                    out.bool(false);
                }
            }
            Self::Read(stateid) => {
                out.u32(READ_DELEGATION);
                stateid.encode(out);
                // It is not recalled already.
                out.bool(false);
                encode_empty_ace(out);
            }
        }
    }
}

//= rfc8881 10.4.1: an ACE that permits nothing: the client checks each open with ACCESS
fn encode_empty_ace(out: &mut XdrEncoder) {
    let (allow, flags, mask) = (0, 0, 0);
    out.u32(allow);
    out.u32(flags);
    out.u32(mask);
    out.opaque(&[]);
}

//= rfc8881 18.6
pub(super) fn give_back(compound: &Compound<'_>, xdr: &mut OperationXdr) -> OperationResult {
    let stateid = compound.resolve_stateid(Stateid::take(&mut xdr.arguments)?)?;
    let (file, state) = (compound.current_fh()?.file, compound.state());
    compound.tables(|tables, client| {
        let number = tables.states.find(client, &stateid)?;
        if tables.states.delegation(number)?.file != file {
            return Err(Status::BAD_STATEID);
        }
        tables.states.return_delegation(number)?;
        tables.release_undelegated(&state.ctx, file);
        Ok(())
    })?;
    Ok(())
}
