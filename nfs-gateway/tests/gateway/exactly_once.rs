//! Sessions of version 4.2 on connections that break at any time, with requests that come twice:
//! each request is done once and answered rightly.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use runtime::NodeId;
use runtime::seed::{Rng, with_seed};

use crate::kit::{Act, Client, Stage, Verdict};
use crate::v4::{DELAY, OK, Ops, PROGRAM_4, Session, told};

/// Rounds of one run; each is five requests that fail if they are done twice.
const ROUNDS: u32 = 40;
/// Slots that are used at the same time.
const SLOTS: u32 = 4;

/// One slot: its requests one after the other, each sent until there is an answer.
struct Slot<'a> {
    stage: &'a Stage,
    session: &'a Session,
    number: u32,
    sequence: u32,
    client: Client,
    rng: Rng,
    doubled: Rc<Cell<u32>>,
}

impl Slot<'_> {
    async fn pause(&mut self) {
        let pause = Duration::from_micros(self.rng.below(3000));
        self.stage.world.context(NodeId::application(9)).sleep(pause).await;
    }

    /// The status of the next request of the slot.
    async fn ask(&mut self, ops: &Ops) -> u32 {
        self.sequence += 1;
        let ops = self.session.ops(self.number, self.sequence, ops);
        let (_, mut record) = self.client.record(PROGRAM_4, &ops.compound(2));
        // Clients of the test number their calls from 1 on each connection.
        let xid = self.sequence + 1_000_000;
        record[..4].copy_from_slice(&xid.to_be_bytes());
        let mut sent = 0;
        loop {
            sent += 1;
            self.doubled.set(self.doubled.get() + u32::from(sent == 2));
            self.client.send_record(&record).await;
            if self.rng.chance(1, 8) {
                // The same once more, right behind it.
                self.client.send_record(&record).await;
            }
            if self.rng.chance(1, 2) {
                self.pause().await;
                self.client = self.stage.client();
                continue;
            }
            while let Some((answered, verdict)) = self.client.receive().await {
                let Verdict::Done(bytes) = verdict else { panic!("{verdict:?}") };
                let status = told(&bytes).status;
                // What comes late is the answer to a request of before, which came twice.
                if answered == xid && status != DELAY {
                    return status;
                }
                if status == DELAY {
                    break;
                }
            }
            self.pause().await;
        }
    }

    async fn work(mut self) {
        for round in 0..ROUNDS {
            let name = |what: &str| format!("{what}-{}-{round}", self.number).into_bytes();
            let (made, moved) = (name("made"), name("moved"));
            let root = || Ops::default().root();
            let create = root().op(6).word(2).opaque(&made).word(0).word(0);
            let rename = root().op(32).op(29).opaque(&made).opaque(&moved);
            let mark = root().lookup(&moved).set_xattr(1, b"mark", b"value");
            let unmark = root().lookup(&moved).remove_xattr(b"mark");
            let remove = root().remove(&moved);
            for ops in [create, rename, mark, unmark, remove] {
                assert_eq!(self.ask(&ops).await, OK, "slot {} in round {round}", self.number);
            }
        }
    }
}

#[test]
fn each_request_of_a_session_is_done_once_though_its_connections_break() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        let mut delays = rng.clone();
        stage.service.rule(move |_| Act::After(Duration::from_micros(delays.below(2000))));
        let first = stage.client();
        let session = stage.world.run(Session::new(first, b"client"));
        let doubled = Rc::new(Cell::new(0));
        let slots = (0..SLOTS).map(|number| Slot {
            stage: &stage,
            session: &session,
            number,
            // Slot 0 has been used to make the session.
            sequence: if number == 0 { session.sequence() } else { 0 },
            client: stage.client(),
            rng: Rng::new(rng.bits()),
            doubled: doubled.clone(),
        });
        let work: Vec<_> = slots.map(Slot::work).collect();
        stage.world.run(futures::future::join_all(work));
        assert!(doubled.get() > SLOTS * ROUNDS, "{} requests came twice only", doubled.get());
    });
}
