//! NFS version 4.1 and 4.2 as a client speaks it: sessions, open files, locks.

use std::time::Duration;

use bytes::Buf as _;
use fileio::protocol::{Error, Reply, Request};
use nfs_gateway::Settings;
use nfs3_types::nfs3::PROGRAM;
use runtime::protocol::Undelivered;
use runtime::seed::with_seed;
use runtime::{Context, NodeId, RequestInfo};

use crate::kit::{Act, Client, Stage, VOLUME, Verdict, config};

/// The program, its version, and COMPOUND.
pub(crate) const PROGRAM_4: [u32; 3] = [PROGRAM, 4, 1];

pub(crate) const OK: u32 = 0;
pub(crate) const NOENT: u32 = 2;
pub(crate) const ROFS: u32 = 30;
pub(crate) const DELAY: u32 = 10_008;
pub(crate) const DENIED: u32 = 10_010;
const GRACE: u32 = 10_013;
pub(crate) const SHARE_DENIED: u32 = 10_015;
const NOFILEHANDLE: u32 = 10_020;
const MINOR_VERS_MISMATCH: u32 = 10_021;
pub(crate) const BAD_STATEID: u32 = 10_025;
const NO_GRACE: u32 = 10_033;
const BADXDR: u32 = 10_036;
pub(crate) const OPENMODE: u32 = 10_038;
pub(crate) const OP_ILLEGAL: u32 = 10_044;
pub(crate) const BADSESSION: u32 = 10_052;
const BADSLOT: u32 = 10_053;
const SEQ_MISORDERED: u32 = 10_063;
const SEQUENCE_POS: u32 = 10_064;
const RETRY_UNCACHED_REP: u32 = 10_068;
const TOO_MANY_OPS: u32 = 10_070;
const OP_NOT_IN_SESSION: u32 = 10_071;
const SEQ_FALSE_RETRY: u32 = 10_076;
const NOT_ONLY_OP: u32 = 10_081;

/// Operations, encoded one behind the other.
#[derive(Clone, Default)]
pub(crate) struct Ops {
    count: u32,
    bytes: Vec<u8>,
}

impl Ops {
    pub(crate) fn op(mut self, number: u32) -> Self {
        self.count += 1;
        self.word(number)
    }

    pub(crate) fn word(mut self, word: u32) -> Self {
        self.bytes.extend_from_slice(&word.to_be_bytes());
        self
    }

    pub(crate) fn long(mut self, long: u64) -> Self {
        self.bytes.extend_from_slice(&long.to_be_bytes());
        self
    }

