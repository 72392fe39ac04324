//! Placement of requests (thesis section 2.5.4): by handle for files, by name for directory work.
//! Frozen: the values are part of the on-disk format.

use runtime::NodeId;

use crate::protocol::{Handle, Name, Request};

pub use meta::hash::{ino_node, name_node};

/// The node that answers `request`, in a volume of `nodes` file-system nodes.
pub fn owner(request: &Request, nodes: u32) -> NodeId {
    let file = |handle: &Handle| ino_node(handle.ino, nodes);
    let name = |directory: &Handle, name: &Name| name_node(directory.ino, name, nodes);
    match request {
        Request::Lookup(r) => name(&r.directory, &r.name),
        Request::Create(r) => name(&r.directory, &r.name),
        Request::MakeNode(r) => name(&r.directory, &r.name),
        Request::Remove(r) => name(&r.directory, &r.name),
        Request::RemoveDirectory(r) => name(&r.directory, &r.name),
        Request::Rename(r) => name(&r.from_directory, &r.from_name),
        Request::Parent(r) => file(&r.directory),
        Request::GetAttributes(r) => file(&r.file),
        Request::SetAttributes(r) => file(&r.file),
        Request::ReadDirectory(r) => file(&r.directory),
        Request::ReadLink(r) => file(&r.file),
        Request::Read(r) => file(&r.file),
        Request::Write(r) => file(&r.file),
        Request::Commit(r) => file(&r.file),
        Request::PunchHole(r) => file(&r.file),
        Request::Allocate(r) => file(&r.file),
        Request::Seek(r) => file(&r.file),
        Request::GetXattr(r) => file(&r.file),
        Request::SetXattr(r) => file(&r.file),
        Request::ListXattrs(r) => file(&r.file),
        Request::RemoveXattr(r) => file(&r.file),
        Request::Link(r) => file(&r.file),
        Request::Trim(r) => ino_node(r.ino, nodes),
        Request::OpenHandle(r) => file(&r.file),
        Request::CloseHandle(r) => file(&r.file),
        Request::Lock(r) => file(&r.file),
        Request::TestLock(r) => file(&r.file),
        Request::Unlock(r) => file(&r.file),
        Request::Open(r) => name(&r.directory, &r.name),
        Request::OpenNew(r) => name(&r.directory, &r.name),
        Request::SyncDirectory(r) => file(&r.directory),
        Request::ReadList(r) => file(&r.file),
        Request::WriteList(r) => file(&r.file),
        Request::Append(r) => file(&r.file),
        // Asked of all nodes, or of any: the caller says which.
        Request::GetSpace(_) | Request::Flush(_) | Request::Renew(_) | Request::WasDone(_) => {
            NodeId::fs(0)
        }
    }
}
