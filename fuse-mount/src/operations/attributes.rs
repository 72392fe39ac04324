//! Attributes: changes, permissions, targets of symbolic links.

use client::protocol::{
    Attributes, Change, Credentials, Error, GetAttributes, Handle, Kind, ReadLink, SetAttributes,
};
use runtime::Spawn;

use super::Operations;
use crate::caller::Caller;
use crate::translate::Failure;

const SETUID: u32 = 0o4000;
const SETGID: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o010;

/// Wanted access, in the bits of the mode's lowest triple.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted(pub(crate) u32);

impl<S: Spawn> Operations<S> {
    /// Changes attributes. A size that is changed through an open file needs no permission but that.
    pub(crate) async fn set_attributes(
        &self,
        caller: Caller,
        ino: u64,
        change: Change,
        through_open: bool,
    ) -> Result<Attributes, Failure> {
        let file = self.handle(ino)?;
        if (change.uid.is_some() || change.gid.is_some()) && caller.is_root() {
            // As Linux has it. On a change by anybody else the volume takes these bits itself.
            self.drop_setid(file).await?;
        }
        let call = |who| SetAttributes {
            who,
            file,
            change: change.clone(),
            only_if_ctime: None,
            durable: false,
        };
        let changed = if through_open && change.size.is_some() {
            self.ask_opened(caller, file, call).await
        } else {
            self.ask(call(caller.credentials())).await
        };
        Ok(changed?)
    }

    /// Takes the bits that let others act as the owner from a regular file.
    pub(super) async fn drop_setid(&self, file: Handle) -> Result<(), Error> {
        let Attributes { kind, mode, .. } = self.ask(GetAttributes { file }).await?;
        // Without the right to execute, this bit of the group means something else.
        let group = if mode & GROUP_EXECUTE != 0 { SETGID } else { 0 };
        let kept = mode & !(SETUID | group);
        if kind == (Kind::File {}) && kept != mode {
            let change = Change { mode: Some(kept), ..Change::default() };
            let who = Credentials::root();
            let call = SetAttributes { who, file, change, only_if_ctime: None, durable: false };
            self.ask(call).await?;
        }
        Ok(())
    }

    /// May the caller do this?
    pub(crate) async fn check(
        &self,
        caller: Caller,
        ino: u64,
        wanted: Wanted,
    ) -> Result<Attributes, Failure> {
        let file = self.get_attributes(ino).await?;
        permitted(&file, caller, wanted)?;
        Ok(file)
    }

    /// Where a symbolic link points.
    pub(crate) async fn read_link(&self, ino: u64) -> Result<Vec<u8>, Failure> {
        Ok(self.ask(ReadLink { file: self.handle(ino)? }).await?)
    }
}

pub(super) fn permitted(file: &Attributes, caller: Caller, wanted: Wanted) -> Result<(), Failure> {
    let permits = file.permits(&caller.credentials(), wanted.0);
    if permits { Ok(()) } else { Err(Failure(libc::EACCES)) }
}