    pub(crate) fn raw(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    pub(crate) fn opaque(self, bytes: &[u8]) -> Self {
        let padding = vec![0; bytes.len().wrapping_neg() % 4];
        self.word(bytes.len() as u32).raw(bytes).raw(&padding)
    }

    pub(crate) fn root(self) -> Self {
        self.op(24)
    }

    pub(crate) fn lookup(self, name: &[u8]) -> Self {
        self.op(15).opaque(name)
    }

    /// OPEN to be read and written (3), with what others may not do; made if it is not there.
    pub(crate) fn open(self, owner: &[u8], name: &[u8], deny: u32) -> Self {
        let ops = self.op(18).word(0).word(3).word(deny).long(0).opaque(owner);
        // CREATE, UNCHECKED, the mode 0644; CLAIM_NULL.
        ops.word(1).word(0).word(2).word(0).word(2).word(4).word(0o644).word(0).opaque(name)
    }

    pub(crate) fn close(self, stateid: &[u8]) -> Self {
        self.op(4).word(0).raw(stateid)
    }

    pub(crate) fn write(self, stateid: &[u8], data: &[u8]) -> Self {
        self.op(38).raw(stateid).long(0).word(2).opaque(data)
    }

    pub(crate) fn remove(self, name: &[u8]) -> Self {
        self.op(28).opaque(name)
    }

    /// SETXATTR: in any case (0), a new one (1), one that is there (2).
    pub(crate) fn set_xattr(self, option: u32, name: &[u8], value: &[u8]) -> Self {
        self.op(73).word(option).opaque(name).opaque(value)
    }

    pub(crate) fn remove_xattr(self, name: &[u8]) -> Self {
        self.op(75).opaque(name)
    }

    /// LOCK of all bytes, to write, by an owner that is new to the open file.
    pub(crate) fn lock(self, open: &[u8], owner: &[u8], reclaim: bool) -> Self {
        let ops = self.op(12).word(2).word(reclaim.into()).long(0).long(u64::MAX);
        ops.word(1).word(0).raw(open).word(0).long(0).opaque(owner)
    }

    /// The reply need not be kept: that is the last word of SEQUENCE, the first operation.
    pub(crate) fn uncached(mut self) -> Self {
        self.bytes[4 + 16 + 12 + 3] = 0;
        self
    }

    /// The bytes alone.
    pub(crate) fn encoded(self) -> Vec<u8> {
        self.bytes
    }

    pub(crate) fn compound(&self, minor: u32) -> Vec<u8> {
        let head = Ops::default().opaque(b"tag").word(minor).word(self.count);
        [head.bytes, self.bytes.clone()].concat()
    }
}

/// The reply to a COMPOUND.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CompoundReply {
    pub(crate) status: u32,
    results: u32,
    /// What follows the count of results.
    pub(crate) bytes: Vec<u8>,
}

pub(crate) async fn compound(client: &mut Client, minor: u32, ops: &Ops) -> CompoundReply {
    let verdict = client.call([PROGRAM, 4, 1], &ops.compound(minor)).await;
    let Verdict::Done(bytes) = verdict else { panic!("{verdict:?}") };
    told(&bytes)
}

pub(crate) fn told(bytes: &[u8]) -> CompoundReply {
    let mut bytes = bytes;
    let status = bytes.get_u32();
    assert_eq!(bytes.get_u32(), 3);
    assert_eq!(&bytes.copy_to_bytes(4)[..], b"tag\0");
    let results = bytes.get_u32();
    CompoundReply { status, results, bytes: bytes.to_vec() }
}

/// The number of the callback program of all clients.
pub(crate) const CALLBACK_PROGRAM: u32 = 0x4000_0001;

/// A client with a session.
pub(crate) struct Session {
    pub(crate) client: Client,
    pub(crate) number: u64,
    pub(crate) id: Vec<u8>,
    sequence: u32,
    /// The status flags of the last SEQUENCE.
    pub(crate) flags: u32,
}

/// Bytes of the result of SEQUENCE, behind number and status.
const SEQUENCE_BYTES: usize = 16 + 5 * 4;
pub(crate) const RESULT: usize = 8;

impl Session {
    /// A new client by this name, that had nothing before.
    pub(crate) async fn new(client: Client, name: &[u8]) -> Self {
        let mut session = Self::recovering(client, name).await;
        session.complete().await;
        session
    }

    /// Nothing is reclaimed any more.
    pub(crate) async fn complete(&mut self) {
        let told = self.run(&Ops::default().op(58).word(0)).await;
        assert_eq!(told.status, OK);
    }

    /// The same, that may still get again what it had.
    pub(crate) async fn recovering(client: Client, name: &[u8]) -> Self {
        Self::created(client, name, (0, 4), &Ops::default().word(0)).await
    }

    /// The same, with these flags, slots of the back channel, and security of callbacks.
    pub(crate) async fn created(
        mut client: Client,
        name: &[u8],
        back: (u32, u32),
        security: &Ops,
    ) -> Self {
        let exchange = Ops::default().op(42).long(7).opaque(name).word(0).word(0).word(0);
        let told = compound(&mut client, 1, &exchange).await;
        assert_eq!(told.status, OK);
        let number = (&told.bytes[RESULT..]).get_u64();
        let mut session = Self { client, number, id: Vec::new(), sequence: 0, flags: 0 };
        let told = session.create_with(1, back, security).await;
        assert_eq!(told.status, OK);
        session.id = told.bytes[RESULT..RESULT + 16].to_vec();
        session
    }

