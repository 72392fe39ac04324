//! The crate `nfsserve`, as a process of its own: its protocol code before a file system that is as
//! simple as can be, tables in memory. What it shows is what the crate costs, not what its users'
//! file systems do.
//!
//! The crate answers each WRITE as `FILE_SYNC`, whatever the file system does, and has no COMMIT.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::sync::{Mutex, MutexGuard};

use ::nfsserve::nfs::{
    fattr3, fileid3, filename3, ftype3, nfspath3, nfsstat3, nfstime3, sattr3, set_size3,
};
use ::nfsserve::tcp::{NFSTcp as _, NFSTcpListener};
use ::nfsserve::vfs::{DirEntry, NFSFileSystem, ReadDirResult, VFSCapabilities};
use async_trait::async_trait;

/// Tells this program to be that server.
pub(crate) const SERVE: &str = "serve-nfsserve";

const ROOT: fileid3 = 1;

/// Serves until the input ends, with a thread for each core, as the crate's own examples do; the
/// port is the first line.
pub(crate) fn serve() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.expect("the machine has threads");
    let listener = runtime.block_on(NFSTcpListener::bind("127.0.0.1:0", MemoryFileSystem::new()));
    let listener = listener.expect("a free port");
    println!("127.0.0.1:{}", listener.get_listen_port());
    std::io::stdout().flush().expect("the output is a pipe");
    runtime.spawn(async move { listener.handle_forever().await });
    let _ = std::io::stdin().read(&mut [0]);
    runtime.shutdown_background();
}

enum ObjectContent {
    File(Vec<u8>),
    /// By name, and by number for listings.
    Directory(BTreeMap<Vec<u8>, fileid3>, BTreeMap<fileid3, Vec<u8>>),
}

struct Object {
    attributes: fattr3,
    content: ObjectContent,
}

/// Files in memory.
struct MemoryFileSystem {
    nodes: Mutex<BTreeMap<fileid3, Object>>,
}

impl MemoryFileSystem {
    fn new() -> Self {
        let root = ObjectContent::Directory(BTreeMap::new(), BTreeMap::new());
        let attributes = attributes(ROOT, ftype3::NF3DIR, 0o755);
        let nodes = BTreeMap::from([(ROOT, Object { attributes, content: root })]);
        Self { nodes: Mutex::new(nodes) }
    }

    fn nodes(&self) -> MutexGuard<'_, BTreeMap<fileid3, Object>> {
        self.nodes.lock().expect("no thread panicked")
    }

    fn make(
        &self,
        directory: fileid3,
        name: &filename3,
        content: ObjectContent,
    ) -> Result<(fileid3, fattr3), nfsstat3> {
        let mut nodes = self.nodes();
        let id = nodes.last_key_value().map_or(ROOT, |(last, _)| last + 1);
        let above = nodes.get_mut(&directory).ok_or(nfsstat3::NFS3ERR_STALE)?;
        let ObjectContent::Directory(names, entries) = &mut above.content else {
            return Err(nfsstat3::NFS3ERR_NOTDIR);
        };
        if let Some(found) = names.get(&name.0) {
            let found = *found;
            let node = nodes.get(&found).ok_or(nfsstat3::NFS3ERR_STALE)?;
            return Ok((found, node.attributes));
        }
        names.insert(name.0.clone(), id);
        entries.insert(id, name.0.clone());
        let (kind, mode) = match &content {
            ObjectContent::File(_) => (ftype3::NF3REG, 0o644),
            ObjectContent::Directory(..) => (ftype3::NF3DIR, 0o755),
        };
        let attributes = attributes(id, kind, mode);
        nodes.insert(id, Object { attributes, content });
        Ok((id, attributes))
    }
}

fn attributes(fileid: fileid3, ftype: ftype3, mode: u32) -> fattr3 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now = now.unwrap_or_default();
    let time = nfstime3 { seconds: now.as_secs() as u32, nseconds: now.subsec_nanos() };
    let nlink = 1;
    fattr3 {
        ftype,
        mode,
        nlink,
        fileid,
        atime: time,
        mtime: time,
        ctime: time,
        ..fattr3::default()
    }
}

#[async_trait]
impl NFSFileSystem for MemoryFileSystem {
    fn capabilities(&self) -> VFSCapabilities {
        VFSCapabilities::ReadWrite
    }

    fn root_dir(&self) -> fileid3 {
        ROOT
    }

    async fn lookup(&self, directory: fileid3, name: &filename3) -> Result<fileid3, nfsstat3> {
        match self.nodes().get(&directory).map(|node| &node.content) {
            Some(ObjectContent::Directory(names, _)) => {
                names.get(&name.0).copied().ok_or(nfsstat3::NFS3ERR_NOENT)
            }
            _ => Err(nfsstat3::NFS3ERR_NOTDIR),
        }
    }

