//! Signals that end a server or reload its settings, and random secrets.

use std::io;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// 32 random bytes from the system.
pub fn secret() -> io::Result<[u8; 32]> {
    let mut bytes = [0; 32];
    // The system gives so few at once, or none.
    let got = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    if got == bytes.len() { Ok(bytes) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// SIGTERM and SIGINT, received from the moment this is made.
pub struct EndSignals {
    runtime: Runtime,
    terminate: Signal,
    interrupt: Signal,
    hang_up: Option<Signal>,
}

impl EndSignals {
    /// From now on these signals do not end the process.
    pub fn receive() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let inside = runtime.enter();
        let (terminate, interrupt) =
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        drop(inside);
        Ok(Self { runtime, terminate, interrupt, hang_up: None })
    }

    /// Waits for one of them.
    pub fn wait(&mut self) {
        self.wait_or(std::future::pending::<()>());
    }

    /// From now on SIGHUP does not end the process either.
    pub fn also_hang_up(&mut self) -> io::Result<()> {
        let _inside = self.runtime.enter();
        self.hang_up = Some(signal(SignalKind::hangup())?);
        Ok(())
    }

    /// Waits for one of them (`None`), for SIGHUP (true), or for `period` to pass (false).
    #[allow(clippy::disallowed_methods, reason = "the program waits beside the machine, not in it")]
    pub fn wait_for_reload(&mut self, period: Duration) -> Option<bool> {
        let Self { runtime, terminate, interrupt, hang_up } = self;
        let hung_up = async {
            match hang_up {
                Some(signal) => signal.recv().await,
                None => std::future::pending().await,
            }
        };
        runtime.block_on(async {
            tokio::select! {
                _ = terminate.recv() => None,
                _ = interrupt.recv() => None,
                _ = hung_up => Some(true),
                () = tokio::time::sleep(period) => Some(false),
            }
        })
    }

    /// Waits for one of them, or for `other`; true if it was one of them.
    pub fn wait_or(&mut self, other: impl Future) -> bool {
        let Self { runtime, terminate, interrupt, .. } = self;
        runtime.block_on(async {
            tokio::select! {
                _ = terminate.recv() => true,
                _ = interrupt.recv() => true,
                _ = other => false,
            }
        })
    }
}
