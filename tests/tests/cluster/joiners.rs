//! A process with disks joins a cluster that is in use, and another leaves it for good, while
//! processes are killed.

use std::fs;
use std::os::unix::fs::OpenOptionsExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use runtime::seed::{Rng, with_seed};
use tests::cluster::writers::Writer;
use tests::cluster::{Cluster, Shape};

use super::BACK_WITHIN;

const WRITERS: u64 = 2;
/// Between two files of a writer, so that the volume does not become full.
const PAUSE: Duration = Duration::from_millis(300);
/// All that moves on a busy host.
const MOVED_WITHIN: Duration = Duration::from_mins(2);
/// The process that leaves.
const LEAVER: usize = 2;

/// What the program says, and whether it did what it was asked for.
fn told(cluster: &Cluster, arguments: &[&str]) -> (bool, String) {
    let done = cluster.run(arguments);
    (done.status.success(), String::from_utf8([done.stdout, done.stderr].concat()).unwrap())
}

fn ok(cluster: &Cluster, arguments: &[&str]) -> String {
    let (done, told) = told(cluster, arguments);
    assert!(done, "mdfs {arguments:?}: {told}");
    told
}

/// The disks of a disk node with what is on each, as the first process tells.
fn disks(cluster: &Cluster, disk_node: u32) -> Vec<(String, String, u64)> {
    let list = ok(cluster, &["disk", "list", "--json", "p1"]);
    let list: serde_json::Value = serde_json::from_str(&list).unwrap();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let disk = |disk: &serde_json::Value| {
        (text(&disk["disk"]), text(&disk["state"]), disk["used_bytes"].as_u64().unwrap())
    };
    let of_node = format!("n{disk_node}d");
    let disks = list["disks"].as_array().unwrap().iter().map(disk);
    disks.filter(|(name, ..)| name.starts_with(&of_node)).collect()
}

/// Writes and syncs file after file by way of processes that are not killed.
fn write_on(writer: &mut Writer, cluster: &Ways, over: &AtomicBool) {
    while !over.load(Relaxed) {
        let Ok(volume) = client::volume::open(&cluster.0) else {
            thread::sleep(PAUSE);
            continue;
        };
        while !over.load(Relaxed) && writer.write(&volume).is_some() {
            thread::sleep(PAUSE);
        }
    }
}

/// The directory of a process.
struct Ways(std::path::PathBuf);

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < MOVED_WITHIN, "{what}: not in time");
        thread::sleep(Duration::from_millis(100));
    }
}

/// A process with two disks joins, is killed on the way and when data moves to it.
fn join(cluster: &mut Cluster, rng: &mut Rng) -> usize {
    let joiner =
        cluster.add_process("disk-paths = [\"new-0\", \"new-1\"]\ndisk-size = \"200MiB\"\n");
    let pause = Duration::from_millis(rng.below(2500));
    eprintln!("killed {pause:?} after its start");
    cluster.start_member(joiner);
    thread::sleep(pause);
    cluster.kill(joiner);
    cluster.start_member(joiner);
    cluster.wait_until_ready(joiner);
    let disk_node = joiner as u32 - 1;
    wait_until("its disks are part of the volume", || disks(cluster, disk_node).len() == 2);

    ok(cluster, &["rebalance", "--no-wait", "--pace", "gentle", "p1"]);
    thread::sleep(Duration::from_millis(rng.below(2000)));
    cluster.kill(joiner);
    cluster.start_member(joiner);
    cluster.wait_until_ready(joiner);
    ok(cluster, &["rebalance", "--pace", "fast", "p1"]);
    let used: Vec<u64> = disks(cluster, disk_node).into_iter().map(|(.., used)| used).collect();
    eprintln!("on its disks are {used:?} bytes");
    assert!(used.iter().all(|used| *used > 1 << 20), "data has moved there: {used:?}");
    joiner
}

