//! `mdfs mount`: a volume as a file system of this computer.

mod background;
pub(crate) mod helper;

use std::io;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use client::VolumeAddress;
use client::blocking::random_client;
use client::volume::{ConnectOptions, OpenCause, OpenError, SOCKET_NAME, reach};
use fuse_mount::{MountEnded, MountError, MountOptions, Worker};
use futures::executor::block_on;
use runtime::client_handle::CallNumbers;
use runtime::{ClientHandle, Context};
use volume::{DirectoryError, RunOptions, RunningVolume, VolumeError};

use crate::connection::{ConnectionArguments, Timeout, volume_address};
use crate::exit::{CommandFailure, MountFailure, say};
use crate::session::CommandSession;
use crate::signals::EndSignals;

/// Attempts to open a volume that is in use, one every [`IN_USE_PAUSE`]: the process that has just
/// unmounted it may still be writing its last data.
const IN_USE_TRIES_MAX: u32 = 100;
const IN_USE_PAUSE: Duration = Duration::from_millis(100);

/// A client that has only lost its connection is back within this time.
const RETURN_PAUSE: Duration = Duration::from_secs(1);

/// Attempts to unmount, one every [`IN_USE_PAUSE`], before the mount is reported as in use: a
/// program that starts another one shares its open files with it for a moment.
const UNMOUNT_TRIES_MAX: u32 = 10;
/// What programs have written is sent within this time when the mount ends under them.
const SETTLE_TIME_MAX: Duration = Duration::from_secs(5);

/// How long names and attributes are cached without a flag, in milliseconds.
const CACHE_MS: u32 = 1000;

/// Mount a volume as a directory of this computer, until it is unmounted, SIGTERM or SIGINT.
///
/// Prints one line when it is ready. The volume is opened by this process, which the other commands
/// then ask; or it is mounted through its server, if one runs. To unmount: `umount DIR` (as another
/// user than root: `fusermount3 -u DIR`), or end this process; everything is made durable first. If
/// files are open in DIR at the signal, it ends when they are closed, or immediately at a second
/// signal. If other mounts or programs use the volume through this process, it serves them until
/// the last one has gone, or a signal comes.
///
/// What a killed `mdfs mount` has left at DIR is cleared.
#[derive(Debug, clap::Args)]
#[allow(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
#[command(after_help = "Examples:
  mdfs mount scratch /mnt &
  mdfs mount --background --log /var/log/mdfs.log scratch /mnt
  mdfs mount scratch /mnt --allow-other         all users of this computer, by their permissions
  mdfs mount scratch /mnt --read-only
  umount /mnt

`cargo xtask install` installs the program also as the helper of mount(8), for lines in /etc/fstab:
  /srv/scratch  /mnt  mdfs  allow_other,cache_ms=1000,log=/var/log/mdfs.log  0  0")]
pub(crate) struct MountCommand {
    /// Nothing can be changed through the mount.
    #[arg(long)]
    read_only: bool,
    /// Let other users than you use the mount, as owners and modes of the files permit.
    #[arg(long)]
    allow_other: bool,
    /// How long names and attributes are cached, in milliseconds. Changes by other
    /// clients may stay unseen for that time; 0 sees all of them, and is slower.
    #[arg(long, value_name = "MS", default_value_t = CACHE_MS)]
    cache_ms: u32,
    /// Collect sequential writes to a file that is open only once here, for some 100 ms: faster,
    /// but other clients see them only then, or when the file is closed or synced, and a full
    /// disk is reported by the next write, sync or close.
    #[arg(long)]
    write_behind: bool,
    /// Return when the volume is mounted, and serve the mount in the background.
    #[arg(long)]
    background: bool,
    /// Be the process in the background.
    #[arg(long, hide = true, conflicts_with = "background")]
    detach: bool,
    /// Append to this file what the process in the background reports.
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    #[command(flatten)]
    connection: ConnectionArguments,
    /// The volume: its directory, or `mdfs://HOST[:PORT]/VOLUME`.
    #[arg(value_name = "VOL", value_parser = volume_address())]
    volume: VolumeAddress,
    /// Where to mount it: an empty directory.
    #[arg(value_name = "DIR")]
    point: PathBuf,
}

/// Why a mount has ended.
enum EndReason {
    Unmounted,
    Signal,
}

/// What the mount asks.
enum MountSource {
    /// A machine of this process.
    Own(Box<RunningVolume>),
    /// The server of the volume.
    Server(ClientHandle),
}

