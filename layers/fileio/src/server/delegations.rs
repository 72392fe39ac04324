//! Who may keep what it has read of a file of this node, until it is asked to give that back
//! (ADR 101; RFC 8881 section 10.4, read delegations).
//!
//! A *holder* is a front end: an NFS gateway, for all its clients. It asks for its recalls again
//! and again, so no server has to find it. Changes of a file that is delegated are refused as
//! [`Busy`](runtime::protocol::Undelivered::Busy), which is tried again, until all holders have
//! returned the file or are taken to be gone. So none of them waits in this node.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use super::hand_over::DelegationHandover;
use crate::protocol::{
    BreakDelegations, DELEGATION_LEASE, DELEGATION_TRUST, Delegate, DelegationRecall, GetRecalls,
    Handle, LockKind, Request, ReturnDelegation,
};

/// Delegations at one node, at most. Past it the oldest are recalled.
const DELEGATIONS_MAX: usize = 1 << 16;
/// Holders at one node, at most. Past it others get no delegations.
const HOLDERS_MAX: usize = 1 << 10;
/// A holder that has not asked for its recalls for this long has stopped to trust what it holds
/// ([`DELEGATION_TRUST`]), and so have those to whom it has passed that on: they have returned it
/// within 10 s, or do not know whether it is there ([`DELEGATION_LEASE`]). Clocks differ by less
/// than the rest.
const SILENCE_MAX: Duration = DELEGATION_TRUST.saturating_add(Duration::from_secs(11));
const _: () = assert!(DELEGATION_LEASE.as_secs() < 11);
/// A holder that asks, but does not return a file for this long, loses all that it holds.
const RECALL_TIME_MAX: Duration = Duration::from_secs(15);
/// A file that was recalled is not delegated for this long; twice as long each time it is recalled
/// again soon.
const CONTENTION_PAUSE: Duration = Duration::from_secs(1);
const CONTENTION_PAUSE_MAX: Duration = Duration::from_mins(1);
/// Files that were recalled lately and are known, at most.
const CONTENDED_MAX: usize = 4096;

/// The delegations of one node.
#[derive(Debug, Default)]
pub(super) struct DelegationTable(RefCell<DelegationState>);

#[derive(Debug, Default)]
struct DelegationState {
    /// Who has each file.
    files: BTreeMap<u64, Vec<Grant>>,
    holders: BTreeMap<u64, HolderRecord>,
    /// Changes of each file that are under way.
    changing: BTreeMap<u64, usize>,
    contended: BTreeMap<u64, RecallPause>,
    /// Grants in their order, some of which are over: file, holder and number.
    order: VecDeque<(u64, u64, u64)>,
    count: usize,
}

/// A file that a holder has.
#[derive(Clone, Copy, Debug)]
struct Grant {
    holder: u64,
    file: Handle,
    /// The holder's number of the request.
    number: u64,
    /// Since when it shall be returned.
    recalled: Option<Duration>,
}

#[derive(Debug)]
struct HolderRecord {
    lease: u64,
    /// The highest number of a request under this lease.
    last: u64,
    /// When it has last asked for its recalls.
    heard: Duration,
    files: BTreeSet<u64>,
    /// Those of them that it shall return: few, and asked for ten times a second.
    recalled: BTreeSet<u64>,
}

/// A file that was recalled.
#[derive(Clone, Copy, Debug)]
struct RecallPause {
    pause: Duration,
    until: Duration,
}

/// A change of a file that is under way: the file is not delegated meanwhile.
#[derive(Debug)]
pub(super) struct ChangeGuard {
    table: Rc<DelegationTable>,
    ino: u64,
}

impl Drop for ChangeGuard {
    fn drop(&mut self) {
        let mut tables = self.table.0.borrow_mut();
        if let Some(count) = tables.changing.get_mut(&self.ino) {
            *count -= 1;
            if *count == 0 {
                tables.changing.remove(&self.ino);
            }
        }
    }
}

