//! Delegations as the NFS client of the Linux kernel has them (ADR 101).

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests of whole processes use the host, and panic where they fail"
)]

use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use client::blocking::Volume;
use client::{ByteRange, LockKind, OpenOptions};
use fileio::protocol::DELEGATION_LEASE;
use tests::guest::{Guest, POINT, may_boot};
use tests::{Served, Site, get, long};

/// Rounds in which the guest reads a file, others change it, and the guest reads it again.
const ROUNDS: u64 = 24;
const ROUNDS_LONG: u64 = 1_000;

/// A client returns what is recalled within this time, or it is revoked.
const RECALL_TIMEOUT: Duration = Duration::from_secs(10);
/// How much longer a writer may wait: until the gateway asks its node, and the writer tries again;
/// and for a busy host.
const RECALL_MARGIN: Duration = Duration::from_secs(5);

/// Opens in a measurement.
const OPENS: u32 = 1_000;

/// What the guest understands: `read FILE` says its content, `often FILE COUNT` reads it COUNT
/// times and says how many different contents there were and the last; `open`, `again` and `close`
/// keep one file open; `lock` locks that for readers.
const READER: &str = r#"
stty -echo
echo ready
while read -r what file count; do
    case $what in
    read)
        content=
        read -r content <"$file" || true
        echo "content: $content"
        ;;
    often)
        content= changes=0 index=0
        while [ $index -lt "$count" ]; do
            before=$content
            read -r content <"$file"
            [ "$content" = "$before" ] || changes=$((changes + 1))
            index=$((index + 1))
        done
        echo "read: $changes $content"
        ;;
    open) exec 8<"$file"; echo opened ;;
    again)
        busybox dd if=/proc/self/fd/8 bs=64 count=1 2>/dev/null | { read -r content || true; echo "again: $content"; }
        ;;
    close) exec 8<&-; echo closed ;;
    lock) flock -s -n 8 && echo "lock: granted" || echo "lock: refused" ;;
    stop) break ;;
    esac
done
cd /
"#;

/// A volume that is served, with its metrics, and a guest that reads there.
struct Stage {
    site: Site,
    served: Served,
    metrics: String,
}

/// Counts of delegations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Totals {
    now: u64,
    granted: u64,
    recalled: u64,
    returned: u64,
    revoked: u64,
}

impl Stage {
    fn new() -> Self {
        let site = Site::formatted(1024, 16);
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let metrics = free.to_string();
        let served = serve(&site, 0, &metrics);
        Self { site, served, metrics }
    }

    fn guest(&self, version: &str, options: &str) -> Guest {
        let job = READER.replace("$POINT", POINT);
        let job = format!("mount_nfs {version} {POINT} {options}\ncd {POINT}\n{job}");
        let mut guest = Guest::start(&self.site, self.served.port(), 3_600, &job);
        guest.hear("ready");
        guest
    }

    /// The number of calls of an operation.
    fn calls(&self, operation: &str) -> u64 {
        self.metric(&format!("mdfs_nfs_requests_total{{operation=\"nfs4.{operation}\"}} "))
    }

    fn totals(&self) -> Totals {
        let of = |name| self.metric(&format!("mdfs_nfs_delegations{name} "));
        Totals {
            now: of(""),
            granted: of("_granted_total"),
            recalled: of("_recalled_total"),
            returned: of("_returned_total"),
            revoked: of("_revoked_total"),
        }
    }

    fn metric(&self, name: &str) -> u64 {
        let (_, text) = get(&self.metrics, "/metrics");
        let value = text.lines().find_map(|line| line.strip_prefix(name));
        value.map_or(0, |value| value.trim().parse().unwrap())
    }

