//! Native clients on other hosts: their links break all the time, and no operation of theirs fails
//! or is done twice; nor do they get what is not theirs.
//!
//! | file | holds |
//! | --- | --- |
//! | `mod.rs` | what the clients do, and what must be so |
//! | `shared_file.rs` | a large file that all of them write and read |
//! | `outage.rs` | a process that is away, and what its clients say about it |
//! | `host.rs` | the port of the server, and the hosts of the clients |

mod host;
mod outage;
mod shared_file;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::pin::pin;
use std::time::Duration;

use client::protocol::{
    Change, Credentials, Error, GetAttributes, Handle, MakeNode, Name, NewNode, ROOT, Read,
    ReadDirect, SetAttributes, Trim,
};
use client::{FileSystem, OpenOptions};
use fileio::client::ask;
use futures::FutureExt as _;
use futures::future::{Either, select};
use machine_emu::{NetworkFaults, StreamFaults};
use runtime::delivery::DeliveryTarget;
use runtime::seed::Rng;
use runtime::{CallId, Undelivered};
use transport::LinkHandle;

use self::host::{FIRST_USER, PROCESSES, connect, credentials};
use self::outage::Absence;
use self::shared_file::VersionedFile;
use crate::harness::{Harness, PowerCut, RoundEnd, WorkResult};

/// Bytes of a record of the log: the number of its client, its own number, and padding.
const RECORD_BYTES: u64 = 24;
/// Registers of 8 bytes in the own file of each client.
const REGISTERS: u64 = 4;
/// How often it is looked whether the power has gone.
const POWER_CHECK: Duration = Duration::from_millis(20);
/// How often it is looked whether the faults of the round are over.
const CALMING_PAUSE: Duration = Duration::from_millis(10);
/// Calls of the client that fails here are numbered from here on.
const FORGED_CALLS: u64 = 1 << 40;

const LOG: &str = "/log";
const SECRET: &str = "/secret";

/// What all clients of a run have done.
struct RemoteWorkload<'a> {
    harness: &'a Harness,
    /// Records whose append was answered in this round, with their offsets.
    appended: RefCell<Vec<(u64, [u64; 2])>>,
    next_record: Cell<u64>,
    secret: Cell<Handle>,
    log: Cell<Handle>,
    shared: VersionedFile,
}

/// One client, and what its files must hold.
struct RemoteClient<'a> {
    workload: &'a RemoteWorkload<'a>,
    number: u32,
    system: FileSystem<LinkHandle>,
    who: Credentials,
    /// The last answered version of each register, and the one that is being written.
    registers: RefCell<[(u64, u64); REGISTERS as usize]>,
    /// Which of two names its file has.
    is_renamed: Cell<bool>,
}

/// Runs the workload to its end.
pub(crate) async fn run(harness: &Harness, clients: u32, rounds: u32, round_ms: u64) {
    harness.set_up().await;
    // Messages between nodes are not lost.
    harness.cluster.world().network().set_faults(NetworkFaults::default());
    let processes = if harness.fork_rng().chance(1, 3) { 1 } else { PROCESSES };
    host::serve(harness, processes).await;
    let none = Handle { ino: 0, generation: 0 };
    let workload = RemoteWorkload {
        harness,
        appended: RefCell::default(),
        next_record: Cell::new(1),
        secret: Cell::new(none),
        log: Cell::new(none),
        shared: VersionedFile::default(),
    };
    workload.prepare().await;
    for round in 0..rounds {
        workload.shared.begin_round();
        let mut rng = harness.fork_rng();
        let users: Vec<u32> = (0..clients).map(|client| user_of(client, &mut rng)).collect();
        let cuts = StreamFaults {
            cut_ppm: [0, 2_000, 20_000, 100_000][rng.index(4)],
            delay_ppm: rng.below(100_000) as u32,
            delay_max_ns: 1_000 << rng.below(16),
            piece_bytes_max: [0, 7, 1000][rng.index(3)],
        };
        harness.cluster.world().set_stream_faults(cuts);
        let working = users.iter().zip(0..).map(|(&uid, number)| {
            workload.work(number, uid, round, harness.fork_rng()).map(drop).boxed_local()
        });
        // A client whose connections are cut for ever does not come to an end.
        let calming = async {
            while !harness.is_over() {
                harness.pass(CALMING_PAUSE).await;
            }
            harness.cluster.world().set_stream_faults(StreamFaults::default());
        };
        let all = working.chain([calming.boxed_local()]).collect();
        let ended = harness.round(all, round_ms).await;
        if ended == RoundEnd::PowerCut {
            host::end(harness, processes);
            harness.recover().await;
            harness.cluster.world().network().set_faults(NetworkFaults::default());
            host::serve(harness, processes).await;
        }
        let after_crash = ended == RoundEnd::PowerCut;
        harness.within_limit("a check", workload.check(after_crash)).await;
        let absence = Absence::new(&mut rng);
        let outage = outage::check(harness, processes, absence);
        harness.within_limit("an outage", outage).await;
    }
}

