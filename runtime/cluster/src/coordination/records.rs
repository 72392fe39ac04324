//! The rules that all engines obey, as a plain state: records with versions, leases, and the
//! changes of late. Engines that are ours keep one; time is told to it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::{
    CoordinationError, Expect, LeaseId, Listing, Record, RecordChange, Version, WriteOutcome,
};

/// Changes that are kept for watchers; a watcher that needs older ones has missed some.
pub const CHANGES_KEPT_MAX: usize = 4096;
/// Leases at one time, at most.
const LEASES_MAX: usize = 4096;

#[derive(Clone, Debug)]
struct Lease {
    length: Duration,
    over_at: Duration,
    keys: BTreeSet<String>,
}

#[derive(Clone, Debug)]
struct StoredRecord {
    record: Record,
    lease: Option<LeaseId>,
}

/// Records, leases, and what has changed.
#[derive(Clone, Debug, Default)]
pub struct Records {
    version: Version,
    held: BTreeMap<String, StoredRecord>,
    leases: BTreeMap<LeaseId, Lease>,
    last_lease: LeaseId,
    changes: VecDeque<(Version, RecordChange)>,
    /// Changes up to here are no longer known.
    forgotten: Version,
}

impl Records {
    /// What was stored before, in the order of its keys.
    pub fn restore(stored: impl IntoIterator<Item = (String, Vec<u8>)>) -> Self {
        let mut records = Self::default();
        for (key, value) in stored {
            records.version.0 += 1;
            let record = Record { value, version: records.version };
            records.held.insert(key, StoredRecord { record, lease: None });
        }
        records.forgotten = records.version;
        records
    }

    /// The last change.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Ends the leases that are over at `now`.
    pub fn pass_time(&mut self, now: Duration) {
        let over = |lease: &Lease| lease.over_at <= now;
        let ended: Vec<LeaseId> =
            self.leases.iter().filter(|(_, lease)| over(lease)).map(|(&id, _)| id).collect();
        for id in ended {
            self.revoke(id);
        }
    }

    /// When the next lease will be over.
    pub fn next_end(&self) -> Option<Duration> {
        self.leases.values().map(|lease| lease.over_at).min()
    }

    /// See [`Coordination::get`](super::Coordination::get).
    pub fn get(&self, key: &str) -> Option<Record> {
        self.held.get(key).map(|held| held.record.clone())
    }

    /// See [`Coordination::list`](super::Coordination::list).
    pub fn list(&self, prefix: &str) -> Listing {
        let from = self.held.range(prefix.to_owned()..);
        let within = from.take_while(|(key, _)| key.starts_with(prefix));
        let records = within.map(|(key, held)| (key.clone(), held.record.clone())).collect();
        Listing { version: self.version, records }
    }

    /// What is there, if it is not what is expected.
    fn contradiction(&self, key: &str, expect: Expect) -> Option<WriteOutcome> {
        let found = self.held.get(key).map(|held| &held.record);
        let holds = match expect {
            Expect::Any {} => true,
            Expect::Absent {} => found.is_none(),
            Expect::Unchanged { since } => found.is_some_and(|record| record.version == since),
        };
        (!holds).then(|| WriteOutcome::Differs { found: found.cloned() })
    }

    /// See [`Coordination::write`](super::Coordination::write).
    pub fn write(
        &mut self,
        key: &str,
        value: &[u8],
        expect: Expect,
        lease: Option<LeaseId>,
    ) -> Result<WriteOutcome, CoordinationError> {
        if let Some(differs) = self.contradiction(key, expect) {
            return Ok(differs);
        }
        if lease.is_some_and(|lease| !self.leases.contains_key(&lease)) {
            return Err(CoordinationError::LeaseOver);
        }
        self.unbind(key);
        if let Some(lease) = lease.and_then(|lease| self.leases.get_mut(&lease)) {
            lease.keys.insert(key.to_owned());
        }
        self.version.0 += 1;
        let version = self.version;
        let record = Record { value: value.to_vec(), version };
        self.held.insert(key.to_owned(), StoredRecord { record: record.clone(), lease });
        self.note(RecordChange::Put { key: key.to_owned(), record });
        Ok(WriteOutcome::Done { version })
    }

    /// See [`Coordination::remove`](super::Coordination::remove).
    pub fn remove(&mut self, key: &str, expect: Expect) -> WriteOutcome {
        if let Some(differs) = self.contradiction(key, expect) {
            return differs;
        }
        self.unbind(key);
        self.take(key);
        WriteOutcome::Done { version: self.version }
    }

    fn take(&mut self, key: &str) {
        if self.held.remove(key).is_some() {
            self.version.0 += 1;
            self.note(RecordChange::Removed { key: key.to_owned(), version: self.version });
        }
    }