    /// Waits until the counts are as they shall be.
    #[track_caller]
    fn await_totals(&self, what: &str, is_so: impl Fn(&Totals) -> bool) -> Totals {
        let begun = Instant::now();
        loop {
            let totals = self.totals();
            if is_so(&totals) {
                return totals;
            }
            assert!(begun.elapsed() < Duration::from_secs(45), "{what}: {totals:?}");
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Kills the server and starts it again.
    fn restart(self) -> Self {
        let Self { site, served, metrics } = self;
        let port = served.port();
        served.kill();
        let served = serve(&site, port, &metrics);
        Self { site, served, metrics }
    }
}

fn serve(site: &Site, port: u16, metrics: &str) -> Served {
    let nfs = format!("127.0.0.1:{port}");
    Served::with(site, &["serve", "VOL", "--nfs", &nfs, "--metrics", metrics])
}

fn write(volume: &Volume, path: &str, content: &str) {
    volume.create(path).unwrap().write_at(0, format!("{content}\n")).unwrap();
}

/// Reads a file until it is delegated, the only one: not at once, if it was recalled lately, nor
/// before the client has answered a call.
#[track_caller]
fn read_delegated(stage: &Stage, guest: &mut Guest, file: &str, content: &str) {
    for _ in 0..200 {
        guest.say(&format!("read {file}"));
        assert_eq!(guest.hear("content: "), content);
        if stage.totals().now == 1 {
            return;
        }
        thread::sleep(Duration::from_millis(50));
    }
    panic!("{file} is not delegated: {:?}", stage.totals());
}

#[track_caller]
fn read(guest: &mut Guest, file: &str) -> String {
    guest.say(&format!("read {file}"));
    guest.hear("content: ")
}

fn end(mut guest: Guest, stage: Stage) {
    guest.say("stop");
    guest.end().ok();
    stage.await_totals("the guest returns all when it unmounts", |totals| totals.now == 0);
    stage.served.stop();
}

/// What is read again and again is opened once, until another client changes it.
fn opens_once(version: &str, options: &str) {
    if !may_boot() {
        return;
    }
    let stage = Stage::new();
    let volume = stage.site.open();
    write(&volume, "/file", "first");
    let mut guest = stage.guest(version, options);
    read_delegated(&stage, &mut guest, "file", "first");
    let calls = ["open", "close", "read", "getattr", "access", "lookup"];
    let count = |stage: &Stage| calls.map(|name| stage.calls(name));
    let before = count(&stage);
    guest.say("often file 200");
    assert_eq!(guest.hear("read: "), "1 first");
    let after = count(&stage);
    assert_eq!(before[..3], after[..3], "OPEN, CLOSE, READ: {calls:?} {before:?} {after:?}");
    eprintln!(
        "200 times open, read, close over {version}{options}: {calls:?} {before:?} {after:?}"
    );
    let begun = Instant::now();
    volume.open("/file", OpenOptions::new().write(true)).unwrap().write_at(0, "second\n").unwrap();
    eprintln!("a recall takes {:?}", begun.elapsed());
    assert_eq!(read(&mut guest, "file"), "second");
    let totals = stage.totals();
    assert_eq!((totals.recalled, totals.returned, totals.revoked), (1, 1, 0), "{totals:?}");
    drop(volume);
    end(guest, stage);
}

#[test]
fn a_kernel_opens_what_is_delegated_to_it_without_asking_over_version_4_2() {
    opens_once("4.2", "");
}

#[test]
fn a_kernel_opens_what_is_delegated_to_it_without_asking_over_version_4_1_and_4_connections() {
    opens_once("4.1", ",nconnect=4");
}

/// Files are changed in all ways, each while the guest has it delegated.
#[test]
fn a_kernel_reads_no_stale_byte_of_what_was_delegated_to_it() {
    if !may_boot() {
        return;
    }
    let stage = Stage::new();
    let volume = stage.site.open();
    let rounds = if long() { ROUNDS_LONG } else { ROUNDS };
    // One more, to see when callbacks work.
    for round in 0..=rounds {
        write(&volume, &format!("/file{round}"), &format!("old {round}"));
    }
    let mut guest = stage.guest("4.2", "");
    read_delegated(&stage, &mut guest, &format!("file{rounds}"), &format!("old {rounds}"));
    let (mut longest, mut sum) = (Duration::ZERO, Duration::ZERO);
    let before = stage.totals();
    for round in 0..rounds {
        let (name, path) = (format!("file{round}"), format!("/file{round}"));
        for _ in 0..2 {
            assert_eq!(read(&mut guest, &name), format!("old {round}"));
        }
        let content = format!("new {round}");
        let begun = Instant::now();
        match round % 4 {
            0 => {
                let file = volume.open(&path, OpenOptions::new().write(true)).unwrap();
                file.write_at(0, format!("{content}\n")).unwrap();
            }
            1 => {
                let truncated = OpenOptions::new().write(true).truncate(true);
                let file = volume.open(&path, truncated).unwrap();
                file.write_at(0, format!("{content}\n")).unwrap();
            }
            2 => {
                write(&volume, "/other", &content);
                volume.rename("/other", &path).unwrap();
            }
            _ => {
                volume.remove_file(&path).unwrap();
                write(&volume, &path, &content);
            }
        }
        longest = longest.max(begun.elapsed());
        sum += begun.elapsed();
        assert_eq!(read(&mut guest, &name), content, "round {round}");
    }
    let after = stage.totals();
    eprintln!("{rounds} rounds: a change takes {:?}, {longest:?} at most", sum / rounds as u32);
    eprintln!("from {before:?} to {after:?}");
    assert!(after.recalled - before.recalled >= rounds, "{before:?} {after:?}");
    assert_eq!(after.revoked, 0, "{after:?}");
    drop(volume);
    end(guest, stage);
}

/// A client that neither answers nor returns delays a writer for the time of a recall, and reads
/// what was written once it is back. `keep_away` makes it silent, or lets it go on.
fn silent(keep_away: impl Fn(&Guest, bool)) {
    if !may_boot() {
        return;
    }
    let stage = Stage::new();
    let volume = stage.site.open();
    write(&volume, "/file", "first");
    let mut guest = stage.guest("4.2", "");
    read_delegated(&stage, &mut guest, "file", "first");
    let file = volume.open("/file", OpenOptions::new().write(true)).unwrap();
    keep_away(&guest, true);
    let begun = Instant::now();
    file.write_at(0, "second\n").unwrap();
    let took = begun.elapsed();
    eprintln!("a client that is away delays a writer by {took:?}");
    assert!(took < RECALL_TIMEOUT + RECALL_MARGIN, "{took:?}");
    assert!(took > RECALL_TIMEOUT / 2, "the client had its time: {took:?}");
    assert_eq!(stage.totals().revoked, 1);
    // Others are not delayed again.
    let begun = Instant::now();
    file.write_at(0, "third \n").unwrap();
    assert!(begun.elapsed() < RECALL_MARGIN, "{:?}", begun.elapsed());
    keep_away(&guest, false);
    let begun = Instant::now();
    // What it reads before it has received the recall, or has asked anything, is what it kept.
    let mut kept = 0;
    loop {
        let content = read(&mut guest, "file");
        if content.trim() == "third" {
            break;
        }
        assert_eq!(content, "first", "what was never the content since");
        kept += 1;
        assert!(begun.elapsed() < Duration::from_secs(25), "it reads what is gone");
    }
    eprintln!("{kept} times and for {:?} it reads what it kept", begun.elapsed());
    // It goes on as before.
    for _ in 0..5 {
        assert_eq!(read(&mut guest, "file").trim(), "third");
    }
    drop((file, volume));
    end(guest, stage);
}

#[test]
fn a_frozen_kernel_delays_a_writer_for_the_time_of_a_recall_only() {
    silent(Guest::freeze);
}

#[test]
fn a_kernel_without_network_delays_a_writer_for_the_time_of_a_recall_only() {
    silent(Guest::cut);
}

/// A file that is open and locked by virtue of a delegation stays so when that is recalled, and
/// after its last name is gone.
#[test]
fn a_kernel_keeps_its_open_file_and_its_lock_when_a_delegation_is_recalled() {
    if !may_boot() {
        return;
    }
    let stage = Stage::new();
    let volume = stage.site.open();
    write(&volume, "/file", "first");
    let mut guest = stage.guest("4.2", "");
    read_delegated(&stage, &mut guest, "file", "first");
    let calls = (stage.calls("open"), stage.calls("lock"));
    guest.say("open file");
    guest.hear("opened");
    guest.say("lock");
    assert_eq!(guest.hear("lock: "), "granted");
    assert_eq!((stage.calls("open"), stage.calls("lock")), calls, "the kernel does it itself");
    let options = OpenOptions::new().read(true).write(true);
    let file = volume.open("/file", options).unwrap();
    let exclusive = || file.try_lock(ByteRange::ALL, LockKind::Exclusive {}).unwrap();
    assert!(exclusive().is_none(), "the guest has a lock");
    assert!(stage.totals().returned > 0, "{:?}", stage.totals());
    volume.remove_file("/file").unwrap();
    guest.say("again");
    assert_eq!(guest.hear("again: "), "first");
    guest.say("close");
    guest.hear("closed");
    let begun = Instant::now();
    let lock = loop {
        if let Some(lock) = exclusive() {
            break lock;
        }
        assert!(begun.elapsed() < RECALL_MARGIN, "the guest has closed the file");
    };
    assert_eq!(stage.totals().revoked, 0);
    drop((lock, file, volume));
    end(guest, stage);
}

/// While a client has an exclusive lock others get no delegation, by which they could grant
/// themselves shared ones.
#[test]
fn a_kernel_is_refused_a_shared_lock_while_another_client_has_an_exclusive_one() {
    if !may_boot() {
        return;
    }
    let stage = Stage::new();
    let volume = stage.site.open();
    write(&volume, "/file", "first");
    write(&volume, "/other", "first");
    let mut guest = stage.guest("4.2", "");
    read_delegated(&stage, &mut guest, "other", "first");
    let options = OpenOptions::new().read(true).write(true);
    let file = volume.open("/file", options).unwrap();
    let lock = file.try_lock(ByteRange::ALL, LockKind::Exclusive {}).unwrap().unwrap();
    let before = stage.totals();
    for _ in 0..5 {
        assert_eq!(read(&mut guest, "file"), "first");
    }
    assert_eq!(stage.totals(), before, "nothing is delegated");
    guest.say("open file");
    guest.hear("opened");
    guest.say("lock");
    assert_eq!(guest.hear("lock: "), "refused");
    drop((lock, file, volume));
    end(guest, stage);
}

/// After a restart the guest reclaims what it has open, and others' writes reach it.
#[test]
fn a_kernel_reclaims_the_delegation_of_an_open_file_after_a_restart() {
    if !may_boot() {
        return;
    }
    let stage = Stage::new();
    let volume = stage.site.open();
    write(&volume, "/file", "first");
    volume.sync().unwrap();
    drop(volume);
    let mut guest = stage.guest("4.2", "");
    read_delegated(&stage, &mut guest, "file", "first");
    guest.say("open file");
    guest.hear("opened");
    let stage = stage.restart();
    // The guest notices at its next request, or when it renews its lease.
    stage.await_totals("the delegation is reclaimed", |totals| totals.now == 1);
    let volume = stage.site.open();
    let file = volume.open("/file", OpenOptions::new().write(true)).unwrap();
    file.write_at(0, "second\n").unwrap();
    assert_eq!(read(&mut guest, "file"), "second");
    guest.say("again");
    assert_eq!(guest.hear("again: "), "second");
    assert_eq!(stage.totals().revoked, 0);
    guest.say("close");
    guest.hear("closed");
    drop((file, volume));
    end(guest, stage);
}

/// A guest that has nothing open reclaims nothing after a restart, and reads what it kept until it
/// hears of the restart. Nothing is changed before.
#[test]
fn after_a_restart_a_change_waits_until_no_kernel_trusts_what_it_kept() {
    if !may_boot() {
        return;
    }
    let stage = Stage::new();
    let volume = stage.site.open();
    write(&volume, "/file", "first");
    volume.sync().unwrap();
    drop(volume);
    let mut guest = stage.guest("4.2", "");
    read_delegated(&stage, &mut guest, "file", "first");
    let stage = stage.restart();
    let volume = stage.site.open();
    let file = volume.open("/file", OpenOptions::new().write(true)).unwrap();
    let begun = Instant::now();
    thread::scope(|scope| {
        let writing = scope.spawn(|| file.write_at(0, "second\n").unwrap());
        while !writing.is_finished() {
            assert!(["first", "second"].contains(&&*read(&mut guest, "file")));
            thread::sleep(Duration::from_millis(20));
        }
    });
    let waited = begun.elapsed();
    assert_eq!(read(&mut guest, "file"), "second");
    eprintln!("after a restart a change waits for {waited:?}");
    assert!(waited < DELEGATION_LEASE + RECALL_MARGIN, "it waits for {waited:?}");
    let begun = Instant::now();
    write(&volume, "/new", "is new");
    assert!(begun.elapsed() < RECALL_MARGIN, "a new file waits for {:?}", begun.elapsed());
    // It is delegated again, and recalled.
    read_delegated(&stage, &mut guest, "file", "second");
    file.write_at(0, "third \n").unwrap();
    assert_eq!(read(&mut guest, "file").trim(), "third");
    assert_eq!(stage.totals().revoked, 0);
    drop((file, volume));
    end(guest, stage);
}

/// How often a guest opens, reads and closes a file, with a delegation and without.
#[test]
fn a_kernel_opens_more_often_what_is_delegated_to_it() {
    if !may_boot() {
        return;
    }
    let stage = Stage::new();
    let volume = stage.site.open();
    for path in ["/file", "/locked"] {
        write(&volume, path, "first");
    }
    let mut guest = stage.guest("4.2", "");
    read_delegated(&stage, &mut guest, "file", "first");
    // So it is not delegated.
    let locked = volume.open("/locked", OpenOptions::new().read(true).write(true)).unwrap();
    let lock = locked.try_lock(ByteRange::ALL, LockKind::Exclusive {}).unwrap().unwrap();
    let [with, without] = ["file", "locked"].map(|file| {
        let mut rates = [0.0; 3];
        for rate in &mut rates {
            let begun = Instant::now();
            guest.say(&format!("often {file} {OPENS}"));
            assert_eq!(guest.hear("read: "), "1 first");
            *rate = f64::from(OPENS) / begun.elapsed().as_secs_f64();
        }
        eprintln!("open, read, close of {file}: {rates:.0?} per second");
        rates[1]
    });
    assert!(with > without, "{with} {without}");
    drop((lock, locked, volume));
    end(guest, stage);
}
