//! Delegations of version 4.1: granted, recalled, returned, revoked. The test is the node that
//! delegates files to the gateway.

use std::cell::RefCell;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use bytes::Buf as _;
use fileio::protocol::{
    BreakDelegations, DelegationRecall, Handle, LEASE, RECALLS_INTERVAL, Reply, Request,
};
use futures::future::{Either, select};
use runtime::NodeId;
use runtime::seed::with_seed;

use crate::callbacks4::{CB_PATH_DOWN, called, reachable, reachable_with};
use crate::kit::{Act, Client, Stage};
use crate::v4::{BAD_STATEID, OK, OPENMODE, Ops, PROGRAM_4, RESULT, SHARE_DENIED, Session};

const NOTSUPP: u32 = 10_004;
const DELEG_REVOKED: u32 = 10_087;
/// `SEQ4_STATUS_RECALLABLE_STATE_REVOKED`.
const RECALLABLE_STATE_REVOKED: u32 = 0x40;

/// The lease of the gateway at all nodes.
const LEASE_NUMBER: u64 = 77;

#[derive(Default)]
struct Granted {
    files: Vec<DelegationRecall>,
    recalled: Vec<DelegationRecall>,
    returned: Vec<Handle>,
    broken: Vec<BreakDelegations>,
    /// The node knows the gateway no more.
    is_lost: bool,
}

/// The nodes, as far as they delegate files.
#[derive(Clone)]
pub(crate) struct Delegator(Rc<RefCell<Granted>>);

impl Delegator {
    pub(crate) fn new(stage: &Stage) -> Self {
        let granted = Rc::new(RefCell::new(Granted::default()));
        let table = granted.clone();
        stage.service.rule(move |request| {
            let mut table = table.borrow_mut();
            let reply = match request {
                Request::Delegate(r) => {
                    table.files.push(DelegationRecall { file: r.file, number: r.number });
                    Reply::Delegate(Ok(Some(LEASE_NUMBER)))
                }
                Request::GetRecalls(_) => {
                    let recalls = (!table.is_lost).then(|| table.recalled.clone());
                    Reply::GetRecalls(Ok(recalls))
                }
                Request::ReturnDelegation(r) => {
                    table.files.retain(|known| known.file != r.file);
                    table.recalled.retain(|known| known.file != r.file);
                    table.returned.push(r.file);
                    Reply::ReturnDelegation(Ok(()))
                }
                Request::BreakDelegations(r) => {
                    table.broken.push(r.clone());
                    Reply::BreakDelegations(Ok(()))
                }
                // Clients may have something to reclaim.
                Request::HasOpens(_) => Reply::HasOpens(Ok(true)),
                _ => return Act::Answer,
            };
            Act::AnswerWith(reply)
        });
        Self(granted)
    }

    /// Recalls all that was delegated.
    pub(crate) fn recall_all(&self) {
        let mut table = self.0.borrow_mut();
        let files = table.files.clone();
        table.recalled.extend(files);
    }

    /// The node does not know the gateway any more.
    fn lose(&self) {
        self.0.borrow_mut().is_lost = true;
    }

    /// The number of files that were returned.
    fn returned(&self) -> usize {
        self.0.borrow().returned.len()
    }

    /// The number of files that are delegated.
    fn delegated_files(&self) -> usize {
        self.0.borrow().files.len()
    }

    /// OPEN of a file in the root to be read, with this want: the stateid of the delegation, or the
    /// words in its place; and the stateid of the open file.
    pub(crate) async fn open(
        &self,
        session: &mut Session,
        name: &[u8],
        want: u32,
    ) -> (Option<Vec<u8>>, Vec<u32>, Vec<u8>) {
        let told = session.run(&opening(name, 1 | want)).await;
        assert_eq!(told.status, OK);
        let (open, rest) = after_open(&told.bytes);
        let words: Vec<u32> = rest.chunks_exact(4).map(|mut word| word.get_u32()).collect();
        (delegation(&rest), words, open)
    }

    /// A delegation of a file in the root: its stateid.
    pub(crate) async fn delegated(&self, session: &mut Session, name: &[u8]) -> Vec<u8> {
        self.open(session, name, 0x100).await.0.expect("a delegation")
    }
}

/// OPEN of a file in the root, made if it is not there.
fn opening(name: &[u8], access: u32) -> Ops {
    opening_at(Ops::default().root(), name, access)
}

