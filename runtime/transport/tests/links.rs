//! Connections between processes under TLS: who has no proof is refused, and what is changed on its
//! way is never taken for true.
#![cfg(feature = "tls")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(clippy::disallowed_methods, reason = "the test stands outside of the machines")]

mod member;
#[path = "../../tests/support/mod.rs"]
mod support;

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use futures::executor::block_on;
use futures::future::join_all;
use member::{Member, VOLUME, three_with};
use runtime::seed::{Rng, with_seed};
use runtime::{NodeId, Undelivered};
use support::echo;
use transport::ProcessAddress;
use transport::tls::{Authority, Identity, KeyError, Keys};
use transport::{Guard, Refusal, Security};

const YEAR: Duration = Duration::from_hours(24 * 365);

fn now() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap()
}

/// An authority with its certificate.
struct Vouching(Authority, Identity);

impl Vouching {
    fn new() -> Self {
        let (authority, identity) = Authority::make(now()).unwrap();
        Self(authority, identity)
    }

    fn keys(&self, number: u32, identity: &Identity) -> Result<Keys, KeyError> {
        Keys::new(number, self.1.certificate.as_bytes(), identity)
    }

    fn guard(&self, number: u32) -> Arc<Guard> {
        let identity = self.0.certify(number, now(), YEAR).unwrap();
        guarded(self.keys(number, &identity).unwrap())
    }

    fn three(&self) -> [Member; 3] {
        three_with(|number| self.guard(number))
    }
}

fn guarded(keys: Keys) -> Arc<Guard> {
    Arc::new(Guard::new(Security::Tls(Box::new(keys))))
}

/// `member` is not answered by the process of `node`; the refusals of this kind at `at` have grown.
fn is_refused(member: &Member, node: u32, at: &Guard, why: Refusal) {
    let before = at.refused(why);
    assert_eq!(member.say(node, 0), Err(Undelivered::Unreachable));
    let begin = Instant::now();
    while at.refused(why) == before {
        assert!(begin.elapsed() < Duration::from_secs(5), "no refusal is counted: {at:?}");
        let _ = member.say(node, 0);
    }
}

#[test]
fn only_processes_of_one_authority_are_answered() {
    let ours = Vouching::new();
    let [first, second, third] = ours.three();
    for node in 0..9 {
        assert_eq!(first.say(node, 13), Ok((node + 13) % 9));
    }
    assert!(second.guard.let_in() > 0);
    assert_eq!(Refusal::ALL.map(|why| second.guard.refused(why)), [0; 6]);

    // Another authority, which trusts none and is trusted by none.
    let other = Member::start(0, 7, VOLUME, Vouching::new().guard(0));
    other.meet(1, &[&other.process, &second.process, &third.process]);
    is_refused(&other, 1, &other.guard, Refusal::Unauthenticated);
    // Nor do those who believe in it let it in.
    let plain = Member::start(0, 8, VOLUME, Arc::default());
    plain.meet(1, &[&plain.process, &second.process, &third.process]);
    is_refused(&plain, 1, &second.guard, Refusal::Unauthenticated);
    // The other way round: where there is no TLS nothing is asked.
    let bare = Member::start(1, 1, VOLUME, Arc::default());
    first.meet(2, &[&first.process, &bare.process, &third.process]);
    is_refused(&first, 1, &first.guard, Refusal::Unauthenticated);
}

#[test]
fn a_process_is_not_taken_for_another_one_of_its_cluster() {
    let ours = Vouching::new();
    let [first, second, third] = ours.three();
    // It has a certificate, but not that of the process whom it says to be.
    let guard = ours.guard(5);
    let liar = Member::start(0, 9, VOLUME, guard);
    liar.meet(1, &[&liar.process, &second.process, &third.process]);
    is_refused(&liar, 1, &second.guard, Refusal::Name);
    // Nor is it asked as the one whose place it takes.
    let false_second = Member::start(1, 1, VOLUME, ours.guard(5));
    first.meet(2, &[&first.process, &false_second.process, &third.process]);
    is_refused(&first, 1, &first.guard, Refusal::Unauthenticated);
    assert_eq!(false_second.guard.let_in(), 0);
}

