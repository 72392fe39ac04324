//! `mdfs serve`: serves a volume.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use clap::builder::{StringValueParser, TypedValueParser};
use client::volume::{OpenCause, OpenError};
use futures::channel::{mpsc, oneshot};
use futures::executor::block_on;
use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _};
use nfs_gateway::{Config, Exports, Gateway, Settings};
use runtime::Undelivered;
use runtime::embedded::connections_within_limit;
use runtime::net::Address;
use transport::fabric::{FabricOptions, Fabrics, Provider, unknown_provider};
use transport::tls::volume_keys;
use transport::{Guard, Security};
use volume::{MissingParts, RunOptions, RunningVolume, SCRUB_INTERVAL};

use crate::connection::volume_directory;
use crate::exit::{CommandFailure, ServeError, say};
use crate::host_users::HostUsers;
use crate::rpcbind::{self, RpcbindRegistration};
use crate::session::CommandSession;
use crate::signals::{EndSignals, secret};
use crate::size::{ByteSize, cache_size};
use crate::time::days;
use crate::watch::StatusServer;

/// See `--scrub-days`.
const SCRUB_DAYS: u32 = (SCRUB_INTERVAL.as_secs() / 86_400) as u32;

/// Serve a volume to the other commands and, with --nfs, to NFS clients, until SIGTERM or SIGINT.
///
/// Prints one line when it is ready. A stop makes everything durable first. NFS clients on this
/// computer may do everything; others need a table of exports.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mdfs serve scratch
  mdfs serve scratch --listen 0.0.0.0:7400      for programs of other hosts, with tokens
  mdfs serve scratch --nfs 0.0.0.0:2049 --exports exports.toml
  mdfs serve scratch --nfs 127.0.0.1:2049       then, as root:
  mount -t nfs -o vers=3,tcp,port=2049,mountport=2049,nolock 127.0.0.1:/ /mnt
  mdfs serve scratch --metrics 127.0.0.1:9100     then look at http://127.0.0.1:9100/, or
  curl http://127.0.0.1:9100/metrics")]
#[allow(clippy::struct_excessive_bools, reason = "independent switches of the command line")]
pub(crate) struct Serve {
    /// The volume's directory.
    #[arg(value_name = "VOL", value_parser = volume_directory())]
    volume: PathBuf,
    /// Where the programs of other hosts connect: their VOL is mdfs://HOST:PORT/NAME. They show a
    /// token (`mdfs token create`) or the certificate of their host (`mdfs cluster certify`).
    /// The keys of the server are made in the volume's directory. Port 0 lets the system choose.
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// The name of the volume for programs of other hosts; the last part of VOL if it is not given.
    #[arg(long, value_name = "NAME", requires = "listen")]
    name: Option<String>,
    /// Use no keys for --listen: anyone who can reach the port can read and change everything. For
    /// a network of the cluster's own.
    #[arg(long, requires = "listen")]
    insecure: bool,
    /// Let programs of other hosts send and get large data over libfabric: its providers between
    /// commas, as in `verbs;ofi_rxm,tcp;ofi_rxm`. Those of TCP use the address of --listen.
    #[arg(long, value_name = "PROVIDERS", value_delimiter = ',', value_parser = provider(),
          requires = "listen")]
    fabric: Vec<Provider>,
    /// Where NFS clients connect; port 0 lets the system choose one.
    #[arg(long, value_name = "ADDRESS:PORT")]
    nfs: Option<SocketAddr>,
    /// Who may mount what over NFS, and limits, as TOML (see docs/nfs.md). Read again on SIGHUP and
    /// when the file changes.
    #[arg(long, value_name = "FILE", requires = "nfs")]
    exports: Option<PathBuf>,
    /// Address of the HTTP server: a status page at `/`, the same figures and the counts of NFS
    /// requests for Prometheus at `/metrics`; port 0 lets the system choose one. Anyone who can
    /// connect there can read them.
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<SocketAddr>,
    /// Register NFS and MOUNT at rpcbind of this computer, for clients that ask it for the ports
    /// instead of being told them; until the end. Locks of version 3 are not among them: mount
    /// with `nolock`.
    #[arg(long, requires = "nfs")]
    rpcbind: bool,
    /// Threads that serve the volume; one per core if this is not given.
    #[arg(long, value_name = "COUNT", default_value_t = 0, hide_default_value = true)]
    threads: usize,
    /// Memory for cached data, as in 8GiB; metadata take half as much again, at most, and transfers
    /// under way up to 256 MiB.
    #[arg(long, value_name = "SIZE", default_value = "512MiB", value_parser = cache_size)]
    cache: ByteSize,
    /// Open the volume to be read only, with what is there of it: disks may be missing, and
    /// metadata damaged. Nothing is written to any disk. What cannot be read is an error; all else
    /// can be listed and copied out. `mdfs check --files` names the files that cannot be read.
    #[arg(long)]
    degraded: bool,
    /// Find the memory of the cache at the start, instead of when it is first used: half a second
    /// for 2 GiB, which the first reads and writes then do not wait for.
    #[arg(long)]
    prefault: bool,
    /// Compare all data with its checksums every DAYS days, in the background, and make anew what
    /// is bad; 0 for never. `mdfs disk list` says when that was done and what was found.
    #[arg(long, value_name = "DAYS", default_value_t = SCRUB_DAYS)]
    scrub_days: u32,
}

