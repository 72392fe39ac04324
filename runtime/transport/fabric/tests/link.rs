//! The wrapper over real libfabric: two endpoints of one process, each kind of operation, on every
//! provider that this machine has.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::time::{Duration, Instant};

use fabric::FabricError;
use fabric::link::{
    Arena, BufferSegment, Completion, EndpointOptions, Exposure, Fabric, FabricBuffer,
    OperationKind, PeerAddress, Provider, RegionOwner,
};

const LIMIT: Duration = Duration::from_secs(20);
const OWNER: RegionOwner = RegionOwner(1);

/// Two endpoints that know each other.
struct Two {
    ours: Fabric,
    theirs: Fabric,
    to_them: PeerAddress,
    to_us: PeerAddress,
    arena: Arena,
    done_by_us: Vec<Completion>,
    done_by_them: Vec<Completion>,
}

impl Two {
    fn new(provider: Provider) -> Self {
        let mut ours = Fabric::open(&EndpointOptions::new(provider)).unwrap();
        let mut theirs = Fabric::open(&EndpointOptions::new(provider)).unwrap();
        let to_them = ours.insert(&theirs.address().unwrap()).unwrap();
        let to_us = theirs.insert(&ours.address().unwrap()).unwrap();
        let (done_by_us, done_by_them) = (Vec::new(), Vec::new());
        Self {
            ours,
            theirs,
            to_them,
            to_us,
            arena: Arena::new(256 << 20),
            done_by_us,
            done_by_them,
        }
    }

    fn buffer(&self, content: &[u8]) -> FabricBuffer {
        let mut buffer = self.arena.take(content.len()).unwrap();
        buffer.bytes_mut().copy_from_slice(content);
        buffer
    }

    #[allow(clippy::disallowed_methods, reason = "a test bounds its own time")]
    fn until(&mut self, mut done: impl FnMut(&mut Self) -> bool) {
        let start = Instant::now();
        while !done(self) {
            self.ours.poll(&mut self.done_by_us).unwrap();
            self.theirs.poll(&mut self.done_by_them).unwrap();
            assert!(start.elapsed() < LIMIT, "nothing came in time");
        }
    }

    /// The next completion of ours.
    fn ours(&mut self) -> Completion {
        self.until(|two| !two.done_by_us.is_empty());
        self.done_by_us.remove(0)
    }

    fn theirs(&mut self) -> Completion {
        self.until(|two| !two.done_by_them.is_empty());
        self.done_by_them.remove(0)
    }

    /// Does an operation once the provider takes it: connections are made on first use.
    fn retry(&mut self, mut work: impl FnMut(&mut Self) -> Result<(), FabricError>) {
        self.until(|two| match work(two) {
            Ok(()) => true,
            Err(FabricError::Busy { .. }) => false,
            Err(error) => panic!("{error}"),
        });
    }

    /// One message there, so that both sides are connected.
    fn greet(&mut self) {
        self.theirs.receive(self.arena.take(4096).unwrap(), 0).unwrap();
        self.retry(|two| two.ours.inject(two.to_them, b"hello"));
        assert_eq!(self.theirs().buffer.unwrap().bytes()[..5], *b"hello");
    }
}

fn on_each(test: impl Fn(Provider)) {
    for provider in Provider::TESTED {
        println!("on {}", provider.name());
        test(provider);
    }
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 7 + i / 256) as u8).collect()
}

#[test]
fn messages_of_all_sizes_arrive_whole_and_in_order() {
    on_each(|provider| {
        let mut two = Two::new(provider);
        let lengths = [1, 64, 4096, 65536];
        for cookie in 0..lengths.len() as u64 {
            two.theirs.receive(two.arena.take(65536).unwrap(), cookie).unwrap();
        }
        for (cookie, length) in (10..).zip(lengths) {
            let mut waiting = Some(two.buffer(&pattern(length)));
            two.retry(|two| {
                let buffer = waiting.take().unwrap();
                two.ours.send(two.to_them, buffer, cookie).map_err(|(error, buffer)| {
                    waiting = Some(buffer);
                    error
                })
            });
        }
        for (cookie, length) in (0..).zip(lengths) {
            let got = two.theirs();
            assert_eq!((got.what, got.cookie), (OperationKind::Receive, cookie));
            assert_eq!(got.result, Ok(length));
            assert_eq!(got.buffer.unwrap().bytes()[..length], pattern(length));
        }
        for _ in lengths {
            assert!(two.ours().buffer.is_some(), "a sent buffer comes back");
        }
        assert_eq!(two.ours.open_operations(), 0);
    });
}

/// A buffer that the other side may read or write.
fn exposed(two: &mut Two, length: usize, writable: bool) -> (FabricBuffer, Exposure) {
    let mut buffer = two.buffer(&pattern(length));
    let exposure = if writable {
        two.theirs.expose_to_write(OWNER, &mut buffer)
    } else {
        two.theirs.expose_to_read(OWNER, &buffer)
    };
    (buffer, exposure.unwrap())
}

