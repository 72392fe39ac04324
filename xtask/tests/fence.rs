//! The determinism fence holds: a layer that asks the world for something does not pass clippy.
//! Method: a crate with the workspace's own lints and one planted call in each line.

#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

use std::fs;
use std::path::Path;
use std::process::Command;

/// Each must be refused.
const PLANTED: &[&str] = &[
    "pub fn a() -> std::time::Instant { std::time::Instant::now() }",
    "pub fn b() -> std::time::SystemTime { std::time::SystemTime::now() }",
    "pub fn c() { std::thread::spawn(|| {}); }",
    "pub fn d() { std::thread::sleep(std::time::Duration::from_secs(1)) }",
    "pub fn e() { std::thread::scope(|_| {}) }",
    "pub fn f() -> bool { std::thread::Builder::new().spawn(|| {}).is_ok() }",
    "pub fn g() -> bool { std::net::TcpStream::connect(\"127.0.0.1:1\").is_ok() }",
    "pub fn h() -> bool { std::net::UdpSocket::bind(\"127.0.0.1:1\").is_ok() }",
    "pub fn i() -> bool { std::os::unix::net::UnixStream::connect(\"x\").is_ok() }",
    "pub fn j() -> bool { std::fs::File::open(\"x\").is_ok() }",
    "pub type K = std::collections::HashMap<u8, u8>;",
    "pub type L = std::collections::HashSet<u8>;",
    "pub type M = std::hash::RandomState;",
    "pub mod n { use std::time::Instant as Clock; pub fn n() -> Clock { Clock::now() } }",
    "pub fn o() -> std::time::Instant { let now = std::time::Instant::now; now() }",
];

/// Nothing is wrong with it.
const INNOCENT: &str = "pub fn z() -> std::time::Duration { std::time::Duration::ZERO }";

#[test]
fn a_layer_that_asks_the_world_does_not_build() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let manifest = fs::read_to_string(top.join("Cargo.toml")).unwrap();
    let lints = &manifest[manifest.find("[workspace.lints.rust]").unwrap()..];
    let lints = &lints[..lints.find("[profile.").unwrap()];
    let planted = Path::new(env!("CARGO_TARGET_TMPDIR")).join("planted-layer");
    fs::create_dir_all(planted.join("src")).unwrap();
    let package = "[package]\nname = \"planted-layer\"\nedition = \"2024\"\n\n[lints]\n\
        workspace = true\n\n[workspace]\n\n";
    fs::write(planted.join("Cargo.toml"), format!("{package}{lints}")).unwrap();
    let code = format!("{}\n{INNOCENT}\n", PLANTED.join("\n"));
    fs::write(planted.join("src/lib.rs"), code).unwrap();

    let clippy = Command::new(env!("CARGO"))
        .args(["clippy", "--offline", "--quiet", "--message-format", "short"])
        .current_dir(&planted)
        .env("CLIPPY_CONF_DIR", top.join(".config"))
        .env("CARGO_TARGET_DIR", planted.join("target"))
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&clippy.stderr);
    assert!(!clippy.status.success(), "the planted layer builds: {stderr}");
    let is_refused = |line: usize| {
        let place = format!("src/lib.rs:{line}:");
        stderr
            .lines()
            .any(|text| text.contains(&place) && text.contains("error: use of a disallowed"))
    };
    for (line, planted) in (1..).zip(PLANTED) {
        assert!(is_refused(line), "not refused: {planted}\n{stderr}");
    }
    assert!(!is_refused(PLANTED.len() + 1), "{stderr}");
}
