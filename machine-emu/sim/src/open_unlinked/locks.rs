//! Programs that lock bytes of one file, and believe that they have them alone.

use std::cell::RefCell;
use std::time::Duration;

use client::{ByteRange, Lock, LockKind, OpenOptions};
use futures::FutureExt as _;
use futures::future::join_all;
use runtime::seed::Rng;

use crate::harness::WorkResult;

use super::{CrashableClient, CrashableProgram, LEASE_AND_GRACE, OpenUnlinked};

/// Programs that lock a file: two, plus fewer than this.
const LOCKERS_MORE: u64 = 3;
/// Locks that each of them gets, one after the other.
const LOCKS: u32 = 4;
/// Bytes that are fought for.
const BYTES: u64 = 8;

/// A lock that a program has, as it believes.
struct HeldLock {
    locker: usize,
    kind: LockKind,
    lock: Lock<CrashableClient>,
}

/// The locks that programs have, one for each at most.
type HeldLocks = RefCell<Vec<HeldLock>>;

impl OpenUnlinked<'_> {
    /// Some programs lock bytes of a file, each for a while; some of them die.
    pub(super) async fn lock_ranges(&self, client: u32, rng: &mut Rng) -> WorkResult {
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
        let held_locks = HeldLocks::default();
        let count = 2 + rng.below(LOCKERS_MORE) as usize;
        let fighting = (0..count).map(|locker| {
            let program = self.program(client + locker as u32);
            self.locker(locker, program, &path, &held_locks, Rng::new(rng.bits())).boxed_local()
        });
        let fought: WorkResult<Vec<()>> =
            join_all(fighting.collect::<Vec<_>>()).await.into_iter().collect();
        fought.map(drop)
    }

    async fn locker(
        &self,
        locker: usize,
        program: CrashableProgram,
        path: &str,
        held_locks: &HeldLocks,
        mut rng: Rng,
    ) -> WorkResult {
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
            let granted = self.ask(async || file.lock(range, kind).await).await?;
            let lock = granted.unwrap_or_else(|error| panic!("{path} cannot be locked: {error}"));
            tracing::debug!(now = ?self.harness.cluster.world().now(), path, locker, ?range, ?kind);
            check(held_locks, locker, range, kind);
            held_locks.borrow_mut().push(HeldLock { locker, kind, lock });
            let pause = Duration::from_millis(rng.below(200));
            let lasts = rng.chance(1, 40) && !self.harness.is_over();
            self.harness.pass(if lasts { LEASE_AND_GRACE } else { pause }).await;
            if rng.chance(1, 16) && !self.harness.is_over() {
                // The dead believe nothing; their locks go when their leases end.
                tracing::debug!(now = ?self.harness.cluster.world().now(), path, locker, "dies");
                program.die();
                held_locks.borrow_mut().retain(|other| other.locker != locker);
                return Ok(());
            }
            held_locks.borrow_mut().retain(|other| other.locker != locker);
            if file.has_lost_locks() {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// No other program may hold a conflicting lock.
fn check(held_locks: &HeldLocks, locker: usize, range: ByteRange, kind: LockKind) {
    let exclusive = LockKind::Exclusive {};
    for other in held_locks.borrow().iter().filter(|other| other.locker != locker) {
        let excludes = kind == exclusive || other.kind == exclusive;
        let clash = excludes && other.lock.range().overlaps(&range) && other.lock.is_held();
        assert!(!clash, "{range:?} and {:?} are locked by two programs", other.lock.range());
    }
}
