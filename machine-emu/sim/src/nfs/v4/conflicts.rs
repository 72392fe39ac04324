//! Conflicts: locks of byte ranges, and share modes.
//!
//! Locks hold among all gateways; share modes among the clients of one (ADR 21).

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use runtime::seed::Rng;

use super::Nfs4;
use super::content::open_root;
use super::host::{V4Host, V4Lock, V4Open, lock_by};
use super::wire::{CompoundOps, CreateMode, op, status};
use super::worker::V4Worker;
use crate::harness::WorkResult;

/// Files of each kind that are fought for.
const FILES: u64 = 2;
/// Bytes that are locked.
const BYTES: u64 = 8;

/// An opening, in the eyes of those who would be in its way.
#[derive(Clone, Debug)]
struct ClaimedOpen {
    worker: u32,
    gateway: u32,
    file: u64,
    /// It is open so, as its worker believes.
    granted: (u32, u32),
    /// It may be open so.
    perhaps: (u32, u32),
    /// The moment from which on it is not.
    gone: Option<u64>,
}

/// The locks and openings that workers have.
#[derive(Default)]
pub(super) struct ConflictingOpens {
    /// The file whose bytes each worker locks: its number and its opening.
    lockers: RefCell<BTreeMap<u32, (u64, u64)>>,
    /// The same of share modes, and the place among those below.
    sharers: RefCell<BTreeMap<u32, (u64, usize)>>,
    claimed: RefCell<Vec<ClaimedOpen>>,
    now: Cell<u64>,
}

/// Would one be in the way of the other?
fn forbid(one: (u32, u32), other: (u32, u32)) -> bool {
    one.0 & other.1 | one.1 & other.0 != 0
}

fn overlap(one: (u64, u64), other: (u64, u64)) -> bool {
    one.0 < other.0 + other.1 && other.0 < one.0 + one.1
}

impl ConflictingOpens {
    fn moment(&self) -> u64 {
        self.now.set(self.now.get() + 1);
        self.now.get()
    }

    // --- Locks ---

    /// Locks or unlocks bytes.
    pub(super) async fn lock_ranges(
        &self,
        all: &Nfs4<'_>,
        worker: &V4Worker<'_>,
        rng: &mut Rng,
    ) -> WorkResult {
        let mine = self.lockers.borrow().get(&worker.number).copied();
        let open = mine.and_then(|(_, number)| worker.host.open(number));
        let (Some((file, number)), Some(open)) = (mine, open) else {
            let file = rng.below(FILES);
            let (owner, name) = (format!("locker-{}", worker.number), format!("locked-{file}"));
            let opened = open_root(worker, &owner, (3, 0), (&name, CreateMode::Unchecked)).await?;
            let opened = opened.unwrap_or_else(|status| panic!("{name}: {status}"));
            let number = worker.host.add_open(opened);
            self.lockers.borrow_mut().insert(worker.number, (file, number));
            return Ok(());
        };
        let first = rng.below(BYTES);
        let range = (first, 1 + rng.below(BYTES - first));
        let wanted = (rng.chance(2, 3), range);
        match (open.lock, rng.below(8)) {
            (_, 0) => {
                self.lockers.borrow_mut().remove(&worker.number);
                worker.host.with_open(number, |open| open.lock = None);
                worker.close(number).await
            }
            (_, 1) => self.test(all, worker, (file, &open.file), wanted).await,
            (None, _) => self.lock(all, worker, (file, number), wanted).await,
            (Some(lock), 2..5) => unlock(worker, number, &lock).await,
            (Some(_), 5) => self.write_locked(worker, number).await,
            (Some(_), _) => {
                let pause = std::time::Duration::from_millis(rng.below(300));
                worker.host.link.harness().pass(pause).await;
                Ok(())
            }
        }
    }

    /// Who believes to have a lock on the file that is in the way of `wanted`.
    fn in_the_way(
        &self,
        all: &Nfs4<'_>,
        worker: u32,
        file: u64,
        (exclusive, range): (bool, (u64, u64)),
    ) -> Option<(u32, V4Lock)> {
        let lockers = self.lockers.borrow();
        let others = lockers.iter().filter(|(other, (at, _))| **other != worker && *at == file);
        others.into_iter().find_map(|(&other, &(_, number))| {
            let host = all.host_of(other);
            let lock = host.open(number)?.lock.filter(|_| host.is_within_lease())?;
            let conflict = (exclusive || lock.exclusive) && overlap(lock.range, range);
            conflict.then_some((other, lock))
        })
    }

