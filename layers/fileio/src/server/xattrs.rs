//! Extended attributes: who may do what with them; the metadata keeps them.

use meta::protocol::{self as metadata, CallOutcome, ChangeXattr};

use super::base::MetadataAccess;
use super::call_requests::{CallIdRequest, attributes_after_repeat, done};
use crate::protocol::{
    Attributes, Credentials, Error, GetXattr, Handle, Kind, ListXattrs, RemoveXattr, SetXattr,
    XATTR_VALUE_MAX, XattrMode, XattrName, access,
};
use crate::rules;

impl CallIdRequest for SetXattr {
    type Executor = MetadataAccess;

    async fn perform(&self, base: &MetadataAccess) -> Result<Attributes, Error> {
        let &SetXattr { ref who, call, file, ref name, ref value, mode, durable } = self;
        base.check_xattr(who, file, name, access::WRITE).await?;
        if value.len() > XATTR_VALUE_MAX {
            return Err(Error::TooLarge {});
        }
        let (Handle { ino, generation }, time) = (file, base.now());
        let (name, value) = (name.clone(), Some(value.clone()));
        let change = ChangeXattr { ino, generation, name, value, mode, time, durable, call };
        base.meta_here(change).await
    }

    async fn repeat(
        &self,
        base: &MetadataAccess,
        outcome: CallOutcome,
    ) -> Result<Attributes, Error> {
        done(outcome)?;
        attributes_after_repeat(base, self.file, Kind::File {}, &self.who).await
    }

    fn is_stored(_: &Attributes) -> bool {
        false
    }
}

impl CallIdRequest for RemoveXattr {
    type Executor = MetadataAccess;

    async fn perform(&self, base: &MetadataAccess) -> Result<Attributes, Error> {
        let &RemoveXattr { ref who, call, file, ref name, durable } = self;
        base.check_xattr(who, file, name, access::WRITE).await?;
        let (Handle { ino, generation }, time, mode) = (file, base.now(), XattrMode::Replace {});
        let name = name.clone();
        let change = ChangeXattr { ino, generation, name, value: None, mode, time, durable, call };
        base.meta_here(change).await
    }

    async fn repeat(
        &self,
        base: &MetadataAccess,
        outcome: CallOutcome,
    ) -> Result<Attributes, Error> {
        done(outcome)?;
        attributes_after_repeat(base, self.file, Kind::File {}, &self.who).await
    }

    fn is_stored(_: &Attributes) -> bool {
        false
    }
}

impl MetadataAccess {
    pub(super) async fn get_xattr(&self, request: GetXattr) -> Result<Vec<u8>, Error> {
        let GetXattr { who, file, name } = request;
        self.check_xattr(&who, file, &name, access::READ).await?;
        let Handle { ino, generation } = file;
        self.meta_here(metadata::GetXattr { ino, generation, name }).await
    }

    pub(super) async fn list_xattrs(&self, request: ListXattrs) -> Result<Vec<XattrName>, Error> {
        let ListXattrs { who, file } = request;
        let Handle { ino, generation } = file;
        let mut names = self.meta_here(metadata::ListXattrs { ino, generation }).await?;
        names.retain(|name| rules::lists_xattr(&who, name));
        Ok(names)
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
