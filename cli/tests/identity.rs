//! Tokens of users and certificates of hosts, as the program makes them.

#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

use transport::tls::{ClientKeys, volume_keys};

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
