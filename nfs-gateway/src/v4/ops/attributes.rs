//! GETATTR, SETATTR, VERIFY and NVERIFY.

use fileio::hash::partition_of;
use fileio::protocol::{Attributes, Change, GetSpace, SetAttributes, Space};

use crate::v4::attributes::{
    AttrSource, Bitmap, FILEHANDLE, NewAttributes, RDATTR_ERROR, encode, readable, take_attributes,
    wants_space,
};
use crate::v4::compound::{Compound, OperationXdr};
use crate::v4::current_fh::CurrentFh;
use crate::v4::state::WRITE;
use crate::v4::status::{OperationError, OperationResult, Status};
use crate::v4::types::Stateid;
use crate::xdr::XdrEncoder;

//= rfc8881 18.7
pub(super) async fn get(compound: &Compound<'_>, xdr: &mut OperationXdr) -> OperationResult {
    let wanted = Bitmap::take(&mut xdr.arguments)?;
    encode_wanted(compound, &wanted, &mut xdr.out).await
}

/// Encodes the supported ones of `wanted`.
async fn encode_wanted(
    compound: &Compound<'_>,
    wanted: &Bitmap,
    out: &mut XdrEncoder,
) -> OperationResult {
    let fh = compound.current_fh()?;
    let attributes = fh.attributes().await?;
    let space = space(fh, wanted).await?;
    encode_attributes(fh, &attributes, wanted, (compound.minor, space), out)
}

/// The space of the partition, if `wanted` needs it.
pub(super) async fn space(fh: &CurrentFh, wanted: &Bitmap) -> Result<Space, Status> {
    if wants_space(wanted) {
        Ok(fh.context.request(GetSpace { partition: partition_of(fh.file.ino) }).await?)
    } else {
        Ok(Space::default())
    }
}

/// The same for a file with known attributes.
pub(super) fn encode_attributes(
    fh: &CurrentFh,
    attributes: &Attributes,
    wanted: &Bitmap,
    (minor, space): (u32, Space),
    out: &mut XdrEncoder,
) -> OperationResult {
    let handle = if wanted.has(FILEHANDLE) { fh.handle()?.data.into_owned() } else { Vec::new() };
    let context = &fh.context;
    encode(wanted, &AttrSource { context, minor, attributes, handle: &handle, space }, out);
    Ok(())
}

//= rfc8881 18.30
pub(super) async fn set(compound: &Compound<'_>, xdr: &mut OperationXdr) -> OperationResult {
    let stateid = Stateid::take(&mut xdr.arguments)?;
    let new = take_attributes(&mut xdr.arguments, compound.minor)?;
    let NewAttributes { which, change } = new?;
    // A file that is open for writing may be truncated, whatever its mode.
    let open = change.size.is_some() && compound.check_access(stateid, WRITE)?;
    let only_size = change == Change { size: change.size, ..Change::default() };
    let fh = compound.current_fh()?;
    let (file, durable) = (fh.file, fh.context.is_sync());
    let set =
        |who| SetAttributes { who, file, change: change.clone(), only_if_ctime: None, durable };
    compound.current_fh()?.request_as_opener(open && only_size, set).await?;
    which.encode(&mut xdr.out);
    Ok(())
}

//= rfc8881 18.31
pub(super) async fn verify(compound: &Compound<'_>, xdr: &mut OperationXdr) -> OperationResult {
    if is_same(compound, xdr).await? { Ok(()) } else { Err(Status::NOT_SAME.into()) }
}

//= rfc8881 18.15
pub(super) async fn verify_not(compound: &Compound<'_>, xdr: &mut OperationXdr) -> OperationResult {
    if is_same(compound, xdr).await? { Err(Status::SAME.into()) } else { Ok(()) }
}

/// Are these the attributes of the current file? They are compared as they are encoded.
async fn is_same(compound: &Compound<'_>, xdr: &mut OperationXdr) -> Result<bool, OperationError> {
    let which = Bitmap::take(&mut xdr.arguments)?;
    let values = xdr.arguments.opaque(usize::MAX)?;
    compound.current_fh()?;
    if !which.is_within(&readable(compound.minor)) {
        return Err(Status::ATTRNOTSUPP.into());
    }
    if which.has(RDATTR_ERROR) {
        return Err(Status::INVAL.into());
    }
    let mut current = XdrEncoder::default();
    encode_wanted(compound, &which, &mut current).await?;
    let mut expected = XdrEncoder::default();
    which.encode(&mut expected);
    expected.opaque(&values);
    Ok(current.body(Vec::new()).head == expected.body(Vec::new()).head)
}
