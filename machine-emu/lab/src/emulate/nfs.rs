//! NFS clients with real sockets, and the gateway at the emulated host.
//!
//! The sockets are outside of the determinism fence: the time at which a client's bytes come cannot
//! be repeated. They are brought to a byte stream of the machine, whose host looks for them as its
//! profile says. Virtual time runs as fast as it can while a call waits for its answer, and
//! otherwise with the clock, so that what works in the background goes on.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use futures::{FutureExt as _, StreamExt as _};
use sim::emulated::{Emulation, HostConnection, HostGateway};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc};

use super::machine::failed;
use mdfs_cli::exit::{CommandFailure, ServeError};
use mdfs_cli::session::CommandSession;
use mdfs_cli::signals::{EndSignals, secret};

/// Connections at most; further ones are closed at once.
const CONNECTIONS_MAX: usize = 64;
/// Pieces of a connection that wait on their way in, or out; then its socket, or the machine,
/// waits.
const PIECES_MAX: usize = 4;
/// Bytes that are taken from a socket at a time.
const PIECE_BYTES: usize = 64 << 10;
/// Virtual time between two looks at the sockets, while a call waits.
const SLICE: Duration = Duration::from_millis(1);
/// Virtual time that may run ahead of the clock while no byte moves: an answer that has not come by
/// then may never come.
const AHEAD_MAX: Duration = Duration::from_mins(1);
/// How often the machine goes on with the clock.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Serves until SIGTERM or SIGINT, or until the output is closed.
pub(super) fn serve(
    machine: &Emulation,
    address: SocketAddr,
    session: &mut CommandSession,
) -> Result<(), CommandFailure> {
    let serving = |error| CommandFailure::Wrong(format!("cannot serve over NFS: {error}"));
    let mut signals = EndSignals::receive().map_err(|error| serving(ServeError::Signals(error)))?;
    let entropy = secret().map_err(|error| serving(ServeError::Secret(error)))?;
    let gate = machine.run(HostGateway::open(machine, entropy)).map_err(failed)?;
    let mut bridge = Bridge::new(machine, gate);
    let before = machine.tally();
    let mut ended = Ok(());
    signals.wait_or(async { ended = bridge.serve(address, session).await });
    ended?;
    let calls = bridge.calls;
    machine.run(bridge.gate.close());
    session.print(format!("{calls} calls: {}\n", machine.tally() - before))
}

/// A client that has just connected: its bytes, and those for it.
struct NewConnection {
    peer: SocketAddr,
    incoming: mpsc::Receiver<Bytes>,
    outgoing: mpsc::Sender<Bytes>,
}

/// All connections between sockets and the machine.
struct Bridge<'a> {
    machine: &'a Emulation,
    gate: HostGateway,
    connections: Vec<BridgeConnection>,
    /// Calls so far.
    calls: u64,
    /// Virtual time since a byte moved.
    ahead: Duration,
}

impl<'a> Bridge<'a> {
    fn new(machine: &'a Emulation, gate: HostGateway) -> Self {
        Self { machine, gate, connections: Vec::new(), calls: 0, ahead: Duration::ZERO }
    }

