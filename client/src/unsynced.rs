//! Writes that are answered and not durable yet. The client keeps them, and sends them again when
//! the server that had them in memory has crashed (ADR 73).
//!
//! - An answer names a write verifier, a number, and up to which number all is durable. What is
//!   durable under the same verifier is dropped.
//! - Another verifier in any answer means a loss: all that was answered with an earlier one is sent
//!   again at once, in the order of its numbers. Other requests for the file wait for that.
//! - Writes that are kept have a limit. At half of it the oldest files are committed, at all of it
//!   writers wait for that. Each file is committed after a few seconds in any case.
//! - What cannot be sent again is reported by the next sync, once.
//!
//! Nothing is copied: what is kept are the pieces that were sent.

mod replay;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use bytes::Bytes;
use fileio::client::send_with_retries;
use fileio::hash::ino_node;
use fileio::protocol::{
    CallId, Commit, Credentials, Error, FileIo, Handle, ListData, PunchHole, ReadData, Write,
    WriteList, WriteResult,
};
use fileio::regions::Regions;
use futures::{StreamExt as _, stream};
use runtime::sync::lock;
use runtime::{Call, NodeId, Spawn};

use crate::Change;
use crate::deposits::send_write;
use crate::leases::Leases;

/// Bytes that one client is meant to keep, at most.
pub const RETAINED_BYTES_MAX: usize = 256 << 20;

/// What a kept write counts besides its bytes, and each pattern of a list.
const ENTRY_BYTES: usize = 256;
const REGION_BYTES: usize = 96;

/// How often files that have waited long are looked for, and after how many looks one is committed.
/// The servers commit of their own accord after two seconds.
const KEEP_INTERVAL: Duration = Duration::from_secs(1);
const KEEP_TICKS: u64 = 4;

/// Before a read is repeated that found a loss.
const READ_PAUSE: Duration = Duration::from_millis(1);

/// Commits of one sync, at most: each but the last found a loss.
const SYNC_ROUNDS_MAX: u32 = 16;

/// Commits after which a writer goes on, whatever is kept: other writers are as fast.
const ROOM_ROUNDS_MAX: u32 = 64;

/// Files that are committed at a time.
const SYNCS_MAX: usize = 64;

/// A change, as it can be sent again.
#[derive(Clone, Debug)]
enum UnsyncedChange {
    Write {
        who: Arc<Credentials>,
        offset: u64,
        data: Vec<Bytes>,
        is_append: bool,
    },
    List {
        who: Arc<Credentials>,
        regions: Regions,
        skip: u64,
        data: Bytes,
    },
    Punch {
        who: Arc<Credentials>,
        offset: u64,
        length: u64,
    },
    /// What was changed was not kept.
    Nothing {
        who: Arc<Credentials>,
    },
}

impl UnsyncedChange {
    fn bytes(&self) -> usize {
        ENTRY_BYTES
            + match self {
                Self::Write { data, .. } => data.iter().map(Bytes::len).sum(),
                Self::List { data, regions, .. } => {
                    data.len() + regions.patterns().len() * REGION_BYTES
                }
                Self::Punch { .. } | Self::Nothing { .. } => 0,
            }
    }

    fn who(&self) -> &Arc<Credentials> {
        match self {
            Self::Write { who, .. }
            | Self::List { who, .. }
            | Self::Punch { who, .. }
            | Self::Nothing { who } => who,
        }
    }
}

#[derive(Clone, Debug)]
struct UnsyncedWrite {
    change: UnsyncedChange,
    write_verifier: u64,
    /// The number of the first answer, and that of the last one.
    order: u64,
    sequence: u64,
    /// The look before which it was answered.
    tick: u64,
}

/// The writes to one file.
#[derive(Debug, Default)]
struct FileWrites {
    state: Mutex<FileState>,
    /// Held while lost writes are sent again.
    replaying: futures::lock::Mutex<()>,
}

