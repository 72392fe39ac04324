//! What there is to do, for several workers: files that the walk has found, and pieces of large
//! ones.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

/// Files that wait for a worker, at most: then the walk waits.
const ITEMS_MAX: usize = 1024;

/// One thing to do.
pub(super) enum Job<I, T> {
    Item(I),
    /// A piece of `T` from this offset on.
    Piece(Arc<T>, u64),
}

/// The work of one copy.
pub(super) struct WorkerPool<I, T> {
    state: Mutex<PoolState<I, T>>,
    changed: Condvar,
}

struct PoolState<I, T> {
    items: VecDeque<I>,
    pieces: VecDeque<(Arc<T>, VecDeque<u64>)>,
    walking: bool,
    /// Workers that do something, of which pieces may come.
    busy: usize,
}

/// A worker has a job until this is dropped.
pub(super) struct BusyWorker<'c, I, T>(&'c WorkerPool<I, T>);

impl<I, T> Drop for BusyWorker<'_, I, T> {
    fn drop(&mut self) {
        self.0.state.lock().busy -= 1;
        self.0.changed.notify_all();
    }
}

impl<I, T> WorkerPool<I, T> {
    pub(super) fn new() -> Self {
        let (items, pieces) = (VecDeque::new(), VecDeque::new());
        Self {
            state: Mutex::new(PoolState { items, pieces, walking: true, busy: 0 }),
            changed: Condvar::new(),
        }
    }

    /// Adds an item, when there is room.
    pub(super) fn put(&self, item: I) {
        let mut state = self.state.lock();
        while state.items.len() >= ITEMS_MAX {
            self.changed.wait(&mut state);
        }
        state.items.push_back(item);
        self.changed.notify_all();
    }

    /// Adds pieces; they come before any item, so that few files are open at once.
    pub(super) fn share(&self, of: Arc<T>, offsets: impl Iterator<Item = u64>) {
        self.state.lock().pieces.push_back((of, offsets.collect()));
        self.changed.notify_all();
    }

    /// No item comes any more.
    pub(super) fn end_walk(&self) {
        self.state.lock().walking = false;
        self.changed.notify_all();
    }

    /// The next thing to do; none when everything is done.
    pub(super) fn next(&self) -> Option<(Job<I, T>, BusyWorker<'_, I, T>)> {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.take() {
                state.busy += 1;
                self.changed.notify_all();
                return Some((job, BusyWorker(self)));
            }
            if !state.walking && state.busy == 0 {
                return None;
            }
            self.changed.wait(&mut state);
        }
    }
}

impl<I, T> PoolState<I, T> {
    fn take(&mut self) -> Option<Job<I, T>> {
        while let Some((of, offsets)) = self.pieces.front_mut() {
            if let Some(offset) = offsets.pop_front() {
                return Some(Job::Piece(Arc::clone(of), offset));
            }
            self.pieces.pop_front();
        }
        self.items.pop_front().map(Job::Item)
    }
}
