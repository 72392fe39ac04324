//! Two transports of one process, over real libfabric: every mechanism, and every kind of bad
//! frame.

use super::frame::{PacketGreeting, PacketHeader, PacketKind, SUM_IS_HERE, encode_segments};
use super::seal::{SealUse, TAG_SIZE};
use super::types::ControlFrame;
use super::*;
use crate::link::EndpointOptions;
use crate::link::{PeerAddress, Provider};
use crate::policy::{Mechanism, PolicyOverride, SegmentLayout};

const TICKET: [u8; TICKET_SIZE] = [5; TICKET_SIZE];
const LIMIT: Duration = Duration::from_secs(30);

struct Two {
    ours: Transport,
    theirs: Transport,
    to_them: ConnectionId,
    to_us: ConnectionId,
}

fn setup(provider: Provider) -> TransportOptions {
    // Long enough that no beat comes between what a test forges.
    TransportOptions {
        silence: 4 * LIMIT,
        ..TransportOptions::new(EndpointOptions::new(provider), Policy::default())
    }
}

const KEY: [u8; KEY_SIZE] = [3; KEY_SIZE];

impl Two {
    fn new(setup: &TransportOptions) -> Self {
        Self::with(setup, None)
    }

    fn with(setup: &TransportOptions, key: SealKey) -> Self {
        let mut theirs = Transport::open(setup.clone()).unwrap();
        theirs.admit(TICKET, key).unwrap();
        let mut ours = Transport::open(setup.clone()).unwrap();
        let to_them = ours.connect(theirs.address(), TICKET, key).unwrap();
        let mut two = Self { ours, theirs, to_them, to_us: ConnectionId(0) };
        let FabricEvent::Opened { connection, ticket } = two.theirs() else { panic!("not opened") };
        assert_eq!(ticket, TICKET);
        two.to_us = connection;
        assert!(
            matches!(two.ours(), FabricEvent::Opened { connection, .. } if connection == to_them)
        );
        two
    }

    /// Offers this many bytes to be read, by a frame that is changed first. They can be read as
    /// long as the result lives.
    fn offer_forged(&mut self, bytes: usize, change: fn(&mut PacketHeader)) -> impl Sized + use<> {
        let source = FabricBuffer::holding(content(bytes));
        let open = self.ours.peers.slots.get(self.to_them.0).unwrap();
        let exposure = self.ours.io.link.expose_to_read(open.owner, &source).unwrap();
        let body = encode_segments([exposure.remote].into_iter());
        let mut ask = ControlFrame::greeting(PacketKind::RendezvousRequest, body);
        ask.header.head_length = 0;
        ask.header.bulk_length = bytes as u32;
        ask.header.segments = 1;
        change(&mut ask.header);
        self.ours.peers.control(self.to_them.0, ask);
        (exposure, source)
    }

    fn until<T>(&mut self, mut done: impl FnMut(&mut Self) -> Option<T>) -> T {
        let start = clock();
        loop {
            if let Some(result) = done(self) {
                return result;
            }
            self.ours.poll().unwrap();
            self.theirs.poll().unwrap();
            if let Some(FabricEvent::Closed { loss, .. }) = self.ours.events.front() {
                println!("ours is over: {loss:?}, {:?}", self.ours.counters());
            }
            assert!(start.elapsed() < LIMIT, "nothing came: {:?}", self.theirs.counters());
        }
    }

    fn ours(&mut self) -> FabricEvent {
        self.until(|two| two.ours.next_event())
    }

    fn theirs(&mut self) -> FabricEvent {
        self.until(|two| two.theirs.next_event())
    }

    fn send(&mut self, head: &[u8], parts: &[Bytes]) {
        let bulk = parts.iter().cloned().map(BulkPart::Bytes).collect();
        self.ours.send(self.to_them, Bytes::copy_from_slice(head), bulk).unwrap();
    }

    fn receive(&mut self) -> (Bytes, Bytes) {
        match self.theirs() {
            FabricEvent::Received { head, bulk, .. } => (head, bulk),
            other => panic!("{other:?}"),
        }
    }

