//! The sequence.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use cluster::coordination::{
    Coordination, CoordinationError, Expect, RecordChange, Version, Watch, WriteOutcome,
    last_epoch, next_epoch,
};
use futures::future::{join, join_all, select};
use runtime::Epoch;

use super::Arm;

/// The shortest that etcd grants.
const LEASE: Duration = Duration::from_secs(2);
/// Its record is gone after this at the latest.
const LEASE_OVER: Duration = Duration::from_millis(3_500);

pub(crate) async fn all(arm: &dyn Arm) {
    records_have_versions(&*arm.client()).await;
    one_of_many_wins(arm).await;
    epochs_are_given_once(arm).await;
    watches_tell_all(arm).await;
    leases_end(arm).await;
    what_was_answered_survives(arm).await;
}

fn done(written: WriteOutcome) -> Version {
    match written {
        WriteOutcome::Done { version } => version,
        WriteOutcome::Differs { found } => panic!("it was refused: there is {found:?}"),
    }
}

async fn records_have_versions(engine: &dyn Coordination) {
    assert_eq!(engine.get("a/1").await.unwrap(), None);
    let first = engine.put("a/1", b"one").await.unwrap();
    let bytes: Vec<u8> = (0..=255).collect();
    let second = engine.put("a/2", &bytes).await.unwrap();
    engine.put("b", b"").await.unwrap();
    assert!(second > first);
    let record = engine.get("a/2").await.unwrap().unwrap();
    assert_eq!((record.value, record.version), (bytes, second));
    assert_eq!(engine.get("b").await.unwrap().unwrap().value, b"");

    let listing = engine.list("a/").await.unwrap();
    let keys: Vec<&str> = listing.records.iter().map(|(key, _)| key.as_str()).collect();
    assert_eq!(keys, ["a/1", "a/2"]);
    assert!(listing.version > second, "`b` was later");
    assert_eq!(engine.list("").await.unwrap().records.len(), 3);

    // Compare and swap.
    let unchanged = Expect::Unchanged { since: first };
    let third = done(engine.write("a/1", b"two", unchanged, None).await.unwrap());
    assert!(third > listing.version);
    for expect in [unchanged, Expect::Absent {}] {
        let differs = engine.write("a/1", b"lost", expect, None).await.unwrap();
        let WriteOutcome::Differs { found: Some(found) } = differs else { panic!("{differs:?}") };
        assert_eq!((found.value.as_slice(), found.version), (&b"two"[..], third));
    }
    let differs = engine.write("none", b"lost", unchanged, None).await.unwrap();
    assert_eq!(differs, WriteOutcome::Differs { found: None });
    let differs = engine.remove("a/1", unchanged).await.unwrap();
    assert!(matches!(differs, WriteOutcome::Differs { found: Some(_) }));
    done(engine.remove("a/1", Expect::Unchanged { since: third }).await.unwrap());
    done(engine.remove("a/1", Expect::Any {}).await.unwrap());
    assert_eq!(engine.get("a/1").await.unwrap(), None);
    let differs = engine.remove("a/1", unchanged).await.unwrap();
    assert_eq!(differs, WriteOutcome::Differs { found: None });
    done(engine.write("a/1", b"again", Expect::Absent {}, None).await.unwrap());

    let long = vec![0; cluster::coordination::VALUE_LENGTH_MAX];
    engine.put("long", &long).await.unwrap();
    assert_eq!(engine.get("long").await.unwrap().unwrap().value, long);
    let too_long = engine.put("long", &[long, vec![1]].concat()).await;
    assert!(matches!(too_long, Err(CoordinationError::TooLong(_))), "{too_long:?}");
}

/// Two clients count in one record, ten times each: no count is lost.
async fn one_of_many_wins(arm: &dyn Arm) {
    let lost = Rc::new(Cell::new(0));
    let count = async |engine: Rc<dyn Coordination>| {
        for _ in 0..10 {
            loop {
                let seen = engine.get("count").await.unwrap();
                let count = seen.as_ref().map_or(0, |record| record.value[0]);
                let expect = Expect::still(seen.as_ref());
                match engine.write("count", &[count + 1], expect, None).await.unwrap() {
                    WriteOutcome::Done { .. } => break,
                    WriteOutcome::Differs { .. } => lost.set(lost.get() + 1),
                }
            }
        }
    };
    join(count(arm.client()), count(arm.client())).await;
    assert_eq!(arm.client().get("count").await.unwrap().unwrap().value, [20]);
}

