//! Which requests may be done twice, if their reply was lost.

use crate::protocol::{CallId, Request};

impl Request {
    /// Which call this is, if it is one that is not idempotent.
    pub fn call(&self) -> Option<CallId> {
        match self {
            Self::Create(r) => Some(r.call),
            Self::MakeNode(r) => Some(r.call),
            Self::Remove(r) => Some(r.call),
            Self::RemoveDirectory(r) => Some(r.call),
            Self::Rename(r) => Some(r.call),
            Self::Link(r) => Some(r.call),
            Self::OpenNew(r) => Some(r.call),
            Self::SetXattr(r) => Some(r.call),
            Self::RemoveXattr(r) => Some(r.call),
            _ => None,
        }
    }

    /// Does it change nothing that another request could see, so that it may be done twice, and late? A commit
    /// is one of them: its answer says by the verifier what it stands for.
    pub fn is_idempotent(&self) -> bool {
        matches!(
            self,
            Self::Lookup(_)
                | Self::Parent(_)
                | Self::GetAttributes(_)
                | Self::ReadDirectory(_)
                | Self::ReadLink(_)
                | Self::Read(_)
                | Self::ReadList(_)
                | Self::Commit(_)
                | Self::GetSpace(_)
                | Self::Seek(_)
                | Self::GetXattr(_)
                | Self::ListXattrs(_)
                | Self::TestLock(_)
                | Self::SyncDirectory(_)
                | Self::WasDone(_)
        )
    }
}
