//! A process that is away for a while: its clients say for which one they wait, and how long.

use std::time::Duration;

use client::protocol::{Error, GetAttributes, Handle};
use fileio::client::send_with_retries;
use futures::future::join;
use runtime::seed::Rng;
use transport::{OUTAGE_MIN, Outages};

use super::host;
use crate::harness::Harness;

/// The longest outage, in milliseconds.
const AWAY_MAX: u64 = 8_000;
/// What is shown is up to this old, and a link may need this long to notice that it is broken.
const TOLERANCE: Duration = Duration::from_millis(600);
/// A client has connected again within this time after an outage, and shows it no longer.
const OVER_WITHIN: Duration = Duration::from_secs(3);
/// How long the link may have had no calls before.
const IDLE: Duration = Duration::from_secs(20);

/// The process of which node is away, for how long, and whether the client has asked it before.
#[derive(Clone, Copy, Debug)]
pub(super) struct Absence {
    node: u64,
    length: Duration,
    is_known: bool,
}

impl Absence {
    pub(super) fn new(rng: &mut Rng) -> Self {
        let (node, length) = (rng.bits(), Duration::from_millis(rng.below(AWAY_MAX)));
        Self { node, length, is_known: rng.chance(1, 2) }
    }
}

/// One of `processes` is away, while one client asks it.
pub(super) async fn check(harness: &Harness, processes: u32, absence: Absence) {
    let Absence { node, length: away, is_known } = absence;
    let fs_nodes = harness.cluster.geometry().fs_nodes;
    let node = (node % u64::from(fs_nodes)) as u32;
    // There is no such file: that is an answer, too.
    let file = Handle { ino: u64::from(node) + (u64::from(fs_nodes) << 32), generation: 1 };
    let outages = Outages::default();
    let system = host::connect_showing(harness, 0, 0, outages.clone()).await;
    let ask = || send_with_retries(system.machine(), GetAttributes { file });
    if is_known {
        assert_eq!(ask().await, Err(Error::Stale {}), "before the outage");
    }
    harness.pass(IDLE).await;
    let process = host::process_of(node, processes);
    host::end_at(harness, process);
    let watching = async {
        harness.pass(away).await;
        let seen = outages.longest();
        host::serve_at(harness, process, processes).await;
        seen
    };
    let (answer, seen) = join(ask(), watching).await;
    assert_eq!(answer, Err(Error::Stale {}), "after an outage of {away:?}");
    match seen {
        Some(outage) => {
            let expected = (processes > 1).then_some(process);
            assert_eq!(outage.process, expected, "another process than that which is away");
            assert!(outage.lasted >= OUTAGE_MIN, "{:?} are too short to be shown", outage.lasted);
            let wrong = away.abs_diff(outage.lasted);
            assert!(wrong <= TOLERANCE, "{:?} are shown for {away:?}", outage.lasted);
        }
        None => assert!(away < OUTAGE_MIN + TOLERANCE, "an outage of {away:?} is not shown"),
    }
    harness.pass(OVER_WITHIN).await;
    assert_eq!(outages.longest(), None, "it is over");
}
