//! The MOUNT program (RFC 1813 section 5): from a path to the first handle.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use fileio::protocol::{Handle, Kind};
use nfs3_types::mount::{
    MNTPATHLEN, MOUNT_PROGRAM, dirpath, export_node, fhandle3, mountbody, mountres3, mountres3_ok,
    mountstat3, name,
};
use nfs3_types::nfs3::{nfs_fh3, nfsstat3};
use nfs3_types::xdr_codec::{List, Opaque};

use crate::call_context::CallContext;
use crate::exports::{self, ClientNetwork, Export};
use crate::lookup::{self, from_root};
use crate::peer_log::PeerLog;
use crate::rpc::AUTH_SYS;
use crate::translate::component;
use crate::xdr::{CallArguments, ProcedureError, ProcedureResult, ReplyBody};

/// Mounts that DUMP lists, at most; the oldest are dropped first, as the list is for people.
const MOUNTS_MAX: usize = 1024;

/// MOUNT has no status for "later": while nodes move the lookup is retried for this time, which
/// kernels wait for.
const RETRY_TIME: Duration = Duration::from_secs(8);

const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// The mounts of clients, as far as known.
#[derive(Debug)]
pub(crate) struct MountList {
    log: Rc<PeerLog>,
    list: RefCell<VecDeque<(String, Bytes)>>,
}

impl MountList {
    /// An empty list; what is not mounted goes to `log`.
    pub(crate) fn new(log: Rc<PeerLog>) -> Self {
        Self { log, list: RefCell::default() }
    }

    fn add(&self, host: &str, path: &[u8]) {
        self.remove(host, path);
        let mut list = self.list.borrow_mut();
        if list.len() >= MOUNTS_MAX {
            list.pop_front();
        }
        // A copy: a slice would keep the receive buffer.
        list.push_back((host.to_owned(), Bytes::copy_from_slice(path)));
    }

    fn remove(&self, host: &str, path: &[u8]) {
        self.list.borrow_mut().retain(|(who, what)| who != host || what != path);
    }

    fn remove_all(&self, host: &str) {
        self.list.borrow_mut().retain(|(who, _)| who != host);
    }
}

/// Answers `procedure` for `host`.
pub(crate) async fn answer(
    context: &CallContext,
    mounts: &MountList,
    host: &str,
    procedure: u32,
    mut arguments: CallArguments,
) -> ProcedureResult {
    match MOUNT_PROGRAM::try_from(procedure).map_err(|_| ProcedureError::NoProcedure)? {
        //= rfc1813 5.2.0
        MOUNT_PROGRAM::MOUNTPROC3_NULL => arguments.finish().map(|()| ReplyBody::default()),
        MOUNT_PROGRAM::MOUNTPROC3_MNT => {
            let path = arguments.opaque(usize::MAX)?;
            arguments.finish()?;
            mount(context, mounts, host, path).await
        }
        MOUNT_PROGRAM::MOUNTPROC3_DUMP => arguments.finish().and_then(|()| dump(mounts)),
        //= rfc1813 5.2.3
        MOUNT_PROGRAM::MOUNTPROC3_UMNT => {
            let path = arguments.opaque(MNTPATHLEN)?;
            arguments.finish()?;
            mounts.remove(host, &path);
            Ok(ReplyBody::default())
        }
        //= rfc1813 5.2.4
        MOUNT_PROGRAM::MOUNTPROC3_UMNTALL => {
            arguments.finish()?;
            mounts.remove_all(host);
            Ok(ReplyBody::default())
        }
        MOUNT_PROGRAM::MOUNTPROC3_EXPORT => arguments.finish().and_then(|()| exports(context)),
    }
}

//= rfc1813 5.2.1
async fn mount(
    context: &CallContext,
    mounts: &MountList,
    host: &str,
    path: Bytes,
) -> ProcedureResult {
    let result = match walk_with_retries(context, &path).await.map_err(status) {
        Ok(handle) => {
            mounts.add(host, &path);
            let fhandle = fhandle3(handle.data);
            mountres3::Ok(mountres3_ok { fhandle, auth_flavors: vec![AUTH_SYS] })
        }
        Err(status) => {
            if mounts.log.admits(host) {
                let path = String::from_utf8_lossy(&path[..path.len().min(MNTPATHLEN)]);
                tracing::info!(target: "mdfs::nfs", host, %path, ?status, "not mounted");
            }
            mountres3::Err(status)
        }
    };
    ReplyBody::pack(&result)
}