#[test]
fn keys_that_others_would_refuse_are_refused_at_the_start() {
    let (ours, theirs) = (Vouching::new(), Vouching::new());
    let long_ago = ours.0.certify(1, now().saturating_sub(YEAR), YEAR / 2).unwrap();
    assert!(matches!(ours.keys(1, &long_ago), Err(KeyError::Expired(1))));
    let later = ours.0.certify(1, now() + YEAR, YEAR).unwrap();
    assert!(matches!(ours.keys(1, &later), Err(KeyError::NotYet(1))));
    let good = ours.0.certify(1, now(), YEAR).unwrap();
    assert!(matches!(ours.keys(2, &good), Err(KeyError::OtherName(2))));
    assert!(matches!(theirs.keys(1, &good), Err(KeyError::OtherAuthority(1))));
    let mixed = Identity { key: ours.0.certify(1, now(), YEAR).unwrap().key, ..good.clone() };
    assert!(matches!(ours.keys(1, &mixed), Err(KeyError::Unusable { .. })));
    let garbage = Identity { certificate: "no certificate".into(), ..good.clone() };
    assert!(matches!(ours.keys(1, &garbage), Err(KeyError::Unusable { .. })));

    let keys = ours.keys(1, &good).unwrap();
    assert!(keys.hold_for(YEAR / 2).is_ok());
    assert!(matches!(keys.hold_for(YEAR * 2), Err(KeyError::Expired(1))));
    // The key of the authority is enough to go on.
    let again = Authority::of_key(&ours.1.key).unwrap().certify(1, now(), YEAR).unwrap();
    assert!(ours.keys(1, &again).is_ok());
}

#[test]
fn a_certificate_whose_time_is_over_opens_no_new_connection() {
    let ours = Vouching::new();
    let short = ours.0.certify(0, now(), Duration::from_secs(2)).unwrap();
    let short = guarded(ours.keys(0, &short).unwrap());
    let [first, second, _third] =
        three_with(|number| if number == 0 { short.clone() } else { ours.guard(number) });
    std::thread::sleep(Duration::from_secs(4));
    is_refused(&first, 1, &second.guard, Refusal::Unauthenticated);
    is_refused(&second, 0, &second.guard, Refusal::Unauthenticated);
}

/// What a proxy does with the bytes that it carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    Flip,
    Drop,
    Double,
    Insert,
    Swap,
    Cut,
    Delay,
}

/// Carries bytes to a process and back, and does damage: once in each connection.
struct Proxy {
    address: String,
    fault: Arc<Mutex<Fault>>,
    done: Arc<AtomicU64>,
}

impl Proxy {
    fn new(to: String, seed: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (fault, done) = (Arc::new(Mutex::new(Fault::None)), Arc::new(AtomicU64::new(0)));
        let (fault_too, done_too) = (fault.clone(), done.clone());
        std::thread::spawn(move || {
            let mut rng = Rng::new(seed);
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(&to) else { return };
                let (client_too, server_too) =
                    (client.try_clone().unwrap(), server.try_clone().unwrap());
                for (from, into) in [(client, server), (server_too, client_too)] {
                    let rng = Rng::new(rng.bits());
                    let carrying =
                        Carrying { rng, fault: fault_too.clone(), done: done_too.clone() };
                    std::thread::spawn(move || carrying.carry(from, into));
                }
            }
        });
        Self { address, fault, done }
    }

    fn set(&self, fault: Fault) {
        *self.fault.lock().unwrap() = fault;
        self.done.store(0, Relaxed);
    }
}

struct Carrying {
    rng: Rng,
    fault: Arc<Mutex<Fault>>,
    done: Arc<AtomicU64>,
}

impl Carrying {
    fn carry(mut self, mut from: TcpStream, mut into: TcpStream) {
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            let mut bytes = buffer[..count].to_vec();
            let fault = *self.fault.lock().unwrap();
            if fault != Fault::None && self.rng.chance(1, 60) {
                self.damage(fault, &mut bytes);
                self.done.fetch_add(1, Relaxed);
                if fault == Fault::Cut {
                    let _ = into.write_all(&bytes);
                    break;
                }
            }
            if into.write_all(&bytes).is_err() {
                break;
            }
        }
        // Both directions, as where a cable is pulled.
        let _ = into.shutdown(std::net::Shutdown::Both);
        let _ = from.shutdown(std::net::Shutdown::Both);
    }

    fn damage(&mut self, fault: Fault, bytes: &mut Vec<u8>) {
        let at = self.rng.index(bytes.len());
        let end = at + 1 + self.rng.index(bytes.len() - at);
        match fault {
            Fault::None => {}
            Fault::Flip => bytes[at] ^= 1 << self.rng.index(8),
            Fault::Drop => drop(bytes.drain(at..end)),
            Fault::Double => {
                let again = bytes[at..end].to_vec();
                bytes.splice(at..at, again);
            }
            Fault::Insert => bytes.insert(at, self.rng.bits() as u8),
            Fault::Swap => bytes.rotate_left(at),
            Fault::Cut => bytes.truncate(at),
            Fault::Delay => {
                std::thread::sleep(Duration::from_millis(self.rng.below(300)));
            }
        }
    }
}