    async fn lock(
        &self,
        all: &Nfs4<'_>,
        worker: &V4Worker<'_>,
        (file, number): (u64, u64),
        wanted: (bool, (u64, u64)),
    ) -> WorkResult {
        let answer = worker.ask(true, || {
            let V4Open { file, owner, stateid, .. } = worker.host.open(number)?;
            Some(lock_by(CompoundOps::default().put(&file), &owner, &stateid, wanted, false))
        });
        let Some(mut answer) = answer.await? else { return Ok(()) };
        match answer.status {
            status::OK => {}
            status::DENIED | status::GRACE => return Ok(()),
            refused => panic!("a lock is refused: {refused}"),
        }
        let rival = self.in_the_way(all, worker.number, file, wanted);
        assert!(rival.is_none(), "{} has got {wanted:?}, which {rival:?} has", worker.number);
        answer.reply.done(op::PUTFH);
        let stateid = answer.reply.done(op::LOCK).fixed();
        let (exclusive, range) = wanted;
        let lock = Some(V4Lock { stateid, exclusive, range });
        worker.host.with_open(number, |open| open.lock = lock);
        Ok(())
    }

    /// Tests a lock (LOCKT).
    async fn test(
        &self,
        all: &Nfs4<'_>,
        worker: &V4Worker<'_>,
        (file, handle): (u64, &[u8]),
        wanted: (bool, (u64, u64)),
    ) -> WorkResult {
        let (exclusive, (first, count)) = wanted;
        let owner = format!("tester-{}", worker.number);
        let before = self.in_the_way(all, u32::MAX, file, wanted);
        let answer = worker.ask(false, || {
            let ops =
                CompoundOps::default().put(handle).op(op::LOCKT).word(1 + u32::from(exclusive));
            Some(ops.long(first).long(count).long(0).opaque(owner.as_bytes()))
        });
        let Some(answer) = answer.await? else { return Ok(()) };
        let after = self.in_the_way(all, u32::MAX, file, wanted);
        // A lock that was held all the time.
        let same = before.zip(after).filter(|((one, had), (other, has))| {
            one == other && had.stateid == has.stateid && had.range == has.range
        });
        match answer.status {
            status::OK => assert!(same.is_none(), "{wanted:?} is free, and {same:?} has it"),
            status::DENIED => {}
            refused => panic!("a look at a lock is refused: {refused}"),
        }
        Ok(())
    }

    /// Writes under a lock; refused only if that was lost.
    async fn write_locked(&self, worker: &V4Worker<'_>, number: u64) -> WorkResult {
        let answer = worker.ask(false, || {
            let (ops, stateid) = super::content::on(worker, number, false)?;
            Some(ops.op(op::WRITE).fixed(&stateid).long(0).word(0).opaque(b"x"))
        });
        let Some(answer) = answer.await? else { return Ok(()) };
        match answer.status {
            status::OK => {}
            status::EXPIRED => worker.host.with_open(number, |open| open.lock = None),
            refused => panic!("a write under a lock is refused: {refused}"),
        }
        Ok(())
    }

    // --- Share modes ---

    /// Opens a file so that others may do less, or closes it.
    pub(super) async fn share(
        &self,
        all: &Nfs4<'_>,
        worker: &V4Worker<'_>,
        rng: &mut Rng,
    ) -> WorkResult {
        let mine = self.sharers.borrow().get(&worker.number).copied();
        let mine = mine.and_then(|(number, place)| {
            worker.host.open(number).map(|open| (number, place, open)).or_else(|| {
                self.ended(place);
                None
            })
        });
        let sharing = (1 + rng.below(3) as u32, rng.below(8).saturating_sub(4) as u32);
        let Some((number, place, open)) = mine else {
            return self.open(all, worker, rng.below(FILES), sharing).await;
        };
        match rng.below(4) {
            0 => self.open_more(all, worker, (number, place), sharing).await,
            1 if open.sharing.0 == 3 => {
                self.open_less(worker, (number, place), (1, open.sharing.1 & 1)).await
            }
            _ => {
                self.sharers.borrow_mut().remove(&worker.number);
                self.claimed.borrow_mut()[place].granted = (0, 0);
                let closed = worker.close(number).await;
                self.ended(place);
                closed
            }
        }
    }