    async fn create(&mut self, sequence: u32) -> CompoundReply {
        self.create_with(sequence, (0, 4), &Ops::default().word(0)).await
    }

    pub(crate) async fn create_with(
        &mut self,
        sequence: u32,
        (flags, back_slots): (u32, u32),
        security: &Ops,
    ) -> CompoundReply {
        let channel = |ops: Ops, slots: u32| {
            ops.word(0).word(1 << 20).word(1 << 20).word(4096).word(12).word(slots).word(0)
        };
        let ops = Ops::default().op(43).long(self.number).word(sequence).word(flags);
        let ops = channel(channel(ops, 4), back_slots).word(CALLBACK_PROGRAM);
        compound(&mut self.client, 1, &ops.raw(&security.bytes)).await
    }

    /// The last sequence number of slot 0.
    pub(crate) fn sequence(&self) -> u32 {
        self.sequence
    }

    /// These operations behind a SEQUENCE like this.
    pub(crate) fn ops(&self, slot: u32, sequence: u32, ops: &Ops) -> Ops {
        let head = Ops::default().op(53).raw(&self.id).word(sequence).word(slot).word(slot).word(1);
        Ops { count: 1 + ops.count, bytes: [head.bytes, ops.bytes.clone()].concat() }
    }

    /// The next request of slot 0: the status, and the results behind that of SEQUENCE.
    pub(crate) async fn run(&mut self, ops: &Ops) -> CompoundReply {
        self.sequence += 1;
        self.again(0, self.sequence, ops).await
    }

    /// The same, with a reply that need not be kept, so that it may be long.
    pub(crate) async fn run_uncached(&mut self, ops: &Ops) -> CompoundReply {
        self.sequence += 1;
        let ops = self.ops(0, self.sequence, ops).uncached();
        self.results(ops).await
    }

    async fn again(&mut self, slot: u32, sequence: u32, ops: &Ops) -> CompoundReply {
        self.results(self.ops(slot, sequence, ops)).await
    }

    /// The reply to `ops`, without the result of SEQUENCE.
    async fn results(&mut self, ops: Ops) -> CompoundReply {
        let mut told = compound(&mut self.client, 2, &ops).await;
        if told.results > 0 {
            let flags = told.bytes.get(RESULT + 32..RESULT + SEQUENCE_BYTES);
            self.flags = flags.map_or(0, |mut flags| flags.get_u32());
        }
        if told.results > 1 {
            told.bytes.drain(..RESULT + SEQUENCE_BYTES);
        }
        told
    }

    /// Makes or opens a file in the root: its state id.
    pub(crate) async fn open(
        &mut self,
        owner: &[u8],
        name: &[u8],
        deny: u32,
    ) -> Result<Vec<u8>, u32> {
        let told = self.run(&Ops::default().root().open(owner, name, deny)).await;
        let at = RESULT + RESULT;
        if told.status == OK { Ok(told.bytes[at..at + 16].to_vec()) } else { Err(told.status) }
    }

    /// The status of operations on a file in the root.
    pub(crate) async fn on(&mut self, name: &[u8], ops: impl FnOnce(Ops) -> Ops) -> u32 {
        self.run(&ops(Ops::default().root().lookup(name))).await.status
    }
}

