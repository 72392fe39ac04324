//! The program itself on a real volume: alone, with a server, and across a restart.

#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

mod support;

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use runtime::seed::Rng;

use support::{mdfs, ok};

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
fn nothing_of_a_volume_is_readable_by_others_whatever_the_umask() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    let format = format!(
        "umask 0; exec '{}' format VOL --disk-nodes 2 --disk-size 256MiB --nodes 8",
        env!("CARGO_BIN_EXE_mdfs")
    );
    let made = Command::new("sh").args(["-c", &format]).current_dir(here).output().unwrap();
    assert!(made.status.success());
    let bits_of = |name: &str| fs::metadata(here.join(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!(bits_of("VOL"), 0o711, "others reach the socket");
    for private in ["disks", "coordination", "mdfs.lock"] {
        assert_eq!(bits_of(&format!("VOL/{private}")) & 0o077, 0, "{private}");
    }
    for disk in fs::read_dir(here.join("VOL/disks")).unwrap() {
        assert_eq!(disk.unwrap().metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }
    let disk = here.join("VOL/disks/n1d0");
    fs::set_permissions(&disk, fs::Permissions::from_mode(0o644)).unwrap();
    for command in [&["ls", "VOL:/"][..], &["serve", "VOL"], &["check", "VOL"]] {
        let (code, text) = fails(here, command);
        assert_eq!(code, Some(3), "{text}");
        assert!(text.contains("n1d0 (mode 644); run `chmod 600 VOL/disks/n1d0`"), "{text}");
    }
    fs::set_permissions(&disk, fs::Permissions::from_mode(0o600)).unwrap();
    ok(here, &["ls", "VOL:/"]);
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
fn overwrite(path: &Path, mut chosen: impl FnMut(&[u8]) -> bool) -> usize {
    let bytes = fs::read(path).unwrap();
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    let mut count = 0;
    for (number, block) in bytes.chunks(4096).enumerate().filter(|(_, block)| chosen(block)) {
        // In place: the disk may be in use.
        file.write_all_at(&[block[100] ^ 1], number as u64 * 4096 + 100).unwrap();
        count += 1;
    }
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

    let is_data = |block: &[u8]| block[..200].iter().all(|&byte| byte == 0xA7);
    let (server, _) = Server::start(here, &[]);
    let text = ok(here, &["scrub", "VOL", "--rate", "10MiB"]);
    assert!(text.contains("no flaw") && text.contains("data and metadata of 8 nodes"), "{text}");
    let hurt: usize = disks.iter().map(|disk| overwrite(disk, is_data)).sum();
    assert!(hurt > 0, "the data is on the disks");
    assert!(ok(here, &["check", "VOL"]).contains("no flaw"), "data was not asked for");
    let output = mdfs(here, &["scrub", "VOL", "--files", "--json"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(4), "{text}");
    assert!(text.contains("\"unreadable\": [\n    \"/a/marked\"\n  ]"), "{text}");
    server.stop("-TERM");
    let (code, text) = fails(here, &["scrub", "VOL", "--repair"]);
    assert!(code == Some(2) && text.contains("mdfs serve"), "{text}");
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

/// Damages blocks of a disk of a served volume; a scrub says `told` of it, and repairs it.
#[allow(clippy::disallowed_methods, reason = "the test waits outside of any machine")]
fn hurt_and_repair(here: &Path, disk: &Path, chosen: impl FnMut(&[u8]) -> bool, told: &str) {
    assert!(overwrite(disk, chosen) > 0, "{told}: nothing of that kind is on the disk");
    let output = mdfs(here, &["scrub", "VOL"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(4), "{text}");
    assert!(text.contains(told) && text.contains("disk n0d0"), "{text}");
    let text = ok(here, &["scrub", "VOL", "--repair"]);
    assert!(text.contains("; repaired") && text.contains("flaws repaired"), "{text}");
    // The next checkpoints write pages anew.
    let end = Instant::now() + Duration::from_secs(20);
    while !mdfs(here, &["scrub", "VOL"]).status.success() {
        assert!(Instant::now() < end, "{told}: it is still damaged");
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn a_scrub_of_a_served_volume_repairs_metadata_from_its_second_copy() {
    let directory = formatted();
    let here = directory.path();
    fs::create_dir(here.join("tree")).unwrap();
    for number in 0..200 {
        fs::write(here.join(format!("tree/a-file-with-a-long-name-{number}")), "content").unwrap();
    }
    let (server, _) = Server::start(here, &[]);
    ok(here, &["cp", "-r", "tree", "VOL:/tree"]);
    server.stop("-TERM");
    let (server, _) = Server::start(here, &[]);
    let disk = here.join("VOL/disks/n0d0");
    let is_page = |block: &[u8]| block.starts_with(b"mdPG");
    let is_log_entry = |block: &[u8]| block.starts_with(b"mdLE");
    let mut superblocks = 0;
    let is_first_superblock = |block: &[u8]| {
        superblocks += usize::from(block.starts_with(b"MDFSDISK"));
        superblocks == 1 && block.starts_with(b"MDFSDISK")
    };
    hurt_and_repair(here, &disk, is_page, "a copy of a page");
    for number in 0..40 {
        ok(here, &["mkdir", &format!("VOL:/directory-{number}")]);
    }
    hurt_and_repair(here, &disk, is_log_entry, "log: ");
    hurt_and_repair(here, &disk, is_first_superblock, "a superblock of disk n0d0 is bad");
    server.stop("-TERM");
    assert!(ok(here, &["check", "VOL", "--data"]).contains("sound"));
}

/// Standard output, or standard error, whose reader has gone before anything was written.
fn closed() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

#[test]
fn exit_codes_do_not_depend_on_who_reads_the_output() {
    let directory = formatted();
    let here = directory.path();
    fs::write(here.join("marked"), vec![0xA7; 50_000]).unwrap();
    ok(here, &["put", "marked", "VOL:/marked"]);
    let code = |arguments: &[&str], out: Stdio, errors: Stdio| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mdfs"));
        command.args(arguments).current_dir(here).stdout(out).stderr(errors);
        command.status().unwrap().code()
    };
    for sound in [&["check", "VOL"][..], &["ls", "-l", "VOL:/"], &["cat", "VOL:/marked"]] {
        assert_eq!(code(sound, closed(), closed()), Some(0), "{sound:?}");
    }
    let is_marked = |block: &[u8]| block.iter().all(|&byte| byte == 0xA7);
    let count: usize = ["VOL/disks/n0d0", "VOL/disks/n1d0"]
        .map(|disk| overwrite(&here.join(disk), is_marked))
        .into_iter()
        .sum();
    assert!(count > 0);
    for (arguments, expected) in [
        (&["check", "VOL", "--data"][..], 4),
        (&["scrub", "VOL", "--json"], 4),
        (&["cat", "VOL:/marked"], 1),
        (&["ls", "VOL:/missing"], 1),
        (&["df", "NONE"], 3),
        (&["mv", "VOL:/a", "OTHER:/a"], 2),
        (&["frobnicate"], 2),
    ] {
        assert_eq!(code(arguments, closed(), Stdio::null()), Some(expected), "{arguments:?}");
        assert_eq!(code(arguments, Stdio::null(), closed()), Some(expected), "{arguments:?}");
    }
}

#[test]
fn a_volume_without_a_disk_is_read_as_far_as_it_goes_and_not_written() {
    let directory = formatted();
    let here = directory.path();
    fs::create_dir(here.join("tree")).unwrap();
    let mut rng = Rng::new(7);
    let contents: Vec<Vec<u8>> = (0..24)
        .map(|number| {
            let mut content = vec![0; 3000 * (number + 1)];
            rng.fill(&mut content);
            fs::write(here.join(format!("tree/f{number}")), &content).unwrap();
            content
        })
        .collect();
    ok(here, &["cp", "-r", "tree", "VOL:/"]);
    assert!(ok(here, &["check", "VOL", "--files"]).contains("cannot be read 0 names"));
    fs::rename(here.join("VOL/disks/n1d0"), here.join("kept")).unwrap();
    let (code, text) = fails(here, &["serve", "VOL"]);
    assert_eq!(code, Some(3));
    assert!(text.contains("n1d0") && text.contains("serve --degraded"), "{text}");
    let left = fs::read(here.join("VOL/disks/n0d0")).unwrap();

    let output = mdfs(here, &["check", "VOL", "--files", "--json"]);
    assert_eq!(output.status.code(), Some(4));
    let listed = String::from_utf8(output.stdout).unwrap();
    let (server, ready) = Server::start(here, &["--degraded"]);
    assert_eq!(ready, "ready: VOL\n");
    let mut lost = 0;
    for (number, content) in contents.iter().enumerate() {
        let read = mdfs(here, &["cat", &format!("VOL:/tree/f{number}")]);
        let is_listed = listed.contains(&format!("\"/tree/f{number}\""));
        let names_are_lost = !listed.contains("\"names_lost\": []");
        if read.status.success() {
            assert!(read.stdout == *content && !is_listed, "f{number}");
        } else {
            let why = String::from_utf8(read.stderr).unwrap();
            assert!(is_listed || names_are_lost, "f{number}: {why}");
            lost += 1;
        }
    }
    assert!(lost > 0, "half of the data was on that disk");
    let (code, text) = fails(here, &["mkdir", "VOL:/new"]);
    assert!(code == Some(1) && !text.contains("restarted"), "{text}");
    server.stop("-TERM");
    assert!(fs::read(here.join("VOL/disks/n0d0")).unwrap() == left, "nothing is written");
    fs::rename(here.join("kept"), here.join("VOL/disks/n1d0")).unwrap();
    assert!(ok(here, &["check", "VOL", "--files"]).contains("sound"));
    assert_eq!(ok(here, &["ls", "VOL:/"]), "tree\n");
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
        assert!(looks.any(|output| output.contains(wanted)), "{wanted} never came");
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
        let output = ok(here, &["rotate-keys", "VOL"]);
        output.strip_prefix("key ").unwrap().strip_suffix(" counts now\n").unwrap().parse().unwrap()
    };
    // The gateway has made one if it needed one.
    let first = rotate();
    assert_eq!(rotate(), first + 1);
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert!(exported(&address).contains("/third"), "the table before counts");
    server.stop("-TERM");
    assert_eq!(rotate(), first + 2, "not served either");
}

/// All names below a directory of this computer, in order.
fn names(at: &Path) -> Vec<String> {
    let mut all = Vec::new();
    for entry in fs::read_dir(at).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(names(&path));
        }
        all.push(path.to_str().unwrap().to_owned());
    }
    all.sort();
    all
}

/// What is there has its final name only if it is whole. Returns how many of the files are.
fn whole_ones(original: &Path, copy: &Path) -> usize {
    let mut whole = 0;
    for path in names(original) {
        let there = Path::new(&path);
        let here = copy.join(there.strip_prefix(original).unwrap());
        if there.is_file() && here.exists() {
            assert!(fs::read(there).unwrap() == fs::read(&here).unwrap(), "{}", here.display());
            whole += 1;
        }
    }
    whole
}

#[test]
#[allow(clippy::disallowed_methods, reason = "the test kills a program in real time")]
fn a_copy_that_is_killed_leaves_no_half_file_and_goes_on_where_it_was() {
    let directory = formatted();
    let here = directory.path();
    fs::create_dir_all(here.join("tree/sub")).unwrap();
    let mut content = vec![0; 20 << 20];
    Rng::new(4).fill(&mut content);
    for number in 0..60 {
        let place = ["tree", "tree/sub"][number % 2];
        fs::write(here.join(place).join(format!("f{number}")), &content[number..100_000]).unwrap();
    }
    fs::write(here.join("tree/large"), &content).unwrap();
    let (server, _) = Server::start(here, &[]);
    ok(here, &["mkdir", "VOL:/stored"]);
    ok(here, &["cp", "-r", "--verify", "tree", "VOL:/stored"]);

    fs::create_dir(here.join("back")).unwrap();
    let (mut most, mut ended_by_signal) = (0, 0);
    for round in 0..8 {
        let mut child = Command::new(env!("CARGO_BIN_EXE_mdfs"));
        child.args(["cp", "-rT", "-j", "2", "VOL:/stored/tree", "back"]).current_dir(here);
        let mut child = child.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(30 + 25 * round));
        let signal = if round % 2 == 0 { "-KILL" } else { "-INT" };
        let id = child.id().to_string();
        // Done already, perhaps.
        let _ = Command::new("kill").args([signal, &id]).status().unwrap();
        let status = child.wait().unwrap();
        ended_by_signal += usize::from(!status.success());
        if round % 2 == 1 && !status.success() && status.code().is_some() {
            assert_eq!(status.code(), Some(130), "it was asked to stop");
        }
        let whole = whole_ones(&here.join("tree"), &here.join("back"));
        assert!(whole >= most, "{whole} files now, {most} before");
        most = whole;
    }
    assert!(ended_by_signal > 0, "no copy was interrupted");
    let output = ok(here, &["cp", "-rT", "--verify", "VOL:/stored/tree", "back"]);
    let there = format!("; {most} {} there already", if most == 1 { "was" } else { "were" });
    assert!(most == 0 || output.contains(&there), "{output}");
    assert_eq!(whole_ones(&here.join("tree"), &here.join("back")), 61);
    let parts =
        |names: Vec<String>| names.iter().filter(|name| name.contains(".mdfs-part")).count();
    assert_eq!(parts(names(&here.join("back"))), 0, "what was left is taken up");

    // The other way.
    let mut child = Command::new(env!("CARGO_BIN_EXE_mdfs"));
    child.args(["cp", "-rT", "-j", "2", "tree", "VOL:/again"]).current_dir(here);
    let mut child = child.stdout(Stdio::null()).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(120));
    child.kill().unwrap();
    child.wait().unwrap();
    ok(here, &["cp", "-rT", "--verify", "tree", "VOL:/again"]);
    ok(here, &["cp", "-r", "VOL:/again", "back2"]);
    assert_eq!(whole_ones(&here.join("tree"), &here.join("back2")), 61);
    assert_eq!(names(&here.join("back2")).len(), 62);
    server.stop("-TERM");
}

/// The server is started with a low limit, as many systems set it, and may raise it.
#[test]
fn a_server_may_have_as_many_files_open_as_the_system_allows() {
    let volume = formatted();
    let mut command = Command::new("sh");
    let program = env!("CARGO_BIN_EXE_mdfs");
    command.args(["-c", "ulimit -S -n 256; exec \"$0\" serve VOL", program]);
    let mut child = command.current_dir(&volume).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let limits = fs::read_to_string(format!("/proc/{}/limits", child.id())).unwrap();
    Server(child).stop("-TERM");
    let of_files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let numbers: Vec<&str> = of_files.split_whitespace().skip(3).take(2).collect();
    assert_eq!(numbers[0], numbers[1], "{of_files}");
}

#[test]
fn bash_completes_commands_options_and_files() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    fs::write(here.join("completion"), ok(here, &["completion", "bash"])).unwrap();
    // As the shell does when the key is pressed: the words and which of them is asked for.
    let script = r#"
        . ./completion
        complete_words() {
            COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
            _mdfs mdfs "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
            echo "${COMPREPLY[@]}"
        }
        complete_words mdfs comp
        complete_words mdfs cp --ch
        complete_words mdfs completion ba
        complete -p mdfs
    "#;
    let output = Command::new("bash").args(["-c", script]).current_dir(here).output().unwrap();
    let output = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!(lines[..3], ["completion", "--checksum", "bash"], "{output}");
    assert!(lines[3].contains("_mdfs"), "{output}");
    for shell in ["zsh", "fish"] {
        assert!(ok(here, &["completion", shell]).contains("rotate-keys"), "{shell}");
    }
    ok(here, &["man", "--out", "."]);
    let page = fs::read_to_string(here.join("mdfs-cp.1")).unwrap();
    assert!(page.contains(".TH") && page.contains("checksum"), "{page}");
    assert!(ok(here, &["man"]).contains("rotate\\-keys"));
}
