//! The work: what each row asks, over how many connections, how much at a time.

use std::collections::BTreeSet;
use std::io;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use benches::sized;
use runtime::seed::Rng;

use crate::sides::NfsServerSide;
use crate::wire::{BenchArgs, BenchConnection, BenchResults, MOUNT, NFS, wrong};

/// Bytes of the file of one connection.
const FILE_BYTES: u64 = 64 << 20;
/// Entries of the directory that is listed, and bytes of a listing's reply.
const LISTED: u32 = 1000;
const LISTING_BYTES: u32 = 64 << 10;
const BLOCK: usize = 4 << 10;
const LARGE: usize = 1 << 20;
/// Data that a COMMIT makes safe.
const UNSTABLE: u32 = 0;

/// One kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NfsWork {
    Null,
    Getattr,
    Lookup,
    ReadSmall,
    WriteSmall,
    Readdirplus,
    Create,
    Remove,
    WriteLarge,
    ReadLarge,
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NfsBenchRow {
    pub(crate) work: NfsWork,
    pub(crate) connections: usize,
    pub(crate) depth: usize,
}

const fn row(work: NfsWork, connections: usize, depth: usize) -> NfsBenchRow {
    NfsBenchRow { work, connections, depth }
}

/// In this order: what is removed was made in the row before, and what is read was written.
pub(crate) const ROWS: &[NfsBenchRow] = &[
    row(NfsWork::Null, 1, 1),
    row(NfsWork::Getattr, 1, 1),
    row(NfsWork::Getattr, 8, 8),
    row(NfsWork::Lookup, 1, 8),
    row(NfsWork::Create, 1, 8),
    row(NfsWork::Remove, 1, 8),
    row(NfsWork::Create, 8, 4),
    row(NfsWork::Remove, 8, 4),
    row(NfsWork::WriteLarge, 1, 4),
    row(NfsWork::ReadLarge, 1, 4),
    row(NfsWork::WriteLarge, 8, 2),
    row(NfsWork::ReadLarge, 8, 2),
    row(NfsWork::ReadSmall, 1, 1),
    row(NfsWork::ReadSmall, 1, 8),
    row(NfsWork::WriteSmall, 1, 8),
    row(NfsWork::Readdirplus, 1, 1),
];

/// What came of a row on one side in one round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoadOutcome {
    /// Requests per second.
    pub(crate) rate: f64,
    /// Microseconds of the server's processor time per request.
    pub(crate) cpu_us: f64,
}

impl NfsBenchRow {
    pub(crate) fn name(&self) -> String {
        let name = match self.work {
            NfsWork::Null => "null",
            NfsWork::Getattr => "getattr",
            NfsWork::Lookup => "lookup",
            NfsWork::ReadSmall => "read 4 KiB, random",
            NfsWork::WriteSmall => "write 4 KiB, random",
            NfsWork::Readdirplus => "readdirplus, 64 KiB",
            NfsWork::Create => "create",
            NfsWork::Remove => "remove",
            NfsWork::WriteLarge => "write 1 MiB",
            NfsWork::ReadLarge => "read 1 MiB",
        };
        format!("{name}, {} x {}", self.connections, self.depth)
    }

    /// Does it on `side`, for `duration` or until its work is done.
    pub(crate) fn run(
        &self,
        side: &NfsServerSide,
        round: usize,
        duration: Duration,
    ) -> io::Result<LoadOutcome> {
        // Ready, and go.
        let (ready, go) = (Barrier::new(self.connections + 1), Barrier::new(self.connections + 1));
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.connections)
                .map(|index| {
                    let (ready, go) = (&ready, &go);
                    scope.spawn(move || {
                        let client = LoadClient::new(self, side, (round, index));
                        ready.wait();
                        go.wait();
                        client?.work(duration)
                    })
                })
                .collect();
            ready.wait();
            let (cpu, start) = (side.cpu(), Instant::now());
            go.wait();
            let done: Vec<io::Result<u32>> = threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|_| Err(wrong("a client panicked"))))
                .collect();
            let elapsed = start.elapsed();
            let cpu = side.cpu().saturating_sub(cpu);
            let count = f64::from(done.into_iter().sum::<io::Result<u32>>()?.max(1));
            let cpu_us = cpu.as_secs_f64() * 1e6 / count;
            Ok(LoadOutcome { rate: count / elapsed.as_secs_f64(), cpu_us })
        })
    }
}

