//! Rounds of faults under four native writers, two mounts and a gateway: no operation returns an
//! error, and what was acknowledged is there.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use client::OpenOptions;
use client::blocking::Volume;
use runtime::seed::{Rng, with_seed};
use tests::Content;
use tests::cluster::writers::{Ways, Writer};
use tests::cluster::{Cluster, Cut, Shape};
use tests::mounted::may_mount;

/// Of native clients; as many mounts as client hosts are beside them.
const NATIVE_WRITERS: u64 = 4;
/// The process without disks, which can leave the cluster.
const DISKLESS: usize = 3;
/// Bytes of a file, at most.
const LENGTH_MAX: u64 = 2 << 20;
/// Bytes of a write.
const PIECE: usize = 256 << 10;
/// Files that a writer keeps after a round.
const KEPT: usize = 4;
/// Rounds of the long test, and of the short one.
const ROUNDS: usize = 30;
const FEW_ROUNDS: usize = 4;
/// A process stands still for this time, and a server of etcd.
const FREEZE: Duration = Duration::from_secs(6);
/// The network of a process is cut for this time, and all of etcd is down.
const LONG: Duration = Duration::from_secs(20);
/// Operations wait no longer than this for a process that has died (debug builds start nodes
/// slowly),
const PAUSE_MAX: Duration = Duration::from_secs(if cfg!(debug_assertions) { 12 } else { 8 });
/// and for etcd no longer than its fault and this.
const ETCD_PAUSE_MAX: Duration = Duration::from_secs(15);
/// All answer again within this time after a round.
const BACK_WITHIN: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    Kill,
    Terminate,
    EtcdLeaderKilled,
    NodesMove,
    Freeze,
    EtcdLeaderFrozen,
    CutOff,
    EtcdDown,
}

const FAULTS: [Fault; 8] = [
    Fault::Kill,
    Fault::Terminate,
    Fault::EtcdLeaderKilled,
    Fault::NodesMove,
    Fault::Freeze,
    Fault::EtcdLeaderFrozen,
    Fault::CutOff,
    Fault::EtcdDown,
];

impl Fault {
    /// How long an operation may wait under it.
    fn pause_max(self) -> Duration {
        match self {
            Self::Kill | Self::Terminate | Self::NodesMove => PAUSE_MAX,
            Self::Freeze => FREEZE + PAUSE_MAX,
            Self::CutOff => LONG + PAUSE_MAX,
            Self::EtcdLeaderKilled | Self::EtcdLeaderFrozen => FREEZE + ETCD_PAUSE_MAX,
            Self::EtcdDown => LONG + ETCD_PAUSE_MAX,
        }
    }

    fn strike(self, cluster: &mut Cluster, rng: &mut Rng) {
        let victim = 1 + rng.index(cluster.numbers().count());
        match self {
            Self::Kill => {
                cluster.kill(victim);
                thread::sleep(Duration::from_millis(500));
                cluster.start_member(victim);
                cluster.wait_until_ready(victim);
            }
            Self::Terminate => {
                cluster.stop_member(victim);
                cluster.start_member(victim);
                cluster.wait_until_ready(victim);
            }
            Self::NodesMove => {
                let number = DISKLESS.to_string();
                for verb in ["remove", "add"] {
                    let done = cluster.run(&["cluster", verb, "cluster.toml", &number]);
                    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
                    if verb == "remove" {
                        cluster.stop_member(DISKLESS);
                    }
                }
                cluster.start_member(DISKLESS);
                cluster.wait_until_ready(DISKLESS);
            }
            Self::Freeze => {
                cluster.freeze(victim);
                thread::sleep(FREEZE);
                cluster.thaw(victim);
            }
            Self::CutOff => {
                cluster.cut(Cut::Whole(victim), true);
                thread::sleep(LONG);
                cluster.cut(Cut::Whole(victim), false);
            }
            Self::EtcdLeaderKilled => cluster.kill_etcd_leader(FREEZE),
            Self::EtcdLeaderFrozen => cluster.freeze_etcd_leader(FREEZE),
            Self::EtcdDown => cluster.kill_etcd(LONG),
        }
    }
}

/// What the writers have seen in a round.
#[derive(Default)]
struct Sight {
    over: AtomicBool,
    operations: AtomicUsize,
    longest: Mutex<(Duration, String)>,
    errors: Mutex<Vec<String>>,
}

