//! The directory of an embedded volume on the host.
//!
//! | entry | holds |
//! | --- | --- |
//! | `mdfs.lock` | locked by the one process that uses the volume |
//! | `disks/n0d0` ... | disk files, or links to disks elsewhere |
//! | `coordination/` | the coordination store |
//! | `mdfs.sock` | where the serving process answers |
//! | `cluster` | this is not all of a volume: the directory of one process of a cluster |

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use cluster::coordination::Sled;
use runtime::VolumeId;
use runtime::seed::fresh_seed;

const LOCK: &str = "mdfs.lock";
const DISKS: &str = "disks";
const COORDINATION: &str = "coordination";
const SOCKET: &str = "mdfs.sock";
const CLUSTER: &str = "cluster";

/// A volume's directory, held by this process alone until dropped.
#[derive(Debug)]
pub(crate) struct VolumeDirectory {
    path: PathBuf,
    /// Disk files and links that were made since it is held.
    made: Vec<PathBuf>,
    _lock: DirectoryLock,
}

/// The lock of the directory. It is taken off and not only closed: a program that this process
/// starts at the same time has the open file, too, until it is another program, and would hold the
/// lock for that long.
#[derive(Debug)]
struct DirectoryLock(File);

impl Drop for DirectoryLock {
    fn drop(&mut self) {
        // What is closed next is not locked any more either.
        let _ = self.0.unlock();
    }
}

/// A volume's directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// It is none.
    #[error("there is no volume; make one with `mdfs format`")]
    NoVolume,
    /// It is one already.
    #[error("there is a volume already; it is not overwritten, remove the directory first")]
    Exists,
    /// It belongs to a process of a cluster.
    #[error(
        "it is the directory of a process of a cluster, which does not run: `mdfs cluster serve`"
    )]
    OfCluster,
    /// Another process has it open.
    #[error("the volume is in use by another process; stop that one, or ask it if it serves")]
    InUse,
    /// The host failed.
    #[error("{what} {}: {error}", path.display())]
    Host {
        /// What was tried.
        what: &'static str,
        /// With which file.
        path: PathBuf,
        /// How it failed.
        error: io::Error,
    },
}

