//! The back channel of version 4.1: which connections it has, and how callbacks go over them.

use std::time::Duration;

use bytes::{Buf as _, Bytes};
use fileio::protocol::{ByteRange, FileLock, LockKind, LockOwner, LockResult, Reply, Request};
use nfs3_types::nfs3::PROGRAM;
use runtime::NodeId;
use runtime::seed::with_seed;

use crate::delegations4::Delegator;
use crate::kit::{Act, Callback, Client, Stage, Verdict};
use crate::v4::{CALLBACK_PROGRAM, DELAY, DENIED, OK, Ops, PROGRAM_4, RESULT, Session, compound};

const NOENT: u32 = 2;
const INVAL: u32 = 22;
const SEQ_MISORDERED: u32 = 10_063;

/// `CREATE_SESSION4_FLAG_CONN_BACK_CHAN`.
const CONN_BACK_CHAN: u32 = 2;
/// Status flags of SEQUENCE.
pub(crate) const CB_PATH_DOWN: u32 = 1;
const CB_PATH_DOWN_SESSION: u32 = 0x200;
const BACKCHANNEL_FAULT: u32 = 0x400;

const CB_RECALL: u32 = 4;
const CB_SEQUENCE: u32 = 11;
const CB_NOTIFY_LOCK: u32 = 13;

/// `OPEN4_RESULT_MAY_NOTIFY_LOCK`.
const MAY_NOTIFY_LOCK: u32 = 0x20;

/// `callback_sec_parms4` of `AUTH_NONE`, of `AUTH_SYS` with this user, of `RPCSEC_GSS`.
fn none(ops: Ops) -> Ops {
    ops.word(0)
}
fn sys(ops: Ops, uid: u32) -> Ops {
    ops.word(1).word(7).opaque(b"host").word(uid).word(100).word(2).word(5).word(6)
}
fn gss(ops: Ops) -> Ops {
    ops.word(6).word(1).opaque(b"server").opaque(b"client")
}

/// A `CB_COMPOUND` with one operation after `CB_SEQUENCE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CbCompound {
    pub(crate) minor: u32,
    pub(crate) session: Vec<u8>,
    pub(crate) sequence: u32,
    pub(crate) slot: u32,
    /// Session, sequence id and slot of the request that it depends on.
    pub(crate) referring: Option<(Vec<u8>, u32, u32)>,
    pub(crate) operation: u32,
    pub(crate) arguments: Bytes,
}

impl CbCompound {
    pub(crate) fn parse(call: &Callback) -> Self {
        assert_eq!((call.program, call.procedure), (CALLBACK_PROGRAM, 1));
        let mut bytes = call.arguments.clone();
        assert_eq!(bytes.get_u32(), 0, "no tag");
        let minor = bytes.get_u32();
        assert_eq!((bytes.get_u32(), bytes.get_u32()), (0, 2), "two operations");
        assert_eq!(bytes.get_u32(), CB_SEQUENCE);
        let session = bytes.split_to(16).to_vec();
        let (sequence, slot, highest) = (bytes.get_u32(), bytes.get_u32(), bytes.get_u32());
        assert!(highest >= slot);
        assert_eq!(bytes.get_u32(), 0, "the reply is not to be cached");
        let referring = (bytes.get_u32() > 0).then(|| {
            let session = bytes.split_to(16).to_vec();
            assert_eq!(bytes.get_u32(), 1);
            (session, bytes.get_u32(), bytes.get_u32())
        });
        let operation = bytes.get_u32();
        Self { minor, session, sequence, slot, referring, operation, arguments: bytes }
    }

    /// The stateid and the file handle of a `CB_RECALL`.
    pub(crate) fn recalled(&self) -> (Vec<u8>, Vec<u8>) {
        assert_eq!(self.operation, CB_RECALL);
        let mut bytes = self.arguments.clone();
        let stateid = bytes.split_to(16).to_vec();
        assert_eq!(bytes.get_u32(), 0, "it is not truncated");
        let length = bytes.get_u32() as usize;
        (stateid, bytes[..length].to_vec())
    }

