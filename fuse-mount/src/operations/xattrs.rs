//! Extended attributes.

use client::protocol::{GetXattr, ListXattrs, RemoveXattr, SetXattr};
use client::{XattrMode, XattrName};
use runtime::Spawn;

use super::MountOperations;
use crate::caller::CallerProcess;
use crate::translate::KernelResult;

impl<S: Spawn> MountOperations<S> {
    /// The value of an extended attribute.
    pub(crate) async fn get_xattr(
        &self,
        caller: CallerProcess,
        ino: u64,
        name: XattrName,
    ) -> KernelResult<Vec<u8>> {
        let (who, file) = (caller.credentials(), self.handle(ino)?);
        Ok(self.volume.request(GetXattr { who, file, name }).await?)
    }

    /// Sets an extended attribute.
    pub(crate) async fn set_xattr(
        &self,
        caller: CallerProcess,
        ino: u64,
        name: XattrName,
        value: Vec<u8>,
        mode: XattrMode,
    ) -> KernelResult<()> {
        let (who, call, file) = (caller.credentials(), self.volume.call(), self.handle(ino)?);
        self.volume
            .request(SetXattr { who, call, file, name, value, mode, durable: false })
            .await?;
        Ok(())
    }

    /// The names that the caller may see, each with a terminating zero.
    pub(crate) async fn list_xattrs(
        &self,
        caller: CallerProcess,
        ino: u64,
    ) -> KernelResult<Vec<u8>> {
        let (who, file) = (caller.credentials(), self.handle(ino)?);
        let names = self.volume.request(ListXattrs { who, file }).await?;
        Ok(names.iter().flat_map(|name| [name.as_bytes(), &[0]]).flatten().copied().collect())
    }

    /// Removes an extended attribute.
    pub(crate) async fn remove_xattr(
        &self,
        caller: CallerProcess,
        ino: u64,
        name: XattrName,
    ) -> KernelResult<()> {
        let (who, call, file) = (caller.credentials(), self.volume.call(), self.handle(ino)?);
        self.volume.request(RemoveXattr { who, call, file, name, durable: false }).await?;
        Ok(())
    }
}
