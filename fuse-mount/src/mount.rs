//! Mounting, unmounting, and clearing the mount of a killed process.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use fuser::{BackgroundSession, Config, MountOption, Session, SessionACL};
use futures::channel::oneshot;
use runtime::Spawn;
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

use crate::kernel::FuseFilesystem;
use crate::worker::Worker;

/// Threads that read requests from the kernel: one copies the bytes of a write while another reads
/// the next request.
const READING_THREADS: usize = 2;
/// The read-ahead of the kernel in KiB, where it can be set.
const READ_AHEAD_KIB: u32 = 4096;

/// How a volume is mounted.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// The source that `mount` and `df` show.
    pub source: String,
    /// The mount is read-only.
    pub read_only: bool,
    /// Users other than the one who mounts may use it.
    pub allow_other: bool,
    /// How long the kernel may cache names and attributes. A change by another client may be seen
    /// this much later.
    pub cache: Duration,
    /// Sequential writes are collected for some 100 ms, or until a program here asks for the file,
    /// and other clients see them then. Otherwise each write is sent before it is answered.
    pub write_behind: bool,
}

/// Why a volume is not mounted or unmounted, with the remedy.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// There is no `/dev/fuse`.
    #[error("this system has no /dev/fuse; load it as root: modprobe fuse")]
    NoDevice,
    /// The mount point cannot be used.
    #[error("the mount point cannot be used: {0}; make an empty directory and name that")]
    MountPoint(#[source] io::Error),
    /// The mount point is not a directory.
    #[error("the mount point is not a directory; make an empty directory and name that")]
    NotDirectory,
    /// The mount of a killed process cannot be cleared.
    #[error(
        "the mount of a killed process is still there and cannot be cleared: {cause}; run as root: \
         umount -l {}",
        point.display()
    )]
    Stale {
        /// The mount point.
        point: PathBuf,
        /// Why.
        #[source]
        cause: io::Error,
    },
    /// The kernel or `fusermount3` refuses.
    #[error(
        "{0}; mount as root, or install fusermount3 (Debian: fuse3) and, for --allow-other, set \
         user_allow_other in /etc/fuse.conf"
    )]
    Refused(#[source] io::Error),
    /// Files are open on it.
    #[error("it is in use; close the open files (fuser -vm lists them), or: umount -l")]
    InUse,
    /// It cannot be unmounted.
    #[error("it cannot be unmounted: {0}; try as root: umount -l")]
    Unmount(#[source] io::Error),
    /// The threads that read from the kernel cannot be started.
    #[error("no thread can be started: {0}; check the limits of this process")]
    Threads(#[source] io::Error),
}

/// Begins [`FuseMount::settle`]; the receiver hears when it is done.
type Settler = Box<dyn Fn() -> mpsc::Receiver<()> + Send + Sync>;

/// A mounted volume. Dropping it unmounts it if it is unused; see [`leave`](Self::leave).
pub struct FuseMount {
    session: BackgroundSession,
    point: PathBuf,
    settle: Settler,
}

impl fmt::Debug for FuseMount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FuseMount").field("point", &self.point).finish_non_exhaustive()
    }
}

/// Cancelled when the volume is unmounted, the nodes have received all closes, and what a server
/// has of the changes is durable.
pub type MountEnded = oneshot::Receiver<Infallible>;

impl FuseMount {
    /// Mounts the volume of `workers`, at least one. Worker `i` should be on the thread of node `i`
    /// of `fs_nodes`, if these threads are in this process.
    pub fn start<S: Spawn>(
        point: &Path,
        options: &MountOptions,
        workers: Vec<Worker<S>>,
        fs_nodes: u32,
    ) -> Result<(Self, MountEnded), MountError> {
        if !Path::new("/dev/fuse").exists() {
            return Err(MountError::NoDevice);
        }
        let point = point.canonicalize().map_err(MountError::MountPoint)?;
        if !point.is_dir() {
            return Err(MountError::NotDirectory);
        }
        let (sender, ended) = oneshot::channel();
        let inodes = workers[0].inodes().clone();
        let collecting = Arc::new(AtomicBool::new(options.write_behind));
        let settle = settler(&workers[0], collecting.clone());
        let kernel = FuseFilesystem::new(workers, fs_nodes, options.cache, collecting, sender);
        let session =
            Session::new(kernel, &point, &config(options)).map_err(MountError::Refused)?;
        inodes.set_notifier(session.notifier());
        let session = session.spawn().map_err(MountError::Threads)?;
        set_read_ahead(&point);
        Ok((Self { session, point, settle }, ended))
    }

