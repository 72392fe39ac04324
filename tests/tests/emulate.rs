//! The emulated J-Machine as its users meet it: over NFS, in the shell, and as traces.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests of whole processes use the host, and panic where they fail"
)]

use std::fs;
use std::io::Write as _;
use std::process::{Output, Stdio};

use client::OpenOptions;
use runtime::seed::with_seed;
use sim::emulated::{content, name};
use tests::raw_nfs::{RawNfs, status};
use tests::{Content, Served, Site, libnfs};

/// The file system on all 512 nodes of the thesis' machine with its eight disk nodes.
const WRITERS: u32 = 7;
/// No multiple of anything.
const BYTES: usize = 150_001;

#[test]
fn checkpoints_on_the_emulated_machine_are_read_over_nfs_as_from_any_volume() {
    let site = Site::formatted(64, 16);
    let (writers, bytes) = (WRITERS.to_string(), BYTES.to_string());
    let emulated = ["--writers", &writers, "--size", &bytes, "--seed", "5"];
    let emulated = Served::emulated(&site, &emulated);
    let served = site.serve();
    let volume = site.open();
    for number in 0..WRITERS {
        let file = volume.open(name(number), OpenOptions::new().write(true).create(true)).unwrap();
        file.write_at(0, content(5, number, BYTES)).unwrap();
        file.sync().unwrap();
    }
    let names: Vec<String> = (0..WRITERS).map(|n| name(n).trim_matches('/').to_owned()).collect();
    for server in [&emulated, &served] {
        assert_eq!(libnfs::list(server, "/"), names);
        for (number, name) in (0..).zip(&names) {
            let found = libnfs::cat(server, &format!("/{name}"));
            assert!(found == content(5, number, BYTES), "{name}: {} bytes", found.len());
        }
    }
    drop(volume);
    served.stop();
    emulated.stop();
}

#[test]
fn files_come_and_go_over_nfs_on_the_emulated_machine() {
    with_seed(|rng| {
        let site = Site::new();
        let served = Served::emulated(&site, &[]);
        let sent = Content { seed: rng.bits(), length: 70_003 };
        fs::write(site.path("local"), sent.bytes()).unwrap();
        libnfs::copy(site.path("local").to_str().unwrap(), &libnfs::url(&served, "/copy"));
        sent.compare(&libnfs::cat(&served, "/copy")[..]);

        // Two connections at once; each waits for its own answers.
        let mut one = RawNfs::connect(&served);
        let mut other = RawNfs::connect(&served);
        let root = one.root();
        let folder = one.mkdir(&root, b"run").unwrap();
        let file = other.create(&folder, b"a").unwrap();
        assert_eq!(one.create(&folder, b"a"), Err(status::EXIST));
        assert_eq!(other.write(&file, 3, b"bytes"), status::OK);
        assert_eq!(one.read_file(&file, 0, 100).unwrap(), b"\0\0\0bytes");
        assert_eq!(one.names(&root, 4096).len(), 2 + 2);
        assert_eq!(one.remove(&folder, b"a"), status::OK);
        assert_eq!(other.lookup(&folder, b"a"), Err(status::NOENT));
        // A client that hangs up in the middle of a call does not disturb others.
        one.send(&[0x80, 0, 1, 0, 7]).unwrap();
        drop(one);
        assert_eq!(other.getattr(&folder), status::OK);
        served.stop();
    });
}

/// Runs a script in the shell of an emulated machine.
fn shell(site: &Site, script: &str) -> Output {
    let machine = ["emulate", "--shell", "--machine", "8x8x8 disks=2", "--fs-nodes", "8"];
    let mut command = site.command(&machine);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = command.spawn().unwrap();
    // It may have ended at an error before the last line.
    let _ = process.stdin.take().unwrap().write_all(script.as_bytes());
    process.wait_with_output().unwrap()
}

