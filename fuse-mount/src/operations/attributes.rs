//! Attributes: changes, permissions, targets of symbolic links.

use client::protocol::{Attributes, Change, Credentials, Error, ReadLink, SetAttributes, WccAttr};
use runtime::Spawn;

use super::MountOperations;
use crate::caller::CallerProcess;
use crate::page_version::ContentVersion;
use crate::translate::{KernelError, KernelResult};

/// Requested access, in the bits of the mode's lowest triple.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AccessMask(pub(crate) u32);

impl<S: Spawn> MountOperations<S> {
    /// Changes attributes. The size is changed as the one who opened the file `through`.
    pub(crate) async fn set_attributes(
        &self,
        caller: CallerProcess,
        ino: u64,
        change: Change,
        through: Option<u64>,
    ) -> KernelResult<Attributes> {
        let file = self.handle(ino)?;
        let opener = match through {
            Some(number) if change.size.is_some() => Some(self.open_file(number)?.opener.clone()),
            _ => None,
        };
        let who = opener.map_or_else(|| caller.credentials(), |opener| (*opener).clone());
        let durable = self.volume.unsynced.cuts_durably(&change);
        let known = self.inodes.known_version(file).filter(|_| change.size.is_none());
        let only_if_ctime = known.map(ContentVersion::ctime);
        let mut call = SetAttributes { who, file, change, only_if_ctime, durable };
        let changed = match (self.volume.request(call.clone()).await, known) {
            (Ok(changed), Some(before)) => {
                // Nothing came between, and the content is the same.
                let after = before.with(WccAttr::of(&changed));
                self.inodes.note_write(file, before, after);
                changed
            }
            (Err(Error::Changed {}), Some(_)) => {
                call.only_if_ctime = None;
                self.volume.request(call).await?
            }
            (changed, _) => changed?,
        };
        self.inodes.note_set(&changed);
        Ok(changed)
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
