//! Reads of one opening of a file over a link with delay.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::channel::oneshot;
use futures::future::Shared;
use runtime::Spawn;

use super::{AGE_MAX, FileChanges, FileMark, ReservedBytes, WideMode, WideSession, lock};
use crate::Attributes;
use crate::adaptive::ahead::{AheadPlanner, TRANSFER_MAX};
use crate::adaptive::thesis::Reader;
use crate::error::Cause;
use crate::file::{File, read_piece};

/// What a transfer has brought; `None` if it failed.
type Fetched = Option<Arc<[Bytes]>>;

/// A transfer that is under way or unread.
#[derive(Debug)]
struct AheadTransfer {
    end: u64,
    /// Changes of the file before it was asked for.
    changes: u64,
    asked: Duration,
    arrival: Shared<oneshot::Receiver<Fetched>>,
    _reserved: ReservedBytes,
}

#[derive(Debug)]
enum Plan {
    Ahead(AheadPlanner),
    Thesis(Reader),
}

#[derive(Debug)]
struct ReaderState {
    plan: Plan,
    /// By their starts.
    transfers: BTreeMap<u64, AheadTransfer>,
    /// As last seen.
    mark: Option<FileMark>,
}

impl ReaderState {
    fn discard(&mut self) {
        self.transfers.clear();
        match &mut self.plan {
            Plan::Ahead(ahead) => ahead.discard(),
            Plan::Thesis(reader) => reader.discard(),
        }
    }

    fn note_used(&mut self, range: &Range<u64>) {
        if let Plan::Ahead(ahead) = &mut self.plan {
            for over in ahead.use_bytes(range) {
                self.transfers.remove(&over);
            }
        }
    }

    fn at(&self, offset: u64) -> Option<(u64, &AheadTransfer)> {
        let (start, transfer) = self.transfers.range(..=offset).next_back()?;
        (transfer.end > offset).then_some((*start, transfer))
    }

    /// The program waits for `wanted`: which transfers start now. The second range is the part of
    /// `wanted` that is given at a time.
    fn start(&mut self, wanted: &Range<u64>, session: &WideSession) -> (Vec<Range<u64>>, u64) {
        match &mut self.plan {
            Plan::Ahead(ahead) => (ahead.start(wanted), wanted.end),
            Plan::Thesis(reader) => {
                let (part, fetched) = reader.read(wanted, &session.figures());
                let Some(fetched) = fetched else { return (Vec::new(), part.end) };
                self.transfers.clear();
                let starts = fetched.clone().step_by(TRANSFER_MAX as usize);
                let cut = |start: u64| start..fetched.end.min(start + TRANSFER_MAX);
                (starts.map(cut).collect(), part.end)
            }
        }
    }
}

/// What a read waits for.
struct Awaited {
    /// The first part of what is wanted that one transfer brings, or none.
    part: Range<u64>,
    /// What that transfer brings; empty if there is none.
    whole: Range<u64>,
    /// Changes of the file before any of it was asked for.
    changes: u64,
    /// That transfer is the last.
    arrivals: Vec<Shared<oneshot::Receiver<Fetched>>>,
}

/// Reads ahead for one opening of a file.
#[derive(Debug)]
pub(crate) struct WideReader {
    session: Arc<WideSession>,
    changes: Arc<FileChanges>,
    state: Mutex<ReaderState>,
}

impl WideReader {
    pub(super) fn new(session: Arc<WideSession>, changes: Arc<FileChanges>) -> Self {
        let bytes_max = session.mode.bytes_max();
        let plan = match session.mode {
            WideMode::Thesis => Plan::Thesis(Reader::new(bytes_max)),
            // One transfer that is waited for comes on top.
            _ => Plan::Ahead(AheadPlanner::new(bytes_max - TRANSFER_MAX)),
        };
        let state = ReaderState { plan, transfers: BTreeMap::new(), mark: None };
        Self { session, changes, state: Mutex::new(state) }
    }

    /// What was read ahead is of no use any more: the file changes, or is locked.
    pub(crate) fn discard(&self) {
        self.changes.0.fetch_add(1, Relaxed);
    }

    /// The attributes of the file were seen: if they tell of a change, what was read ahead is of no
    /// use any more.
    pub(crate) fn note_attributes(&self, attributes: &Attributes) {
        let mark = Some(FileMark::of(attributes));
        if std::mem::replace(&mut lock(&self.state).mark, mark) != mark {
            self.discard();
        }
    }

    /// Reads `range`, if the link is one for that. Returns the bytes in pieces; they are fewer at
    /// the end of the file only.
    pub(crate) async fn read<S: Spawn>(
        &self,
        file: &File<S>,
        range: Range<u64>,
    ) -> Option<Result<Vec<Bytes>, Cause>> {
        if range.is_empty() || !self.session.is_far(file.machine(), file.handle).await {
            return None;
        }
        self.ask(&range);
        Some(self.read_far(file, range).await)
    }

