//! Sending lost writes again.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use fileio::client::send_with_retries;
use fileio::protocol::{
    Append, Appended, Credentials, Error, Handle, ReplayPunch, ReplayWrite, TRANSFER_MAX,
    WriteResult,
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
        'batches: loop {
            let lost = lost_writes(&writes);
            let Some(verifier) = lost.first().map(|_| lock(&writes.state).write_verifier) else {
                break;
            };
            for write in lost {
                let answer = self.send_again(machine, file, &write).await;
                if let Err(error) = self.note_answer(file, &writes, &write, answer) {
                    outcome = Err(error);
                    break 'batches;
                }
                if lock(&writes.state).write_verifier != verifier {
                    // Lost once more: from the start.
                    break;
                }
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
        answer: Result<ResentWrite, Error>,
    ) -> Result<(), Error> {
        let bytes = lost.change.bytes();
        let mut freed = 0;
        let mut state = lock(&writes.state);
        let is_it = |kept: &UnsyncedWrite| {
            kept.order == lost.order && kept.write_verifier == lost.write_verifier
        };
        let place = state.kept.iter().position(is_it);
        match (answer, place) {
            (Ok(ResentWrite { done, moved_to }), Some(place)) => {
                let kept = &mut state.kept[place];
                kept.write_verifier = done.write_verifier;
                kept.sequence = done.sequence;
                if let (Some(moved_to), UnsyncedChange::Write { offset, .. }) =
                    (moved_to, &mut kept.change)
                {
                    (*offset, kept.order) = (moved_to, done.sequence);
                }
                let order = kept.order;
                state.may_have_lost = true;
                freed += state.observe(done.write_verifier, done.committed);
                let is_done = |kept: &UnsyncedWrite| {
                    kept.order == order && kept.write_verifier == done.write_verifier
                };
                if done.sequence <= state.committed
                    && let Some(place) = state.kept.iter().position(is_done)
                {
                    freed += state.kept.remove(place).change.bytes();
                }
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
    ) -> Result<ResentWrite, Error> {
        let &UnsyncedWrite { ref change, order, sequence, .. } = lost;
        let replay = |who: &Credentials, offset, data, is_append| {
            let who = who.clone();
            ReplayWrite { who, file, offset, data, order, sequence, is_append }
        };
        let done = match change {
            // It is lost, unless the server has stopped in order.
            UnsyncedChange::Nothing { who } => {
                send_with_retries(machine, replay(who, 0, Vec::new(), false)).await?
            }
            UnsyncedChange::Write { who, offset, data, is_append } => {
                let write = replay(who, *offset, data.clone(), *is_append);
                match send_with_retries(machine, write).await {
                    // Another append took its place meanwhile.
                    Err(Error::Changed {}) if *is_append => {
                        let Appended { offset, written: done } =
                            self.append_again(machine, file, (who, data)).await?;
                        return Ok(ResentWrite { done, moved_to: Some(offset) });
                    }
                    answer => answer?,
                }
            }
            UnsyncedChange::Punch { who, offset, length } => {
                let (who, offset, length) = ((**who).clone(), *offset, *length);
                let punch = ReplayPunch { who, file, offset, length, order, sequence };
                send_with_retries(machine, punch).await?
            }
            UnsyncedChange::List { who, regions, skip, data } => {
                let mut result = None;
                let window = *skip..skip + data.len() as u64;
                for region in regions.walk(window) {
                    let start = (region.position - skip) as usize;
                    let part = data.slice(start..start + region.length as usize);
                    debug_assert!(part.len() <= TRANSFER_MAX as usize, "of one request");
                    let write = replay(who, region.offset, vec![part], false);
                    let done = send_with_retries(machine, write).await?;
                    result = Some(joined(result, done)?);
                }
                result.ok_or(Undelivered::ProtocolMismatch)?
            }
        };
        Ok(ResentWrite { done, moved_to: None })
    }

    async fn append_again<S: Spawn>(
        &self,
        machine: &S,
        file: Handle,
        (who, data): (&Arc<Credentials>, &[bytes::Bytes]),
    ) -> Result<Appended, Error> {
        let open = self.open_append();
        let (call, acknowledged) = (open.call(), open.acknowledged());
        let (who, data) = ((**who).clone(), data.to_vec());
        // Those before it have been sent again.
        let only_if_verifier = None;
        let mut append =
            Append { who, call, again: false, acknowledged, only_if_verifier, file, data };
        for _ in 1..APPEND_TRIES_MAX {
            match send_with_retries(machine, append.clone()).await {
                Err(Error::Undelivered { .. }) => append.again = true,
                answer => return answer,
            }
        }
        send_with_retries(machine, append).await
    }
}

/// The answer to a write that was sent again.
struct ResentWrite {
    done: WriteResult,
    /// It is an append, and another one: this is its place in the file.
    moved_to: Option<u64>,
}

/// All lost writes of the file, oldest first.
fn lost_writes(writes: &FileWrites) -> Vec<UnsyncedWrite> {
    let mut state = lock(&writes.state);
    if !state.has_lost() {
        return Vec::new();
    }
    let is_lost = |kept: &&UnsyncedWrite| kept.write_verifier != state.write_verifier;
    let mut lost: Vec<UnsyncedWrite> = state.kept.iter().filter(is_lost).cloned().collect();
    lost.sort_by_key(|kept| kept.order);
    lost
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
