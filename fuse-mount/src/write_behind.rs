//! Sequential writes of a program are collected, and sent to the volume together.
//!
//! # Decision
//!
//! A write of 4 KiB costs two changes of the running thread between the program and this process,
//! and as many to the thread of the file's node or to the server. The second pair costs more than
//! all else, so with `mdfs mount --write-behind` a write is answered once it is in a buffer here.
//! Other clients see it when the file is closed or synced, as writes of an NFS client, or a little
//! more than [`DELAY_MAX`] later. Programs on several hosts that exchange data through a file
//! without a close, a sync or a lock need a mount without this.
//!
//! - Only a file that one program streams into: the open file is the only one of this mount, no
//!   lock was made through it, and [`STREAK`] writes, each after the end of the one before, were
//!   sent at once. `O_APPEND`, `O_SYNC`, `O_DSYNC`, `O_DIRECT`, and mapped pages are not delayed.
//! - Any other request for the file waits until all of the buffer is sent: one for attributes, a
//!   read, another open, a lock, the close. So this mount never shows an older size, content or
//!   time, and after a close all other clients see all.
//! - What a change of a name or the end of a lock tells others is preceded by all that was written
//!   before: the buffers of all files are sent.
//! - The buffer is sent when it has [`FULL_BYTES`], or after [`DELAY_MAX`]. A second one is filled
//!   meanwhile; when that has no room left the program waits. So large writes overlap too: one is
//!   copied while the one before is sent.
//! - A failure (`ENOSPC`, `EDQUOT`, `EIO`) is returned by the next write, and by each close of a
//!   descriptor until a sync has returned it: a child that closes its copy takes it from no one.
//!   What was buffered is dropped, and the open file collects no more. A sync through another open
//!   file does not return it.
//! - If this process is killed, what is buffered is lost, and no sync or close of the file
//!   succeeds any more (`ENOTCONN`): nothing that was reported to be durable, or closed, is lost.
//!   At a signal that ends it all is sent first.
//!
//! *Alternative*: the kernel's own write-back cache. It never believes a size that another client
//! has made, so an open could miss what others have appended.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use client::unsynced::UnsyncedWrites;
use futures::channel::oneshot;
use futures::future::join_all;
use runtime::Spawn;

use crate::inode_table::{InodeTable, OpenFile};
use crate::page_version::ContentVersion;
use crate::translate::{KernelError, KernelResult};

/// How long a write stays unsent, at most.
pub(crate) const DELAY_MAX: Duration = Duration::from_millis(100);
/// A buffer of this size is sent.
const FULL_BYTES: usize = 1 << 20;
/// While it waits for the one before it may grow to this size.
const BUFFER_MAX: usize = 2 << 20;
/// Sequential writes that are sent at once before any is collected.
const STREAK: u32 = 2;

/// What was written through one open file and is not sent yet.
#[derive(Debug, Default)]
pub(crate) struct WriteCollector {
    state: Mutex<BehindState>,
    /// Held while a buffer is sent: the next one follows it.
    sending: futures::lock::Mutex<()>,
}

#[derive(Debug, Default)]
struct BehindState {
    /// Where the last write ended, and how many in a row began where another had ended.
    next: u64,
    streak: u32,
    /// What is collected, and where it begins.
    buffer: Vec<u8>,
    start: u64,
    /// Buffers that were taken to be sent.
    taken: u64,
    /// One is being sent.
    is_sending: bool,
    /// The buffer is full, and will be taken.
    is_requested: bool,
    /// A task looks every now and then whether something is to be sent.
    is_timed: bool,
    failure: Failure,
}

/// Has a collected write failed? Then nothing is collected any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Failure {
    #[default]
    None,
    /// No sync has returned it yet, but perhaps a write.
    Unsynced {
        error: KernelError,
        is_written: bool,
    },
    Reported,
}