//= rfc8881 10.4: Linux grants shared locks of what is delegated to it itself
/// The file that a request of a client changes, or locks against readers, if it names one of this
/// node: not by its name.
pub(super) fn changed_file(request: &Request) -> Option<u64> {
    let file = match request {
        Request::SetAttributes(r) => r.file,
        Request::Link(r) => r.file,
        Request::Write(r) => r.file,
        Request::WriteDirect(r) => r.file,
        Request::WriteList(r) => r.file,
        Request::Append(r) => r.file,
        Request::ReplayWrite(r) => r.file,
        Request::ReplayPunch(r) => r.file,
        Request::PunchHole(r) => r.file,
        Request::Allocate(r) => r.file,
        Request::SetXattr(r) => r.file,
        Request::RemoveXattr(r) => r.file,
        Request::Lock(r) if r.kind == (LockKind::Exclusive {}) => r.file,
        Request::TestLock(r) if r.kind == (LockKind::Exclusive {}) => r.file,
        _ => return None,
    };
    Some(file.ino)
}

impl DelegationTable {
    /// Answers [`Delegate`]: the lease of the holder if it has the file now. `new_lease` is that of
    /// a new holder.
    pub(super) fn delegate(
        &self,
        request: &Delegate,
        new_lease: u64,
        now: Duration,
    ) -> Option<u64> {
        let &Delegate { holder, lease, number, file } = request;
        let mut tables = self.0.borrow_mut();
        if lease == 0 {
            // Not by a request that was overtaken: the holder trusts what it got later. Nor while
            // those to whom it has passed on what it had may trust that.
            let trusts = |known: &HolderRecord| {
                number <= known.last || !known.files.is_empty() && !is_silent(known, now)
            };
            if tables.holders.get(&holder).is_some_and(trusts) {
                return None;
            }
            tables.add_holder(holder, (new_lease, number), now)?;
        }
        let lease = if lease == 0 { new_lease } else { lease };
        let known = tables.holders.get_mut(&holder).filter(|known| known.lease == lease)?;
        known.last = known.last.max(number);
        if !tables.may_be_delegated(file.ino, now) {
            return None;
        }
        if !tables.has_room(now) {
            return None;
        }
        tables.grant(Grant { holder, file, number, recalled: None });
        Some(lease)
    }

    /// Answers [`ReturnDelegation`].
    pub(super) fn take_back(&self, request: &ReturnDelegation) {
        let &ReturnDelegation { holder, number, file } = request;
        self.0.borrow_mut().take_back(file.ino, holder, number);
    }

    /// Answers [`GetRecalls`].
    pub(super) fn recalls(
        &self,
        request: &GetRecalls,
        now: Duration,
    ) -> Option<Vec<DelegationRecall>> {
        let &GetRecalls { holder, lease } = request;
        let mut tables = self.0.borrow_mut();
        let known = tables.holders.get_mut(&holder).filter(|known| known.lease == lease)?;
        known.heard = now;
        let recalled = tables.holders[&holder].recalled.iter();
        let grants = recalled.filter_map(|ino| tables.grant_to(*ino, holder));
        Some(grants.map(|it| DelegationRecall { file: it.file, number: it.number }).collect())
    }

    /// Answers [`BreakDelegations`]: false while others have the file.
    pub(super) fn is_broken(&self, request: &BreakDelegations, now: Duration) -> bool {
        let &BreakDelegations { file, except } = request;
        self.0.borrow_mut().recall(file.ino, except, now)
    }

    /// Begins a change of a file, unless others have the file: then it is recalled.
    pub(super) fn begin_change(self: &Rc<Self>, ino: u64, now: Duration) -> Option<ChangeGuard> {
        let mut tables = self.0.borrow_mut();
        if !tables.recall(ino, 0, now) {
            return None;
        }
        *tables.changing.entry(ino).or_default() += 1;
        Some(ChangeGuard { table: self.clone(), ino })
    }

    /// Does no holder have any file?
    pub(super) fn is_empty(&self) -> bool {
        self.0.borrow().files.is_empty()
    }

    /// For the successor of this node.
    pub(super) fn handed(&self) -> Vec<DelegationHandover> {
        let tables = self.0.borrow();
        let of = |(&holder, known): (&u64, &HolderRecord)| {
            let grants = known.files.iter().filter_map(|ino| tables.grant_to(*ino, holder));
            let files = grants.map(|grant| (grant.file, grant.number)).collect();
            DelegationHandover { holder, lease: known.lease, last: known.last, files }
        };
        tables.holders.iter().map(of).collect()
    }

    /// Continues with what the predecessor of this node had delegated.
    pub(super) fn resume(&self, handed: Vec<DelegationHandover>, now: Duration) {
        let mut tables = self.0.borrow_mut();
        for DelegationHandover { holder, lease, last, files } in handed {
            if tables.add_holder(holder, (lease, last), now).is_some() {
                for (file, number) in files {
                    tables.grant(Grant { holder, file, number, recalled: None });
                }
            }
        }
    }
}

