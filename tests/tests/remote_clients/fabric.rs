//! Clients of another host whose large data go over libfabric (`tcp;ofi_rxm`) beside the TLS
//! connection. What the server counts says how they went, and that nothing of them is left.

use std::ffi::OsStr;
use std::fs;
use std::io::Read as _;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use client::blocking::BlockingFile;
use client::options::OpenOptions;
use client::volume::ConnectOptions;
use client::{Regions, VolumeAddress};
use tests::client_host::{ClientHost, TOKEN};
use tests::cluster::{Cluster, Shape};
use tests::mounted::may_mount;
use tests::{Content, http};

use super::{AWAY, RemoteSite};

const PROVIDER: &str = "tcp;ofi_rxm";
/// Bytes of the file that is copied: that takes several times as long as a client and its server
/// take to load libfabric and to connect, about a second.
const LENGTH: u64 = 384 << 20;
/// The same in a cluster.
const CLUSTER_LENGTH: u64 = 24 << 20;
/// Bytes that go over libfabric of these, at least: it is loaded while the first ones go over TCP.
const FAST_MIN: u64 = 16 << 20;
/// A client that is killed leaves nothing after this time.
const SOON: Duration = Duration::from_secs(10);
/// How many clients are killed.
const KILLS: usize = 6;

struct FabricSite(RemoteSite);

impl FabricSite {
    fn start() -> Self {
        let options = |address: &str| {
            let metrics = format!("{address}:7401");
            ["--fabric", PROVIDER, "--metrics", &metrics].map(str::to_owned).to_vec()
        };
        Self(RemoteSite::start_with(1, options))
    }

    /// `mdfs` at the client, which wants libfabric.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.0.client().command(arguments);
        command.env("MDFS_FABRIC", PROVIDER).stderr(Stdio::piped());
        command
    }

    #[track_caller]
    fn ok(&self, arguments: &[&str]) {
        let output = self.command(arguments).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && told.is_empty(), "mdfs {arguments:?}: {told}");
    }

    /// The sum of the lines of a count of the server that begin so.
    fn count(&self, begins: &str) -> u64 {
        let host = self.0.hosts.host(0);
        let (_, page) = host.run(|| http::get(&format!("{}:7401", host.address), "/metrics"));
        let lines = page.lines().filter(|line| line.starts_with(begins));
        lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum()
    }

    /// Bytes that went over libfabric, `in` or `out`.
    fn bytes(&self, direction: &str) -> u64 {
        let labels = format!("provider=\"{PROVIDER}\",direction=\"{direction}\"");
        self.count(&format!("mdfs_fabric_bytes_total{{{labels}}}"))
    }

    /// Waits until more bytes than `least` are counted: its thread counts now and then.
    #[track_caller]
    fn until_moved(&self, direction: &str, least: u64) {
        until("bytes over libfabric", || self.bytes(direction) > least);
    }

    /// Waits until the server has nothing for any client any more.
    #[track_caller]
    fn until_nothing_is_left(&self) {
        for count in ["clients{", "endpoints", "regions", "registered_bytes", "client_bytes"] {
            until(count, || self.count(&format!("mdfs_fabric_{count}")) == 0);
        }
    }
}

#[track_caller]
fn until(what: &str, is_so: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < SOON, "not in time: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_copy_goes_over_libfabric_both_ways_and_nothing_of_it_is_left() {
    if !may_mount() {
        return;
    }
    let site = FabricSite::start();
    let client = site.0.client();
    let content = site.0.random_file("in", LENGTH);
    let at = client.at("/stored");
    site.ok(&["cp", "in", &at]);
    site.until_moved("in", FAST_MIN);
    site.ok(&["cp", &at, "out"]);
    site.until_moved("out", FAST_MIN);
    assert!(fs::read(site.0.site.path("out")).unwrap() == content);
    site.until_nothing_is_left();
    // A client that does not want it has none.
    let before = site.bytes("in");
    client.ok(&["cp", "in", &client.at("/other")]);
    assert_eq!(site.bytes("in"), before);
    assert_eq!(site.count("mdfs_fabric_refused_total"), 0);
}

#[test]
fn killed_clients_leave_no_endpoint_and_no_registered_memory_behind() {
    if !may_mount() {
        return;
    }
    let site = FabricSite::start();
    let client = site.0.client();
    let content = site.0.random_file("in", LENGTH);
    let at = client.at("/stored");
    site.ok(&["cp", "in", &at]);
    for kill in 0..KILLS {
        let to = client.at(&format!("/killed-{kill}"));
        let (direction, words) =
            if kill % 2 == 0 { ("in", ["cp", "in", &to]) } else { ("out", ["cp", &at, "killed"]) };
        let before = site.bytes(direction);
        let mut copy = site.command(&words).spawn().unwrap();
        // In the middle of what it moves.
        until("the copy begins", || site.bytes(direction) > before + (4 << 20));
        until("memory is registered", || site.count("mdfs_fabric_registered_bytes") > 0);
        copy.kill().unwrap();
        copy.wait().unwrap();
        site.until_nothing_is_left();
        let _ = fs::remove_file(site.0.site.path("killed"));
        client.ok(&["rm", "-f", &to]);
    }
    site.ok(&["cp", &at, "out"]);
    assert!(fs::read(site.0.site.path("out")).unwrap() == content);
    site.until_nothing_is_left();
}

