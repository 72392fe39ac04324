//! Links that go over libfabric where both processes have it.
#![cfg(all(feature = "fabric", feature = "tls"))]
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(clippy::disallowed_methods, reason = "the test stands outside of the machines")]

mod member;
#[path = "../../tests/support/mod.rs"]
mod support;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use futures::executor::block_on;
use futures::future::join_all;
use member::{Member, VOLUME, three_with};
use runtime::{NodeId, Undelivered};
use support::echo;
use transport::fabric::{FabricOptions, Fabrics, Provider};
use transport::tls::{Authority, Keys};
use transport::{Guard, Security};

const WITHIN: Duration = Duration::from_secs(20);
const TESTED: [Provider; 2] = [Provider::Tcp, Provider::Shm];

/// One test at a time: each keeps the cores busy.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn fabrics(providers: &[Provider]) -> Arc<Fabrics> {
    let providers = providers.to_vec();
    Fabrics::new(FabricOptions { providers, source: None, costs: None, is_told: true })
}

/// Guards of one cluster, protected or not, with these providers.
fn guards(is_protected: bool) -> impl Fn(u32, &[Provider]) -> Arc<Guard> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let (authority, own) = Authority::make(now).unwrap();
    move |number, providers| {
        let identity = authority.certify(number, now, Duration::from_hours(24)).unwrap();
        let keys = || Keys::new(number, own.certificate.as_bytes(), &identity).unwrap();
        let security = if is_protected { Security::Tls(Box::new(keys())) } else { Security::None };
        Arc::new(Guard::new(security).with_fabrics(fabrics(providers)))
    }
}

/// The value of a count; lines of all labels together.
fn count(member: &Member, metric: &str) -> u64 {
    let counts = member.guard.counts();
    let lines = counts.lines().filter(|line| line.starts_with(metric));
    lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum()
}

/// Waits until something is so, and asks meanwhile.
fn until(member: &Member, to: u32, is_so: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        let _ = member.say(to, 0);
        assert!(begin.elapsed() < WITHIN, "{}", member.guard.counts());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Many calls at once, of all sizes; each answer is what was said.
fn talk(member: &Member, to: u32) {
    let lengths = [0, 1, 100, 4096, 5000, 70_000, 1 << 20, 3 << 20];
    let text = |length: usize| Bytes::from((0..length).map(|i| (i * 7) as u8).collect::<Vec<_>>());
    let client_handle = member.machine.client_handle();
    let calls = lengths.iter().cycle().take(24).map(|length| {
        let said = text(*length);
        let call = echo::Say { text: said.clone(), hops: 0 };
        let answer = client_handle.spawn(NodeId::fs(to), call);
        async move { assert!(answer.await.unwrap().0 == said, "{} bytes", said.len()) }
    });
    block_on(join_all(calls));
}

#[test]
fn requests_and_replies_go_over_libfabric_where_both_have_it() {
    let _alone = alone();
    for provider in TESTED {
        for is_protected in [true, false] {
            let guard = guards(is_protected);
            let have = [provider];
            let [first, second, third] =
                three_with(|number| guard(number, if number < 2 { &have } else { &[] }));
            // A link counts before its first request goes there.
            until(&first, 1, || count(&first, "mdfs_fabric_messages_total") > 8);
            let bytes = count(&first, "mdfs_fabric_bytes_total");
            talk(&first, 1);
            until(&first, 1, || count(&first, "mdfs_fabric_bytes_total") > bytes + (24 << 20));
            assert_eq!(count(&first, "mdfs_fabric_refused_total"), 0);
            // The third has no libfabric, and is asked all the same.
            let told = first.guard.counts();
            talk(&first, 2);
            talk(&third, 0);
            assert!(!told.contains("process=\"2\""), "{told}");
            drop((second, third));
            // A caller of one that is gone learns it.
            let answer = first.say_until(1, Result::err);
            assert!(matches!(answer, Undelivered::Lost | Undelivered::Unreachable));
        }
    }
}

#[test]
fn a_process_that_comes_back_is_asked_over_libfabric_again_and_its_last_life_is_over() {
    let _alone = alone();
    for provider in TESTED {
        let guard = guards(true);
        let [first, second, third] = three_with(|number| guard(number, &[provider]));
        until(&first, 1, || count(&first, "mdfs_fabric_links") > 0);
        talk(&first, 1);
        drop(second);
        let again = Member::start(1, 2, VOLUME, guard(1, &[provider]));
        let all = [&first.process, &again.process, &third.process];
        for member in [&first, &again, &third] {
            member.meet(2, &all);
            member.guard.retire(|number, incarnation| (number, incarnation) == (1, 1));
        }
        let told = |member: &Member| count(member, "mdfs_fabric_links{process=\"1\"");
        until(&first, 1, || told(&first) > 0);
        talk(&first, 1);
        talk(&again, 0);
    }
}

#[test]
fn an_endpoint_that_fails_costs_its_open_calls_and_the_link_goes_on() {
    let _alone = alone();
    let guard = guards(true);
    let [first, second, _third] = three_with(|number| guard(number, &[Provider::Tcp]));
    until(&first, 1, || count(&first, "mdfs_fabric_links") > 0);
    talk(&first, 1);
    // The other side closes its endpoint, and nothing else.
    second.guard.retire(|_, _| true);
    let begin = Instant::now();
    while count(&first, "mdfs_fabric_links") > 0 {
        assert!(begin.elapsed() < WITHIN);
        let answer = first.say(1, 0);
        assert!(matches!(answer, Ok(_) | Err(Undelivered::Lost)), "{answer:?}");
    }
    for _ in 0..100 {
        assert_eq!(first.say(1, 0), Ok(1));
    }
}