/// How stable the answer to a WRITE says that its data is (RFC 1813 section 3.3.7); behind the
/// status.
fn how_stable(mut results: BenchResults<'_>) -> io::Result<u32> {
    for attributes_bytes in [24, 84] {
        if results.word()? == 1 {
            results.skip(attributes_bytes)?;
        }
    }
    let _count = results.word()?;
    results.word()
}

/// One connection with what it works on.
struct LoadClient<'a> {
    row: &'a NfsBenchRow,
    connection: BenchConnection,
    directory: Vec<u8>,
    file: Vec<u8>,
    /// Tells its names from those of others.
    prefix: String,
    rng: Rng,
    data: Vec<u8>,
}

impl<'a> LoadClient<'a> {
    fn new(
        row: &'a NfsBenchRow,
        side: &NfsServerSide,
        (round, index): (usize, usize),
    ) -> io::Result<Self> {
        let seed = round as u32 * 1000 + index as u32;
        let mut mount = BenchConnection::new(side.mount, MOUNT, seed)?;
        let (status, mut results) =
            mount.call(1, &BenchArgs::default().opaque(side.export.as_bytes()))?;
        if status != 0 {
            return Err(wrong(format!("mount: {status}")));
        }
        let root = results.opaque()?.to_vec();
        // A number that no call of an earlier round has.
        let mut rng = Rng::new(u64::from(seed) << 32 | u64::from(std::process::id()));
        let xid = rng.bits() as u32;
        let connection = BenchConnection::new(side.nfs, NFS, xid)?;
        let data = (0..LARGE).map(|at| (at * 31 + at / 251) as u8).collect();
        let prefix = format!("{}-{round}-{index}", row.connections);
        let mut client =
            Self { row, connection, directory: root, file: Vec::new(), prefix, rng, data };
        client.file = client.made(8, &format!("file{index}"))?;
        if row.work == NfsWork::Readdirplus {
            client.directory = client.made(9, "listed")?;
            if client.find("entry0")?.is_none() {
                for entry in 0..sized(LISTED, 10) {
                    client.made(8, &format!("entry{entry}"))?;
                }
            }
        }
        if matches!(row.work, NfsWork::ReadSmall | NfsWork::WriteSmall | NfsWork::ReadLarge) {
            client.fill()?;
        }
        Ok(client)
    }

    fn find(&mut self, name: &str) -> io::Result<Option<Vec<u8>>> {
        let args = BenchArgs::default().opaque(&self.directory).opaque(name.as_bytes());
        let (status, mut results) = self.connection.call(3, &args)?;
        Ok(if status == 0 { Some(results.opaque()?.to_vec()) } else { None })
    }

    /// The file (8) or directory (9) of this name, made if it is not there.
    fn made(&mut self, procedure: u32, name: &str) -> io::Result<Vec<u8>> {
        if let Some(found) = self.find(name)? {
            return Ok(found);
        }
        let args = BenchArgs::default().opaque(&self.directory).opaque(name.as_bytes());
        let how: &[u32] = if procedure == 8 { &[0] } else { &[] };
        let args = args.words(how).words(&[1, 0o755, 0, 0, 0, 0, 0]);
        let (status, _) = self.connection.call(procedure, &args)?;
        if status != 0 {
            return Err(wrong(format!("make {name}: {status}")));
        }
        self.find(name)?.ok_or_else(|| wrong(format!("{name} was made and is not there")))
    }

    /// Writes the file, if it is not as long as it should be.
    fn fill(&mut self) -> io::Result<()> {
        let args = BenchArgs::default().opaque(&self.file);
        let (_, mut results) = self.connection.call(1, &args)?;
        results.skip(20)?;
        let size = u64::from(results.word()?) << 32 | u64::from(results.word()?);
        let wanted = sized(FILE_BYTES, LARGE as u64);
        for at in (size..wanted).step_by(LARGE) {
            self.connection.send(7, &self.write_args(at, LARGE), &self.data)?;
            self.connection.receive()?;
        }
        Ok(())
    }

