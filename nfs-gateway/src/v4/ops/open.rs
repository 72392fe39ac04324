//! OPEN, `OPEN_DOWNGRADE` and CLOSE. An open file is held at its node, so that it outlives its last name
//! (ADR 10).

use bytes::Bytes;
use client::leases::{Answered, Holding};
use fileio::protocol::access::{EXECUTE, READ as MAY_READ, WRITE as MAY_WRITE};
use fileio::protocol::{
    Attributes, ByteRange, Change, Existing, Kind, Lookup, Name, Open as OpenEntry, OpenHandle,
    OpenNew, OpenedFile, OpenedNewFile,
};
use runtime::Context;

use super::{change_of, changed};
use crate::translate;
use crate::v4::attributes::{Bitmap, New, take_new};
use crate::v4::compound::Compound;
use crate::v4::here::{Here, handle_of, name};
use crate::v4::state::{READ, Sharing, WRITE};
use crate::v4::status::{Failed, Status};
use crate::v4::words::{ChangeInfo, Stateid, Verifier, take_owner};
use crate::xdr::{Arguments, Out};

/// Bits of `share_access` that say what the file is opened for; the others wish for delegations.
const ACCESS_BITS: u32 = READ | WRITE;

/// The locks of the server are POSIX's (`OPEN4_RESULT_LOCKTYPE_POSIX`).
const LOCKTYPE_POSIX: u32 = 4;
/// An open file lives on without a name (`OPEN4_RESULT_PRESERVE_UNLINKED`), so that clients need not
/// give it another one.
const PRESERVE_UNLINKED: u32 = 8;
/// `OPEN_DELEGATE_NONE`.
const NO_DELEGATION: u32 = 0;

/// What an OPEN asks.
struct Arguments4 {
    sharing: Sharing,
    owner: Bytes,
    how: How,
    claim: Claim,
}

/// Whether the file is made.
enum How {
    /// It is there.
    Existing,
    /// It is made, and what is there is treated so; the attributes of the new file.
    Create(Existing, New),
}

/// Which file.
enum Claim {
    /// The one of this name in the current directory.
    Name(Bytes),
    /// The current one.
    Here,
    /// The current one, which was open before a restart.
    Again,
}

/// A file that was found or made, and is held.
struct Opened {
    attributes: Attributes,
    holding: Holding<Context>,
    /// Made by this call: its mode is for others.
    new: bool,
    /// What became of the directory.
    directory: ChangeInfo,
    which: Bitmap,
}

//= rfc8881 18.16
pub(super) async fn serve(
    compound: &mut Compound<'_>,
    arguments: &mut Arguments,
    out: &mut Out,
) -> Result<(), Failed> {
    let asked = take(arguments)?;
    check(compound, &asked)?;
    let opened = match &asked.claim {
        Claim::Name(bytes) => {
            let name = name(bytes.clone())?;
            match &asked.how {
                How::Existing => open_entry(compound, name).await?,
                How::Create(existing, new) => {
                    check_cut(compound, &asked, &name, new).await?;
                    open_new(compound, name, *existing, new).await?
                }
            }
        }
        Claim::Here | Claim::Again => open_here(compound).await?,
    };
    let here = compound.here()?.beside(&opened.attributes);
    if !opened.new {
        permitted(&here, &opened.attributes, asked.sharing.access)?;
    }
    let file = opened.holding.file();
    let noted = compound
        .tables(|tables, client| tables.open(client, asked.owner.clone(), file, asked.sharing));
    let (number, again) = noted.map_err(|status| match (status, &asked.claim) {
        (Status::SHARE_DENIED, Claim::Again) => Status::RECLAIM_CONFLICT,
        _ => status,
    })?;
    if !again {
        // Held until it is closed. The second time it is held already.
        opened.holding.keep();
    }
    let stateid = compound.kept().tables().stateid(number);
    stateid.tell(out);
    opened.directory.tell(out);
    out.u32(LOCKTYPE_POSIX | PRESERVE_UNLINKED);
    opened.which.tell(out);
    out.u32(NO_DELEGATION);
    compound.go(here);
    compound.stateid = Some(stateid);
    Ok(())
}

