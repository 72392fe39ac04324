//! Waiting for the signals that end a server.

use std::io;

use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGTERM and SIGINT, received from the moment this is made.
pub(crate) struct EndSignals {
    runtime: Runtime,
    terminate: Signal,
    interrupt: Signal,
}

impl EndSignals {
    /// From now on these signals do not end the process.
    pub(crate) fn receive() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let inside = runtime.enter();
        let (terminate, interrupt) =
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        drop(inside);
        Ok(Self { runtime, terminate, interrupt })
    }

    /// Waits for one of them.
    pub(crate) fn wait(&mut self) {
        self.wait_or(std::future::pending::<()>());
    }

    /// Waits for one of them, or for `other`; true if it was one of them.
    pub(crate) fn wait_or(&mut self, other: impl Future) -> bool {
        let Self { runtime, terminate, interrupt } = self;
        runtime.block_on(async {
            tokio::select! {
                _ = terminate.recv() => true,
                _ = interrupt.recv() => true,
                _ = other => false,
            }
        })
    }
}