    fn claim(&self, worker: &V4Worker<'_>, file: u64, perhaps: (u32, u32)) -> usize {
        let (worker, gateway) = (worker.number, worker.host.gateway);
        let claimed = ClaimedOpen { worker, gateway, file, granted: (0, 0), perhaps, gone: None };
        self.claimed.borrow_mut().push(claimed);
        self.claimed.borrow().len() - 1
    }

    fn ended(&self, place: usize) {
        let now = self.moment();
        let mut claimed = self.claimed.borrow_mut();
        claimed[place].granted = (0, 0);
        claimed[place].gone.get_or_insert(now);
    }

    /// Asks for an opening; checks that an answer may be.
    async fn ask_for(
        &self,
        all: &Nfs4<'_>,
        worker: &V4Worker<'_>,
        (file, place): (u64, usize),
        sharing: (u32, u32),
    ) -> WorkResult<Option<V4Open>> {
        let began = self.moment();
        let (owner, name) = (format!("sharer-{}", worker.number), format!("shared-file-{file}"));
        let opened = open_root(worker, &owner, sharing, (&name, CreateMode::Unchecked)).await;
        let claimed = self.claimed.borrow();
        let gateway = worker.host.gateway;
        let others = || {
            let others = claimed.iter().filter(|other| other.file == file);
            others.filter(|other| other.worker != worker.number && other.gateway == gateway)
        };
        match opened? {
            Ok(open) => {
                let granted = |other: &&ClaimedOpen| {
                    let host = all.host_of(other.worker);
                    let is_sure = host.has_everything() && host.is_within_lease();
                    is_sure && self.has_open(host, other.worker) && forbid(other.granted, sharing)
                };
                // What a gateway granted that has died since does not count.
                let counts = worker.host.has_everything();
                let rival = others().find(granted).filter(|_| counts);
                let mine = &claimed[place];
                assert!(rival.is_none(), "{mine:?} is open {sharing:?} beside {rival:?}");
                Ok(Some(open))
            }
            Err(status::SHARE_DENIED) => {
                let may_have = |other: &ClaimedOpen| {
                    other.gone.is_none_or(|gone| gone > began) && forbid(other.perhaps, sharing)
                };
                let is_right = others().any(may_have);
                assert!(is_right, "{sharing:?} of {name} is denied, and there is no conflict");
                Ok(None)
            }
            Err(status::GRACE) if sharing.1 != 0 => Ok(None),
            Err(status) => panic!("{name} cannot be opened: {status}"),
        }
    }

    /// What a worker has open was not lost, though it may not have noticed.
    fn has_open(&self, host: &V4Host<'_>, worker: u32) -> bool {
        let opened = self.sharers.borrow().get(&worker).copied();
        opened.is_some_and(|(number, _)| host.open(number).is_some())
    }

    async fn open(
        &self,
        all: &Nfs4<'_>,
        worker: &V4Worker<'_>,
        file: u64,
        sharing: (u32, u32),
    ) -> WorkResult {
        let place = self.claim(worker, file, sharing);
        let opened = self.ask_for(all, worker, (file, place), sharing).await;
        let Ok(Some(open)) = opened else {
            self.ended(place);
            return opened.map(drop);
        };
        let number = worker.host.add_open(open);
        self.claimed.borrow_mut()[place].granted = sharing;
        self.sharers.borrow_mut().insert(worker.number, (number, place));
        Ok(())
    }

    /// The same opener opens the file for more.
    async fn open_more(
        &self,
        all: &Nfs4<'_>,
        worker: &V4Worker<'_>,
        (number, place): (u64, usize),
        sharing: (u32, u32),
    ) -> WorkResult {
        let file = self.claimed.borrow()[place].file;
        let asked = self.claim(worker, file, sharing);
        let opened = self.ask_for(all, worker, (file, place), sharing).await;
        if let Ok(Some(open)) = &opened {
            worker.host.with_open(number, |mine| {
                let both = (mine.sharing.0 | sharing.0, mine.sharing.1 | sharing.1);
                *mine = V4Open { sharing: both, ..open.clone() };
                let claimed = &mut self.claimed.borrow_mut()[place];
                (claimed.granted, claimed.perhaps) = (both, both);
            });
        }
        self.ended(asked);
        opened.map(drop)
    }