/// Many texts to a node and back: each is answered by itself, or not answered.
fn exchange(member: &Member, to: u32, rng: &mut Rng) -> [usize; 2] {
    let client_handle = member.machine.client_handle();
    let texts: Vec<Bytes> = (0..20)
        .map(|_| {
            let (byte, length) = (rng.bits() as u8, rng.index(20_000));
            (0..length).map(|at| byte.wrapping_add(at as u8)).collect()
        })
        .collect();
    let calls = texts
        .iter()
        .map(|text| client_handle.spawn(NodeId::fs(to), echo::Say { text: text.clone(), hops: 0 }));
    let mut counts = [0, 0];
    for (text, answer) in texts.iter().zip(block_on(join_all(calls))) {
        match answer {
            Ok((answered, node)) => {
                assert!(answered == text && node == to, "a wrong answer");
                counts[0] += 1;
            }
            Err(Undelivered::Lost | Undelivered::Unreachable) => counts[1] += 1,
            Err(other) => panic!("not an honest answer: {other:?}"),
        }
    }
    counts
}

const FAULTS: [Fault; 7] =
    [Fault::Flip, Fault::Drop, Fault::Double, Fault::Insert, Fault::Swap, Fault::Cut, Fault::Delay];

#[test]
fn what_is_changed_on_its_way_is_never_taken_for_true() {
    let ours = Vouching::new();
    let [first, second, third] = ours.three();
    with_seed(|rng| {
        let proxy = Proxy::new(second.process.address.clone(), rng.bits());
        let behind = ProcessAddress {
            address: proxy.address.clone(),
            ..ProcessAddress::clone(&second.process)
        };
        first.meet(1, &[&first.process, &Arc::new(behind), &third.process]);
        let mut answered = 0;
        for fault in FAULTS {
            let refused = || -> u64 {
                let guards = [&first.guard, &second.guard];
                let kinds = [Refusal::Broken, Refusal::Unauthenticated];
                guards.iter().flat_map(|guard| kinds.map(|why| guard.refused(why))).sum()
            };
            let before = refused();
            proxy.set(fault);
            let mut counts = [0, 0];
            for _ in 0..20 {
                let [good, bad] = exchange(&first, 1, rng);
                counts = [counts[0] + good, counts[1] + bad];
            }
            let (done, refused) = (proxy.done.load(Relaxed), refused() - before);
            eprintln!("{fault:?} {done} times: {counts:?} answered and not, {refused} refused");
            assert!(done > 0, "{fault:?} did not happen");
            match fault {
                Fault::Delay => assert_eq!(refused, 0, "late is not wrong"),
                Fault::Cut => assert!(counts[1] > 0, "a cut is noticed"),
                _ => assert!(refused > 0 && counts[1] > 0, "{fault:?} is noticed and counted"),
            }
            answered += counts[0];
            proxy.set(Fault::None);
            first.say_until(1, Result::ok);
        }
        assert!(answered > 0, "nothing came through");
    });
}

/// Carries bytes both ways, and keeps those of the one that connects.
fn recording_proxy(to: String) -> (String, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let record = Arc::new(Mutex::new(Vec::new()));
    let kept = record.clone();
    std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut server = TcpStream::connect(&to).unwrap();
        let (mut client_too, mut server_too) =
            (client.try_clone().unwrap(), server.try_clone().unwrap());
        std::thread::spawn(move || std::io::copy(&mut server_too, &mut client_too));
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = client.read(&mut buffer) {
            kept.lock().unwrap().extend_from_slice(&buffer[..count]);
            if server.write_all(&buffer[..count]).is_err() {
                return;
            }
        }
    });
    (address, record)
}