    /// Both sides rest, and nothing is left of what they did.
    fn nothing_is_left(&mut self) {
        self.until(|two| {
            let left = [two.ours.in_use(), two.theirs.in_use()];
            (left == [(1, 0), (1, 0)]).then_some(())
        });
    }
}

fn content(length: usize) -> Bytes {
    (0..length).map(|i| (i * 31 + i / 999) as u8).collect::<Vec<u8>>().into()
}

fn on_each(test: impl Fn(&TransportOptions)) {
    for provider in Provider::TESTED {
        println!("on {}", provider.name());
        test(&setup(provider));
    }
}

#[test]
fn every_mechanism_and_layout_carries_every_message_sealed_or_not() {
    on_each(|setup| carry_everything(&mut Two::new(setup)));
    on_each(|setup| carry_everything(&mut Two::with(setup, Some(KEY))));
}

fn carry_everything(two: &mut Two) {
    for mechanism in Mechanism::ALL {
        for layout in [SegmentLayout::Pack, SegmentLayout::Gather] {
            let forced = PolicyOverride { mechanism: Some(mechanism), layout: Some(layout) };
            two.ours.policy.forced = forced;
            for (segments, length) in
                [(0, 0), (1, 1), (1, 3000), (3, 700), (128, 500), (1, 5 << 20)]
            {
                let whole = content(segments * length);
                let parts: Vec<Bytes> =
                    (0..segments).map(|i| whole.slice(i * length..(i + 1) * length)).collect();
                two.send(b"head", &parts);
                let (head, bulk) = two.receive();
                assert_eq!(&head[..], b"head");
                assert!(bulk == whole, "{mechanism:?} {layout:?} {segments} of {length}");
            }
        }
    }
    let (sent, read) = (two.ours.counters().by_mechanism, two.theirs.counters().by_mechanism);
    println!("sent {sent:?}, read {read:?}");
    assert!(sent[2] > 0 && sent[4] > 0 && read[3] > 0, "each was really used");
    two.nothing_is_left();
    let counters = two.theirs.counters();
    assert_eq!(counters.garbage + counters.corrupt + counters.wrong_seals, 0);
}

#[test]
fn long_heads_and_the_longest_message_arrive() {
    on_each(|setup| carry_the_longest(&mut Two::new(setup)));
    on_each(|setup| carry_the_longest(&mut Two::with(setup, Some(KEY))));
}

fn carry_the_longest(two: &mut Two) {
    let (head, bulk) = (content(4 << 20), content(16 << 20));
    two.send(&head, &[bulk.slice(..100), bulk.slice(100..)]);
    let (head_there, bulk_there) = two.receive();
    assert!(head_there == head && bulk_there == bulk);
    two.send(&head, &[]);
    assert!(two.receive() == (head.clone(), Bytes::new()));
    let over = vec![BulkPart::Bytes(bulk), BulkPart::Bytes(head.slice(1..))];
    let error = two.ours.send(two.to_them, content(2), over).unwrap_err();
    assert!(matches!(error, FabricError::TooLong { .. }), "{error}");
}

/// The next frame of our sealed connection, as it would be sent.
fn sealed_frame(two: &mut Two) -> Vec<u8> {
    let open = two.ours.peers.slots.get_mut(two.to_them.0).unwrap();
    let header = PacketHeader {
        connection: open.their_number,
        token: open.their_token,
        sequence: open.sequence_out,
        head_length: 4,
        ..PacketHeader::new(PacketKind::Message)
    };
    let seal = open.seal.as_mut().unwrap();
    let mut frame = vec![0; PacketHeader::frame_length(4, Some(seal))];
    header.write(&[b"good"], Some((seal, SealUse::Frame, header.sequence)), &mut frame);
    frame
}