    #[allow(
        clippy::disallowed_methods,
        reason = "real sockets and their clock are beside the machine"
    )]
    async fn serve(
        &mut self,
        address: SocketAddr,
        session: &mut CommandSession,
    ) -> Result<(), CommandFailure> {
        let refused = |error| {
            CommandFailure::Wrong(format!(
                "cannot listen at {address}: {error}; choose another address"
            ))
        };
        let listener = TcpListener::bind(address).await.map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        session.print(format!("ready: an emulated J-Machine, NFS at {address}\n"))?;
        session.flush()?;
        let bell = Arc::new(Notify::new());
        let (come, mut newcomers) = mpsc::channel(PIECES_MAX);
        tokio::spawn(accept(listener, come, bell.clone()));
        let mut clock = Instant::now();
        loop {
            while let Ok(newcomer) = newcomers.try_recv() {
                self.welcome(newcomer);
            }
            let mut moved = self.bring_in();
            let waiting = self.connections.iter().any(BridgeConnection::waits);
            let running = waiting && self.ahead < AHEAD_MAX;
            if running {
                self.machine.world().advance(SLICE);
                self.ahead += SLICE;
            }
            moved |= self.bring_out();
            if moved {
                self.ahead = Duration::ZERO;
            }
            if moved || running {
                clock = Instant::now();
                tokio::task::yield_now().await;
                continue;
            }
            // No call waits: the machine advances with the clock.
            let _ = tokio::time::timeout(LOOK_EVERY, bell.notified()).await;
            let now = Instant::now();
            self.machine.world().advance(now - clock);
            clock = now;
        }
    }

    /// A connection of the machine for one of the computer; if it is refused the client hears the
    /// end.
    fn welcome(&mut self, newcomer: NewConnection) {
        let NewConnection { peer, incoming, outgoing } = newcomer;
        if self.connections.len() >= CONNECTIONS_MAX {
            return;
        }
        if let Ok(line) = self.gate.connect(self.machine, &peer.to_string()) {
            self.connections.push(BridgeConnection::new(line, incoming, outgoing));
        }
    }

    /// Brings what clients say into the machine; true if anything moved.
    fn bring_in(&mut self) -> bool {
        let mut moved = false;
        for connection in &mut self.connections {
            let before = connection.incoming_records.count;
            moved |= connection.bring_in();
            self.calls += connection.incoming_records.count - before;
        }
        moved
    }

    fn bring_out(&mut self) -> bool {
        let mut moved = false;
        self.connections.retain_mut(|connection| {
            let (brought, open) = connection.bring_out();
            moved |= brought;
            open
        });
        moved
    }
}

/// One connection: a socket on one side, a stream of the machine on the other.
struct BridgeConnection {
    line: HostConnection,
    incoming: mpsc::Receiver<Bytes>,
    outgoing: mpsc::Sender<Bytes>,
    /// Said, and not taken in by the machine yet.
    unsent: Option<Bytes>,
    incoming_records: RecordCounter,
    outgoing_records: RecordCounter,
}

impl BridgeConnection {
    fn new(
        line: HostConnection,
        incoming: mpsc::Receiver<Bytes>,
        outgoing: mpsc::Sender<Bytes>,
    ) -> Self {
        let (incoming_records, outgoing_records) =
            (RecordCounter::default(), RecordCounter::default());
        Self { line, incoming, outgoing, unsent: None, incoming_records, outgoing_records }
    }

    /// Does the client wait for an answer, or for its bytes to be taken in?
    fn waits(&self) -> bool {
        self.unsent.is_some() || self.incoming_records.count > self.outgoing_records.count
    }

    fn bring_in(&mut self) -> bool {
        let mut moved = false;
        loop {
            let bytes = match self.unsent.take().map_or_else(|| self.incoming.try_recv(), Ok) {
                Ok(bytes) => bytes,
                Err(mpsc::error::TryRecvError::Empty) => return moved,
                Err(mpsc::error::TryRecvError::Disconnected) => {
                    self.line.inward.disconnect();
                    return moved;
                }
            };
            match self.line.inward.try_send(bytes.clone()) {
                Ok(()) => self.incoming_records.see(&bytes),
                Err(full) if full.is_full() => {
                    self.unsent = Some(full.into_inner());
                    return moved;
                }
                // The gateway has closed the connection.
                Err(_) => return moved,
            }
            moved = true;
        }
    }

    /// Whether anything moved, and whether the connection is still there.
    fn bring_out(&mut self) -> (bool, bool) {
        let mut moved = false;
        while self.outgoing.capacity() > 0 {
            match self.line.outward.next().now_or_never() {
                None => return (moved, !self.outgoing.is_closed()),
                Some(None) => return (true, false),
                Some(Some(bytes)) => {
                    self.outgoing_records.see(&bytes);
                    // There is room, unless the client has gone.
                    if self.outgoing.try_send(bytes).is_err() {
                        return (true, false);
                    }
                    moved = true;
                }
            }
        }
        (moved, true)
    }
}

