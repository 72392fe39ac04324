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
    pub(crate) fn wait(self) {
        let Self { runtime, mut terminate, mut interrupt } = self;
        runtime.block_on(async {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        });
    }
}