    /// A result with this status of the operation.
    pub(crate) fn result(&self, status: u32) -> Vec<u8> {
        let head = Ops::default().word(status).word(0).word(2).word(CB_SEQUENCE).word(OK);
        let head = head.raw(&self.session).word(self.sequence).word(self.slot).word(0).word(0);
        head.word(self.operation).word(status).encoded()
    }

    /// A result with this status of `CB_SEQUENCE`.
    fn refused(status: u32) -> Vec<u8> {
        Ops::default().word(status).word(0).word(1).word(CB_SEQUENCE).word(status).encoded()
    }
}

/// The next call, which is a `CB_COMPOUND`.
pub(crate) async fn called(client: &mut Client) -> (Callback, CbCompound) {
    let call = client.called().await.expect("a call");
    let parsed = CbCompound::parse(&call);
    (call, parsed)
}

/// Answers the `CB_NULL` that follows when a connection is bound.
pub(crate) async fn prove(client: &mut Client) {
    let call = client.called().await.expect("a call");
    assert_eq!((call.procedure, &call.arguments[..]), (0, &[][..]));
    client.answer(&call, &[]).await;
}

/// A client whose connection is bound, with this many slots of the back channel.
pub(crate) async fn reachable_with(client: Client, name: &[u8], slots: u32) -> Session {
    let security = none(Ops::default().word(1));
    let mut session = Session::created(client, name, (CONN_BACK_CHAN, slots), &security).await;
    prove(&mut session.client).await;
    session.complete().await;
    session
}

/// A client whose connection is bound.
pub(crate) async fn reachable(client: Client, name: &[u8]) -> Session {
    reachable_with(client, name, 4).await
}

/// `BIND_CONN_TO_SESSION`: the status, and the direction.
async fn bind(client: &mut Client, session: &[u8], wanted: u32) -> (u32, u32) {
    let ops = Ops::default().op(41).raw(session).word(wanted).word(0);
    let told = compound(client, 1, &ops).await;
    let direction = told.bytes.get(RESULT + 16..).filter(|bytes| !bytes.is_empty());
    (told.status, direction.map_or(0, |mut bytes| bytes.get_u32()))
}

/// A NULL call is answered, so everything before it was taken.
async fn ping(client: &mut Client) {
    assert_eq!(client.call([PROGRAM, 4, 0], &[]).await, Verdict::Done(Vec::new()));
}

#[test]
fn a_session_is_created_with_a_back_channel_as_far_as_it_is_usable() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        let clients: Vec<Client> = (0..5).map(|_| stage.client()).collect();
        stage.run(async |_, _| {
            let cases: [(u32, u32, Ops, u32, u32); 5] = [
                (CONN_BACK_CHAN, 4, none(Ops::default().word(1)), CONN_BACK_CHAN, 4),
                (CONN_BACK_CHAN, 99, sys(gss(Ops::default().word(2)), 17), CONN_BACK_CHAN, 16),
                (0, 4, none(Ops::default().word(1)), 0, 4),
                // Nothing that callbacks could be sent with.
                (CONN_BACK_CHAN, 4, Ops::default().word(0), 0, 4),
                (CONN_BACK_CHAN, 0, none(Ops::default().word(1)), 0, 0),
            ];
            for (index, (client, case)) in clients.into_iter().zip(cases).enumerate() {
                let (flags, slots, security, told_flags, told_slots) = case;
                let mut session = Session::recovering(client, &[index as u8]).await;
                let told = session.create_with(2, (flags, slots), &security).await;
                assert_eq!(told.status, OK);
                let mut bytes = &told.bytes[RESULT + 16 + 4..];
                assert_eq!(bytes.get_u32(), told_flags, "case {index}");
                // The limits of the fore channel, then those of the back channel.
                let mut back = &bytes[28..];
                assert_eq!(back.get_u32(), 0);
                assert!(back.get_u32() <= 1 << 20);
                // Linux offers a page, of 64 KiB on some machines, and takes no less.
                assert_eq!((&back[..]).get_u32(), 1 << 20, "the length of a reply");
                assert_eq!((&back[12..]).get_u32(), told_slots, "case {index}");
            }
        });
    });
}

