//! Rounds of faults, of processes and of the network between their hosts, while clients write
//! checkpoints by the library and over NFS.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use runtime::seed::{Rng, with_seed};
use tests::cluster::writers::{Ways, Writer};
use tests::cluster::{Cluster, Cut, Shape};

use super::without_disks;

/// Duration of a fault that clients must not notice, at most.
const SHORT_MS: u64 = 1_000;
/// Longer than a lease and until its end is seen.
const LONG_MS: std::ops::Range<u64> = 3_600..5_000;
/// How often it is looked whether a process has ended.
const LOOK_PAUSE: Duration = Duration::from_millis(50);

const ROUNDS: usize = 30;
/// On a quiet host they take some two minutes.
const ROUNDS_TIME_MAX: Duration = Duration::from_mins(4);
/// The volume answers within this time after a fault has ended, also in a debug build.
const BACK_WITHIN: Duration = Duration::from_secs(10);

/// What a process suffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// It ends in the middle of what it does, and is started again.
    Kill,
    /// It stands still.
    Freeze,
    /// It ends in order, and is started again.
    Restart,
    /// It can neither send nor receive.
    CutOff,
    /// One other process and it do not hear each other.
    CutFromOne,
    /// etcd and it do not hear each other.
    CutFromEtcd,
    /// It loses some of the packets that it is sent.
    Lose,
}

use Fault::{CutFromEtcd, CutFromOne, CutOff, Freeze, Kill, Lose, Restart};

/// One after the other, each at first for a moment and later for longer than a lease.
const FAULTS: [Fault; 7] = [Lose, Kill, CutFromOne, Freeze, CutOff, Restart, CutFromEtcd];
const FAULTS_OF_ONE_HOST: [Fault; 3] = [Kill, Freeze, Restart];

/// A fault of one process, and its duration.
fn strike(cluster: &mut Cluster, fault: Fault, pause: Duration, rng: &mut Rng) {
    let numbers: Vec<usize> = cluster.numbers().collect();
    let at = rng.index(numbers.len());
    let victim = numbers[at];
    let other = numbers[(at + 1 + rng.index(numbers.len() - 1)) % numbers.len()];
    eprintln!("process {victim}: {fault:?} for {pause:?}");
    match fault {
        Kill => {
            cluster.kill(victim);
            thread::sleep(pause);
            cluster.start_member(victim);
        }
        Freeze => {
            cluster.freeze(victim);
            thread::sleep(pause);
            cluster.thaw(victim);
        }
        Restart => {
            cluster.stop_member(victim);
            thread::sleep(pause);
            cluster.start_member(victim);
        }
        CutOff => cut(cluster, Cut::Whole(victim), pause),
        CutFromOne => cut(cluster, Cut::Between(victim, other), pause),
        CutFromEtcd => cut(cluster, Cut::FromEtcd(victim), pause),
        Lose => cut(cluster, Cut::Partly(victim), pause),
    }
}

/// Processes that end meanwhile are restarted, as by a service manager.
fn cut(cluster: &mut Cluster, cut: Cut, pause: Duration) {
    cluster.cut(cut, true);
    let begin = Instant::now();
    while begin.elapsed() < pause {
        cluster.restart_ended();
        thread::sleep(LOOK_PAUSE);
    }
    cluster.cut(cut, false);
}

/// Waits until a file can be written by way of each process but `away`, and each gateway answers. A
/// process that has ended is started again meanwhile.
pub(super) fn wait_until_back(cluster: &mut Cluster, probe: &str, away: Option<usize>) -> Duration {
    let begin = Instant::now();
    let ways = Ways::into(cluster);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _end = EndOf(&over);
        let (ways, over) = (&ways, &over);
        let asked = cluster.numbers().filter(|&number| away != Some(number));
        let of_processes = asked.map(|number| {
            let path = format!("{probe}-{number}");
            scope.spawn(move || until(over, || ways.takes_a_file(number, &path)))
        });
        let gateways = cluster.gateways().len();
        let of_gateways =
            (0..gateways).map(|at| scope.spawn(move || until(over, || ways.answers(at))));
        let waiting: Vec<_> = of_processes.chain(of_gateways).collect();
        while let Some(at) = waiting.iter().position(|one| !one.is_finished()) {
            assert!(begin.elapsed() < BACK_WITHIN, "number {at} is not back");
            cluster.restart_ended();
            thread::sleep(LOOK_PAUSE);
        }
    });
    begin.elapsed()
}

fn until(over: &AtomicBool, mut done: impl FnMut() -> bool) {
    while !over.load(Relaxed) && !done() {
        thread::sleep(LOOK_PAUSE);
    }
}

/// Says that it is over, also if the test fails: else those who wait would do so for ever.
struct EndOf<'a>(&'a AtomicBool);

impl Drop for EndOf<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// One fault while all write; how long the volume needed afterwards.
fn round(
    cluster: &mut Cluster,
    writers: &mut [Writer],
    (fault, pause): (Fault, Duration),
    (probe, rng): (&str, &mut Rng),
) -> Duration {
    let over = AtomicBool::new(false);
    let ways = Ways::into(cluster);
    thread::scope(|scope| {
        for writer in writers.iter_mut() {
            let (ways, over) = (&ways, &over);
            scope.spawn(move || writer.work(ways, over));
        }
        let _end = EndOf(&over);
        thread::sleep(Duration::from_millis(200 + rng.below(500)));
        strike(cluster, fault, pause, rng);
        let back = wait_until_back(cluster, probe, None);
        cluster.is_mended();
        back
    })
}