#[test]
fn what_is_no_request_of_a_session_is_refused_each_in_its_way() {
    with_seed(|rng| {
        Stage::new(rng).run(async |mut client, _| {
            let root = Ops::default().root();
            for minor in [0, 3] {
                let told = compound(&mut client, minor, &root).await;
                assert_eq!((told.status, told.results), (MINOR_VERS_MISMATCH, 0));
            }
            let status = async |client: &mut Client, minor, ops: &Ops| {
                compound(client, minor, ops).await.status
            };
            assert_eq!(status(&mut client, 1, &root).await, OP_NOT_IN_SESSION);
            // SETCLIENTID is an operation, of another minor version.
            assert_eq!(status(&mut client, 1, &Ops::default().op(35)).await, OP_NOT_IN_SESSION);
            assert_eq!(status(&mut client, 1, &Ops::default().op(2)).await, OP_ILLEGAL);
            assert_eq!(status(&mut client, 1, &Ops::default().op(69)).await, OP_ILLEGAL);
            assert_eq!(status(&mut client, 2, &Ops::default().op(76)).await, OP_ILLEGAL);
            let two = Ops::default().op(44).raw(&[0; 16]).root();
            assert_eq!(status(&mut client, 1, &two).await, NOT_ONLY_OP);
            let unknown = Ops::default().op(53).raw(&[0; 16]).word(1).word(0).word(0).word(0);
            assert_eq!(status(&mut client, 1, &unknown).await, BADSESSION);
            assert_eq!(status(&mut client, 1, &Ops::default().op(53)).await, BADXDR);

            let mut session = Session::new(client, b"client").await;
            let none = Ops::default();
            assert_eq!(session.again(4, 1, &none).await.status, BADSLOT);
            assert_eq!(session.again(1, 2, &none).await.status, SEQ_MISORDERED);
            assert_eq!(session.again(1, 0, &none).await.status, SEQ_MISORDERED);
            let inner = session.ops(0, 9, &none);
            assert_eq!(session.run(&inner).await.status, SEQUENCE_POS);
            let many = (0..12).fold(none, |ops, _| ops.root());
            assert_eq!(session.again(2, 1, &many).await.status, TOO_MANY_OPS);
            assert_eq!(session.run(&Ops::default().op(10)).await.status, NOFILEHANDLE);
        });
    });
}

#[test]
fn a_request_that_comes_again_is_answered_as_before_and_done_once_over_any_connection() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        let other = stage.client();
        stage.run(async |client, _| {
            let mut session = Session::new(client, b"client").await;
            assert!(session.open(b"owner", b"file", 0).await.is_ok());
            let remove = Ops::default().root().remove(b"file");
            let first = session.run(&remove).await;
            assert_eq!(first.status, OK);
            let sequence = session.sequence;
            assert_eq!(session.again(0, sequence, &remove).await, first);
            session.client = other;
            assert_eq!(session.again(0, sequence, &remove).await, first);
            let different = Ops::default().root().remove(b"other");
            assert_eq!(session.again(0, sequence, &different).await.status, SEQ_FALSE_RETRY);
            assert_eq!(session.again(0, sequence + 2, &remove).await.status, SEQ_MISORDERED);
            assert_eq!(session.run(&remove).await.status, NOENT);
        });
    });
}

#[test]
fn a_reply_that_need_not_be_kept_is_not() {
    with_seed(|rng| {
        Stage::new(rng).run(async |client, _| {
            let mut session = Session::new(client, b"client").await;
            let ops = session.ops(1, 1, &Ops::default().root()).uncached();
            assert_eq!(compound(&mut session.client, 1, &ops).await.status, OK);
            assert_eq!(compound(&mut session.client, 1, &ops).await.status, RETRY_UNCACHED_REP);
        });
    });
}

#[test]
fn a_copy_that_comes_while_the_first_is_being_done_is_told_to_wait() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        let other = stage.client();
        stage.service.rule(|request| match request {
            Request::Remove(_) => Act::After(Duration::from_secs(1)),
            _ => Act::Answer,
        });
        stage.run(async |client, _| {
            let mut session = Session::new(client, b"client").await;
            let remove = session.ops(1, 1, &Ops::default().root().remove(b"none"));
            let arguments = remove.compound(1);
            let (_, record) = session.client.record([PROGRAM, 4, 1], &arguments);
            assert!(session.client.send_record(&record).await);
            let mut other = other;
            let ping = other.call([PROGRAM, 4, 0], &[]).await;
            assert_eq!(ping, Verdict::Done(Vec::new()));
            assert_eq!(compound(&mut other, 1, &remove).await.status, DELAY);
            let (_, verdict) = session.client.receive().await.unwrap();
            let Verdict::Done(bytes) = verdict else { panic!("{verdict:?}") };
            let first = told(&bytes);
            assert_eq!(first.status, NOENT);
            assert_eq!(compound(&mut other, 1, &remove).await, first);
        });
    });
}