fn take(arguments: &mut Arguments) -> Result<Arguments4, Failed> {
    let _seqid = arguments.take::<u32>()?;
    let access = arguments.take::<u32>()? & ACCESS_BITS;
    let deny = arguments.take::<u32>()?;
    let owner = take_owner(arguments)?;
    let how = take_how(arguments)?;
    let claim = match arguments.take::<u32>()? {
        0 => Claim::Name(arguments.opaque(usize::MAX)?),
        1 => {
            let _delegation = arguments.take::<u32>()?;
            Claim::Again
        }
        4 => Claim::Here,
        // There are no delegations.
        2 | 3 | 5 | 6 => return Err(Status::NOTSUPP.into()),
        _ => return Err(Status::BADXDR.into()),
    };
    //= rfc8881 18.16.3: no access at all, or a file that is made though its handle is there
    if access == 0 || deny > ACCESS_BITS {
        return Err(Status::INVAL.into());
    }
    if !matches!(claim, Claim::Name(_)) && !matches!(how, How::Existing) {
        return Err(Status::INVAL.into());
    }
    Ok(Arguments4 { sharing: Sharing { access, deny }, owner, how, claim })
}

/// `openflag4`.
fn take_how(arguments: &mut Arguments) -> Result<How, Failed> {
    match arguments.take::<u32>()? {
        0 => return Ok(How::Existing),
        1 => {}
        _ => return Err(Status::BADXDR.into()),
    }
    Ok(match arguments.take::<u32>()? {
        0 => How::Create(Existing::Use {}, take_new(arguments)??),
        1 => How::Create(Existing::Refuse {}, take_new(arguments)??),
        2 => How::Create(take_verifier(arguments)?, New::default()),
        3 => {
            let existing = take_verifier(arguments)?;
            How::Create(existing, take_new(arguments)??)
        }
        _ => return Err(Status::BADXDR.into()),
    })
}

fn take_verifier(arguments: &mut Arguments) -> Result<Existing, Failed> {
    let verifier: Verifier = arguments.fixed()?;
    Ok(Existing::UseIfSame { verifier: u64::from_be_bytes(verifier) })
}

/// May anything be opened so now?
fn check(compound: &Compound<'_>, asked: &Arguments4) -> Result<(), Status> {
    let here = compound.here()?;
    if asked.sharing.access & WRITE != 0 || matches!(asked.how, How::Create(..)) {
        here.check_writable()?;
    }
    let reclaimed = compound.tables(|tables, client| Ok(tables.client(client)?.reclaimed))?;
    let in_grace = compound.kept().is_in_grace();
    match asked.claim {
        //= rfc8881 8.4.2.1, 18.51.3
        Claim::Again if reclaimed || !in_grace => Err(Status::NO_GRACE),
        Claim::Again => Ok(()),
        _ if !reclaimed => Err(Status::GRACE),
        // Others may come back who do what this one would forbid.
        _ if asked.sharing.deny != 0 && in_grace => Err(Status::GRACE),
        _ => Ok(()),
    }
}

/// A file that would be cut must not be open in a way that forbids it.
async fn check_cut(
    compound: &Compound<'_>,
    asked: &Arguments4,
    name: &Name,
    new: &New,
) -> Result<(), Status> {
    if new.change.size.is_none() || !compound.kept().tables().has_denials() {
        return Ok(());
    }
    let here = compound.here()?;
    let (who, directory, name) = (here.asker.who(), here.file, name.clone());
    let Ok(found) = here.asker.ask(Lookup { who, directory, name }).await else { return Ok(()) };
    compound.tables(|tables, client| {
        tables.check_share(handle_of(&found), client, &asked.owner, asked.sharing)
    })
}

async fn open_entry(compound: &Compound<'_>, name: Name) -> Result<Opened, Failed> {
    let here = compound.here()?;
    let leases = compound.session()?.leases.clone();
    let before = change_of(here).await;
    let _opening = leases.opening();
    let (who, call, directory) = (here.asker.who(), leases.call(), here.file);
    let OpenedFile { attributes, lease } =
        here.asker.ask(OpenEntry { who, call, directory, name }).await?;
    let holding = held(compound, &attributes, Answered { call, lease }).await?;
    let directory = ChangeInfo { before, after: before };
    Ok(Opened { attributes, holding, new: false, directory, which: Bitmap::default() })
}

async fn open_new(
    compound: &Compound<'_>,
    name: Name,
    existing: Existing,
    new: &New,
) -> Result<Opened, Failed> {
    let here = compound.here()?;
    let leases = compound.session()?.leases.clone();
    let before = change_of(here).await;
    let _opening = leases.opening();
    let (who, call, directory) = (here.asker.who(), compound.opening_call()?, here.file);
    let change: Change = new.change.clone();
    let durable = here.asker.syncs();
    let create = OpenNew { who, call, directory, name, existing, change, durable };
    let OpenedNewFile { created, lease } = here.asker.ask_once(create).await?;
    let attributes = created.attributes;
    let mut answered = Answered { call, lease };
    if compound.is_copy() {
        // What an earlier copy held it may have let go of since, by a later call.
        let call = leases.call();
        let hold = OpenHandle { call, file: handle_of(&attributes) };
        answered = Answered { call, lease: here.asker.ask(hold).await?.lease };
    }
    let holding = held(compound, &attributes, answered).await?;
    // Whoever made it by this verifier asks again for what it has made.
    let own = created.new || matches!(existing, Existing::UseIfSame { .. });
    let directory = changed(here, before).await;
    //= rfc8881 18.16.4: of a file that was there only the size is set
    let which = if own { new.which } else { new.which.and(&Bitmap::of(&[4])) };
    Ok(Opened { attributes, holding, new: own, directory, which })
}

