//! A link with a rate and a delay in each direction, before a server that is near: a relay of TCP.
//!
//! It ends both connections, so TCP's windows do not open over its delay; `window.rs` of the
//! emulated machine has that.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests of whole processes use the host, and panic where they fail"
)]

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes that are relayed at a time, at most.
const CHUNK: usize = 32 << 10;

/// What a thread may be late without loss of the rate.
const CREDIT: Duration = Duration::from_millis(20);

/// A running relay. It lives as long as the test's process.
#[derive(Debug)]
pub struct FarLink {
    address: SocketAddr,
}

/// One direction of the link, for all connections.
#[derive(Debug)]
struct Direction {
    delay: Duration,
    bytes_per_second: u64,
    /// When the wire is free again.
    free: Mutex<Instant>,
}

impl Direction {
    fn new(delay: Duration, bytes_per_second: u64) -> Arc<Self> {
        Arc::new(Self { delay, bytes_per_second, free: Mutex::new(Instant::now()) })
    }

    /// When the last of these bytes leaves.
    fn leave(&self, bytes: usize) -> Instant {
        let wire = Duration::from_nanos(bytes as u64 * 1_000_000_000 / self.bytes_per_second);
        let mut free = self.free.lock().unwrap();
        // A thread that wakes late has not made the wire wait.
        let now = Instant::now();
        *free = (*free).max(now.checked_sub(CREDIT).unwrap_or(now)) + wire;
        *free
    }
}

impl FarLink {
    /// Relays connections to `server`, with `delay` in each direction.
    pub fn start(server: SocketAddr, delay: Duration, bytes_per_second: u64) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let [up, down] = [(); 2].map(|()| Direction::new(delay, bytes_per_second));
        thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let Ok(far) = TcpStream::connect(server) else { continue };
                relay(&near, &far, &up);
                relay(&far, &near, &down);
            }
        });
        Ok(Self { address })
    }

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

fn relay(from: &TcpStream, to: &TcpStream, direction: &Arc<Direction>) {
    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
    to.set_nodelay(true).unwrap();
    let (sender, receiver) = mpsc::channel::<(Instant, Vec<u8>)>();
    let direction = direction.clone();
    thread::spawn(move || {
        let mut chunk = vec![0; CHUNK];
        while let Ok(count) = from.read(&mut chunk)
            && count > 0
        {
            let leaves = direction.leave(count);
            if sender.send((leaves + direction.delay, chunk[..count].to_vec())).is_err() {
                break;
            }
            // No more is taken in than the wire carries.
            thread::sleep(leaves.saturating_duration_since(Instant::now()));
        }
    });
    thread::spawn(move || {
        for (due, bytes) in receiver {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        // One side is gone.
        let _ = to.shutdown(Shutdown::Write);
    });
}
