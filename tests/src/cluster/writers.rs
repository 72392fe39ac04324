//! Clients that write checkpoints while processes of the cluster suffer.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests of whole processes use the host, and panic where they fail"
)]

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use client::blocking::Volume;
use runtime::seed::Rng;

use super::Cluster;
use super::hosts::Host;
use crate::Content;
use crate::raw_nfs::{Args, RawNfs, Results, procedure, status};

/// Bytes of a checkpoint, at most.
const LENGTH_MAX: u64 = 1 << 20;
/// Bytes of one write over NFS.
const PIECE: usize = 64 << 10;
/// An NFS client that has no answer for this time tries another gateway.
const PATIENCE: Duration = Duration::from_secs(2);
/// Before something that failed is tried again.
const PAUSE: Duration = Duration::from_millis(50);
/// Checkpoints that a client keeps when it cleans up.
const KEPT: usize = 8;

/// The ways into a cluster.
#[derive(Clone, Debug)]
pub struct Ways {
    /// The directories of its processes, with their sockets.
    processes: Vec<PathBuf>,
    gateways: Vec<SocketAddr>,
    /// Where clients of NFS are.
    host: Option<Host>,
}

impl Ways {
    /// All of them.
    pub fn into(cluster: &Cluster) -> Self {
        Self {
            processes: cluster.numbers().map(|number| cluster.directory(number)).collect(),
            gateways: cluster.gateways(),
            host: cluster.client_host().cloned(),
        }
    }

    /// Connects to one of the gateways.
    fn connect(&self, gateway: usize) -> io::Result<RawNfs> {
        let to = self.gateways[gateway % self.gateways.len()];
        let stream = match &self.host {
            Some(host) => host.connect(to, PATIENCE)?,
            None => TcpStream::connect_timeout(&to, PATIENCE)?,
        };
        Ok(RawNfs::over(stream, PATIENCE))
    }

    /// Can a file be written by way of this process?
    pub fn takes_a_file(&self, number: usize, path: &str) -> bool {
        client::volume::open(&self.processes[number - 1]).is_ok_and(|volume| {
            volume.create(path).and_then(|file| file.write_at(0, &b"x"[..])).is_ok()
        })
    }

    /// Does the volume answer by way of this gateway?
    pub fn answers(&self, gateway: usize) -> bool {
        self.connect(gateway).and_then(|mut nfs| nfs.try_root()).is_ok_and(|root| root.is_some())
    }
}

/// A client that writes files, by any process that answers it.
#[derive(Debug)]
pub struct Writer {
    number: u64,
    rng: Rng,
    count: u64,
    over_nfs: bool,
    /// Files that are durable.
    done: Vec<(String, Content)>,
    /// Files that were durable.
    pub written: usize,
}

impl Writer {
    /// One that uses the library.
    pub fn new(number: u64, seed: u64) -> Self {
        Self {
            number,
            rng: Rng::new(seed),
            count: 0,
            over_nfs: false,
            done: Vec::new(),
            written: 0,
        }
    }

    /// One that uses NFS.
    pub fn over_nfs(number: u64, seed: u64) -> Self {
        Self { over_nfs: true, ..Self::new(number, seed) }
    }

    /// Writes until it is over.
    pub fn work(&mut self, ways: &Ways, over: &AtomicBool) {
        if self.over_nfs {
            let at = self.rng.index(ways.gateways.len());
            let mut mount = HardMount { ways, at, nfs: None, over };
            while self.write_over_nfs(&mut mount).is_some() {}
            return;
        }
        while !over.load(Relaxed) {
            let place = &ways.processes[self.rng.index(ways.processes.len())];
            let Ok(volume) = client::volume::open(place) else {
                thread::sleep(PAUSE);
                continue;
            };
            while !over.load(Relaxed) && self.write(&volume).is_some() {}
        }
    }

    fn next(&mut self) -> (String, Content) {
        self.count += 1;
        let path = format!("/writer-{}-{}", self.number, self.count);
        (path, Content { seed: self.rng.bits(), length: 1 + self.rng.below(LENGTH_MAX) })
    }

    fn is_durable(&mut self, path: String, content: Content) {
        self.done.push((path, content));
        self.written += 1;
    }

    /// Writes a file; nothing if that is not sure.
    pub fn write(&mut self, volume: &Volume) -> Option<()> {
        let (path, content) = self.next();
        let file = volume.create(&path).ok()?;
        file.write_at(0, content.bytes()).ok()?;
        file.sync().ok()?;
        volume.sync_directory("/").ok()?;
        self.is_durable(path, content);
        Some(())
    }