    /// Arguments of an unstable WRITE up to its data.
    fn write_args(&self, offset: u64, length: usize) -> BenchArgs {
        let length = length as u32;
        BenchArgs::default().opaque(&self.file).long(offset).words(&[length, 0, length])
    }

    /// Requests to be done; as many as there is time for if there is no number.
    fn wanted(&self) -> Option<u64> {
        let per_connection = |count: u64| (count / self.row.connections as u64).max(1);
        match self.row.work {
            NfsWork::Create | NfsWork::Remove => Some(sized(per_connection(4000), 20)),
            // The whole file, once.
            NfsWork::WriteLarge => Some(sized(FILE_BYTES, 4 << 20) / LARGE as u64),
            _ => None,
        }
    }

    /// Keeps as many requests under way as the row says; how many were done.
    fn work(mut self, duration: Duration) -> io::Result<u32> {
        let end = Instant::now() + duration;
        let wanted = self.wanted();
        let goes_on = |sent: u64| wanted.map_or_else(|| Instant::now() < end, |most| sent < most);
        let mut under_way = BTreeSet::new();
        let (mut sent, mut done, mut is_unstable) = (0, 0, false);
        loop {
            while under_way.len() < self.row.depth && goes_on(sent) {
                under_way.insert(self.send(sent)?);
                sent += 1;
            }
            if under_way.is_empty() {
                break;
            }
            let (xid, mut results) = self.connection.receive()?;
            if !under_way.remove(&xid) {
                return Err(wrong("a reply to no call"));
            }
            let status = if self.row.work == NfsWork::Null { 0 } else { results.word()? };
            if status != 0 {
                return Err(wrong(format!("{}: status {status}", self.row.name())));
            }
            if matches!(self.row.work, NfsWork::WriteLarge | NfsWork::WriteSmall) {
                is_unstable |= how_stable(results)? == UNSTABLE;
            }
            done += 1;
        }
        // As all clients do: what was answered as stable needs none.
        if is_unstable {
            let args = BenchArgs::default().opaque(&self.file).long(0).words(&[0]);
            let (status, _) = self.connection.call(21, &args)?;
            if status != 0 {
                return Err(wrong(format!("commit: status {status}")));
            }
        }
        Ok(done)
    }

    fn send(&mut self, index: u64) -> io::Result<u32> {
        let of_file = BenchArgs::default().opaque(&self.file);
        let size = sized(FILE_BYTES, LARGE as u64);
        let any = BLOCK as u64 * self.rng.below(size / BLOCK as u64);
        let large = LARGE as u64 * (index % (size / LARGE as u64));
        let name = format!("name-{}-{index}", self.prefix);
        let named = BenchArgs::default().opaque(&self.directory).opaque(name.as_bytes());
        match self.row.work {
            NfsWork::Null => self.connection.send(0, &BenchArgs::default(), &[]),
            NfsWork::Getattr => self.connection.send(1, &of_file, &[]),
            NfsWork::Lookup => {
                let args = BenchArgs::default().opaque(&self.directory).opaque(b"file0");
                self.connection.send(3, &args, &[])
            }
            NfsWork::ReadSmall => {
                self.connection.send(6, &of_file.long(any).words(&[BLOCK as u32]), &[])
            }
            NfsWork::ReadLarge => {
                self.connection.send(6, &of_file.long(large).words(&[LARGE as u32]), &[])
            }
            NfsWork::WriteSmall => {
                self.connection.send(7, &self.write_args(any, BLOCK), &self.data[..BLOCK])
            }
            NfsWork::WriteLarge => {
                let at = LARGE as u64 * index;
                self.connection.send(7, &self.write_args(at, LARGE), &self.data)
            }
            NfsWork::Create => {
                self.connection.send(8, &named.words(&[0, 1, 0o644, 0, 0, 0, 0, 0]), &[])
            }
            NfsWork::Remove => self.connection.send(12, &named, &[]),
            NfsWork::Readdirplus => {
                let args = BenchArgs::default().opaque(&self.directory).long(0).long(0);
                self.connection.send(17, &args.words(&[LISTING_BYTES, LISTING_BYTES]), &[])
            }
        }
    }
}
