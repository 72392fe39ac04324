//! Volumes that are only read, with what is there of them: every change is refused, and a node
//! whose metadata is lost answers with why.

use std::rc::Rc;

use futures::FutureExt as _;
use futures::future::{LocalBoxFuture, ready};
use meta::attributes::access;
use runtime::{Caller, Server};

use crate::protocol::{Error, FileIo, Reply, Request};

/// Would a request change something? Closing, locks and syncs change nothing that is stored.
pub(super) fn is_change(request: &Request) -> bool {
    match request {
        Request::SetAttributes(_)
        | Request::Create(_)
        | Request::OpenNew(_)
        | Request::MakeNode(_)
        | Request::Remove(_)
        | Request::RemoveDirectory(_)
        | Request::Rename(_)
        | Request::Link(_)
        | Request::Write(_)
        | Request::WriteDirect(_)
        | Request::WriteList(_)
        | Request::Append(_)
        | Request::ReplayWrite(_)
        | Request::ReplayPunch(_)
        | Request::PunchHole(_)
        | Request::Allocate(_)
        | Request::SetXattr(_)
        | Request::RemoveXattr(_)
        | Request::ChangeDisks(_)
        | Request::ChangePartitions(_)
        | Request::Trim(_) => true,
        Request::OpenHandle(open) => open.access & access::WRITE != 0,
        Request::Lookup(_)
        | Request::Open(_)
        | Request::Parent(_)
        | Request::GetAttributes(_)
        | Request::ReadDirectory(_)
        | Request::ReadLink(_)
        | Request::Read(_)
        | Request::ReadDirect(_)
        | Request::ReadList(_)
        | Request::Commit(_)
        | Request::GetSpace(_)
        | Request::GetDisks(_)
        | Request::GetPartitions(_)
        | Request::AdoptPartitions(_)
        | Request::GetPartitionShare(_)
        | Request::ClaimSpace(_)
        | Request::Flush(_)
        | Request::Seek(_)
        | Request::GetXattr(_)
        | Request::ListXattrs(_)
        | Request::CloseHandle(_)
        | Request::Renew(_)
        | Request::Lock(_)
        | Request::TestLock(_)
        | Request::Unlock(_)
        | Request::SyncDirectory(_)
        | Request::Delegate(_)
        | Request::ReturnDelegation(_)
        | Request::GetRecalls(_)
        | Request::BreakDelegations(_)
        | Request::HasOpens(_)
        | Request::WasDone(_) => false,
        Request::Scrub(scrub) => scrub.repair,
    }
}

/// Answers every request for the files of a node whose metadata cannot be read.
#[derive(Debug)]
pub struct LostFiles(Error);

impl LostFiles {
    /// The metadata answers with `why`.
    pub fn new(why: meta::protocol::Error) -> Rc<Self> {
        Rc::new(Self(why.into()))
    }
}

impl Server<FileIo> for LostFiles {
    fn handle(self: Rc<Self>, _: Caller, request: Request) -> LocalBoxFuture<'static, Reply> {
        let why = if is_change(&request) { Error::ReadOnly {} } else { self.0 };
        ready(request.refused(why)).boxed_local()
    }
}