#[derive(Debug, Default)]
struct FileState {
    kept: Vec<UnsyncedWrite>,
    /// That of the last answer.
    write_verifier: u64,
    /// Up to this number all is durable under it.
    committed: u64,
    /// Some may be of an earlier verifier.
    may_have_lost: bool,
    /// Replays that are over: an answer from before one may lack what that brought back.
    replays: u64,
    /// Lost writes are being sent again.
    is_replaying: bool,
    /// The last loss that could not be mended; 0 if there was none.
    lost_at: u64,
    /// The last one that a sync has reported.
    reported_at: u64,
}

impl FileState {
    /// Takes note of an answer. Returns the bytes of what need not be kept any more.
    fn observe(&mut self, write_verifier: u64, committed: u64) -> usize {
        if self.write_verifier == write_verifier && committed <= self.committed {
            return 0;
        }
        if self.write_verifier != write_verifier {
            self.may_have_lost = !self.kept.is_empty();
            self.committed = 0;
        }
        (self.write_verifier, self.committed) = (write_verifier, committed.max(self.committed));
        let mut freed = 0;
        self.kept.retain(|kept| {
            let is_durable = kept.write_verifier == write_verifier && kept.sequence <= committed;
            freed += if is_durable { kept.change.bytes() } else { 0 };
            !is_durable
        });
        freed
    }

    fn has_lost(&mut self) -> bool {
        if self.may_have_lost {
            let is_lost = |kept: &UnsyncedWrite| kept.write_verifier != self.write_verifier;
            self.may_have_lost = self.kept.iter().any(is_lost);
        }
        self.may_have_lost
    }

    /// Nothing is to be remembered of the file.
    fn is_idle(&self) -> bool {
        self.kept.is_empty() && self.lost_at <= self.reported_at && !self.is_replaying
    }
}

/// Which losses of a file an opening of it knows: one more than the number of the last one. 0 if it
/// has not written yet: then those that were reported to others.
#[derive(Debug, Default)]
pub struct UnsyncedMark(AtomicU64);

/// The unsynced writes of one client, to all files.
#[derive(Debug)]
pub struct UnsyncedWrites {
    bytes_max: usize,
    /// Gives numbers to calls.
    leases: Arc<Leases>,
    /// Numbers of appends that are not answered yet.
    appends: Mutex<BTreeSet<u64>>,
    table: Mutex<UnsyncedFiles>,
    /// Losses that could not be mended.
    losses: AtomicU64,
    /// How many of them were reported by [`sync_all`](Self::sync_all).
    reported: AtomicU64,
}

#[derive(Debug, Default)]
struct UnsyncedFiles {
    files: BTreeMap<Handle, Arc<FileWrites>>,
    bytes: usize,
    tick: u64,
    /// A task commits files that have waited long.
    is_kept: bool,
    /// Nodes with a file that is being committed by it.
    committing: BTreeSet<NodeId>,
}

impl UnsyncedWrites {
    /// Must `change` be durable when it is answered? A cut is not sent again after a crash, so it
    /// must, if the writes around it are.
    pub fn cuts_durably(&self, change: &Change) -> bool {
        self.is_keeping() && change.size.is_some()
    }

    /// Are writes kept? Then what is not kept, and changes the size of a file, must be durable.
    pub fn is_keeping(&self) -> bool {
        self.bytes_max > 0
    }

    /// Keeps at most `bytes_max` bytes; with 0 none: then a loss is only reported.
    pub fn new(bytes_max: usize, leases: Arc<Leases>) -> Self {
        Self {
            bytes_max,
            leases,
            appends: Mutex::default(),
            table: Mutex::default(),
            losses: AtomicU64::default(),
            reported: AtomicU64::default(),
        }
    }

    /// What the client has open.
    pub fn leases(&self) -> &Arc<Leases> {
        &self.leases
    }

