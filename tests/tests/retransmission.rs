//! Calls that must be done once, sent again and again: replies are dropped, and the server is
//! killed in between. A client knows its calls by their numbers, and comes back from its port or
//! from another one.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests of whole processes use the host, and panic where they fail"
)]

use std::thread;
use std::time::Duration;

use runtime::seed::{Rng, with_seed};
use tests::raw_nfs::{Args, NFS, RawNfs, procedure, status};
use tests::{Served, Site, long};

/// Calls that are sent more than once.
const RETRANSMISSIONS: u32 = 200;
const RETRANSMISSIONS_LONG: u32 = 10_000;
/// The server is killed at one call in this number.
const SENT_PER_KILL: u64 = 50;
/// A reply is dropped as often as not.
const DROPPED: (u64, u64) = (1, 2);

/// The client and its server.
struct Pair<'a> {
    site: &'a Site,
    served: Option<Served>,
    nfs: RawNfs,
    /// Of the client.
    port: u16,
    retransmitted: u32,
    kills: u32,
}

impl<'a> Pair<'a> {
    fn new(site: &'a Site) -> Self {
        let served = site.serve();
        let nfs = RawNfs::connect(&served);
        let port = nfs.port();
        Self { site, served: Some(served), nfs, port, retransmitted: 0, kills: 0 }
    }

    fn served(&self) -> &Served {
        self.served.as_ref().unwrap()
    }

    /// Comes back on another connection, from its port, or from whatever port the host gives it.
    fn reconnect(&mut self, rng: &mut Rng) {
        self.nfs.hang_up();
        let port = if rng.chance(1, 2) { self.port } else { 0 };
        self.nfs = self.nfs.again(self.served(), port);
        self.retransmitted += 1;
    }

    fn kill(&mut self) {
        let served = self.served.take().unwrap();
        let port = served.port();
        served.kill();
        self.served = Some(self.site.serve_at(port));
        self.kills += 1;
    }

    /// The status of a call, which is sent as it is until there is an answer.
    fn call(&mut self, procedure: u32, args: &Args, rng: &mut Rng) -> u32 {
        let record = self.nfs.record(NFS, procedure, args);
        loop {
            // The server may have gone since.
            let sent = self.nfs.send(&record).is_ok();
            let moment = Duration::from_micros(rng.below(4000));
            if rng.chance(1, SENT_PER_KILL) {
                thread::sleep(moment);
                self.kill();
            } else if sent && rng.chance(DROPPED.0, DROPPED.1) {
                thread::sleep(moment);
            } else if let Some(told) = self.nfs.receive().filter(|_| sent) {
                match u32::from_be_bytes(told[24..28].try_into().unwrap()) {
                    status::JUKEBOX => thread::sleep(Duration::from_millis(20)),
                    told => return told,
                }
            }
            self.reconnect(rng);
        }
    }
}

#[test]
fn what_is_done_once_is_answered_rightly_though_replies_are_dropped_and_the_server_is_killed() {
    with_seed(|rng| {
        let site = Site::formatted(1024, 16);
        let mut pair = Pair::new(&site);
        let root = pair.nfs.root();
        let wanted = if long() { RETRANSMISSIONS_LONG } else { RETRANSMISSIONS };
        let named = |name: &str| Args::default().opaque(&root).opaque(name.as_bytes());
        let mut rounds = 0;
        while pair.retransmitted < wanted {
            let (made, moved) = (format!("made{rounds}"), format!("moved{rounds}"));
            let rename = Args([named(&made).0, named(&moved).0].concat());
            // Each of them fails if it is done twice.
            for (procedure, args) in [
                (procedure::CREATE, named(&made).word(1).mode(0o644)),
                (procedure::RENAME, rename),
                (procedure::MKDIR, named(&made).mode(0o755)),
                (procedure::REMOVE, named(&moved)),
            ] {
                let told = pair.call(procedure, &args, rng);
                assert_eq!(told, status::OK, "procedure {procedure} in round {rounds}");
            }
            rounds += 1;
        }
        let Pair { mut nfs, served, retransmitted, kills, .. } = pair;
        let found = nfs.names(&root, 8192);
        let left = found.iter().filter(|name| name.starts_with(b"made")).count();
        assert_eq!(left, rounds, "a directory for each round");
        assert!(!found.iter().any(|name| name.starts_with(b"moved")));
        eprintln!("{retransmitted} retransmissions, {kills} kills, {rounds} rounds");
        served.unwrap().stop();
    });
}
