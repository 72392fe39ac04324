//! Appends: a request whose reply is lost is sent again, and done once.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fileio::protocol::{Append, Appended, Credentials, Error, Handle};
use runtime::Spawn;
use runtime::protocol::Undelivered;

use crate::unsynced::{UnsyncedMark, UnsyncedWrites};

/// Attempts of an append whose reply was lost.
const TRIES_MAX: u32 = 12;

/// The first pause before that; each later one is twice as long.
const PAUSE: Duration = Duration::from_millis(2);
const PAUSE_MAX: Duration = Duration::from_secs(4);

/// Sends an append to the node of its file, until its outcome is known, and keeps it until it is
/// durable. It is done once, also if the node restarts meanwhile.
pub async fn append<S: Spawn>(
    machine: &S,
    unsynced: &Arc<UnsyncedWrites>,
    mark: &UnsyncedMark,
    who: &Arc<Credentials>,
    (file, data): (Handle, Vec<Bytes>),
) -> Result<Appended, Error> {
    unsynced.wait_for_room(machine, file, data.iter().map(Bytes::len).sum()).await?;
    unsynced.wait_for_replay(file).await;
    let open = unsynced.open_append();
    let (call, acknowledged) = (open.call(), open.acknowledged());
    let kept = data.clone();
    let only_if_verifier = unsynced.verifier(file);
    let who_sent = (**who).clone();
    let mut request =
        Append { who: who_sent, call, again: false, acknowledged, only_if_verifier, file, data };
    let lost = Error::from(Undelivered::Lost);
    let (mut pause, mut failure) = (PAUSE, lost);
    let mut tries = 1;
    while tries < TRIES_MAX || machine.waits_for_ever() {
        tries += 1;
        match fileio::client::ask(machine, request.clone()).await {
            Ok(appended) => {
                let place = (file, appended.offset, kept);
                unsynced.note_append(machine, mark, who, place, &appended.written).await;
                return Ok(appended);
            }
            Err(error) if error.is_lost() => (request.again, failure) = (true, lost),
            // It is not done, nor was it before: others come first.
            Err(Error::LostWrites {}) if request.only_if_verifier.is_some() => {
                failure = Error::LostWrites {};
            }
            // If not this time, then perhaps before.
            Err(error) if error.not_applied() && request.again => {}
            Err(error) if error.not_applied() => failure = error,
            Err(error) => return Err(error),
        }
        machine.sleep(pause).await;
        pause = PAUSE_MAX.min(2 * pause);
        // What this client has appended before comes first, if that was lost.
        if unsynced.refresh(machine, file, who).await.is_ok() {
            request.only_if_verifier = unsynced.verifier(file);
        }
    }
    Err(failure)
}