impl MountCommand {
    pub(super) fn run(&self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        let failed = |error: MountFailure| self.failed("mount", error);
        if self.background {
            background::start(self)?;
            return self.ready(session);
        }
        // First, so that a signal during the start ends in a clean stop too.
        let mut signals = EndSignals::receive().map_err(|error| failed(error.into()))?;
        fuse_mount::clear_stale(&self.point).map_err(|error| failed(error.into()))?;
        if self.volume.directory().is_some_and(|directory| hides(&self.point, directory)) {
            return Err(failed(MountFailure::HidesVolume));
        }
        let source = self.open()?;
        let (mount, ended) = source.mount(&self.point, &self.options()).map_err(failed)?;
        self.ready(session)?;
        if self.detach {
            background::detach(self.log.as_deref()).map_err(|error| failed(error.into()))?;
        }
        let ended = self.wait(&mut signals, &mount, ended);
        mount.leave();
        // After a signal they wait for this process to be started again, as those of a server do.
        if let Ok(EndReason::Unmounted) = ended {
            source.wait_for_clients(&mut signals);
        }
        let stopped = source.stop(&self.volume);
        ended.map(drop).and(stopped).map_err(|error| self.failed("unmount", error))
    }

    fn failed(&self, operation: &'static str, error: MountFailure) -> CommandFailure {
        let (volume, point) = (self.volume.clone(), self.point.clone());
        CommandFailure::Mount { operation, volume, point, error: Box::new(error) }
    }

    fn options(&self) -> MountOptions {
        MountOptions {
            source: self.source(),
            read_only: self.read_only,
            allow_other: self.allow_other,
            cache: Duration::from_millis(self.cache_ms.into()),
            write_behind: self.write_behind,
        }
    }

    /// The volume as `mount` and `df` show it.
    fn source(&self) -> String {
        match self.volume.directory().and_then(|directory| directory.canonicalize().ok()) {
            Some(directory) => directory.display().to_string(),
            None => self.volume.to_string(),
        }
    }

    /// How the volume is reached: programs that use a mount wait for its servers for ever, unless
    /// `--timeout` says otherwise.
    fn connect_options(&self) -> io::Result<ConnectOptions> {
        let timeout = self.connection.timeout.or(Some(Timeout(None)));
        ConnectionArguments { timeout, ..self.connection.clone() }.options()
    }

    /// Opens the volume: through its server, else in this process.
    fn open(&self) -> Result<MountSource, OpenError> {
        let failed = |cause| OpenError { address: self.volume.clone(), cause };
        let options = self.connect_options();
        let options = options.map_err(|error| failed(OpenCause::NoCredentials(error)))?;
        if let VolumeAddress::Remote { volume, .. } = &self.volume
            && self.allow_other
            && options.token_file(volume).is_some()
        {
            return Err(failed(OpenCause::TokenForAll));
        }
        for tries in 1.. {
            let directory = match (reach(&self.volume, &options), self.volume.directory()) {
                (Ok(client_handle), _) => return Ok(MountSource::Server(client_handle)),
                (Err(OpenCause::NotServed(_)), Some(directory)) => directory,
                (Err(cause), _) => return Err(failed(cause)),
            };
            match volume::open(directory, &RunOptions::default()) {
                Err(VolumeError::Directory(DirectoryError::InUse)) if tries < IN_USE_TRIES_MAX => {
                    #[allow(
                        clippy::disallowed_methods,
                        reason = "a program waits for another one"
                    )]
                    thread::sleep(IN_USE_PAUSE);
                }
                opened => {
                    let running = opened.map_err(|error| failed(OpenCause::Stack(error)))?;
                    running.answer_socket().map_err(|error| failed(OpenCause::Stack(error)))?;
                    return Ok(MountSource::Own(Box::new(running)));
                }
            }
        }
        unreachable!("the last try returns")
    }

    /// The one line that says that it is ready, at once even into a pipe.
    fn ready(&self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        let (volume, point) = (&self.volume, self.point.display());
        session.print(format!("mounted: {volume} at {point}; to unmount: umount {point}\n"))?;
        session.flush()
    }

    /// Waits until it is unmounted, and unmounts it on a signal; not longer than to a second
    /// signal.
    fn wait(
        &self,
        signals: &mut EndSignals,
        mount: &fuse_mount::FuseMount,
        mut ended: MountEnded,
    ) -> Result<EndReason, MountFailure> {
        if !signals.wait_or(&mut ended) {
            return Ok(EndReason::Unmounted);
        }
        match unmount_patiently(mount) {
            Err(MountError::InUse) => {}
            done => {
                done?;
                // What is under way is answered before the volume is closed.
                signals.wait_or(&mut ended);
                return Ok(EndReason::Signal);
            }
        }
        say(format_args!(
            "mdfs: {} is in use; it is unmounted when the open files are closed, or at a second signal",
            self.point.display()
        ));
        mount.unmount(true)?;
        if signals.wait_or(&mut ended) && !mount.settle(SETTLE_TIME_MAX) {
            say(format_args!("mdfs: what was written in the last 100 ms may be lost"));
        }
        Ok(EndReason::Signal)
    }
}