    fn ask(&self, range: &Range<u64>) {
        let state = &mut *lock(&self.state);
        if let Plan::Ahead(ahead) = &mut state.plan {
            for over in ahead.ask(range, &self.session.figures()) {
                state.transfers.remove(&over);
            }
        }
    }

    async fn read_far<S: Spawn>(
        &self,
        file: &File<S>,
        mut rest: Range<u64>,
    ) -> Result<Vec<Bytes>, Cause> {
        let mut parts = Vec::new();
        while !rest.is_empty() {
            let Awaited { part, whole, changes, arrivals } = self.start(file, &rest);
            let mut fetched = None;
            for arrival in arrivals {
                fetched = arrival.await.ok().flatten();
            }
            let fetched = fetched.filter(|_| changes == self.changes.0.load(Relaxed));
            let here = fetched.and_then(|fetched| self.take(&part, &whole, &fetched));
            if let Some(data) = here {
                rest.start += data.iter().map(|part| part.len() as u64).sum::<u64>();
                parts.extend(data);
                continue;
            }
            let end = part.end.min(part.start + TRANSFER_MAX);
            let piece = (rest.start, (end - rest.start) as u32);
            let (data, is_complete) = read_piece(file.machine(), &file.source(), piece).await?;
            parts.extend(data);
            if !is_complete {
                break;
            }
            lock(&self.state).note_used(&(rest.start..end));
            rest.start = end;
        }
        Ok(parts)
    }

    /// Starts transfers. Returns what to wait for.
    fn start<S: Spawn>(&self, file: &File<S>, wanted: &Range<u64>) -> Awaited {
        let now = file.machine().now().unwrap_or_default();
        let changes = self.changes.0.load(Relaxed);
        let state = &mut *lock(&self.state);
        let is_stale =
            |it: &AheadTransfer| it.changes != changes || now.saturating_sub(it.asked) > AGE_MAX;
        if state.transfers.values().any(is_stale) {
            state.discard();
        }
        let (started, end) = state.start(wanted, &self.session);
        for range in &started {
            if let Some(reserved) = self.session.reserve(range.end - range.start) {
                let arrival = self.fetch(file, range.clone(), now);
                let transfer = AheadTransfer {
                    end: range.end,
                    changes,
                    asked: now,
                    arrival,
                    _reserved: reserved,
                };
                state.transfers.insert(range.start, transfer);
            }
        }
        let is_synchronous = matches!(state.plan, Plan::Thesis(_)) && !started.is_empty();
        let whole = is_synchronous.then(|| state.transfers.values().map(|it| it.arrival.clone()));
        let mut arrivals: Vec<_> = whole.into_iter().flatten().collect();
        let Some((start, transfer)) = state.at(wanted.start) else {
            let next = state.transfers.range(wanted.start..).next();
            let end = next.map_or(end, |(start, _)| end.min(*start));
            return Awaited { part: wanted.start..end, whole: 0..0, changes, arrivals };
        };
        arrivals.push(transfer.arrival.clone());
        let whole = start..transfer.end;
        Awaited { part: wanted.start..end.min(transfer.end), whole, changes, arrivals }
    }

    /// Asks for `range` in the background.
    fn fetch<S: Spawn>(
        &self,
        file: &File<S>,
        range: Range<u64>,
        now: Duration,
    ) -> Shared<oneshot::Receiver<Fetched>> {
        let (sender, receiver) = oneshot::channel();
        let (session, source) = (self.session.clone(), file.source());
        let departure = session.depart(now);
        file.machine().task(move |machine| async move {
            let piece = (range.start, (range.end - range.start) as u32);
            let read = read_piece(&machine, &source, piece).await;
            let fetched = read.ok().map(|(data, _)| Arc::<[Bytes]>::from(data));
            let bytes = fetched.iter().flat_map(|data| data.iter()).map(|it| it.len() as u64).sum();
            if bytes > 0 {
                session.arrive(departure, machine.now().unwrap_or(now), bytes);
            }
            // The program may want it no more.
            let _ = sender.send(fetched);
        });
        receiver.shared()
    }

    /// The bytes of `part` out of a transfer of `whole`; at least one.
    fn take(&self, part: &Range<u64>, whole: &Range<u64>, fetched: &[Bytes]) -> Option<Vec<Bytes>> {
        if whole.is_empty() {
            return None;
        }
        let mut skip = (part.start - whole.start) as usize;
        let mut rest = (part.end - part.start) as usize;
        let mut data = Vec::new();
        let mut count = whole.start;
        for piece in fetched {
            count += piece.len() as u64;
            let cut = skip.min(piece.len());
            skip -= cut;
            let length = rest.min(piece.len() - cut);
            rest -= length;
            if length > 0 {
                data.push(piece.slice(cut..cut + length));
            }
        }
        let is_short = count < whole.end;
        let state = &mut *lock(&self.state);
        let used = part.start..part.end - rest as u64;
        state.note_used(&used);
        if let Plan::Ahead(ahead) = &mut state.plan
            && is_short
        {
            ahead.note_end(count);
        }
        (!data.is_empty()).then_some(data)
    }
}
