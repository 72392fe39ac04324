//! The directory of an embedded volume on the host.
//!
//! | entry | holds |
//! | --- | --- |
//! | `mdfs.lock` | locked by the one process that uses the volume |
//! | `adding.lock` | locked by a command that adds disks |
//! | `disks/n0d0` ... | disk files, or links to disks elsewhere |
//! | `coordination/` | the coordination store |
//! | `mdfs.sock` | where the serving process answers |
//! | `keys/` | certificates of a volume that answers clients of other hosts |
//! | `cluster` | this is not all of a volume: the directory of one process of a cluster |
//! | `unfinished` | the volume is being made; the ids of the volumes that were begun here |
//!
//! Other users of the host may enter it, to reach the socket, and touch nothing else
//! ([`access`](crate::access)).

use std::fs::{self, File, TryLockError};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use blockio::{DiskName, Superblock};
use cluster::coordination::{Coordination, CoordinationError, Sled};
use futures::executor::block_on;
use runtime::VolumeId;
use runtime::seed::{fresh_bytes, fresh_seed};
use rustix::fs::SeekFrom;
use rustix::io::Errno;

use crate::access::{ExposedFiles, FileClass, file_options, make_directory, restrict};
use crate::host_disk::{BadDisk, HostDisk, inspect, is_among_devices};
use crate::record::{FORMAT_EPOCH, VOLUME_KEY};
use crate::superblocks::{DISKS, formatted_disks, read_superblock};

const LOCK: &str = "mdfs.lock";
const COORDINATION: &str = "coordination";
const SOCKET: &str = "mdfs.sock";
const CLUSTER: &str = "cluster";
const KEYS: &str = "keys";
const UNFINISHED: &str = "unfinished";

/// A volume's directory, held by this process alone until dropped.
#[derive(Debug)]
pub(crate) struct VolumeDirectory {
    path: PathBuf,
    /// Disk files and links that were made since it is held.
    made: Vec<PathBuf>,
    /// Volumes that were begun here before, and not finished.
    begun: Vec<VolumeId>,
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
    #[error("there is a volume already; it is not overwritten, choose another directory")]
    Exists,
    /// A volume that was not made to its end.
    #[error(
        "the volume was not made to its end, `mdfs format` was stopped: it holds nothing yet; give \
         the `mdfs format` command again"
    )]
    Unfinished,
    /// A volume that may have lost its record.
    #[error(
        "disk {disk} holds volume {1}, which is not overwritten: `mdfs serve` goes on with it, also if \
         its record is lost",
        disk = .0.display()
    )]
    HoldsVolume(PathBuf, VolumeId),
    /// It cannot be made there.
    #[error(
        "a volume is a directory, and none is made under /dev; choose a directory, and give devices \
         as --disk"
    )]
    AmongDevices,
    /// There is something else.
    #[error("it is no directory; choose a directory for the volume, and give disks as --disk")]
    NoDirectory,
    /// A disk cannot be used.
    #[error(transparent)]
    Disk(#[from] BadDisk),
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

/// Whose access modes are checked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CheckedDisks {
    All,
    /// Those of a volume that is not finished are not its own yet.
    None,
}

/// Refuses a directory of which other users can read or change more than they should.
fn check_access(path: &Path, disks: CheckedDisks) -> Result<(), DirectoryError> {
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
    if disks == CheckedDisks::All {
        for entry in fs::read_dir(path.join(DISKS)).map_err(failed)? {
            let disk = entry.map_err(failed)?.path();
            // One that has failed is found out when it is opened, if it is still in use.
            if !has_failed(&disk) {
                inspect(disk, FileClass::File)?;
            }
        }
    }
    if exposed.is_empty() { Ok(()) } else { Err(DirectoryError::Exposed(exposed)) }
}

/// Can a disk not even be looked at, since its device or its server has gone?
fn has_failed(disk: &Path) -> bool {
    let errno = fs::metadata(disk).err().and_then(|error| Errno::from_io_error(&error));
    matches!(errno, Some(Errno::NOTCONN | Errno::IO | Errno::NXIO | Errno::NODEV | Errno::STALE))
}

/// The names in `directory` survive a crash of the host.
fn sync_names(directory: &Path) -> Result<(), DirectoryError> {
    let opened = File::options().read(true).open(directory);
    let synced = opened.and_then(|directory| directory.sync_all());
    synced.map_err(host("cannot write", directory))
}