#[test]
fn what_is_sealed_cannot_be_forged_changed_or_repeated() {
    on_each(|setup| {
        let mut two = Two::with(setup, Some(KEY));
        let mut stranger = Unauthenticated::new(&two);
        let wrong = |two: &Two| two.theirs.counters().wrong_seals;
        // Who has read the token on its way, and not the key.
        let plain = forged(&two, PacketKind::Message, 0);
        stranger.send(&mut two, &plain);
        assert_eq!(wrong(&two), 1);
        let good = sealed_frame(&mut two);
        for at in [12, 24, HEADER_SIZE, good.len() - 1] {
            let mut changed = good.clone();
            changed[at] ^= 1;
            stranger.send(&mut two, &changed);
        }
        assert_eq!(wrong(&two), 5);
        stranger.send_unseen(&mut two, &good);
        assert_eq!(&two.receive().0[..], b"good");
        stranger.send(&mut two, &good);
        assert_eq!((wrong(&two), two.theirs.counters().duplicates), (5, 1));
        // A ticket that was read on its way does not open a connection, and stays good.
        two.theirs.admit([9; TICKET_SIZE], Some(KEY)).unwrap();
        for key in [None, Some([4; KEY_SIZE])] {
            let mut thief = Transport::open(setup.clone()).unwrap();
            thief.connect(two.theirs.address(), [9; TICKET_SIZE], key).unwrap();
            let before = wrong(&two);
            two.until(|two| {
                thief.poll().unwrap();
                (wrong(two) > before).then_some(())
            });
        }
        let mut owner = Transport::open(setup.clone()).unwrap();
        owner.connect(two.theirs.address(), [9; TICKET_SIZE], Some(KEY)).unwrap();
        two.until(|two| {
            owner.poll().unwrap();
            two.theirs
                .next_event()
                .map(|event| assert!(matches!(event, FabricEvent::Opened { .. })))
        });
    });
}

#[test]
fn a_bulk_that_was_not_sealed_by_the_peer_is_not_handed_out() {
    on_each(|setup| {
        let mut two = Two::with(setup, Some(KEY));
        let _offered =
            two.offer_forged(100_000, |header| header.bulk_length = 100_000 - TAG_SIZE as u32);
        assert!(matches!(two.theirs(), FabricEvent::Closed { loss: Loss::Corrupt, .. }));
    });
}

#[test]
fn a_connection_whose_key_is_worn_out_ends() {
    let mut two = Two::with(&setup(Provider::Shm), Some(KEY));
    two.ours.peers.slots.get_mut(two.to_them.0).unwrap().sequence_out = u32::MAX - 1;
    two.send(b"late", &[]);
    assert!(matches!(two.ours(), FabricEvent::Closed { loss: Loss::Worn, .. }));
}

#[test]
fn a_kept_buffer_does_not_delay_other_requests() {
    on_each(|setup| {
        let mut two = Two::new(&TransportOptions { inbound: 4 << 20, ..setup.clone() });
        let mut kept = Vec::new();
        for number in 0..40u8 {
            two.send(&[number], &[content(1 << 20)]);
            kept.push(two.receive());
        }
        assert!(kept.iter().all(|(_, bulk)| *bulk == content(1 << 20)));
        assert!(two.theirs.counters().copies > 0);
    });
}

#[test]
fn many_messages_wait_for_credits_and_arrive_in_order() {
    on_each(|setup| {
        let mut two = Two::new(setup);
        two.ours.policy.forced.mechanism = Some(Mechanism::Eager);
        let count = 900u32;
        for number in 0..count {
            two.send(&number.to_le_bytes(), &[content(300)]);
        }
        for number in 0..count {
            assert_eq!(two.receive().0[..], number.to_le_bytes());
        }
        assert!(two.ours.counters().credit_waits > 0);
        // More than the queue holds is refused, not stored.
        let head = Bytes::from_static(b"more");
        let refused = (0..2 * QUEUE_MAX)
            .find_map(|_| two.ours.send(two.to_them, head.clone(), Vec::new()).err());
        assert_eq!(refused, Some(FabricError::Busy { what: "the queue of a connection" }));
    });
}

