//! LINK.

use bytes::Bytes;
use fileio::protocol::{Attributes, Link};
use futures::future::join;
use nfs3_types::nfs3::{LINK3resfail, LINK3resok, nfsstat3};

use super::asker::{Asker, Place, pack, take_handle};
use crate::xdr::{Arguments, Body, Fault};

//= rfc1813 3.3.15
pub(super) async fn serve(asker: &Asker, mut arguments: Arguments) -> Result<Body, Fault> {
    let file = take_handle(&mut arguments)?;
    let place = Place::take(&mut arguments)?;
    arguments.finish()?;
    pack(match link(asker, &file, &place).await {
        Ok(attributes) => Ok(LINK3resok {
            file_attributes: asker.told(&attributes),
            linkdir_wcc: asker.wcc(&place.directory, true).await,
        }),
        Err(status) => {
            let (file_attributes, linkdir_wcc) =
                join(asker.after(&file), asker.wcc(&place.directory, false)).await;
            Err((status, LINK3resfail { file_attributes, linkdir_wcc }))
        }
    })
}

async fn link(asker: &Asker, file: &Bytes, place: &Place) -> Result<Attributes, nfsstat3> {
    let file = asker.file(file)?;
    let (directory, name) = place.entry(asker, nfsstat3::NFS3ERR_EXIST)?;
    let (who, call, durable) = (asker.who(), asker.call(), asker.syncs());
    asker.ask_once(Link { who, call, file, directory, name, durable }).await
}
