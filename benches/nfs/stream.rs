//! What one TCP stream over loopback carries: the bound of sequential reads.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

const PIECE: usize = 1 << 20;

/// Bytes per second of one stream that sends `bytes`, less than 4 GiB, in pieces of 1 MiB.
pub(crate) fn bytes_per_second(bytes: usize) -> f64 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it listens");
    let sending = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("the client connects");
        let piece = vec![7; PIECE];
        for _ in 0..bytes / PIECE {
            stream.write_all(&piece).expect("it is read");
        }
    });
    let mut stream = TcpStream::connect(address).expect("it listens");
    let mut piece = vec![0; PIECE];
    let (start, mut received) = (Instant::now(), 0);
    while received < bytes {
        received += stream.read(&mut piece).expect("it is sent");
    }
    let seconds = start.elapsed().as_secs_f64();
    sending.join().expect("the sender ends");
    f64::from(received as u32) / seconds
}
