//! Clients that are limited to a directory: it is their whole volume, and nothing else is there.

use std::fmt::Debug;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::process::Stdio;

use client::blocking::Volume;
use client::protocol::{
    Change, Commit, Error, GetAttributes, GetXattr, Handle, Link, ListXattrs, LockKind, Lookup,
    Name, OpenHandle, Parent, ROOT, Read, ReadDirectory, Rename, SetAttributes, SyncDirectory,
    Write, XattrName,
};
use client::volume::ConnectOptions;
use client::{Credentials, VolumeAddress};
use futures::executor::block_on;
use runtime::protocol::Undelivered;
use tests::Content;
use tests::client_host::{ClientHost, TOKEN};
use tests::cluster::{Cluster, Shape};
use tests::mounted::may_mount;

use crate::RemoteSite;

const STALE: Error = Error::Stale {};
const REFUSED: Error = Error::Undelivered { why: Undelivered::Refused };

/// A volume with `/in/kept` and `/out/secret`; clients show a token of root for `/in`.
struct LimitedSite {
    remote: RemoteSite,
    /// Not limited.
    root: Volume,
}

impl LimitedSite {
    fn start() -> Self {
        let remote = RemoteSite::start();
        let client = remote.client();
        fs::write(remote.site.path("text"), "text").unwrap();
        for directory in ["/in", "/in/d", "/out"] {
            client.ok(&["mkdir", &client.at(directory)]);
        }
        client.ok(&["cp", "text", &client.at("/in/kept")]);
        client.ok(&["cp", "text", &client.at("/out/secret")]);
        let root = open_unlimited(&client);
        root.symlink("/out/secret", "/in/absolute").unwrap();
        root.symlink("../out/secret", "/in/relative").unwrap();
        root.symlink("/kept", "/in/d/to-kept").unwrap();
        limit(&|arguments| remote.site.ok(arguments), &remote.site.path(""));
        Self { remote, root }
    }

    fn handle(&self, path: &str) -> Handle {
        let found = self.root.metadata(path).unwrap();
        Handle { ino: found.ino, generation: found.generation }
    }
}

/// With a copy of the token: a client reads its file again when it makes a link anew.
fn open_unlimited(client: &ClientHost) -> Volume {
    let mut options = ConnectOptions::of_this_process().unwrap();
    let token = client.folder.join("unlimited");
    fs::copy(client.folder.join(TOKEN), &token).unwrap();
    options.token = Some(token);
    let address = VolumeAddress::parse(&client.address).unwrap();
    client.host.run(|| client::volume::connect(&address, &options)).unwrap()
}

/// From now on clients show a token for `/in`.
fn limit(mdfs: &dyn Fn(&[&str]) -> String, folder: &std::path::Path) {
    fs::remove_file(folder.join(TOKEN)).unwrap();
    let user = ["--user", "0", "--groups", "0", "--subtree", "/in/", "--out", TOKEN];
    let told = mdfs(&[&["token", "create", "VOL"][..], &user].concat());
    assert!(told.contains("below /in only"), "{told}");
    assert!(mdfs(&["token", "show", TOKEN]).contains("below /in only\n"));
}

fn fails(client: &ClientHost, arguments: &[&str], word: &str) {
    let output = client.command(arguments).stdout(Stdio::null()).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && told.contains(word), "mdfs {arguments:?}: {told}");
}

