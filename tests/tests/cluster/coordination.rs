//! etcd stands still, is lost, or is an older copy of itself.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use client::blocking::Volume;
use tests::cluster::{Cluster, Shape};

use super::{BACK_WITHIN, without_disks};

/// Longer than a lease.
const ETCD_DOWN: Duration = Duration::from_secs(13);
/// Others take over from a killed process within this; debug builds start nodes slowly.
const TAKEN_OVER_WITHIN: Duration = Duration::from_secs(if cfg!(debug_assertions) { 8 } else { 5 });

fn write(volume: &Volume, path: &str, content: &[u8]) -> Result<(), client::Error> {
    let options = client::OpenOptions::new().read(true).write(true).create(true);
    let file = volume.open(path, options)?;
    file.write_at(0, content.to_vec())?;
    file.sync()?;
    volume.sync_directory("/")
}

fn read(volume: &Volume, path: &str) -> Result<Vec<u8>, client::Error> {
    let file = volume.open(path, client::OpenOptions::new().read(true))?;
    Ok(file.read_bytes_at(0, 1 << 10)?.concat())
}

/// Tries until it succeeds; how long that took.
fn until_done(limit: Duration, mut done: impl FnMut() -> bool) -> Duration {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < limit, "not done in {limit:?}");
        thread::sleep(Duration::from_millis(20));
    }
    begin.elapsed()
}

/// The processes live on, and go on by themselves, with what they held.
#[test]
fn no_process_ends_while_etcd_is_down_longer_than_a_lease() {
    let mut cluster = Cluster::started(Shape::default());
    let volume = cluster.open(1).unwrap();
    write(&volume, "/before", b"before").unwrap();
    cluster.freeze_etcd(true);
    thread::sleep(ETCD_DOWN);
    assert_eq!(cluster.restart_ended(), 0, "a process has ended");
    cluster.freeze_etcd(false);
    let took = until_done(BACK_WITHIN, || {
        cluster.open(2).is_some_and(|volume| write(&volume, "/after", b"after").is_ok())
    });
    eprintln!("back {took:?} after etcd");
    assert_eq!(cluster.restart_ended(), 0, "a process has ended");
    let volume = cluster.open(3).unwrap();
    assert_eq!(read(&volume, "/before").unwrap(), b"before");
    drop(volume);
    cluster.stop();
    let told = cluster.check();
    assert!(told.contains("sound"), "{told}");
}

/// Its lease of ten seconds is ended by the others.
#[test]
fn a_killed_process_is_taken_over_from_before_its_lease_is_over() {
    const VICTIM: usize = 3;
    let mut cluster = Cluster::started(without_disks(VICTIM));
    let volume = cluster.open(1).unwrap();
    let paths: Vec<String> = (0..24).map(|file| format!("/file-{file}")).collect();
    for path in &paths {
        write(&volume, path, b"old").unwrap();
    }
    cluster.kill(VICTIM);
    let took = until_done(TAKEN_OVER_WITHIN, || {
        paths.iter().all(|path| write(&volume, path, b"new").is_ok())
    });
    eprintln!("taken over after {took:?}");
    let status = cluster.status();
    let row = status["processes"].as_array().unwrap().iter().find(|row| row["number"] == VICTIM);
    let row = row.expect("a process that is down is listed");
    assert_eq!(row["state"], "down", "{status}");
    assert!(row["since"].as_str().unwrap().starts_with("20"), "{status}");
    let told = cluster.run(&["cluster", "status", "cluster.toml"]);
    let told = String::from_utf8(told.stdout).unwrap();
    assert!(told.contains("mdfs cluster serve cluster.toml 3"), "{told}");
    drop(volume);
    cluster.start_member(VICTIM);
    cluster.wait_until_ready(VICTIM);
    cluster.stop();
}

fn copy(from: &Path, to: &Path) {
    let copied = std::process::Command::new("cp").arg("-r").args([from, to]).status();
    assert!(copied.unwrap().success());
}

#[test]
fn a_cluster_survives_the_loss_of_etcd_and_an_older_copy_of_it() {
    let mut cluster = Cluster::started(Shape::default());
    write(&cluster.open(1).unwrap(), "/first", b"one").unwrap();
    cluster.stop();
    let saved = cluster.directory(1).with_file_name("etcd-saved");
    cluster.replace_etcd(|data| copy(data, &saved));
    let start_all = |cluster: &mut Cluster| {
        for number in cluster.numbers() {
            cluster.start_member(number);
        }
        for number in cluster.numbers() {
            cluster.wait_until_ready(number);
        }
    };
    // The epoch goes on, and what nodes handed over at the stop before is outdated.
    for round in 0..3 {
        start_all(&mut cluster);
        write(&cluster.open(2).unwrap(), "/first", format!("round {round}").as_bytes()).unwrap();
        cluster.stop();
    }
    cluster.replace_etcd(|data| {
        std::fs::remove_dir_all(data).unwrap();
        copy(&saved, data);
    });
    start_all(&mut cluster);
    assert_eq!(read(&cluster.open(3).unwrap(), "/first").unwrap(), b"round 2");
    write(&cluster.open(3).unwrap(), "/second", b"two").unwrap();
    cluster.stop();

    cluster.lose_etcd();
    let fails = |cluster: &Cluster, arguments: &[&str]| {
        let done = cluster.run(arguments);
        let told = String::from_utf8(done.stderr).unwrap();
        assert!(!done.status.success() && told.contains("mdfs cluster recover"), "{told}");
    };
    fails(&cluster, &["cluster", "init", "cluster.toml"]);
    fails(&cluster, &["cluster", "serve", "cluster.toml", "1"]);
    let done = cluster.run(&["cluster", "recover", "cluster.toml"]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    start_all(&mut cluster);
    let volume = cluster.open(1).unwrap();
    assert_eq!(read(&volume, "/first").unwrap(), b"round 2");
    assert_eq!(read(&volume, "/second").unwrap(), b"two");
    write(&volume, "/third", b"three").unwrap();
    drop(volume);
    cluster.stop();
    let told = cluster.check();
    assert!(told.contains("sound"), "{told}");
}