impl Serve {
    pub(super) fn run(&self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        let volume = &self.volume;
        let failed =
            |operation, error| CommandFailure::Serve { operation, volume: volume.clone(), error };
        let settings = self.exports.as_deref().map(read_settings).transpose()?;
        // First, so that a signal during the start ends in a clean stop too.
        let mut signals =
            EndSignals::receive().map_err(|error| failed("serve", ServeError::Signals(error)))?;
        if self.exports.is_some() {
            let caught = signals.also_hang_up();
            caught.map_err(|error| failed("serve", ServeError::Signals(error)))?;
        }
        let cache_bytes = usize::try_from(self.cache.0).unwrap_or(usize::MAX);
        let options = RunOptions {
            threads: self.threads,
            cache_bytes,
            prefault: self.prefault,
            scrub_interval: days(self.scrub_days),
        };
        let opened = if self.degraded {
            volume::open_degraded(volume, &options).map(|(running, missing)| {
                tell_missing(volume, &missing);
                running
            })
        } else {
            volume::open(volume, &options)
        };
        let running = opened.map_err(|error| OpenError {
            address: volume.as_path().into(),
            cause: OpenCause::Stack(error),
        })?;
        running.answer_socket().map_err(|error| failed("serve", error.into()))?;
        let guard = self.guard()?;
        let listening = self.listen(&running, guard.as_ref())?;
        let counted = guard.clone();
        let watch = self.metrics.map(|address| {
            let title = format!("MDFS volume {}", volume.display());
            let counts = move || counted.as_ref().map_or_else(String::new, |guard| guard.counts());
            let volume = volume.display().to_string();
            StatusServer { address, title, volume, counts: Box::new(counts) }
        });
        let served = VolumeServer::start(&running, self.nfs, watch, settings.as_ref());
        let (gateway, watched) = served.map_err(|error| failed("serve", error))?;
        let registered = gateway.as_ref().filter(|_| self.rpcbind).map(VolumeServer::register);
        let registered = registered.transpose().map_err(|error| failed("serve", error))?;
        self.ready(listening, gateway.as_ref(), watched.as_ref(), session)?;

        self.follow(&mut signals, gateway.as_ref(), settings);
        drop(registered);
        if let Some(served) = gateway {
            served.stop().map_err(|error| failed("stop", error))?;
        }
        let stopped = running.stop().map_err(|error| failed("stop", error.into()));
        // What libfabric leaves behind when its process just ends is there for others to see.
        if let Some(guard) = guard {
            guard.retire(|_, _| true);
        }
        stopped
    }

    /// How programs of other hosts connect, if that is wanted.
    fn guard(&self) -> Result<Option<Arc<Guard>>, CommandFailure> {
        let Some(address) = self.listen else { return Ok(None) };
        let security = if self.insecure {
            tracing::warn!(
                "--insecure: anyone who can reach {address} can read and change the volume"
            );
            Security::None
        } else {
            Security::Tls(Box::new(volume_keys(&self.volume)?))
        };
        let mut guard = Guard::new(security);
        if !self.fabric.is_empty() {
            if address.ip().is_unspecified() && self.fabric.iter().any(|it| it.uses_addresses()) {
                let why = "--fabric with a provider over TCP needs the address of one interface \
                           with --listen";
                return Err(CommandFailure::Wrong(why.to_owned()));
            }
            guard = guard.with_fabrics(Fabrics::new(FabricOptions {
                providers: self.fabric.clone(),
                source: Some(address.ip()),
                costs: Some(self.volume.clone()),
                is_told: true,
            }));
        }
        Ok(Some(Arc::new(guard)))
    }