/// Is it the directory of one process of a cluster?
pub(crate) fn is_of_cluster(path: &Path) -> bool {
    path.join(CLUSTER).exists()
}

impl VolumeDirectory {
    /// Makes the directory of the new volume `volume`. Until [`finish`](Self::finish) it is one
    /// that does not open.
    pub(crate) fn create(path: &Path, volume: VolumeId) -> Result<Self, DirectoryError> {
        if !path.exists() && is_among_devices(path) {
            return Err(DirectoryError::AmongDevices);
        }
        if path.exists() && !path.is_dir() {
            return Err(DirectoryError::NoDirectory);
        }
        let is_unfinished = || path.join(UNFINISHED).exists();
        if is_of_cluster(path) || (path.join(COORDINATION).exists() && !is_unfinished()) {
            return Err(DirectoryError::Exists);
        }
        make(path, FileClass::Top)?;
        let mut directory = Self::lock(path, CheckedDisks::None)?;
        if is_unfinished() {
            if directory.has_record() {
                return Err(DirectoryError::Exists);
            }
            directory.begun = directory.read_mark()?;
        }
        let mut disks = formatted_disks(path).into_iter();
        if let Some(disk) = disks.find(|disk| !directory.is_of_begun(&disk.superblock)) {
            return Err(DirectoryError::HoldsVolume(disk.path, disk.superblock.volume()));
        }
        // Before anything that could be taken for a volume.
        directory.write_mark(volume)?;
        make(&path.join(DISKS), FileClass::Folder)?;
        directory.remove_leftovers()?;
        Ok(directory)
    }

    /// Opens the directory of a volume.
    pub(crate) fn open(path: &Path) -> Result<Self, DirectoryError> {
        if !path.join(DISKS).is_dir() {
            let is_unfinished = path.join(UNFINISHED).exists();
            return Err(if is_unfinished {
                DirectoryError::Unfinished
            } else {
                DirectoryError::NoVolume
            });
        }
        if is_of_cluster(path) {
            return Err(DirectoryError::OfCluster);
        }
        let is_marked = path.join(UNFINISHED).exists();
        let disks = if is_marked { CheckedDisks::None } else { CheckedDisks::All };
        let directory = Self::lock(path, disks)?;
        if directory.mark().exists() && !directory.has_record() {
            return Err(DirectoryError::Unfinished);
        }
        if is_marked {
            check_access(path, CheckedDisks::All)?;
        }
        Ok(directory)
    }

    /// Volumes that were begun here before, and not finished. Disks that say that they are theirs
    /// hold nothing.
    pub(crate) fn begun(&self) -> &[VolumeId] {
        &self.begun
    }

    /// Is the disk with this superblock one of a volume that was begun here, and never opened?
    fn is_of_begun(&self, found: &Superblock) -> bool {
        found.epoch <= FORMAT_EPOCH && self.begun.contains(&found.volume())
    }

    /// The record makes it a volume.
    fn has_record(&self) -> bool {
        let engine = self.coordination_if_sound();
        engine.is_some_and(|engine| block_on(engine.get(VOLUME_KEY)).is_ok_and(|it| it.is_some()))
    }

    fn mark(&self) -> PathBuf {
        self.path.join(UNFINISHED)
    }

    fn read_mark(&self) -> Result<Vec<VolumeId>, DirectoryError> {
        let mark = self.mark();
        let text = fs::read_to_string(&mark).map_err(host("cannot read", &mark))?;
        let ids = text.lines().filter_map(|line| u128::from_str_radix(line, 16).ok());
        Ok(ids.map(VolumeId).collect())
    }

    /// One more volume is begun.
    fn write_mark(&self, volume: VolumeId) -> Result<(), DirectoryError> {
        let mark = self.mark();
        let failed = || host("cannot write", &mark);
        let mut file = file_options().append(true).open(&mark).map_err(failed())?;
        writeln!(file, "{volume}").map_err(failed())?;
        file.sync_all().map_err(failed())?;
        sync_names(&self.path)
    }

    /// The volume has its record: it may be used.
    pub(crate) fn finish(&mut self) -> Result<(), DirectoryError> {
        let mark = self.mark();
        if !mark.exists() {
            return Ok(());
        }
        sync_names(&self.path.join(DISKS))?;
        fs::remove_file(&mark).map_err(host("cannot remove", &mark))?;
        sync_names(&self.path)
    }

