//! The handle of an endpoint to one incarnation of another process.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc as std_mpsc};
use std::time::Duration;

use ::fabric::link::Provider;
use ::fabric::transport::{ConnectionId, FabricCounters, SealKey, TICKET_SIZE};
use bytes::Bytes;
use rustix::event::{EventfdFlags, eventfd};
use tokio::sync::oneshot;

use super::paths::FabricPath;
use super::shared::{PairUse, Peer};
use crate::frame::FabricAnswer;
use runtime::sync::lock;

pub(super) type Ticket = [u8; TICKET_SIZE];

/// A command to the thread. Bounded: the calls of each link and its requests without reply are.
pub(super) enum PairCommand {
    /// A link was granted this.
    Connect { address: Vec<u8>, ticket: Ticket, key: SealKey, path: Arc<dyn FabricPath> },
    /// A link has granted this; the rest of it is told. `lasts` is dropped when it is over.
    Admit {
        ticket: Ticket,
        key: SealKey,
        path: Arc<dyn FabricPath>,
        tell: oneshot::Sender<FabricAnswer>,
        lasts: oneshot::Sender<()>,
    },
    /// A request, or a reply.
    Send { connection: ConnectionId, head: Bytes, bulk: Vec<Bytes> },
    /// The link is over.
    Leave { ticket: Ticket },
    /// The life of the peer is over. Dropped when memory here can no longer be written.
    Retire { _done: std_mpsc::Sender<()> },
}

/// The handle of the thread.
pub(super) struct FabricPair {
    peer: Peer,
    pub(super) used: PairUse,
    /// `None` when it has ended.
    pub(super) commands: Mutex<Option<VecDeque<PairCommand>>>,
    pub(super) asleep: AtomicBool,
    pub(super) bell: OwnedFd,
    pub(super) account: Mutex<PairCounters>,
    /// Closed when the thread has ended.
    ended: Mutex<std_mpsc::Receiver<()>>,
}

/// What a pair has done, and what it has.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PairCounters {
    pub(super) counters: FabricCounters,
    /// Links that use it, in either direction.
    pub(super) links: usize,
}

impl std::fmt::Debug for FabricPair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pair").field("peer", &self.peer).finish_non_exhaustive()
    }
}

/// A thread beside the machine.
#[allow(clippy::disallowed_methods, reason = "the machine itself makes the threads")]
pub(in super::super) fn thread(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    // It ends by itself, and is not joined.
    std::thread::Builder::new().name(name.into()).spawn(work).map(drop)
}

impl FabricPair {
    /// The handle, and what the thread drops at its end.
    pub(super) fn new(peer: Peer, used: PairUse) -> io::Result<(Self, std_mpsc::Sender<()>)> {
        let (running, ended) = std_mpsc::channel();
        let pair = Self {
            peer,
            used,
            commands: Mutex::new(Some(VecDeque::new())),
            asleep: AtomicBool::new(false),
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            account: Mutex::default(),
            ended: Mutex::new(ended),
        };
        Ok((pair, running))
    }

    /// Has the thread ended, and closed its endpoint?
    pub(super) fn has_ended(&self) -> bool {
        lock(&self.ended).try_recv() == Err(std_mpsc::TryRecvError::Disconnected)
    }

    /// Waits until the thread has ended and its endpoint is closed; false if that takes longer than
    /// `longest`.
    pub(super) fn wait_for_end(&self, longest: Duration) -> bool {
        lock(&self.ended).recv_timeout(longest) != Err(std_mpsc::RecvTimeoutError::Timeout)
    }

    pub(super) fn process(&self) -> u32 {
        self.peer.incarnation.0
    }

    pub(super) fn provider(&self) -> Provider {
        self.peer.provider
    }

    pub(super) fn account(&self) -> PairCounters {
        *lock(&self.account)
    }

    pub(super) fn is_over(&self) -> bool {
        lock(&self.commands).is_none()
    }

    /// Tells the thread something. If it has ended, what it was told is void.
    pub(super) fn tell(&self, command: PairCommand) {
        let mut commands = lock(&self.commands);
        let Some(queue) = &mut *commands else {
            drop(commands);
            return command.be_void();
        };
        queue.push_back(command);
        drop(commands);
        if self.asleep.swap(false, SeqCst) {
            // A counter that is full rings, too.
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
    }

    /// The life of the peer is over: what is given back ends when its regions are closed.
    pub(super) fn retire(&self) -> std_mpsc::Receiver<()> {
        let (done, ended) = std_mpsc::channel();
        self.tell(PairCommand::Retire { _done: done });
        ended
    }

    pub(super) fn take(&self) -> VecDeque<PairCommand> {
        lock(&self.commands).as_mut().map(std::mem::take).unwrap_or_default()
    }

    pub(super) fn has_commands(&self) -> bool {
        lock(&self.commands).as_ref().is_some_and(|queue| !queue.is_empty())
    }
}

impl PairCommand {
    pub(super) fn be_void(self) {
        if let Self::Connect { path, .. } | Self::Admit { path, .. } = self {
            path.lost();
        }
    }
}
