//! The file of a file handle, with the caller's rights there.

use std::rc::Rc;

use bytes::Bytes;
use fileio::protocol::{
    Attributes, Credentials, FileIo, GetAttributes, Handle, Kind, Name, NameError, handle_of,
};
use nfs3_types::nfs3::nfs_fh3;
use runtime::Call;

use super::server::Nfs4Server;
use super::status::Status;
use super::types::ChangeInfo;
use crate::call_context::CallContext;
use crate::handle::{self, ExportFile, PSEUDO};
use crate::translate;

/// A file in an export, or a directory above the exports.
#[derive(Clone, Debug)]
pub(super) struct CurrentFh {
    /// The call, in the export of the file.
    pub(super) context: Rc<CallContext>,
    pub(super) file: Handle,
    /// It is a directory above the exports, which shows only the names that lead to them.
    pub(super) pseudo: bool,
}

impl CurrentFh {
    /// The file of the file handle `bytes`.
    pub(super) async fn decode(
        server: &Nfs4Server,
        context: &CallContext,
        bytes: &[u8],
    ) -> Result<Self, Status> {
        let keys = server.keys.keys(handle::key_id(bytes)).await.map_err(translate::status);
        let context = context.outside_exports(keys);
        let ExportFile { export, file } = context.decode_handle(bytes)?;
        let pseudo = export == PSEUDO;
        if !pseudo {
            let exports = context.exports.clone();
            context.enter(exports.of_id(export).ok_or(Status::STALE)?)?;
        }
        Ok(Self { context: Rc::new(context), file, pseudo })
    }

    /// Another file of the same export.
    pub(super) fn with_file(&self, attributes: &Attributes) -> Self {
        Self { file: handle_of(attributes), ..self.clone() }
    }

    /// Its file handle.
    pub(super) fn handle(&self) -> Result<nfs_fh3, Status> {
        Ok(if self.pseudo {
            self.context.handle_in(PSEUDO, self.file)?
        } else {
            self.context.handle(self.file)?
        })
    }

    /// Its attributes. Directories above the exports are read-only.
    pub(super) async fn attributes(&self) -> Result<Attributes, Status> {
        let attributes = self.context.request(GetAttributes { file: self.file }).await?;
        Ok(if self.pseudo { Attributes { mode: 0o555, ..attributes } } else { attributes })
    }

    /// The change attribute; zero if the file was removed.
    pub(super) async fn change_attribute(&self) -> u64 {
        let attributes = self.context.request(GetAttributes { file: self.file }).await;
        attributes.map_or(0, |attributes| self.context.volume.change_attribute(&attributes))
    }

    /// The change attributes of a directory before and after a change.
    pub(super) async fn change_info(&self, before: u64) -> ChangeInfo {
        ChangeInfo { before, after: self.change_attribute().await }
    }

    /// Sends a request with the caller's rights; if the file is `open` for it, its mode does not
    /// matter.
    pub(super) async fn request_as_opener<C>(
        &self,
        open: bool,
        call: impl Fn(Credentials) -> C,
    ) -> Result<C::Reply, Status>
    where
        C: Call<Protocol = FileIo> + Clone,
    {
        let context = &self.context;
        match context.request(call(context.credentials())).await.map_err(Status::from) {
            Err(Status::ACCESS) if open => Ok(context.request(call(Credentials::root())).await?),
            answer => answer,
        }
    }

    /// May the file be changed in this export?
    pub(super) fn check_writable(&self) -> Result<(), Status> {
        if self.pseudo || !self.context.may_write() {
            return Err(Status::ROFS);
        }
        Ok(())
    }

    /// Are both in one export?
    pub(super) fn check_same_export(&self, other: &Self) -> Result<(), Status> {
        let id = |fh: &Self| fh.context.export().map(|export| export.id);
        if self.pseudo != other.pseudo || id(self) != id(other) {
            return Err(Status::XDEV);
        }
        Ok(())
    }
}

//= rfc8881 18.10.3, 18.16.3: NFS4ERR_ISDIR, NFS4ERR_SYMLINK, and NFS4ERR_WRONG_TYPE for the others
/// Checks that `kind` is that of a regular file.
pub(super) fn check_regular(kind: Kind) -> Result<(), Status> {
    match kind {
        Kind::File {} => Ok(()),
        Kind::Directory {} => Err(Status::ISDIR),
        Kind::Symlink {} => Err(Status::SYMLINK),
        _ => Err(Status::WRONG_TYPE),
    }
}

//= rfc8881 14.5: a name of no bytes is NFS4ERR_INVAL, "." and ".." NFS4ERR_BADNAME, "/" BADCHAR
/// Checks the name of an entry.
pub(super) fn name(bytes: Bytes) -> Result<Name, Status> {
    Name::new(bytes).map_err(|error| match error {
        NameError::TooLong => Status::NAMETOOLONG,
        NameError::Empty => Status::INVAL,
        NameError::Dots => Status::BADNAME,
        NameError::Forbidden => Status::BADCHAR,
    })
}