/// Looks at all that was acknowledged, and makes room. Returns how many bytes are free before.
fn look(cluster: &Cluster, writers: &mut [Writer], rng: &mut Rng) -> u64 {
    let member = 1 + rng.index(cluster.numbers().count());
    for writer in writers.iter() {
        writer.check(cluster, member, BACK_WITHIN);
    }
    let volume = cluster.open(member).expect("it has just answered");
    let space = volume.space().unwrap();
    assert!(space.free_bytes > space.total_bytes / 2, "what is removed does not go: {space:?}");
    for writer in writers {
        writer.clean_up(&volume);
    }
    space.free_bytes
}

/// How many rounds, if nothing else is asked for `usual`, and for how long at most.
fn rounds(usual: usize) -> (usize, Duration) {
    match std::env::var("MDFS_ROUNDS") {
        Ok(said) => (said.parse().expect("MDFS_ROUNDS is a number"), Duration::MAX),
        Err(_) => (usual, ROUNDS_TIME_MAX),
    }
}

/// `MDFS_ROUNDS=300` for more, however long they take.
#[test]
fn what_was_acknowledged_survives_faults_of_processes_and_of_the_network() {
    survives_faults("none", ROUNDS);
}

/// The others go on without a host, which is brought up to date when it is back.
#[test]
fn what_has_two_copies_survives_faults_of_processes_and_of_the_network() {
    survives_faults("2x", FAULTS.len());
}

fn survives_faults(redundancy: &'static str, usual: usize) {
    with_seed(|rng| {
        let shape = Shape { gateways: 2, on_hosts: true, redundancy, ..Shape::default() };
        let mut cluster = Cluster::started(shape);
        let faults = if cluster.has_hosts() { &FAULTS[..] } else { &FAULTS_OF_ONE_HOST };
        let ways = [Writer::new, Writer::new, Writer::over_nfs, Writer::over_nfs];
        let mut writers: Vec<Writer> =
            (0..).zip(ways).map(|(number, way)| way(number, rng.bits())).collect();
        let ((rounds, time_max), mut longest, mut done) = (rounds(usual), Duration::ZERO, 0);
        let begin = Instant::now();
        for at in (0..rounds).take_while(|_| begin.elapsed() < time_max) {
            let is_long = at / faults.len() % 2 == 1;
            let pause_ms = if is_long {
                LONG_MS.start + rng.below(LONG_MS.end - LONG_MS.start)
            } else {
                rng.below(SHORT_MS)
            };
            let strike = (faults[at % faults.len()], Duration::from_millis(pause_ms));
            let probe = format!("/probe-{at}");
            let back = round(&mut cluster, &mut writers, strike, (&probe, rng));
            let free_mib = look(&cluster, &mut writers, rng) >> 20;
            let written: Vec<usize> = writers.iter().map(|writer| writer.written).collect();
            eprintln!(
                "round {at}: back after {back:?}; durable {written:?}, {free_mib} MiB free; {:?}",
                begin.elapsed()
            );
            (longest, done) = (longest.max(back), at + 1);
        }
        let took = begin.elapsed();
        eprintln!("{done} of {rounds} rounds in {took:?}, back after {longest:?} at most");
        assert!(done >= rounds.min(FAULTS.len()), "one of each at least");
        let written: usize = writers.iter().map(|writer| writer.written).sum();
        let all_wrote = writers.iter().all(|writer| writer.written > 0);
        assert!(all_wrote && written >= 2 * done, "hardly anything was written: {writers:?}");
        cluster.stop();
        let told = cluster.check();
        assert!(told.contains("sound"), "{told}");
    });
}

/// It has no disks, so nothing has to wait for it.
#[test]
fn the_others_go_on_while_a_host_without_disks_is_cut_off() {
    const VICTIM: usize = 3;
    with_seed(|rng| {
        let shape = Shape { gateways: 2, on_hosts: true, ..without_disks(VICTIM) };
        let mut cluster = Cluster::started(shape);
        if !cluster.has_hosts() {
            return eprintln!("not tested: that needs hosts");
        }
        let (ways, over) = (Ways::into(&cluster), AtomicBool::new(false));
        let mut writer = Writer::over_nfs(0, rng.bits());
        thread::scope(|scope| {
            let _end = EndOf(&over);
            scope.spawn(|| writer.work(&ways, &over));
            thread::sleep(Duration::from_millis(500));
            cluster.cut(Cut::Whole(VICTIM), true);
            let back = wait_until_back(&mut cluster, "/while-cut", Some(VICTIM));
            eprintln!("the others are back after {back:?}");
            // It is fenced meanwhile, and finds no etcd.
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_millis(LONG_MS.end) {
                cluster.restart_ended();
                thread::sleep(LOOK_PAUSE);
            }
            cluster.cut(Cut::Whole(VICTIM), false);
            wait_until_back(&mut cluster, "/after-it", None);
            cluster.is_mended();
        });
        writer.check(&cluster, VICTIM, BACK_WITHIN);
        assert!(writer.written > 0, "{writer:?}");
        cluster.stop();
    });
}