impl DelegationState {
    /// Adds a holder that has nothing; what one of its number had is void.
    fn add_holder(&mut self, holder: u64, (lease, last): (u64, u64), now: Duration) -> Option<()> {
        self.forget(holder);
        if self.holders.len() >= HOLDERS_MAX {
            let silent: Vec<u64> = self.silent(now).collect();
            for holder in silent {
                self.forget(holder);
            }
        }
        if self.holders.len() >= HOLDERS_MAX {
            return None;
        }
        let (files, recalled) = Default::default();
        self.holders.insert(holder, HolderRecord { lease, last, heard: now, files, recalled });
        Some(())
    }

    fn silent(&self, now: Duration) -> impl Iterator<Item = u64> {
        let silent = self.holders.iter().filter(move |(_, known)| is_silent(known, now));
        silent.map(|(holder, _)| *holder)
    }

    /// All that a holder has is void.
    fn forget(&mut self, holder: u64) {
        let Some(known) = self.holders.remove(&holder) else { return };
        for ino in known.files {
            self.take_back(ino, holder, u64::MAX);
        }
    }

    fn may_be_delegated(&self, ino: u64, now: Duration) -> bool {
        let is_recalled = |grants: &Vec<Grant>| grants.iter().any(|it| it.recalled.is_some());
        !self.changing.contains_key(&ino)
            && !self.files.get(&ino).is_some_and(is_recalled)
            && self.contended.get(&ino).is_none_or(|contention| contention.until <= now)
    }

    fn grant(&mut self, grant: Grant) {
        let Grant { holder, file: Handle { ino, .. }, number, .. } = grant;
        self.take_back(ino, holder, u64::MAX);
        if let Some(known) = self.holders.get_mut(&holder) {
            known.files.insert(ino);
            self.files.entry(ino).or_default().push(grant);
            self.order.push_back((ino, holder, number));
            self.count += 1;
        }
    }

    /// Removes a grant whose number is not above `number`.
    fn take_back(&mut self, ino: u64, holder: u64, number: u64) {
        let Some(grants) = self.files.get_mut(&ino) else { return };
        let before = grants.len();
        grants.retain(|grant| grant.holder != holder || grant.number > number);
        if grants.len() == before {
            return;
        }
        self.count -= before - grants.len();
        if grants.is_empty() {
            self.files.remove(&ino);
        }
        if let Some(known) = self.holders.get_mut(&holder) {
            known.files.remove(&ino);
            known.recalled.remove(&ino);
        }
    }

    /// What a holder has of a file.
    fn grant_to(&self, ino: u64, holder: u64) -> Option<&Grant> {
        self.files.get(&ino)?.iter().find(|grant| grant.holder == holder)
    }

    /// Recalls a file from all but one holder. True if none of them has it.
    fn recall(&mut self, ino: u64, except: u64, now: Duration) -> bool {
        let Some(grants) = self.files.get_mut(&ino) else { return true };
        let (mut gone, mut is_new, mut is_free) = (Vec::new(), false, true);
        for grant in grants.iter_mut().filter(|grant| grant.holder != except) {
            is_free = false;
            is_new |= grant.recalled.is_none();
            let since = *grant.recalled.get_or_insert(now);
            let mut known = self.holders.get_mut(&grant.holder);
            if let Some(known) = &mut known {
                known.recalled.insert(ino);
            }
            if now >= since + RECALL_TIME_MAX || known.is_none_or(|known| is_silent(known, now)) {
                gone.push(grant.holder);
            }
        }
        if is_new {
            self.note_contention(ino, now);
        }
        if gone.is_empty() {
            return is_free;
        }
        for holder in gone {
            tracing::debug!(holder, ino, "what a silent holder of delegations had is void");
            self.forget(holder);
        }
        self.recall(ino, except, now)
    }

    fn note_contention(&mut self, ino: u64, now: Duration) {
        if self.contended.len() >= CONTENDED_MAX {
            self.contended.retain(|_, contention| contention.until + contention.pause > now);
        }
        if self.contended.len() >= CONTENDED_MAX {
            self.contended.clear();
        }
        let before = self.contended.get(&ino);
        let recent = before.filter(|before| now < before.until + before.pause);
        let twice = |before: &RecallPause| CONTENTION_PAUSE_MAX.min(2 * before.pause);
        let pause = recent.map_or(CONTENTION_PAUSE, twice);
        self.contended.insert(ino, RecallPause { pause, until: now + pause });
    }

