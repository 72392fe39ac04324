//! `mdfs cluster serve`: one process of a cluster.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use transport::fabric::Fabrics;
use transport::{Guard, Security};
use volume::RunOptions;
use volume::cluster::{ClusterMember, MemberOptions};

use super::file::MachineFile;
use crate::commands::serve::{VolumeServer, read_settings};
use crate::exit::{CommandFailure, ServeError};
use crate::session::CommandSession;
use crate::signals::EndSignals;
use crate::time::days;
use crate::watch::StatusServer;

/// Serve the nodes that the node map gives to one process, until SIGTERM or SIGINT.
///
/// Prints one line when the volume answers. The other commands, given the directory of the process
/// as VOL, ask it. A process that cannot reach etcd answers nothing until it can, and goes on by
/// itself; let the host's service manager start it again if it ends.
#[derive(Debug, clap::Args)]
pub(super) struct ServeProcess {
    /// The machine file.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Which process of it this is.
    #[arg(value_name = "NUMBER")]
    number: u32,
    /// Where NFS clients connect; port 0 lets the system choose one.
    #[arg(long, value_name = "ADDRESS:PORT")]
    nfs: Option<SocketAddr>,
    /// Who may mount what over NFS, and limits, as for `mdfs serve`; read once.
    #[arg(long, value_name = "EXPORTS", requires = "nfs")]
    exports: Option<PathBuf>,
    /// Address of the HTTP server for the volume and the links to other processes, as of `mdfs
    /// serve`. Each process shows all nodes.
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<SocketAddr>,
    /// Use no keys: connections between processes are not protected, and anyone who can reach the
    /// port can read and change everything. For a network of the cluster's own; the same for all
    /// processes.
    #[arg(long)]
    insecure: bool,
    /// When the process makes its disks, or joins with them: overwrite the one with this id, as the
    /// refusal told it; as of `mdfs format`.
    #[arg(long, value_name = "DEVICE-ID")]
    force: Vec<String>,
}

impl ServeProcess {
    pub(super) fn run(&self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        let file = MachineFile::read(&self.file)?;
        let settings = self.exports.as_deref().map(read_settings).transpose()?;
        let process = file.process(self.number)?;
        let volume = process.directory.clone();
        let failed = |error: ServeError| {
            let operation = "serve";
            CommandFailure::Serve { operation, volume: volume.clone(), error }
        };
        let mut run = RunOptions { prefault: process.prefault, ..RunOptions::default() };
        if let Some(scrub_days) = process.scrub_days {
            run.scrub_interval = days(scrub_days);
        }
        if let Some(cache) = process.cache {
            run.cache_bytes = usize::try_from(cache.0).unwrap_or(usize::MAX);
        }
        // Before libfabric is loaded, which takes signals where it finds none taken.
        let signals = EndSignals::receive().map_err(|error| failed(error.into()))?;
        let mut guard = Guard::new(self.security(&file)?);
        if let Some(options) = file.fabric(self.number)? {
            guard = guard.with_fabrics(Fabrics::new(options));
        }
        let guard = Arc::new(guard);
        let options = MemberOptions {
            number: self.number,
            name: file.name(),
            address: process.address.clone(),
            engine: file.engine()?,
            lease: file.lease(),
            guard: guard.clone(),
            disks: file.disks(self.number),
            force: self.force.clone(),
            run,
        };
        let mut member = ClusterMember::start(&process.directory, &options)
            .map_err(|error| failed(error.into()))?;
        end_with(signals, &member);

        let mut gateway = None;
        let ended = member.run(|running| {
            running.answer_socket()?;
            let watch = self.metrics.map(|address| {
                let title = format!("MDFS cluster, by process {}", self.number);
                let volume = format!("mdfs://{}/{}", process.address, file.name());
                StatusServer { address, title, volume, counts: Box::new(move || guard.counts()) }
            });
            let watched;
            (gateway, watched) = VolumeServer::start(running, self.nfs, watch, settings.as_ref())?;
            let watched = watched.map(|at| format!(", metrics at http://{at}/"));
            let nfs = gateway.as_ref().map(|served| format!(", NFS at {}", served.address()));
            let (number, nfs) = (self.number, nfs.unwrap_or_default());
            let watched = watched.unwrap_or_default();
            let printed = session.print(format!("ready: process {number}{watched}{nfs}\n"));
            // The reader of the line has ended.
            let _ = printed.and_then(|()| session.flush());
            Ok::<_, ServeError>(())
        });
        ended.map_err(failed)?;
        gateway.map_or(Ok(()), |served| served.stop().map_err(failed))
    }
}

impl ServeProcess {
    /// Without keys a process starts only with `--insecure`.
    fn security(&self, file: &MachineFile) -> Result<Security, CommandFailure> {
        if self.insecure {
            tracing::warn!(
                "--insecure: anyone who can reach {} can read and change the volume",
                file.process(self.number)?.address
            );
            return Ok(Security::None);
        }
        Ok(Security::Tls(Box::new(file.keys().keys(self.number)?)))
    }
}

/// The first signal ends the process in order.
#[allow(clippy::disallowed_methods, reason = "the program waits beside the machine, not in it")]
fn end_with(mut signals: EndSignals, member: &ClusterMember) {
    let ender = member.ender();
    std::thread::spawn(move || {
        signals.wait();
        ender.end();
    });
}