#[test]
fn what_is_in_doubt_is_asked_again_by_the_same_call_and_not_answered_before() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        let (mut second, third) = (stage.client(), stage.client());
        let lost = Error::Undelivered { why: Undelivered::Lost };
        let losses = std::cell::Cell::new(0);
        stage.service.rule(move |request| match request {
            Request::Remove(_) if losses.replace(losses.get() + 1) < 12 => {
                Act::AnswerWith(Reply::Remove(Err(lost)))
            }
            _ => Act::Answer,
        });
        let service = stage.service.clone();
        stage.run(async |client, _| {
            let mut session = Session::new(client, b"client").await;
            assert!(session.open(b"owner", b"file", 0).await.is_ok());
            service.asked();
            session.sequence += 1;
            let remove = session.ops(0, session.sequence, &Ops::default().root().remove(b"file"));
            let (_, record) = session.client.record([PROGRAM, 4, 1], &remove.compound(1));
            assert!(session.client.send_record(&record).await);
            assert_eq!(session.client.receive().await, None, "the gateway hangs up");
            assert_eq!(compound(&mut second, 1, &remove).await.status, OK);
            let calls: std::collections::BTreeSet<(u64, u64)> = service
                .asked()
                .iter()
                .filter(|request| matches!(request, Request::Remove(_)))
                .filter_map(RequestInfo::call_id)
                .map(|call| (call.client, call.number))
                .collect();
            assert_eq!(calls.len(), 1, "all are one call");
            session.client = third;
            let next = session.run(&Ops::default().root()).await;
            assert_eq!(next.status, OK);
        });
    });
}

#[test]
fn a_session_is_made_once_however_often_it_is_asked_for() {
    with_seed(|rng| {
        Stage::new(rng).run(async |client, _| {
            let mut session = Session::new(client, b"client").await;
            let again = session.create(1).await;
            assert_eq!(again.bytes[RESULT..RESULT + 16], session.id);
            assert_eq!(session.create(3).await.status, SEQ_MISORDERED);
            let second = session.create(2).await;
            assert_eq!(second.status, OK);
            assert_ne!(second.bytes[RESULT..RESULT + 16], session.id);
            let destroy = Ops::default().op(44).raw(&session.id);
            assert_eq!(compound(&mut session.client, 1, &destroy).await.status, OK);
            assert_eq!(session.run(&Ops::default()).await.status, BADSESSION);
        });
    });
}

/// From now on the nodes say that there may be open files from before the start, or none.
fn say_has_opens(stage: &Stage, has_opens: bool) {
    stage.service.rule(move |request| match request {
        Request::HasOpens(_) => Act::AnswerWith(Reply::HasOpens(Ok(has_opens))),
        _ => Act::Answer,
    });
}

/// Two clients, when the grace is over.
fn with_two(body: impl AsyncFn(Session, Session, Context)) {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        let other = stage.client();
        let ctx = stage.world.context(NodeId::fs(0));
        stage.run(async |client, _| {
            ctx.sleep(Duration::from_secs(100)).await;
            let one = Session::new(client, b"one").await;
            let two = Session::new(other, b"two").await;
            body(one, two, ctx).await;
        });
    });
}