    /// A new append, with a call ID of its own.
    pub(crate) fn open_append(&self) -> OpenAppend<'_> {
        let mut numbers = lock(&self.appends);
        // Drawn while it is locked: a later one must not overtake it.
        let call = self.leases.call();
        numbers.insert(call.number);
        OpenAppend { appends: &self.appends, call }
    }

    /// Bytes that are kept.
    pub fn bytes(&self) -> usize {
        lock(&self.table).bytes
    }

    fn known(&self, file: Handle) -> Option<Arc<FileWrites>> {
        lock(&self.table).files.get(&file).cloned()
    }

    /// The write verifier under which all that is kept of a file is there; `None` if nothing is
    /// kept.
    pub(crate) fn verifier(&self, file: Handle) -> Option<u64> {
        let known = self.known(file)?;
        let mut state = lock(&known.state);
        // None has this one: what was lost comes first.
        let verifier = if state.has_lost() { 0 } else { state.write_verifier };
        (self.is_keeping() && !state.kept.is_empty()).then_some(verifier)
    }

    /// As whom the file was written last, of what is kept.
    pub fn last_writer(&self, file: Handle) -> Option<Arc<Credentials>> {
        let known = self.known(file)?;
        let state = lock(&known.state);
        state.kept.last().map(|write| write.change.who().clone())
    }

    /// Sends a write, and keeps it until it is durable.
    pub async fn write<S: Spawn>(
        self: &Arc<Self>,
        machine: &S,
        mark: &UnsyncedMark,
        who: &Arc<Credentials>,
        (file, offset, data): (Handle, u64, Vec<Bytes>),
    ) -> Result<WriteResult, Error> {
        let kept = data.clone();
        let change =
            UnsyncedChange::Write { who: who.clone(), offset, data: kept, is_append: false };
        let who = (**who).clone();
        let write = Write { who, file, offset, data, durable: false };
        let send = async move || send_write(machine, write).await;
        self.send_change(machine, mark, (file, change), send).await
    }

    /// The same for a window of a list.
    pub async fn write_list<S: Spawn>(
        self: &Arc<Self>,
        machine: &S,
        mark: &UnsyncedMark,
        who: &Arc<Credentials>,
        write: WriteList,
    ) -> Result<WriteResult, Error> {
        let WriteList { file, ref regions, skip, ref data, .. } = write;
        let (regions, data) = (regions.clone(), data.clone());
        let change = UnsyncedChange::List { who: who.clone(), regions, skip, data };
        let send = async move || send_with_retries(machine, write).await;
        self.send_change(machine, mark, (file, change), send).await
    }

    /// The same for a hole.
    pub async fn punch<S: Spawn>(
        self: &Arc<Self>,
        machine: &S,
        mark: &UnsyncedMark,
        who: &Arc<Credentials>,
        (file, offset, length): (Handle, u64, u64),
    ) -> Result<WriteResult, Error> {
        let change = UnsyncedChange::Punch { who: who.clone(), offset, length };
        let who = (**who).clone();
        let punch = PunchHole { who, file, offset, length, durable: false };
        let send = async move || send_with_retries(machine, punch).await;
        self.send_change(machine, mark, (file, change), send).await
    }

    async fn send_change<S: Spawn>(
        self: &Arc<Self>,
        machine: &S,
        mark: &UnsyncedMark,
        (file, change): (Handle, UnsyncedChange),
        send: impl AsyncFnOnce() -> Result<WriteResult, Error>,
    ) -> Result<WriteResult, Error> {
        self.wait_for_room(machine, file, change.bytes()).await?;
        self.wait_for_replay(file).await;
        let written = send().await?;
        self.keep(machine, mark, (file, change), &written);
        self.replay_if_lost(machine, file).await;
        Ok(written)
    }

    /// An append was answered: it is a write at a known offset.
    pub(crate) async fn note_append<S: Spawn>(
        self: &Arc<Self>,
        machine: &S,
        mark: &UnsyncedMark,
        who: &Arc<Credentials>,
        (file, offset, data): (Handle, u64, Vec<Bytes>),
        written: &WriteResult,
    ) {
        let change = UnsyncedChange::Write { who: who.clone(), offset, data, is_append: true };
        self.keep(machine, mark, (file, change), written);
        self.replay_if_lost(machine, file).await;
    }

    fn keep<S: Spawn>(
        self: &Arc<Self>,
        machine: &S,
        mark: &UnsyncedMark,
        (file, change): (Handle, UnsyncedChange),
        &WriteResult { write_verifier, sequence, committed, .. }: &WriteResult,
    ) {
        let is_counted = self.is_keeping();
        let change =
            if is_counted { change } else { UnsyncedChange::Nothing { who: change.who().clone() } };
        let table = &mut *lock(&self.table);
        let writes = table.files.entry(file).or_default();
        let mut state = lock(&writes.state);
        let _ = mark.0.compare_exchange(0, state.reported_at + 1, Relaxed, Relaxed);
        let mut freed = state.observe(write_verifier, committed);
        if sequence > state.committed {
            if !is_counted {
                // One stands for all with its verifier.
                let same = |kept: &UnsyncedWrite| kept.write_verifier == write_verifier;
                freed += state.kept.iter().filter(|kept| same(kept)).count() * ENTRY_BYTES;
                state.kept.retain(|kept| !same(kept));
            }
            table.bytes += change.bytes();
            let (order, tick) = (sequence, table.tick);
            state.kept.push(UnsyncedWrite { change, write_verifier, order, sequence, tick });
        }
        drop(state);
        table.bytes = table.bytes.saturating_sub(freed);
        if !std::mem::replace(&mut table.is_kept, true) {
            let me = Arc::downgrade(self);
            machine.task(move |machine| commit_old(machine, me));
        }
    }

    /// Takes note of an answer for a file. True if some of its writes are lost.
    fn observe(&self, file: Handle, write_verifier: u64, committed: u64) -> bool {
        let table = &mut *lock(&self.table);
        let Some(writes) = table.files.get(&file) else { return false };
        let mut state = lock(&writes.state);
        let freed = state.observe(write_verifier, committed);
        let (has_lost, is_idle) = (state.has_lost(), state.is_idle());
        drop(state);
        table.bytes = table.bytes.saturating_sub(freed);
        if is_idle {
            table.files.remove(&file);
        }
        has_lost
    }

    /// Sends a read, again if it may lack writes of this client.
    pub async fn read<S, C>(
        self: &Arc<Self>,
        machine: &S,
        file: Handle,
        call: C,
    ) -> Result<C::Reply, Error>
    where
        S: Spawn,
        C: Call<Protocol = FileIo> + Clone,
        C::Reply: Verified,
    {
        loop {
            let Some(writes) = self.known(file) else {
                return send_with_retries(machine, call).await;
            };
            self.wait_for_replay(file).await;
            let replays = lock(&writes.state).replays;
            let read = send_with_retries(machine, call.clone()).await?;
            let is_lost = self.observe(file, read.write_verifier(), 0);
            if is_lost {
                self.replay_if_lost(machine, file).await;
                machine.sleep(READ_PAUSE).await;
            } else {
                let state = lock(&writes.state);
                if state.replays == replays && !state.is_replaying {
                    return Ok(read);
                }
            }
        }
    }

    /// Before a request whose answer does not tell of a loss: what was lost is there again.
    pub async fn refresh<S: Spawn>(
        self: &Arc<Self>,
        machine: &S,
        file: Handle,
        who: &Arc<Credentials>,
    ) -> Result<Option<WriteResult>, Error> {
        if self.known(file).is_none() {
            return Ok(None);
        }
        let who = (**who).clone();
        let nothing = Write { who, file, offset: 0, data: Vec::new(), durable: false };
        self.wait_for_replay(file).await;
        let looked = send_with_retries(machine, nothing.clone()).await?;
        if !self.observe(file, looked.write_verifier, looked.committed) {
            return Ok(Some(looked));
        }
        self.replay_if_lost(machine, file).await;
        Ok(Some(send_with_retries(machine, nothing).await?))
    }

    /// Makes all writes to a file durable. [`Error::LostWrites`] if writes since `mark` are lost.
    pub async fn sync<S: Spawn>(
        self: &Arc<Self>,
        machine: &S,
        mark: &UnsyncedMark,
        file: Handle,
    ) -> Result<(), Error> {
        let writes = self.known(file);
        self.commit(machine, file).await?;
        let Some(writes) = writes else { return Ok(()) };
        let mut state = lock(&writes.state);
        let known = mark.0.swap(state.lost_at + 1, Relaxed).checked_sub(1);
        let is_new = state.lost_at > known.unwrap_or(state.reported_at);
        state.reported_at = state.lost_at;
        if is_new { Err(Error::LostWrites {}) } else { Ok(()) }
    }

    /// Commits a file, and again after each loss.
    async fn commit<S: Spawn>(self: &Arc<Self>, machine: &S, file: Handle) -> Result<(), Error> {
        for _ in 0..SYNC_ROUNDS_MAX {
            self.wait_for_replay(file).await;
            let done = send_with_retries(machine, Commit { file }).await?;
            if !self.observe(file, done.write_verifier, done.committed) {
                return Ok(());
            }
            self.replay(machine, file).await?;
        }
        Err(runtime::Undelivered::Busy.into())
    }

    /// Makes all writes to all files durable. [`Error::LostWrites`] if some were lost since the
    /// last call.
    pub async fn sync_all<S: Spawn>(self: &Arc<Self>, machine: &S) -> Result<(), Error> {
        let files: Vec<Handle> = lock(&self.table).files.keys().copied().collect();
        let syncs = files.into_iter().map(|file| self.commit(machine, file));
        let synced: Vec<_> = stream::iter(syncs).buffer_unordered(SYNCS_MAX).collect().await;
        for synced in synced {
            match synced {
                // Removed, with its writes.
                Ok(()) | Err(Error::Stale {}) => {}
                Err(error) => return Err(error),
            }
        }
        let losses = self.losses.load(Relaxed);
        if self.reported.swap(losses, Relaxed) < losses {
            return Err(Error::LostWrites {});
        }
        Ok(())
    }

    /// Waits until `bytes` more bytes for `file` can be kept: files of the same node are committed.
    /// Those of a node that is away do not hold up others.
    pub(crate) async fn wait_for_room<S: Spawn>(
        self: &Arc<Self>,
        machine: &S,
        file: Handle,
        bytes: usize,
    ) -> Result<(), Error> {
        if !self.is_keeping() {
            return Ok(());
        }
        let node = ino_node(file.ino, machine.fs_nodes());
        for _ in 0..ROOM_ROUNDS_MAX {
            let kept = self.bytes();
            if kept == 0 || kept + bytes <= self.bytes_max {
                break;
            }
            let Some(oldest) = self.oldest(0, node, machine.fs_nodes()) else { break };
            let committed = self.commit_or_drop(machine, oldest).await;
            if oldest == file {
                committed?;
            } else if let Err(error) = committed {
                // Its own sync reports it.
                tracing::warn!(%error, ino = oldest.ino, "unsynced writes are not durable yet");
                break;
            }
        }
        Ok(())
    }

    /// The file of `node` with the oldest write, if that was answered `ticks` looks ago.
    fn oldest(&self, ticks: u64, node: NodeId, fs_nodes: u32) -> Option<Handle> {
        let table = lock(&self.table);
        let of_node = table.files.iter().filter(|(file, _)| ino_node(file.ino, fs_nodes) == node);
        let oldest = of_node.filter_map(|(&file, writes)| {
            let tick = lock(&writes.state).kept.first()?.tick;
            Some((tick, file))
        });
        let (tick, file) = oldest.min()?;
        (tick + ticks <= table.tick).then_some(file)
    }

    async fn commit_or_drop<S: Spawn>(
        self: &Arc<Self>,
        machine: &S,
        file: Handle,
    ) -> Result<(), Error> {
        match self.commit(machine, file).await {
            Err(Error::Stale {}) => {
                self.drop_all(file);
                Ok(())
            }
            committed => committed,
        }
    }

    /// The file is gone.
    fn drop_all(&self, file: Handle) {
        let table = &mut *lock(&self.table);
        if let Some(writes) = table.files.remove(&file) {
            let kept = std::mem::take(&mut lock(&writes.state).kept);
            let freed: usize = kept.iter().map(|kept| kept.change.bytes()).sum();
            table.bytes = table.bytes.saturating_sub(freed);
        }
    }
}