/// A process gives its disks back, and what was theirs is gone.
fn leave(cluster: &mut Cluster) {
    let number = LEAVER.to_string();
    let remove = ["cluster", "remove", "cluster.toml", &number];
    let (done, why) = told(cluster, &remove);
    assert!(!done && why.contains("iB are on its disks n1d0"), "{why}");
    let next = format!("mdfs cluster remove --drain cluster.toml {number}");
    assert!(why.contains(&next), "the next step is told: {why}");
    // It is cut off in the middle.
    ok(cluster, &["disk", "drain", "--no-wait", "--pace", "gentle", "p1", "n1d0"]);
    cluster.kill(LEAVER);
    wait_until("its disk is listed as offline", || {
        disks(cluster, LEAVER as u32 - 1).iter().any(|(_, state, _)| state == "offline")
    });
    let (done, why) = told(cluster, &["cluster", "remove", "--drain", "cluster.toml", &number]);
    let tells = why.contains("n1d0 cannot be reached") || why.contains("disks have to run");
    assert!(!done && tells, "{why}");
    cluster.start_member(LEAVER);
    cluster.wait_until_ready(LEAVER);
    ok(cluster, &["cluster", "remove", "--drain", "--pace", "fast", "cluster.toml", &number]);
    let list = disks(cluster, LEAVER as u32 - 1);
    assert_eq!(list, [("n1d0".to_owned(), "retired".to_owned(), 0)]);
    cluster.stop_member(LEAVER);
    let (done, why) = told(cluster, &["cluster", "serve", "cluster.toml", &number]);
    assert!(!done && why.contains("mdfs cluster add"), "{why}");
    fs::remove_dir_all(cluster.directory(LEAVER)).unwrap();
    // Changes of the disks go on without it.
    ok(cluster, &["rebalance", "--pace", "fast", "p1"]);
    let status = cluster.status();
    let rows = status["processes"].as_array().unwrap();
    let row = rows.iter().find(|row| row["number"] == LEAVER);
    let nodes = row.map(|row| (row["state"].as_str().unwrap(), row["nodes"].as_u64().unwrap()));
    assert!(nodes.is_none_or(|nodes| nodes == ("removed", 0)), "{status}");
}

/// It comes back with a directory that is new.
fn return_with_nothing(cluster: &mut Cluster) {
    ok(cluster, &["cluster", "add", "cluster.toml", &LEAVER.to_string()]);
    cluster.start_member(LEAVER);
    cluster.wait_until_ready(LEAVER);
    let online = |name: &str, state: &str| (name.to_owned(), state.to_owned());
    wait_until("it has a disk again", || {
        let list = disks(cluster, LEAVER as u32 - 1).into_iter();
        let list: Vec<_> = list.map(|(name, state, _)| (name, state)).collect();
        list == [online("n1d0", "retired"), online("n1d1", "online")]
    });
}

/// Deletes the table of a process from the machine file; the next keeps its disk node.
fn forget(cluster: &Cluster, number: usize) {
    let path = cluster.path("cluster.toml");
    let file = fs::read_to_string(&path).unwrap();
    let tables: Vec<&str> = file.split("[[process]]\n").collect();
    let next = format!("disk-node = {number}\n{}", tables[number + 1]);
    let mut kept = tables[..number].to_vec();
    kept.push(&next);
    kept.extend(&tables[number + 2..]);
    fs::write(path, kept.join("[[process]]\n")).unwrap();
}

fn start_again(cluster: &mut Cluster, numbers: &[usize]) {
    for &number in numbers {
        cluster.start_member(number);
    }
    for &number in numbers {
        cluster.wait_until_ready(number);
    }
}

#[test]
fn a_process_with_disks_joins_and_another_leaves_for_good() {
    with_seed(|rng| {
        let mut cluster = Cluster::started(Shape::default());
        let mut writers: Vec<Writer> =
            (0..WRITERS).map(|number| Writer::new(number, rng.bits())).collect();
        let volume = cluster.open(1).unwrap();
        // So that there is something to move.
        for writer in &mut writers {
            (0..40).for_each(|_| writer.write(&volume).expect("nothing fails"));
        }
        drop(volume);
        let over = AtomicBool::new(false);
        let ways = [1, 3].map(|number| Ways(cluster.directory(number)));
        thread::scope(|scope| {
            for (writer, ways) in writers.iter_mut().zip(&ways) {
                let over = &over;
                scope.spawn(move || write_on(writer, ways, over));
            }
            let done = catch_unwind(AssertUnwindSafe(|| {
                join(&mut cluster, rng);
                leave(&mut cluster);
            }));
            over.store(true, Relaxed);
            if let Err(why) = done {
                // Writers may wait for a disk that is away.
                cluster.running().into_iter().for_each(|number| cluster.kill(number));
                resume_unwind(why);
            }
        });
        eprintln!("files: {:?}", writers.iter().map(|writer| writer.written).collect::<Vec<_>>());
        for member in cluster.running() {
            for writer in &writers {
                writer.check(&cluster, member, BACK_WITHIN);
            }
        }
        let running = cluster.running();
        cluster.stop();
        let told = cluster.check();
        assert!(told.contains("sound"), "{told}");
        // The records of it all can be lost.
        forget(&cluster, LEAVER);
        cluster.lose_etcd();
        let recovered = ok(&cluster, &["cluster", "recover", "cluster.toml"]);
        eprintln!("{recovered}");
        start_again(&mut cluster, &running);
        for writer in &writers {
            writer.check(&cluster, 1, BACK_WITHIN);
        }
        cluster.stop();
    });
}

