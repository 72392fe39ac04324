//! What no good client sends, to a server that others use meanwhile: it answers or hangs up, goes
//! on serving, takes no memory to speak of, and loses nothing.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests of whole processes use the host, and panic where they fail"
)]

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use runtime::seed::{Rng, with_seed};
use tests::raw_nfs::{RawNfs, procedure, status};
use tests::{Content, Served, Site, libnfs};

const KEPT: Content = Content { seed: 1, length: 300_000 };
/// What bad bytes may cost the server in memory, at most; all their claims together are far more.
const MEMORY_BYTES: u64 = 64 << 20;
/// The largest record that the gateway takes is below this.
const RECORD_BYTES: u32 = 2 << 20;
const LAST: u32 = 1 << 31;

/// A served volume with something in it.
fn site() -> (Site, Served) {
    let site = Site::formatted(128, 8);
    KEPT.write(&site.path("kept"));
    let served = site.serve();
    site.ok(&["put", "kept", "VOL:/kept"]);
    (site, served)
}

/// The server still serves, over NFS and its socket, and what was stored is there; also after a
/// restart.
fn check_kept(site: &Site, served: Served) {
    KEPT.compare(&libnfs::cat(&served, "/kept")[..]);
    site.ok(&["get", "VOL:/kept", "kept.again"]);
    KEPT.compare_file(&site.path("kept.again"));
    served.stop();
    site.ok(&["get", "VOL:/kept", "kept.again"]);
    KEPT.compare_file(&site.path("kept.again"));
}

fn random_bytes(rng: &mut Rng, length_max: usize) -> Vec<u8> {
    let mut bytes = vec![0; 1 + rng.index(length_max)];
    rng.fill(&mut bytes);
    bytes
}

#[test]
fn garbage_is_hung_up_on_or_answered() {
    with_seed(|rng| {
        let (site, served) = site();
        let memory = served.memory_bytes();
        for round in 0..60 {
            let mut nfs = RawNfs::connect(&served);
            let mut bytes = random_bytes(rng, 4000);
            if round % 2 == 0 {
                // A record of garbage, not a mark of garbage.
                let mark = bytes.len() as u32 | LAST;
                bytes.splice(0..0, mark.to_be_bytes());
            }
            // The gateway may hang up before all is sent.
            let _ = nfs.send(&bytes);
            nfs.end();
            while nfs.receive().is_some() {}
        }
        assert!(served.memory_bytes() < memory + MEMORY_BYTES);
        check_kept(&site, served);
    });
}

#[test]
fn a_record_that_claims_too_much_is_hung_up_on() {
    let (site, served) = site();
    let memory = served.memory_bytes();
    for length in [RECORD_BYTES, 0x3fff_ffff, 0x7fff_ffff] {
        for last in [0, LAST] {
            let mut nfs = RawNfs::connect(&served);
            nfs.send(&(length | last).to_be_bytes()).unwrap();
            assert_eq!(nfs.receive(), None, "a mark of {length:#x} bytes");
        }
    }
    let mut nfs = RawNfs::connect(&served);
    // Many fragments of nothing: no record ever ends.
    let _ = nfs.send(&vec![0; 100_000]);
    assert_eq!(nfs.receive(), None, "fragments without an end");
    assert!(served.memory_bytes() < memory + MEMORY_BYTES);
    check_kept(&site, served);
}

#[test]
fn half_a_record_and_silence_do_no_harm() {
    let (site, served) = site();
    let memory = served.memory_bytes();
    let mut open = Vec::new();
    for length in [1, 3, 4, 5, 20, 43, 60] {
        let mut nfs = RawNfs::connect(&served);
        let root = nfs.root();
        let record = nfs.getattr_record(&root);
        assert!(length < record.len());
        nfs.send(&record[..length]).unwrap();
        open.push(nfs);
    }
    // Claims as much as may be, and brings a little of it.
    for _ in 0..8 {
        let mut nfs = RawNfs::connect(&served);
        nfs.send(&((1 << 20) | LAST).to_be_bytes()).unwrap();
        nfs.send(&[0; 100]).unwrap();
        open.push(nfs);
    }
    let mut other = RawNfs::connect(&served);
    let root = other.root();
    assert_eq!(other.getattr(&root), status::OK, "others are served meanwhile");
    assert!(served.memory_bytes() < memory + MEMORY_BYTES);
    for nfs in &mut open {
        nfs.end();
        assert_eq!(nfs.receive(), None, "half a call has no answer");
    }
    check_kept(&site, served);
}

#[test]
fn a_wrong_handle_is_told_from_a_stale_one() {
    let (site, served) = site();
    let mut nfs = RawNfs::connect(&served);
    let root = nfs.root();
    let kept = nfs.lookup(&root, b"kept").unwrap();
    for length in [0, 1, kept.len() - 1, kept.len() + 1, 64] {
        let mut wrong = kept.clone();
        wrong.resize(length, 0);
        assert_eq!(nfs.getattr(&wrong), status::BADHANDLE, "a handle of {length} bytes");
    }
    for place in 0..kept.len() {
        let mut wrong = kept.clone();
        wrong[place] ^= 0x10;
        // A handle of another volume, or sealed by a deleted key, is stale.
        let refused = [status::BADHANDLE, status::STALE];
        assert!(refused.contains(&nfs.getattr(&wrong)), "byte {place} is another one");
        assert!(refused.contains(&nfs.write(&wrong, 0, b"lost?")), "byte {place} is another one");
    }

    site.format("OTHER", 128, 8);
    let other_server = Served::start(&site, "OTHER");
    let mut other = RawNfs::connect(&other_server);
    let other_root = other.root();
    let foreign = other.create(&other_root, b"file").unwrap();
    other_server.stop();
    assert_eq!(nfs.getattr(&foreign), status::STALE, "a handle of another volume");
    assert_eq!(nfs.write(&foreign, 0, b"lost?"), status::STALE);

    let gone = nfs.create(&root, b"gone").unwrap();
    assert_eq!(nfs.remove(&root, b"gone"), status::OK);
    for _ in 0..100 {
        // Its number may be given again, but not its handle.
        nfs.create(&root, b"gone").unwrap();
        assert_eq!(nfs.getattr(&gone), status::STALE, "the file of the handle has vanished");
        assert_eq!(nfs.write(&gone, 0, b"lost?"), status::STALE);
        assert_eq!(nfs.remove(&root, b"gone"), status::OK);
    }
    drop(nfs);
    check_kept(&site, served);
}