/// Three processes, and what the first has sent to the second until it had an answer.
fn recorded() -> ([Member; 3], Vec<u8>) {
    let members = Vouching::new().three();
    let [first, second, third] = &members;
    let (address, record) = recording_proxy(second.process.address.clone());
    let behind = ProcessAddress { address, ..ProcessAddress::clone(&second.process) };
    first.meet(1, &[&first.process, &Arc::new(behind), &third.process]);
    assert_eq!(first.say(1, 0), Ok(1));
    let record = record.lock().unwrap().clone();
    (members, record)
}

#[test]
fn a_recorded_connection_played_again_is_refused() {
    let ([_first, second, _third], record) = recorded();
    let (before, let_in) = (second.guard.refused(Refusal::Unauthenticated), second.guard.let_in());

    let mut stranger = TcpStream::connect(&second.process.address).unwrap();
    stranger.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    stranger.write_all(&record).unwrap();
    let mut answer = Vec::new();
    // The end, or a reset if it had not read all.
    let _ = stranger.read_to_end(&mut answer);
    let begin = Instant::now();
    while second.guard.refused(Refusal::Unauthenticated) == before {
        assert!(begin.elapsed() < Duration::from_secs(5), "it is not refused");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(second.guard.let_in(), let_in);
}

#[test]
fn garbage_half_handshakes_and_idle_connections_do_no_harm() {
    let ([first, second, third], handshake) = recorded();
    first.meet(2, &[&first.process, &second.process, &third.process]);
    for member in [&second, &third] {
        member.meet(2, &[&first.process, &second.process, &third.process]);
    }

    let mut huge = b"MDFS\x01\x00\x04\x00\x00\x00\x00\x00".to_vec();
    huge.extend([0xFF; 44]);
    let mut huge_record = vec![22, 3, 3, 0xFF, 0xFF];
    huge_record.resize(70_000, 0);
    let (ones, zeros) = (vec![0xFF; 100_000], vec![0; 100_000]);
    let sent: [&[u8]; 8] = [
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        &ones,
        &zeros,
        &huge,
        &huge_record,
        &handshake[..60],
        &handshake[..handshake.len() / 2],
    ];
    // More than are borne with at a time, held open.
    let held: Vec<TcpStream> = std::iter::repeat_n(&b""[..], 400)
        .chain((0..40).flat_map(|_| sent))
        .map(|bytes| {
            let mut stranger = TcpStream::connect(&second.process.address).unwrap();
            stranger.set_nonblocking(true).unwrap();
            // What does not fit, or is not wanted, is not sent.
            let _ = stranger.write(bytes);
            stranger
        })
        .collect();
    let begin = Instant::now();
    assert_eq!(first.say_until(1, Result::ok), 1);
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    let guard = &second.guard;
    let begin = Instant::now();
    let all = || Refusal::ALL.iter().map(|why| guard.refused(*why)).sum::<u64>();
    while all() < held.len() as u64 {
        assert!(
            begin.elapsed() < Duration::from_secs(10),
            "{} of {}: {guard:?}",
            all(),
            held.len()
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    for why in [Refusal::Unauthenticated, Refusal::TooManyConnections, Refusal::Silent] {
        assert!(guard.refused(why) > 0, "{why:?}: {guard:?}");
    }
    for mut stranger in held {
        stranger.set_nonblocking(false).unwrap();
        stranger.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let mut answer = [0; 4096];
        while let Ok(1..) = stranger.read(&mut answer) {}
    }
    for node in 0..9 {
        assert_eq!(first.say_until(node, Result::ok), node);
    }
}

#[test]
fn a_storm_of_short_connections_does_no_harm() {
    let ours = Vouching::new();
    let [first, second, _third] = ours.three();
    let over = Arc::new(AtomicBool::new(false));
    let (over_too, address) = (over.clone(), second.process.address.clone());
    let storm = std::thread::spawn(move || {
        while !over_too.load(Relaxed) {
            drop(TcpStream::connect(&address));
        }
    });
    for _ in 0..50 {
        first.say_until(1, Result::ok);
    }
    over.store(true, Relaxed);
    storm.join().unwrap();
    assert_eq!(first.say_until(1, Result::ok), 1);
}