fn host(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> DirectoryError {
    let path = path.to_owned();
    move |error| DirectoryError::Host { what, path, error }
}

impl VolumeDirectory {
    /// Makes the directory of a new volume.
    pub(crate) fn create(path: &Path) -> Result<Self, DirectoryError> {
        if path.join(COORDINATION).exists() {
            return Err(DirectoryError::Exists);
        }
        let disks = path.join(DISKS);
        fs::create_dir_all(&disks).map_err(host("cannot make the directory", &disks))?;
        Self::lock(path)
    }

    /// Opens the directory of a volume.
    pub(crate) fn open(path: &Path) -> Result<Self, DirectoryError> {
        if !path.join(DISKS).is_dir() {
            return Err(DirectoryError::NoVolume);
        }
        if path.join(CLUSTER).exists() {
            return Err(DirectoryError::OfCluster);
        }
        Self::lock(path)
    }

    /// Opens the directory of a process of a cluster, which is made if it is not there.
    #[cfg(feature = "cluster")]
    pub(crate) fn of_cluster(path: &Path) -> Result<Self, DirectoryError> {
        let (disks, mark) = (path.join(DISKS), path.join(CLUSTER));
        if disks.is_dir() && !mark.exists() {
            return Err(DirectoryError::Exists);
        }
        // The mark first: half of a volume must never be taken for all of it.
        fs::create_dir_all(path).map_err(host("cannot make the directory", path))?;
        fs::write(&mark, b"").map_err(host("cannot make", &mark))?;
        fs::create_dir_all(&disks).map_err(host("cannot make the directory", &disks))?;
        Self::lock(path)
    }

    fn lock(path: &Path) -> Result<Self, DirectoryError> {
        let name = path.join(LOCK);
        let options = File::options().create(true).truncate(false).write(true).open(&name);
        let lock = options.map_err(host("cannot open", &name))?;
        match lock.try_lock() {
            Ok(()) => {
                Ok(Self { path: path.to_owned(), made: Vec::new(), _lock: DirectoryLock(lock) })
            }
            Err(TryLockError::WouldBlock) => Err(DirectoryError::InUse),
            Err(TryLockError::Error(error)) => Err(host("cannot lock", &name)(error)),
        }
    }

    /// Where disk `disk` of disk node `node` is.
    pub(crate) fn disk(&self, node: u32, disk: u32) -> PathBuf {
        self.path.join(DISKS).join(format!("n{node}d{disk}"))
    }

    /// Makes the file of a disk; or, if the disk is `elsewhere`, a link to it, and the file there
    /// unless it exists. Returns the length of the disk.
    pub(crate) fn make_disk(
        &mut self,
        node: u32,
        disk: u32,
        length: u64,
        elsewhere: Option<&Path>,
    ) -> Result<u64, DirectoryError> {
        let name = self.disk(node, disk);
        if fs::symlink_metadata(&name).is_err() {
            self.made.push(name.clone());
        }
        if let Some(elsewhere) = elsewhere {
            let target = std::path::absolute(elsewhere).map_err(host("cannot find", elsewhere))?;
            std::os::unix::fs::symlink(target, &name).map_err(host("cannot make", &name))?;
        }
        let options = File::options().create(true).truncate(false).write(true).open(&name);
        let file = options.map_err(host("cannot open the disk", &name))?;
        let metadata = file.metadata().map_err(host("cannot look at the disk", &name))?;
        if metadata.file_type().is_block_device() {
            return io::Seek::seek(&mut &file, io::SeekFrom::End(0))
                .map_err(host("cannot look at the disk", &name));
        }
        if metadata.len() == 0 {
            file.set_len(length).map_err(host("cannot lengthen the disk file", &name))?;
            return Ok(length);
        }
        Ok(metadata.len())
    }

    /// Removes what was made, after an attempt that failed; leaves what was there before, and disks
    /// elsewhere.
    pub(crate) fn discard(self) {
        // What cannot be removed is reported by the next attempt.
        for made in &self.made {
            let _ = fs::remove_file(made);
        }
        let _ = fs::remove_dir(self.path.join(DISKS));
        let _ = fs::remove_file(self.path.join(LOCK));
        let _ = fs::remove_dir(&self.path);
    }

    /// Disks by node and disk number, as the names in the directory tell.
    pub(crate) fn disks(&self) -> Result<Vec<(u32, u32)>, DirectoryError> {
        let directory = self.path.join(DISKS);
        let failed = || host("cannot read the directory", &directory);
        let mut found = Vec::new();
        for entry in fs::read_dir(&directory).map_err(failed())? {
            let name = entry.map_err(failed())?.file_name();
            let numbers = name.to_str().and_then(|name| name.strip_prefix('n')?.split_once('d'));
            if let Some((Ok(node), Ok(disk))) = numbers.map(|(n, d)| (n.parse(), d.parse())) {
                found.push((node, disk));
            }
        }
        found.sort_unstable();
        Ok(found)
    }

    /// The coordination store. One that cannot be opened is put aside and a new one made: what it
    /// held can be found on the disks.
    pub(crate) fn coordination(&self) -> Result<Sled, DirectoryError> {
        let path = self.path.join(COORDINATION);
        match Sled::open(&path) {
            Ok(engine) => Ok(engine),
            Err(error) => {
                tracing::warn!(%error, "the coordination store is damaged, a new one is made");
                let aside = path.with_extension(format!("damaged-{:x}", fresh_seed()));
                fs::rename(&path, &aside).map_err(host("cannot put aside", &path))?;
                Sled::open(&path).map_err(|error| {
                    host("cannot make the coordination store", &path)(io::Error::other(error))
                })
            }
        }
    }

    /// The coordination store, if there is one and it can be opened. One that cannot is left alone.
    pub(crate) fn coordination_if_sound(&self) -> Option<Sled> {
        let path = self.path.join(COORDINATION);
        if !path.is_dir() {
            return None;
        }
        match Sled::open(&path) {
            Ok(engine) => Some(engine),
            Err(error) => {
                tracing::warn!(%error, "the coordination store is damaged; the disks are asked");
                None
            }
        }
    }

    /// The socket of the serving process.
    pub(crate) fn socket(&self) -> PathBuf {
        self.path.join(SOCKET)
    }
}

/// The identity of a new volume.
pub(crate) fn new_volume_id() -> VolumeId {
    VolumeId(u128::from(fresh_seed()) << 64 | u128::from(fresh_seed()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::used_underscore_binding, reason = "the lock is only held")]
    fn a_directory_that_was_closed_can_be_opened_while_a_program_is_being_started() {
        let place = tempfile::TempDir::new().unwrap();
        let directory = VolumeDirectory::create(place.path()).unwrap();
        assert!(matches!(VolumeDirectory::open(place.path()), Err(DirectoryError::InUse)));
        // As the program has it that is being started.
        let inherited = directory._lock.0.try_clone().unwrap();
        drop(directory);
        VolumeDirectory::open(place.path()).unwrap();
        drop(inherited);
    }
}