/// Some clients are root.
fn user_of(client: u32, rng: &mut Rng) -> u32 {
    if rng.chance(1, 3) { 0 } else { FIRST_USER + client }
}

impl RemoteWorkload<'_> {
    /// A log that all may append to, and what only root may read.
    async fn prepare(&self) {
        let root = connect(self.harness, 0, 0).await;
        let made = async {
            root.set_attributes("/", mode(0o777)).await?;
            for (path, bits) in [(LOG, 0o666), (SECRET, 0o600)] {
                root.create(path).await?.write_at(0, vec![0; RECORD_BYTES as usize]).await?;
                root.set_attributes(path, mode(bits)).await?;
            }
            root.create(shared_file::PATH).await?;
            root.set_attributes(shared_file::PATH, mode(0o666)).await?;
            root.sync().await?;
            Ok::<_, client::Error>((root.metadata(SECRET).await?, root.metadata(LOG).await?))
        };
        let (secret, log) = made.await.unwrap_or_else(|error| panic!("{error}"));
        self.secret.set(Handle { ino: secret.ino, generation: secret.generation });
        self.log.set(Handle { ino: log.ino, generation: log.generation });
    }

    /// The result of `operation`, unless the power goes. No operation fails.
    async fn must<T>(
        &self,
        operation: impl Future<Output = Result<T, client::Error>>,
    ) -> WorkResult<T> {
        let done = self.until_power_cut(operation).await?;
        Ok(done.unwrap_or_else(|error| panic!("{error}")))
    }

    async fn until_power_cut<T>(&self, operation: impl Future<Output = T>) -> WorkResult<T> {
        let power = async {
            while !self.harness.is_power_off() {
                self.harness.pass(POWER_CHECK).await;
            }
        };
        match select(pin!(operation), pin!(power)).await {
            Either::Left((_, _)) | Either::Right(_) if self.harness.is_power_off() => Err(PowerCut),
            Either::Left((done, _)) => {
                self.harness.answered();
                Ok(done)
            }
            Either::Right(_) => Err(PowerCut),
        }
    }

    /// What one client does in a round.
    async fn work(&self, number: u32, uid: u32, round: u32, mut rng: Rng) -> WorkResult {
        let system = self.until_power_cut(connect(self.harness, number, uid)).await?;
        let client = RemoteClient {
            workload: self,
            number,
            system,
            who: credentials(uid),
            registers: RefCell::default(),
            is_renamed: Cell::new(false),
        };
        client.begin(round).await?;
        while !self.harness.is_over() {
            client.step(round, &mut rng).await?;
        }
        client.check_registers(round).await
    }

    /// No record is in the log twice; without a crash each answered one is where it was put.
    async fn check(&self, after_crash: bool) {
        let root = connect(self.harness, 0, 0).await;
        let read = async {
            // Nothing of it is damaged, whatever was lost.
            let shared = root.open(shared_file::PATH, OpenOptions::new().read(true)).await?;
            shared.read_at(0, &mut vec![0; shared.metadata().await?.size as usize]).await?;
            let log = root.open(LOG, OpenOptions::new().read(true)).await?;
            let size = log.metadata().await?.size as usize;
            let mut bytes = vec![0; size];
            let length = log.read_at(0, &mut bytes).await?;
            bytes.truncate(length);
            Ok::<_, client::Error>(bytes)
        };
        let bytes = read.await.unwrap_or_else(|error| panic!("{error}"));
        let records: Vec<[u64; 2]> =
            bytes.chunks_exact(RECORD_BYTES as usize).map(record_of).collect();
        let mut seen = BTreeSet::new();
        for record in records.iter().filter(|record| record[1] > 0) {
            assert!(seen.insert(*record), "{record:?} was appended twice");
        }
        for (offset, record) in self.appended.take() {
            let index = (offset / RECORD_BYTES) as usize;
            let found = records.get(index) == Some(&record);
            assert!(found || after_crash, "{record:?} is not at {offset}, where it was put");
        }
    }
}