/// What becomes of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Collected {
    /// It must be sent at once.
    No,
    /// It is in the buffer.
    Yes,
    /// It is in the buffer, which no task sends in time: run [`CollectedWrites::send_in_time`].
    Untimed,
    /// It is in the buffer, which is full: [`CollectedWrites::send`] it.
    Full,
}

/// What a look at the buffer finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    /// It is empty, and the next write in it needs another task.
    End,
    /// It has been there for less than the time between two looks.
    Young,
    /// It was there at the last look.
    Old,
}

impl WriteCollector {
    fn state(&self) -> MutexGuard<'_, BehindState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Collects a write, if it continues those before it and `may_wait`.
    pub(crate) fn collect(&self, offset: u64, data: &[u8], may_wait: bool) -> Collected {
        let state = &mut *self.state();
        state.streak = if offset == state.next { state.streak.saturating_add(1) } else { 0 };
        state.next = offset.saturating_add(data.len() as u64);
        let (collected, wanted) = (state.buffer.len(), state.buffer.len() + data.len());
        let follows = collected == 0 || state.start + collected as u64 == offset;
        let is_sound = state.failure == Failure::None;
        if state.streak <= STREAK || !may_wait || !follows || wanted > BUFFER_MAX || !is_sound {
            return Collected::No;
        }
        if collected == 0 {
            state.start = offset;
        }
        state.buffer.extend_from_slice(data);
        if wanted >= FULL_BYTES && !state.is_requested {
            state.is_requested = true;
            return Collected::Full;
        }
        let is_timed = std::mem::replace(&mut state.is_timed, true);
        if is_timed { Collected::Yes } else { Collected::Untimed }
    }

    /// The offset and the bytes to send.
    fn take(&self) -> Option<(u64, Bytes)> {
        let state = &mut *self.state();
        state.is_requested = false;
        if state.buffer.is_empty() {
            return None;
        }
        state.is_sending = true;
        state.taken += 1;
        let mut buffer = std::mem::take(&mut state.buffer);
        // What is kept until it is durable is counted without what it has grown to.
        buffer.shrink_to_fit();
        Some((state.start, buffer.into()))
    }

    /// What was taken is sent.
    fn note_sent(&self, sent: KernelResult<()>) {
        let state = &mut *self.state();
        state.is_sending = false;
        if let Err(error) = sent {
            state.failure = Failure::Unsynced { error, is_written: false };
            state.buffer = Vec::new();
        }
    }

    /// A look of the task that sends the buffer in time. `taken` is what the last one has seen.
    fn look(&self, taken: &mut Option<u64>) -> Look {
        let state = &mut *self.state();
        if state.buffer.is_empty() {
            state.is_timed = false;
            return Look::End;
        }
        if taken.replace(state.taken) == Some(state.taken) { Look::Old } else { Look::Young }
    }

    /// Is everything sent?
    pub(crate) fn is_empty(&self) -> bool {
        let state = self.state();
        state.buffer.is_empty() && !state.is_sending
    }

    /// Must a close wait, or return an error?
    pub(crate) fn concerns_close(&self) -> bool {
        !self.is_empty() || self.shown().is_err()
    }

    /// For a close: fails if a write has failed and no sync has returned that.
    pub(crate) fn shown(&self) -> KernelResult<()> {
        match self.state().failure {
            Failure::Unsynced { error, .. } => Err(error),
            _ => Ok(()),
        }
    }

    /// For a write: fails once.
    pub(crate) fn report_to_write(&self) -> KernelResult<()> {
        match &mut self.state().failure {
            Failure::Unsynced { error, is_written } if !*is_written => {
                *is_written = true;
                Err(*error)
            }
            _ => Ok(()),
        }
    }

    /// For a sync: fails once, and then no close does.
    pub(crate) fn report(&self) -> KernelResult<()> {
        let shown = self.shown();
        if shown.is_err() {
            self.state().failure = Failure::Reported;
        }
        shown
    }
}

/// A buffer that is being sent. If that is given up, its writes have failed.
struct UnsentGuard<'a>(Option<&'a WriteCollector>);

