//! What requests with a call id have in common.

use meta::protocol::CallOutcome;
use runtime::Call;

use super::base::MetadataAccess;
use crate::protocol::{Attributes, Credentials, Error, FileIo, Handle, Kind, Time};

/// A request of [`Retry::ByCallId`](runtime::Retry::ByCallId).
pub(super) trait CallIdRequest: Call<Protocol = FileIo> {
    /// The component that executes it.
    type Executor;

    /// Executes it.
    fn perform(&self, by: &Self::Executor) -> impl Future<Output = Result<Self::Reply, Error>>;

    /// The answer to a call that was executed before, with this outcome.
    fn repeat(
        &self,
        by: &Self::Executor,
        outcome: CallOutcome,
    ) -> impl Future<Output = Result<Self::Reply, Error>>;

    /// The answer says that the call was executed just now, so its reply is stored, and durable if
    /// that was requested. If not, nothing may have changed.
    fn is_stored(_answer: &Self::Reply) -> bool {
        true
    }
}

/// The file that a call has made. The id may be that of another call.
pub(super) fn made(outcome: CallOutcome) -> Result<Handle, Error> {
    match outcome {
        CallOutcome::Made { ino, generation } => Ok(Handle { ino, generation }),
        CallOutcome::Done {} | CallOutcome::Appended { .. } => Err(Error::Invalid {}),
    }
}

/// The call has made nothing. The id may be that of another call.
pub(super) fn done(outcome: CallOutcome) -> Result<(), Error> {
    match outcome {
        CallOutcome::Done {} => Ok(()),
        CallOutcome::Made { .. } | CallOutcome::Appended { .. } => Err(Error::Invalid {}),
    }
}

/// The present attributes of a file that `who` has made, linked or changed earlier.
pub(super) async fn attributes_after_repeat(
    base: &MetadataAccess,
    file: Handle,
    kind: Kind,
    who: &Credentials,
) -> Result<Attributes, Error> {
    match base.inode(file).await {
        // It was removed since, but it was made.
        Err(Error::Stale {}) => Ok(removed(file, kind, who, base.now())),
        inode => Ok(inode?.attributes),
    }
}

/// What is known of a removed file.
fn removed(file: Handle, kind: Kind, who: &Credentials, now: Time) -> Attributes {
    let blank = Attributes::blank(file.ino, file.generation, kind, now);
    Attributes { uid: who.uid, gid: who.gid, ..blank }
}
