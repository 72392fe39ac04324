//! Attributes that a client sets (RFC 8881 sections 5.8 and 18.30).

use bytes::Bytes;
use fileio::protocol::{Change, SetTime, Time};

use super::bitmap::Bitmap;
use super::numbers::{MODE, OWNER, OWNER_GROUP, SETTABLE, SIZE, TIME_ACCESS_SET, TIME_MODIFY_SET};
use super::table::supported;
use crate::v4::status::{OperationError, Status};
use crate::xdr::{CallArguments, ProcedureError};

/// Digits of a user id.
const DIGITS_MAX: usize = 10;

/// Attributes to set.
#[derive(Clone, Debug, Default)]
pub(crate) struct NewAttributes {
    /// Their numbers.
    pub(crate) which: Bitmap,
    /// Their values.
    pub(crate) change: Change,
}

/// Takes attributes to set from the arguments (`fattr4`) of a request of minor version `minor`. The
/// inner error is about their values.
pub(crate) fn take_attributes(
    arguments: &mut CallArguments,
    minor: u32,
) -> Result<Result<NewAttributes, Status>, ProcedureError> {
    let which = Bitmap::take(arguments)?;
    let values = arguments.opaque(usize::MAX)?;
    if !which.is_within(&SETTABLE) {
        //= rfc8881 18.30.3: read-only attributes are NFS4ERR_INVAL, unknown ones ATTRNOTSUPP
        let known = which.is_within(&supported(minor));
        return Ok(Err(if known { Status::INVAL } else { Status::ATTRNOTSUPP }));
    }
    match change(&which, values) {
        Ok(change) => Ok(Ok(NewAttributes { which, change })),
        Err(OperationError { status: Status::BADXDR, .. }) => Err(ProcedureError::GarbageArguments),
        Err(OperationError { status, .. }) => Ok(Err(status)),
    }
}

fn change(which: &Bitmap, values: Bytes) -> Result<Change, OperationError> {
    let mut values = CallArguments::new(values, Vec::new());
    let mut change = Change::default();
    if which.has(SIZE) {
        change.size = Some(values.take()?);
    }
    if which.has(MODE) {
        change.mode = Some(values.take::<u32>()? & 0o7777);
    }
    if which.has(OWNER) {
        change.uid = Some(number(&values.opaque(usize::MAX)?)?);
    }
    if which.has(OWNER_GROUP) {
        change.gid = Some(number(&values.opaque(usize::MAX)?)?);
    }
    if which.has(TIME_ACCESS_SET) {
        change.atime = Some(set_time(&mut values)?);
    }
    if which.has(TIME_MODIFY_SET) {
        change.mtime = Some(set_time(&mut values)?);
    }
    values.finish()?;
    Ok(change)
}

//= rfc8881 5.9: "owner" of digits only is the number itself, where AUTH_SYS names the caller
fn number(owner: &[u8]) -> Result<u32, Status> {
    let is_number = !owner.is_empty() && owner.len() <= DIGITS_MAX;
    let digits = std::str::from_utf8(owner).ok().filter(|_| is_number);
    let digits = digits.filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
    digits.and_then(|digits| digits.parse().ok()).ok_or(Status::BADOWNER)
}

/// `settime4`.
fn set_time(values: &mut CallArguments) -> Result<SetTime, OperationError> {
    match values.take::<u32>()? {
        0 => Ok(SetTime::Now {}),
        1 => {
            let (seconds, nanos) = (values.take::<u64>()?.cast_signed(), values.take::<u32>()?);
            if nanos >= 1_000_000_000 {
                return Err(Status::INVAL.into());
            }
            Ok(SetTime::To { time: Time { seconds, nanos } })
        }
        _ => Err(Status::BADXDR.into()),
    }
}