#[test]
fn callbacks_with_unknown_credentials_are_refused() {
    with_seed(|rng| {
        Stage::new(rng).run(async |client, _| {
            let mut session = Session::new(client, b"client").await;
            let only_gss = gss(Ops::default().word(1));
            let told = session.create_with(2, (CONN_BACK_CHAN, 4), &only_gss).await;
            assert_eq!(told.status, NOENT);
            let control = Ops::default().op(40).word(1).word(1).word(6).word(1);
            let control = control.opaque(b"server").opaque(b"client");
            assert_eq!(session.run(&control).await.status, NOENT);
        });
    });
}

#[test]
fn a_connection_is_bound_in_the_direction_that_is_wanted() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        let (mut other, third) = (stage.client(), stage.client());
        stage.run(async |client, _| {
            let session = reachable(client, b"client").await;
            for (wanted, told) in [(1, 1), (2, 2), (3, 3), (7, 3)] {
                assert_eq!(bind(&mut other, &session.id, wanted).await, (OK, told));
                if wanted != 1 {
                    prove(&mut other).await;
                }
            }
            // Without security there are no callbacks.
            let mut deaf = Session::new(third, b"deaf").await;
            let id = deaf.id.clone();
            for (wanted, told) in [(1, (OK, 1)), (3, (OK, 1)), (7, (OK, 1)), (2, (INVAL, 0))] {
                assert_eq!(bind(&mut deaf.client, &id, wanted).await, told);
            }
        });
    });
}

#[test]
fn the_credential_of_callbacks_is_that_of_the_session_until_it_is_replaced() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        let delegator = Delegator::new(&stage);
        stage.run(async |client, _| {
            let security = sys(gss(Ops::default().word(2)), 17);
            let back = (CONN_BACK_CHAN, 4);
            let mut session = Session::created(client, b"client", back, &security).await;
            let body = |uid: u32| {
                let body = Ops::default().word(7).opaque(b"host").word(uid).word(100);
                (1, body.word(2).word(5).word(6).encoded())
            };
            let probe = session.client.called().await.unwrap();
            assert_eq!((probe.program, probe.credential.clone()), (CALLBACK_PROGRAM, body(17)));
            session.client.answer(&probe, &[]).await;
            session.complete().await;
            let stateid = delegator.delegated(&mut session, b"file").await;
            let control = sys(Ops::default().op(40).word(CALLBACK_PROGRAM).word(1), 29);
            assert_eq!(session.run(&control).await.status, OK);
            delegator.recall_all();
            let (call, recall) = called(&mut session.client).await;
            assert_eq!(call.credential, body(29));
            assert_eq!(recall.recalled().0, stateid);
        });
    });
}

#[test]
fn a_reply_that_is_not_awaited_is_ignored() {
    with_seed(|rng| {
        Stage::new(rng).run(async |mut client, _| {
            for length in [8, 12, 24, 400] {
                let mut reply = vec![0xff; length];
                reply[4..8].copy_from_slice(&1_u32.to_be_bytes());
                assert!(client.send_record(&reply).await);
            }
            ping(&mut client).await;
            // Neither a call nor a reply.
            assert!(client.send_record(&[0, 0, 0, 1, 0, 0, 0, 2]).await);
            assert_eq!(client.receive().await, None);
        });
    });
}

#[test]
fn each_answered_callback_advances_the_sequence_id_of_its_slot() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        let delegator = Delegator::new(&stage);
        let ctx = stage.world.context(NodeId::fs(0));
        stage.run(async |client, _| {
            let mut session = reachable_with(client, b"client", 1).await;
            let first = delegator.delegated(&mut session, b"first").await;
            let second = delegator.delegated(&mut session, b"second").await;
            delegator.recall_all();
            // There is one slot, so the second one waits for it.
            let (call, recall) = called(&mut session.client).await;
            assert_eq!((recall.sequence, recall.slot, recall.minor), (1, 0, 1));
            assert_eq!(recall.session, session.id);
            ctx.sleep(Duration::from_secs(1)).await;
            session.client.answer(&call, &recall.result(OK)).await;
            let (call, other) = called(&mut session.client).await;
            assert_eq!((other.sequence, other.slot), (2, 0));
            let mut both = vec![recall.recalled().0, other.recalled().0];
            both.sort();
            assert_eq!(both, [first, second]);
            // Its OPEN is the last request of the session, so its reply may be on the way.
            let newest = if other.recalled().0 == both[1] { &other } else { &recall };
            assert_eq!(newest.referring, Some((session.id.clone(), session.sequence(), 0)));
            session.client.answer(&call, &other.result(OK)).await;
            ping(&mut session.client).await;
        });
    });
}

