//! Tasks and their wakers. Who wakes a task puts its key into one queue; the world brings the keys
//! to the run queues of their nodes.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};

use futures::future::LocalBoxFuture;
use runtime::Class;
use runtime::wire::Encoder;

use crate::slab::SlabKey;

/// The index of the future that `World::run` drives; no task has it.
pub(crate) const MAIN: u32 = u32::MAX;

pub(crate) enum TaskKind {
    /// A task of a layer.
    Plain(LocalBoxFuture<'static, ()>),
    /// A handler whose reply goes back to the node `caller`.
    Answer {
        /// Runs the handler.
        handler: LocalBoxFuture<'static, Encoder>,
        /// Whom to answer.
        caller: u32,
        call: SlabKey,
    },
}

/// The keys of all tasks that were woken and not yet queued. The mutex is never contended: wakers
/// must be `Send`, but the world is one thread.
#[derive(Default)]
struct Woken {
    keys: Mutex<Vec<SlabKey>>,
}

impl Woken {
    fn keys(&self) -> MutexGuard<'_, Vec<SlabKey>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) struct TaskWaker {
    key: SlabKey,
    /// The task is in the queue, or in the run queue of its node.
    queued: AtomicBool,
    woken: Arc<Woken>,
}

impl TaskWaker {
    /// From now on the task may be woken again.
    pub(crate) fn begin(&self) {
        self.queued.store(false, Relaxed);
    }
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Relaxed) {
            self.woken.keys().push(self.key);
        }
    }
}

struct TaskSlot {
    generation: u32,
    node: u32,
    class: Class,
    occupied: bool,
    /// Absent while the task is polled.
    work: Option<(TaskKind, Waker)>,
    waker: Arc<TaskWaker>,
}

/// All tasks of the world.
#[derive(Default)]
pub(crate) struct TaskTable {
    slots: Vec<TaskSlot>,
    free: Vec<u32>,
    woken: Arc<Woken>,
    mains: u32,
}

impl TaskTable {
    /// Adds a task and wakes it.
    pub(crate) fn spawn(&mut self, node: u32, class: Class, work: TaskKind) {
        let index = self.free.pop().unwrap_or(self.slots.len() as u32);
        let generation = self.slots.get(index as usize).map_or(0, |slot| slot.generation);
        let key = SlabKey { index, generation };
        if index as usize == self.slots.len() {
            let waker = self.waker(key);
            self.slots.push(TaskSlot {
                generation,
                node,
                class,
                occupied: false,
                work: None,
                waker,
            });
        }
        let fresh = self.woken.clone();
        let slot = &mut self.slots[index as usize];
        // Reuse the allocation of the last tenant's waker if it has no other owner.
        if let Some(waker) = Arc::get_mut(&mut slot.waker) {
            waker.key = key;
            *waker.queued.get_mut() = true;
        } else {
            let queued = AtomicBool::new(true);
            slot.waker = Arc::new(TaskWaker { key, queued, woken: fresh });
        }
        slot.node = node;
        slot.class = class;
        slot.occupied = true;
        slot.work = Some((work, Waker::from(slot.waker.clone())));
        self.woken.keys().push(key);
    }

    fn waker(&self, key: SlabKey) -> Arc<TaskWaker> {
        Arc::new(TaskWaker { key, queued: AtomicBool::new(true), woken: self.woken.clone() })
    }

    /// A waker for the future that `World::run` drives.
    pub(crate) fn main_waker(&mut self) -> (SlabKey, Arc<TaskWaker>) {
        self.mains = self.mains.wrapping_add(1);
        let key = SlabKey { index: MAIN, generation: self.mains };
        (key, self.waker(key))
    }

    /// Exchanges the keys of all woken tasks for the empty `spare`.
    pub(crate) fn take_woken(&self, spare: &mut Vec<SlabKey>) {
        let mut keys = self.woken.keys();
        if !keys.is_empty() {
            std::mem::swap(&mut *keys, spare);
        }
    }

    /// Node and class of a task, if it still exists.
    pub(crate) fn place(&self, key: SlabKey) -> Option<(u32, Class)> {
        let slot = self.slots.get(key.index as usize)?;
        (slot.occupied && slot.generation == key.generation).then_some((slot.node, slot.class))
    }

    /// Takes a task out, to be polled.
    pub(crate) fn take(&mut self, key: SlabKey) -> Option<(TaskKind, Waker)> {
        self.place(key)?;
        let slot = &mut self.slots[key.index as usize];
        slot.waker.begin();
        slot.work.take()
    }

    /// Puts a task back after a poll. Returns it if its node died meanwhile.
    pub(crate) fn put_back(
        &mut self,
        key: SlabKey,
        work: TaskKind,
        waker: Waker,
    ) -> Option<TaskKind> {
        if self.place(key).is_none() {
            return Some(work);
        }
        self.slots[key.index as usize].work = Some((work, waker));
        None
    }

    /// Forgets a task that has ended.
    pub(crate) fn finish(&mut self, key: SlabKey) {
        if self.place(key).is_some() {
            self.vacate(key.index);
        }
    }

    fn vacate(&mut self, index: u32) -> Option<TaskKind> {
        let slot = &mut self.slots[index as usize];
        slot.occupied = false;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(index);
        slot.work.take().map(|(work, _)| work)
    }

    /// Takes away all tasks of a node. To be dropped by the caller, once nothing is borrowed.
    pub(crate) fn evict(&mut self, node: u32) -> Vec<TaskKind> {
        let mut evicted = Vec::new();
        for index in 0..self.slots.len() {
            if self.slots[index].occupied && self.slots[index].node == node {
                evicted.extend(self.vacate(index as u32));
            }
        }
        evicted
    }

    /// How many tasks a node has.
    pub(crate) fn count(&self, node: u32) -> usize {
        self.slots.iter().filter(|slot| slot.occupied && slot.node == node).count()
    }
}
