//! Mounting, unmounting, and clearing what a killed process has left.

use std::convert::Infallible;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use fuser::{BackgroundSession, Config, MountOption, Session, SessionACL};
use futures::channel::oneshot;
use runtime::Spawn;
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

use crate::kernel::Kernel;
use crate::worker::Worker;

/// Threads that read requests from the kernel: one takes the bytes of a write over while another one
/// reads the next request.
const READING_THREADS: usize = 2;
/// The kernel reads ahead so far, in KiB, where it may be told.
const READ_AHEAD_KIB: u32 = 4096;

/// How a volume is mounted.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// What `mount` and `df` name as the source.
    pub source: String,
    /// Nothing can be changed through the mount.
    pub read_only: bool,
    /// Other users than the one who mounts may use it.
    pub allow_other: bool,
    /// How long the kernel may keep names and attributes without asking again: so long a change by
    /// another client may stay unseen.
    pub cache: Duration,
}

/// Why a volume is not mounted or unmounted. Each says what to do.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// There is no `/dev/fuse`.
    #[error("this system has no /dev/fuse; load it as root: modprobe fuse")]
    NoDevice,
    /// The mount point cannot be used.
    #[error("the mount point cannot be used: {0}; make an empty directory and name that")]
    MountPoint(#[source] io::Error),
    /// It is no directory.
    #[error("the mount point is not a directory; make an empty directory and name that")]
    NotDirectory,
    /// What a killed process left there cannot be cleared.
    #[error(
        "a mount is left there by a process that was killed, and cannot be cleared: {cause}; run as \
         root: umount -l {}",
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
    /// Files are open in it.
    #[error("it is in use; close what is open there (fuser -vm tells who), or: umount -l")]
    InUse,
    /// It cannot be unmounted.
    #[error("it cannot be unmounted: {0}; try as root: umount -l")]
    Unmount(#[source] io::Error),
    /// The threads that read from the kernel cannot be started.
    #[error("no thread can be started: {0}; look at the limits of this process")]
    Threads(#[source] io::Error),
}

/// A mounted volume. Dropping it unmounts it, if nobody uses it; see [`leave`](Self::leave).
#[derive(Debug)]
pub struct Mount {
    session: BackgroundSession,
    point: PathBuf,
}

/// Cancelled when the volume is mounted no more, whoever has unmounted it, and the nodes have heard of all
/// that was closed.
pub type Ended = oneshot::Receiver<Infallible>;

impl Mount {
    /// Mounts the volume that `workers`, at least one, lead to. Seat `i` should be on the thread of
    /// node `i` of `fs_nodes`, if these threads are in this process.
    pub fn start<S: Spawn>(
        point: &Path,
        options: &MountOptions,
        workers: Vec<Worker<S>>,
        fs_nodes: u32,
    ) -> Result<(Self, Ended), MountError> {
        if !Path::new("/dev/fuse").exists() {
            return Err(MountError::NoDevice);
        }
        let point = point.canonicalize().map_err(MountError::MountPoint)?;
        if !point.is_dir() {
            return Err(MountError::NotDirectory);
        }
        let (told, ended) = oneshot::channel();
        let known = workers[0].known().clone();
        let kernel = Kernel::new(workers, fs_nodes, options.cache, told);
        let session =
            Session::new(kernel, &point, &config(options)).map_err(MountError::Refused)?;
        known.set_notifier(session.notifier());
        let session = session.spawn().map_err(MountError::Threads)?;
        read_far_ahead(&point);
        Ok((Self { session, point }, ended))
    }

    /// Unmounts it, if nothing is open there; or at once for all that come, with `even_in_use`: then it
    /// ends when the last that is open there is closed.
    pub fn unmount(&self, even_in_use: bool) -> Result<(), MountError> {
        let flags = if even_in_use { UnmountFlags::DETACH } else { UnmountFlags::empty() };
        match unmount(&self.point, flags) {
            // Not mounted: somebody else was faster.
            Ok(()) | Err(Errno::INVAL) => Ok(()),
            Err(Errno::BUSY) => Err(MountError::InUse),
            Err(Errno::PERM) => unmount_as_user(&self.point, even_in_use),
            Err(error) => Err(MountError::Unmount(error.into())),
        }
    }

    /// Lets go of it: it has ended, or ends with this process.
    pub fn leave(self) {
        // Dropped, it would unmount whatever is mounted there by now, by whomever.
        std::mem::forget(self.session);
    }
}

/// Clears what a process that was killed has left at `point`: a mount that nobody serves. True if there
/// was one.
pub fn clear_stale(point: &Path) -> Result<bool, MountError> {
    // Attributes may still be in the kernel's cache, a listing never is.
    match std::fs::read_dir(point) {
        Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => {}
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            return Err(MountError::NotDirectory);
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(MountError::MountPoint(error));
        }
        // Whoever may mount there need not be able to read it.
        _ => return Ok(false),
    }
    let cleared = match unmount(point, UnmountFlags::DETACH) {
        Err(Errno::PERM) => unmount_as_user(point, true).map_err(io::Error::other),
        cleared => cleared.map_err(io::Error::from),
    };
    cleared.map_err(|cause| MountError::Stale { point: point.to_owned(), cause })?;
    Ok(true)
}

/// Other users than root have `fusermount3` do it.
fn unmount_as_user(point: &Path, even_in_use: bool) -> Result<(), MountError> {
    let mut command = Command::new("fusermount3");
    command.arg("-u").args(even_in_use.then_some("-z")).arg("--").arg(point);
    let output = command.output().map_err(MountError::Unmount)?;
    if output.status.success() {
        return Ok(());
    }
    let told = String::from_utf8_lossy(&output.stderr);
    if told.contains("busy") {
        return Err(MountError::InUse);
    }
    Err(MountError::Unmount(io::Error::other(told.trim().to_owned())))
}

fn config(options: &MountOptions) -> Config {
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(options.source.clone()),
        MountOption::Subtype("mdfs".into()),
        MountOption::DefaultPermissions,
        if options.read_only { MountOption::RO } else { MountOption::RW },
    ];
    config.acl = if options.allow_other { SessionACL::All } else { SessionACL::Owner };
    config.n_threads = Some(READING_THREADS);
    config
}

/// Reads of a stream become as large as the kernel makes them only if it reads ahead far enough. Root
/// may say so; for others they are smaller.
fn read_far_ahead(point: &Path) {
    use std::os::unix::fs::MetadataExt as _;
    let Ok(metadata) = std::fs::metadata(point) else { return };
    let (major, minor) = (rustix::fs::major(metadata.dev()), rustix::fs::minor(metadata.dev()));
    let setting = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    if let Err(error) = std::fs::write(setting, READ_AHEAD_KIB.to_string()) {
        tracing::debug!(%error, "the kernel reads ahead as far as it likes");
    }
}
