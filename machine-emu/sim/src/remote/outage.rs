//! A process that is away for a while: its clients say for which one they wait, and how long.

use std::time::Duration;

use client::protocol::{GetAttributes, Handle};
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

/// How long a process is away, and whether the client has asked it something before.
#[derive(Clone, Copy, Debug)]
pub(super) struct Absence {
    length: Duration,
    is_known: bool,
}

impl Absence {
    pub(super) fn new(rng: &mut Rng) -> Self {
        Self { length: Duration::from_millis(rng.below(AWAY_MAX)), is_known: rng.chance(1, 2) }
    }
}

/// The one of `processes` that hosts the node of `file` is away, while one client asks it.
pub(super) async fn check(harness: &Harness, file: Handle, processes: u32, absence: Absence) {
    let Absence { length: away, is_known } = absence;
    let outages = Outages::default();
    let system = host::connect_showing(harness, 0, 0, outages.clone()).await;
    let attributes = || send_with_retries(system.machine(), GetAttributes { file });
    if is_known {
        attributes().await.unwrap_or_else(|error| panic!("before the outage: {error}"));
    }
    harness.pass(IDLE).await;
    let node = (file.ino % u64::from(harness.cluster.geometry().fs_nodes)) as u32;
    let process = host::process_of(node, processes);
    host::end_at(harness, process);
    let watching = async {
        harness.pass(away).await;
        let seen = outages.longest();
        host::serve_at(harness, process, processes).await;
        seen
    };
    let (answer, seen) = join(attributes(), watching).await;
    answer.unwrap_or_else(|error| panic!("after an outage of {away:?}: {error}"));
    match seen {
        Some(outage) => {
            let expected = (processes > 1).then_some(process);
            assert_eq!(outage.process, expected, "another process than that which is away");
            let wrong = away.abs_diff(outage.lasted);
            assert!(wrong <= TOLERANCE, "{:?} are shown for {away:?}", outage.lasted);
        }
        None => assert!(away < OUTAGE_MIN + TOLERANCE, "an outage of {away:?} is not shown"),
    }
    harness.pass(OVER_WITHIN).await;
    assert_eq!(outages.longest(), None, "it is over");
}