#[test]
fn both_ends_may_be_out_of_credits_at_once() {
    on_each(|setup| {
        let mut two = Two::new(&TransportOptions { credits: 3, ..setup.clone() });
        two.ours.policy.forced.mechanism = Some(Mechanism::Eager);
        two.theirs.policy.forced.mechanism = Some(Mechanism::Eager);
        let count = 300;
        for _ in 0..count {
            two.send(b"there", &[content(100)]);
            let back = vec![BulkPart::Bytes(content(100))];
            two.theirs.send(two.to_us, Bytes::from_static(b"back"), back).unwrap();
        }
        let mut left = 2 * count;
        two.until(|two| {
            let events = [two.ours.next_event(), two.theirs.next_event()];
            let got =
                events.iter().flatten().map(|event| matches!(event, FabricEvent::Received { .. }));
            left -= got.filter(|is_message| *is_message).count();
            (left == 0).then_some(())
        });
    });
}

#[test]
fn bulk_waits_for_memory_and_none_is_lost() {
    on_each(|setup| {
        let mut two = Two::new(&TransportOptions { inbound: 3 << 20, ..setup.clone() });
        two.ours.policy.forced.mechanism = Some(Mechanism::Read);
        for number in 0..20u8 {
            two.send(&[number], &[content(1 << 20)]);
        }
        // A receiver that keeps a bulk keeps its memory: the next one waits.
        let mut kept = Vec::new();
        for _ in 0..20 {
            let (head, bulk) = two.receive();
            kept.clear();
            kept.push((head, bulk));
        }
        assert_eq!(kept[0].0[..], [19]);
        assert!(kept[0].1 == content(1 << 20));
    });
}

#[test]
fn a_heavy_server_has_its_client_move_the_data() {
    let mut two = Two::new(&setup(Provider::Shm));
    two.theirs.io.setup.is_server = true;
    two.theirs.io.moving = crate::policy::HEAVY;
    two.send(b"data", &[content(1 << 20)]);
    assert!(two.receive().1 == content(1 << 20));
    assert_eq!(two.ours.counters().by_mechanism[Mechanism::Write as usize], 1);
    two.theirs.io.moving = 0;
}

#[test]
fn a_new_epoch_ends_older_connections_and_closes_their_regions_first() {
    on_each(|setup| {
        let mut two = Two::new(setup);
        assert!(two.theirs.advance_epoch(1).unwrap() > 0, "regions of the slots were open");
        assert!(matches!(two.theirs(), FabricEvent::Closed { loss: Loss::Epoch, .. }));
        assert_eq!(two.theirs.advance_epoch(1).unwrap(), 0);
        // Who comes with the old epoch is not let in, whatever its ticket.
        two.theirs.admit(TICKET, None).unwrap();
        two.ours.connect(two.theirs.address(), TICKET, None).unwrap();
        two.until(|two| (two.theirs.counters().stale == 1).then_some(()));
    });
}

#[test]
fn a_connection_that_is_closed_frees_all_on_both_sides() {
    on_each(|setup| {
        let mut two = Two::new(setup);
        two.send(b"bulk", &[content(1 << 20)]);
        two.receive();
        two.nothing_is_left();
        two.ours.close(two.to_them).unwrap();
        assert!(matches!(two.theirs(), FabricEvent::Closed { loss: Loss::Left, .. }));
        two.until(|two| {
            ([two.ours.in_use(), two.theirs.in_use()] == [(0, 0), (0, 0)]).then_some(())
        });
        let error = two.ours.send(two.to_them, Bytes::new(), Vec::new()).unwrap_err();
        assert!(matches!(error, FabricError::NotConnected { .. }), "{error}");
        // And anew.
        two.theirs.admit(TICKET, None).unwrap();
        two.ours.next_event();
        two.to_them = two.ours.connect(two.theirs.address(), TICKET, None).unwrap();
        assert!(matches!(two.theirs(), FabricEvent::Opened { .. }));
        two.send(b"again", &[]);
        assert_eq!(&two.receive().0[..], b"again");
    });
}

/// An endpoint that speaks no protocol.
struct Unauthenticated {
    link: Fabric,
    to_them: PeerAddress,
    arena: Arena,
}

