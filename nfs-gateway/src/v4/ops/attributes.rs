//! GETATTR, SETATTR, VERIFY and NVERIFY.

use fileio::protocol::{Attributes, Change, GetSpace, SetAttributes, Space};

use crate::v4::attributes::{Bitmap, Facts, New, readable, take_new, tell, wants_space};
use crate::v4::compound::Compound;
use crate::v4::here::Here;
use crate::v4::state::WRITE;
use crate::v4::status::{Failed, Status};
use crate::v4::words::Stateid;
use crate::xdr::{Arguments, Out};

/// The number of the attribute that is the file handle.
const FILEHANDLE: u32 = 19;
/// The number of the attribute that only READDIR tells.
const RDATTR_ERROR: u32 = 11;

//= rfc8881 18.7
pub(super) async fn get(
    compound: &Compound<'_>,
    arguments: &mut Arguments,
    out: &mut Out,
) -> Result<(), Failed> {
    let wanted = Bitmap::take(arguments)?;
    tell_of(compound.here()?, &wanted, out).await
}

/// Tells those of `wanted` that there are.
async fn tell_of(here: &Here, wanted: &Bitmap, out: &mut Out) -> Result<(), Failed> {
    let attributes = here.attributes().await?;
    let space = space(here, wanted).await?;
    tell_entry(here, &attributes, wanted, space, out)
}

/// The space of the volume, if `wanted` has to do with it.
pub(super) async fn space(here: &Here, wanted: &Bitmap) -> Result<Space, Status> {
    if wants_space(wanted) { Ok(here.asker.ask(GetSpace {}).await?) } else { Ok(Space::default()) }
}

/// The same of a file whose attributes are known.
pub(super) fn tell_entry(
    here: &Here,
    attributes: &Attributes,
    wanted: &Bitmap,
    space: Space,
    out: &mut Out,
) -> Result<(), Failed> {
    let handle = if wanted.has(FILEHANDLE) { here.handle()?.data.into_owned() } else { Vec::new() };
    tell(wanted, &Facts { asker: &here.asker, attributes, handle: &handle, space }, out);
    Ok(())
}

//= rfc8881 18.30
pub(super) async fn set(
    compound: &Compound<'_>,
    arguments: &mut Arguments,
    out: &mut Out,
) -> Result<(), Failed> {
    let stateid = Stateid::take(arguments)?;
    let New { which, change } = take_new(arguments)??;
    // Whoever has the file open to write may cut it, whatever its mode.
    let open = change.size.is_some() && compound.check_access(stateid, WRITE)?;
    let only_size = change == Change { size: change.size, ..Change::default() };
    let here = compound.here()?;
    let (file, durable) = (here.file, here.asker.syncs());
    let set =
        |who| SetAttributes { who, file, change: change.clone(), only_if_ctime: None, durable };
    compound.ask_opened(open && only_size, set).await?;
    which.tell(out);
    Ok(())
}

//= rfc8881 18.31 and 18.15: the attributes are compared as they are encoded
pub(super) async fn verify(
    compound: &Compound<'_>,
    arguments: &mut Arguments,
    same: bool,
) -> Result<(), Failed> {
    let which = Bitmap::take(arguments)?;
    let values = arguments.opaque(usize::MAX)?;
    let here = compound.here()?;
    if !which.is_within(&readable()) {
        return Err(Status::ATTRNOTSUPP.into());
    }
    if which.has(RDATTR_ERROR) {
        return Err(Status::INVAL.into());
    }
    let mut told = Out::default();
    tell_of(here, &which, &mut told).await?;
    let mut expected = Out::default();
    which.tell(&mut expected);
    expected.opaque(&values);
    let is_same = told.body(Vec::new()).head == expected.body(Vec::new()).head;
    match (is_same, same) {
        (true, true) | (false, false) => Ok(()),
        (false, true) => Err(Status::NOT_SAME.into()),
        (true, false) => Err(Status::SAME.into()),
    }
}