async fn epochs_are_given_once(arm: &dyn Arm) {
    let draw = async |engine: Rc<dyn Coordination>| {
        let mut drawn = Vec::new();
        for _ in 0..5 {
            drawn.push(next_epoch(&*engine, Epoch(0)).await.unwrap());
        }
        assert!(drawn.is_sorted());
        drawn
    };
    let (one, other) = join(draw(arm.client()), draw(arm.client())).await;
    let mut drawn = [one, other].concat();
    drawn.sort_unstable();
    drawn.dedup();
    assert_eq!(drawn.len(), 10, "an epoch was given twice");
    let engine = arm.client();
    assert_eq!(next_epoch(&*engine, Epoch(1_000)).await.unwrap(), Epoch(1_001));
    assert_eq!(last_epoch(&*engine).await.unwrap(), Epoch(1_001));
}

async fn next(arm: &dyn Arm, watch: &mut dyn Watch) -> RecordChange {
    let limit = arm.sleep(Duration::from_secs(5));
    match select(watch.next(), limit).await {
        futures::future::Either::Left((change, _)) => change.unwrap(),
        futures::future::Either::Right(_) => panic!("nothing is told"),
    }
}

fn put_of(change: RecordChange) -> (String, Vec<u8>, Version) {
    match change {
        RecordChange::Put { key, record } => (key, record.value, record.version),
        change => panic!("{change:?}"),
    }
}

async fn watches_tell_all(arm: &dyn Arm) {
    let engine = arm.client();
    let begin = engine.list("w/").await.unwrap().version;
    let other = arm.client();
    let mut watch = other.watch("w/", begin);
    // It waits first, then something happens, beside its prefix too.
    let acting = async {
        arm.sleep(Duration::from_millis(50)).await;
        engine.put("v", b"beside").await.unwrap();
        engine.put("w/1", b"one").await.unwrap()
    };
    let (change, first) = join(next(arm, &mut *watch), acting).await;
    assert_eq!(put_of(change), ("w/1".to_owned(), b"one".to_vec(), first));
    // No event is lost while there is no waiter, or if the wait is abandoned.
    let given_up = select(watch.next(), arm.sleep(Duration::from_millis(30))).await;
    assert!(matches!(given_up, futures::future::Either::Right(_)));
    drop(given_up);
    let second = engine.put("w/1", b"two").await.unwrap();
    engine.put("w/2", b"three").await.unwrap();
    done(engine.remove("w/1", Expect::Any {}).await.unwrap());
    let check = async |watch: &mut dyn Watch| {
        assert_eq!(put_of(next(arm, watch).await), ("w/1".into(), b"two".into(), second));
        let (key, value, third) = put_of(next(arm, watch).await);
        assert_eq!((key.as_str(), value.as_slice()), ("w/2", &b"three"[..]));
        let removed = next(arm, watch).await;
        let RecordChange::Removed { key, version } = removed else { panic!("{removed:?}") };
        assert!(key == "w/1" && version > third && third > second);
    };
    check(&mut *watch).await;
    // Who comes back and knows the version it saw last hears the rest again.
    let mut watch = arm.client().watch("w/", first);
    check(&mut *watch).await;
}

