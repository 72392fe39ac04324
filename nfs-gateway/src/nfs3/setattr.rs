//! SETATTR.

use bytes::Bytes;
use fileio::protocol::{Attributes, GetAttributes, Handle, SetAttributes, Time};
use nfs3_types::nfs3::{
    Nfs3Option, SETATTR3resfail, SETATTR3resok, nfsstat3, nfstime3, sattr3, sattrguard3,
};

use super::asker::{Asker, pack, take_handle, wcc};
use crate::translate;
use crate::xdr::{Arguments, Body, Fault};

//= rfc1813 3.3.2
pub(super) async fn serve(asker: &Asker, mut arguments: Arguments) -> Result<Body, Fault> {
    let object = take_handle(&mut arguments)?;
    let attributes = arguments.take::<sattr3>()?;
    let guard = arguments.take::<sattrguard3>()?;
    arguments.finish()?;
    pack(match set(asker, &object, &attributes, &guard).await {
        Ok(attributes) => Ok(SETATTR3resok { obj_wcc: wcc(asker.told(&attributes)) }),
        Err(status) => Err((status, SETATTR3resfail { obj_wcc: asker.wcc(&object, false).await })),
    })
}

async fn set(
    asker: &Asker,
    object: &Bytes,
    attributes: &sattr3,
    guard: &sattrguard3,
) -> Result<Attributes, nfsstat3> {
    let file = asker.file(object)?;
    let change = translate::change(attributes)?;
    //= rfc1813 3.3.2: "if the guard ... does not match the current ctime ... NFS3ERR_NOT_SYNC"
    let only_if_ctime = match guard {
        Nfs3Option::Some(ctime) => Some(meant(asker, file, *ctime).await?),
        Nfs3Option::None => None,
    };
    let (who, durable) = (asker.who(), asker.syncs());
    asker.ask(SetAttributes { who, file, change, only_if_ctime, durable }).await
}

/// The time of `file` that was told as `ctime`.
async fn meant(asker: &Asker, file: Handle, ctime: nfstime3) -> Result<Time, nfsstat3> {
    let now = asker.ask(GetAttributes { file }).await?;
    let is_as_told = asker.volume().fattr(&now).ctime == ctime;
    is_as_told.then_some(now.ctime).ok_or(nfsstat3::NFS3ERR_NOT_SYNC)
}
