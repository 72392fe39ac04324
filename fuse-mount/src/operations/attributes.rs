//! Attributes: changes, permissions, targets of symbolic links.

use std::sync::Arc;

use client::protocol::{Attributes, Change, Credentials, ReadLink, SetAttributes};
use runtime::Spawn;

use super::MountOperations;
use crate::caller::CallerProcess;
use crate::translate::{KernelError, KernelResult};

/// Requested access, in the bits of the mode's lowest triple.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AccessMask(pub(crate) u32);

impl<S: Spawn> MountOperations<S> {
    /// Changes attributes. To change the size an open file is permission enough.
    pub(crate) async fn set_attributes(
        &self,
        caller: CallerProcess,
        ino: u64,
        change: Change,
        through_open: bool,
    ) -> KernelResult<Attributes> {
        let file = self.handle(ino)?;
        if (change.uid.is_some() || change.gid.is_some()) && caller.is_root() {
            // As in Linux. On a change by another user the volume clears these bits itself.
            self.volume.drop_setid(file).await?;
        }
        let call = |who| SetAttributes {
            who,
            file,
            change: change.clone(),
            only_if_ctime: None,
            durable: self.volume.unsynced.cuts_durably(&change),
        };
        let changed = if through_open && change.size.is_some() {
            let change =
                async |who: &Arc<Credentials>| self.volume.request(call((**who).clone())).await;
            self.volume.change_as_opener(&Arc::new(caller.credentials()), file, change).await
        } else {
            self.volume.request(call(caller.credentials())).await
        };
        Ok(changed?)
    }

    /// Checks that the caller has this access.
    pub(crate) async fn check(
        &self,
        caller: CallerProcess,
        ino: u64,
        access_mask: AccessMask,
    ) -> KernelResult<Attributes> {
        let file = self.get_attributes(ino).await?;
        check_mode(&file, &caller.credentials(), access_mask)?;
        Ok(file)
    }

    /// The target of a symbolic link.
    pub(crate) async fn read_link(&self, ino: u64) -> KernelResult<Vec<u8>> {
        Ok(self.volume.request(ReadLink { file: self.handle(ino)? }).await?)
    }
}

pub(super) fn check_mode(
    file: &Attributes,
    who: &Credentials,
    access_mask: AccessMask,
) -> KernelResult<()> {
    let permits = file.permits(who, access_mask.0);
    if permits { Ok(()) } else { Err(KernelError(libc::EACCES)) }
}
