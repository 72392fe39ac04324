//! `mdfs serve`: serves a volume.

use std::net::SocketAddr;
use std::path::PathBuf;

use client::volume::{OpenCause, OpenError};
use fileio::stack::{self, RunOptions, Running};
use futures::FutureExt as _;
use futures::channel::oneshot;
use futures::executor::block_on;
use futures::future::BoxFuture;
use nfs_gateway::{Config, Gateway};
use runtime::Undelivered;
use runtime::net::Address;

use crate::exit::{Failure, ServeError};
use crate::session::Session;
use crate::signals::EndSignals;

/// Serve a volume to the other commands and, with --nfs, to NFS clients, until SIGTERM or SIGINT.
///
/// Prints one line when it is ready. A stop makes everything durable first.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mdfs serve scratch
  mdfs serve scratch --nfs 127.0.0.1:2049       then, as root:
  mount -t nfs -o vers=3,tcp,port=2049,mountport=2049,nolock 127.0.0.1:/ /mnt")]
pub(crate) struct Serve {
    /// The volume's directory.
    #[arg(value_name = "VOL")]
    volume: PathBuf,
    /// Where NFSv3 clients connect; port 0 lets the system choose one.
    #[arg(long, value_name = "ADDRESS:PORT")]
    nfs: Option<SocketAddr>,
}

impl Serve {
    pub(super) fn run(&self, session: &mut Session) -> Result<(), Failure> {
        let volume = &self.volume;
        let failed = |operation, error| Failure::Serve { operation, volume: volume.clone(), error };
        // First, so that a signal during the start ends in a clean stop too.
        let mut signals =
            EndSignals::receive().map_err(|error| failed("serve", ServeError::Signals(error)))?;
        let running = stack::open(volume, &RunOptions::default()).map_err(|error| OpenError {
            directory: volume.clone(),
            cause: OpenCause::Stack(error),
        })?;
        running.answer_socket().map_err(|error| failed("serve", error.into()))?;
        let gateway = self.nfs.map(|address| Served::start(&running, address)).transpose();
        let gateway = gateway.map_err(|error| failed("serve", error))?;
        self.ready(gateway.as_ref().map(|served| &served.address), session)?;

        signals.wait();
        if let Some(served) = gateway {
            served.stop().map_err(|error| failed("stop", error))?;
        }
        running.stop().map_err(|error| failed("stop", error.into()))
    }

    /// The one line that says that it is ready, at once even into a pipe.
    fn ready(&self, nfs: Option<&Address>, session: &mut Session) -> Result<(), Failure> {
        let volume = self.volume.display();
        session.print(match nfs {
            Some(address) => format!("ready: {volume}, NFS at {address}\n"),
            None => format!("ready: {volume}\n"),
        })?;
        session.flush()
    }
}

/// A gateway at its node.
struct Served {
    address: Address,
    /// Told to stop by this being dropped.
    stop: oneshot::Sender<()>,
    stopped: BoxFuture<'static, Result<Result<(), nfs_gateway::Error>, Undelivered>>,
}

impl Served {
    fn start(running: &Running, address: SocketAddr) -> Result<Self, ServeError> {
        let config = Config::new(running.geometry().volume);
        let wanted = Address::Tcp(address.to_string());
        let (stop, told) = oneshot::channel::<()>();
        let (started, listening) = oneshot::channel();
        let stopped = running
            .on_application(move |context| async move {
                let gateway = Gateway::start(context, &wanted, config).await?;
                // Whoever started it waits for exactly this.
                let _ = started.send(gateway.address().clone());
                let _ = told.await;
                gateway.stop().await;
                Ok(())
            })
            .boxed();
        match block_on(listening) {
            Ok(address) => Ok(Self { address, stop, stopped }),
            Err(_) => Err(match block_on(stopped)? {
                Err(error) => error.into(),
                Ok(()) => Undelivered::Lost.into(),
            }),
        }
    }

    fn stop(self) -> Result<(), ServeError> {
        drop(self.stop);
        Ok(block_on(self.stopped)??)
    }
}