/// The same of a file in the current directory.
fn opening_at(at: Ops, name: &[u8], access: u32) -> Ops {
    let ops = at.op(18).word(0).word(access).word(0).long(0).opaque(b"owner");
    let ops = ops.word(1).word(0).word(2).word(0).word(2).word(4).word(0o644);
    ops.word(0).opaque(name)
}

/// The stateid in the results of PUTROOTFH and OPEN, and its `open_delegation4`.
fn after_open(bytes: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let at = RESULT + RESULT;
    let (stateid, mut rest) = bytes[at..].split_at(16);
    rest.advance(20 + 4);
    let words = rest.get_u32() as usize;
    (stateid.to_vec(), rest[4 * words..].to_vec())
}

/// The stateid of an `open_delegation4` to read.
fn delegation(mut offer: &[u8]) -> Option<Vec<u8>> {
    if offer.get_u32() != 1 {
        return None;
    }
    let stateid = offer[..16].to_vec();
    // Not recalled already; an access control entry that permits nothing.
    assert_eq!(&offer[16..], &[0; 5 * 4]);
    Some(stateid)
}

/// The status of a READ of a file in the root.
async fn read(session: &mut Session, name: &[u8], stateid: &[u8]) -> u32 {
    session.on(name, |ops| ops.op(25).raw(stateid).long(0).word(10)).await
}

async fn give_back(session: &mut Session, name: &[u8], stateid: &[u8]) -> u32 {
    session.on(name, |ops| ops.op(8).raw(stateid)).await
}

/// The status in the result of `TEST_STATEID`.
async fn test_stateid(session: &mut Session, stateid: &[u8]) -> u32 {
    let told = session.run(&Ops::default().op(55).word(1).raw(stateid)).await;
    (&told.bytes[RESULT + 4..]).get_u32()
}

/// The metrics of delegations: those that there are, those granted, recalled, returned, revoked.
#[track_caller]
fn check_totals(stage: &Stage, totals: [u64; 5]) {
    let text = stage.gateway.metrics();
    let names = ["", "_granted_total", "_recalled_total", "_returned_total", "_revoked_total"];
    let told = names.map(|name| {
        let name = format!("mdfs_nfs_delegations{name} ");
        let value = text.lines().find_map(|line| line.strip_prefix(&name));
        value.and_then(|value| value.parse().ok()).unwrap_or(u64::MAX)
    });
    assert_eq!(told, totals);
}

#[test]
fn a_delegation_is_granted_recalled_and_returned() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        let delegator = Delegator::new(&stage);
        let ctx = stage.world.context(NodeId::fs(0));
        stage.run(async |client, _| {
            let mut session = reachable(client, b"client").await;
            let stateid = delegator.delegated(&mut session, b"file").await;
            assert_eq!(read(&mut session, b"file", &stateid).await, OK);
            assert_eq!(test_stateid(&mut session, &stateid).await, OK);
            let write = session.on(b"file", |ops| ops.write(&stateid, b"data")).await;
            assert_eq!(write, OPENMODE);
            delegator.recall_all();
            let (call, recall) = called(&mut session.client).await;
            let told = session.run(&Ops::default().root().lookup(b"file").op(10)).await;
            let handle = told.bytes[3 * RESULT + 4..].to_vec();
            let (recalled, by_handle) = recall.recalled();
            assert_eq!(recalled, stateid);
            assert!(handle.starts_with(&by_handle), "the handle that the client knows");
            session.client.answer(&call, &recall.result(OK)).await;
            assert_eq!(give_back(&mut session, b"other", &stateid).await, 2, "no such file");
            assert_eq!(delegator.returned(), 0);
            assert_eq!(give_back(&mut session, b"file", &stateid).await, OK);
            assert_eq!(give_back(&mut session, b"file", &stateid).await, BAD_STATEID);
            ctx.sleep(Duration::from_millis(10)).await;
            assert_eq!((delegator.returned(), session.flags), (1, 0));
            check_totals(&stage, [0, 1, 1, 1, 0]);
        });
    });
}

