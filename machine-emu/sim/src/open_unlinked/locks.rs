//! Programs that lock bytes of one file, and believe that they have them alone.

use std::cell::RefCell;
use std::time::Duration;

use client::{ByteRange, Lock, LockKind, OpenOptions};
use futures::FutureExt as _;
use futures::future::join_all;
use runtime::seed::Rng;

use super::{CrashableClient, OVER, OpenUnlinked, PowerCut, Program};

/// Programs that fight for a file: two, or up to so many more, less one.
const FIGHTERS_MORE: u64 = 3;
/// Locks that each of them gets, one after the other.
const LOCKS: u32 = 4;
/// Bytes that are fought for.
const BYTES: u64 = 8;

/// A lock that a program has, as it believes.
struct Believed {
    fighter: usize,
    kind: LockKind,
    lock: Lock<CrashableClient>,
}

/// The locks that programs have, one for each at most.
type Beliefs = RefCell<Vec<Believed>>;

impl OpenUnlinked<'_> {
    /// Some programs lock bytes of a file, each for a while; some of them die.
    pub(super) async fn fight(&self, client: u32, rng: &mut Rng) -> Result<(), PowerCut> {
        let path = self.fresh_path();
        let restarts = self.harness.restarts();
        let maker = self.program(client);
        let options = OpenOptions::new().read(true).write(true);
        let made = self.ask(async || maker.system.open(&path, options.create(true)).await).await?;
        let made = made.unwrap_or_else(|error| panic!("{path} cannot be made: {error}"));
        if self.ask(async || made.sync().await).await?.is_err() {
            assert!(
                self.harness.restarts() > restarts,
                "{path} was lost, and nothing has restarted"
            );
            return Ok(());
        }
        let beliefs = Beliefs::default();
        let count = 2 + rng.below(FIGHTERS_MORE) as usize;
        let fighting = (0..count).map(|fighter| {
            let program = self.program(client + fighter as u32);
            self.fighter(fighter, program, &path, &beliefs, Rng::new(rng.bits())).boxed_local()
        });
        let fought: Result<Vec<()>, PowerCut> =
            join_all(fighting.collect::<Vec<_>>()).await.into_iter().collect();
        fought.map(drop)
    }

    async fn fighter(
        &self,
        fighter: usize,
        program: Program,
        path: &str,
        beliefs: &Beliefs,
        mut rng: Rng,
    ) -> Result<(), PowerCut> {
        let options = OpenOptions::new().read(true);
        let opened = self.ask(async || program.system.open(path, options).await).await?;
        let file = opened.unwrap_or_else(|error| panic!("{path} cannot be opened: {error}"));
        // Each death and each long pause keeps the others waiting for a lease: none may come after
        // the others, one by one, once the round is over.
        for _ in 0..LOCKS {
            let (first, other) = (rng.below(BYTES), rng.below(BYTES));
            let mut range = ByteRange { first: first.min(other), last: first.max(other) };
            if rng.chance(1, 8) {
                range = ByteRange::ALL;
            }
            let shared = rng.chance(1, 3);
            let kind = if shared { LockKind::Shared {} } else { LockKind::Exclusive {} };
            let locked = self.ask(async || file.lock(range, kind).await).await?;
            let lock = locked.unwrap_or_else(|error| panic!("{path} cannot be locked: {error}"));
            tracing::debug!(now = ?self.harness.cluster.world().now(), path, fighter, ?range, ?kind);
            check(beliefs, fighter, range, kind);
            beliefs.borrow_mut().push(Believed { fighter, kind, lock });
            let pause = Duration::from_millis(rng.below(200));
            let lasts = rng.chance(1, 40) && !self.harness.is_over();
            self.harness.pass(if lasts { OVER } else { pause }).await;
            if rng.chance(1, 16) && !self.harness.is_over() {
                // The dead believe nothing; their locks go when their leases end.
                tracing::debug!(now = ?self.harness.cluster.world().now(), path, fighter, "dies");
                program.die();
                beliefs.borrow_mut().retain(|believed| believed.fighter != fighter);
                return Ok(());
            }
            beliefs.borrow_mut().retain(|believed| believed.fighter != fighter);
            if file.has_lost_locks() {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// Nobody else may believe to have what was locked just now.
fn check(beliefs: &Beliefs, fighter: usize, range: ByteRange, kind: LockKind) {
    let exclusive = LockKind::Exclusive {};
    for other in beliefs.borrow().iter().filter(|other| other.fighter != fighter) {
        let excludes = kind == exclusive || other.kind == exclusive;
        let clash = excludes && other.lock.range().overlaps(&range) && other.lock.is_held();
        assert!(!clash, "{range:?} and {:?} are locked by two programs", other.lock.range());
    }
}
