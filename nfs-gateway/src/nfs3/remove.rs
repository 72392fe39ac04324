//! REMOVE and RMDIR.

use fileio::protocol::{Remove, RemoveDirectory};
use nfs3_types::nfs3::{REMOVE3resfail, REMOVE3resok, RMDIR3resfail, RMDIR3resok, nfsstat3};

use super::asker::{Asker, Place, pack};
use crate::xdr::{Arguments, Body, Fault};

//= rfc1813 3.3.12
pub(super) async fn remove(asker: &Asker, mut arguments: Arguments) -> Result<Body, Fault> {
    let object = Place::take(&mut arguments)?;
    arguments.finish()?;
    let removed = remove_file(asker, &object).await;
    let dir_wcc = asker.wcc(&object.directory, removed.is_ok()).await;
    pack(match removed {
        Ok(()) => Ok(REMOVE3resok { dir_wcc }),
        Err(status) => Err((status, REMOVE3resfail { dir_wcc })),
    })
}

async fn remove_file(asker: &Asker, object: &Place) -> Result<(), nfsstat3> {
    let (directory, name) = object.entry(asker, nfsstat3::NFS3ERR_INVAL)?;
    let (who, call) = (asker.who(), asker.call());
    asker.ask_once(Remove { who, call, directory, name, durable: asker.syncs() }).await
}

//= rfc1813 3.3.13
pub(super) async fn rmdir(asker: &Asker, mut arguments: Arguments) -> Result<Body, Fault> {
    let object = Place::take(&mut arguments)?;
    arguments.finish()?;
    let removed = remove_directory(asker, &object).await;
    let dir_wcc = asker.wcc(&object.directory, removed.is_ok()).await;
    pack(match removed {
        Ok(()) => Ok(RMDIR3resok { dir_wcc }),
        Err(status) => Err((status, RMDIR3resfail { dir_wcc })),
    })
}

async fn remove_directory(asker: &Asker, object: &Place) -> Result<(), nfsstat3> {
    //= rfc1813 3.3.13: "." is NFS3ERR_INVAL, ".." is NFS3ERR_EXIST
    let above = &object.name[..] == b"..";
    let dots = if above { nfsstat3::NFS3ERR_EXIST } else { nfsstat3::NFS3ERR_INVAL };
    let (directory, name) = object.entry(asker, dots)?;
    let (who, call) = (asker.who(), asker.call());
    let durable = asker.syncs();
    asker.ask_once(RemoveDirectory { who, call, directory, name, durable }).await
}
