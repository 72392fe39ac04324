//! Transfers of any length arrive whole, in pieces that run at once, and are not copied on the way.
//! Method: a server between client and model that watches the writes.

#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use bytes::Bytes;
use client::blocking::Volume;
use client::file::PIECES_MAX;
use client::stream::BUFFER_SIZE;
use client::{Cause, Credentials, OpenOptions};
use fileio::client::{BUSY_TRIES_MAX, RETRY_ROUNDS_MAX};
use fileio::model::{Model, machine};
use fileio::protocol::{Error as FileIoError, FileIo, Reply, Request, TRANSFER_MAX};
use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use runtime::seed::Rng;
use runtime::{Caller, NodeId, Server, Undelivered};

/// What the watcher has seen, for all nodes of one machine.
#[derive(Default)]
struct Seen {
    running: AtomicUsize,
    running_max: AtomicUsize,
    longest: AtomicUsize,
    address: AtomicUsize,
    /// Times that what was written and not committed was lost.
    losses: AtomicU64,
}

struct Watcher {
    model: Rc<Model>,
    seen: &'static Seen,
}

impl Server<FileIo> for Watcher {
    fn handle(self: Rc<Self>, _: Caller, request: Request) -> LocalBoxFuture<'static, Reply> {
        async move {
            if let Request::Write(write) = &request {
                let running = self.seen.running.fetch_add(1, SeqCst) + 1;
                self.seen.running_max.fetch_max(running, SeqCst);
                self.seen.longest.fetch_max(write.data[0].len(), SeqCst);
                self.seen.address.store(write.data[0].as_ptr() as usize, SeqCst);
                yield_many().await;
                self.seen.running.fetch_sub(1, SeqCst);
            }
            let mut reply = self.model.answer(&request);
            if let Reply::Write(Ok(verified)) | Reply::Commit(Ok(verified)) = &mut reply {
                verified.write_verifier += self.seen.losses.load(SeqCst);
            }
            if let Reply::ReplayWrite(answer) = &mut reply {
                *answer = Err(FileIoError::LostWrites {});
            }
            reply
        }
        .boxed_local()
    }
}

/// Lets everything else that is ready run first.
async fn yield_many() {
    for _ in 0..100 {
        let waited = Cell::new(false);
        futures::future::poll_fn(|cx| {
            if waited.replace(true) {
                return std::task::Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            std::task::Poll::Pending
        })
        .await;
    }
}

fn watched() -> (Volume, &'static Seen) {
    let seen: &'static Seen = Box::leak(Box::default());
    let watch = move |model| Rc::new(Watcher { model, seen });
    let machine = machine::start_with(watch).unwrap();
    (Volume::holding(machine.client_handle(), Credentials::root(), machine), seen)
}

fn random(length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    Rng::new(7).fill(&mut bytes);
    bytes
}

const BOTH: OpenOptions = OpenOptions::new().read(true).write(true).create(true);

#[test]
fn a_long_transfer_runs_in_bounded_pieces_and_arrives_whole() {
    let (volume, seen) = watched();
    let file = volume.open("/f", BOTH).unwrap();
    let data = Bytes::from(random(6 * TRANSFER_MAX as usize + 12_345));
    file.write_at(1000, data.clone()).unwrap();
    assert_eq!(seen.longest.load(SeqCst), TRANSFER_MAX as usize);
    assert_eq!(seen.running_max.load(SeqCst), PIECES_MAX);
    let mut back = vec![0xFF; data.len() + 2000];
    assert_eq!(file.read_at(0, &mut back).unwrap(), data.len() + 1000);
    assert!(back[..1000].iter().all(|&byte| byte == 0));
    assert!(back[1000..].starts_with(&data));
    assert_eq!(file.read_bytes_at(data.len() as u64 + 1000, 10).unwrap(), Vec::<Bytes>::new());
    assert_eq!(file.read_bytes_at(u64::MAX, 10).unwrap(), Vec::<Bytes>::new());
    assert_eq!(file.append("tail").unwrap(), data.len() as u64 + 1004);
    let error = file.write_at(u64::MAX - 1, "xyz").unwrap_err();
    assert_eq!(error.cause, Cause::FileIo(FileIoError::FileTooLarge {}));
    file.sync().unwrap();
    file.set_len(3).unwrap();
    assert_eq!(file.metadata().unwrap().size, 3);
}

#[test]
fn an_owned_write_reaches_the_server_without_a_copy() {
    let (volume, seen) = watched();
    let mut stream = volume.stream("/f", "w+".parse().unwrap()).unwrap();
    let data = Bytes::from(random(BUFFER_SIZE));
    stream.write_bytes(data.clone()).unwrap();
    assert_eq!(seen.address.load(SeqCst), data.as_ptr() as usize, "the very same bytes");
    assert_eq!(stream.copied_bytes(), 0);
    stream.seek(0, client::stream::Whence::Set).unwrap();
    assert_eq!(stream.read_bytes(BUFFER_SIZE).unwrap().concat(), data);
    let mut back = vec![0; BUFFER_SIZE];
    stream.seek(0, client::stream::Whence::Set).unwrap();
    assert_eq!(stream.read(&mut back).unwrap(), BUFFER_SIZE);
    assert_eq!(stream.copied_bytes(), 0, "long transfers go past the buffer");

    stream.write(&data).unwrap();
    assert_eq!(stream.copied_bytes(), BUFFER_SIZE as u64, "a borrowed slice is copied once");
    stream.write(b"short").unwrap();
    assert_eq!(stream.copied_bytes(), BUFFER_SIZE as u64 + 5);
    stream.close().unwrap();
}

/// Refuses the first requests, as a full node does.
struct Busy {
    model: Rc<Model>,
    refused: &'static AtomicU64,
    refusals: u64,
}

impl Server<FileIo> for Busy {
    fn handle(self: Rc<Self>, _: Caller, request: Request) -> LocalBoxFuture<'static, Reply> {
        let refuses = self.refused.fetch_add(1, SeqCst) < self.refusals;
        let reply = if refuses { Undelivered::Busy.into() } else { self.model.answer(&request) };
        futures::future::ready(reply).boxed_local()
    }
}