async fn open_here(compound: &Compound<'_>) -> Result<Opened, Failed> {
    let here = compound.here()?;
    let leases = compound.session()?.leases.clone();
    let _opening = leases.opening();
    let call = leases.call();
    let OpenedFile { attributes, lease } =
        here.asker.ask(OpenHandle { call, file: here.file }).await?;
    let holding = held(compound, &attributes, Answered { call, lease }).await?;
    let directory = ChangeInfo { before: 0, after: 0 };
    Ok(Opened { attributes, holding, new: false, directory, which: Bitmap::default() })
}

/// A node has answered that it holds the file.
async fn held(
    compound: &Compound<'_>,
    attributes: &Attributes,
    answered: Answered,
) -> Result<Holding<Context>, Failed> {
    //= rfc8881 18.16.3: NFS4ERR_ISDIR, NFS4ERR_SYMLINK, and NFS4ERR_WRONG_TYPE for the others
    match attributes.kind {
        Kind::File {} => {}
        Kind::Directory {} => return Err(Status::ISDIR.into()),
        Kind::Symlink {} => return Err(Status::SYMLINK.into()),
        _ => return Err(Status::WRONG_TYPE.into()),
    }
    let (leases, ctx) = (&compound.session()?.leases, compound.asker.ctx());
    let held = leases.held(ctx, handle_of(attributes), answered).await;
    Ok(held.map_err(translate::status)?)
}

/// May the asker open the file so? Who may run it may read it.
fn permitted(here: &Here, attributes: &Attributes, access: u32) -> Result<(), Status> {
    let who = here.asker.who();
    let reads = attributes.permits(&who, MAY_READ) || attributes.permits(&who, EXECUTE);
    let writes = attributes.permits(&who, MAY_WRITE);
    if access & READ != 0 && !reads || access & WRITE != 0 && !writes {
        return Err(Status::ACCESS);
    }
    Ok(())
}

//= rfc8881 18.18
pub(super) fn downgrade(
    compound: &mut Compound<'_>,
    arguments: &mut Arguments,
    out: &mut Out,
) -> Result<(), Failed> {
    let stateid = Stateid::take(arguments)?;
    let _seqid = arguments.take::<u32>()?;
    let access = arguments.take::<u32>()? & ACCESS_BITS;
    let deny = arguments.take::<u32>()?;
    let number = open_of(compound, stateid)?;
    let to = Sharing { access, deny };
    let stateid = compound.tables(|tables, _| tables.downgrade(number, to))?;
    stateid.tell(out);
    compound.stateid = Some(stateid);
    Ok(())
}

//= rfc8881 18.2: what its owners have locked is free again; the state id is of no use any more
pub(super) async fn close(
    compound: &mut Compound<'_>,
    arguments: &mut Arguments,
    out: &mut Out,
) -> Result<(), Failed> {
    let _seqid = arguments.take::<u32>()?;
    let stateid = Stateid::take(arguments)?;
    let number = open_of(compound, stateid)?;
    let closed = compound.tables(|tables, _| tables.close(number))?;
    let (leases, ctx) = (compound.session()?.leases.clone(), compound.asker.ctx());
    for id in closed.lockers {
        if let Err(error) = leases.unlock(ctx, closed.file, id, ByteRange::ALL).await {
            tracing::warn!(target: "mdfs::nfs", %error, "a lock stays until its file is closed");
        }
    }
    leases.close(ctx, closed.file);
    Stateid::INVALID.tell(out);
    compound.stateid = None;
    Ok(())
}

/// The state of the current file that is open.
fn open_of(compound: &Compound<'_>, stateid: Stateid) -> Result<u64, Status> {
    let (file, stateid) = (compound.here()?.file, compound.meant(stateid)?);
    compound.tables(|tables, client| {
        let number = tables.find(client, &stateid)?;
        let (opened, _) = tables.opened(number)?;
        if opened == file { Ok(number) } else { Err(Status::BAD_STATEID) }
    })
}