#[test]
fn a_restart_of_the_server_is_a_pause_for_clients_over_libfabric() {
    if !may_mount() {
        return;
    }
    let mut site = FabricSite::start();
    let client = site.0.client();
    let content = site.0.random_file("in", LENGTH);
    for round in 0..2 {
        let at = client.at(&format!("/stored-{round}"));
        let mut copy = site.command(&["cp", "in", &at]).spawn().unwrap();
        until("the copy begins", || site.bytes("in") > 4 << 20);
        site.0.kill_and_serve();
        let copied = copy.wait().unwrap();
        let mut told = String::new();
        copy.stderr.take().unwrap().read_to_string(&mut told).unwrap();
        assert!(copied.success(), "round {round}: {told}");
        let before = site.bytes("out");
        let _ = fs::remove_file(site.0.site.path("out"));
        site.ok(&["cp", &at, "out"]);
        assert!(fs::read(site.0.site.path("out")).unwrap() == content, "round {round}");
        site.until_moved("out", before + FAST_MIN);
        client.ok(&["rm", &at]);
        site.until_nothing_is_left();
    }
}

#[test]
fn a_mount_of_another_host_reads_and_writes_over_libfabric() {
    if !may_mount() {
        return;
    }
    let site = FabricSite::start();
    let client: ClientHost = site.0.client();
    let content = site.0.random_file("in", LENGTH);
    let mounted = client.mount("mnt", &["--cache-ms", "0", "--fabric", PROVIDER]);
    fs::write(mounted.path("stored"), &content).unwrap();
    assert!(fs::read(mounted.path("stored")).unwrap() == content);
    site.until_moved("in", FAST_MIN);
    site.until_moved("out", FAST_MIN);
    mounted.unmount();
    site.until_nothing_is_left();
}

fn read_all(file: &BlockingFile) -> Vec<u8> {
    let mut all = vec![0; CLUSTER_LENGTH as usize];
    assert_eq!(file.read_at(0, &mut all).unwrap(), all.len());
    all
}

#[test]
fn a_client_has_a_way_over_libfabric_to_each_process_of_a_cluster_and_to_one_that_comes_back() {
    let mut cluster = Cluster::started(Shape { fabric: &[PROVIDER], ..Shape::default() });
    let address = VolumeAddress::parse(OsStr::new(&cluster.client_address())).unwrap();
    let mut options = ConnectOptions::of_this_process().unwrap();
    options.token = Some(cluster.path(TOKEN));
    options.fabric = PROVIDER.parse().unwrap();
    let volume = client::volume::connect(&address, &options).unwrap();
    let content = Content { seed: 5, length: CLUSTER_LENGTH }.bytes();
    let use_it = |name: &str| {
        let new = OpenOptions::new().read(true).write(true).create(true).truncate(true);
        let file = volume.open(name, new).unwrap();
        file.write_at(0, content.clone()).unwrap();
        // A list in the midst of it.
        let list = Regions::strided(1000, 100_000, 20, 300_000).unwrap();
        let mut part = vec![0; 20 * 100_000];
        file.read_list(&list, &mut part).unwrap();
        part.reverse();
        file.write_list(&list, part.clone()).unwrap();
        file.sync().unwrap();
        let mut read = vec![0; part.len()];
        file.read_list(&list, &mut read).unwrap();
        assert!(read == part, "{name}");
        part.reverse();
        file.write_list(&list, part).unwrap();
        assert!(read_all(&file) == content, "{name}");
    };
    let until_all_have_it = |cluster: &Cluster| {
        let clients = |number| cluster.count(number, "mdfs_fabric_clients{");
        let begin = Instant::now();
        while cluster.numbers().any(|number| clients(number) == 0) {
            assert!(begin.elapsed() < 3 * SOON);
            use_it("tried");
        }
    };
    until_all_have_it(&cluster);
    use_it("first");
    cluster.kill(2);
    // Its disks are away with it: who needs them waits.
    thread::scope(|scope| {
        let using = scope.spawn(|| use_it("while one is away"));
        thread::sleep(AWAY);
        cluster.start_member(2);
        cluster.wait_until_ready(2);
        using.join().unwrap();
    });
    until_all_have_it(&cluster);
    use_it("last");
    let first = volume.open("first", OpenOptions::new().read(true)).unwrap();
    assert!(read_all(&first) == content);
    drop((first, volume));
    cluster.stop();
    let told = cluster.check();
    assert!(told.contains("sound"), "{told}");
}
