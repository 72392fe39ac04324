//! Tokens of users and certificates of hosts, as the program makes them.

#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

mod support;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use transport::tls::{ClientKeys, volume_keys};

use support::{mdfs, ok};

fn refused(directory: &Path, arguments: &[&str], words: &[&str]) {
    let output = mdfs(directory, arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "mdfs {arguments:?} succeeds");
    assert!(words.iter().all(|word| errors.contains(word)), "{errors} lacks one of {words:?}");
}

/// A volume with keys, as one that listens for clients.
fn site() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    ok(directory.path(), &["format", "VOL", "--disk-size", "64MiB", "--nodes", "2"]);
    volume_keys(&directory.path().join("VOL")).unwrap();
    directory
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn a_token_is_made_shown_and_rotated() {
    let directory = site();
    let here = directory.path();
    let create = ["token", "create", "VOL", "--user", "1001", "--groups", "100,27"];
    let written = [&create[..], &["--expires", "7d", "--out", "alice.token"]].concat();
    assert!(ok(here, &written).starts_with("alice.token: user 1001 until "));
    let file = here.join("alice.token");
    assert_eq!(mode(&file), 0o600);
    let claims = ClientKeys::from_token_file(&file).unwrap().claims().unwrap().clone();
    assert_eq!((claims.key, claims.who.uid, claims.who.gid), (1, 1001, 100));
    let text = ok(here, &["token", "show", "alice.token"]);
    assert!(text.contains("user 1001, group 100, further groups: 27"), "{text}");
    assert!(!text.contains("is over") && text.contains("signed by key 1"), "{text}");

    let key_of = |text: &str| {
        fs::write(here.join("next"), text).unwrap();
        fs::set_permissions(here.join("next"), fs::Permissions::from_mode(0o600)).unwrap();
        ok(here, &["token", "show", "--json", "next"]).contains("\"key\": 2")
    };
    assert!(!key_of(&ok(here, &create)), "a token does not change the keys");
    assert_eq!(ok(here, &["token", "rotate", "VOL"]), "key 2 signs tokens now\n");
    assert!(key_of(&ok(here, &create)));
    ok(here, &["token", "rotate", "VOL", "--revoke-all"]);
    let error = fs::Permissions::from_mode(0o644);
    fs::set_permissions(&file, error).unwrap();
    refused(here, &["token", "show", "alice.token"], &["alice.token", "644", "chmod 600"]);
    let no_keys = ["token", "create", "VOL", "--user", "1", "--groups", "1", "--keys", "elsewhere"];
    refused(here, &no_keys, &["elsewhere/authority.pem", "mdfs cluster init"]);
    refused(
        here,
        &["token", "create", "VOL", "--user", "no-such-user"],
        &["no user 'no-such-user'"],
    );
}

#[test]
fn a_host_gets_one_file_with_its_limits() {
    let directory = site();
    let here = directory.path();
    let certify = ["cluster", "certify", "VOL", "--client"];
    let limits = ["--uids", "1000-1999", "--gids", "100"];
    ok(here, &[&certify[..], &["node7"], &limits].concat());
    let file = here.join("client-node7.pem");
    assert_eq!(mode(&file), 0o600);
    ClientKeys::from_host_file(&file).unwrap();
    assert!(!fs::read_to_string(&file).unwrap().is_empty());
    let root = ["--no-root-squash", "--uids", "1-9"];
    refused(here, &[&certify[..], &["node8"], &root].concat(), &["--uids"]);
    refused(here, &[&certify[..], &["Node 8"]].concat(), &["Node 8", "lower-case"]);
    refused(here, &[&certify[..], &["n", "--uids", "9-1"]].concat(), &["in order"]);
    refused(here, &["cluster", "certify", "VOL", "--uids", "1"], &["--client"]);
}

/// A server of the volume, ready.
struct Server(Child);