impl Sight {
    /// Does an operation and looks how long it takes. An error is noted, and the round is over.
    fn see<T, E: Display>(
        &self,
        what: &str,
        operation: impl FnOnce() -> Result<T, E>,
    ) -> Option<T> {
        let begin = Instant::now();
        let done = operation();
        let took = begin.elapsed();
        self.operations.fetch_add(1, Relaxed);
        let mut longest = self.longest.lock().unwrap();
        if took > longest.0 {
            *longest = (took, what.to_owned());
        }
        done.map_err(|error| {
            let told = format!("{what}, after {took:?}: {error}");
            eprintln!("{told}");
            self.errors.lock().unwrap().push(told);
        })
        .ok()
    }
}

/// Where a writer writes.
enum WriteTarget {
    Native(Volume),
    Mount(PathBuf),
}

/// An open file.
enum OpenFile {
    Native(Box<client::blocking::BlockingFile>),
    Mount(File),
}

impl WriteTarget {
    fn create(&self, sight: &Sight, name: &str) -> Option<OpenFile> {
        match self {
            Self::Native(volume) => {
                let options = OpenOptions::new().read(true).write(true).create_new(true);
                let open = || volume.open(format!("/{name}"), options);
                sight.see("a native creation", open).map(Box::new).map(OpenFile::Native)
            }
            Self::Mount(point) => {
                let make = || File::create_new(point.join(name));
                sight.see("a creation in a mount", make).map(OpenFile::Mount)
            }
        }
    }

    fn rename(&self, sight: &Sight, from: &str, to: &str) -> Option<()> {
        match self {
            Self::Native(volume) => {
                sight.see("a native rename", || volume.rename(format!("/{from}"), format!("/{to}")))
            }
            Self::Mount(point) => {
                let rename = || fs::rename(point.join(from), point.join(to));
                sight.see("a rename in a mount", rename)
            }
        }
    }

    fn read(&self, sight: &Sight, name: &str, length: u64) -> Option<Vec<u8>> {
        match self {
            Self::Native(volume) => sight.see("a native read", || {
                let file = volume.open(format!("/{name}"), OpenOptions::new().read(true))?;
                Ok::<_, client::Error>(file.read_bytes_at(0, length as usize + 1)?.concat())
            }),
            Self::Mount(point) => sight.see("a read in a mount", || fs::read(point.join(name))),
        }
    }

    fn remove(&self, sight: &Sight, name: &str) -> Option<()> {
        match self {
            Self::Native(volume) => {
                sight.see("a native removal", || volume.remove_file(format!("/{name}")))
            }
            Self::Mount(point) => {
                sight.see("a removal in a mount", || fs::remove_file(point.join(name)))
            }
        }
    }
}

impl OpenFile {
    fn write(&self, sight: &Sight, bytes: &[u8]) -> Option<()> {
        for (piece, at) in bytes.chunks(PIECE).zip((0..).step_by(PIECE)) {
            match self {
                Self::Native(file) => {
                    sight.see("a native write", || file.write_at(at, piece.to_vec()).map(drop))?;
                }
                Self::Mount(file) => {
                    sight.see("a write in a mount", || file.write_all_at(piece, at))?;
                }
            }
        }
        Some(())
    }

    /// Makes the file durable: what a server has lost is sent again.
    fn sync(&self, sight: &Sight) -> Option<()> {
        match self {
            Self::Native(file) => sight.see("a native sync", || file.sync()),
            Self::Mount(file) => sight.see("a sync in a mount", || file.sync_all()),
        }
    }
}

/// Writes files, each under another name at first.
struct FileWriter {
    name: String,
    place: WriteTarget,
    rng: Rng,
    count: u64,
    /// What must be there.
    done: BTreeMap<String, Content>,
}

impl FileWriter {
    fn work(&mut self, sight: &Sight) {
        while !sight.over.load(Relaxed) {
            self.count += 1;
            self.write_file(sight);
        }
    }

    fn write_file(&mut self, sight: &Sight) -> Option<()> {
        let content = Content { seed: self.rng.bits(), length: 1 + self.rng.below(LENGTH_MAX) };
        let bytes = content.bytes();
        let (part, name) =
            (format!("{}-{}-part", self.name, self.count), format!("{}-{}", self.name, self.count));
        let file = self.place.create(sight, &part)?;
        file.write(sight, &bytes)?;
        file.sync(sight)?;
        self.place.rename(sight, &part, &name)?;
        self.done.insert(name, content);
        Some(())
    }