/// A process that was removed is a new one when it is taken in again.
#[test]
fn a_process_that_has_left_comes_back_without_its_directory() {
    with_seed(|rng| {
        let mut cluster = Cluster::started(Shape { members: 2, ..Shape::default() });
        let mut writer = Writer::new(0, rng.bits());
        let volume = cluster.open(1).unwrap();
        (0..8).for_each(|_| writer.write(&volume).expect("nothing fails"));
        drop(volume);
        let number = LEAVER.to_string();
        ok(&cluster, &["cluster", "remove", "--drain", "cluster.toml", &number]);
        cluster.stop_member(LEAVER);
        fs::remove_dir_all(cluster.directory(LEAVER)).unwrap();
        return_with_nothing(&mut cluster);
        writer.check(&cluster, LEAVER, BACK_WITHIN);
        cluster.stop();
        let told = cluster.check();
        assert!(told.contains("sound"), "{told}");
        start_again(&mut cluster, &[1, LEAVER]);
        writer.check(&cluster, LEAVER, BACK_WITHIN);
        cluster.stop();
    });
}

/// A device made of a file, where the host has loop devices and lets us use them; else the file.
struct Device(String);

impl Device {
    fn of(file: &std::path::Path) -> Self {
        fs::File::create(file).unwrap().set_len(300 << 20).unwrap();
        let made = Command::new("losetup").args(["-f", "--show"]).arg(file).output();
        match made.ok().filter(|made| made.status.success()) {
            Some(made) => Self(String::from_utf8(made.stdout).unwrap().trim().to_owned()),
            None => Self(file.display().to_string()),
        }
    }

    fn is_device(&self) -> bool {
        self.0.starts_with("/dev/")
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if self.is_device() {
            let _ = Command::new("losetup").args(["-d", &self.0]).status();
        }
    }
}

/// The id by which a refusal says that a disk can be overwritten.
fn id_in(text: &str) -> &str {
    text.split("--force ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap()
}

/// One process has its device from the beginning, the other joins with it.
#[test]
fn processes_name_devices_and_none_that_holds_anything_is_overwritten() {
    let mut cluster = Cluster::not_made(Shape { members: 1, ..Shape::default() });
    let devices = ["founder", "joiner"].map(|name| Device::of(&cluster.path(name)));
    for device in &devices {
        let disk = fs::OpenOptions::new().write(true).open(&device.0).unwrap();
        super::new_disks::write_ext4(&disk);
        disk.sync_all().unwrap();
    }
    let named = |device: &Device| format!("disk-paths = [{:?}]\n", device.0);
    let serve = |cluster: &Cluster, number: usize, more: &[&str]| {
        let number = number.to_string();
        let serve = ["cluster", "serve", "cluster.toml", &number];
        let (done, why) = told(cluster, &[&serve[..], more].concat());
        assert!(!done, "{why}");
        why
    };
    let path = cluster.path("cluster.toml");
    let file = fs::read_to_string(&path).unwrap();
    fs::write(&path, file + &named(&devices[0])).unwrap();
    cluster.make();
    let why = serve(&cluster, 1, &[]);
    assert!(why.contains(&format!("{} holds an ext4 file system", devices[0].0)), "{why}");
    cluster.start_member_with(1, &["--force", id_in(&why)]);
    cluster.wait_until_ready(1);
    assert_eq!(disks(&cluster, 0).len(), 1);
    if devices[0].is_device() {
        let other = fs::OpenOptions::new().read(true).custom_flags(0o200).open(&devices[0].0);
        assert_eq!(other.unwrap_err().kind(), std::io::ErrorKind::ResourceBusy);
    }

    let joiner = cluster.add_process(&named(&devices[1]));
    let why = serve(&cluster, joiner, &[]);
    assert!(why.contains(&format!("{} holds an ext4 file system", devices[1].0)), "{why}");
    assert!(super::new_disks::has_ext4(&fs::File::open(&devices[1].0).unwrap()));
    assert_eq!(disks(&cluster, 1), []);
    // As one that is away before it has joined.
    ok(&cluster, &["mkdir", "p1:/works"]);
    cluster.start_member_with(joiner, &["--force", id_in(&why)]);
    cluster.wait_until_ready(joiner);
    wait_until("its disk is part of the volume", || disks(&cluster, 1).len() == 1);
    cluster.stop();
    start_again(&mut cluster, &[1, joiner]);
    cluster.stop();
    let told = cluster.check();
    assert!(told.contains("sound"), "{told}");
}
