//! RENAME.

use fileio::protocol::Rename;
use futures::future::join;
use nfs3_types::nfs3::{RENAME3resfail, RENAME3resok, nfsstat3};

use super::asker::{Asker, Place, pack};
use crate::xdr::{Arguments, Body, Fault};

//= rfc1813 3.3.14
pub(super) async fn serve(asker: &Asker, mut arguments: Arguments) -> Result<Body, Fault> {
    let from = Place::take(&mut arguments)?;
    let to = Place::take(&mut arguments)?;
    arguments.finish()?;
    let renamed = rename(asker, &from, &to).await;
    let changed = renamed.is_ok();
    let from_wcc = asker.wcc(&from.directory, changed);
    let (fromdir_wcc, todir_wcc) = join(from_wcc, asker.wcc(&to.directory, changed)).await;
    pack(match renamed {
        Ok(()) => Ok(RENAME3resok { fromdir_wcc, todir_wcc }),
        Err(status) => Err((status, RENAME3resfail { fromdir_wcc, todir_wcc })),
    })
}

async fn rename(asker: &Asker, from: &Place, to: &Place) -> Result<(), nfsstat3> {
    //= rfc1813 3.3.14: "." and ".." are NFS3ERR_INVAL, as old name and as new name
    let (from_directory, from_name) = from.entry(asker, nfsstat3::NFS3ERR_INVAL)?;
    let (to_directory, to_name) = to.entry(asker, nfsstat3::NFS3ERR_INVAL)?;
    let (who, call) = (asker.who(), asker.call());
    asker
        .ask_once(Rename {
            who,
            call,
            from_directory,
            from_name,
            to_directory,
            to_name,
            replace: true,
            durable: asker.syncs(),
        })
        .await
}
