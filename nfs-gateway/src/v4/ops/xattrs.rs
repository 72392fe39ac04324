//! GETXATTR, SETXATTR, LISTXATTRS and REMOVEXATTR of minor version 2 (RFC 8276). Clients see the
//! extended attributes of users, whose names begin with `user.` in the volume, without that prefix.

use fileio::protocol::{
    Attributes, CallId, Credentials, Error, FileIo, GetXattr, Handle, ListXattrs, NameError,
    RemoveXattr, SetXattr, XATTR_VALUE_MAX, XattrMode, XattrName,
};
use runtime::Call;

use crate::translate;
use crate::v4::compound::{Compound, OperationXdr};
use crate::v4::current_fh::CurrentFh;
use crate::v4::exactly_once::RemoveTarget;
use crate::v4::status::{OperationError, OperationResult, Status};
use crate::v4::types::ChangeInfo;
use crate::xdr::{CallArguments, XdrEncoder};

/// What the names begin with in the volume.
const NAMESPACE: &[u8] = b"user.";
/// Bytes of the result of a LISTXATTRS around the names: cookie, count, eof.
const AROUND_NAMES_BYTES: usize = 8 + 4 + 4;

//= rfc8276 8.4.1
pub(super) async fn get(compound: &Compound<'_>, xdr: &mut OperationXdr) -> OperationResult {
    let name = take_name(&mut xdr.arguments)?;
    let fh = compound.current_fh()?;
    if fh.pseudo {
        return Err(Status::NOXATTR.into());
    }
    let request = GetXattr { who: fh.context.credentials(), file: fh.file, name };
    xdr.out.opaque(&fh.context.send(request).await.map_err(status)?);
    Ok(())
}

//= rfc8276 8.4.2
pub(super) async fn set(compound: &Compound<'_>, xdr: &mut OperationXdr) -> OperationResult {
    let mode = match xdr.arguments.take::<u32>()? {
        0 => XattrMode::Either {},
        1 => XattrMode::CreateNew {},
        2 => XattrMode::Replace {},
        _ => return Err(Status::BADXDR.into()),
    };
    let name = take_name(&mut xdr.arguments)?;
    let value = xdr.arguments.opaque(usize::MAX)?;
    if value.len() > XATTR_VALUE_MAX {
        return Err(Status::XATTR2BIG.into());
    }
    let set = |(who, call, file, durable)| SetXattr {
        who,
        call,
        file,
        name,
        value: value.to_vec(),
        mode,
        durable,
    };
    change(compound, set, &mut xdr.out).await
}

//= rfc8276 8.4.4
pub(super) async fn remove(compound: &Compound<'_>, xdr: &mut OperationXdr) -> OperationResult {
    let name = take_name(&mut xdr.arguments)?;
    let remove = |(who, call, file, durable)| RemoveXattr { who, call, file, name, durable };
    change(compound, remove, &mut xdr.out).await
}

/// Sends a request that changes an extended attribute, and encodes its `change_info4`.
async fn change<C>(
    compound: &Compound<'_>,
    request: impl FnOnce((Credentials, CallId, Handle, bool)) -> C,
    out: &mut XdrEncoder,
) -> OperationResult
where
    C: Call<Protocol = FileIo, Reply = Attributes> + Clone,
{
    let fh = compound.current_fh()?;
    let context = &fh.context;
    let before = fh.change_attribute().await;
    let call = compound.call(RemoveTarget::File)?;
    let request = request((context.credentials(), call, fh.file, context.is_sync()));
    let attributes = context.send_once(request).await.map_err(status)?;
    ChangeInfo { before, after: context.volume.change_attribute(&attributes) }.encode(out);
    Ok(())
}

//= rfc8276 8.4.3: maxcount is of the whole result; if it has no room for a name, NFS4ERR_TOOSMALL
pub(super) async fn list(compound: &Compound<'_>, xdr: &mut OperationXdr) -> OperationResult {
    let cookie = xdr.arguments.take::<u64>()?;
    let bytes_max = xdr.arguments.take::<u32>()? as usize;
    let names = names_after(compound.current_fh()?, cookie).await?;
    let bytes_max = bytes_max.min(compound.reply_bytes_left(&xdr.out));
    let mut left = bytes_max.checked_sub(AROUND_NAMES_BYTES).ok_or(Status::TOOSMALL)?;
    let fits = |(_, name): &&(u64, Vec<u8>)| {
        let rest = left.checked_sub(4 + name.len().next_multiple_of(4));
        left = rest.unwrap_or(left);
        rest.is_some()
    };
    let page = &names[..names.iter().take_while(fits).count()];
    if page.is_empty() && !names.is_empty() {
        return Err(Status::TOOSMALL.into());
    }
    xdr.out.u64(page.last().map_or(cookie, |(cookie, _)| *cookie));
    xdr.out.u32(page.len() as u32);
    for (_, name) in page {
        xdr.out.opaque(name);
    }
    xdr.out.bool(page.len() == names.len());
    Ok(())
}

/// The names after `cookie`, with their cookies. A cookie is a hash of its name, so a client that
/// lists and changes the attributes meanwhile misses no other one.
async fn names_after(fh: &CurrentFh, cookie: u64) -> Result<Vec<(u64, Vec<u8>)>, Status> {
    if fh.pseudo {
        return Ok(Vec::new());
    }
    let request = ListXattrs { who: fh.context.credentials(), file: fh.file };
    let names = fh.context.send(request).await.map_err(status)?;
    let names = names.iter().filter_map(|name| name.as_bytes().strip_prefix(NAMESPACE));
    let with_cookies = names.map(|name| (runtime::hash::xxh3(name), name.to_vec()));
    let mut after: Vec<_> = with_cookies.filter(|(of_name, _)| *of_name > cookie).collect();
    after.sort_unstable();
    Ok(after)
}

/// Takes the name of an extended attribute (`xattrkey4`).
fn take_name(arguments: &mut CallArguments) -> Result<XattrName, OperationError> {
    let key = arguments.opaque(usize::MAX)?;
    if key.is_empty() {
        return Err(Status::INVAL.into());
    }
    let name = XattrName::new([NAMESPACE, &key].concat());
    Ok(name.map_err(|error| match error {
        NameError::TooLong => Status::NAMETOOLONG,
        NameError::Empty | NameError::Dots => Status::INVAL,
        NameError::Forbidden => Status::BADCHAR,
    })?)
}

fn status(error: Error) -> Status {
    match error {
        Error::NoXattr {} => Status::NOXATTR,
        Error::TooLarge {} => Status::XATTR2BIG,
        other => translate::status(other).into(),
    }
}
