//! Sending lost writes again.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use fileio::client::send_with_retries;
use fileio::protocol::{
    Append, Credentials, Error, Handle, ReplayPunch, ReplayWrite, TRANSFER_MAX, WriteResult,
};
use runtime::{Spawn, Undelivered};

use super::{FileWrites, UnsyncedChange, UnsyncedWrite, UnsyncedWrites, lock};

/// Attempts to append again what another client's append has replaced.
const APPEND_TRIES_MAX: u32 = 8;

impl UnsyncedWrites {
    /// Other requests for the file wait while its lost writes are sent again.
    pub(crate) async fn wait_for_replay(&self, file: Handle) {
        let Some(writes) = self.known(file) else { return };
        if lock(&writes.state).is_replaying {
            drop(writes.replaying.lock().await);
        }
    }

    /// Sends lost writes of the file again, if there are any. What fails is tried again by the next
    /// request, and at the latest by the next sync, which reports it.
    pub(super) async fn replay_if_lost<S: Spawn>(self: &Arc<Self>, machine: &S, file: Handle) {
        let is_lost = self.known(file).is_some_and(|writes| lock(&writes.state).has_lost());
        if is_lost && let Err(error) = Box::pin(self.replay(machine, file)).await {
            tracing::warn!(%error, ino = file.ino, "lost writes are not sent again yet");
        }
    }

    /// Sends all lost writes of the file again, oldest first.
    pub(super) async fn replay<S: Spawn>(
        self: &Arc<Self>,
        machine: &S,
        file: Handle,
    ) -> Result<(), Error> {
        let Some(writes) = self.known(file) else { return Ok(()) };
        let alone = writes.replaying.lock().await;
        lock(&writes.state).is_replaying = true;
        let mut outcome = Ok(());
        while let Some(lost) = oldest_lost(&writes) {
            let answer = self.send_again(machine, file, &lost).await;
            if let Err(error) = self.note_answer(file, &writes, &lost, answer) {
                outcome = Err(error);
                break;
            }
        }
        let mut state = lock(&writes.state);
        state.is_replaying = false;
        state.replays += 1;
        drop(state);
        drop(alone);
        outcome
    }

    fn note_answer(
        &self,
        file: Handle,
        writes: &FileWrites,
        lost: &UnsyncedWrite,
        answer: Result<WriteResult, Error>,
    ) -> Result<(), Error> {
        let bytes = lost.change.bytes();
        let mut freed = 0;
        let mut state = lock(&writes.state);
        let is_it = |kept: &UnsyncedWrite| {
            kept.sequence == lost.sequence && kept.write_verifier == lost.write_verifier
        };
        let place = state.kept.iter().position(is_it);
        match (answer, place) {
            (Ok(done), Some(place)) => {
                let kept = &mut state.kept[place];
                kept.write_verifier = done.write_verifier;
                kept.sequence = done.sequence;
                freed += state.observe(done.write_verifier, done.committed);
            }
            (Err(Error::Undelivered { why }), _) => return Err(why.into()),
            (Err(error), Some(place)) => {
                state.kept.remove(place);
                freed += bytes;
                // The writes to a removed file went with it.
                if error != (Error::Stale {}) {
                    state.lost_at = self.losses.fetch_add(1, Relaxed) + 1;
                    tracing::warn!(%error, ino = file.ino, "a write was lost");
                }
            }
            (_, None) => {}
        }
        drop(state);
        let table = &mut *lock(&self.table);
        table.bytes = table.bytes.saturating_sub(freed);
        Ok(())
    }

    async fn send_again<S: Spawn>(
        &self,
        machine: &S,
        file: Handle,
        lost: &UnsyncedWrite,
    ) -> Result<WriteResult, Error> {
        let sequence = lost.sequence;
        match &lost.change {
            UnsyncedChange::Nothing => Err(Error::LostWrites {}),
            UnsyncedChange::Write { who, offset, data, is_append } => {
                let (offset, is_append) = (*offset, *is_append);
                let write = ReplayWrite {
                    who: (**who).clone(),
                    file,
                    offset,
                    data: data.clone(),
                    sequence,
                    is_append,
                };
                match send_with_retries(machine, write).await {
                    // Another append took its place meanwhile.
                    Err(Error::Changed {}) if is_append => {
                        self.append_again(machine, file, (who, data)).await
                    }
                    answer => answer,
                }
            }
            UnsyncedChange::Punch { who, offset, length } => {
                let (who, offset, length) = ((**who).clone(), *offset, *length);
                send_with_retries(machine, ReplayPunch { who, file, offset, length, sequence })
                    .await
            }
            UnsyncedChange::List { who, regions, skip, data } => {
                let mut result = None;
                let window = *skip..skip + data.len() as u64;
                for region in regions.walk(window) {
                    let start = (region.position - skip) as usize;
                    let part = data.slice(start..start + region.length as usize);
                    debug_assert!(part.len() <= TRANSFER_MAX as usize, "of one request");
                    let write = ReplayWrite {
                        who: (**who).clone(),
                        file,
                        offset: region.offset,
                        data: vec![part],
                        sequence,
                        is_append: false,
                    };
                    let done = send_with_retries(machine, write).await?;
                    result = Some(joined(result, done)?);
                }
                result.ok_or_else(|| Undelivered::ProtocolMismatch.into())
            }
        }
    }

    async fn append_again<S: Spawn>(
        &self,
        machine: &S,
        file: Handle,
        (who, data): (&Arc<Credentials>, &[bytes::Bytes]),
    ) -> Result<WriteResult, Error> {
        let open = self.open_append();
        let (call, acknowledged) = (open.call(), open.acknowledged());
        let (who, data) = ((**who).clone(), data.to_vec());
        let mut append = Append { who, call, again: false, acknowledged, file, data };
        for _ in 1..APPEND_TRIES_MAX {
            match send_with_retries(machine, append.clone()).await {
                Err(Error::Undelivered { .. }) => append.again = true,
                answer => return Ok(answer?.written),
            }
        }
        Ok(send_with_retries(machine, append).await?.written)
    }
}

fn oldest_lost(writes: &FileWrites) -> Option<UnsyncedWrite> {
    let state = lock(&writes.state);
    let lost = state.kept.iter().filter(|kept| kept.write_verifier != state.write_verifier);
    lost.min_by_key(|kept| kept.sequence).cloned()
}

/// The answers to two parts of one list: it is durable when both are.
fn joined(before: Option<WriteResult>, next: WriteResult) -> Result<WriteResult, Error> {
    let Some(before) = before else { return Ok(next) };
    if before.write_verifier != next.write_verifier {
        // Lost once more meanwhile: from the start.
        return Err(Undelivered::Busy.into());
    }
    Ok(WriteResult { sequence: before.sequence.max(next.sequence), ..next })
}
