//! What people see while a server is away.

use std::fs::{self, File};
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tests::mounted::may_mount;

use super::RemoteSite;

/// The server stands still, or is not there, for this time.
const STANDS_STILL: Duration = Duration::from_secs(5);
/// The end of a wait is in the log within this time.
const SAID_WITHIN: Duration = Duration::from_secs(5);
/// Nothing is said of a shorter pause.
const SHORT: Duration = Duration::from_millis(1200);

impl RemoteSite {
    /// The server stands still for a while.
    fn freeze(&self, pause: Duration) {
        let id = self.server.as_ref().unwrap().id().to_string();
        for signal in ["-STOP", "-CONT"] {
            assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
            if signal == "-STOP" {
                thread::sleep(pause);
            }
        }
    }
}

/// The seconds in a line like `begin ... (12 s)`.
fn seconds(line: &str, begin: &str) -> u64 {
    let rest = line.strip_prefix(begin).and_then(|rest| rest.strip_suffix(" s)"));
    rest.and_then(|rest| rest.parse().ok()).unwrap_or_else(|| panic!("'{begin}' is not in: {line}"))
}

#[test]
fn a_command_and_a_mount_say_once_that_they_wait_and_how_long_they_have() {
    if !may_mount() {
        return;
    }
    let mut remote = RemoteSite::start();
    let client = remote.client();
    let mounted = client.mount("mnt", &["--cache-ms", "0"]);
    for is_killed in [false, true] {
        let mut listing = client.command(&["cat", &client.at("/missing")]);
        let (before, name) = (mounted.log(), format!("made-{is_killed}"));
        thread::scope(|scope| {
            let path = mounted.path(&name);
            let write = scope.spawn(move || {
                thread::sleep(Duration::from_millis(200));
                let mut file = File::create_new(path).unwrap();
                file.write_all(b"written").unwrap();
                file.sync_all().unwrap();
            });
            let waiting = scope.spawn(move || {
                thread::sleep(Duration::from_millis(200));
                let begin = Instant::now();
                let output = listing.stdout(Stdio::null()).output().unwrap();
                (String::from_utf8(output.stderr).unwrap(), begin.elapsed())
            });
            if is_killed {
                let mut server = remote.server.take().unwrap();
                server.kill().unwrap();
                server.wait().unwrap();
                thread::sleep(STANDS_STILL);
                remote.serve();
            } else {
                remote.freeze(STANDS_STILL);
            }
            write.join().unwrap();
            let (told, waited) = waiting.join().unwrap();
            let lines: Vec<&str> = told.lines().collect();
            assert_eq!(lines.len(), 3, "{told}");
            assert_eq!(seconds(lines[0], "mdfs: waiting for a server ("), 2);
            let length = seconds(lines[1], "mdfs: the wait is over for a server (");
            assert!((4..=waited.as_secs()).contains(&length), "{told} after {waited:?}");
            assert!(lines[2].contains("missing"), "there is no such file: {told}");
        });
        assert_eq!(fs::read_to_string(mounted.path(&name)).unwrap(), "written");
        let begin = "for a server (";
        let end = Instant::now() + SAID_WITHIN;
        let is_over = |told: &str| told[before.len()..].contains("the wait is over");
        while !is_over(&mounted.log()) && Instant::now() < end {
            thread::sleep(Duration::from_millis(50));
        }
        let told = mounted.log();
        let lines: Vec<&str> = told[before.len()..].lines().collect();
        assert_eq!(lines.len(), 2, "{told}");
        assert!(lines[0].contains("waiting for a server (2 s)"), "{told}");
        assert!(lines[1].contains("the wait is over"), "{told}");
        let at = lines[1].find(begin).unwrap();
        assert!(seconds(&lines[1][at..], begin) >= 4, "{told}");
    }
    let before = mounted.log();
    remote.freeze(SHORT);
    assert_eq!(client.ok(&["cat", &client.at("/made-true")]), "written");
    assert_eq!(mounted.log(), before);
    mounted.unmount();
}
