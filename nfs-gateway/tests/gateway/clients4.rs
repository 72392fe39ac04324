//! Records of version 4.1 clients and their sessions, and state ids, as RFC 8881 wants them.

use std::time::Duration;

use bytes::Buf as _;
use fileio::protocol::LEASE;
use runtime::seed::with_seed;
use runtime::{Context, NodeId};

use crate::kit::{Client, Stage};
use crate::v4::{BADSESSION, DENIED, OK, Ops, RESULT, SHARE_DENIED, Session, compound};

const INVAL: u32 = 22;
const TOOSMALL: u32 = 10_005;
const CLID_INUSE: u32 = 10_017;
const ATTRNOTSUPP: u32 = 10_032;
const STALE_CLIENTID: u32 = 10_022;
const SYMLINK: u32 = 10_029;
const LOCKS_HELD: u32 = 10_037;
/// That of RFC 8881 section 16.2.3.1.2.
const CURRENT: [u8; 16] = [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// Makes a record of a client: its number.
async fn exchange(client: &mut Client, name: &[u8]) -> u64 {
    let told =
        compound(client, 1, &Ops::default().op(42).long(7).opaque(name).word(0).long(0)).await;
    assert_eq!(told.status, OK);
    (&told.bytes[RESULT..]).get_u64()
}

/// The status of `CREATE_SESSION`, with a back channel of `bytes` and `operations`.
async fn create(
    client: &mut Client,
    number: u64,
    flags: u32,
    (bytes, operations): (u32, u32),
) -> u32 {
    let channel = |ops: Ops, bytes: u32, operations: u32| {
        ops.word(0).word(bytes).word(bytes).word(4096).word(operations).word(4).word(0)
    };
    let ops = Ops::default().op(43).long(number).word(1).word(flags);
    let ops = channel(channel(ops, 1 << 20, 12), bytes, operations).word(0).word(0);
    compound(client, 1, &ops).await.status
}

#[test]
fn a_session_is_made_only_as_it_can_be_used() {
    with_seed(|rng| {
        Stage::new(rng).run(async |mut client, _| {
            let number = exchange(&mut client, b"client").await;
            assert_eq!(create(&mut client, number, 0xF, (4096, 2)).await, INVAL);
            assert_eq!(create(&mut client, number, 0, (10, 2)).await, TOOSMALL);
            assert_eq!(create(&mut client, number, 0, (4096, 1)).await, TOOSMALL);
            assert_eq!(create(&mut client, number, 0, (4096, 2)).await, OK);
        });
    });
}

#[test]
fn a_record_is_made_with_known_flags_and_says_what_the_server_is() {
    with_seed(|rng| {
        Stage::new(rng).run(async |mut client, _| {
            let ask = async |client: &mut Client, flags| {
                let ops = Ops::default().op(42).long(7).opaque(b"client").word(flags).long(0);
                compound(client, 2, &ops).await
            };
            assert_eq!(ask(&mut client, 8).await.status, INVAL, "an undefined flag");
            let told = ask(&mut client, 3).await;
            assert_eq!(told.status, OK);
            // One entry: no domain, the name, no date.
            let name = concat!("MDFS ", env!("CARGO_PKG_VERSION")).as_bytes();
            let entry = Ops::default().word(1).opaque(b"").opaque(name).long(0).word(0).encoded();
            assert!(told.bytes.ends_with(&entry), "{:?}", told.bytes);
        });
    });
}

#[test]
fn only_who_made_a_record_confirms_it() {
    with_seed(|rng| {
        Stage::new(rng).run(async |mut client, _| {
            let number = exchange(&mut client, b"client").await;
            client.be(17, 17);
            assert_eq!(create(&mut client, number, 0, (4096, 2)).await, CLID_INUSE);
            client.be(0, 0);
            assert_eq!(create(&mut client, number, 0, (4096, 2)).await, OK);
        });
    });
}

#[test]
fn an_attribute_of_minor_version_2_is_unknown_in_minor_version_1() {
    with_seed(|rng| {
        Stage::new(rng).run(async |client, _| {
            let mut session = Session::new(client, b"client").await;
            let set = |word: usize, bit: u32| {
                let ops = Ops::default().root().op(34).raw(&[0; 16]).word(word as u32 + 1);
                (0..word).fold(ops, |ops, _| ops.word(0)).word(1 << bit).word(4).word(0)
            };
            // Which attribute, and the status in both minor versions: xattr_support can only be
            // read; mode_umask is not supported at all.
            let cases = [(82, ATTRNOTSUPP, INVAL), (81, ATTRNOTSUPP, ATTRNOTSUPP)];
            for (slot, (number, of_1, of_2)) in (1..).zip(cases) {
                let ops = set(number / 32, number as u32 % 32);
                for (sequence, (minor, status)) in (1..).zip([(1, of_1), (2, of_2)]) {
                    let ops = session.ops(slot, sequence, &ops);
                    let told = compound(&mut session.client, minor, &ops).await;
                    assert_eq!(told.status, status, "{number} in minor version {minor}");
                }
            }
        });
    });
}

#[test]
fn a_client_that_makes_no_session_ends_with_its_lease() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        let ctx = stage.world.context(NodeId::fs(0));
        stage.run(async |mut client, _| {
            let number = exchange(&mut client, b"client").await;
            ctx.sleep(LEASE + Duration::from_secs(1)).await;
            assert_eq!(create(&mut client, number, 0, (4096, 2)).await, STALE_CLIENTID);
        });
    });
}