    /// Removes disk files and links of volumes that were begun here; disks elsewhere stay, and so
    /// do files of which it is not certain.
    fn remove_leftovers(&self) -> Result<(), DirectoryError> {
        if self.begun.is_empty() {
            return Ok(());
        }
        for disk in self.disks()? {
            let name = self.disk(disk);
            let metadata = fs::symlink_metadata(&name).map_err(host("cannot look at", &name))?;
            let is_theirs = metadata.is_symlink()
                || match read_superblock(&name) {
                    Ok(None) => is_blank(&name),
                    Ok(Some(found)) => self.is_of_begun(&found),
                    Err(_) => false,
                };
            if is_theirs {
                fs::remove_file(&name).map_err(host("cannot remove", &name))?;
            }
        }
        Ok(())
    }

    /// Opens the directory of a volume, or of a process of a cluster.
    pub(crate) fn open_any(path: &Path) -> Result<Self, DirectoryError> {
        if !path.join(DISKS).is_dir() {
            return Err(DirectoryError::NoVolume);
        }
        Self::lock(path, CheckedDisks::All)
    }

    /// Opens the directory of a process of a cluster, which is made if it is not there.
    #[cfg(feature = "cluster")]
    pub(crate) fn of_cluster(path: &Path) -> Result<Self, DirectoryError> {
        let (disks, mark) = (path.join(DISKS), path.join(CLUSTER));
        // Disks alone may have been put there for the process; they are looked at before they are
        // formatted.
        if !mark.exists() && [LOCK, COORDINATION].iter().any(|name| path.join(name).exists()) {
            return Err(DirectoryError::Exists);
        }
        // The mark first: half of a volume must never be taken for all of it.
        make(path, FileClass::Top)?;
        file_options().open(&mark).map_err(host("cannot make", &mark))?;
        make(&disks, FileClass::Folder)?;
        Self::lock(path, CheckedDisks::All)
    }

    fn lock(path: &Path, disks: CheckedDisks) -> Result<Self, DirectoryError> {
        check_access(path, disks)?;
        let name = path.join(LOCK);
        let lock = file_options().open(&name).map_err(host("cannot open", &name))?;
        match lock.try_lock() {
            Ok(()) => {
                let (path, made, begun) = (path.to_owned(), Vec::new(), Vec::new());
                Ok(Self { path, made, begun, _lock: DirectoryLock(lock) })
            }
            Err(TryLockError::WouldBlock) => Err(DirectoryError::InUse),
            Err(TryLockError::Error(error)) => Err(host("cannot lock", &name)(error)),
        }
    }

    /// Where a disk is.
    pub(crate) fn disk(&self, name: DiskName) -> PathBuf {
        self.path.join(DISKS).join(name.to_string())
    }

    /// Makes the file of a disk; or, if the disk is `elsewhere`, a link to it, and the file there
    /// unless it exists. Returns what the disk is, with its length.
    pub(crate) fn make_disk(
        &mut self,
        disk: DiskName,
        length: u64,
        elsewhere: Option<&Path>,
    ) -> Result<(HostDisk, u64), DirectoryError> {
        let name = self.disk(disk);
        if let Some(elsewhere) = elsewhere {
            let target = std::path::absolute(elsewhere).map_err(host("cannot find", elsewhere))?;
            inspect(&target)?;
            std::os::unix::fs::symlink(&target, &name).map_err(host("cannot make", &name))?;
            self.made.push(name.clone());
            return self.make_file(&target, length);
        }
        self.make_file(&name, length)
    }

    /// Makes the file of a disk, unless the disk is there. A file without a byte gets its length.
    fn make_file(&mut self, path: &Path, length: u64) -> Result<(HostDisk, u64), DirectoryError> {
        let found = inspect(path)?;
        match found.length {
            Some(there) if there > 0 || found.is_device => return Ok((found, there)),
            Some(_) => {}
            None => self.made.push(path.to_owned()),
        }
        let file = file_options().create_new(found.length.is_none()).open(path);
        let file = file.map_err(host("cannot open the disk", path))?;
        file.set_len(length).map_err(host("cannot lengthen the disk file", path))?;
        Ok((found, length))
    }

    /// Disk files that are elsewhere are the volume's alone from now on.
    pub(crate) fn take_over(paths: &[PathBuf]) -> Result<(), DirectoryError> {
        for path in paths {
            let failed = || host("cannot take over the disk file", path);
            let file = File::options().write(true).open(path).map_err(failed())?;
            if file.metadata().map_err(failed())?.is_file() {
                restrict(&file).map_err(failed())?;
            }
        }
        Ok(())
    }