    fn unbind(&mut self, key: &str) {
        let lease = self.held.get(key).and_then(|held| held.lease);
        if let Some(lease) = lease.and_then(|lease| self.leases.get_mut(&lease)) {
            lease.keys.remove(key);
        }
    }

    fn note(&mut self, change: RecordChange) {
        self.changes.push_back((self.version, change));
        if self.changes.len() > CHANGES_KEPT_MAX
            && let Some((version, _)) = self.changes.pop_front()
        {
            self.forgotten = version;
        }
    }

    /// See [`Coordination::grant`](super::Coordination::grant).
    pub fn grant(&mut self, length: Duration, now: Duration) -> Result<LeaseId, CoordinationError> {
        if self.leases.len() >= LEASES_MAX {
            let told = format!("{LEASES_MAX} leases are there already");
            return Err(CoordinationError::Refused(told));
        }
        self.last_lease.0 += 1;
        let lease = Lease { length, over_at: now + length, keys: BTreeSet::new() };
        self.leases.insert(self.last_lease, lease);
        Ok(self.last_lease)
    }

    /// See [`Coordination::keep_alive`](super::Coordination::keep_alive).
    pub fn keep_alive(&mut self, lease: LeaseId, now: Duration) -> Result<(), CoordinationError> {
        let lease = self.leases.get_mut(&lease).ok_or(CoordinationError::LeaseOver)?;
        lease.over_at = now + lease.length;
        Ok(())
    }

    /// All leases begin anew at `now`: the engine was down, and none could be renewed.
    pub fn extend_all(&mut self, now: Duration) {
        for lease in self.leases.values_mut() {
            lease.over_at = now + lease.length;
        }
    }

    /// See [`Coordination::revoke`](super::Coordination::revoke).
    pub fn revoke(&mut self, lease: LeaseId) {
        let keys = self.leases.remove(&lease).map(|lease| lease.keys).unwrap_or_default();
        for key in keys {
            self.take(&key);
        }
    }

    /// The first change of `prefix` after `after`, if it happened.
    pub fn change_after(&self, prefix: &str, after: Version) -> Option<(Version, RecordChange)> {
        if after < self.forgotten {
            return Some((self.version, RecordChange::Missed {}));
        }
        let first = self.changes.partition_point(|(version, _)| *version <= after);
        let later = self.changes.range(first..);
        let mut within = later.filter(|(_, change)| key_of(change).starts_with(prefix));
        within.next().cloned()
    }

    /// Is this record bound to a lease?
    pub fn is_leased(&self, key: &str) -> bool {
        self.held.get(key).is_some_and(|held| held.lease.is_some())
    }

    /// The lease of this record.
    pub fn lease_of(&self, key: &str) -> Option<LeaseId> {
        self.held.get(key)?.lease
    }

    /// When the lease of this record will be over.
    pub fn end_of(&self, key: &str) -> Option<Duration> {
        let lease = self.held.get(key)?.lease?;
        self.leases.get(&lease).map(|lease| lease.over_at)
    }
}

fn key_of(change: &RecordChange) -> &str {
    match change {
        RecordChange::Put { key, .. } | RecordChange::Removed { key, .. } => key,
        RecordChange::Missed {} => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_record_that_changes_its_lease_outlives_the_first() {
        let mut records = Records::default();
        let first = records.grant(SECOND, Duration::ZERO).unwrap();
        let second = records.grant(3 * SECOND, Duration::ZERO).unwrap();
        records.write("a", b"1", Expect::Any {}, Some(first)).unwrap();
        records.write("a", b"2", Expect::Any {}, Some(second)).unwrap();
        records.pass_time(SECOND);
        assert_eq!(records.get("a").unwrap().value, b"2");
        assert_eq!(records.next_end(), Some(3 * SECOND));
        records.pass_time(3 * SECOND);
        assert_eq!(records.get("a"), None);
        assert_eq!(records.keep_alive(second, 3 * SECOND), Err(CoordinationError::LeaseOver));
        let late = records.write("a", b"3", Expect::Any {}, Some(second));
        assert_eq!(late, Err(CoordinationError::LeaseOver));
    }

    #[test]
    fn who_watches_from_too_long_ago_has_missed_something() {
        let mut records = Records::restore([("old".to_owned(), vec![1])]);
        let begun = records.version();
        assert_eq!(records.change_after("", Version(0)), Some((begun, RecordChange::Missed {})));
        for _ in 0..=CHANGES_KEPT_MAX {
            records.write("k", b"", Expect::Any {}, None).unwrap();
        }
        let now = records.version();
        assert_eq!(records.change_after("", begun), Some((now, RecordChange::Missed {})));
        let told = records.change_after("k", Version(begun.0 + 1)).unwrap();
        assert_eq!(told.0, Version(begun.0 + 2));
        assert_eq!(records.change_after("other", Version(begun.0 + 1)), None);
        assert_eq!(records.change_after("", now), None);
    }
}