impl UnsentGuard<'_> {
    fn end(mut self, sent: KernelResult<()>) {
        if let Some(behind) = self.0.take() {
            behind.note_sent(sent);
        }
    }
}

impl Drop for UnsentGuard<'_> {
    fn drop(&mut self) {
        if let Some(behind) = self.0.take() {
            behind.note_sent(Err(KernelError(libc::EIO)));
        }
    }
}

/// The collected writes of a mount.
#[derive(Clone, Debug)]
pub(crate) struct CollectedWrites {
    pub(crate) unsynced: Arc<UnsyncedWrites>,
    pub(crate) inodes: Arc<InodeTable>,
}

impl CollectedWrites {
    /// Sends what is collected of writes to the file, before another request for it. True if there
    /// was any. A caller that is killed meanwhile does not end the sending: the program has been
    /// answered that its writes are done.
    pub(crate) async fn send<S: Spawn>(&self, machine: &S, ino: u64) -> bool {
        let Some(open) = self.inodes.behind(ino) else { return false };
        self.send_of(machine, open).await;
        true
    }

    /// The same for all files of the mount.
    pub(crate) async fn send_all<S: Spawn>(&self, machine: &S) {
        join_all(self.inodes.all_behind().into_iter().map(|open| self.send_of(machine, open)))
            .await;
    }

    async fn send_of<S: Spawn>(&self, machine: &S, open: Arc<OpenFile>) {
        let (done, is_done) = oneshot::channel();
        let (writes, sent) = (self.clone(), open.clone());
        machine.task(move |machine| async move {
            writes.send_to_end(&machine, &sent).await;
            // The caller may be gone.
            let _ = done.send(());
        });
        if is_done.await.is_err() {
            // The machine had no room for the task.
            self.send_to_end(machine, &open).await;
        }
    }

    /// Sends what is collected through an open file after [`DELAY_MAX`] at the latest, until
    /// nothing is.
    pub(crate) async fn send_in_time<S: Spawn>(&self, machine: &S, number: u64) {
        // If it is closed, all is sent.
        let Some(open) = self.inodes.file(number) else { return };
        let mut taken = None;
        loop {
            machine.sleep(DELAY_MAX / 2).await;
            match open.behind.look(&mut taken) {
                Look::End => return,
                Look::Young => {}
                Look::Old => self.send_to_end(machine, &open).await,
            }
        }
    }