#[test]
fn remote_memory_is_read_and_written() {
    on_each(|provider| {
        let mut two = Two::new(provider);
        two.greet();
        let length = 1 << 20;
        let (_source, readable) = exposed(&mut two, length, false);
        let mut into = two.arena.take(length).unwrap();
        two.ours.read(two.to_them, &[readable.remote], &mut into, 0, 5).unwrap();
        let got = two.ours();
        assert_eq!((got.what, got.cookie, got.result.is_ok()), (OperationKind::Read, 5, true));
        assert_eq!(into.bytes(), pattern(length));

        let (target, writable) = exposed(&mut two, length, true);
        let source = two.buffer(&vec![9; length]);
        let piece = BufferSegment { buffer: &source, at: 0, length };
        two.ours.write(two.to_them, &[piece], writable.remote, Some(77), 6).unwrap();
        let told = two.theirs();
        assert_eq!(told.what, OperationKind::Immediate(77));
        assert!(two.ours().result.is_ok());
        two.theirs.conceal(writable);
        assert!(target.bytes().iter().all(|byte| *byte == 9), "the number comes after the data");
    });
}

#[test]
fn many_pieces_complete_as_one() {
    on_each(|provider| {
        let mut two = Two::new(provider);
        two.greet();
        let (count, length) = (128, 700);
        let pieces: Vec<_> = (0..count).map(|_| exposed(&mut two, length, false)).collect();
        let remote: Vec<_> = pieces.iter().map(|(_, exposure)| exposure.remote).collect();
        let mut into = two.arena.take(count * length).unwrap();
        two.ours.read(two.to_them, &remote, &mut into, 0, 1).unwrap();
        assert!(two.ours().result.is_ok());
        assert_eq!(into.bytes(), pattern(length).repeat(count));
        assert_eq!(two.theirs.registrations().0, 1, "one region for one mapping");

        let (target, writable) = exposed(&mut two, count * length, true);
        let sources: Vec<_> = (0..count).map(|i| two.buffer(&[i as u8; 700])).collect();
        let local: Vec<_> =
            sources.iter().map(|buffer| BufferSegment { buffer, at: 0, length }).collect();
        two.ours.write(two.to_them, &local, writable.remote, Some(2), 3).unwrap();
        assert!(two.ours().result.is_ok());
        assert_eq!(two.theirs().what, OperationKind::Immediate(2));
        two.theirs.conceal(writable);
        let wanted: Vec<u8> = (0..count).flat_map(|i| [i as u8; 700]).collect();
        assert_eq!(target.bytes(), wanted);
        assert_eq!((two.ours.open_operations(), two.theirs.open_operations()), (0, 0));
    });
}

#[test]
fn a_write_into_a_closed_region_changes_nothing() {
    on_each(|provider| {
        let mut two = Two::new(provider);
        two.greet();
        let (target, writable) = exposed(&mut two, 8192, true);
        let remote = writable.remote;
        assert_eq!(two.theirs.close_regions(OWNER), 1);
        // The peer did not say that it is done: the pages are gone for good.
        drop(writable);
        drop(target);
        let used = two.arena.used();
        let source = two.buffer(&[1; 8192]);
        let piece = BufferSegment { buffer: &source, at: 0, length: 8192 };
        two.ours.write(two.to_them, &[piece], remote, None, 6).unwrap();
        let got = two.ours();
        // On TCP the error may come with the connection; shared memory tells it at once.
        println!("a late write: {:?}", got.result);
        if provider == Provider::Shm {
            assert!(got.result.is_err());
        }
        drop(source);
        assert_eq!(two.arena.used(), used);
    });
}

#[test]
fn peers_come_and_go() {
    on_each(|provider| {
        let mut two = Two::new(provider);
        for _ in 0..5 {
            two.greet();
            two.ours.remove(two.to_them).unwrap();
            two.theirs.remove(two.to_us).unwrap();
            two.theirs = Fabric::open(&EndpointOptions::new(provider)).unwrap();
            two.to_them = two.ours.insert(&two.theirs.address().unwrap()).unwrap();
            two.to_us = two.theirs.insert(&two.ours.address().unwrap()).unwrap();
        }
        two.greet();
    });
}

#[test]
fn an_endpoint_that_closes_gives_all_buffers_back() {
    on_each(|provider| {
        let mut two = Two::new(provider);
        two.greet();
        for cookie in 0..8 {
            two.theirs.receive(two.arena.take(4096).unwrap(), cookie).unwrap();
        }
        assert_eq!(two.theirs.open_operations(), 8);
        let Two { ours, theirs, arena, done_by_us, done_by_them, .. } = two;
        drop((ours, theirs, done_by_us, done_by_them));
        assert_eq!(arena.used(), 0);
    });
}

#[test]
fn the_limits_are_those_of_the_provider() {
    on_each(|provider| {
        let two = Two::new(provider);
        let limits = two.ours.limits();
        println!("{limits:?}");
        assert!(limits.inject > 0 && limits.pieces > 0 && limits.remote_pieces > 0);
        assert!(limits.message >= 1 << 20);
        assert_eq!(limits.can_wait, provider != Provider::Shm);
        let error = two_long(two);
        assert!(matches!(error, FabricError::TooLong { .. }), "{error}");
    });
    let missing = Fabric::open(&EndpointOptions::new(Provider::Cxi)).unwrap_err();
    assert!(missing.to_string().contains("cxi"), "{missing}");
}

fn two_long(mut two: Two) -> FabricError {
    let bytes = vec![0; two.ours.limits().inject + 1];
    two.ours.inject(two.to_them, &bytes).unwrap_err()
}