async fn leases_end(arm: &dyn Arm) {
    let engine = arm.client();
    let lease = engine.grant(LEASE).await.unwrap();
    let other = engine.grant(LEASE).await.unwrap();
    assert_ne!(lease, other);
    let version = engine.list("").await.unwrap().version;
    done(engine.write("l/kept", b"k", Expect::Absent {}, Some(lease)).await.unwrap());
    done(engine.write("l/ends", b"e", Expect::Absent {}, Some(other)).await.unwrap());
    done(engine.write("l/moved", b"m", Expect::Absent {}, Some(other)).await.unwrap());
    done(engine.write("l/moved", b"m", Expect::Any {}, Some(lease)).await.unwrap());
    done(engine.write("l/freed", b"f", Expect::Absent {}, Some(other)).await.unwrap());
    engine.put("l/freed", b"f").await.unwrap();
    let keys = async || -> Vec<String> {
        let listing = arm.client().list("l/").await.unwrap();
        listing.records.into_iter().map(|(key, _)| key).collect()
    };
    // One is kept alive, longer than it is long.
    let mut passed = Duration::ZERO;
    while passed < LEASE_OVER {
        assert!(passed >= LEASE || keys().await.len() == 4, "a lease ended early");
        arm.sleep(LEASE / 4).await;
        engine.keep_alive(lease).await.unwrap();
        passed += LEASE / 4;
    }
    assert_eq!(keys().await, ["l/freed", "l/kept", "l/moved"]);
    assert_eq!(engine.keep_alive(other).await, Err(CoordinationError::LeaseOver));
    let late = engine.write("l/late", b"", Expect::Any {}, Some(other)).await;
    assert_eq!(late, Err(CoordinationError::LeaseOver));
    // The end was told, too.
    let watcher = arm.client();
    let mut watch = watcher.watch("l/ends", version);
    put_of(next(arm, &mut *watch).await);
    let change = next(arm, &mut *watch).await;
    assert!(matches!(&change, RecordChange::Removed { key, .. } if key == "l/ends"), "{change:?}");
    // And by will.
    engine.revoke(lease).await.unwrap();
    engine.revoke(lease).await.unwrap();
    assert_eq!(keys().await, ["l/freed"]);
    done(engine.remove("l/freed", Expect::Any {}).await.unwrap());
}

/// Many write while the engine dies: what was answered is there, and nothing that was never
/// written.
async fn what_was_answered_survives(arm: &dyn Arm) {
    let before = arm.client().list("").await.unwrap().records;
    let answered = Rc::new(Cell::new(0u8));
    let engine = arm.client();
    let dead = Cell::new(false);
    let writing = async {
        for number in 1..=u8::MAX {
            if dead.get() && arm.dies_with_clients() {
                return number;
            }
            match engine.put("s/last", &[number]).await {
                Ok(_) => answered.set(number),
                Err(error) => {
                    assert!(error.is_transient(), "{error}");
                    return number;
                }
            }
            arm.sleep(Duration::from_millis(1)).await;
        }
        u8::MAX
    };
    let dying = async {
        arm.sleep(Duration::from_millis(40)).await;
        dead.set(true);
        if !arm.dies_with_clients() {
            arm.restart().await;
        }
    };
    let (tried, ()) = join(writing, dying).await;
    drop(engine);
    if arm.dies_with_clients() {
        arm.restart().await;
    }
    let engine = arm.client();
    let last = loop {
        match engine.get("s/last").await {
            Ok(found) => break found.expect("it was answered").value[0],
            Err(error) => assert!(error.is_transient(), "{error}"),
        }
        arm.sleep(Duration::from_millis(100)).await;
    };
    assert!(answered.get() > 0 && (answered.get()..=tried).contains(&last), "{last} of {tried}");
    let listing = engine.list("").await.unwrap();
    let after = listing.records.iter().filter(|(key, _)| key != "s/last");
    let values = |(key, record): &(String, cluster::coordination::Record)| {
        (key.clone(), record.value.clone())
    };
    assert!(after.map(values).eq(before.iter().map(values)), "a record is other than it was");
    // It works as before, also for those who watch from now on.
    let mut watch = engine.watch("s/", listing.version);
    let putting = async { engine.put("s/last", b"after").await.unwrap() };
    let (change, version) = join(next(arm, &mut *watch), putting).await;
    assert_eq!(put_of(change), ("s/last".into(), b"after".into(), version));
    let many = join_all((0..20).map(|_| next_epoch(&*engine, Epoch(0)))).await;
    assert!(many.into_iter().all(|epoch| epoch.is_ok()));
}
