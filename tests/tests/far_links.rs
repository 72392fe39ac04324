//! Clients over links with delay: how fast they read, and that they read what is there.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests of whole processes use the host, and panic where they fail"
)]

use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use client::blocking::Volume;
use client::volume::{ConnectOptions, connect};
use client::wide::WideMode;
use client::{ByteRange, LockKind, OpenOptions, VolumeAddress};
use tests::Site;
use tests::far_link::FarLink;

const MIB: u64 = 1 << 20;

/// The rate of the links: little, so that the processor is not what limits.
const RATE: u64 = 4_000_000;

/// The server is there within this time.
const SOON: Duration = Duration::from_secs(20);

/// A volume that is served over TCP.
struct FarSite {
    site: Site,
    server: Child,
    address: SocketAddr,
}

impl FarSite {
    fn start() -> Self {
        let site = Site::formatted(1024, 16);
        // A port that is free now.
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let listen = address.to_string();
        let mut command: Command = site.command(&["serve", "VOL", "--listen", &listen]);
        let server = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        let start = Instant::now();
        while std::net::TcpStream::connect(address).is_err() {
            assert!(start.elapsed() < SOON, "no server");
            thread::sleep(Duration::from_millis(20));
        }
        site.ok(&["token", "create", "VOL", "--user", "0", "--groups", "0", "--out", "token"]);
        Self { site, server, address }
    }

    /// A client at `address`.
    fn client(&self, address: SocketAddr, mode: WideMode) -> Volume {
        let mut options = ConnectOptions::of_this_process().unwrap();
        options.token = Some(self.site.path("token"));
        options.wide = mode;
        let address = VolumeAddress::parse(format!("mdfs://{address}/VOL")).unwrap();
        connect(&address, &options).unwrap()
    }

    /// A client over a link with this delay in each direction.
    fn far_client(&self, delay_ms: u64, mode: WideMode) -> Volume {
        let link = FarLink::start(self.address, Duration::from_millis(delay_ms), RATE).unwrap();
        self.client(link.address(), mode)
    }

    /// A file of `size` bytes.
    fn fill(&self, path: &str, size: u64) {
        let volume = self.client(self.address, WideMode::Off);
        let file = volume.create(path).unwrap();
        for offset in (0..size).step_by(MIB as usize) {
            file.write_at(offset, pattern(offset, MIB as usize)).unwrap();
        }
        file.sync().unwrap();
    }
}

impl Drop for FarSite {
    fn drop(&mut self) {
        // Gone already, if it has failed.
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// The bytes at an offset.
fn pattern(offset: u64, length: usize) -> Vec<u8> {
    (offset..offset + length as u64).map(|at| (at / 512 * 31 + at) as u8).collect()
}

/// Reads `count` times `read` bytes, `step` apart. Returns bytes per second.
fn read(volume: &Volume, path: &str, (read, step, count): (u64, u64, u64)) -> u64 {
    let file = volume.open(path, OpenOptions::new().read(true)).unwrap();
    let mut buffer = vec![0; read as usize];
    let start = Instant::now();
    let mut waited = Duration::ZERO;
    for offset in (0..count).map(|index| index * step) {
        let before = Instant::now();
        assert_eq!(file.read_at(offset, &mut buffer).unwrap() as u64, read);
        waited += before.elapsed();
        let ends = [0, read as usize - 4096];
        for end in ends {
            assert!(buffer[end..end + 4096] == pattern(offset + end as u64, 4096)[..], "{offset}");
        }
    }
    eprintln!("{read} bytes each {step}: {:?}, {waited:?} in reads", start.elapsed());
    read * count * 1000 / start.elapsed().as_millis().max(1) as u64
}

#[test]
fn a_sequential_reader_gets_nine_tenths_of_a_link_of_50_ms() {
    let site = FarSite::start();
    site.fill("/file", 32 * MIB);
    let reached = read(&site.far_client(50, WideMode::Auto), "/file", (MIB / 4, MIB / 4, 128));
    assert!(reached >= RATE * 9 / 10, "{reached} of {RATE} bytes per second");
    // Without reading ahead it is as slow as the delay makes it.
    let plain = read(&site.far_client(50, WideMode::Off), "/file", (MIB / 16, MIB / 16, 32));
    assert!(plain < RATE / 2, "{plain}");
    let thesis = read(&site.far_client(50, WideMode::Thesis), "/file", (MIB / 4, MIB / 4, 128));
    assert!(thesis > plain, "{thesis}");
}

#[test]
fn a_stride_over_100_ms_is_four_times_as_fast_as_one_transfer_at_a_time() {
    let site = FarSite::start();
    site.fill("/file", 128 * MIB);
    let stride = |count| (MIB / 16, MIB / 2, count);
    let fixed = read(&site.far_client(100, WideMode::Off), "/file", stride(16));
    let ahead = read(&site.far_client(100, WideMode::Auto), "/file", stride(256));
    assert!(ahead >= 4 * fixed, "{ahead} and {fixed}");
}

/// The rule in `client/src/wide.rs`: what another client wrote is seen after an open, a lock, or
/// attributes that tell of it; what this client wrote is seen at once.
#[test]
fn bytes_read_ahead_obey_close_to_open_and_locks() {
    for mode in [WideMode::On, WideMode::Thesis] {
        let site = FarSite::start();
        site.fill("/file", 8 * MIB);
        let reader = site.client(site.address, mode);
        let writer = site.client(site.address, WideMode::Off);
        let options = OpenOptions::new().read(true).write(true);
        let theirs = writer.open("/file", options).unwrap();
        let at = 600 << 10;
        let byte =
            |file: &client::blocking::BlockingFile| file.read_bytes_at(at, 1).unwrap().concat()[0];
        let read_ahead = |file: &client::blocking::BlockingFile| {
            for offset in (0..MIB / 4).step_by(128 << 10) {
                file.read_bytes_at(offset, 128 << 10).unwrap();
            }
            thread::sleep(Duration::from_millis(200));
        };
        let write = |value: u8| {
            theirs.write_at(at, vec![value]).unwrap();
            theirs.sync().unwrap();
        };
        write(1);
        let ours = reader.open("/file", options).unwrap();
        read_ahead(&ours);
        write(2);
        assert_eq!(byte(&ours), 1, "nothing was read ahead: this test tests nothing");
        assert_eq!(byte(&reader.open("/file", options).unwrap()), 2, "after an open");
        read_ahead(&ours);
        write(3);
        let range = ByteRange { first: at, last: at };
        let lock = ours.lock(range, LockKind::Shared {}).unwrap();
        assert_eq!(byte(&ours), 3, "after a lock");
        drop(lock);
        ours.metadata().unwrap();
        read_ahead(&ours);
        write(4);
        ours.metadata().unwrap();
        assert_eq!(byte(&ours), 4, "after a look at the attributes");
        read_ahead(&ours);
        reader.open("/file", options).unwrap().write_at(at, vec![5]).unwrap();
        assert_eq!(byte(&ours), 5, "after a write of the same client");
        read_ahead(&ours);
        ours.punch_hole(at, 1).unwrap();
        assert_eq!(byte(&ours), 0, "after a hole");
        read_ahead(&ours);
        ours.set_len(at).unwrap();
        assert!(ours.read_bytes_at(at, 1).unwrap().is_empty(), "after a cut");
        theirs.write_at(at, vec![6]).unwrap();
        assert_eq!(byte(&ours), 6, "an end is not remembered");
    }
}
