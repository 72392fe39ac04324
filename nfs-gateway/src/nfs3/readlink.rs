//! READLINK.

use bytes::Bytes;
use fileio::protocol::ReadLink;
use nfs3_types::nfs3::{READLINK3resfail, READLINK3resok, nfspath3, nfsstat3};

use super::asker::{Asker, pack, take_handle};
use crate::xdr::{Arguments, Body, Fault};

//= rfc1813 3.3.5
pub(super) async fn serve(asker: &Asker, mut arguments: Arguments) -> Result<Body, Fault> {
    let symlink = take_handle(&mut arguments)?;
    arguments.finish()?;
    let target = read_link(asker, &symlink).await;
    let symlink_attributes = asker.after(&symlink).await;
    pack(match target {
        Ok(target) => Ok(READLINK3resok { symlink_attributes, data: nfspath3::from(target) }),
        Err(status) => Err((status, READLINK3resfail { symlink_attributes })),
    })
}

async fn read_link(asker: &Asker, symlink: &Bytes) -> Result<Vec<u8>, nfsstat3> {
    let file = asker.file(symlink)?;
    asker.ask(ReadLink { file }).await
}
