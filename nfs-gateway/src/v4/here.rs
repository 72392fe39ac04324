//! What a file handle stands for, and who may do what there.

use std::rc::Rc;

use bytes::Bytes;
use fileio::protocol::{Attributes, GetAttributes, Handle, Name, NameError};
use nfs3_types::nfs3::nfs_fh3;

use super::Service;
use super::status::Status;
use crate::handle::{self, Named, PSEUDO};
use crate::nfs3::Asker;
use crate::translate;

/// A file in an export, or a directory above the exports.
#[derive(Clone, Debug)]
pub(super) struct Here {
    /// Who asks, with the rights that the export gives.
    pub(super) asker: Rc<Asker>,
    /// The file.
    pub(super) file: Handle,
    /// It is a directory above the exports, of which only what leads to them is shown.
    pub(super) pseudo: bool,
}

impl Here {
    /// What `bytes`, a file handle, stands for.
    pub(super) async fn of(service: &Service, asker: &Asker, bytes: &[u8]) -> Result<Self, Status> {
        let keys = service.keys.keys(handle::key_id(bytes)).await.map_err(translate::status);
        let asker = asker.apart(keys);
        let Named { export, file } = asker.open_handle(bytes)?;
        let pseudo = export == PSEUDO;
        if !pseudo {
            let exports = asker.exports_shared();
            asker.enter(exports.of_id(export).ok_or(Status::STALE)?)?;
        }
        Ok(Self { asker: Rc::new(asker), file, pseudo })
    }

    /// Another file of the same export.
    pub(super) fn beside(&self, attributes: &Attributes) -> Self {
        Self { file: handle_of(attributes), ..self.clone() }
    }

    /// Its file handle.
    pub(super) fn handle(&self) -> Result<nfs_fh3, Status> {
        Ok(if self.pseudo {
            self.asker.handle_in(PSEUDO, self.file)?
        } else {
            self.asker.handle(self.file)?
        })
    }

    /// Its attributes. Directories above the exports are nobody's to change.
    pub(super) async fn attributes(&self) -> Result<Attributes, Status> {
        let attributes = self.asker.ask(GetAttributes { file: self.file }).await?;
        Ok(if self.pseudo { Attributes { mode: 0o555, ..attributes } } else { attributes })
    }

    /// Something is to be changed here.
    pub(super) fn check_writable(&self) -> Result<(), Status> {
        if self.pseudo || !self.asker.may_write() {
            return Err(Status::ROFS);
        }
        Ok(())
    }

    /// Are both in one export?
    pub(super) fn check_same_export(&self, other: &Self) -> Result<(), Status> {
        let id = |here: &Self| here.asker.export().map(crate::exports::Export::id);
        if self.pseudo != other.pseudo || id(self) != id(other) {
            return Err(Status::XDEV);
        }
        Ok(())
    }
}

/// The handle of the file of `attributes`, below.
pub(super) fn handle_of(attributes: &Attributes) -> Handle {
    Handle { ino: attributes.ino, generation: attributes.generation }
}

//= rfc8881 14.5: a name of no bytes is NFS4ERR_INVAL, "." and ".." NFS4ERR_BADNAME, "/" BADCHAR
/// A name of an entry.
pub(super) fn name(bytes: Bytes) -> Result<Name, Status> {
    Name::new(bytes).map_err(|error| match error {
        NameError::TooLong => Status::NAMETOOLONG,
        NameError::Empty => Status::INVAL,
        NameError::Dots => Status::BADNAME,
        NameError::Forbidden => Status::BADCHAR,
    })
}