#[test]
fn files_are_shared_as_their_openers_allow() {
    with_two(async |mut one, mut two, _| {
        let all = one.open(b"a", b"file", 3).await.unwrap();
        assert_eq!(two.open(b"a", b"file", 0).await, Err(SHARE_DENIED));
        assert_eq!(one.open(b"b", b"file", 0).await, Err(SHARE_DENIED));
        let again = one.open(b"a", b"file", 0).await.unwrap();
        assert_eq!((again[3], &again[4..]), (2, &all[4..]), "the same state, changed once");
        let anonymous = [0; 16];
        let written = two.on(b"file", |ops| ops.write(&anonymous, b"x")).await;
        assert_eq!(written, 10_012, "LOCKED");
        assert_eq!(two.on(b"file", |ops| ops.close(&again)).await, BAD_STATEID);
        assert_eq!(one.on(b"file", |ops| ops.close(&again)).await, OK);
        assert_eq!(one.on(b"file", |ops| ops.close(&again)).await, BAD_STATEID);
        let open = two.open(b"a", b"file", 0).await.unwrap();
        assert_eq!(two.on(b"file", |ops| ops.write(&open, b"x")).await, OK);
        // OPEN_DOWNGRADE: to be read only.
        let down = |ops: Ops| ops.op(21).raw(&open).word(0).word(1).word(0);
        assert_eq!(two.on(b"file", down).await, OK);
        let current = [&0_u32.to_be_bytes()[..], &open[4..]].concat();
        assert_eq!(two.on(b"file", |ops| ops.write(&current, b"x")).await, OPENMODE);
    });
}

#[test]
fn nothing_new_is_opened_before_a_client_has_reclaimed_and_nothing_reclaimed_after() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        say_has_opens(&stage, true);
        let other = stage.client();
        let ctx = stage.world.context(NodeId::fs(0));
        stage.run(async |client, _| {
            let mut session = Session::recovering(client, b"client").await;
            assert_eq!(session.open(b"a", b"file", 0).await, Err(GRACE));
            let complete = Ops::default().op(58).word(0);
            assert_eq!(session.run(&complete).await.status, OK);
            assert_eq!(session.run(&complete).await.status, 10_054, "COMPLETE_ALREADY");
            assert!(session.open(b"a", b"file", 0).await.is_ok());
            let reclaim = |ops: Ops| {
                ops.op(18).word(0).word(3).word(0).long(0).opaque(b"a").word(0).word(1).word(0)
            };
            assert_eq!(session.on(b"file", reclaim).await, NO_GRACE);
            let mut late = Session::recovering(other, b"late").await;
            assert_eq!(late.on(b"file", reclaim).await, OK);
            ctx.sleep(Duration::from_secs(20)).await;
            assert_eq!(late.run(&Ops::default()).await.status, OK);
            ctx.sleep(Duration::from_secs(20)).await;
            assert_eq!(late.run(&Ops::default()).await.status, OK);
            ctx.sleep(Duration::from_secs(25)).await;
            assert_eq!(late.on(b"file", reclaim).await, NO_GRACE);
        });
    });
}

#[test]
fn the_grace_period_ends_early_where_nothing_was_open() {
    for has_opens in [false, true] {
        with_seed(|rng| {
            let stage = Stage::new(rng);
            say_has_opens(&stage, has_opens);
            let ctx = stage.world.context(NodeId::fs(0));
            stage.run(async |client, _| {
                ctx.sleep(Duration::from_secs(2)).await;
                let mut session = Session::new(client, b"client").await;
                // One that denies others could be in the way of an earlier one.
                let opened = session.open(b"a", b"file", 3).await;
                assert_eq!(opened.err(), has_opens.then_some(GRACE));
                ctx.sleep(Duration::from_secs(25)).await;
                assert_eq!(session.run(&Ops::default()).await.status, OK);
                assert_eq!(session.open(b"b", b"other", 3).await.err(), has_opens.then_some(GRACE));
                ctx.sleep(Duration::from_secs(25)).await;
                assert_eq!(session.run(&Ops::default()).await.status, OK);
                ctx.sleep(Duration::from_secs(10)).await;
                assert!(session.open(b"c", b"third", 3).await.is_ok());
            });
        });
    }
}