    /// Lets programs of other hosts ask, if that is wanted.
    fn listen(
        &self,
        running: &RunningVolume,
        guard: Option<&Arc<Guard>>,
    ) -> Result<Option<Address>, CommandFailure> {
        let Some((address, guard)) = self.listen.zip(guard.cloned()) else { return Ok(None) };
        let listening = running.answer_clients(&address.to_string(), self.name.as_deref(), guard);
        listening.map(Some).map_err(|error| CommandFailure::Serve {
            operation: "serve",
            volume: self.volume.clone(),
            error: error.into(),
        })
    }

    /// Until the end, the gateway obeys the table as it is in the file; an invalid one is reported
    /// of, and the one before it counts.
    fn follow(
        &self,
        signals: &mut EndSignals,
        gateway: Option<&VolumeServer>,
        mut settings: Option<Settings>,
    ) {
        let (Some(file), Some(gateway)) = (&self.exports, gateway) else { return signals.wait() };
        let mut seen = changed_at(file);
        while let Some(asked) = signals.wait_for_reload(LOOK_EVERY) {
            let now = changed_at(file);
            if !asked && now == seen {
                continue;
            }
            seen = now;
            match read_settings(file) {
                Ok(new) => {
                    let same_limits = settings.as_ref().is_some_and(|old| new.has_limits_of(old));
                    if !same_limits {
                        tracing::warn!("new limits count when `mdfs serve` is started again");
                    }
                    gateway.export(new.exports.clone());
                    tracing::info!(file = %file.display(), "the table of exports was read");
                    settings = Some(new);
                }
                Err(failure) => tracing::error!("{failure}"),
            }
        }
    }

    /// The one line that says that it is ready, at once even into a pipe.
    fn ready(
        &self,
        clients: Option<Address>,
        nfs: Option<&VolumeServer>,
        watched: Option<&Address>,
        session: &mut CommandSession,
    ) -> Result<(), CommandFailure> {
        let watched = watched.map(|at| format!(", metrics at http://{at}/"));
        let nfs = nfs.map(|served| format!(", NFS at {}", served.address));
        let (watched, nfs) = (watched.unwrap_or_default(), nfs.unwrap_or_default());
        let clients = clients.map(|at| format!(", clients at {at}")).unwrap_or_default();
        session.print(format!("ready: {}{watched}{nfs}{clients}\n", self.volume.display()))?;
        session.flush()
    }
}

/// Says what is missing of a volume that is open to be read.
fn tell_missing(volume: &Path, missing: &MissingParts) {
    let MissingParts { disks, nodes } = missing;
    for disk in disks {
        say(format_args!("mdfs: {disk}"));
    }
    for node in nodes {
        say(format_args!("mdfs: {node}"));
    }
    let what = if disks.is_empty() && nodes.is_empty() {
        "nothing was found missing"
    } else {
        "what is missing is above"
    };
    say(format_args!("mdfs: volume {} is open to be read only; {what}", volume.display()));
}

/// For the argument parser: a provider of libfabric.
fn provider() -> impl TypedValueParser<Value = Provider> {
    let name = |name: String| Provider::of_name(&name).ok_or_else(|| unknown_provider(&name));
    StringValueParser::new().try_map(name)
}

/// How often the table is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Time of the last change and size of `file`, if it can be read.
fn changed_at(file: &Path) -> Option<(SystemTime, u64)> {
    let metadata = std::fs::metadata(file).ok()?;
    Some((metadata.modified().ok()?, metadata.len()))
}

pub(super) fn read_settings(file: &Path) -> Result<Settings, CommandFailure> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| CommandFailure::local("read the exports in", file, error))?;
    Settings::parse(&text, &file.display().to_string())
        .map_err(|error| CommandFailure::Wrong(error.to_string()))
}

/// Open files that remain for disks and files, at least.
const OTHER_FILES_MIN: usize = 256;