#[test]
fn a_client_gets_a_delegation_if_it_can_be_recalled_and_is_wanted() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        let delegator = Delegator::new(&stage);
        let other = stage.client();
        stage.run(async |client, _| {
            let mut deaf = Session::new(other, b"deaf").await;
            assert_eq!(delegator.open(&mut deaf, b"file", 0x100).await.1, [3, 2, 0]);
            assert_eq!(delegator.open(&mut deaf, b"file", 0).await.1, [0]);
            let mut session = reachable(client, b"client").await;
            assert_eq!(delegator.open(&mut session, b"a", 0x400).await.1, [3, 0]);
            assert_eq!(delegator.open(&mut session, b"a", 0x500).await.1, [3, 7]);
            assert_eq!(delegator.open(&mut session, b"a", 0x200).await.1, [3, 4]);
            assert_eq!(delegator.delegated_files(), 0);
            for (name, want) in [(b"a", 0), (b"b", 0x100), (b"c", 0x300)] {
                assert!(delegator.open(&mut session, name, want).await.0.is_some());
            }
            // It has one already.
            assert_eq!(delegator.open(&mut session, b"a", 0x100).await.1, [3, 2, 0]);
            // Its own writes would recall it.
            let told = session.run(&opening(b"d", 3 | 0x300)).await;
            assert_eq!(delegation(&after_open(&told.bytes).1), None);
            // The file is open for writing.
            let told = deaf.run(&opening(b"e", 3)).await;
            assert_eq!(told.status, OK);
            assert_eq!(delegator.open(&mut session, b"e", 0x100).await.1, [3, 1, 0]);
        });
    });
}

#[test]
fn an_open_for_writing_waits_for_the_delegations_of_others() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        let delegator = Delegator::new(&stage);
        let (second, third) = (stage.client(), stage.client());
        let ctx = stage.world.context(NodeId::fs(0));
        stage.run(async |client, _| {
            let mut reader = reachable(client, b"reader").await;
            let mut writer = reachable(second, b"writer").await;
            let stateid = delegator.delegated(&mut reader, b"file").await;
            let own = delegator.delegated(&mut writer, b"file").await;
            assert_eq!(delegator.delegated_files(), 1, "the gateway asks once");
            let writing = send_open(&mut writer, &opening(b"file", 3)).await;
            let (call, recall) = called(&mut reader.client).await;
            assert_eq!(recall.recalled().0, stateid);
            reader.client.answer(&call, &recall.result(OK)).await;
            // Meanwhile it is not granted to others.
            let mut late = reachable(third, b"late").await;
            assert_eq!(delegator.open(&mut late, b"file", 0x100).await.1, [3, 1, 0]);
            let second = ctx.sleep(Duration::from_secs(1));
            let waits =
                matches!(select(pin!(writer.client.receive()), second).await, Either::Right(_));
            assert!(waits, "it is opened too early");
            assert_eq!(give_back(&mut reader, b"file", &stateid).await, OK);
            let (xid, _) = writer.client.receive().await.unwrap();
            assert_eq!(xid, writing);
            assert_eq!(test_stateid(&mut writer, &own).await, OK, "its own one stays");
            let table = delegator.0.borrow();
            let holder = table.broken[0].except;
            assert!(holder != 0 && table.returned.is_empty());
        });
    });
}

/// Sends operations in slot 1.
async fn send_open(session: &mut Session, ops: &Ops) -> u32 {
    let arguments = session.ops(1, 1, ops).compound(2);
    let (xid, record) = session.client.record(PROGRAM_4, &arguments);
    assert!(session.client.send_record(&record).await);
    xid
}

#[test]
fn a_change_by_another_client_recalls_without_waiting_for_the_node() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        let delegator = Delegator::new(&stage);
        let second = stage.client();
        let ctx = stage.world.context(NodeId::fs(0));
        stage.run(async |client, _| {
            let mut reader = reachable(client, b"reader").await;
            let stateid = delegator.delegated(&mut reader, b"file").await;
            let mut other = Session::new(second, b"other").await;
            let begun = ctx.now();
            // SETATTR of the mode.
            let anonymous = [0; 16];
            let set = |ops: Ops| ops.op(34).raw(&anonymous).word(2).word(0).word(2).word(4);
            assert_eq!(other.on(b"file", |ops| set(ops).word(0o600)).await, OK);
            let (call, recall) = called(&mut reader.client).await;
            assert_eq!(recall.recalled().0, stateid);
            assert!(ctx.now() < begun + RECALLS_INTERVAL, "the node has not recalled it");
            reader.client.answer(&call, &recall.result(OK)).await;
        });
    });
}

