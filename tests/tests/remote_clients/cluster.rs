//! Three processes serve one volume to a host without a server, whose programs go on while one
//! process after the other suffers.

use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use runtime::seed::with_seed;
use tests::Content;
use tests::client_host::ClientHost;
use tests::cluster::{Cluster, Cut, Shape};
use tests::mounted::may_mount;

/// A process is cut off, or stands still, for longer than others take to take over from it.
const LONG: Duration = Duration::from_secs(6);
/// The copies end within this time after a fault.
const DONE_WITHIN: Duration = Duration::from_mins(1);
/// Bytes of a copy.
const LENGTH: u64 = 48 << 20;
/// The server without disks: the others take its nodes over at once.
const DISKLESS: usize = 3;

#[derive(Clone, Copy, Debug)]
enum Fault {
    Kill(usize),
    /// It ends in order, so its nodes move by plan, twice.
    Restart(usize),
    Freeze(usize),
    CutOff(usize),
}

const FAULTS: [Fault; 6] = [
    Fault::Kill(DISKLESS),
    Fault::Restart(2),
    Fault::Kill(1),
    Fault::Freeze(DISKLESS),
    Fault::CutOff(2),
    Fault::Restart(DISKLESS),
];

fn strike(cluster: &mut Cluster, fault: Fault) {
    match fault {
        Fault::Kill(victim) => {
            cluster.kill(victim);
            thread::sleep(Duration::from_millis(500));
            cluster.start_member(victim);
        }
        Fault::Restart(victim) => {
            cluster.stop_member(victim);
            cluster.start_member(victim);
        }
        Fault::Freeze(victim) => {
            cluster.freeze(victim);
            thread::sleep(LONG);
            cluster.thaw(victim);
        }
        Fault::CutOff(victim) => {
            cluster.cut(Cut::Whole(victim), true);
            thread::sleep(LONG);
            cluster.cut(Cut::Whole(victim), false);
        }
    }
}

/// A copy that runs; ended when dropped.
struct RunningCopy {
    process: Child,
    log: PathBuf,
}

impl RunningCopy {
    fn start(client: &ClientHost, name: &str, from: &str, to: &str) -> Self {
        let log = client.folder.join(format!("{name}.log"));
        let mut command = client.command(&["cp", from, to]);
        command.stdout(Stdio::null()).stderr(File::create(&log).unwrap());
        Self { process: command.spawn().unwrap(), log }
    }

    /// Is it still under way?
    fn runs(&mut self) -> bool {
        self.process.try_wait().unwrap().is_none()
    }

    fn wait(mut self) {
        let start = Instant::now();
        while self.runs() {
            assert!(start.elapsed() < DONE_WITHIN, "{} does not end: {}", self.name(), self.told());
            thread::sleep(Duration::from_millis(20));
        }
        let status = self.process.wait().unwrap();
        assert!(status.success(), "{} ends with {status}: {}", self.name(), self.told());
    }

    fn name(&self) -> String {
        self.log.file_stem().unwrap().to_string_lossy().into_owned()
    }

    fn told(&self) -> String {
        let mut told = String::new();
        let _ = File::open(&self.log).and_then(|mut log| log.read_to_string(&mut told));
        told
    }
}

impl Drop for RunningCopy {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn copies_and_a_mount_go_on_while_processes_die_stand_still_are_cut_off_and_move_their_nodes() {
    if !may_mount() {
        return;
    }
    with_seed(|rng| {
        let shape = Shape { on_hosts: true, without_disks: Some(DISKLESS), ..Shape::default() };
        let mut cluster = Cluster::started(shape);
        let client = cluster.client_hosts().pop().expect("this user may make hosts");
        let content = Content { seed: rng.bits(), length: LENGTH }.bytes();
        fs::write(cluster.path("in"), &content).unwrap();
        client.ok(&["cp", "in", &client.at("/stored")]);
        let mounted = client.mount("mnt", &["--cache-ms", "0"]);
        let file = File::create_new(mounted.path("open")).unwrap();
        let mut caught = 0;
        for (round, fault) in (0_u64..).zip(FAULTS) {
            let begin = Instant::now();
            let [to, from] = ["/copied", "/stored"].map(|path| client.at(path));
            let mut copies = [
                RunningCopy::start(&client, "copy-in", "in", &to),
                RunningCopy::start(&client, "copy-out", &from, "out"),
            ];
            thread::sleep(Duration::from_millis(150 + rng.below(250)));
            caught += copies.iter_mut().filter_map(|copy| copy.runs().then_some(())).count();
            thread::scope(|scope| {
                let write = scope.spawn(|| {
                    thread::sleep(Duration::from_millis(200));
                    let begin = Instant::now();
                    file.write_all_at(&round.to_le_bytes(), 8 * round).unwrap();
                    file.sync_all().unwrap();
                    begin.elapsed()
                });
                strike(&mut cluster, fault);
                eprintln!("{fault:?}: the mount has waited {:?}", write.join().unwrap());
            });
            copies.into_iter().for_each(RunningCopy::wait);
            assert_eq!(cluster.restart_ended(), 0, "a process has ended");
            assert!(fs::read(cluster.path("out")).unwrap() == content, "{fault:?}");
            client.ok(&["cp", &client.at("/copied"), "back"]);
            assert!(fs::read(cluster.path("back")).unwrap() == content, "{fault:?}");
            client.ok(&["rm", &client.at("/copied")]);
            fs::remove_file(cluster.path("out")).unwrap();
            eprintln!("{fault:?}: {:?}", begin.elapsed());
        }
        assert!(caught >= FAULTS.len(), "{caught} copies were under way");
        let read = fs::read(mounted.path("open")).unwrap();
        let expected: Vec<u8> = (0..FAULTS.len() as u64).flat_map(u64::to_le_bytes).collect();
        assert_eq!(read, expected);
        drop(file);
        mounted.unmount();
        cluster.stop();
        let told = cluster.check();
        assert!(told.contains("sound"), "{told}");
    });
}
