//! The restart of a server is a pause: calls whose answers were lost with it are repeated.
//! Method: a server between client and model that loses answers.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a test waits, and panics where it fails"
)]

use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use client::blocking::Volume;
use client::{ByteRange, Credentials, LockKind, OpenOptions};
use fileio::model::{Model, machine};
use fileio::protocol::{FileIo, Reply, Request};
use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use runtime::{Caller, Server, Undelivered};

const BOTH: OpenOptions = OpenOptions::new().read(true).write(true).create(true);

/// Which answers are lost, and how many.
#[derive(Default)]
struct Losses {
    flushes: AtomicUsize,
    locks: AtomicUsize,
    unlocks: AtomicUsize,
}

struct LossyServer {
    model: Rc<Model>,
    losses: &'static Losses,
}

fn take_one(count: &AtomicUsize) -> bool {
    count.fetch_update(SeqCst, SeqCst, |count| count.checked_sub(1)).is_ok()
}

impl Server<FileIo> for LossyServer {
    fn handle(self: Rc<Self>, _: Caller, request: Request) -> LocalBoxFuture<'static, Reply> {
        let gone = Undelivered::Gone;
        let reply = match &request {
            // The disks that it asks are away for a while.
            Request::Flush(_) if take_one(&self.losses.flushes) => {
                let why = match self.losses.flushes.load(SeqCst) % 3 {
                    0 => Undelivered::Unreachable,
                    1 => Undelivered::Lost,
                    _ => gone,
                };
                Reply::Flush(Err(why.into()))
            }
            Request::Unlock(_) if take_one(&self.losses.unlocks) => Reply::Unlock(Err(gone.into())),
            // It was done.
            Request::Lock(_) if take_one(&self.losses.locks) => {
                self.model.answer(&request);
                Reply::Lock(Err(gone.into()))
            }
            _ => self.model.answer(&request),
        };
        async move { reply }.boxed_local()
    }
}

fn lossy() -> (Volume, &'static Losses) {
    let losses: &'static Losses = Box::leak(Box::default());
    let machine = machine::start_with(move |model| Rc::new(LossyServer { model, losses })).unwrap();
    (Volume::holding(machine.client_handle(), Credentials::root(), machine), losses)
}

#[test]
fn a_sync_of_all_waits_for_nodes_that_restart() {
    let (volume, losses) = lossy();
    volume.open("/f", BOTH).unwrap().write_at(0, "data").unwrap();
    losses.flushes.store(9, SeqCst);
    volume.sync().unwrap();
    assert_eq!(losses.flushes.load(SeqCst), 0);
}

#[test]
fn a_lock_whose_answer_is_lost_is_asked_for_again() {
    let (volume, losses) = lossy();
    let file = volume.open("/f", BOTH).unwrap();
    losses.locks.store(3, SeqCst);
    let lock = file.try_lock(ByteRange::ALL, LockKind::Exclusive {}).unwrap().unwrap();
    assert_eq!(losses.locks.load(SeqCst), 0);
    let other = volume.open("/f", BOTH).unwrap();
    assert!(other.try_lock(ByteRange::ALL, LockKind::Shared {}).unwrap().is_none());
    // It counts once.
    drop(lock);
    assert!(other.lock(ByteRange::ALL, LockKind::Shared {}).unwrap().is_held());
}

#[test]
fn a_lock_waits_for_an_earlier_unlock_as_long_as_that_takes() {
    let (volume, losses) = lossy();
    let file = volume.open("/f", BOTH).unwrap();
    let lock = file.try_lock(ByteRange::ALL, LockKind::Exclusive {}).unwrap().unwrap();
    // The unlock is sent again each second.
    losses.unlocks.store(4, SeqCst);
    drop(lock);
    std::thread::sleep(Duration::from_millis(20));
    let lock = file.try_lock(ByteRange::ALL, LockKind::Exclusive {}).unwrap();
    assert_eq!(losses.unlocks.load(SeqCst), 0);
    assert!(lock.unwrap().is_held());
}