    /// The same opener needs less.
    async fn open_less(
        &self,
        worker: &V4Worker<'_>,
        (number, place): (u64, usize),
        to: (u32, u32),
    ) -> WorkResult {
        self.claimed.borrow_mut()[place].granted = to;
        let answer = worker.ask(true, || {
            let V4Open { file, stateid, .. } = worker.host.open(number)?;
            let ops = CompoundOps::default().put(&file).op(op::OPEN_DOWNGRADE).fixed(&stateid);
            Some(ops.word(0).word(to.0).word(to.1))
        });
        let Some(mut answer) = answer.await? else { return Ok(()) };
        assert_eq!(answer.status, status::OK, "an opening for less is refused");
        answer.reply.done(op::PUTFH);
        let stateid = answer.reply.done(op::OPEN_DOWNGRADE).fixed();
        worker.host.with_open(number, |open| (open.stateid, open.sharing) = (stateid, to));
        // Who asked meanwhile may have met what was before.
        let before = self.claimed.borrow()[place].clone();
        self.claimed.borrow_mut()[place].perhaps = to;
        self.claimed.borrow_mut().push(ClaimedOpen { granted: (0, 0), ..before });
        let last = self.claimed.borrow().len() - 1;
        self.ended(last);
        Ok(())
    }

    /// `host` has rebooted: its state is lost.
    pub(super) fn forget(&self, all: &Nfs4<'_>, host: &V4Host<'_>) {
        let is_of = |worker: u32| std::ptr::eq(all.host_of(worker), host);
        self.lockers.borrow_mut().retain(|worker, _| !is_of(*worker));
        self.sharers.borrow_mut().retain(|worker, _| !is_of(*worker));
        let count = self.claimed.borrow().len();
        let of_host = |place: &usize| is_of(self.claimed.borrow()[*place].worker);
        let places: Vec<usize> = (0..count).filter(of_host).collect();
        for place in places {
            self.ended(place);
        }
    }

    /// At the end no lock and no share mode is left: each file can be opened and locked
    /// exclusively.
    pub(super) async fn end(&self, worker: &V4Worker<'_>) -> WorkResult {
        for file in 0..FILES {
            let name = format!("shared-file-{file}");
            let opened =
                open_root(worker, "the last", (3, 3), (&name, CreateMode::Unchecked)).await?;
            assert!(opened.is_ok(), "{name} is open still: {:?}", opened.err());
            let name = format!("locked-{file}");
            let opened =
                open_root(worker, "the last", (3, 0), (&name, CreateMode::Unchecked)).await?;
            let Ok(open) = opened else { panic!("{name} cannot be opened") };
            let lock = || {
                let ops = CompoundOps::default().put(&open.file);
                Some(lock_by(ops, b"the last", &open.stateid, (true, (0, u64::MAX)), false))
            };
            let reply = worker.ask(true, lock).await?.map(|answer| answer.status);
            assert_eq!(reply, Some(status::OK), "{name} is locked still");
        }
        Ok(())
    }
}

/// Unlocks; a lock that the gateway has lost is not reclaimed.
async fn unlock(worker: &V4Worker<'_>, number: u64, lock: &V4Lock) -> WorkResult {
    worker.host.with_open(number, |open| open.lock = None);
    let session = worker.host.sessions();
    let answer = worker.ask(true, || {
        let open = worker.host.open(number).filter(|_| worker.host.sessions() == session)?;
        let (first, count) = lock.range;
        let ops = CompoundOps::default()
            .put(&open.file)
            .op(op::LOCKU)
            .word(2)
            .word(0)
            .fixed(&lock.stateid);
        Some(ops.long(first).long(count))
    });
    if let Some(answer) = answer.await? {
        assert_eq!(answer.status, status::OK, "an unlock is refused");
    }
    Ok(())
}