#[test]
fn a_delayed_recall_is_sent_again() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        let delegator = Delegator::new(&stage);
        stage.run(async |client, _| {
            let mut session = reachable(client, b"client").await;
            delegator.delegated(&mut session, b"file").await;
            delegator.recall_all();
            let mut sequences = Vec::new();
            for answer in ["delayed", "not begun", "delayed", "done"] {
                let (call, recall) = called(&mut session.client).await;
                sequences.push(recall.sequence);
                let result = match answer {
                    "delayed" => recall.result(DELAY),
                    "not begun" => CbCompound::refused(DELAY),
                    _ => recall.result(OK),
                };
                session.client.answer(&call, &result).await;
            }
            assert_eq!(sequences, [1, 2, 2, 3]);
        });
    });
}

#[test]
fn a_callback_goes_over_another_connection_if_one_is_silent_or_broken() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        let delegator = Delegator::new(&stage);
        let (mut second, mut third) = (stage.client(), stage.client());
        let ctx = stage.world.context(NodeId::fs(0));
        stage.run(async |client, _| {
            let mut session = reachable(client, b"client").await;
            for other in [&mut second, &mut third] {
                assert_eq!(bind(other, &session.id, 7).await, (OK, 3));
                prove(other).await;
            }
            delegator.delegated(&mut session, b"file").await;
            // The newest connection is broken, the next one is silent.
            drop(third);
            delegator.recall_all();
            let (_, lost) = called(&mut second).await;
            let (call, recall) = called(&mut session.client).await;
            assert_eq!(recall, lost, "the same callback with the same sequence id");
            session.client.answer(&call, &recall.result(OK)).await;
            ctx.sleep(Duration::from_secs(1)).await;
            ping(&mut session.client).await;
            assert!(!session.client.has_calls(), "it is recalled once");
            let told = session.run(&Ops::default().root()).await;
            assert_eq!((told.status, session.flags), (OK, 0), "one connection works");
        });
    });
}

#[test]
fn a_callback_that_was_not_answered_comes_first_over_a_new_connection() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        let delegator = Delegator::new(&stage);
        let mut second = stage.client();
        let ctx = stage.world.context(NodeId::fs(0));
        stage.run(async |client, _| {
            let mut session = reachable(client, b"client").await;
            delegator.delegated(&mut session, b"file").await;
            delegator.recall_all();
            let (_, lost) = called(&mut session.client).await;
            ctx.sleep(Duration::from_secs(4)).await;
            session.run(&Ops::default().root()).await;
            assert_eq!(session.flags, CB_PATH_DOWN | CB_PATH_DOWN_SESSION);
            assert_eq!(bind(&mut second, &session.id, 7).await, (OK, 3));
            prove(&mut second).await;
            session.run(&Ops::default().root()).await;
            assert_eq!(session.flags, 0);
            for sequence in [1, 2] {
                let (call, recall) = called(&mut second).await;
                assert_eq!(recall.sequence, sequence);
                assert_eq!(recall.recalled(), lost.recalled());
                if sequence == 1 {
                    assert_eq!(recall, lost);
                }
                second.answer(&call, &recall.result(OK)).await;
            }
            ping(&mut second).await;
        });
    });
}

#[test]
fn a_client_that_disagrees_about_a_slot_must_replace_the_session() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        let delegator = Delegator::new(&stage);
        stage.run(async |client, _| {
            let mut session = reachable(client, b"client").await;
            delegator.delegated(&mut session, b"file").await;
            delegator.recall_all();
            let (call, _) = called(&mut session.client).await;
            session.client.answer(&call, &CbCompound::refused(SEQ_MISORDERED)).await;
            ping(&mut session.client).await;
            session.run(&Ops::default().root()).await;
            assert_eq!(session.flags, CB_PATH_DOWN | BACKCHANNEL_FAULT);
            let security = none(Ops::default().word(1));
            let told = session.create_with(2, (CONN_BACK_CHAN, 4), &security).await;
            assert_eq!(told.status, OK);
            prove(&mut session.client).await;
            // The recall is sent again, in the new session.
            let (call, recall) = called(&mut session.client).await;
            assert_eq!(
                (&recall.session, recall.sequence),
                (&told.bytes[RESULT..RESULT + 16].to_vec(), 1)
            );
            session.client.answer(&call, &recall.result(OK)).await;
            session.run(&Ops::default().root()).await;
            assert_eq!(session.flags, BACKCHANNEL_FAULT, "of the old session only");
        });
    });
}