    fn write_over_nfs(&mut self, mount: &mut HardMount<'_>) -> Option<()> {
        let (path, content) = self.next();
        mount.write(path.trim_start_matches('/'), &content.bytes())?;
        self.is_durable(path, content);
        Some(())
    }

    /// All that is durable is there, by way of a process.
    pub fn check(&self, cluster: &Cluster, member: usize, within: Duration) {
        for (path, content) in &self.done {
            let bytes = read_at_last(cluster, member, path, content.length, within);
            assert!(bytes == content.bytes(), "{path} has other bytes");
        }
    }

    /// Removes all files but the newest few.
    pub fn clean_up(&mut self, volume: &Volume) {
        let old = self.done.len().saturating_sub(KEPT);
        for (path, _) in self.done.drain(..old) {
            volume.remove_file(&path).unwrap();
        }
    }
}

/// Reads, again and again while nodes are on their way from one process to another.
pub fn read_at_last(
    cluster: &Cluster,
    member: usize,
    path: &str,
    length: u64,
    within: Duration,
) -> Vec<u8> {
    let begin = Instant::now();
    loop {
        match read(cluster, member, path, length) {
            Ok(bytes) => return bytes,
            Err(error) => {
                assert!(begin.elapsed() < within, "{path}: {error}");
            }
        }
        thread::sleep(PAUSE);
    }
}

fn read(cluster: &Cluster, member: usize, path: &str, length: u64) -> Result<Vec<u8>, String> {
    let volume = cluster.open(member).ok_or("no process answers")?;
    let told = |error: client::Error| error.to_string();
    let file = volume.open(path, client::OpenOptions::new().read(true)).map_err(told)?;
    let bytes = file.read_bytes_at(0, length as usize + 1).map_err(told)?;
    Ok(bytes.concat())
}

/// NFS as a kernel mounts it, *hard*: what is not answered is asked again, by way of another
/// gateway, until it is over.
struct HardMount<'a> {
    ways: &'a Ways,
    /// The gateway in use.
    at: usize,
    nfs: Option<RawNfs>,
    over: &'a AtomicBool,
}

impl HardMount<'_> {
    /// Writes a file that is durable afterwards; nothing if it was over before.
    fn write(&mut self, name: &str, bytes: &[u8]) -> Option<()> {
        let root = self.until(RawNfs::try_root)?;
        // It may be there, made by a call whose answer was lost.
        let args = Args::default().opaque(&root).opaque(name.as_bytes()).word(0).mode(0o644);
        let mut made = self.call(procedure::CREATE, &args)?;
        assert_eq!(made.word(), 1, "a handle comes with it");
        let file = made.opaque();
        // Who has written under another verifier than that of the commit writes again (RFC 1813,
        // 3.3.7).
        while !self.write_once(&file, bytes)? {}
        Some(())
    }

    fn write_once(&mut self, file: &[u8], bytes: &[u8]) -> Option<bool> {
        let mut verifiers = Vec::new();
        for (at, piece) in bytes.chunks(PIECE).enumerate() {
            let (offset, length) = ((at * PIECE) as u64, piece.len() as u32);
            let args = Args::default().opaque(file).long(offset).word(length).word(0);
            let mut written = self.call(procedure::WRITE, &args.opaque(piece))?;
            written.skip_change();
            let (count, _how) = (written.word(), written.word());
            assert_eq!(count, length, "all of it is taken");
            verifiers.push(written.long());
        }
        let args = Args::default().opaque(file).long(0).word(0);
        let mut committed = self.call(procedure::COMMIT, &args)?;
        committed.skip_change();
        let verifier = committed.long();
        Some(verifiers.iter().all(|written| *written == verifier))
    }

    fn call(&mut self, procedure: u32, args: &Args) -> Option<Results> {
        self.until(|nfs| match nfs.try_nfs(procedure, args)? {
            (status::OK, results) => Ok(Some(results)),
            (status::JUKEBOX, _) => Ok(None),
            (status, _) => panic!("procedure {procedure} ends with {status}"),
        })
    }

    /// Asks until there is an answer.
    fn until<T>(&mut self, mut ask: impl FnMut(&mut RawNfs) -> io::Result<Option<T>>) -> Option<T> {
        while !self.over.load(Relaxed) {
            let asked = match &mut self.nfs {
                Some(nfs) => ask(nfs),
                none => self.ways.connect(self.at).map(|nfs| {
                    *none = Some(nfs);
                    None
                }),
            };
            match asked {
                Ok(Some(answer)) => return Some(answer),
                Ok(None) => {}
                Err(_) => (self.nfs, self.at) = (None, self.at + 1),
            }
            thread::sleep(PAUSE);
        }
        None
    }
}