    /// Is there room for one more? If not, the oldest is recalled.
    fn has_room(&mut self, now: Duration) -> bool {
        if self.order.len() >= 2 * DELEGATIONS_MAX {
            let mut order = std::mem::take(&mut self.order);
            order.retain(|entry| self.grant_of(*entry).is_some());
            self.order = order;
        }
        if self.count < DELEGATIONS_MAX {
            return true;
        }
        while let Some(oldest) = self.order.pop_front() {
            let Some(grant) = self.grant_of(oldest) else { continue };
            grant.recalled = Some(now);
            let (ino, holder, _) = oldest;
            if let Some(known) = self.holders.get_mut(&holder) {
                known.recalled.insert(ino);
            }
            return false;
        }
        // All were recalled, and no holder returns them.
        let holders: Vec<u64> = self.holders.keys().copied().collect();
        for holder in holders {
            self.forget(holder);
        }
        false
    }

    /// An entry of the order that is not over, nor recalled.
    fn grant_of(&mut self, (ino, holder, number): (u64, u64, u64)) -> Option<&mut Grant> {
        let mut of_file = self.files.get_mut(&ino)?.iter_mut();
        let is_it = |it: &&mut Grant| (it.holder, it.number) == (holder, number);
        of_file.find(is_it).filter(|grant| grant.recalled.is_none())
    }
}

