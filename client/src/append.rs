//! Appends: a request whose reply is lost is sent again, and done once.

use std::time::Duration;

use fileio::protocol::{Append, Appended, Error};
use runtime::Spawn;
use runtime::protocol::Undelivered;

use crate::leases::Leases;

/// Attempts of an append whose reply was lost.
const TRIES_MAX: u32 = 12;

/// The first pause before that; each later one is twice as long.
const PAUSE: Duration = Duration::from_millis(2);

/// Sends an append to the node of its file, until its outcome is known. If a node has restarted and
/// the outcome is unknown, the error is [`Undelivered::Lost`].
pub async fn append<S: Spawn>(
    machine: &S,
    leases: &Leases,
    mut request: Append,
) -> Result<Appended, Error> {
    let lost = Error::from(Undelivered::Lost);
    let lease = leases.lease_of(request.file, machine.fs_nodes());
    let (mut pause, mut failure) = (PAUSE, lost);
    for _ in 1..TRIES_MAX {
        match fileio::client::ask(machine, request.clone()).await {
            Err(error) if error == lost => (request.sent_under, failure) = (Some(lease), lost),
            // If not this time, then perhaps before.
            Err(error) if error.not_applied() && request.sent_under.is_some() => {}
            Err(error) if error.not_applied() => failure = error,
            done => return done,
        }
        machine.sleep(pause).await;
        pause *= 2;
    }
    Err(failure)
}