    /// Unmounts it, if no file is open on it. With `even_in_use` it is detached immediately, and
    /// ends when the last open file is closed.
    pub fn unmount(&self, even_in_use: bool) -> Result<(), MountError> {
        let flags = if even_in_use { UnmountFlags::DETACH } else { UnmountFlags::empty() };
        match unmount(&self.point, flags) {
            // Not mounted: unmounted by another process.
            Ok(()) | Err(Errno::INVAL) => Ok(()),
            Err(Errno::BUSY) => Err(MountError::InUse),
            Err(Errno::PERM) => unmount_as_user(&self.point, even_in_use),
            Err(error) => Err(MountError::Unmount(error.into())),
        }
    }

    /// Sends all writes that were collected, and collects no more. Before the process ends though
    /// programs use the mount. False if it takes longer than `within`.
    pub fn settle(&self, within: Duration) -> bool {
        (self.settle)().recv_timeout(within).is_ok()
    }

    /// Drops it without unmounting: it has ended, or ends with this process.
    pub fn leave(self) {
        // The session would unmount any later mount at the same point.
        std::mem::forget(self.session);
    }
}

fn settler<S: Spawn>(worker: &Worker<S>, collecting: Arc<AtomicBool>) -> Settler {
    let worker = worker.clone();
    Box::new(move || {
        collecting.store(false, Relaxed);
        let (sender, settled) = mpsc::channel();
        worker.submit(move |operations| async move {
            operations.volume.send_all_collected().await;
            let _ = sender.send(());
        });
        settled
    })
}

/// Clears the mount of a killed process at `point`, which has no server. True if there was one.
pub fn clear_stale(point: &Path) -> Result<bool, MountError> {
    // The kernel may have cached attributes, but never a listing.
    match std::fs::read_dir(point) {
        Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => {}
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            return Err(MountError::NotDirectory);
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(MountError::MountPoint(error));
        }
        // The user may mount there without being able to read it.
        _ => return Ok(false),
    }
    let cleared = match unmount(point, UnmountFlags::DETACH) {
        Err(Errno::PERM) => unmount_as_user(point, true).map_err(io::Error::other),
        cleared => cleared.map_err(io::Error::from),
    };
    cleared.map_err(|cause| MountError::Stale { point: point.to_owned(), cause })?;
    Ok(true)
}

/// Unmounts by `fusermount3`, for users other than root.
fn unmount_as_user(point: &Path, even_in_use: bool) -> Result<(), MountError> {
    let mut command = Command::new("fusermount3");
    command.arg("-u").args(even_in_use.then_some("-z")).arg("--").arg(point);
    let output = command.output().map_err(MountError::Unmount)?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr);
    if message.contains("busy") {
        return Err(MountError::InUse);
    }
    Err(MountError::Unmount(io::Error::other(message.trim().to_owned())))
}

fn config(options: &MountOptions) -> Config {
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(options.source.clone()),
        // For the kernel itself too, unlike `Subtype`: the type is `fuse.mdfs` (Linux 5.4 and
        // later).
        MountOption::CUSTOM("subtype=mdfs".into()),
        MountOption::DefaultPermissions,
        if options.read_only { MountOption::RO } else { MountOption::RW },
    ];
    config.acl = if options.allow_other { SessionACL::All } else { SessionACL::Owner };
    config.n_threads = Some(READING_THREADS);
    config
}

/// Sets the read-ahead of the mount, so that sequential reads become large. Only root may; for
/// other users they are smaller.
fn set_read_ahead(point: &Path) {
    use std::os::unix::fs::MetadataExt as _;
    let Ok(metadata) = std::fs::metadata(point) else { return };
    let (major, minor) = (rustix::fs::major(metadata.dev()), rustix::fs::minor(metadata.dev()));
    let setting = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    if let Err(error) = std::fs::write(setting, READ_AHEAD_KIB.to_string()) {
        tracing::debug!(%error, "cannot set the read-ahead of the mount");
    }
}