#[test]
fn a_script_works_on_the_emulated_volume_and_hears_what_each_command_cost() {
    let site = Site::new();
    fs::write(site.path("my file"), b"in the shell\n").unwrap();
    let script = "# a comment\n\nmkdir /run\nput 'my file' /run/a\nls -l /run\nls run\nstat /run/a\n\
                  restart\ncat /run/a\nget /run/a back\nmv /run/a /run/b\nrm -r /run\nls\ndf\n\
                  wait 0.5\ncost\nquit\nrm /never\n";
    let output = shell(&site, script);
    let told = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{told}");
    assert_eq!(fs::read(site.path("back")).unwrap(), b"in the shell\n");
    let costs: Vec<&str> = told.lines().filter(|line| line.starts_with("-- ")).collect();
    assert_eq!(costs.len(), 14, "{told}");
    for part in ["-rw-r--r-- 1", "    size  13 bytes", "\nin the shell\n-- ", " are free\n"] {
        assert!(told.contains(part), "'{part}' is not in {told}");
    }
    // A directory is made by messages, and durable files reach a disk.
    assert!(!costs[0].contains(" 0 requests"), "{}", costs[0]);
    assert!(costs[1].contains(" disk operations") && !costs[1].contains(" 0 disk"), "{}", costs[1]);
    assert!(costs[12].starts_with("-- 500.000 ms, "), "{}", costs[12]);
    assert_eq!(told, String::from_utf8(shell(&site, script).stdout).unwrap(), "the same seed");
}

#[test]
fn a_script_ends_at_its_first_error_which_names_the_line_and_what_to_do() {
    let site = Site::new();
    let ends = |script: &str, words: &[&str]| {
        let output = shell(&site, script);
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{told}");
        for word in words {
            assert!(told.contains(word), "'{word}' is not in: {told}");
        }
        assert!(!String::from_utf8_lossy(&output.stdout).contains("2 disk"), "it went on");
    };
    ends("ls\ncat /nope\nls\n", &["line 2: cannot open emulated:/nope", "check the spelling"]);
    ends("frob\n", &["line 1: unrecognized subcommand 'frob'", "'help' lists the commands"]);
    ends("put only\n", &["line 1: ", "<PATH>"]);
    ends("put /does/not/exist /a\n", &["line 1: cannot read /does/not/exist"]);
    ends("cat 'a\n", &["line 1: a quote is not closed"]);
    ends("mkdir /d\nrm /d\n", &["line 2: cannot remove", "remove it with -r"]);
    ends("wait -1\n", &["line 1: ", "-1"]);
}

#[test]
fn a_recorded_run_is_sent_again_and_compared_and_a_damaged_trace_is_told() {
    let site = Site::new();
    let run = ["emulate", "--machine", "8x8x8 disks=2", "--fs-nodes", "8"];
    let run = [&run[..], &["--writers", "2", "--size", "40000", "--record"]].concat();
    let told = site.ok(&[&run[..], &["one"]].concat());
    assert!(told.contains(" events are in one\n"), "{told}");
    site.ok(&[&run[..], &["two"]].concat());
    assert!(fs::read(site.path("one")).unwrap() == fs::read(site.path("two")).unwrap());

    let again = site.ok(&["emulate", "--replay", "one"]);
    assert!(
        again.contains(
            " messages took the same time
"
        ),
        "{again}"
    );
    let spread = site.ok(&["emulate", "--replay", "one", "--forwarders", "spread"]);
    assert!(spread.contains(" took another time, first message 0 of row "), "{spread}");
    let formula = site.ok(&["emulate", "--replay", "one", "--level", "formula"]);
    assert!(formula.contains("took another time"), "{formula}");
    let shared = ["--wires", "links", "--machine", "4x8x16 disks=2"];
    site.ok(&[&["emulate", "--replay", "one"], &shared[..]].concat());

    let mut damaged = fs::read(site.path("one")).unwrap();
    damaged[5_000] ^= 4;
    fs::write(site.path("damaged"), &damaged).unwrap();
    let refused = |arguments: &[&str]| site.refused(&[&["emulate"], arguments].concat());
    refused(&["--replay", "damaged"])
        .says(1, &["cannot replay damaged: its checksum is ", "copy it"]);
    fs::write(site.path("cut"), &damaged[..4_999]).unwrap();
    refused(&["--replay", "cut"]).says(1, &["it has 4999 bytes where its head says"]);
    fs::write(site.path("other"), b"something else").unwrap();
    refused(&["--replay", "other"]).says(1, &["no trace of a mesh", "--record"]);
    refused(&["--replay", "gone"]).says(1, &["cannot read gone"]);
    let small = ["--replay", "one", "--machine", "2x2x2 disks=2"];
    refused(&small).says(1, &["has no place on a machine with"]);
    refused(&["--replay", "one", "--shell"]).says(2, &["cannot be used with"]);
    refused(&["--level", "flit"]).says(2, &["--replay"]);
    refused(&["--machine", "8x8"]).says(2, &["column 4", "8x8x8 disks=8"]);
    refused(&["--fs-nodes", "505"]).says(1, &["leave fewer than 8 of 512 processors"]);
}