#[test]
fn an_open_that_denies_reading_waits_for_delegations() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        let delegator = Delegator::new(&stage);
        let second = stage.client();
        // Opens that deny something wait for the end of the grace period.
        stage.world.advance(Duration::from_secs(61));
        stage.run(async |client, _| {
            let mut reader = reachable(client, b"reader").await;
            let (granted, _, open) = delegator.open(&mut reader, b"file", 0x100).await;
            let stateid = granted.unwrap();
            assert_eq!(reader.on(b"file", |ops| ops.close(&open)).await, OK);
            let mut other = Session::new(second, b"other").await;
            let denying = Ops::default().root().op(18).word(0).word(1).word(1).long(0);
            let denying = denying.opaque(b"owner").word(0).word(0).opaque(b"file");
            send_open(&mut other, &denying).await;
            let (call, recall) = called(&mut reader.client).await;
            reader.client.answer(&call, &recall.result(OK)).await;
            assert_eq!(give_back(&mut reader, b"file", &stateid).await, OK);
            assert!(other.client.receive().await.is_some());
            let opened = reader.run(&opening(b"file", 1 | 0x100)).await;
            assert_eq!(opened.status, SHARE_DENIED);
        });
    });
}

#[test]
fn what_is_not_returned_in_time_is_revoked() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        let delegator = Delegator::new(&stage);
        let ctx = stage.world.context(NodeId::fs(0));
        stage.run(async |client, _| {
            let mut session = reachable(client, b"client").await;
            let stateid = delegator.delegated(&mut session, b"file").await;
            delegator.recall_all();
            let (call, recall) = called(&mut session.client).await;
            session.client.answer(&call, &recall.result(OK)).await;
            ctx.sleep(Duration::from_secs(9)).await;
            assert_eq!(
                (delegator.returned(), read(&mut session, b"file", &stateid).await),
                (0, OK)
            );
            ctx.sleep(Duration::from_secs(2)).await;
            assert_eq!(delegator.returned(), 1);
            assert_eq!(read(&mut session, b"file", &stateid).await, DELEG_REVOKED);
            assert_eq!(session.flags, RECALLABLE_STATE_REVOKED);
            assert_eq!(test_stateid(&mut session, &stateid).await, DELEG_REVOKED);
            assert_eq!(give_back(&mut session, b"file", &stateid).await, DELEG_REVOKED);
            check_totals(&stage, [0, 1, 1, 0, 1]);
            let free = Ops::default().op(45).raw(&stateid);
            assert_eq!(session.run(&free).await.status, OK);
            assert_eq!(test_stateid(&mut session, &stateid).await, BAD_STATEID);
            assert_eq!(session.flags, 0);
        });
    });
}

#[test]
fn a_client_that_cannot_be_reached_loses_its_delegation() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        let delegator = Delegator::new(&stage);
        let other = stage.client();
        let ctx = stage.world.context(NodeId::fs(0));
        stage.run(async |client, _| {
            let mut session = reachable(client, b"client").await;
            let stateid = delegator.delegated(&mut session, b"file").await;
            session.client = other;
            delegator.recall_all();
            ctx.sleep(Duration::from_secs(11)).await;
            assert_eq!(delegator.returned(), 1);
            assert_eq!(read(&mut session, b"file", &stateid).await, DELEG_REVOKED);
            let down = session.flags & CB_PATH_DOWN;
            assert_eq!((down, session.flags & RECALLABLE_STATE_REVOKED), (1, 0x40));
        });
    });
}

#[test]
fn what_its_node_has_forgotten_is_revoked_at_once() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        let delegator = Delegator::new(&stage);
        stage.run(async |client, _| {
            let mut session = reachable(client, b"client").await;
            let stateid = delegator.delegated(&mut session, b"file").await;
            delegator.lose();
            // The client hears of it, so that it does not trust it any longer.
            let (call, recall) = called(&mut session.client).await;
            assert_eq!(recall.recalled().0, stateid);
            session.client.answer(&call, &recall.result(OK)).await;
            assert_eq!(read(&mut session, b"file", &stateid).await, DELEG_REVOKED);
        });
    });
}

#[test]
fn the_delegations_of_a_client_end_with_it() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        let delegator = Delegator::new(&stage);
        let ctx = stage.world.context(NodeId::fs(0));
        stage.run(async |client, _| {
            let mut session = reachable(client, b"client").await;
            delegator.delegated(&mut session, b"file").await;
            ctx.sleep(2 * LEASE).await;
            assert_eq!(delegator.returned(), 1);
        });
    });
}