async fn walk_with_retries(context: &CallContext, path: &Bytes) -> Result<nfs_fh3, nfsstat3> {
    let ctx = context.ctx();
    let until = ctx.now() + RETRY_TIME;
    loop {
        match walk(context, path).await {
            Err(nfsstat3::NFS3ERR_JUKEBOX) if ctx.now() < until => ctx.sleep(RETRY_PAUSE).await,
            found => return found,
        }
    }
}

/// Walks from the root of an export to `path` with the rights of the caller; symbolic links are not
/// followed. Any directory of an export may be mounted.
async fn walk(context: &CallContext, path: &Bytes) -> Result<nfs_fh3, nfsstat3> {
    if path.len() > MNTPATHLEN {
        return Err(nfsstat3::NFS3ERR_NAMETOOLONG);
    }
    // libnfs mounts the empty path if its URL names a file of the root.
    if !path.is_empty() && !path.starts_with(b"/") {
        return Err(nfsstat3::NFS3ERR_INVAL);
    }
    let parts = exports::parts(path);
    let export = context.exports.around(&parts).ok_or(nfsstat3::NFS3ERR_ACCES)?;
    context.enter(export)?;
    let mut attributes = from_root(context, &export.parts).await?;
    for part in &parts[export.parts.len()..] {
        let directory = Handle { ino: attributes.ino, generation: attributes.generation };
        let part = component(path.slice_ref(part))?;
        attributes = lookup::component(context, directory, part).await?;
    }
    if attributes.kind != (Kind::Directory {}) {
        return Err(nfsstat3::NFS3ERR_NOTDIR);
    }
    let file = Handle { ino: attributes.ino, generation: attributes.generation };
    context.handle(file)
}

//= rfc1813 5.1.5: mountstat3
fn status(status: nfsstat3) -> mountstat3 {
    match status {
        nfsstat3::NFS3ERR_PERM => mountstat3::MNT3ERR_PERM,
        nfsstat3::NFS3ERR_NOENT | nfsstat3::NFS3ERR_STALE => mountstat3::MNT3ERR_NOENT,
        nfsstat3::NFS3ERR_IO => mountstat3::MNT3ERR_IO,
        nfsstat3::NFS3ERR_ACCES => mountstat3::MNT3ERR_ACCES,
        nfsstat3::NFS3ERR_NOTDIR => mountstat3::MNT3ERR_NOTDIR,
        nfsstat3::NFS3ERR_INVAL => mountstat3::MNT3ERR_INVAL,
        nfsstat3::NFS3ERR_NAMETOOLONG => mountstat3::MNT3ERR_NAMETOOLONG,
        _ => mountstat3::MNT3ERR_SERVERFAULT,
    }
}

//= rfc1813 5.2.2
fn dump(mounts: &MountList) -> ProcedureResult {
    let list = mounts.list.borrow();
    let told = list.iter().map(|(host, path)| mountbody {
        ml_hostname: name(Opaque::borrowed(host.as_bytes())),
        ml_directory: dirpath(Opaque::borrowed(path)),
    });
    ReplyBody::pack(&List(told.collect()))
}

//= rfc1813 5.2.5
fn exports(context: &CallContext) -> ProcedureResult {
    let node = |export: &Export| {
        let networks = export.clients().iter().map(|clients| clients.network);
        // No group means all clients.
        let groups = if networks.clone().any(|network| network == ClientNetwork::Any) {
            List::default()
        } else {
            let told = networks.map(|network| name(Opaque::owned(network.to_string().into())));
            List(told.collect())
        };
        export_node { ex_dir: dirpath(Opaque::owned(export.path())), ex_groups: groups }
    };
    ReplyBody::pack(&List(context.exports.iter().map(node).collect()))
}