#[test]
fn a_name_that_cannot_be_is_refused_by_every_procedure() {
    let (site, served) = site();
    let mut nfs = RawNfs::connect(&served);
    let root = nfs.root();
    let longest = [b'n'; 255];
    nfs.create(&root, &longest).unwrap();
    assert!(nfs.lookup(&root, &longest).is_ok(), "255 bytes are a name");
    assert_eq!(nfs.rename(&root, &longest, &[b'm'; 255]), status::OK);
    assert_eq!(nfs.remove(&root, &[b'm'; 255]), status::OK);

    let bad: [(&[u8], u32); 6] = [
        (b"", status::ACCES),
        (b"a/b", status::ACCES),
        (b"/", status::ACCES),
        (b"a\0b", status::ACCES),
        (&[b'n'; 256], status::NAMETOOLONG),
        (&[b'n'; 5000], status::NAMETOOLONG),
    ];
    for (name, expected) in bad {
        assert_eq!(nfs.lookup(&root, name), Err(expected), "{name:?}");
        assert_eq!(nfs.create(&root, name), Err(expected), "{name:?}");
        assert_eq!(nfs.mkdir(&root, name), Err(expected), "{name:?}");
        assert_eq!(nfs.remove(&root, name), expected, "{name:?}");
        assert_eq!(nfs.rename(&root, b"kept", name), expected, "{name:?}");
        assert_eq!(nfs.rename(&root, name, b"kept"), expected, "{name:?}");
    }
    assert_eq!(nfs.create(&root, b"kept"), Err(status::EXIST));
    assert_eq!(nfs.lookup(&root, b"missing"), Err(status::NOENT));
    assert_eq!(nfs.names(&root, 4096).len(), 3, "., .. and what was kept");
    drop(nfs);
    check_kept(&site, served);
}

#[test]
fn any_arguments_of_any_procedure_are_answered() {
    with_seed(|rng| {
        let (site, served) = site();
        let mut nfs = RawNfs::connect(&served);
        let root = nfs.root();
        // Past the last one too. No random handle is a good one: nothing can be changed by luck.
        for number in 0..=30 {
            for _ in 0..5 {
                let args = tests::raw_nfs::Args(random_bytes(rng, 300));
                let record = nfs.record((100_003, 3), number, &args);
                nfs.send(&record).unwrap();
                assert!(nfs.receive().is_some(), "procedure {number} is answered");
            }
        }
        assert_eq!(
            nfs.nfs(procedure::GETATTR, &tests::raw_nfs::Args::default().opaque(&root)).0,
            0
        );
        drop(nfs);
        check_kept(&site, served);
    });
}

/// A connection to the volume's socket, greeted.
fn socket(site: &Site, rng: &mut Rng) -> UnixStream {
    let mut stream = UnixStream::connect(site.path("VOL/mdfs.sock")).unwrap();
    stream.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
    let (volume, program, token) = (String::new(), String::new(), Vec::new());
    let hello =
        transport::ClientHello { volume, session: rng.bits().into(), link: 1, token, program };
    stream.write_all(&hello.frame().concat()).unwrap();
    let mut greeting = [0; transport::FRAME_HEADER_SIZE];
    stream.read_exact(&mut greeting).unwrap();
    assert!(greeting.starts_with(b"MDFS"));
    stream
}

#[test]
fn garbage_at_the_socket_ends_its_connection_and_no_other() {
    with_seed(|rng| {
        let (site, served) = site();
        let memory = served.memory_bytes();
        let volume = site.open();
        for round in 0..60 {
            let mut stream = socket(&site, rng);
            let mut bytes = random_bytes(rng, 4000);
            match round % 3 {
                0 => {}
                // A frame's first words, then garbage.
                1 => drop(bytes.splice(0..0, *b"MDFS\x02\x00\x02\x04")),
                // A header that promises as much as a header can.
                _ => {
                    bytes = vec![0xff; transport::FRAME_HEADER_SIZE];
                    bytes[..8].copy_from_slice(b"MDFS\x02\x00\x02\x04");
                }
            }
            // The server may hang up before all is sent.
            let _ = stream.write_all(&bytes);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let mut rest = Vec::new();
            // Reset or ended, both are an end; silence is none.
            if let Err(error) = stream.read_to_end(&mut rest) {
                assert_ne!(error.kind(), std::io::ErrorKind::WouldBlock, "it does not hang up");
            }
        }
        assert!(served.memory_bytes() < memory + MEMORY_BYTES);
        assert_eq!(volume.metadata("/kept").unwrap().size, KEPT.length, "others go on");
        check_kept(&site, served);
    });
}