#[test]
fn a_connection_that_answers_no_probe_is_not_used() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        let delegator = Delegator::new(&stage);
        let ctx = stage.world.context(NodeId::fs(0));
        stage.run(async |client, _| {
            let security = none(Ops::default().word(1));
            let back = (CONN_BACK_CHAN, 4);
            let mut session = Session::created(client, b"client", back, &security).await;
            session.complete().await;
            assert_eq!(session.flags, 0);
            assert_eq!(delegator.open(&mut session, b"file", 0x100).await.0, None);
            ctx.sleep(Duration::from_secs(4)).await;
            session.run(&Ops::default().root()).await;
            assert_eq!(session.flags, CB_PATH_DOWN | CB_PATH_DOWN_SESSION);
        });
    });
}

#[test]
fn a_callback_goes_out_before_the_replies_that_wait() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        let delegator = Delegator::new(&stage);
        let ctx = stage.world.context(NodeId::fs(0));
        stage.run(async |client, _| {
            let mut session = reachable(client, b"client").await;
            let large = session.open(b"owner", b"large", 0).await.unwrap();
            let data = vec![7; 900 << 10];
            let write = |ops: Ops| ops.write(&large, &data);
            assert_eq!(session.on(b"large", write).await, OK);
            delegator.delegated(&mut session, b"file").await;
            let read = Ops::default().root().lookup(b"large").op(25).raw(&large);
            let read = read.long(0).word(1 << 20);
            let mut sent = Vec::new();
            for slot in 1..4 {
                let arguments = session.ops(slot, 1, &read).uncached().compound(2);
                let (xid, record) = session.client.record(PROGRAM_4, &arguments);
                assert!(session.client.send_record(&record).await);
                sent.push(xid);
                ctx.sleep(Duration::from_millis(100)).await;
            }
            // The first reply is on its way, as far as the client receives.
            delegator.recall_all();
            ctx.sleep(Duration::from_millis(500)).await;
            let mut received = Vec::new();
            for xid in sent {
                assert_eq!(session.client.receive().await.map(|(reply, _)| reply), Some(xid));
                received.push(session.client.has_calls());
            }
            assert_eq!(received, [false, true, true]);
        });
    });
}

/// LOCK of all bytes by a new owner: with type 4 the client waits for the lock, to write.
fn lock(ops: Ops, kind: u32, open: &[u8], owner: &[u8]) -> Ops {
    let ops = ops.op(12).word(kind).word(0).long(0).long(u64::MAX);
    ops.word(1).word(0).raw(open).word(0).long(0).opaque(owner)
}

#[test]
fn a_client_that_waits_for_a_lock_is_told_when_it_is_free() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        let second = stage.client();
        let ctx = stage.world.context(NodeId::fs(0));
        stage.run(async |client, _| {
            let mut holder = Session::new(client, b"holder").await;
            let held = holder.open(b"owner", b"file", 0).await.unwrap();
            assert_eq!(holder.on(b"file", |ops| ops.lock(&held, b"holder", false)).await, OK);
            let mut waiter = reachable(second, b"waiter").await;
            let ops = Ops::default().root().open(b"owner", b"file", 0).op(10);
            let told = waiter.run(&ops).await;
            let open = told.bytes[2 * RESULT..2 * RESULT + 16].to_vec();
            // Behind the stateid and the change_info4.
            let flags = (&told.bytes[2 * RESULT + 16 + 20..]).get_u32();
            assert_eq!(flags & MAY_NOTIFY_LOCK, MAY_NOTIFY_LOCK);
            let denied = waiter.on(b"file", |ops| lock(ops, 4, &open, b"waiter")).await;
            assert_eq!(denied, DENIED);
            // As long as the lock is held, nothing is told; then at once.
            ctx.sleep(Duration::from_secs(5)).await;
            ping(&mut waiter.client).await;
            assert!(!waiter.client.has_calls());
            let began = ctx.now();
            assert_eq!(holder.on(b"file", |ops| ops.close(&held)).await, OK);
            let (call, notice) = called(&mut waiter.client).await;
            assert!(ctx.now() < began + Duration::from_millis(500));
            assert_eq!(notice.operation, CB_NOTIFY_LOCK);
            let mut arguments = notice.arguments.clone();
            let length = arguments.get_u32() as usize;
            let handle = arguments.split_to(length);
            arguments.advance(length.wrapping_neg() % 4);
            assert!(told.bytes.windows(length).any(|bytes| bytes == handle), "that of GETFH");
            assert_eq!(arguments.get_u64(), waiter.number);
            assert_eq!(arguments, Ops::default().opaque(b"waiter").encoded());
            waiter.client.answer(&call, &notice.result(OK)).await;
            assert_eq!(waiter.on(b"file", |ops| lock(ops, 4, &open, b"waiter")).await, OK);
        });
    });
}