fn busy(refusals: u64) -> Volume {
    let refused: &'static AtomicU64 = Box::leak(Box::default());
    let machine =
        machine::start_with(move |model| Rc::new(Busy { model, refused, refusals })).unwrap();
    Volume::holding(machine.client_handle(), Credentials::root(), machine)
}

#[test]
fn a_busy_node_is_asked_again_and_in_the_end_the_caller_is_told() {
    busy(3).mkdir("/d").unwrap();
    busy(3).sync().unwrap();
    let asked_in_all = u64::from(BUSY_TRIES_MAX * RETRY_ROUNDS_MAX);
    busy(asked_in_all - 1).metadata("/").unwrap();
    let error = busy(asked_in_all).metadata("/").unwrap_err();
    let text = "cannot look up /: the node is busy, nothing was done; retry later; if this lasts, lower the load";
    assert_eq!(error.to_string(), text);
    let io = std::io::Error::from(error);
    assert_eq!(io.kind(), std::io::ErrorKind::WouldBlock);
}

#[test]
fn nodes_call_the_file_system_through_their_own_context() {
    let machine = machine::start().unwrap();
    let node = machine.application();
    let listed = machine.on_node(node, |context| async move {
        let client = context.random();
        let file_system = client::FileSystem::new(context.clone(), Credentials::root(), client);
        file_system.mkdir_all("/a/b").await.unwrap();
        let mut pages = file_system.read_dir("/a").await.unwrap();
        let names = RefCell::new(Vec::new());
        while let Some(page) = pages.next_page().await.unwrap() {
            names.borrow_mut().extend(page.into_iter().map(|entry| entry.name.to_string()));
        }
        context.sleep(Duration::from_millis(1)).await;
        names.into_inner()
    });
    assert_eq!(futures::executor::block_on(listed).unwrap(), ["b"]);
    assert_ne!(node, NodeId::fs(0));
}

#[test]
fn a_sync_tells_once_that_writes_before_it_were_lost() {
    let (volume, seen) = watched();
    let file = volume.open("/file", BOTH).unwrap();
    let is_lost = |synced: Result<(), client::Error>| {
        synced.is_err_and(|error| error.cause == Cause::FileIo(FileIoError::LostWrites {}))
    };
    file.write_at(0, &b"first"[..]).unwrap();
    file.sync().unwrap();
    seen.losses.fetch_add(1, SeqCst);
    file.sync().expect("all of it was committed before");

    file.write_at(0, &b"second"[..]).unwrap();
    seen.losses.fetch_add(1, SeqCst);
    file.write_at(10, &b"third"[..]).unwrap();
    assert!(is_lost(file.clone().sync()), "the second write, though the third is there");
    file.sync().expect("told once");

    file.write_at(0, &b"again"[..]).unwrap();
    file.sync().unwrap();
}
