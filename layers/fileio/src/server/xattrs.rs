//! Extended attributes: who may do what with them; the metadata keeps them.

use std::rc::Rc;

use meta::protocol::{self as metadata, CallOutcome, ChangeXattr};

use super::FileServer;
use super::calls::{CallIdRequest, other_call};
use crate::protocol::{
    Attributes, Credentials, Error, GetXattr, Handle, Kind, ListXattrs, RemoveXattr, SetXattr,
    XATTR_VALUE_MAX, XattrMode, XattrName, access,
};
use crate::rules;

runtime::handlers! { FileServer;
    GetXattr => |server, _, request| server.get_xattr(request).await;
    ListXattrs => |server, _, request| server.list_xattrs(request).await;
}

impl CallIdRequest for SetXattr {
    async fn perform(&self, server: &Rc<FileServer>) -> Result<Self::Reply, Error> {
        server.set_xattr(self).await
    }

    async fn repeat(
        &self,
        server: &FileServer,
        outcome: CallOutcome,
    ) -> Result<Self::Reply, Error> {
        match outcome {
            CallOutcome::Done {} => {
                server.attributes_after_repeat(self.file, Kind::File {}, &self.who).await
            }
            CallOutcome::Made { .. } => other_call(),
        }
    }

    fn is_stored(_: &Self::Reply) -> bool {
        false
    }
}

impl CallIdRequest for RemoveXattr {
    async fn perform(&self, server: &Rc<FileServer>) -> Result<Self::Reply, Error> {
        server.remove_xattr(self).await
    }

    async fn repeat(
        &self,
        server: &FileServer,
        outcome: CallOutcome,
    ) -> Result<Self::Reply, Error> {
        match outcome {
            CallOutcome::Done {} => {
                server.attributes_after_repeat(self.file, Kind::File {}, &self.who).await
            }
            CallOutcome::Made { .. } => other_call(),
        }
    }

    fn is_stored(_: &Self::Reply) -> bool {
        false
    }
}

impl FileServer {
    pub(super) async fn get_xattr(&self, request: GetXattr) -> Result<Vec<u8>, Error> {
        let GetXattr { who, file, name } = request;
        self.check_xattr(&who, file, &name, access::READ).await?;
        let Handle { ino, generation } = file;
        self.meta_here(metadata::GetXattr { ino, generation, name }).await
    }

    pub(super) async fn set_xattr(&self, request: &SetXattr) -> Result<Attributes, Error> {
        let SetXattr { who, call, file, name, value, mode, durable } = request;
        self.check_xattr(who, *file, name, access::WRITE).await?;
        if value.len() > XATTR_VALUE_MAX {
            return Err(Error::TooLarge {});
        }
        let change = ChangeXattr {
            ino: file.ino,
            generation: file.generation,
            name: name.clone(),
            value: Some(value.clone()),
            mode: *mode,
            time: self.now(),
            durable: *durable,
            call: *call,
        };
        self.meta_here(change).await
    }

    pub(super) async fn list_xattrs(&self, request: ListXattrs) -> Result<Vec<XattrName>, Error> {
        let ListXattrs { who, file } = request;
        let Handle { ino, generation } = file;
        let mut names = self.meta_here(metadata::ListXattrs { ino, generation }).await?;
        names.retain(|name| rules::lists_xattr(&who, name));
        Ok(names)
    }

    pub(super) async fn remove_xattr(&self, request: &RemoveXattr) -> Result<Attributes, Error> {
        let RemoveXattr { who, call, file, name, durable } = request;
        self.check_xattr(who, *file, name, access::WRITE).await?;
        let change = ChangeXattr {
            ino: file.ino,
            generation: file.generation,
            name: name.clone(),
            value: None,
            mode: XattrMode::Replace {},
            time: self.now(),
            durable: *durable,
            call: *call,
        };
        self.meta_here(change).await
    }

    async fn check_xattr(
        &self,
        who: &Credentials,
        file: Handle,
        name: &XattrName,
        wanted: u32,
    ) -> Result<(), Error> {
        let attributes = self.inode(file).await?.attributes;
        rules::check_xattr(who, &attributes, name, wanted)
    }
}