fn is_silent(known: &HolderRecord, now: Duration) -> bool {
    now >= known.heard + SILENCE_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: Handle = Handle { ino: 5, generation: 2 };

    fn seconds(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    fn ask(table: &DelegationTable, holder: u64, lease: u64, number: u64, now: f64) -> Option<u64> {
        let request = Delegate { holder, lease, number, file: FILE };
        table.delegate(&request, 70 + holder, seconds(now))
    }

    fn recalls(table: &DelegationTable, holder: u64, now: f64) -> Option<Vec<u64>> {
        let request = GetRecalls { holder, lease: 70 + holder };
        let recalls = table.recalls(&request, seconds(now))?;
        Some(recalls.iter().map(|recall| recall.number).collect())
    }

    fn give_back(table: &DelegationTable, holder: u64, number: u64) {
        table.take_back(&ReturnDelegation { holder, number, file: FILE });
    }

    #[test]
    fn a_change_waits_until_all_holders_have_returned_the_file() {
        let table = Rc::new(DelegationTable::default());
        assert_eq!(ask(&table, 1, 0, 10, 0.0), Some(71));
        assert_eq!(ask(&table, 2, 0, 20, 0.0), Some(72));
        assert_eq!(recalls(&table, 1, 0.1), Some(vec![]));
        assert!(table.begin_change(6, seconds(0.1)).is_some(), "another file");
        assert!(table.begin_change(5, seconds(0.2)).is_none());
        assert_eq!(recalls(&table, 1, 0.3), Some(vec![10]));
        assert_eq!(recalls(&table, 1, 0.4), Some(vec![10]), "until it is returned");
        assert_eq!(ask(&table, 3, 0, 30, 0.5), None, "it is about to be changed");
        give_back(&table, 1, 10);
        give_back(&table, 2, 19);
        assert!(table.begin_change(5, seconds(0.6)).is_none(), "that was an earlier one");
        give_back(&table, 2, 20);
        let change = table.begin_change(5, seconds(20.0));
        assert!(change.is_some());
        assert_eq!(ask(&table, 1, 71, 11, 20.0), None, "it is being changed");
        drop(change);
        assert_eq!(ask(&table, 1, 71, 12, 20.0), Some(71));
    }

    #[test]
    fn a_holder_that_is_silent_or_never_returns_loses_all() {
        let table = Rc::new(DelegationTable::default());
        assert_eq!(ask(&table, 1, 0, 10, 0.0), Some(71));
        assert!(table.begin_change(5, seconds(12.9)).is_none(), "it may trust what it has");
        assert!(table.begin_change(5, seconds(13.0)).is_some());
        assert_eq!(recalls(&table, 1, 13.1), None);
        assert_eq!(ask(&table, 1, 71, 11, 19.0), None, "an unknown lease");
        assert_eq!(ask(&table, 1, 0, 12, 19.0), Some(71));
        assert!(table.begin_change(5, seconds(20.0)).is_none());
        for tenth in 200..350 {
            let now = f64::from(tenth) / 10.0;
            assert_eq!(recalls(&table, 1, now), Some(vec![12]));
            assert!(table.begin_change(5, seconds(now)).is_none(), "{now}");
        }
        assert!(table.begin_change(5, seconds(35.0)).is_some());
        assert_eq!(recalls(&table, 1, 35.1), None);
    }

    #[test]
    fn who_opens_a_file_to_change_it_may_keep_what_it_has() {
        let table = Rc::new(DelegationTable::default());
        for holder in [1, 2] {
            assert_eq!(ask(&table, holder, 0, 10, 0.0), Some(70 + holder));
        }
        let request = BreakDelegations { file: FILE, except: 1 };
        assert!(!table.is_broken(&request, seconds(0.1)));
        assert_eq!(recalls(&table, 1, 0.2), Some(vec![]));
        give_back(&table, 2, 10);
        assert!(table.is_broken(&request, seconds(0.3)));
    }

    #[test]
    fn a_file_that_is_recalled_again_and_again_is_not_delegated_for_longer_and_longer() {
        let table = Rc::new(DelegationTable::default());
        let (mut now, mut number, mut waited) = (0.0, 0, Vec::new());
        for _ in 0..9 {
            let begun = now;
            while ask(&table, 1, 0, number, now).is_none() {
                (now, number) = (now + 0.5, number + 1);
            }
            waited.push(now - begun);
            assert!(table.begin_change(5, seconds(now)).is_none());
            give_back(&table, 1, number);
            number += 1;
        }
        assert_eq!(waited, [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]);
        now += 1000.0;
        assert!(ask(&table, 1, 0, number, now).is_some());
        assert!(table.begin_change(5, seconds(now)).is_none());
        give_back(&table, 1, number);
        assert!(ask(&table, 1, 0, number + 1, now + 1.0).is_some(), "that was long ago");
    }

    #[test]
    fn past_the_limit_the_oldest_is_recalled() {
        let table = Rc::new(DelegationTable::default());
        let of = |ino, number, lease| {
            let file = Handle { ino, generation: 1 };
            table.delegate(&Delegate { holder: 1, lease, number, file }, 71, seconds(0.0))
        };
        assert_eq!(of(0, 0, 0), Some(71));
        for ino in 1..DELEGATIONS_MAX as u64 {
            assert_eq!(of(ino, ino, 71), Some(71));
        }
        assert_eq!(of(1 << 20, 1 << 20, 71), None);
        assert_eq!(recalls(&table, 1, 0.1), Some(vec![0]));
        table.take_back(&ReturnDelegation {
            holder: 1,
            number: 0,
            file: Handle { ino: 0, generation: 1 },
        });
        assert_eq!(of(1 << 20, 1 << 20, 71), Some(71));
    }

    #[test]
    fn a_first_request_that_comes_again_voids_nothing() {
        let table = Rc::new(DelegationTable::default());
        assert_eq!(ask(&table, 1, 0, 10, 0.0), Some(71));
        assert_eq!(ask(&table, 1, 0, 10, 0.1), None);
        assert!(table.begin_change(5, seconds(0.2)).is_none());
        assert_eq!(recalls(&table, 1, 0.3), Some(vec![10]));
    }

    #[test]
    fn a_holder_that_has_lost_its_trust_voids_nothing_that_it_has_passed_on() {
        let table = Rc::new(DelegationTable::default());
        assert_eq!(ask(&table, 1, 0, 10, 0.0), Some(71));
        assert_eq!(ask(&table, 1, 0, 11, 3.0), None);
        assert!(table.begin_change(5, seconds(12.0)).is_none(), "a client of it trusts that");
        assert!(table.begin_change(5, seconds(14.0)).is_some());
        assert_eq!(ask(&table, 1, 0, 13, 24.0), Some(71));
    }

    #[test]
    fn the_successor_of_a_node_goes_on() {
        let table = Rc::new(DelegationTable::default());
        assert_eq!(ask(&table, 1, 0, 10, 0.0), Some(71));
        let successor = Rc::new(DelegationTable::default());
        successor.resume(table.handed(), seconds(1.0));
        assert!(successor.begin_change(5, seconds(1.1)).is_none());
        assert_eq!(recalls(&successor, 1, 1.2), Some(vec![10]));
    }
}