#[test]
fn a_silent_client_loses_what_it_had_and_others_may_have_it() {
    with_two(async |mut one, mut two, ctx| {
        assert!(one.open(b"a", b"file", 3).await.is_ok());
        for _ in 0..4 {
            assert_eq!(two.open(b"a", b"file", 0).await, Err(SHARE_DENIED));
            ctx.sleep(Duration::from_secs(10)).await;
            assert_eq!(one.run(&Ops::default()).await.status, OK, "it is heard");
        }
        for _ in 0..5 {
            ctx.sleep(Duration::from_secs(10)).await;
            assert_eq!(two.run(&Ops::default()).await.status, OK);
        }
        assert!(two.open(b"a", b"file", 0).await.is_ok());
        assert_eq!(one.run(&Ops::default()).await.status, BADSESSION);
    });
}

#[test]
fn requests_of_random_operations_are_answered_and_the_gateway_lives() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        let mut client = stage.client();
        let mut session = stage.world.run(async {
            let client = stage.client();
            Session::new(client, b"client").await
        });
        for round in 0..500_u32 {
            let mut ops = Ops::default();
            for _ in 0..rng.index(4) {
                if rng.chance(1, 2) {
                    ops = ops.root();
                }
                ops = ops.op(3 + rng.index(75) as u32);
                let mut bytes = vec![0; 4 * rng.index(30)];
                rng.fill(&mut bytes);
                for word in bytes.chunks_mut(4) {
                    // Small numbers mean more.
                    let kept = rng.index(5);
                    word[..kept.min(3)].fill(0);
                }
                ops = ops.raw(&bytes);
            }
            stage.world.run(async {
                let told = session.run(&ops).await;
                assert!(told.results <= 1 + ops.count);
                compound(&mut client, 1, &ops).await;
            });
            if stage.world.run(session.run(&Ops::default())).status != OK {
                // The session was destroyed, by chance.
                let client = stage.client();
                session = stage.world.run(Session::new(client, &round.to_be_bytes()));
            }
        }
    });
}

#[test]
fn locks_hold_between_clients_and_end_with_the_open_file() {
    with_two(async |mut one, mut two, _| {
        let first = one.open(b"a", b"file", 0).await.unwrap();
        let second = two.open(b"a", b"file", 0).await.unwrap();
        assert_eq!(one.on(b"file", |ops| ops.lock(&first, b"l", false)).await, OK);
        assert_eq!(two.on(b"file", |ops| ops.lock(&second, b"l", false)).await, DENIED);
        assert_eq!(one.on(b"file", |ops| ops.lock(&first, b"l", true)).await, NO_GRACE);
        assert_eq!(one.on(b"file", |ops| ops.close(&first)).await, OK);
        assert_eq!(two.on(b"file", |ops| ops.lock(&second, b"l", false)).await, OK);
    });
}

pub(crate) const TABLE: &str = r#"
[[export]]
path = "/a/b"
[[export.client]]
network = "10.0.0.0/8"
access = "rw"
squash = "no_root_squash"

[[export]]
path = "/a/b/inner"
[[export.client]]
network = "10.0.0.0/8"

[[export]]
path = "/a/c"
[[export.client]]
network = "10.1.0.0/16"
"#;

/// Names in the root's directory at `path`, by READDIR.
async fn names(session: &mut Session, path: &[&[u8]]) -> Result<Vec<Vec<u8>>, u32> {
    let at = path.iter().fold(Ops::default().root(), |ops, name| ops.lookup(name));
    let ops = at.op(26).long(0).long(0).word(4096).word(4096).word(0);
    let told = session.run(&ops).await;
    if told.status != OK {
        return Err(told.status);
    }
    let mut bytes = &told.bytes[RESULT * (1 + path.len()) + RESULT + 8..];
    let mut names = Vec::new();
    while bytes.get_u32() == 1 {
        let _cookie = bytes.get_u64();
        let length = bytes.get_u32() as usize;
        names.push(bytes[..length].to_vec());
        bytes.advance(length.next_multiple_of(4));
        // No attributes.
        assert_eq!((bytes.get_u32(), bytes.get_u32()), (0, 0));
    }
    assert_eq!(bytes.get_u32(), 1, "all of it");
    Ok(names)
}

