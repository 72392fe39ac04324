//! Data have copies, and hosts are away: the others go on without their disks.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use client::blocking::Volume;
use runtime::seed::with_seed;
use tests::Content;
use tests::cluster::{Cluster, Shape};

/// A program waits no longer when a host dies.
const PAUSE_MAX: Duration = Duration::from_secs(if cfg!(debug_assertions) { 20 } else { 8 });
/// By then the disks of a host that is back have all that they missed.
const ONLINE_MAX: Duration = Duration::from_mins(1);
const FILE_BYTES: u64 = 200_000;

fn content(number: u64) -> Content {
    Content { seed: number, length: FILE_BYTES }
}

fn with_copies() -> Shape {
    Shape { redundancy: "2x", ..Shape::default() }
}

/// Writes files and syncs them, from number `from` on, until told to end. Returns the longest time
/// that one took.
fn write(volume: &Volume, from: u64, (synced, is_over): (&Mutex<u64>, &AtomicBool)) -> Duration {
    let mut longest = Duration::ZERO;
    for number in from.. {
        if is_over.load(Relaxed) {
            break;
        }
        let start = Instant::now();
        let file = volume.create(format!("/{number}")).unwrap();
        file.write_at(0, content(number).bytes()).unwrap();
        file.sync().unwrap();
        *synced.lock().unwrap() = number + 1;
        longest = longest.max(start.elapsed());
    }
    longest
}

fn compare(cluster: &Cluster, member: usize, files: u64) {
    let directory = cluster.directory(member).display().to_string();
    for number in 0..files {
        let read = cluster.run(&["cat", &format!("{directory}:/{number}")]);
        content(number).compare(&read.stdout[..]);
    }
}

/// The disks, as a process tells them.
fn list(cluster: &Cluster, member: usize) -> serde_json::Value {
    let directory = cluster.directory(member).display().to_string();
    let output = cluster.run(&["disk", "list", "--json", &directory]);
    serde_json::from_slice(&output.stdout).unwrap_or_default()
}

/// The states of all disks.
fn states(cluster: &Cluster, member: usize) -> Vec<String> {
    let disks = list(cluster, member)["disks"].as_array().cloned().unwrap_or_default();
    disks.iter().map(|disk| disk["state"].as_str().unwrap().to_owned()).collect()
}

fn wait_until_online(cluster: &Cluster, member: usize) -> Duration {
    let start = Instant::now();
    loop {
        let states = states(cluster, member);
        let are_used = |states: &[String]| {
            states.iter().all(|state| ["online", "retired"].contains(&&state[..]))
        };
        if !states.is_empty() && are_used(&states) {
            return start.elapsed();
        }
        assert!(start.elapsed() < ONLINE_MAX, "{states:?}");
        thread::sleep(Duration::from_millis(200));
    }
}

/// Kills a process while another one is written to. Returns the number of files then.
fn kill_amid_writes(cluster: &mut Cluster, dies: usize, files: u64) -> u64 {
    kill_all_amid_writes(cluster, &[dies], files)
}

/// The same of several at once; the one behind the last of them is written to.
fn kill_all_amid_writes(cluster: &mut Cluster, dies: &[usize], files: u64) -> u64 {
    let stays = dies.last().unwrap() % cluster.numbers().count() + 1;
    let volume = cluster.open(stays).unwrap();
    let (synced, is_over) = (Mutex::new(files), AtomicBool::new(false));
    let longest = thread::scope(|threads| {
        let writer = threads.spawn(|| write(&volume, files, (&synced, &is_over)));
        thread::sleep(Duration::from_secs(1));
        for process in dies {
            cluster.kill(*process);
        }
        let at_death = *synced.lock().unwrap();
        let start = Instant::now();
        while *synced.lock().unwrap() < at_death + 3 && start.elapsed() < PAUSE_MAX {
            thread::sleep(Duration::from_millis(50));
        }
        is_over.store(true, Relaxed);
        writer.join().unwrap()
    });
    println!("processes {dies:?} died: the longest pause was {longest:.1?}");
    assert!(longest < PAUSE_MAX, "a program waited {longest:?}");
    let files = *synced.lock().unwrap();
    compare(cluster, stays, files);
    files
}

