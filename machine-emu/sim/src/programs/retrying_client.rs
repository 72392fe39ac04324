//! How a program handles failures: it repeats, as a whole, what the client gave up.

use std::future::Future;

use client::{Cause, Error, FileSystem};
use runtime::Spawn;

use super::spawn::ClusterSpawn;
use crate::harness::{Harness, PowerCut, RETRY_PAUSE, TRIES_MAX, WorkResult};

/// Why an operation has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OperationFailure {
    /// The power is off: the outcome is unknown.
    PowerCut,
    /// It was refused, and nothing was done.
    Refused(Cause),
}

impl OperationFailure {
    /// The power cut. Panics if the operation was refused.
    pub(crate) fn power_cut<T>(self) -> WorkResult<T> {
        match self {
            Self::PowerCut => Err(PowerCut),
            Self::Refused(cause) => panic!("refused: {cause}"),
        }
    }
}

/// The file system of a program on the cluster.
pub(crate) type ClusterClient<'a> = RetryingClient<'a, ClusterSpawn>;

/// A program's file system.
pub(crate) struct RetryingClient<'a, S> {
    /// The client under test.
    pub(crate) system: FileSystem<S>,
    /// Which program.
    pub(crate) number: u32,
    /// Its faults excuse failures; without one each operation is tried once.
    pub(crate) harness: Option<&'a Harness>,
}

impl<S: Spawn> RetryingClient<'_, S> {
    /// The power has gone: the outcome of what is under way is unknown.
    pub(crate) fn is_power_off(&self) -> bool {
        self.harness.is_some_and(Harness::is_power_off)
    }

    /// Logs the next operation, to debug a repeated run.
    pub(crate) fn log(&self, what: impl FnOnce() -> String) {
        if let Some(harness) = self.harness
            && tracing::enabled!(tracing::Level::DEBUG)
        {
            tracing::debug!(now = ?harness.cluster.world().now(), client = self.number, what = what());
        }
    }

    /// See [`ask`](Self::ask). Panics if the operation is refused.
    pub(crate) async fn must<T, F>(&self, operation: impl Fn() -> F) -> WorkResult<T>
    where
        F: Future<Output = Result<T, Error>>,
    {
        self.ask(operation).await.or_else(OperationFailure::power_cut)
    }

    /// Does one operation of the client until there is an answer. The client itself asks busy nodes
    /// again; it returns lasting failures and losses to its caller.
    pub(crate) async fn ask<T, F>(&self, operation: impl Fn() -> F) -> Result<T, OperationFailure>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let Some(harness) = self.harness else {
            return operation().await.map_err(|error| OperationFailure::Refused(error.cause));
        };
        for _ in 0..TRIES_MAX {
            let answer = operation().await;
            let failed = answer.as_ref().err();
            tracing::debug!(now = ?harness.cluster.world().now(), client = self.number, ?failed);
            if harness.is_power_off() {
                return Err(OperationFailure::PowerCut);
            }
            match answer {
                Ok(done) => {
                    harness.answered();
                    return Ok(done);
                }
                Err(Error { cause: Cause::FileIo(error), .. }) if harness.is_expected(error) => {}
                Err(error) => return Err(OperationFailure::Refused(error.cause)),
            }
            self.system.machine().sleep(RETRY_PAUSE).await;
        }
        panic!("no answer after {TRIES_MAX} tries");
    }
}