/// An append that is not answered yet, until it is dropped.
#[derive(Debug)]
pub(crate) struct OpenAppend<'a> {
    appends: &'a Mutex<BTreeSet<u64>>,
    call: CallId,
}

impl OpenAppend<'_> {
    /// Its call.
    pub(crate) fn call(&self) -> CallId {
        self.call
    }

    /// The number of the oldest append of the client that is not answered.
    pub(crate) fn acknowledged(&self) -> u64 {
        lock(self.appends).first().copied().unwrap_or(self.call.number)
    }
}

impl Drop for OpenAppend<'_> {
    fn drop(&mut self) {
        lock(self.appends).remove(&self.call.number);
    }
}

/// Commits files whose writes have waited long, or take too much, as long as there are any and
/// their client lives. A node that does not answer holds up its own files only.
async fn commit_old<S: Spawn>(machine: S, unsynced: Weak<UnsyncedWrites>) {
    loop {
        machine.sleep(KEEP_INTERVAL).await;
        let Some(known) = unsynced.upgrade() else { return };
        let fs_nodes = machine.fs_nodes();
        let free: BTreeSet<NodeId> = {
            let table = &mut *lock(&known.table);
            table.tick += 1;
            if table.committing.is_empty()
                && table.files.values().all(|writes| lock(&writes.state).kept.is_empty())
            {
                table.is_kept = false;
                return;
            }
            let nodes = table.files.keys().map(|file| ino_node(file.ino, fs_nodes));
            let free = nodes.filter(|node| !table.committing.contains(node)).collect();
            table.committing.extend(&free);
            free
        };
        for node in free {
            let unsynced = unsynced.clone();
            machine.task(move |machine| commit_old_of(machine, unsynced, node));
        }
    }
}

/// The same for the files of one node.
async fn commit_old_of<S: Spawn>(machine: S, unsynced: Weak<UnsyncedWrites>, node: NodeId) {
    let Some(unsynced) = unsynced.upgrade() else { return };
    loop {
        let is_half_full = unsynced.is_keeping() && unsynced.bytes() > unsynced.bytes_max / 2;
        let ticks = if is_half_full { 0 } else { KEEP_TICKS };
        let Some(file) = unsynced.oldest(ticks, node, machine.fs_nodes()) else { break };
        if let Err(error) = unsynced.commit_or_drop(&machine, file).await {
            tracing::debug!(%error, ino = file.ino, "unsynced writes are not durable yet");
            break;
        }
    }
    lock(&unsynced.table).committing.remove(&node);
}

/// An answer that tells of losses.
pub trait Verified {
    /// The write verifier of the file.
    fn write_verifier(&self) -> u64;
}

impl Verified for ReadData {
    fn write_verifier(&self) -> u64 {
        self.write_verifier
    }
}

impl Verified for ListData {
    fn write_verifier(&self) -> u64 {
        self.write_verifier
    }
}