/// Overwrites the first block of `content` wherever the disk of a process has it. Returns how often
/// it was found.
fn damage(cluster: &Cluster, member: usize, content: &[u8]) -> usize {
    let path = cluster.directory(member).join(format!("disks/n{}d0", member - 1));
    let disk = File::options().read(true).write(true).open(path).unwrap();
    let (mut block, mut found) = (vec![0; 4096], 0);
    for at in (0..disk.metadata().unwrap().len()).step_by(4096) {
        disk.read_exact_at(&mut block, at).unwrap();
        if block == content[..4096] {
            disk.write_all_at(&[1; 4096], at).unwrap();
            found += 1;
        }
    }
    disk.sync_all().unwrap();
    found
}

#[test]
fn a_cluster_with_copies_goes_on_without_the_disks_of_a_host() {
    with_seed(|rng| {
        let mut cluster = Cluster::started(with_copies());
        let mut files = 0;
        let mut dies = 1 + rng.index(3);
        for _ in 0..2 {
            files = kill_amid_writes(&mut cluster, dies, files);
            cluster.start_member(dies);
            cluster.wait_until_ready(dies);
            let online = wait_until_online(&cluster, dies);
            println!("{files} files; its disks were up to date after {online:.1?}");
            dies = dies % 3 + 1;
        }
        compare(&cluster, dies, files);
        // Those who stop together do not miss each other.
        cluster.stop();
        assert!(cluster.check().contains("sound"));
        for member in cluster.numbers() {
            cluster.start_member(member);
        }
        for member in cluster.numbers() {
            cluster.wait_until_ready(member);
        }
        assert_eq!(states(&cluster, 1), ["online"; 3]);
        compare(&cluster, dies, files);
    });
}

#[test]
fn a_cluster_goes_on_without_the_disks_of_two_of_five_hosts() {
    with_seed(|rng| {
        let redundancy = if rng.chance(1, 2) { "3x" } else { "2+2" };
        let mut cluster = Cluster::started(Shape { members: 5, redundancy, ..Shape::default() });
        let first = 1 + rng.index(5);
        let second = (first + 1) % 5 + 1;
        let stays = second % 5 + 1;
        let files = if rng.chance(1, 2) {
            kill_all_amid_writes(&mut cluster, &[first, second], 0)
        } else {
            let files = kill_amid_writes(&mut cluster, first, 0);
            kill_amid_writes(&mut cluster, second, files)
        };
        let away = states(&cluster, stays);
        assert_eq!(away.iter().filter(|state| *state == "offline").count(), 2, "{away:?}");
        for member in [first, second] {
            cluster.start_member(member);
        }
        for member in [first, second] {
            cluster.wait_until_ready(member);
        }
        let online = wait_until_online(&cluster, stays);
        println!("{redundancy}: {files} files; all disks were up to date after {online:.1?}");
        // What was written meanwhile is on the disks of the two.
        let third = stays % 5 + 1;
        let files = kill_amid_writes(&mut cluster, third, files);
        compare(&cluster, first, files);
        cluster.start_member(third);
        cluster.wait_until_ready(third);
        wait_until_online(&cluster, first);
        cluster.stop();
        assert!(cluster.check().contains("sound"));
    });
}

#[test]
fn directories_of_other_classes_are_used_while_a_host_is_away() {
    with_seed(|rng| {
        let mut cluster = Cluster::started(Shape { members: 4, ..with_copies() });
        let dies = 1 + rng.index(4);
        let stays = dies % 4 + 1;
        let directory = cluster.directory(stays).display().to_string();
        let classes = ["2+1", "3+1", "2x"];
        let set = |cluster: &Cluster, class: &str, path: &str| {
            let place = format!("{directory}:{path}");
            let done = cluster.run(&["redundancy", "set", "-r", class, &place]);
            assert!(done.status.success(), "{done:?}");
        };
        // Several wide stripes.
        let content = |number| Content { seed: number, length: 4_000_000 };
        for (number, class) in (0..).zip(classes) {
            let path = format!("/d{number}");
            let made = cluster.run(&["mkdir", &format!("{directory}:{path}")]);
            assert!(made.status.success(), "{made:?}");
            set(&cluster, class, &path);
        }
        let compare = |cluster: &Cluster, number: u64| {
            for file in ["before", "amid"] {
                let path = format!("{directory}:/d{number}/{file}");
                content(number).compare(&cluster.run(&["cat", &path]).stdout[..]);
            }
        };
        let volume = cluster.open(stays).unwrap();
        let write = |path: &str, number| {
            let file = volume.create(path).unwrap();
            file.write_at(0, content(number).bytes()).unwrap();
            file.sync().unwrap();
        };
        (0..3).for_each(|number| write(&format!("/d{number}/before"), number));
        cluster.kill(dies);
        (0..3).for_each(|number| write(&format!("/d{number}/amid"), number));
        (0..3).for_each(|number| compare(&cluster, number));
        // Each gets another class meanwhile.
        for (number, class) in (0..3).zip(["2x", "2+1", "3+1"]) {
            set(&cluster, class, &format!("/d{number}"));
        }
        thread::sleep(Duration::from_secs(3));
        (0..3).for_each(|number| compare(&cluster, number));
        cluster.start_member(dies);
        cluster.wait_until_ready(dies);
        wait_until_online(&cluster, stays);
        cluster.kill(stays % 4 + 1);
        (0..3).for_each(|number| compare(&cluster, number));
        cluster.start_member(stays % 4 + 1);
        cluster.wait_until_ready(stays % 4 + 1);
        wait_until_online(&cluster, stays);
        drop(volume);
        cluster.stop();
        assert!(cluster.check().contains("sound"));
    });
}