fn mode(mode: u32) -> Change {
    Change { mode: Some(mode), ..Change::default() }
}

fn record_of(bytes: &[u8]) -> [u64; 2] {
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap_or_default());
    [word(0), word(8)]
}

impl RemoteClient<'_> {
    fn path(&self, round: u32) -> String {
        let name = if self.is_renamed.get() { "b" } else { "a" };
        format!("/{name}-{}-{round}", self.number)
    }

    async fn begin(&self, round: u32) -> WorkResult {
        let create = OpenOptions::new().write(true).create_new(true);
        self.workload.must(self.system.open(self.path(round), create)).await.map(drop)
    }

    async fn step(&self, round: u32, rng: &mut Rng) -> WorkResult {
        match rng.below(21) {
            0..4 => self.write_register(round, rng.below(REGISTERS)).await,
            4..6 => self.append().await,
            6 => self.rename(round).await,
            7 => self.check_registers(round).await,
            8 => self.forge(rng).await,
            16 => self.forge_deposit(rng).await,
            18 => Box::pin(self.write_shared_amid_drops()).await,
            19 => self.write_shared_in_part().await,
            9..12 => self.change_guarded(round, rng).await,
            12 | 17 => self.write_shared().await,
            13..16 => self.read_shared(rng).await,
            _ => {
                let sync = async {
                    let file = self.system.open(self.path(round), OpenOptions::new().write(true));
                    file.await?.sync().await
                };
                self.workload.must(sync).await
            }
        }
    }

    /// Writes the next version: a late copy of the one before would show.
    async fn write_register(&self, round: u32, index: u64) -> WorkResult {
        let version = {
            let register = &mut self.registers.borrow_mut()[index as usize];
            register.1 += 1;
            register.1
        };
        let write = async {
            let file = self.system.open(self.path(round), OpenOptions::new().write(true)).await?;
            file.write_at(index * 8, version.to_le_bytes().to_vec()).await
        };
        self.workload.must(write).await?;
        self.registers.borrow_mut()[index as usize].0 = version;
        Ok(())
    }

    async fn check_registers(&self, round: u32) -> WorkResult {
        let mut bytes = [0; 8 * REGISTERS as usize];
        let read = async {
            let file = self.system.open(self.path(round), OpenOptions::new().read(true)).await?;
            file.read_at(0, &mut bytes).await
        };
        self.workload.must(read).await?;
        for (found, &(answered, _)) in bytes.chunks_exact(8).zip(&*self.registers.borrow()) {
            let found = u64::from_le_bytes(found.try_into().unwrap_or_default());
            assert_eq!(found, answered, "client {}: an older write came late", self.number);
        }
        Ok(())
    }

    async fn append(&self) -> WorkResult {
        let number = self.workload.next_record.get();
        self.workload.next_record.set(number + 1);
        let record = [u64::from(self.number), number];
        let mut bytes: Vec<u8> = record.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.resize(RECORD_BYTES as usize, 0);
        let append = async {
            self.system.open(LOG, OpenOptions::new().append(true)).await?.append(bytes).await
        };
        let end = self.workload.must(append).await?;
        self.workload.appended.borrow_mut().push((end - RECORD_BYTES, record));
        Ok(())
    }

    /// Changes its file if nothing has changed it since: a second copy would find the first one's
    /// change, and be refused.
    async fn change_guarded(&self, round: u32, rng: &mut Rng) -> WorkResult {
        let found = self.workload.must(self.system.metadata(self.path(round))).await?;
        let (who, durable) = (self.who.clone(), false);
        let file = Handle { ino: found.ino, generation: found.generation };
        let change = mode(0o600 | rng.below(0o100) as u32);
        let only_if_ctime = Some(found.ctime);
        let change = SetAttributes { who, file, change, only_if_ctime, durable };
        let call = fileio::client::send_with_retries(self.system.machine(), change);
        let answer = self.workload.until_power_cut(call).await?;
        assert!(answer.is_ok(), "client {}: {answer:?} to a change done once", self.number);
        Ok(())
    }

    async fn rename(&self, round: u32) -> WorkResult {
        let from = self.path(round);
        self.is_renamed.set(!self.is_renamed.get());
        self.workload.must(self.system.rename(from, self.path(round))).await
    }

    /// Asks for what is not its own, under another name.
    async fn forge(&self, rng: &mut Rng) -> WorkResult {
        let (machine, file) = (self.system.machine(), self.workload.secret.get());
        let root = Credentials::root();
        match rng.below(6) {
            0 => {
                let read = Read { who: root, file, offset: 0, length: 8 };
                let answer = self.workload.until_power_cut(ask(machine, read)).await?;
                assert_eq!(answer.is_ok(), self.who.uid == 0, "it read what is not its own");
            }
            1 => {
                let change = Change { uid: Some(self.who.uid), ..Change::default() };
                let (only_if_ctime, durable) = (None, false);
                let take = SetAttributes { who: root, file, change, only_if_ctime, durable };
                let answer = self.workload.until_power_cut(ask(machine, take)).await?;
                assert_eq!(answer.is_ok(), self.who.uid == 0, "it took what is not its own");
            }
            2 => {
                let (ino, refused) = (self.workload.log.get().ino, Undelivered::Refused);
                let answer = self.workload.until_power_cut(ask(machine, Trim { ino })).await?;
                assert_eq!(answer, Err(Error::Undelivered { why: refused }), "it acts as a node");
            }
            3 => {
                let (who, file) = (self.who.clone(), self.workload.log.get());
                let deliver = DeliveryTarget { client: rng.bits(), transfer: 1, ports: Vec::new() };
                let read = ReadDirect { who, file, offset: 0, length: 8, deliver };
                let answer = self.workload.until_power_cut(ask(machine, read)).await?;
                let refused = Err(Error::Undelivered { why: Undelivered::Refused });
                assert_eq!(answer.map(drop), refused, "it has another client sent something");
            }
            4 => {
                let file = Handle { generation: 0, ..self.workload.log.get() };
                let answer =
                    self.workload.until_power_cut(ask(machine, GetAttributes { file })).await?;
                let refused = Err(Error::Undelivered { why: Undelivered::Refused });
                assert_eq!(answer.map(drop), refused, "it names a file by number alone");
            }
            _ => {
                let call = CallId { client: rng.bits(), number: FORGED_CALLS };
                let (who, node) = (self.who.clone(), NewNode::Directory {});
                let name = Name::new(format!("forged-{}", rng.bits())).map_err(|_| PowerCut)?;
                let (directory, change, durable) = (ROOT, Change::default(), false);
                let make = MakeNode { who, call, directory, name, node, change, durable };
                let answer = self.workload.until_power_cut(ask(machine, make)).await?;
                let refused = Err(Error::Undelivered { why: Undelivered::Refused });
                assert_eq!(answer.map(drop), refused, "it acts under the number of another");
            }
        }
        Ok(())
    }
}