    /// Sends what was collected before this call, and waits for what is being sent.
    async fn send_to_end<S: Spawn>(&self, machine: &S, open: &OpenFile) {
        let behind = &open.behind;
        let _turn = behind.sending.lock().await;
        if let Some((offset, data)) = behind.take() {
            let unsent = UnsentGuard(Some(behind));
            let place = (open.handle, offset, vec![data]);
            let written = self.unsynced.write(machine, &open.unsynced, &open.opener, place).await;
            let is_failed = written.is_err();
            match &written {
                Ok(written) => {
                    let after = ContentVersion::of(&written.attributes, machine.restarts());
                    self.inodes.note_own_write(open.handle, written.before, after);
                }
                Err(error) => {
                    // The program is told.
                    tracing::debug!(%error, ino = open.handle.ino, "answered writes have failed");
                }
            }
            unsent.end(written.map(drop).map_err(KernelError::from));
            if is_failed {
                self.inodes.note_failed_write(open.handle);
            }
        }
        self.inodes.end_behind(open);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: usize = 4096;

    /// Writes `count` times [`SIZE`] bytes from `offset`; returns what became of the last one.
    fn stream(behind: &WriteCollector, offset: u64, count: usize) -> Collected {
        let write = |at: usize| behind.collect(offset + (at * SIZE) as u64, &[7; SIZE], true);
        (0..count).map(write).last().unwrap()
    }

    #[test]
    fn only_a_stream_of_writes_is_collected() {
        let behind = WriteCollector::default();
        assert_eq!(stream(&behind, 0, 2), Collected::No);
        assert!(behind.is_empty());
        assert_eq!(stream(&behind, 2 * SIZE as u64, 1), Collected::Untimed);
        assert_eq!(stream(&behind, 3 * SIZE as u64, 1), Collected::Yes);
        assert_eq!(stream(&behind, 9 * SIZE as u64, 3), Collected::No);
        // What was collected has not been sent, and this does not continue it.
        assert_eq!(stream(&behind, 12 * SIZE as u64, 1), Collected::No);
        assert_eq!(behind.take().map(|(at, data)| (at, data.len())), Some((8192, 8192)));
        behind.note_sent(Ok(()));
        assert_eq!(stream(&behind, 13 * SIZE as u64, 1), Collected::Yes);
        assert_eq!(behind.collect(14 * SIZE as u64, &[7; SIZE], false), Collected::No);
        behind.take();
        behind.note_sent(Ok(()));
        let large = vec![7; FULL_BYTES];
        assert_eq!(behind.collect(15 * SIZE as u64, &large, true), Collected::Full);
    }

    #[test]
    fn one_buffer_is_filled_while_another_is_sent_and_then_writes_wait() {
        let behind = WriteCollector::default();
        let full = FULL_BYTES / SIZE;
        assert_eq!(stream(&behind, 0, 2 + full), Collected::Full);
        assert_eq!(behind.take().map(|(at, data)| (at, data.len())), Some((8192, FULL_BYTES)));
        assert!(!behind.is_empty() && behind.concerns_close());
        let next = ((2 + full) * SIZE) as u64;
        assert_eq!(stream(&behind, next, full), Collected::Full);
        assert_ne!(stream(&behind, next + FULL_BYTES as u64, full), Collected::No);
        assert_eq!(stream(&behind, next + BUFFER_MAX as u64, 1), Collected::No);
        behind.note_sent(Ok(()));
        assert!(behind.take().is_some() && behind.take().is_none());
        behind.note_sent(Ok(()));
        assert!(behind.is_empty() && !behind.concerns_close());
    }

    #[test]
    fn a_buffer_whose_sending_is_given_up_has_failed() {
        let behind = WriteCollector::default();
        stream(&behind, 0, 3);
        behind.take();
        drop(UnsentGuard(Some(&behind)));
        assert!(behind.is_empty());
        assert_eq!(behind.report(), Err(KernelError(libc::EIO)));
    }

    #[test]
    fn a_buffer_is_sent_at_the_second_look() {
        let behind = WriteCollector::default();
        stream(&behind, 0, 3);
        let mut taken = None;
        assert_eq!(behind.look(&mut taken), Look::Young);
        assert_eq!(behind.look(&mut taken), Look::Old);
        behind.take();
        stream(&behind, 3 * SIZE as u64, 1);
        assert_eq!(behind.look(&mut taken), Look::Young, "this is another buffer");
        behind.take();
        assert_eq!(behind.look(&mut taken), Look::End);
        assert_eq!(stream(&behind, 4 * SIZE as u64, 1), Collected::Untimed);
    }

    #[test]
    fn a_failure_is_reported_until_the_sync_and_ends_the_collection() {
        let behind = WriteCollector::default();
        stream(&behind, 0, 3);
        behind.take();
        stream(&behind, 3 * SIZE as u64, 1);
        behind.note_sent(Err(KernelError(libc::ENOSPC)));
        assert!(behind.is_empty() && behind.concerns_close());
        assert_eq!(stream(&behind, 4 * SIZE as u64, 9), Collected::No);
        let full = Err(KernelError(libc::ENOSPC));
        assert_eq!([behind.report_to_write(), behind.report_to_write()], [full, Ok(())]);
        assert_eq!([behind.shown(), behind.shown()], [full, full], "by each close");
        assert_eq!([behind.report(), behind.report()], [full, Ok(())]);
        assert!(!behind.concerns_close());
    }
}
