//! Calls that are done once, however often they come (design D11, ADR 9).

use meta::protocol::{FindReply, Outcome};
use runtime::protocol::Undelivered;

use super::{FileServer, is_in_doubt};
use crate::protocol::{Attributes, CallId, Credentials, Error, Handle, Kind, Time};

impl FileServer {
    /// Does `work`, which stores the reply of `call` with what it does, unless that has happened;
    /// then `again` finds the rest of the reply. A failure changes nothing and is not kept, so a
    /// call without a stored reply was not done, however `work` ended.
    pub(super) async fn once<T>(
        &self,
        call: CallId,
        durable: bool,
        work: impl AsyncFnOnce() -> Result<T, Error>,
        again: impl AsyncFnOnce(Outcome) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let _alone = self.calls.exclusive(call).await;
        if let Some(outcome) = self.meta_here(FindReply { call, durable }).await? {
            return again(outcome).await;
        }
        let error = match work().await {
            Err(error) => error,
            done => return done,
        };
        match self.meta_here(FindReply { call, durable }).await? {
            // Something failed after it was decided: nobody needs to know.
            Some(outcome) => again(outcome).await,
            None if is_in_doubt(error) => Err(Undelivered::Busy.into()),
            None => Err(error),
        }
    }

    /// What `who` has made or linked earlier, as it is now.
    pub(super) async fn made_before(
        &self,
        file: Handle,
        kind: Kind,
        who: &Credentials,
    ) -> Result<Attributes, Error> {
        match self.inode(file).await {
            // It was removed since. That it was made stays true.
            Err(Error::Stale {}) => Ok(removed(file, kind, who, self.now())),
            inode => Ok(inode?.attributes),
        }
    }
}

/// The inode that a call has made.
pub(super) fn made(outcome: Outcome) -> Result<Handle, Error> {
    match outcome {
        Outcome::Made { ino, generation } => Ok(Handle { ino, generation }),
        // The id is another call's.
        Outcome::Done {} => Err(Error::Invalid {}),
    }
}

/// All that can be said of a file without a name.
fn removed(file: Handle, kind: Kind, who: &Credentials, now: Time) -> Attributes {
    Attributes {
        ino: file.ino,
        generation: file.generation,
        kind,
        mode: 0,
        links: 0,
        uid: who.uid,
        gid: who.gid,
        major: 0,
        minor: 0,
        size: 0,
        used_bytes: 0,
        atime: now,
        mtime: now,
        ctime: now,
        birth: now,
    }
}
