//! A volume that is mounted twice, as on two hosts: what one has open the other may remove, and
//! locks hold for both.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests of whole processes use the host, and panic where they fail"
)]

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FlockOperation, RenameFlags, fcntl_lock, flock, renameat_with};
use rustix::io::Errno;
use tests::Site;
use tests::mounted::{Mounted, may_mount};
use tests::served::Served;

/// Programs at each mount that work on the same file.
const PROGRAMS: usize = 3;
/// What each of them does.
const TURNS: usize = 40;
/// What is done in the background is done within this time.
const SOON: Duration = Duration::from_secs(20);

/// A served volume, mounted twice.
struct Twice {
    mounts: [Mounted; 2],
    served: Served,
    _site: Site,
}

impl Twice {
    fn start() -> Self {
        let site = Site::formatted(1024, 16);
        let served = site.serve();
        let mounts = ["one", "two"]
            .map(|point| Mounted::start_at(&site, Path::new(point), &["--cache-ms", "0"]));
        Self { mounts, served, _site: site }
    }

    fn stop(self) {
        for mounted in self.mounts {
            mounted.unmount();
        }
        self.served.stop();
    }

    /// The same file at both.
    fn open(&self, name: &str) -> [File; 2] {
        let options = OpenOptions::new().read(true).write(true).create(true).clone();
        [0, 1].map(|mount| options.open(self.mounts[mount].path(name)).unwrap())
    }
}