/// How many of `wanted` connections of NFS clients there may be; a warning if that is fewer.
fn nfs_connections(wanted: usize) -> usize {
    let possible = nfs_connections_beside(connections_within_limit(usize::MAX)).min(wanted);
    if possible < wanted {
        tracing::warn!(wanted, possible, "fewer NFS connections: raise the limit of open files");
    }
    possible
}

/// The same if each of the two other kinds of connections has `others` at most, a fifth of the
/// limit: half of the limit, or what leaves enough for disks and files.
fn nfs_connections_beside(others: usize) -> usize {
    (3 * others).saturating_sub((others / 2).max(OTHER_FILES_MIN)).max(others)
}

/// A gateway at its node.
pub(super) struct VolumeServer {
    address: Address,
    /// The table of exports. Dropped, it stops the watcher.
    exports: mpsc::UnboundedSender<Exports>,
    stopped: BoxFuture<'static, Result<Result<(), ServeError>, Undelivered>>,
}

impl VolumeServer {
    /// Where it answers.
    pub(super) fn address(&self) -> &Address {
        &self.address
    }

    /// Starts NFS and HTTP as requested; returns also the address of HTTP.
    pub(super) fn start(
        running: &RunningVolume,
        nfs: Option<SocketAddr>,
        watch: Option<StatusServer>,
        settings: Option<&Settings>,
    ) -> Result<(Option<Self>, Option<Address>), ServeError> {
        let Some(address) = nfs else {
            return Ok((None, watch.map(|watch| watch.start_in(running)).transpose()?));
        };
        let geometry = running.geometry();
        let stripe_bytes = geometry.stripe_size as usize;
        let config = Config::new(geometry.volume, secret().map_err(ServeError::Secret)?);
        let config = Config { stripe_bytes, groups: Some(Arc::new(HostUsers)), ..config };
        let config = match settings {
            Some(settings) => settings.apply(&config),
            None => config,
        };
        let connections_max = nfs_connections(config.connections_max);
        let config = Config { connections_max, ..config };
        let wanted = Address::Tcp(address.to_string());
        let map = running.map().clone();
        let (exports, mut new_exports) = mpsc::unbounded();
        let (started, listening) = oneshot::channel();
        let stopped = running
            .on_application(move |context| async move {
                let gateway = Rc::new(Gateway::start(context.clone(), &wanted, config).await?);
                let counted = gateway.clone();
                let watched = match watch {
                    Some(watch) => {
                        let counts = move || counted.metrics();
                        Some(watch.start(&context, map, counts).await?)
                    }
                    None => None,
                };
                // The parent process waits for exactly this line.
                let _ = started.send((gateway.address().clone(), watched));
                while let Some(exports) = new_exports.next().await {
                    gateway.export(exports);
                }
                gateway.stop().await;
                Ok(())
            })
            .boxed();
        match block_on(listening) {
            Ok((address, watched)) => Ok((Some(Self { address, exports, stopped }), watched)),
            Err(_) => Err(match block_on(stopped)? {
                Err(error) => error,
                Ok(()) => Undelivered::Lost.into(),
            }),
        }
    }

    /// Registers it with rpcbind.
    fn register(&self) -> Result<RpcbindRegistration, ServeError> {
        let address = self.address.to_string();
        let address = address.parse().map_err(|_| rpcbind::Error::ProtocolMismatch)?;
        Ok(RpcbindRegistration::new(address)?)
    }

    fn export(&self, exports: Exports) {
        // If the gateway has ended, `stop` reports it.
        let _ = self.exports.unbounded_send(exports);
    }

    pub(super) fn stop(self) -> Result<(), ServeError> {
        drop(self.exports);
        block_on(self.stopped)?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nfs_clients_may_have_half_of_the_open_files_and_leave_enough_for_disks() {
        assert_eq!(nfs_connections_beside(20_000 / 5), 10_000);
        for limit in [1024, 4096, 20_000, 1 << 20] {
            let others = limit / 5;
            let nfs = nfs_connections_beside(others);
            assert!(
                nfs >= others && nfs + 2 * others + OTHER_FILES_MIN <= limit,
                "{nfs} of {limit}"
            );
        }
        assert_eq!(nfs_connections_beside(1), 1, "some connection is always possible");
    }
}