/// Unmounts it if nothing is open there for long.
fn unmount_patiently(mount: &fuse_mount::FuseMount) -> Result<(), MountError> {
    for _ in 1..UNMOUNT_TRIES_MAX {
        match mount.unmount(false) {
            Err(MountError::InUse) => {}
            done => return done,
        }
        #[allow(clippy::disallowed_methods, reason = "a program waits for another one")]
        thread::sleep(IN_USE_PAUSE);
    }
    mount.unmount(false)
}

/// Would a mount at `point` hide the files of `volume`?
fn hides(point: &Path, volume: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().ok();
    real(point).zip(real(volume)).is_some_and(|(point, volume)| volume.starts_with(point))
}

impl MountSource {
    fn mount(
        &self,
        point: &Path,
        options: &MountOptions,
    ) -> Result<(fuse_mount::FuseMount, MountEnded), MountFailure> {
        let mounted = match self {
            Self::Own(running) => {
                let fs_nodes = running.geometry().fs_nodes;
                fuse_mount::FuseMount::start(point, options, own_workers(running), fs_nodes)
            }
            Self::Server(client_handle) => {
                let workers = remote_workers(client_handle)?;
                fuse_mount::FuseMount::start(point, options, workers, client_handle.fs_nodes())
            }
        };
        Ok(mounted?)
    }

    /// Serves the clients of this process until they have gone, or a signal comes.
    fn wait_for_clients(&self, signals: &mut EndSignals) {
        let Self::Own(running) = self else { return };
        let clients = running.socket_clients();
        if clients.close_if_empty() {
            return;
        }
        say(format_args!(
            "mdfs mount: unmounted; other clients ({}) use the volume through this process, which \
             ends when they have gone, or at a signal",
            clients.connected()
        ));
        while !signals.wait_or(clients.emptied()) {
            #[allow(clippy::disallowed_methods, reason = "a program waits for another one")]
            thread::sleep(RETURN_PAUSE);
            if clients.close_if_empty() {
                break;
            }
        }
    }

    /// Makes everything durable. A server keeps the volume open, and does so in its own time.
    fn stop(self, volume: &VolumeAddress) -> Result<(), MountFailure> {
        let (Self::Own(running), Some(volume)) = (self, volume.directory()) else { return Ok(()) };
        // A client that is let in now would wait for this process; one that finds no socket opens
        // the volume itself.
        running.socket_clients().close();
        let removed = std::fs::remove_file(volume.join(SOCKET_NAME));
        running.stop()?;
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }
}

/// One worker on each thread of the machine, in the order of the threads.
fn own_workers(running: &RunningVolume) -> Vec<Worker<Context>> {
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    let threads = cores.min(running.geometry().fs_nodes as usize);
    let mut workers: Vec<Option<Worker<Context>>> = (0..threads).map(|_| None).collect();
    let calls = Arc::new(CallNumbers::new(random_client()));
    for (worker, tasks) in fuse_mount::workers(threads, calls) {
        let (sender, at) = futures::channel::oneshot::channel();
        // Resolves when the mount has ended; the result is not needed.
        drop(running.on_application(move |context| {
            let _ = sender.send(context.node());
            fuse_mount::serve(context, tasks)
        }));
        if let Ok(node) = block_on(at) {
            let (runtime::NodeKind::Application(index)
            | runtime::NodeKind::Fs(index)
            | runtime::NodeKind::Disk(index)) = node.kind();
            workers[index as usize % threads] = Some(worker);
        }
    }
    workers.into_iter().flatten().collect()
}

/// A worker on a thread of its own, which sends requests to a server.
fn remote_workers(client_handle: &ClientHandle) -> io::Result<Vec<Worker<ClientHandle>>> {
    let start = |(worker, tasks)| {
        let client_handle = client_handle.clone();
        #[allow(clippy::disallowed_methods, reason = "the server is asked from outside a machine")]
        thread::Builder::new()
            .name("mdfs-mount".into())
            .spawn(move || block_on(fuse_mount::serve(client_handle, tasks)))?;
        Ok(worker)
    };
    let calls = client_handle.call_numbers();
    let calls = calls.ok_or_else(|| io::Error::other("a server has numbered no calls"))?;
    fuse_mount::workers(1, calls).into_iter().map(start).collect()
}