impl Unauthenticated {
    fn new(two: &Two) -> Self {
        let mut link = Fabric::open(&EndpointOptions::new(two.theirs.io.link.provider())).unwrap();
        let to_them = link.insert(two.theirs.address()).unwrap();
        Self { link, to_them, arena: Arena::new(64 << 20) }
    }

    /// Sends what is not taken.
    fn send(&mut self, two: &mut Two, bytes: &[u8]) {
        let before = bad(two);
        self.send_until(two, bytes, |two| bad(two) > before);
    }

    /// Sends what looks like a good frame.
    fn send_unseen(&mut self, two: &mut Two, bytes: &[u8]) {
        let before = two.theirs.counters().frames_in;
        self.send_until(two, bytes, |two| two.theirs.counters().frames_in > before);
    }

    fn send_until(&mut self, two: &mut Two, bytes: &[u8], is_there: impl Fn(&Two) -> bool) {
        let mut buffer = self.arena.take(bytes.len()).unwrap();
        buffer.bytes_mut().copy_from_slice(bytes);
        let mut waiting = Some(buffer);
        let mut done = Vec::new();
        two.until(|two| {
            if let Some(buffer) = waiting.take()
                && let Err((error, buffer)) = self.link.send(self.to_them, buffer, 1)
            {
                assert!(matches!(error, FabricError::Busy { .. }), "{error}");
                waiting = Some(buffer);
            }
            self.link.poll(&mut done).unwrap();
            is_there(two).then_some(())
        });
    }
}

/// Frames that they did not take.
fn bad(two: &Two) -> u64 {
    let counters = two.theirs.counters();
    let within = counters.duplicates + counters.gaps + counters.violations;
    counters.garbage + counters.strangers + counters.wrong_seals + within
}

#[test]
fn garbage_of_a_stranger_is_counted_and_does_no_harm() {
    on_each(|setup| {
        let mut two = Two::new(setup);
        let mut stranger = Unauthenticated::new(&two);
        let mut noise = 12345u64;
        let mut next = move || {
            noise = noise
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (noise >> 33) as usize
        };
        for round in 0..60 {
            let length = 1 + next() % two.theirs.io.setup.eager;
            let mut bytes: Vec<u8> = (0..length).map(|_| next() as u8).collect();
            if round % 3 == 0 && length > 64 {
                // Begins as a frame, to come further.
                bytes[..8].copy_from_slice(&[
                    b'M',
                    b'D',
                    b'F',
                    b'F',
                    1,
                    1 + next() as u8 % 10,
                    0,
                    0,
                ]);
            }
            stranger.send(&mut two, &bytes);
        }
        // Well-formed frames without a connection, and a greeting with a ticket that was never
        // given.
        let greeting = PacketGreeting {
            ticket: [9; TICKET_SIZE],
            connection: 0,
            token: 0,
            epoch: 0,
            credits: 9,
            eager: 4096,
            slots: Vec::new(),
            address: vec![1; 16],
        };
        let body = greeting.encode();
        let hello =
            PacketHeader { head_length: body.len() as u32, ..PacketHeader::new(PacketKind::Hello) };
        let hello = [&hello.encode([&body[..]].into_iter())[..], &body].concat();
        stranger.send(&mut two, &hello);
        for kind in [
            PacketKind::Message,
            PacketKind::Grant,
            PacketKind::Done,
            PacketKind::Written,
            PacketKind::Leave,
        ] {
            let header = PacketHeader { connection: 0, token: 77, ..PacketHeader::new(kind) };
            stranger.send(&mut two, &header.encode(std::iter::empty()));
        }
        let counters = two.theirs.counters();
        assert_eq!((counters.garbage, counters.strangers, counters.lost), (60, 6, 0));
        // The others go on.
        two.send(b"still here", &[content(100_000)]);
        assert_eq!(&two.receive().0[..], b"still here");
    });
}

/// A frame of our connection, sent by another way, as a faulty network would.
fn forged(two: &Two, kind: PacketKind, ahead: u32) -> Vec<u8> {
    let open = two.ours.peers.slots.get(two.to_them.0).unwrap();
    let header = PacketHeader {
        connection: open.their_number,
        token: open.their_token,
        sequence: open.sequence_out.wrapping_add(ahead),
        head_length: 4,
        ..PacketHeader::new(kind)
    };
    [&header.encode([&b"evil"[..]].into_iter())[..], b"evil"].concat()
}