    /// Removes what was made, after an attempt that failed; leaves what was there before. If disks
    /// elsewhere may have been written, or were before, what says that they hold nothing stays.
    pub(crate) fn discard(self, has_written_elsewhere: bool) {
        // What cannot be removed is reported by the next attempt.
        for made in &self.made {
            let _ = fs::remove_file(made);
        }
        if !has_written_elsewhere && self.begun.is_empty() {
            let _ = fs::remove_file(self.mark());
        }
        let _ = fs::remove_dir(self.path.join(DISKS));
        if self.mark().exists() {
            return;
        }
        let _ = fs::remove_file(self.path.join(LOCK));
        let _ = fs::remove_dir(&self.path);
    }

    /// Its disks, as the names in the directory tell.
    pub(crate) fn disks(&self) -> Result<Vec<DiskName>, DirectoryError> {
        let directory = self.path.join(DISKS);
        let failed = || host("cannot read the directory", &directory);
        let mut found = Vec::new();
        for entry in fs::read_dir(&directory).map_err(failed())? {
            let name = entry.map_err(failed())?.file_name();
            let numbers = name.to_str().and_then(|name| name.strip_prefix('n')?.split_once('d'));
            if let Some((Ok(disk_node), Ok(disk))) = numbers.map(|(n, d)| (n.parse(), d.parse())) {
                found.push(DiskName { disk_node, disk });
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
            Err(full @ CoordinationError::HostFull(_)) => {
                Err(host("cannot open the coordination store", &path)(io::Error::other(full)))
            }
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

    /// Opens the coordination store while the volume is in use.
    pub(crate) fn engine(
        &self,
    ) -> impl Fn() -> Result<Rc<dyn Coordination>, CoordinationError> + Clone + Send + 'static {
        let path = self.path.join(COORDINATION);
        move || Ok(Rc::new(Sled::open(&path)?) as Rc<dyn Coordination>)
    }

    /// Where each disk is, for those who have no directory.
    pub(crate) fn path_of_disks(&self) -> impl Fn(DiskName) -> String + Send + Sync + 'static {
        let disks = self.path.join(DISKS);
        move |name| disks.join(name.to_string()).to_string_lossy().into_owned()
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

/// The volume whose own directory `path` is, or is in, and the path from there.
pub fn own_directory(path: &Path) -> Option<(PathBuf, PathBuf)> {
    let is_one = |at: &&Path| at.join(LOCK).is_file() && at.join(DISKS).is_dir();
    let around = |path: &Path| {
        let mut places = path.ancestors().filter(|at| !at.as_os_str().is_empty());
        let volume = places.find(is_one)?;
        // Without a slash at the end.
        let spelled = volume.components().collect();
        Some((spelled, path.strip_prefix(volume).ok()?.to_owned()))
    };
    if let Some(found) = around(path) {
        return Some(found);
    }
    // By another way: links, or from within.
    let path = std::path::absolute(path).ok()?;
    let real = path.ancestors().find_map(|at| {
        let real = at.canonicalize().ok()?;
        Some(real.join(path.strip_prefix(at).ok()?))
    });
    around(&real?)
}

/// Nothing but zeros, as a file that was only lengthened?
fn is_blank(path: &Path) -> bool {
    let file = File::options().read(true).open(path);
    file.is_ok_and(|file| matches!(rustix::fs::seek(&file, SeekFrom::Data(0)), Err(Errno::NXIO)))
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
        let mut made = VolumeDirectory::create(&path, VolumeId(1)).unwrap();
        made.make_disk(DiskName { disk_node: 0, disk: 0 }, 4096, None).unwrap();
        let elsewhere = place.path().join("elsewhere");
        fs::write(&elsewhere, b"").unwrap();
        set_mode(&elsewhere, 0o666);
        made.make_disk(DiskName { disk_node: 0, disk: 1 }, 4096, Some(&elsewhere)).unwrap();
        made.coordination().unwrap();
        VolumeDirectory::take_over(&[made.disk(DiskName { disk_node: 0, disk: 1 })]).unwrap();
        made.finish().unwrap();
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
        let mut directory = VolumeDirectory::create(place.path(), VolumeId(1)).unwrap();
        directory.finish().unwrap();
        assert!(matches!(VolumeDirectory::open(place.path()), Err(DirectoryError::InUse)));
        // As the program has it that is being started.
        let inherited = directory._lock.0.try_clone().unwrap();
        drop(directory);
        VolumeDirectory::open(place.path()).unwrap();
        drop(inherited);
    }
}