#[test]
fn above_the_exports_only_the_way_to_them_is_seen_and_nothing_can_be_changed() {
    with_seed(|rng| {
        let stage = Stage::with(rng, config(VOLUME));
        stage.run(async |mut client, root| {
            let a = client.directory(&root, "a").await;
            for name in ["b", "c", "secret"] {
                client.directory(&a, name).await;
            }
            let b = client.lookup(&a, b"b").await.unwrap().object;
            client.directory(&b, "inner").await;
        });
        stage.gateway.export(Settings::parse(TABLE, "table").expect("a good table").exports);
        let client = stage.client_at("10.2.0.1:700");
        let stranger = stage.client_at("11.0.0.1:700");
        stage.world.run(async {
            let mut session = Session::new(client, b"client").await;
            assert_eq!(names(&mut session, &[]).await, Ok(vec![b"a".to_vec()]));
            assert_eq!(names(&mut session, &[b"a"]).await, Ok(vec![b"b".to_vec()]));
            assert_eq!(names(&mut session, &[b"a", b"secret"]).await, Err(NOENT));
            assert_eq!(names(&mut session, &[b"a", b"c"]).await, Err(NOENT), "not for this one");
            let at = |path: &[&[u8]]| {
                path.iter().fold(Ops::default().root(), |ops, name| ops.lookup(name))
            };
            let make = |ops: Ops, name: &[u8]| ops.op(6).word(2).opaque(name).word(0).word(0);
            let status = async |session: &mut Session, ops: Ops| session.run(&ops).await.status;
            assert_eq!(status(&mut session, make(at(&[b"a"]), b"new")).await, ROFS);
            assert_eq!(status(&mut session, make(at(&[b"a", b"b"]), b"new")).await, OK);
            let inner = at(&[b"a", b"b", b"inner"]);
            assert_eq!(status(&mut session, make(inner, b"new")).await, ROFS, "its own rules");
            // SETATTR of nothing: refused, and the result tells that nothing was set.
            let set = at(&[b"a"]).op(34).raw(&[0; 16]).word(0).word(0);
            let told = session.run(&set).await;
            assert_eq!(
                (told.status, &told.bytes[16..]),
                (ROFS, &[0, 0, 0, 34, 0, 0, 0, 30, 0, 0, 0, 0][..])
            );
            // LOOKUPP, all the way up, and no further.
            let up = |ops: Ops, times: usize| (0..times).fold(ops, |ops, _| ops.op(16));
            let deep = || at(&[b"a", b"b", b"inner"]);
            assert_eq!(status(&mut session, up(deep(), 1).lookup(b"new")).await, OK);
            assert_eq!(status(&mut session, up(deep(), 3).lookup(b"a")).await, OK);
            assert_eq!(status(&mut session, up(at(&[b"a"]), 2)).await, NOENT);
            let mut stranger = Session::new(stranger, b"stranger").await;
            assert_eq!(names(&mut stranger, &[]).await, Err(13), "ACCESS");
        });
    });
}

#[test]
fn clients_without_a_session_do_not_keep_others_out() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        let other = stage.client();
        stage.run(async |mut client, _| {
            let mut session = Session::new(other, b"client").await;
            for number in 0..1100_u32 {
                let name = number.to_be_bytes();
                let exchange = Ops::default().op(42).long(7).opaque(&name).word(0).word(0).word(0);
                assert_eq!(compound(&mut client, 1, &exchange).await.status, OK);
            }
            assert_eq!(session.run(&Ops::default()).await.status, OK);
            let mut late = Session::new(client, b"late").await;
            assert_eq!(late.run(&Ops::default()).await.status, OK);
        });
    });
}
