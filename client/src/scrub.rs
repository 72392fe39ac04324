//! Comparing what a volume in use has on its disks with its checksums, node by node and a part at a
//! time: who asks decides how fast.

use std::collections::{BTreeMap, BTreeSet};

use fileio::client::send_to_with_retries;
use fileio::protocol::{Kind, ROOT, Scrub, ScrubPart};
use runtime::{NodeId, Spawn};

use crate::error::Error;
use crate::file_system::FileSystem;

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScrubExtent {
    /// The data of files, too.
    pub data: bool,
    /// What has a good copy is written anew.
    pub repair: bool,
}

/// Scrubs a volume in use.
#[derive(Debug)]
pub struct VolumeScrub<'a, S>(&'a FileSystem<S>);

impl<'a, S: Spawn> VolumeScrub<'a, S> {
    /// Of this volume.
    pub fn of(file_system: &'a FileSystem<S>) -> Self {
        Self(file_system)
    }

    /// How many nodes the volume has.
    pub fn nodes(&self) -> u32 {
        self.0.machine().fs_nodes()
    }

    /// Lets `node` compare a part of what it has: from its start if `after` is empty, else from
    /// [`ScrubPart::next`]. Root and the owner of the root directory may.
    pub async fn part(
        &self,
        node: u32,
        after: Vec<u8>,
        extent: ScrubExtent,
    ) -> Result<ScrubPart, Error> {
        let ScrubExtent { data, repair } = extent;
        let call = Scrub { who: self.0.session.who(), root: ROOT, after, data, repair };
        let scrubbed = send_to_with_retries(self.0.machine(), NodeId::fs(node), call).await;
        scrubbed.map_err(Error::of("scrub", b"/"))
    }

    /// Paths of these inodes, found by listing all directories; those that have none, or are in
    /// directories that cannot be listed, are left out.
    pub async fn paths_of(&self, inodes: &BTreeSet<u64>) -> BTreeMap<u64, Vec<Vec<u8>>> {
        let mut found: BTreeMap<u64, Vec<Vec<u8>>> = BTreeMap::new();
        let mut todo = vec![Vec::new()];
        while let Some(path) = todo.pop() {
            let listed = match self.0.read_dir(if path.is_empty() { b"/" } else { &path[..] }).await
            {
                Ok(directory) => directory.rest().await,
                Err(error) => Err(error),
            };
            for entry in listed.unwrap_or_default() {
                let path = [&path[..], b"/", entry.name.as_bytes()].concat();
                if inodes.contains(&entry.handle.ino) {
                    found.entry(entry.handle.ino).or_default().push(path.clone());
                }
                if entry.kind == (Kind::Directory {}) {
                    todo.push(path);
                }
            }
        }
        found
    }
}