    async fn getattr(&self, id: fileid3) -> Result<fattr3, nfsstat3> {
        self.nodes().get(&id).map(|node| node.attributes).ok_or(nfsstat3::NFS3ERR_STALE)
    }

    async fn setattr(&self, id: fileid3, new: sattr3) -> Result<fattr3, nfsstat3> {
        let mut nodes = self.nodes();
        let node = nodes.get_mut(&id).ok_or(nfsstat3::NFS3ERR_STALE)?;
        if let (set_size3::size(size), ObjectContent::File(bytes)) = (new.size, &mut node.content) {
            bytes.resize(size as usize, 0);
            (node.attributes.size, node.attributes.used) = (size, size);
        }
        Ok(node.attributes)
    }

    async fn read(&self, id: fileid3, at: u64, count: u32) -> Result<(Vec<u8>, bool), nfsstat3> {
        let nodes = self.nodes();
        let Some(ObjectContent::File(bytes)) = nodes.get(&id).map(|node| &node.content) else {
            return Err(nfsstat3::NFS3ERR_INVAL);
        };
        let start = bytes.len().min(at as usize);
        let end = bytes.len().min(start + count as usize);
        Ok((bytes[start..end].to_vec(), end == bytes.len()))
    }

    async fn write(&self, id: fileid3, at: u64, data: &[u8]) -> Result<fattr3, nfsstat3> {
        let mut nodes = self.nodes();
        let node = nodes.get_mut(&id).ok_or(nfsstat3::NFS3ERR_STALE)?;
        let ObjectContent::File(bytes) = &mut node.content else {
            return Err(nfsstat3::NFS3ERR_INVAL);
        };
        let (start, end) = (at as usize, at as usize + data.len());
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        bytes[start..end].copy_from_slice(data);
        (node.attributes.size, node.attributes.used) = (bytes.len() as u64, bytes.len() as u64);
        Ok(node.attributes)
    }

    async fn create(
        &self,
        directory: fileid3,
        name: &filename3,
        _new: sattr3,
    ) -> Result<(fileid3, fattr3), nfsstat3> {
        self.make(directory, name, ObjectContent::File(Vec::new()))
    }

    async fn create_exclusive(&self, _: fileid3, _: &filename3) -> Result<fileid3, nfsstat3> {
        Err(nfsstat3::NFS3ERR_NOTSUPP)
    }

    async fn mkdir(
        &self,
        directory: fileid3,
        name: &filename3,
    ) -> Result<(fileid3, fattr3), nfsstat3> {
        self.make(directory, name, ObjectContent::Directory(BTreeMap::new(), BTreeMap::new()))
    }

    async fn remove(&self, directory: fileid3, name: &filename3) -> Result<(), nfsstat3> {
        let mut nodes = self.nodes();
        let above = nodes.get_mut(&directory).ok_or(nfsstat3::NFS3ERR_STALE)?;
        let ObjectContent::Directory(names, entries) = &mut above.content else {
            return Err(nfsstat3::NFS3ERR_NOTDIR);
        };
        let id = names.remove(&name.0).ok_or(nfsstat3::NFS3ERR_NOENT)?;
        entries.remove(&id);
        nodes.remove(&id);
        Ok(())
    }

    async fn rename(
        &self,
        _: fileid3,
        _: &filename3,
        _: fileid3,
        _: &filename3,
    ) -> Result<(), nfsstat3> {
        Err(nfsstat3::NFS3ERR_NOTSUPP)
    }

    async fn readdir(
        &self,
        directory: fileid3,
        start_after: fileid3,
        max_entries: usize,
    ) -> Result<ReadDirResult, nfsstat3> {
        let nodes = self.nodes();
        let Some(ObjectContent::Directory(_, entries)) =
            nodes.get(&directory).map(|node| &node.content)
        else {
            return Err(nfsstat3::NFS3ERR_NOTDIR);
        };
        let mut rest = entries.range(start_after + 1..);
        let entry = |(id, name): (&fileid3, &Vec<u8>)| {
            let attr = nodes.get(id)?.attributes;
            Some(DirEntry { fileid: *id, name: name.clone().into(), attr })
        };
        let entries = rest.by_ref().take(max_entries).filter_map(entry).collect();
        Ok(ReadDirResult { entries, end: rest.next().is_none() })
    }

    async fn symlink(
        &self,
        _: fileid3,
        _: &filename3,
        _: &nfspath3,
        _: &sattr3,
    ) -> Result<(fileid3, fattr3), nfsstat3> {
        Err(nfsstat3::NFS3ERR_NOTSUPP)
    }

    async fn readlink(&self, _: fileid3) -> Result<nfspath3, nfsstat3> {
        Err(nfsstat3::NFS3ERR_NOTSUPP)
    }
}