#[test]
fn a_directory_is_the_whole_volume_for_a_client_that_is_limited_to_it() {
    if !may_mount() {
        return;
    }
    let mut site = LimitedSite::start();
    let client = site.remote.client();
    let content = site.remote.random_file("in", 9 << 20);
    client.ok(&["cp", "in", &client.at("/d/stored")]);
    client.ok(&["cp", "--verify", &client.at("/d/stored"), "out"]);
    assert!(fs::read(site.remote.site.path("out")).unwrap() == content);
    client.ok(&["mv", &client.at("/d/stored"), &client.at("/moved")]);
    client.ok(&["rm", &client.at("/moved")]);
    let listed = "absolute\nd\nkept\nrelative\n";
    for path in ["/", "/..", "/d/..", "/d/../../.."] {
        assert_eq!(client.ok(&["ls", &client.at(path)]), listed, "{path}");
    }
    assert_eq!(client.ok(&["cat", &client.at("/d/to-kept")]), "text");
    for path in ["/out/secret", "/../out/secret", "/in/kept", "/absolute", "/relative"] {
        fails(&client, &["cat", &client.at(path)], "no such file");
    }

    let mounted = client.mount("mnt", &["--cache-ms", "0"]);
    let names = |path: &str| {
        let entries = fs::read_dir(mounted.path(path)).unwrap();
        let mut names: Vec<_> = entries.map(|it| it.unwrap().file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(names(""), ["absolute", "d", "kept", "relative"]);
    let file = File::create_new(mounted.path("d/written")).unwrap();
    file.write_all_at(b"before", 0).unwrap();
    // The handles of the mount outlive the server.
    site.remote.kill_and_serve();
    file.write_all_at(b" and after", 6).unwrap();
    file.sync_all().unwrap();
    assert_eq!(fs::read(mounted.path("d/written")).unwrap(), b"before and after");
    fs::rename(mounted.path("d/written"), mounted.path("w")).unwrap();
    fs::hard_link(mounted.path("w"), mounted.path("d/linked")).unwrap();
    assert_eq!(fs::metadata(mounted.path("w")).unwrap().nlink(), 2);
    assert!(fs::read(mounted.path("relative")).is_err());
    drop(file);
    let (done, told) = mounted.shell(0, "cd $M/d && ls -a .. && rm -r $M/d && ls -la $M $M/..");
    assert!(done, "{told}");
    mounted.unmount();
    assert_eq!(site.root.metadata("/in/w").unwrap().size, 16);
    assert_eq!(site.root.metadata("/out/secret").unwrap().size, 4);
}

#[test]
fn no_handle_leads_out_of_the_directory_of_a_client() {
    if !may_mount() {
        return;
    }
    let site = LimitedSite::start();
    let [secret, out, kept, inside] =
        ["/out/secret", "/out", "/in/kept", "/in"].map(|path| site.handle(path));
    let limited = site.remote.client().open().unwrap();
    let system = limited.file_system();
    let known = |path: &str| {
        let found = limited.metadata(path).unwrap();
        Handle { ino: found.ino, generation: found.generation }
    };
    let (root, own) = (known("/"), known("/kept"));
    assert_eq!((root.ino, own.ino), (inside.ino, kept.ino));
    assert_ne!([root, own], [inside, kept]);

    let who = Credentials::root;
    let name = |text: &str| Name::new(text.as_bytes().to_vec()).unwrap();
    let (machine, any) = (system.machine(), |ino| Handle { ino, generation: 0 });
    let call = || machine.call_numbers().unwrap().next();
    // Known from elsewhere; of another number; generation 0.
    let beside = Handle { ino: secret.ino, generation: own.generation };
    for (file, error) in [secret, out, kept, inside, ROOT, beside]
        .map(|file| (file, STALE))
        .into_iter()
        .chain([secret.ino, out.ino, ROOT.ino, own.ino].map(|ino| (any(ino), STALE)))
    {
        let is = |answer: Result<(), Error>| assert_eq!(answer, Err(error), "{file:?}");
        let (directory, durable) = (file, false);
        is(block_on(client::ask(machine, GetAttributes { file })).map(drop));
        is(block_on(client::ask(machine, Read { who: who(), file, offset: 0, length: 9 }))
            .map(drop));
        is(block_on(client::ask(machine, Parent { who: who(), directory })).map(drop));
        is(block_on(client::ask(machine, Commit { file })).map(drop));
        is(block_on(client::ask(machine, SyncDirectory { directory })));
        is(block_on(client::ask(machine, ListXattrs { who: who(), file })).map(drop));
        let data = vec![b"gone".to_vec().into()];
        let write = Write { who: who(), file, offset: 0, data, durable };
        is(block_on(client::ask(machine, write)).map(drop));
        let change = Change { size: Some(0), ..Change::default() };
        let change = SetAttributes { who: who(), file, change, only_if_ctime: None, durable };
        is(block_on(client::ask(machine, change)).map(drop));
        let open = OpenHandle { who: who(), call: call(), file, access: 0 };
        is(block_on(client::ask(machine, open)).map(drop));
        let lookup = Lookup { who: who(), directory, name: name("secret") };
        is(block_on(client::ask(machine, lookup)).map(drop));
        let (after, count_max, attributes) = (0, 9, true);
        let list = ReadDirectory { who: who(), directory, after, count_max, attributes };
        is(block_on(client::ask(machine, list)).map(drop));
        let link = |file, directory| Link {
            who: who(),
            call: call(),
            file,
            directory,
            name: name("x"),
            durable,
        };
        is(block_on(client::ask(machine, link(file, root))).map(drop));
        is(block_on(client::ask(machine, link(own, directory))).map(drop));
        let rename = |from_directory, from_name, to_directory, to_name| Rename {
            who: who(),
            call: call(),
            from_directory,
            from_name: name(from_name),
            to_directory,
            to_name: name(to_name),
            replace: true,
            durable,
        };
        is(block_on(client::ask(machine, rename(directory, "secret", root, "x"))));
        is(block_on(client::ask(machine, rename(root, "kept", directory, "x"))));
    }
    let above = block_on(client::ask(machine, Parent { who: who(), directory: root })).unwrap();
    assert_eq!((above.ino, above.generation), (root.ino, root.generation));
    let key = XattrName::new(b"trusted.mdfs.subtree-key.1".to_vec()).unwrap();
    let get = GetXattr { who: who(), file: root, name: key };
    assert_eq!(block_on(client::ask(machine, get)), Err(Error::NoXattr {}));
    assert_eq!(site.root.metadata("/out/secret").unwrap().size, 4);

    // Without a limit generation 0 is refused, and a handle of a limited client means nothing.
    let free = site.root.file_system().machine();
    let ask = |file| block_on(client::ask(free, GetAttributes { file })).map(drop);
    assert_eq!((ask(any(secret.ino)), ask(own)), (Err(REFUSED), Err(STALE)));
}

#[test]
fn a_limited_certificate_shows_its_directory_to_all_users_of_its_host() {
    if !may_mount() {
        return;
    }
    let site = LimitedSite::start();
    let folder = site.remote.site.path("");
    fs::set_permissions(&folder, Permissions::from_mode(0o711)).unwrap();
    let mode = Change { mode: Some(0o777), ..Change::default() };
    site.root.set_attributes("/in/d", mode).unwrap();
    let certify = ["cluster", "certify", "VOL", "--client", "node9", "--subtree", "/in"];
    assert!(site.remote.site.ok(&certify).contains("below /in only"));
    let client = site.remote.client();
    let mounted = client.mount_by_certificate("mnt", &folder.join("client-node9.pem"));
    assert_eq!(mounted.shell(1001, "cat $M/kept && echo mine > $M/d/f"), (true, "text".to_owned()));
    assert_eq!(site.root.metadata("/in/d/f").unwrap().uid, 1001);
    let (done, told) = mounted.shell(1001, "cat $M/relative");
    assert!(!done && told.contains("No such file"), "{told}");

    // Others move a directory out, in which a program is.
    let mut inside = mounted.shell_of(1001, "cd $M/d && cat && ls . && exit 0; exit 7");
    inside.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut inside = inside.spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(500));
    site.root.rename("/in/d", "/out/d").unwrap();
    std::thread::sleep(std::time::Duration::from_millis(1500));
    drop(inside.stdin.take());
    assert_eq!(inside.wait().unwrap().code(), Some(7), "it is outside now");
    mounted.unmount();
}

#[test]
fn clients_whose_directory_is_not_there_are_refused() {
    if !may_mount() {
        return;
    }
    let site = LimitedSite::start();
    let client = site.remote.client();
    client.ok(&["ls", &client.at("/")]);
    site.root.rename("/in", "/elsewhere").unwrap();
    site.remote.refused(client.command(&["ls", &client.at("/")]), &["/in", "limited"]);
    site.root.symlink("/out", "/in").unwrap();
    site.remote.refused(client.command(&["ls", &client.at("/")]), &["/in", "not a directory"]);
    let bad = ["token", "create", "VOL", "--user", "0", "--groups", "0", "--subtree"];
    for path in ["in", "/", "/in/..", "//in", "/./in"] {
        let output = client.command(&[&bad[..], &[path]].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{path}");
    }
}

#[test]
fn all_processes_of_a_cluster_know_the_handles_of_a_limited_client() {
    if !may_mount() {
        return;
    }
    let mut cluster = Cluster::started(Shape { on_hosts: true, ..Shape::default() });
    let client = cluster.client_hosts().pop().expect("this user may make hosts");
    let root = open_unlimited(&client);
    for directory in ["/in", "/in/d", "/out"] {
        root.mkdir(directory).unwrap();
    }
    let content = Content { seed: 3, length: 24 << 20 }.bytes();
    fs::write(cluster.path("in"), &content).unwrap();
    fs::remove_file(cluster.path(TOKEN)).unwrap();
    let user = ["--user", "0", "--groups", "0", "--subtree", "/in", "--out", TOKEN];
    let made = cluster.run(&[&["token", "create", "p1", "--keys", "keys"][..], &user].concat());
    assert!(made.status.success(), "{made:?}");
    // Large writes and reads go to all processes.
    client.ok(&["cp", "in", &client.at("/d/stored")]);
    let mounted = client.mount("mnt", &["--cache-ms", "0"]);
    assert!(fs::read(mounted.path("d/stored")).unwrap() == content);
    let file = File::options().read(true).write(true).open(mounted.path("d/stored")).unwrap();
    // Nodes move while the file is open. The write may need a disk that is away: it waits then.
    cluster.stop_member(2);
    std::thread::scope(|scope| {
        let written = scope.spawn(|| file.write_all_at(&[b'm'; 4096], 12 << 20));
        for _ in 0..100 {
            if !written.is_finished() {
                std::thread::sleep(std::time::Duration::from_millis(100));
            }
        }
        cluster.start_member(2);
        written.join().unwrap().unwrap();
    });
    file.sync_all().unwrap();
    for number in 0..40 {
        fs::write(mounted.path(format!("d/{number}")), "x").unwrap();
    }
    assert_eq!(fs::read_dir(mounted.path("d")).unwrap().count(), 41);
    drop(file);
    mounted.unmount();
    assert_eq!(root.metadata("/in/d/stored").unwrap().size, 24 << 20);
    let limited = client.open().unwrap();
    let found = root.metadata("/out").unwrap();
    let file = Handle { ino: found.ino, generation: found.generation };
    let asked = block_on(client::ask(limited.file_system().machine(), GetAttributes { file }));
    is_stale(&asked);
    assert!(limited.open("/d/stored", client::OpenOptions::new().read(true)).is_ok_and(|file| {
        file.try_lock(client::ByteRange { first: 0, last: 9 }, LockKind::Shared {}).is_ok()
    }));
    cluster.stop();
}

fn is_stale<T: Debug>(answer: &Result<T, Error>) {
    assert!(matches!(answer, Err(Error::Stale {})), "{answer:?}");
}