#[test]
fn the_current_state_id_cannot_be_freed_while_its_file_is_open() {
    with_seed(|rng| {
        Stage::new(rng).run(async |client, _| {
            let mut session = Session::new(client, b"client").await;
            let ops = Ops::default().root().open(b"owner", b"file", 0).op(45).raw(&CURRENT);
            assert_eq!(session.run(&ops).await.status, LOCKS_HELD);
        });
    });
}

#[test]
fn a_symbolic_link_has_no_parent() {
    with_seed(|rng| {
        Stage::new(rng).run(async |client, _| {
            let mut session = Session::new(client, b"client").await;
            // CREATE of a link, with no attributes.
            let link = Ops::default().root().op(6).word(5).opaque(b"target").opaque(b"link");
            assert_eq!(session.run(&link.word(0).word(0)).await.status, OK);
            assert_eq!(session.on(b"link", |ops| ops.op(16)).await, SYMLINK);
        });
    });
}

#[test]
fn who_wants_no_delegation_is_told_that_it_gets_none() {
    with_seed(|rng| {
        Stage::new(rng).run(async |client, _| {
            let mut session = Session::new(client, b"client").await;
            for (want, why) in [(0, &[0][..]), (0x400, &[3, 0]), (0x100, &[3, 2, 0])] {
                let ops = Ops::default().root().op(18).word(0).word(3 | want).word(0).long(0);
                let ops = ops.opaque(b"owner").word(1).word(0).word(0).word(0).word(0);
                let told = session.run(&ops.opaque(b"file")).await;
                assert_eq!(told.status, OK);
                let why: Vec<u8> = why.iter().flat_map(|word: &u32| word.to_be_bytes()).collect();
                assert!(told.bytes.ends_with(&why), "{:?}", told.bytes);
            }
        });
    });
}

