//! Extended attributes.

use client::protocol::{GetXattr, ListXattrs, RemoveXattr, SetXattr};
use client::{XattrMode, XattrName};
use runtime::Spawn;

use super::Operations;
use crate::caller::Caller;
use crate::translate::Failure;

impl<S: Spawn> Operations<S> {
    /// The value of an extended attribute.
    pub(crate) async fn get_xattr(
        &self,
        caller: Caller,
        ino: u64,
        name: XattrName,
    ) -> Result<Vec<u8>, Failure> {
        let (who, file) = (caller.credentials(), self.handle(ino)?);
        Ok(self.ask(GetXattr { who, file, name }).await?)
    }

    /// Sets an extended attribute.
    pub(crate) async fn set_xattr(
        &self,
        caller: Caller,
        ino: u64,
        name: XattrName,
        value: Vec<u8>,
        mode: XattrMode,
    ) -> Result<(), Failure> {
        let (who, call, file) = (caller.credentials(), self.call(), self.handle(ino)?);
        self.ask(SetXattr { who, call, file, name, value, mode, durable: false }).await?;
        Ok(())
    }

    /// The names of all that the caller may know of, with a zero after each.
    pub(crate) async fn list_xattrs(&self, caller: Caller, ino: u64) -> Result<Vec<u8>, Failure> {
        let (who, file) = (caller.credentials(), self.handle(ino)?);
        let names = self.ask(ListXattrs { who, file }).await?;
        Ok(names.iter().flat_map(|name| [name.as_bytes(), &[0]]).flatten().copied().collect())
    }

    /// Removes an extended attribute.
    pub(crate) async fn remove_xattr(
        &self,
        caller: Caller,
        ino: u64,
        name: XattrName,
    ) -> Result<(), Failure> {
        let (who, call, file) = (caller.credentials(), self.call(), self.handle(ino)?);
        self.ask(RemoveXattr { who, call, file, name, durable: false }).await?;
        Ok(())
    }
}