#[test]
fn a_free_lock_causes_no_call_to_who_does_not_wait_or_cannot_be_reached() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        let (second, third) = (stage.client(), stage.client());
        let ctx = stage.world.context(NodeId::fs(0));
        stage.run(async |client, _| {
            let mut holder = Session::new(client, b"holder").await;
            let held = holder.open(b"owner", b"file", 0).await.unwrap();
            assert_eq!(holder.on(b"file", |ops| ops.lock(&held, b"holder", false)).await, OK);
            let mut other = reachable(second, b"other").await;
            let open = other.open(b"owner", b"file", 0).await.unwrap();
            let status = other.on(b"file", |ops| lock(ops, 2, &open, b"other")).await;
            assert_eq!(status, DENIED, "it does not wait");
            let mut deaf = Session::new(third, b"deaf").await;
            let told = deaf.run(&Ops::default().root().open(b"owner", b"file", 0)).await;
            let flags = (&told.bytes[2 * RESULT + 16 + 20..]).get_u32();
            assert_eq!(flags & MAY_NOTIFY_LOCK, 0);
            let open = told.bytes[2 * RESULT..2 * RESULT + 16].to_vec();
            let status = deaf.on(b"file", |ops| lock(ops, 4, &open, b"deaf")).await;
            assert_eq!(status, DENIED);
            assert_eq!(holder.on(b"file", |ops| ops.close(&held)).await, OK);
            ctx.sleep(Duration::from_secs(5)).await;
            ping(&mut other.client).await;
            ping(&mut deaf.client).await;
            assert!(!other.client.has_calls() && !deaf.client.has_calls());
        });
    });
}

#[test]
fn a_lock_that_becomes_free_elsewhere_is_told_soon() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        let second = stage.client();
        let ctx = stage.world.context(NodeId::fs(0));
        let is_held = std::rc::Rc::new(std::cell::Cell::new(true));
        let held = is_held.clone();
        // A lock of a client of another gateway.
        let range = ByteRange { first: 0, last: 9 };
        let owner = LockOwner { client: 1, id: 1 };
        let conflict = FileLock { owner, range, kind: LockKind::Exclusive {} };
        stage.service.rule(move |request| match request {
            Request::Lock(_) if held.get() => {
                let lock = LockResult::Conflict { lock: conflict };
                Act::AnswerWith(Reply::Lock(Ok(lock)))
            }
            Request::TestLock(_) if held.get() => {
                Act::AnswerWith(Reply::TestLock(Ok(Some(conflict))))
            }
            _ => Act::Answer,
        });
        stage.run(async |_, _| {
            let mut waiter = reachable(second, b"waiter").await;
            let open = waiter.open(b"owner", b"file", 0).await.unwrap();
            let status = waiter.on(b"file", |ops| lock(ops, 4, &open, b"waiter")).await;
            assert_eq!(status, DENIED);
            ctx.sleep(Duration::from_secs(3)).await;
            is_held.set(false);
            let began = ctx.now();
            let (_, notice) = called(&mut waiter.client).await;
            assert_eq!(notice.operation, CB_NOTIFY_LOCK);
            assert!(ctx.now() < began + Duration::from_secs(2));
        });
    });
}