#[test]
fn a_frame_that_comes_twice_counts_once() {
    on_each(|setup| {
        let mut two = Two::new(setup);
        two.ours.policy.forced.mechanism = Some(Mechanism::Inline);
        two.send(b"once", &[]);
        two.receive();
        let mut stranger = Unauthenticated::new(&two);
        let again = forged(&two, PacketKind::Message, u32::MAX);
        stranger.send(&mut two, &again);
        assert_eq!(two.theirs.counters().duplicates, 1);
        two.send(b"next", &[]);
        assert_eq!(&two.receive().0[..], b"next");
    });
}

#[test]
fn a_lost_frame_ends_the_connection() {
    on_each(|setup| {
        let mut two = Two::new(setup);
        let mut stranger = Unauthenticated::new(&two);
        let later = forged(&two, PacketKind::Message, 1000);
        stranger.send(&mut two, &later);
        assert!(matches!(two.theirs(), FabricEvent::Closed { loss: Loss::Gap, .. }));
        assert_eq!(two.theirs.counters().gaps, 1);
    });
}

#[test]
fn a_corrupted_frame_is_dropped_and_what_follows_is_a_gap() {
    on_each(|setup| {
        let mut two = Two::new(setup);
        let mut stranger = Unauthenticated::new(&two);
        let mut bad = forged(&two, PacketKind::Message, 0);
        bad[HEADER_SIZE + 1] ^= 4;
        stranger.send(&mut two, &bad);
        assert_eq!(two.theirs.counters().garbage, 1);
        let next = forged(&two, PacketKind::Message, 1000);
        stranger.send(&mut two, &next);
        assert!(matches!(two.theirs(), FabricEvent::Closed { loss: Loss::Gap, .. }));
    });
}

#[test]
fn a_bulk_that_changed_on_the_way_is_not_handed_out() {
    on_each(|setup| {
        let mut two = Two::new(setup);
        let _offered = two.offer_forged(100_000, |header| {
            header.flags = SUM_IS_HERE;
            header.bulk_checksum = 1;
        });
        assert!(matches!(two.theirs(), FabricEvent::Closed { loss: Loss::Corrupt, .. }));
        assert_eq!(two.theirs.counters().corrupt, 1);
    });
}

#[test]
fn frames_that_break_the_rules_end_their_connection_only() {
    for kind in [
        PacketKind::RendezvousRequest,
        PacketKind::Grant,
        PacketKind::Done,
        PacketKind::Written,
        PacketKind::Sum,
        PacketKind::Welcome,
    ] {
        let mut two = Two::new(&setup(Provider::Shm));
        let mut stranger = Unauthenticated::new(&two);
        let bad = forged(&two, kind, 0);
        stranger.send(&mut two, &bad);
        let end = two.theirs();
        let why = matches!(end, FabricEvent::Closed { loss: Loss::Violation(_), .. });
        assert!(why, "{kind:?}: {end:?}");
        assert_eq!(two.theirs.in_use(), (0, 0));
    }
}

#[test]
fn nothing_but_silence_for_too_long_is_the_end() {
    on_each(|setup| {
        let quick = TransportOptions { silence: Duration::from_millis(200), ..setup.clone() };
        let mut two = Two::new(&quick);
        let start = clock();
        while start.elapsed() < Duration::from_millis(500) {
            two.ours.poll().unwrap();
            two.theirs.poll().unwrap();
        }
        assert!(two.ours.next_event().is_none(), "beats keep an idle connection");
        // Now the peer does nothing any more.
        let closed = loop {
            two.ours.poll().unwrap();
            if let Some(event) = two.ours.next_event() {
                break event;
            }
        };
        assert!(matches!(closed, FabricEvent::Closed { loss: Loss::Silent | Loss::Failed(_), .. }));
        assert_eq!(two.ours.in_use().0, 0);
    });
}