    /// All that was acknowledged is there by way of `place`; the oldest is removed.
    fn check(&mut self, sight: &Sight, place: &WriteTarget) {
        for (name, content) in &self.done {
            let read = place.read(sight, name, content.length);
            assert!(read.is_some_and(|read| read == content.bytes()), "{name} is another one");
        }
        while self.done.len() > KEPT {
            let (name, _) = self.done.pop_first().expect("there are some");
            self.place.remove(sight, &name);
        }
    }
}

fn run(rounds: usize) {
    if !may_mount() {
        return;
    }
    with_seed(|rng| {
        let shape = Shape {
            gateways: 1,
            on_hosts: true,
            without_disks: Some(DISKLESS),
            client_hosts: 2,
            etcd_servers: 3,
            ..Shape::default()
        };
        let mut cluster = Cluster::started(shape);
        let hosts = cluster.client_hosts();
        assert_eq!(hosts.len(), 2, "this user may make hosts");
        let mounts = [hosts[0].mount("mnt-1", &[]), hosts[1].mount("mnt-2", &[])];
        let native = (0..NATIVE_WRITERS).map(|at| {
            (format!("native-{at}"), WriteTarget::Native(hosts[at as usize % 2].open().unwrap()))
        });
        let mounted = mounts.iter().zip(0..);
        let mounted =
            mounted.map(|(mount, at)| (format!("mount-{at}"), WriteTarget::Mount(mount.path(""))));
        let mut writers: Vec<FileWriter> = native
            .chain(mounted)
            .map(|(name, place)| {
                let rng = Rng::new(rng.bits());
                FileWriter { name, place, rng, count: 0, done: BTreeMap::new() }
            })
            .collect();
        let reader = WriteTarget::Native(hosts[1].open().unwrap());
        let mut over_nfs = Writer::over_nfs(0, rng.bits());
        let mut longest: BTreeMap<Fault, Duration> = BTreeMap::new();
        let (mut errors, mut operations) = (Vec::new(), 0);
        for (round, &fault) in FAULTS.iter().cycle().take(rounds).enumerate() {
            let sight = Sight::default();
            let ways = Ways::into(&cluster);
            thread::scope(|scope| {
                for writer in &mut writers {
                    let sight = &sight;
                    scope.spawn(move || writer.work(sight));
                }
                scope.spawn(|| over_nfs.work(&ways, &sight.over));
                thread::sleep(Duration::from_secs(1));
                fault.strike(&mut cluster, rng);
                thread::sleep(Duration::from_secs(2));
                sight.over.store(true, Relaxed);
            });
            cluster.restart_ended();
            cluster.is_mended();
            let (pause, what) = sight.longest.lock().unwrap().clone();
            let done = sight.operations.load(Relaxed);
            eprintln!(
                "round {round}: {fault:?}: {done} operations, {pause:?} for {what}, {} files over NFS",
                over_nfs.written
            );
            let slowest = longest.entry(fault).or_default();
            *slowest = pause.max(*slowest);
            errors.append(&mut sight.errors.lock().unwrap());
            operations += done;
            let after = Sight::default();
            for writer in &mut writers {
                writer.check(&after, &reader);
            }
            over_nfs.check(&cluster, 1, BACK_WITHIN);
            over_nfs.clean_up(&cluster.open(1).unwrap());
            errors.append(&mut after.errors.lock().unwrap());
        }
        eprintln!("{rounds} rounds, {operations} operations; {longest:?}");
        assert!(errors.is_empty(), "{} errors: {errors:#?}", errors.len());
        for (fault, pause) in longest {
            assert!(pause <= fault.pause_max(), "{pause:?} under {fault:?}");
        }
        drop((writers, reader));
        mounts.into_iter().for_each(tests::client_host::RemoteMount::unmount);
        cluster.stop();
        let told = cluster.check();
        assert!(told.contains("sound"), "{told}");
    });
}

#[test]
fn no_operation_fails_in_a_few_rounds_of_faults() {
    run(FEW_ROUNDS);
}

/// Takes about ten minutes.
#[test]
#[ignore = "takes minutes: cargo test -p tests --test remote_clients -- --ignored thirty_rounds"]
fn no_operation_fails_in_thirty_rounds_of_faults() {
    run(ROUNDS);
}