#[test]
fn a_file_is_opened_by_virtue_of_a_delegation() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        let delegator = Delegator::new(&stage);
        stage.run(async |client, _| {
            let mut session = reachable(client, b"client").await;
            let (granted, _, open) = delegator.open(&mut session, b"file", 0x100).await;
            let stateid = granted.unwrap();
            assert_eq!(session.on(b"file", |ops| ops.close(&open)).await, OK);
            let claim = |ops: Ops, access: u32, claim: u32| {
                let ops = ops.op(18).word(0).word(access).word(0).long(0).opaque(b"late");
                ops.word(0).word(claim)
            };
            // CLAIM_DELEGATE_CUR, by name; CLAIM_DELEG_CUR_FH, by handle.
            let by_name = |name: &[u8], access| {
                claim(Ops::default().root(), access, 2).raw(&stateid).opaque(name)
            };
            assert_eq!(session.run(&by_name(b"file", 1)).await.status, OK);
            assert_eq!(session.run(&by_name(b"file", 3)).await.status, OPENMODE);
            delegator.open(&mut session, b"other", 0x400).await;
            assert_eq!(session.run(&by_name(b"other", 1)).await.status, BAD_STATEID);
            let by_handle = session.on(b"file", |ops| claim(ops, 1, 5).raw(&stateid)).await;
            assert_eq!(by_handle, OK);
            assert_eq!(session.on(b"file", |ops| claim(ops, 1, 5).raw(&open)).await, BAD_STATEID);
            // Delegations do not outlive the client.
            assert_eq!(session.on(b"file", |ops| claim(ops, 1, 6)).await, NOTSUPP);
        });
    });
}

#[test]
fn a_delegation_is_reclaimed_after_a_restart() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        let delegator = Delegator::new(&stage);
        let other = stage.client();
        stage.run(async |client, _| {
            let mut maker = Session::new(other, b"maker").await;
            delegator.open(&mut maker, b"file", 0x400).await;
            let security = Ops::default().word(1).word(0);
            let mut session = Session::created(client, b"client", (2, 4), &security).await;
            let reclaim = |kind: u32| {
                let ops = Ops::default().root().lookup(b"file").op(18).word(0).word(1).word(0);
                ops.long(0).opaque(&kind.to_be_bytes()).word(0).word(1).word(kind)
            };
            for (kind, is_granted) in [(0, false), (2, false), (1, true)] {
                let told = session.run(&reclaim(kind)).await;
                assert_eq!(told.status, OK);
                let (_, offer) = after_open(&told.bytes[RESULT..]);
                assert_eq!(delegation(&offer).is_some(), is_granted, "{kind}");
            }
        });
    });
}

#[test]
fn a_client_with_too_many_delegations_is_asked_to_return_some() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        let delegator = Delegator::new(&stage);
        stage.run(async |client: Client, _| {
            let mut session = reachable_with(client, b"client", 4).await;
            // In directories, since the reference is slow with large ones.
            for directory in 0..64_u32 {
                let directory = directory.to_string().into_bytes();
                let make = Ops::default().root().op(6).word(2).opaque(&directory);
                assert_eq!(session.run(&make.word(0).word(0)).await.status, OK);
                for file in 0..64_u32 {
                    let name = file.to_string().into_bytes();
                    let at = Ops::default().root().lookup(&directory);
                    let told = session.run(&opening_at(at, &name, 1)).await;
                    assert_eq!(told.status, OK);
                    let (open, offer) = after_open(&told.bytes[RESULT..]);
                    assert!(delegation(&offer).is_some(), "{file}");
                    let at = Ops::default().root().lookup(&directory);
                    let close = at.lookup(&name).close(&open);
                    assert_eq!(session.run(&close).await.status, OK);
                }
            }
            assert_eq!(delegator.open(&mut session, b"last", 0x100).await.1, [3, 2, 0]);
            let (call, recall) = called(&mut session.client).await;
            // CB_RECALL_ANY: how many to keep, and both kinds.
            assert_eq!(
                (recall.operation, &recall.arguments[..]),
                (8, &[0, 0, 8, 0, 0, 0, 0, 1, 0, 0, 0, 3][..])
            );
            session.client.answer(&call, &recall.result(OK)).await;
        });
    });
}