/// Counts the records in a stream of bytes (RFC 5531, section 11).
#[derive(Debug, Default)]
struct RecordCounter {
    count: u64,
    /// Bytes that are left of this fragment.
    left: usize,
    /// What has come of the mark of the next one.
    mark: Vec<u8>,
    last: bool,
}

/// Bytes of a mark: whether the fragment is the last of its record, and its length.
const MARK_BYTES: usize = 4;

impl RecordCounter {
    fn see(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.left > 0 {
                let skipped = self.left.min(bytes.len());
                bytes = &bytes[skipped..];
                self.left -= skipped;
            } else {
                let (first, rest) = bytes.split_at((MARK_BYTES - self.mark.len()).min(bytes.len()));
                self.mark.extend_from_slice(first);
                bytes = rest;
                let Ok(mark) = <[u8; MARK_BYTES]>::try_from(&self.mark[..]) else { return };
                let mark = u32::from_be_bytes(mark);
                self.mark.clear();
                self.last = mark >> 31 == 1;
                self.left = (mark & !(1 << 31)) as usize;
            }
            if self.left == 0 && self.mark.is_empty() && self.last {
                self.count += 1;
                self.last = false;
            }
        }
    }
}

#[allow(clippy::disallowed_methods, reason = "real sockets are beside the machine")]
async fn accept(listener: TcpListener, come: mpsc::Sender<NewConnection>, bell: Arc<Notify>) {
    loop {
        // Too many open files, or a client that has gone again: the next one may do.
        let Ok((socket, peer)) = listener.accept().await else {
            tokio::time::sleep(LOOK_EVERY).await;
            continue;
        };
        let (to_machine, incoming) = mpsc::channel(PIECES_MAX);
        let (outgoing, from_machine) = mpsc::channel(PIECES_MAX);
        start(socket, to_machine, from_machine, &bell);
        if come.send(NewConnection { peer, incoming, outgoing }).await.is_err() {
            return;
        }
        bell.notify_one();
    }
}

#[allow(clippy::disallowed_methods, reason = "real sockets are beside the machine")]
fn start(
    socket: TcpStream,
    to_machine: mpsc::Sender<Bytes>,
    from_machine: mpsc::Receiver<Bytes>,
    bell: &Arc<Notify>,
) {
    // Without it answers wait for more; with an error they only come later.
    let _ = socket.set_nodelay(true);
    let (reader, writer) = socket.into_split();
    tokio::spawn(listen(reader, to_machine, bell.clone()));
    tokio::spawn(send_out(writer, from_machine, bell.clone()));
}

/// Bytes of a client go to the machine, until it ends or breaks off.
async fn listen(mut socket: OwnedReadHalf, to_machine: mpsc::Sender<Bytes>, bell: Arc<Notify>) {
    loop {
        let mut buffer = BytesMut::with_capacity(PIECE_BYTES);
        let read = socket.read_buf(&mut buffer).await;
        let ended = !read.is_ok_and(|count| count > 0);
        if ended || to_machine.send(buffer.freeze()).await.is_err() {
            drop(to_machine);
            return bell.notify_one();
        }
        bell.notify_one();
    }
}

/// Bytes of the machine go to a client.
async fn send_out(
    mut socket: OwnedWriteHalf,
    mut from_machine: mpsc::Receiver<Bytes>,
    bell: Arc<Notify>,
) {
    while let Some(bytes) = from_machine.recv().await {
        if socket.write_all(&bytes).await.is_err() {
            break;
        }
        bell.notify_one();
    }
    drop(from_machine);
    bell.notify_one();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_counted_however_their_bytes_come() {
        let mut stream = Vec::new();
        for (length, last) in [(5u32, true), (0, false), (7, true), (0, true), (3, false)] {
            stream.extend((length | u32::from(last) << 31).to_be_bytes());
            stream.extend(vec![0xFF; length as usize]);
        }
        for size in 1..=stream.len() {
            let mut records = RecordCounter::default();
            stream.chunks(size).for_each(|piece| records.see(piece));
            assert_eq!(records.count, 3, "in pieces of {size}");
        }
    }
}
