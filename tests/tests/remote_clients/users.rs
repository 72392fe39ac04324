//! A mount acts as its users.

use std::fs::{self, Permissions};
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

use tests::mounted::may_mount;

use crate::RemoteSite;

const OWNER: u32 = 1001;
const OTHER: u32 = 1002;

#[test]
fn a_mount_acts_as_its_users_also_where_root_of_the_host_is_squashed() {
    if !may_mount() {
        return;
    }
    let remote = RemoteSite::start();
    let (client, folder) = (remote.client(), remote.site.path(""));
    let mode = |path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    mode(folder.clone(), 0o711);
    let root = client.mount("root", &["--cache-ms", "0"]);
    mode(root.path(""), 0o777);
    fs::write(root.path("of-root"), "of root").unwrap();
    mode(root.path("of-root"), 0o600);
    root.unmount();

    remote.site.ok(&["cluster", "certify", "VOL", "--client", "node7"]);
    let mounted = client.mount_by_certificate("mnt", &folder.join("client-node7.pem"));
    let (done, told) = mounted.shell(OWNER, "mkdir -m 700 $M/own && echo mine > $M/own/f");
    assert!(done, "{told}");
    assert_eq!(mounted.shell(OWNER, "ls -a $M/own"), (true, ".\n..\nf\n".to_owned()));
    for (user, script) in [
        (OTHER, "ls $M/own"),
        (OTHER, "cat $M/own/f"),
        (0, "ls $M/own"),
        (0, "cat $M/own/f"),
        (0, "cat $M/of-root"),
        (OWNER, "cat $M/of-root"),
    ] {
        let (done, told) = mounted.shell(user, script);
        assert!(!done && told.contains("Permission denied"), "{user}, {script}: {told}");
    }
    mounted.unmount();
}

#[test]
fn what_an_open_granted_stays_granted() {
    if !may_mount() {
        return;
    }
    let remote = RemoteSite::start();
    let (client, folder) = (remote.client(), remote.site.path(""));
    fs::set_permissions(&folder, Permissions::from_mode(0o711)).unwrap();
    let go = folder.join("go");
    assert!(Command::new("mkfifo").args(["-m", "666"]).arg(&go).status().unwrap().success());
    client.ok(&["mkdir", &client.at("/d")]);
    let root = client.mount("root", &["--cache-ms", "0"]);
    fs::set_permissions(root.path("d"), Permissions::from_mode(0o777)).unwrap();
    root.unmount();
    remote.site.ok(&["cluster", "certify", "VOL", "--client", "node7"]);
    let mounted = client.mount_by_certificate("mnt", &folder.join("client-node7.pem"));

    let script = "echo given > $M/d/shared && chmod 666 $M/d/shared";
    assert_eq!(mounted.shell(OWNER, script), (true, String::new()));
    let script = "exec 3<>$M/d/shared && echo opened && read go < $M/../go && cat <&3 \
                  && echo more >&3";
    let mut opener = mounted.shell_of(OTHER, script);
    let mut opener = opener.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(opener.stdout.take().unwrap());
    let mut lines = String::new();
    said.read_line(&mut lines).unwrap();
    assert_eq!(lines, "opened\n");
    assert_eq!(mounted.shell(OWNER, "chmod 600 $M/d/shared"), (true, String::new()));
    let told = mounted.shell(OTHER, "exec 3<>$M/d/shared").1;
    assert!(told.contains("Permission denied"), "it is not opened again: {told}");
    fs::write(&go, "go\n").unwrap();
    let mut errors = String::new();
    said.read_to_string(&mut lines).unwrap();
    opener.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    assert!(opener.wait().unwrap().success(), "{lines}{errors}");
    assert_eq!(lines, "opened\ngiven\n");
    assert_eq!(mounted.shell(OWNER, "cat $M/d/shared"), (true, "given\nmore\n".to_owned()));
    let (read, _) = mounted.shell(OTHER, "cat $M/d/shared");
    assert!(!read, "the right has ended with the last close");
    mounted.unmount();
}
