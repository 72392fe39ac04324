//! The directory of an embedded volume on the host.
//!
//! | entry | holds |
//! | --- | --- |
//! | `mdfs.lock` | locked by the one process that uses the volume |
//! | `disks/n0d0` ... | disk files, or links to disks elsewhere |
//! | `coordination/` | the coordination store |
//! | `mdfs.sock` | where the serving process answers |
//! | `keys/` | certificates of a volume that answers clients of other hosts |
//! | `cluster` | this is not all of a volume: the directory of one process of a cluster |
//!
//! Other users of the host may enter it, to reach the socket, and touch nothing else
//! ([`access`](crate::access)).

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use cluster::coordination::Sled;
use runtime::VolumeId;
use runtime::seed::{fresh_bytes, fresh_seed};

use crate::access::{ExposedFiles, FileClass, file_options, make_directory, restrict};

const LOCK: &str = "mdfs.lock";
pub(crate) const DISKS: &str = "disks";
const COORDINATION: &str = "coordination";
const SOCKET: &str = "mdfs.sock";
const CLUSTER: &str = "cluster";
const KEYS: &str = "keys";

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
    /// Other users can read or change it.
    #[error("{0}")]
    Exposed(ExposedFiles),
    /// This user may not look into it.
    #[error(
        "the volume is not served, and only its owner can open it: start `mdfs serve` as the owner"
    )]
    NotOwner,
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

fn make(path: &Path, class: FileClass) -> Result<(), DirectoryError> {
    make_directory(path, class).map_err(host("cannot make the directory", path))
}

/// Refuses a directory of which other users can read or change more than they should.
fn check_access(path: &Path) -> Result<(), DirectoryError> {
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::PermissionDenied => DirectoryError::NotOwner,
        _ => host("cannot look at the files of", path)(error),
    };
    let mut exposed = ExposedFiles::default();
    let mut inspect = |name: PathBuf, class| exposed.inspect(&name, class).map_err(failed);
    inspect(path.to_owned(), FileClass::Top)?;
    for folder in [DISKS, COORDINATION, KEYS] {
        inspect(path.join(folder), FileClass::Folder)?;
    }
    inspect(path.join(LOCK), FileClass::File)?;
    for entry in fs::read_dir(path.join(DISKS)).map_err(failed)? {
        inspect(entry.map_err(failed)?.path(), FileClass::File)?;
    }
    if exposed.is_empty() { Ok(()) } else { Err(DirectoryError::Exposed(exposed)) }
}

impl VolumeDirectory {
    /// Makes the directory of a new volume.
    pub(crate) fn create(path: &Path) -> Result<Self, DirectoryError> {
        if path.join(COORDINATION).exists() {
            return Err(DirectoryError::Exists);
        }
        make(path, FileClass::Top)?;
        make(&path.join(DISKS), FileClass::Folder)?;
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
        make(path, FileClass::Top)?;
        file_options().open(&mark).map_err(host("cannot make", &mark))?;
        make(&disks, FileClass::Folder)?;
        Self::lock(path)
    }

    fn lock(path: &Path) -> Result<Self, DirectoryError> {
        check_access(path)?;
        let name = path.join(LOCK);
        let lock = file_options().open(&name).map_err(host("cannot open", &name))?;
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
        let file = file_options().open(&name).map_err(host("cannot open the disk", &name))?;
        let metadata = file.metadata().map_err(host("cannot look at the disk", &name))?;
        if metadata.file_type().is_block_device() {
            return io::Seek::seek(&mut &file, io::SeekFrom::End(0))
                .map_err(host("cannot look at the disk", &name));
        }
        if elsewhere.is_some() {
            restrict(&file).map_err(host("cannot take over the disk file", &name))?;
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
        make(&path, FileClass::Folder)?;
        match Sled::open(&path) {
            Ok(engine) => Ok(engine),
            Err(error) => {
                tracing::warn!(%error, "the coordination store is damaged, a new one is made");
                let aside = path.with_extension(format!("damaged-{:x}", fresh_seed()));
                fs::rename(&path, &aside).map_err(host("cannot put aside", &path))?;
                make(&path, FileClass::Folder)?;
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

    /// The name by which clients ask for the volume: the last part of its path.
    pub(crate) fn name(&self) -> String {
        let path = self.path.canonicalize().unwrap_or_else(|_| self.path.clone());
        path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
    }

    /// The socket of the serving process.
    pub(crate) fn socket(&self) -> PathBuf {
        self.path.join(SOCKET)
    }
}

/// The identity of a new volume.
pub(crate) fn new_volume_id() -> VolumeId {
    VolumeId(u128::from_ne_bytes(fresh_bytes()))
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_volume_that_others_can_read_is_refused_with_the_command_that_mends_it() {
        let place = tempfile::TempDir::new().unwrap();
        let path = place.path().join("v");
        let mut made = VolumeDirectory::create(&path).unwrap();
        made.make_disk(0, 0, 4096, None).unwrap();
        let elsewhere = place.path().join("elsewhere");
        fs::write(&elsewhere, b"").unwrap();
        set_mode(&elsewhere, 0o666);
        made.make_disk(0, 1, 4096, Some(&elsewhere)).unwrap();
        made.coordination().unwrap();
        drop(made);
        for (name, mode) in [
            ("", 0o711),
            ("disks", 0o700),
            ("coordination", 0o700),
            ("disks/n0d0", 0o600),
            ("../elsewhere", 0o600),
            ("mdfs.lock", 0o600),
        ] {
            let name = path.join(name);
            let found = fs::metadata(&name).unwrap().permissions().mode() & 0o777;
            assert_eq!(found, mode, "{}", name.display());
            set_mode(&name, mode | 0o044);
            let refused = VolumeDirectory::open(&path).unwrap_err().to_string();
            let command = format!("chmod {mode:o} {}", path.display());
            assert!(refused.contains(&command), "{refused}");
            set_mode(&name, mode);
            drop(VolumeDirectory::open(&path).unwrap());
        }
    }

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