#[test]
fn what_was_on_a_host_that_never_comes_back_is_made_anew_on_others() {
    with_seed(|rng| {
        let mut cluster = Cluster::started(Shape { members: 4, ..with_copies() });
        let dies = 1 + rng.index(4);
        let stays = dies % 4 + 1;
        let directory = cluster.directory(stays).display().to_string();
        let disk = format!("n{}d0", dies - 1);
        let lost = ["disk", "lost", &directory, &disk];
        let refused = cluster.run(&lost);
        assert!(!refused.status.success(), "it is in use");
        // The operator does not wait, or the volume does so by itself.
        let is_asked = rng.chance(1, 2);
        let after = if is_asked { "never" } else { "2" };
        assert!(cluster.run(&["disk", "lost", "--after", after, &directory]).status.success());
        let files = kill_amid_writes(&mut cluster, dies, 0);
        if is_asked {
            let given_up = cluster.run(&lost);
            assert!(given_up.status.success(), "{given_up:?}");
        }
        let start = Instant::now();
        while states(&cluster, stays).iter().filter(|state| *state == "retired").count() == 0 {
            assert!(start.elapsed() < ONLINE_MAX, "{:#}", list(&cluster, stays));
            thread::sleep(Duration::from_millis(200));
        }
        println!("{files} files have two copies again after {:.1?}", start.elapsed());
        // Nothing is missing, whichever host dies next.
        let files = kill_amid_writes(&mut cluster, stays, files);
        cluster.start_member(stays);
        cluster.wait_until_ready(stays);
        // The first one is back, and gets another disk.
        cluster.start_member(dies);
        cluster.wait_until_ready(dies);
        let directory = cluster.directory(dies).display().to_string();
        let added = cluster.run(&["disk", "add", "--size", "300MiB", &directory]);
        assert!(added.status.success(), "{added:?}");
        wait_until_online(&cluster, dies);
        compare(&cluster, dies, files);
    });
}

#[test]
fn a_host_that_has_missed_something_does_not_stand_for_one_that_has_it() {
    with_seed(|rng| {
        let mut cluster = Cluster::started(with_copies());
        let first = 1 + rng.index(3);
        let second = first % 3 + 1;
        let third = second % 3 + 1;
        let damaged = content(u64::MAX).bytes();
        {
            let volume = cluster.open(third).unwrap();
            let file = volume.create("/damaged").unwrap();
            file.write_at(0, damaged.clone()).unwrap();
            file.sync().unwrap();
        }
        let files = kill_amid_writes(&mut cluster, first, 0);
        // What has no whole copy keeps no disk from use.
        let copies: usize =
            cluster.numbers().map(|number| damage(&cluster, number, &damaged)).sum();
        assert_eq!(copies, 2);
        cluster.kill(second);
        // It is of no use for what was written since: that is on the disks of the other two.
        cluster.start_member(first);
        thread::sleep(Duration::from_millis(rng.below(6000)));
        cluster.start_member(second);
        for member in [first, second] {
            cluster.wait_until_ready(member);
        }
        let online = wait_until_online(&cluster, third);
        println!("{files} files; all disks were up to date after {online:.1?}");
        compare(&cluster, third, files);
        let files = kill_amid_writes(&mut cluster, third, files);
        compare(&cluster, first, files);
    });
}
