//! The program itself on a real volume: alone, with a server, and across a restart.

#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use runtime::seed::Rng;

fn mdfs(directory: &Path, arguments: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_mdfs");
    Command::new(program).args(arguments).current_dir(directory).output().unwrap()
}

fn ok(directory: &Path, arguments: &[&str]) -> String {
    let output = mdfs(directory, arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "mdfs {arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// The exit code and what is said about it.
fn fails(directory: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let output = mdfs(directory, arguments);
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

/// A volume `VOL`, small enough to be made quickly.
fn formatted() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let small = ["format", "VOL", "--disk-nodes", "2", "--disk-size", "256MiB", "--nodes", "8"];
    assert!(ok(directory.path(), &small).contains("next: mdfs serve VOL"));
    directory
}

/// A server, ready.
struct Server(Child);

impl Server {
    fn start(directory: &Path, arguments: &[&str]) -> (Self, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mdfs"));
        command.args(["serve", "VOL"]).args(arguments).current_dir(directory);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        (Self(child), line)
    }

    fn stop(mut self, signal: &str) {
        let id = self.0.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
        assert!(self.0.wait().unwrap().success(), "{signal} stops it cleanly");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Gone already, if it was stopped.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn what_is_put_is_got_with_and_without_a_server_and_after_restarts() {
    let directory = formatted();
    let here = directory.path();
    let mut content = vec![0; 5 << 20];
    Rng::new(1).fill(&mut content);
    fs::write(here.join("in"), &content).unwrap();
    let got = |path: &str| {
        ok(here, &["get", path, "out"]);
        fs::read(here.join("out")).unwrap() == content
    };

    ok(here, &["put", "in", "VOL:/alone"]);
    assert!(got("VOL:/alone"), "each command opens the volume anew");
    let (server, ready) = Server::start(here, &["--nfs", "127.0.0.1:0"]);
    assert!(ready.starts_with("ready: VOL, NFS at 127.0.0.1:"), "{ready}");
    assert!(got("VOL:/alone"));
    ok(here, &["put", "in", "VOL:/served"]);
    server.stop("-TERM");
    assert!(got("VOL:/served"));
    let (server, ready) = Server::start(here, &[]);
    assert_eq!(ready, "ready: VOL\n");
    assert_eq!(ok(here, &["ls", "VOL:/"]), "alone\nserved\n");
    server.stop("-INT");

    let (killed, _) = Server::start(here, &[]);
    drop(killed);
    assert_eq!(ok(here, &["ls", "VOL:/"]), "alone\nserved\n", "its socket is left behind");
}

#[test]
fn a_volume_is_used_by_one_process_and_never_made_twice() {
    let directory = formatted();
    let here = directory.path();
    let (code, text) = fails(here, &["format", "VOL"]);
    assert_eq!(code, Some(3));
    assert!(text.contains("there is a volume already; it is not overwritten"), "{text}");
    let (server, _) = Server::start(here, &[]);
    let (code, text) = fails(here, &["serve", "VOL"]);
    assert_eq!(code, Some(3));
    assert!(text.contains("the volume is in use by another process"), "{text}");
    ok(here, &["mkdir", "VOL:/still-served"]);
    server.stop("-TERM");
}

#[test]
fn exit_codes_tell_what_kind_of_failure_it_was() {
    let directory = formatted();
    let here = directory.path();
    fs::create_dir(here.join("empty")).unwrap();
    let code = |arguments: &[&str]| fails(here, arguments).0;
    assert_eq!(code(&["cat", "VOL:/missing"]), Some(1));
    assert_eq!(code(&["frobnicate"]), Some(2));
    assert_eq!(code(&["mv", "VOL:/a", "OTHER:/a"]), Some(2));
    assert_eq!(code(&["ls", "missing:/"]), Some(3));
    assert_eq!(code(&["ls", "empty:/"]), Some(3));
    assert_eq!(code(&["format", "V", "--disk-size", "1MiB"]), Some(3));
    assert_eq!(code(&["format", "V", "--stripe", "1000"]), Some(3));
    let (code, text) = fails(here, &["serve", "VOL", "--nfs", "203.0.113.1:1"]);
    assert_eq!(code, Some(1));
    assert!(text.contains("cannot listen at 203.0.113.1:1"), "{text}");
}

/// Overwrites every block of a file on this computer that `chosen` chooses.
fn overwrite(path: &Path, chosen: impl Fn(&[u8]) -> bool) -> usize {
    let mut bytes = fs::read(path).unwrap();
    let mut count = 0;
    for block in bytes.chunks_mut(4096).filter(|block| chosen(block)) {
        block[100] ^= 1;
        count += 1;
    }
    fs::write(path, bytes).unwrap();
    count
}

#[test]
fn a_check_tells_sound_damaged_foreign_and_served_volumes_apart_and_writes_nothing() {
    let directory = formatted();
    let here = directory.path();
    fs::write(here.join("marked"), vec![0xA7; 50_000]).unwrap();
    ok(here, &["mkdir", "VOL:/a"]);
    ok(here, &["put", "marked", "VOL:/a/marked"]);
    let disks = ["VOL/disks/n0d0", "VOL/disks/n1d0"].map(|disk| here.join(disk));
    let before = disks.each_ref().map(|disk| fs::read(disk).unwrap());
    let text = ok(here, &["check", "VOL", "--data"]);
    assert!(text.contains("sound") && text.contains("3 (2 directories)"), "{text}");
    let json = ok(here, &["check", "VOL", "--json"]);
    assert!(json.contains("\"sound\": true"), "{json}");
    assert!(disks.each_ref().map(|disk| fs::read(disk).unwrap()) == before, "a check has written");

    let (server, _) = Server::start(here, &[]);
    let (code, text) = fails(here, &["check", "VOL"]);
    assert_eq!(code, Some(3));
    assert!(text.contains("in use by another process"), "{text}");
    server.stop("-TERM");

    let is_data = |block: &[u8]| block[..200].iter().all(|&byte| byte == 0xA7);
    let hurt: usize = disks.iter().map(|disk| overwrite(disk, is_data)).sum();
    assert!(hurt > 0, "the data is on the disks");
    assert!(ok(here, &["check", "VOL"]).contains("sound"), "data was not asked for");
    let output = mdfs(here, &["scrub", "VOL"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(4), "{text}");
    assert!(text.contains("(/a/marked): 4096 bytes of data at offset 0 are damaged"), "{text}");

    ok(here, &["format", "OTHER", "--disk-nodes", "2", "--disk-size", "256MiB", "--nodes", "8"]);
    fs::copy(here.join("OTHER/disks/n0d0"), &disks[0]).unwrap();
    let (code, text) = fails(here, &["check", "VOL"]);
    assert_eq!(code, Some(3));
    assert!(text.contains("the disk belongs to volume"), "{text}");
    fs::write(&disks[0], &before[0]).unwrap();
    let (code, text) = fails(here, &["check", "VOL"]);
    assert_eq!(code, Some(3));
    assert!(text.contains("old image"), "{text}");
}

/// What the gateway at `address` says it exports (MOUNT version 3, procedure 5), as it came.
#[allow(clippy::disallowed_methods, reason = "the test is a client outside of any machine")]
fn exported(address: &str) -> String {
    let call = [0x8000_0028, 7, 0, 2, 100_005, 3, 5, 0, 0, 0, 0].map(u32::to_be_bytes).concat();
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    stream.write_all(&call).unwrap();
    let mut mark = [0; 4];
    stream.read_exact(&mut mark).unwrap();
    let mut reply = vec![0; (u32::from_be_bytes(mark) & 0x7fff_ffff) as usize];
    stream.read_exact(&mut reply).unwrap();
    String::from_utf8_lossy(&reply).into_owned()
}

#[test]
#[allow(clippy::disallowed_methods, reason = "the test waits outside of any machine")]
fn a_table_of_exports_is_read_again_and_one_that_makes_no_sense_does_not_count() {
    let directory = formatted();
    let here = directory.path();
    let table = |path: &str| {
        let text =
            format!("[[export]]\npath = '{path}'\n[[export.client]]\nnetwork = '127.0.0.1'\n");
        fs::write(here.join("exports.toml"), text).unwrap();
    };
    table("no-slash");
    let arguments = ["--nfs", "127.0.0.1:0", "--exports", "exports.toml"];
    let (code, text) = fails(here, &[&["serve", "VOL"], &arguments[..]].concat());
    assert!(code == Some(1) && text.contains("exports.toml, line 2: "), "{text}");
    let (code, text) = fails(here, &["serve", "VOL", "--exports", "exports.toml"]);
    assert!(code == Some(2) && text.contains("--nfs"), "{text}");

    table("/first");
    let (server, ready) = Server::start(here, &arguments);
    let address = ready.trim().rsplit(' ').next().unwrap().to_owned();
    let comes = |wanted: &str| {
        let mut looks = (0..600).map(|_| {
            std::thread::sleep(std::time::Duration::from_millis(50));
            exported(&address)
        });
        assert!(looks.any(|told| told.contains(wanted)), "{wanted} never came");
    };
    assert!(exported(&address).contains("/first"), "{ready}");
    table("/second-by-itself");
    comes("/second-by-itself");
    table("/third");
    let hang_up = || {
        let id = server.0.id().to_string();
        assert!(Command::new("kill").args(["-HUP", &id]).status().unwrap().success());
    };
    hang_up();
    comes("/third");
    table("broken");
    hang_up();
    let rotate = || -> u32 {
        let told = ok(here, &["rotate-keys", "VOL"]);
        told.strip_prefix("key ").unwrap().strip_suffix(" counts now\n").unwrap().parse().unwrap()
    };
    // The gateway has made one if it needed one.
    let first = rotate();
    assert_eq!(rotate(), first + 1);
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert!(exported(&address).contains("/third"), "the table before counts");
    server.stop("-TERM");
    assert_eq!(rotate(), first + 2, "not served either");
}
