//! rpcbind: the gateway registers there if it is asked to, and clients that are told no port find
//! it.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests of whole processes use the host, and panic where they fail"
)]

use std::net::TcpStream;
use std::process::{Child, Command};
use std::thread;
use std::time::Duration;

use tests::guest::{POINT, may_boot, run};
use tests::mounted::may_mount;
use tests::{Served, Site};

/// Set in the process that has a network and a `/run` of its own.
const APART: &str = "MDFS_TEST_APART";

/// rpcbind of this test, gone when dropped.
struct Rpcbind(Child);

impl Rpcbind {
    fn start() -> Self {
        let rpcbind = Self(Command::new("rpcbind").arg("-f").spawn().unwrap());
        for _ in 0..100 {
            if TcpStream::connect("127.0.0.1:111").is_ok() {
                return rpcbind;
            }
            thread::sleep(Duration::from_millis(100));
        }
        panic!("rpcbind does not answer");
    }
}

impl Drop for Rpcbind {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Program, version and port of all that is registered over TCP, but for rpcbind itself.
fn registered() -> Vec<[String; 3]> {
    let told = Command::new("rpcinfo").args(["-p", "127.0.0.1"]).output().unwrap();
    let told = String::from_utf8(told.stdout).unwrap();
    let line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [program, version, "tcp", port, ..] = words[..] else { return None };
        (program != "100000").then(|| [program, version, port].map(str::to_owned))
    };
    let mut found: Vec<_> = told.lines().filter_map(line).collect();
    found.sort();
    found
}

fn serve(site: &Site, volume: &str) -> Served {
    Served::with(site, &["serve", volume, "--nfs", "127.0.0.1:0", "--rpcbind"])
}

fn expected(served: &Served) -> Vec<[String; 3]> {
    let port = served.port().to_string();
    [("100003", "3"), ("100003", "4"), ("100005", "3")]
        .map(|(program, version)| [program.to_owned(), version.to_owned(), port.clone()])
        .to_vec()
}

#[test]
fn clients_that_are_told_no_port_find_the_gateway_by_rpcbind() {
    if !may_boot() || !may_mount() {
        return;
    }
    if std::env::var_os(APART).is_none() {
        return apart("clients_that_are_told_no_port_find_the_gateway_by_rpcbind");
    }
    let site = Site::formatted(512, 4);
    let refusal = site.refused(&["serve", "VOL", "--nfs", "127.0.0.1:0", "--rpcbind"]);
    refusal.says(1, &["/run/rpcbind.sock", "start it", "--rpcbind"]);

    let rpcbind = Rpcbind::start();
    let served = serve(&site, "VOL");
    assert_eq!(registered(), expected(&served));
    let job = format!(
        "busybox mount -i -t nfs -o vers=3,proto=tcp,nolock,addr=$host,mountproto=tcp,mountaddr=$host \
         $host:/ {POINT}
         echo found >{POINT}/file"
    );
    run(&site, served.port(), 120, &job).ok();
    assert_eq!(site.ok(&["cat", "VOL:/file"]), "found\n");

    site.format("SECOND", 512, 4);
    let second = ["serve", "SECOND", "--nfs", "127.0.0.1:0", "--rpcbind"];
    let at = format!("127.0.0.1:{}", served.port());
    site.refused(&second).says(1, &["another server", &at, "rpcinfo -p"]);
    assert_eq!(registered(), expected(&served), "the first one is left alone");

    // What is left of one that was killed makes room.
    served.kill();
    let served = serve(&site, "VOL");
    assert_eq!(registered(), expected(&served));
    served.stop();
    assert_eq!(registered(), [[""; 3]; 0], "unregistered at the end");
    drop(rpcbind);
}

/// Runs the test of this `name` in a network namespace without another rpcbind.
fn apart(name: &str) {
    let script = "ip link set lo up && mount -t tmpfs tmpfs /run && exec \"$0\" \"$@\"";
    let status = Command::new("unshare")
        .args(["--net", "--mount", "sh", "-c", script])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(APART, "1")
        .status();
    assert!(status.unwrap().success());
}
