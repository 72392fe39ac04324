//! Waiting for an instant of virtual time, or for a notification by the world.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use crate::slab::{KeyedSlab, SlabKey};

/// All alarms of a world.
pub(crate) type AlarmTable = RefCell<KeyedSlab<AlarmState>>;

/// The world's side of an alarm.
#[derive(Debug, Default)]
pub(crate) struct AlarmState {
    rung: bool,
    waker: Option<Waker>,
}

impl AlarmState {
    /// Lets the alarm ring; whom to wake.
    pub(crate) fn ring(&mut self) -> Option<Waker> {
        self.rung = true;
        self.waker.take()
    }
}

/// Resolves when the world rings.
pub(crate) struct Alarm {
    alarms: Rc<AlarmTable>,
    key: SlabKey,
}

impl Alarm {
    pub(crate) fn new(alarms: Rc<AlarmTable>) -> Self {
        let key = alarms.borrow_mut().insert(AlarmState::default());
        Self { alarms, key }
    }

    pub(crate) fn key(&self) -> SlabKey {
        self.key
    }
}

impl Future for Alarm {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut alarms = self.alarms.borrow_mut();
        let Some(state) = alarms.get_mut(self.key) else { return Poll::Ready(()) };
        if state.rung {
            return Poll::Ready(());
        }
        match &mut state.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        Poll::Pending
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        let removed = self.alarms.borrow_mut().remove(self.key);
        drop(removed);
    }
}

/// A value that the world will bring.
pub(crate) struct Promise<T>(Rc<RefCell<(Option<T>, Option<Waker>)>>);

impl<T> Promise<T> {
    /// The two ends.
    pub(crate) fn new() -> (Self, Promised<T>) {
        let shared = Rc::new(RefCell::new((None, None)));
        (Self(shared.clone()), Promised(shared))
    }

    pub(crate) fn keep(self, value: T) {
        let waker = {
            let mut shared = self.0.borrow_mut();
            shared.0 = Some(value);
            shared.1.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Resolves once the promise is kept; never, if it is dropped.
pub(crate) struct Promised<T>(Rc<RefCell<(Option<T>, Option<Waker>)>>);

impl<T> Future for Promised<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let mut shared = self.0.borrow_mut();
        if let Some(value) = shared.0.take() {
            return Poll::Ready(value);
        }
        shared.1 = Some(cx.waker().clone());
        Poll::Pending
    }
}