#[test]
fn a_silent_client_keeps_open_files_until_they_are_in_the_way() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        let second = stage.client();
        let ctx = stage.world.context(NodeId::fs(0));
        stage.run(async |client, _| {
            let mut silent = Session::new(client, b"silent").await;
            let open = silent.open(b"owner", b"file", 0).await.unwrap();
            ctx.sleep(10 * LEASE).await;
            assert_eq!(silent.on(b"file", |ops| ops.write(&open, b"data")).await, OK);
            ctx.sleep(LEASE.saturating_sub(Duration::from_secs(1))).await;
            let mut other = Session::new(second, b"other").await;
            assert_eq!(other.open(b"owner", b"file", 2).await, Err(SHARE_DENIED));
            assert!(other.open(b"owner", b"another", 0).await.is_ok());
            // Its lease ends, and a conflict ends its state at once.
            ctx.sleep(Duration::from_secs(2)).await;
            assert!(other.open(b"owner", b"file", 2).await.is_ok());
            assert_eq!(silent.run(&Ops::default()).await.status, BADSESSION);
            // What it denies would keep others out for a day.
            ctx.sleep(2 * LEASE).await;
            assert_eq!(other.run(&Ops::default()).await.status, BADSESSION);
        });
    });
}

#[test]
fn a_silent_client_ends_after_a_day() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        let ctx = stage.world.context(NodeId::fs(0));
        let mut silent = stage.run(async |client, _| {
            let mut silent = Session::new(client, b"silent").await;
            assert!(silent.open(b"owner", b"file", 0).await.is_ok());
            silent
        });
        // A world runs for an hour at most.
        let mut wait = |hours| {
            for _ in 0..2 * hours {
                stage.world.run(ctx.sleep(Duration::from_mins(30)));
            }
            // The connection was idle for too long.
            silent.client = stage.client();
            stage.world.run(silent.run(&Ops::default())).status
        };
        assert_eq!(wait(23), OK);
        assert_eq!(wait(25), BADSESSION);
    });
}

/// Two clients with an open file, on which the second has a lock; the first one came `seconds`
/// before it, when leases began to be checked every 5 s. Also returns the open stateid of the
/// first.
async fn two_at_a_lock(
    ctx: &Context,
    [client, second]: [Client; 2],
    seconds: u64,
) -> (Session, Session, Vec<u8>) {
    let mut first = Session::new(client, b"first").await;
    ctx.sleep(Duration::from_secs(seconds)).await;
    let mut silent = Session::new(second, b"silent").await;
    let open = silent.open(b"owner", b"file", 0).await.expect("it is there");
    assert_eq!(silent.on(b"file", |ops| ops.lock(&open, b"locker", false)).await, OK);
    let open = first.open(b"owner", b"file", 0).await.expect("it is there");
    (first, silent, open)
}

#[test]
fn a_lock_of_a_client_whose_lease_is_over_is_granted_to_another_at_once() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        let second = stage.client();
        let ctx = stage.world.context(NodeId::fs(0));
        stage.run(async |client, _| {
            let clients = [client, second];
            let (mut first, mut silent, open) = two_at_a_lock(&ctx, clients, 1).await;
            let lock = |ops: Ops| ops.lock(&open, b"locker", false);
            ctx.sleep(LEASE.saturating_sub(Duration::from_secs(1))).await;
            assert_eq!(first.on(b"file", lock).await, DENIED);
            ctx.sleep(Duration::from_secs(2)).await;
            assert_eq!(first.on(b"file", lock).await, OK);
            assert_eq!(silent.run(&Ops::default()).await.status, BADSESSION);
        });
    });
}

#[test]
fn the_locks_of_a_silent_client_end_soon_after_its_lease() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        let second = stage.client();
        let ctx = stage.world.context(NodeId::fs(0));
        stage.run(async |client, _| {
            let (mut first, _silent, open) = two_at_a_lock(&ctx, [client, second], 2).await;
            let lock = |ops: Ops| ops.lock(&open, b"locker", false);
            assert_eq!(first.on(b"file", lock).await, DENIED);
            for _ in 0..4 {
                ctx.sleep(LEASE / 4).await;
                assert_eq!(first.run(&Ops::default().root()).await.status, OK);
            }
            ctx.sleep(Duration::from_secs(6)).await;
            assert_eq!(first.on(b"file", lock).await, OK);
        });
    });
}