impl Server {
    /// Its line says where clients connect.
    fn start(directory: &Path, arguments: &[&str]) -> (Self, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mdfs"));
        command.args(["serve", "VOL"]).args(arguments).current_dir(directory);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("ready"), "{line}");
        (Self(child), line)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn another_user_of_the_host_changes_nothing_of_root_and_reads_no_disk() {
    const OTHER: u32 = 4_000_000_001;
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let directory = site();
    let here = directory.path();
    fs::set_permissions(here, fs::Permissions::from_mode(0o711)).unwrap();
    let program = here.join("mdfs");
    fs::copy(env!("CARGO_BIN_EXE_mdfs"), &program).unwrap();
    fs::write(here.join("in"), b"secret").unwrap();
    let as_other = |program: &Path, arguments: &[&str]| {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(here).env_remove("HOME").uid(OTHER).gid(OTHER);
        let output = command.output().unwrap();
        let told = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        (output.status.success(), told)
    };
    let (opened, told) = as_other(&program, &["ls", "VOL:/"]);
    assert!(!opened && told.contains("only its owner can open it"), "{told}");

    let (server, _) = Server::start(here, &[]);
    ok(here, &["put", "in", "VOL:/of-root"]);
    let (listed, told) = as_other(&program, &["ls", "VOL:/"]);
    assert!(listed && told.contains("of-root"), "{told}");
    let (removed, told) = as_other(&program, &["rm", "VOL:/of-root"]);
    assert!(!removed && told.contains("ermission"), "{told}");
    let (made, told) = as_other(&program, &["mkdir", "VOL:/mine"]);
    assert!(!made && told.contains("ermission"), "{told}");
    let (made, told) = as_other(&program, &["token", "rotate", "VOL"]);
    assert!(!made && told.contains("only root of the volume"), "{told}");
    for file in ["VOL/disks/n0d0", "VOL/keys/authority.key", "VOL/mdfs.lock", "VOL/coordination/db"]
    {
        let (read, told) = as_other(Path::new("/bin/cat"), &[file]);
        assert!(!read && told.contains("Permission denied"), "{file}: {told}");
    }
    let (listed, told) = as_other(Path::new("/bin/ls"), &["VOL"]);
    assert!(!listed && told.contains("Permission denied"), "{told}");
    drop(server);
}

#[test]
fn a_client_of_another_host_is_who_its_token_or_its_host_says() {
    let directory = site();
    let here = directory.path();
    fs::write(here.join("in"), b"bytes").unwrap();
    let (server, line) = Server::start(here, &["--listen", "127.0.0.1:0"]);
    let address = line.trim().rsplit("clients at ").next().unwrap().to_owned();
    let inside = |path: &str| format!("mdfs://{address}/VOL:{path}");
    // No configuration of the one who runs the tests.
    let home = here.join("home");
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mdfs"));
        command.args(arguments).args(["--timeout", "5"]).current_dir(here);
        command.env("HOME", &home).env_remove("XDG_CONFIG_HOME").env_remove("MDFS_TOKEN");
        let output = command.output().unwrap();
        let told = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        (output.status.success(), told)
    };
    let refused = |arguments: &[&str], word: &str| {
        let (done, told) = run(arguments);
        assert!(!done && told.contains(word), "{arguments:?}: {told}");
    };
    let succeeds = |arguments: &[&str]| {
        let (done, told) = run(arguments);
        assert!(done, "{arguments:?}: {told}");
    };
    let (root, of_root) = (inside("/"), inside("/of-root"));
    refused(&["ls", &root], "token");

    for (user, file) in [("0", "root.token"), ("1001", "alice.token")] {
        ok(here, &["token", "create", "VOL", "--user", user, "--groups", user, "--out", file]);
    }
    succeeds(&["put", "in", &of_root, "--token", "root.token"]);
    succeeds(&["ls", &root, "--token", "alice.token"]);
    refused(&["rm", &of_root, "--token", "alice.token"], "ermission");
    refused(&["put", "in", &inside("/new"), "--token", "alice.token"], "ermission");
    let other = site();
    let create = ["token", "create", "VOL", "--user", "0", "--groups", "0", "--out", "foreign"];
    ok(other.path(), &create);
    let foreign = other.path().join("foreign");
    refused(&["ls", &root, "--token", foreign.to_str().unwrap()], "another volume");

    ok(here, &["cluster", "certify", "VOL", "--client", "node7"]);
    fs::create_dir_all(home.join(".config/mdfs")).unwrap();
    fs::rename(here.join("client-node7.pem"), home.join(".config/mdfs/client.pem")).unwrap();
    succeeds(&["ls", &root]);
    refused(&["rm", &of_root], "ermission");

    ok(here, &["token", "rotate", "VOL", "--revoke-all"]);
    #[allow(clippy::disallowed_methods, reason = "a test measures")]
    let revoked = Instant::now();
    while run(&["ls", &root, "--token", "alice.token"]).0 {
        assert!(revoked.elapsed() < Duration::from_secs(30), "a revoked token still counts");
    }
    refused(&["ls", &root, "--token", "alice.token"], "retired");
    drop(server);
}