/// Tries again what is refused as long as something in the background is not done.
fn soon(mut work: impl FnMut() -> Result<(), Errno>) {
    let start = Instant::now();
    while let Err(error) = work() {
        assert!(start.elapsed() < SOON, "still {error}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn an_open_file_outlives_its_name() {
    if !may_mount() {
        return;
    }
    let twice = Twice::start();
    let [mut here, there] = twice.open("file");
    drop(there);
    here.write_all(b"written before").unwrap();
    fs::remove_file(twice.mounts[1].path("file")).unwrap();
    assert!(!twice.mounts[1].path("file").exists());
    assert_eq!(here.metadata().unwrap().nlink(), 0);
    here.write_all(b", written after").unwrap();
    here.sync_all().unwrap();
    here.set_len(20).unwrap();
    let mut told = String::new();
    here.seek(SeekFrom::Start(0)).unwrap();
    here.read_to_string(&mut told).unwrap();
    assert_eq!(told, "written before, writ");
    drop(here);
    twice.stop();
}

#[test]
fn programs_at_two_mounts_count_together_under_a_lock() {
    if !may_mount() {
        return;
    }
    let twice = Twice::start();
    fs::write(twice.mounts[0].path("count"), format!("{:08}", 0)).unwrap();
    let count = |mounted: &Mounted| {
        let path = mounted.path("count");
        // Open all the time: what the kernel keeps of the file must not be used when it is old.
        let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
        for _ in 0..TURNS {
            flock(&file, FlockOperation::LockExclusive).unwrap();
            let mut text = [0; 8];
            file.read_exact_at(&mut text, 0).unwrap();
            let number: usize = str::from_utf8(&text).unwrap().parse().unwrap();
            file.write_all_at(format!("{:08}", number + 1).as_bytes(), 0).unwrap();
            flock(&file, FlockOperation::Unlock).unwrap();
        }
    };
    thread::scope(|scope| {
        for mounted in &twice.mounts {
            for _ in 0..PROGRAMS {
                scope.spawn(|| count(mounted));
            }
        }
    });
    let total = fs::read_to_string(twice.mounts[0].path("count")).unwrap();
    assert_eq!(total.parse(), Ok(2 * PROGRAMS * TURNS));
    twice.stop();
}

#[test]
fn programs_at_two_mounts_append_without_overwriting_each_other() {
    if !may_mount() {
        return;
    }
    let twice = Twice::start();
    let append = |mounted: &Mounted, name: &str| {
        // Open all the time: the kernel takes the end of the file from its cache.
        let mut file = OpenOptions::new().append(true).create(true).open(mounted.path("log"));
        for turn in 0..TURNS {
            file.as_mut().unwrap().write_all(format!("{name} {turn}\n").as_bytes()).unwrap();
        }
    };
    let names: Vec<String> = (0..2 * PROGRAMS).map(|program| program.to_string()).collect();
    thread::scope(|scope| {
        for (program, name) in names.iter().enumerate() {
            let mounted = &twice.mounts[program % 2];
            scope.spawn(move || append(mounted, name));
        }
    });
    for mounted in &twice.mounts {
        let log = fs::read_to_string(mounted.path("log")).unwrap();
        for name in &names {
            let own: Vec<_> = log.lines().filter_map(|line| line.strip_prefix(&name[..])).collect();
            let expected: Vec<_> = (0..TURNS).map(|turn| format!(" {turn}")).collect();
            assert_eq!(own, expected, "program {name} in:\n{log}");
        }
        assert_eq!(log.lines().count(), names.len() * TURNS);
    }
    twice.stop();
}

#[test]
fn a_lock_holds_at_both_mounts_until_it_is_given_up_or_its_file_is_closed() {
    if !may_mount() {
        return;
    }
    let twice = Twice::start();
    let [here, there] = twice.open("flock");
    let shared = FlockOperation::NonBlockingLockShared;
    let exclusive = FlockOperation::NonBlockingLockExclusive;
    flock(&here, shared).unwrap();
    flock(&there, shared).unwrap();
    assert_eq!(flock(&here, exclusive), Err(Errno::AGAIN));
    flock(&there, FlockOperation::Unlock).unwrap();
    flock(&here, exclusive).unwrap();
    assert_eq!(flock(&there, shared), Err(Errno::AGAIN));
    drop(here);
    soon(|| flock(&there, exclusive));
    drop(there);

    let [here, there] = twice.open("fcntl");
    fcntl_lock(&here, exclusive).unwrap();
    assert_eq!(fcntl_lock(&there, shared), Err(Errno::AGAIN));
    fcntl_lock(&here, shared).unwrap();
    fcntl_lock(&there, shared).unwrap();
    assert_eq!(fcntl_lock(&there, exclusive), Err(Errno::AGAIN));
    // A process that closes a file by one of its openings gives up its locks on it, says POSIX.
    drop(File::open(twice.mounts[0].path("fcntl")).unwrap());
    fcntl_lock(&there, exclusive).unwrap();
    fcntl_lock(&there, FlockOperation::NonBlockingUnlock).unwrap();
    fcntl_lock(&here, exclusive).unwrap();
    drop((here, there));
    twice.stop();
}

#[test]
fn a_program_that_waits_for_a_lock_gets_it_or_can_be_ended() {
    if !may_mount() {
        return;
    }
    let twice = Twice::start();
    let [here, there] = twice.open("file");
    drop(there);
    flock(&here, FlockOperation::LockExclusive).unwrap();
    let waiting = || {
        let mut command = Command::new("flock");
        let mut program = command.arg(twice.mounts[1].path("file")).arg("true").spawn().unwrap();
        thread::sleep(Duration::from_millis(500));
        assert_eq!(program.try_wait().unwrap(), None, "it waits");
        program
    };
    for signal in ["-TERM", "-KILL"] {
        let mut program = waiting();
        let sent = Command::new("kill").args([signal, &program.id().to_string()]).status();
        assert!(sent.unwrap().success());
        soon(|| program.try_wait().unwrap().map(drop).ok_or(Errno::BUSY));
    }
    let mut program = waiting();
    flock(&here, FlockOperation::Unlock).unwrap();
    assert!(program.wait().unwrap().success());
    drop(here);
    twice.stop();
}

#[test]
fn a_program_that_waits_for_a_frozen_server_can_be_killed() {
    if !may_mount() {
        return;
    }
    let twice = Twice::start();
    let path = twice.mounts[0].path("file");
    fs::write(&path, "content").unwrap();
    let server = twice.served.id().to_string();
    let signal = |signal: &str, process: &str| {
        assert!(Command::new("kill").args([signal, process]).status().unwrap().success());
    };
    signal("-STOP", &server);
    for (end, words) in [("-KILL", "cat"), ("-TERM", "cat"), ("-KILL", "touch"), ("-TERM", "rm")] {
        let mut program = Command::new(words).arg(&path).spawn().unwrap();
        thread::sleep(Duration::from_millis(300));
        assert_eq!(program.try_wait().unwrap(), None, "it waits");
        signal(end, &program.id().to_string());
        soon(|| program.try_wait().unwrap().map(drop).ok_or(Errno::BUSY));
    }
    signal("-CONT", &server);
    fs::write(twice.mounts[1].path("file"), "new").unwrap();
    assert_eq!(fs::read_to_string(twice.mounts[1].path("file")).unwrap(), "new");
    twice.stop();
}

#[test]
fn of_renames_that_replace_nothing_one_wins() {
    if !may_mount() {
        return;
    }
    let twice = Twice::start();
    for turn in 0..TURNS {
        let won = thread::scope(|scope| {
            let rename = |mounted: &Mounted, program: usize| {
                let from = mounted.path(format!("from {turn} {program}"));
                fs::write(&from, program.to_string()).unwrap();
                let to = mounted.path(format!("to {turn}"));
                match renameat_with(CWD, &from, CWD, &to, RenameFlags::NOREPLACE) {
                    Ok(()) => true,
                    Err(Errno::EXIST) => false,
                    Err(error) => panic!("{error}"),
                }
            };
            let programs = [0, 1].map(|program| {
                let mounted = &twice.mounts[program];
                scope.spawn(move || rename(mounted, program))
            });
            programs.map(|program| program.join().unwrap())
        });
        assert!(won[0] != won[1], "turn {turn}: {won:?}");
        let winner = usize::from(won[1]).to_string();
        assert_eq!(fs::read_to_string(twice.mounts[0].path(format!("to {turn}"))).unwrap(), winner);
    }
    twice.stop();
}
