//! Clients of all kinds on the same files: two mounts, the NFS client of a Linux kernel, to which
//! files are delegated, and a program with the library. What one has written and closed, all others
//! read when they open the file next.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests of whole processes use the host, and panic where they fail"
)]

use std::fs;
use std::path::Path;
use std::time::Instant;

use client::OpenOptions;
use client::blocking::Volume;
use runtime::seed::{Rng, with_seed};
use tests::guest::{Guest, POINT, may_boot};
use tests::mounted::{Mounted, may_mount};
use tests::served::Served;
use tests::{Site, long};

/// Rounds in which a client writes a file, and all others read it.
const ROUNDS: usize = 100;
const ROUNDS_LONG: usize = 10_000;
/// Files. Some of them are delegated when they are written.
const FILES: usize = 64;
/// Characters of a file beside the number of the round, at most.
const LENGTH_MAX: usize = 200;

/// What the guest understands: `read FILE` says its content, `write FILE CONTENT` replaces it.
const JOB: &str = r#"
stty -echo
echo ready
while read -r what file content; do
    case $what in
    read) read -r content <"$file" || true; echo "content: $content" ;;
    write) echo "$content" >"$file"; echo written ;;
    stop) break ;;
    esac
done
cd /
"#;

/// The four clients of a volume.
struct Clients {
    mounts: [Mounted; 2],
    guest: Guest,
    program: Volume,
    served: Served,
}

impl Clients {
    fn start(site: &Site) -> Self {
        let served = Served::with(site, &["serve", "VOL", "--nfs", "127.0.0.1:0"]);
        let mounts = ["one", "two"].map(|point| Mounted::start_at(site, Path::new(point), &[]));
        let job = format!("mount_nfs 4.2 {POINT}\ncd {POINT}\n{JOB}");
        let mut guest = Guest::start(site, served.port(), 3_600, &job);
        guest.hear("ready");
        Self { mounts, guest, program: site.open(), served }
    }

    const COUNT: usize = 4;

    fn write(&mut self, client: usize, name: &str, content: &str) {
        let line = format!("{content}\n");
        match client {
            0 | 1 => fs::write(self.mounts[client].path(name), line).unwrap(),
            2 => {
                self.guest.say(&format!("write {name} {content}"));
                self.guest.hear("written");
            }
            _ => {
                let options = OpenOptions::new().write(true).create(true).truncate(true);
                let file = self.program.open(format!("/{name}"), options).unwrap();
                file.write_at(0, line).unwrap();
            }
        }
    }

    fn read(&mut self, client: usize, name: &str) -> String {
        let read = match client {
            0 | 1 => fs::read(self.mounts[client].path(name)).unwrap(),
            2 => {
                self.guest.say(&format!("read {name}"));
                return self.guest.hear("content: ");
            }
            _ => {
                let file = self.program.open(format!("/{name}"), OpenOptions::new().read(true));
                let file = file.unwrap();
                let mut bytes = vec![0; LENGTH_MAX + 32];
                let length = file.read_at(0, &mut bytes).unwrap();
                bytes[..length].to_vec()
            }
        };
        String::from_utf8(read).unwrap().trim_end().to_owned()
    }

    fn stop(mut self) {
        self.guest.say("stop");
        self.guest.end().ok();
        for mounted in self.mounts {
            mounted.unmount();
        }
        drop(self.program);
        self.served.stop();
    }
}

#[test]
fn clients_of_all_kinds_never_read_a_stale_byte() {
    if !may_boot() || !may_mount() {
        return;
    }
    let site = Site::formatted(1024, 16);
    let mut clients = Clients::start(&site);
    let rounds = if long() { ROUNDS_LONG } else { ROUNDS };
    let begun = Instant::now();
    with_seed(|rng| {
        let mut rng = Rng::new(rng.bits());
        let name = |file: usize| format!("file{file}");
        let mut contents: Vec<String> = (0..FILES).map(|file| format!("first-{file}")).collect();
        for (file, content) in contents.iter().enumerate() {
            clients.write(3, &name(file), content);
        }
        for round in 0..rounds {
            let (file, writer) = (rng.index(FILES), rng.index(Clients::COUNT));
            contents[file] = format!("{round}{}", "-".repeat(rng.index(LENGTH_MAX)));
            clients.write(writer, &name(file), &contents[file]);
            for other in 1..Clients::COUNT {
                let reader = (writer + other) % Clients::COUNT;
                let read = clients.read(reader, &name(file));
                assert_eq!(read, contents[file], "client {reader}, round {round}, of {writer}");
            }
            // Another file, which may be delegated from now on.
            let (file, reader) = (rng.index(FILES), rng.index(Clients::COUNT));
            assert_eq!(clients.read(reader, &name(file)), contents[file], "round {round}");
        }
    });
    eprintln!("{rounds} rounds in {:?}", begun.elapsed());
    clients.stop();
}
