//! The engine of one process: records in sled (ADR 6), leases in memory.
//!
//! All clients are in this process, so that versions, leases, and records that are bound to leases
//! need not outlive it: they are not stored. What sled holds are keys and values as they are given.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use tokio::sync::watch;

use super::{
    Coordination, CoordinationError, CoordinationFuture, Expect, LeaseId, Listing, Record,
    RecordChange, Records, Version, Watch, WriteOutcome, check_lengths,
};

/// Bytes of the page cache that sled may use: the records are few and small.
const CACHE_BYTES: u64 = 1 << 20;

/// The pause before a database that is locked is opened again.
const LOCKED_PAUSE: Duration = Duration::from_millis(10);
/// How many of them, at most: one second in all.
const LOCKED_PAUSES_MAX: u32 = 100;

/// The embedded engine. Clones are clients of the same store.
#[derive(Clone, Debug)]
pub struct Sled {
    shared: Arc<SledState>,
}

#[derive(Debug)]
struct SledState {
    database: sled::Db,
    records: Mutex<Records>,
    /// Told of each change.
    changed: watch::Sender<Version>,
    begun: Instant,
}

impl From<sled::Error> for CoordinationError {
    fn from(error: sled::Error) -> Self {
        match error {
            sled::Error::Io(error) if is_of_host(&error) => Self::HostFull(error.to_string()),
            error => Self::Store(error.to_string()),
        }
    }
}

/// The host file system is full or read-only: what the store holds is as good as it was.
fn is_of_host(error: &std::io::Error) -> bool {
    use std::io::ErrorKind;
    matches!(
        error.kind(),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::ReadOnlyFilesystem
    )
}

#[allow(clippy::disallowed_methods, reason = "an engine of the machine has the machine's clock")]
fn now() -> Instant {
    Instant::now()
}

/// Opens the database once it is unlocked. Its directory is ours: the lock is held by a child of
/// this process that has not called exec yet.
#[allow(clippy::disallowed_methods, reason = "an engine of the machine waits before it starts")]
fn open_free(directory: &Path) -> sled::Result<sled::Db> {
    let config = sled::Config::new().path(directory).cache_capacity(CACHE_BYTES);
    for _ in 0..LOCKED_PAUSES_MAX {
        match config.open() {
            // There is no kind for it.
            Err(sled::Error::Io(error)) if error.to_string().contains("could not acquire lock") => {
                std::thread::sleep(LOCKED_PAUSE);
            }
            opened => return opened,
        }
    }
    config.open()
}

impl Sled {
    /// Opens the store in `directory`, or makes it.
    pub fn open(directory: &Path) -> Result<Self, CoordinationError> {
        let database = open_free(directory)?;
        let mut stored = Vec::new();
        for entry in database.iter() {
            let (key, value) = entry?;
            // A key that is no text was not written by us and is ignored.
            stored.extend(String::from_utf8(key.to_vec()).ok().map(|key| (key, value.to_vec())));
        }
        let records = Records::restore(stored);
        let changed = watch::Sender::new(records.version());
        let records = Mutex::new(records);
        Ok(Self { shared: Arc::new(SledState { database, records, changed, begun: now() }) })
    }
}

impl SledState {
    fn now(&self) -> Duration {
        now().saturating_duration_since(self.begun)
    }

    /// The records, as they are now.
    fn records(&self) -> MutexGuard<'_, Records> {
        let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        records.pass_time(self.now());
        records
    }

    /// Watchers look again.
    fn tell(&self, records: &Records) {
        self.changed.send_replace(records.version());
    }

    /// A change of one key that is durable when it returns.
    fn store(&self, key: &str, value: Option<&[u8]>) -> Result<(), CoordinationError> {
        match value {
            Some(value) => self.database.insert(key, value)?,
            None => self.database.remove(key)?,
        };
        self.database.flush()?;
        Ok(())
    }

    fn write(
        &self,
        key: &str,
        value: &[u8],
        expect: Expect,
        lease: Option<LeaseId>,
    ) -> Result<WriteOutcome, CoordinationError> {
        check_lengths(key, value)?;
        let mut records = self.records();
        let was_stored = records.get(key).is_some() && !records.is_leased(key);
        let written = records.write(key, value, expect, lease)?;
        if matches!(written, WriteOutcome::Done { .. }) {
            // Not visible before the lock is released.
            match lease {
                None => self.store(key, Some(value))?,
                Some(_) if was_stored => self.store(key, None)?,
                Some(_) => {}
            }
            self.tell(&records);
        }
        Ok(written)
    }

    fn remove(&self, key: &str, expect: Expect) -> Result<WriteOutcome, CoordinationError> {
        let mut records = self.records();
        let is_stored = records.get(key).is_some() && !records.is_leased(key);
        let removed = records.remove(key, expect);
        if matches!(removed, WriteOutcome::Done { .. }) {
            if is_stored {
                self.store(key, None)?;
            }
            self.tell(&records);
        }
        Ok(removed)
    }

    fn revoke(&self, lease: LeaseId) {
        let mut records = self.records();
        records.revoke(lease);
        self.tell(&records);
    }
}

/// What is known at once.
fn try_now<'a, T: 'a>(answer: Result<T, CoordinationError>) -> CoordinationFuture<'a, T> {
    futures::future::ready(answer).boxed_local()
}

impl Coordination for Sled {
    fn get<'a>(&'a self, key: &'a str) -> CoordinationFuture<'a, Option<Record>> {
        try_now(Ok(self.shared.records().get(key)))
    }

    fn list<'a>(&'a self, prefix: &'a str) -> CoordinationFuture<'a, Listing> {
        try_now(Ok(self.shared.records().list(prefix)))
    }

    fn write<'a>(
        &'a self,
        key: &'a str,
        value: &'a [u8],
        expect: Expect,
        lease: Option<LeaseId>,
    ) -> CoordinationFuture<'a, WriteOutcome> {
        try_now(self.shared.write(key, value, expect, lease))
    }

    fn remove<'a>(&'a self, key: &'a str, expect: Expect) -> CoordinationFuture<'a, WriteOutcome> {
        try_now(self.shared.remove(key, expect))
    }

    fn grant(&self, length: Duration) -> CoordinationFuture<'_, LeaseId> {
        let now = self.shared.now();
        let granted = self.shared.records().grant(length, now);
        // A watch may have to wake for its end.
        self.shared.changed.send_modify(|_| {});
        try_now(granted)
    }

    fn keep_alive(&self, lease: LeaseId) -> CoordinationFuture<'_, ()> {
        let now = self.shared.now();
        try_now(self.shared.records().keep_alive(lease, now))
    }

    fn revoke(&self, lease: LeaseId) -> CoordinationFuture<'_, ()> {
        self.shared.revoke(lease);
        try_now(Ok(()))
    }

    fn watch(&self, prefix: &str, after: Version) -> Box<dyn Watch> {
        let changed = self.shared.changed.subscribe();
        let shared = self.shared.clone();
        Box::new(SledWatch { shared, changed, prefix: prefix.to_owned(), after })
    }
}

/// One who watches; needs the machine's timers.
struct SledWatch {
    shared: Arc<SledState>,
    changed: watch::Receiver<Version>,
    prefix: String,
    after: Version,
}

impl SledWatch {
    /// The next change, or how long to wait for the end of a lease.
    fn look(&self) -> Result<(Version, RecordChange), Option<Duration>> {
        let records = self.shared.records();
        let change = records.change_after(&self.prefix, self.after);
        let now = self.shared.now();
        change.ok_or_else(|| records.next_end().map(|end| end.saturating_sub(now)))
    }
}

impl Watch for SledWatch {
    #[allow(clippy::disallowed_methods, reason = "an engine of the machine has its timers")]
    fn next(&mut self) -> CoordinationFuture<'_, RecordChange> {
        async move {
            loop {
                self.changed.mark_unchanged();
                match self.look() {
                    Ok((version, change)) => {
                        self.after = version;
                        return Ok(change);
                    }
                    Err(Some(wait)) => {
                        let changed = std::pin::pin!(self.changed.changed());
                        let rest = std::pin::pin!(tokio::time::sleep(wait));
                        futures::future::select(changed, rest).await;
                    }
                    Err(None) => {
                        // The sender lives as long as `shared` does, which is ours.
                        let _ = self.changed.changed().await;
                    }
                }
            }
        }
        .boxed_local()
    }
}

#[cfg(test)]
mod tests {
    use futures::executor::block_on;

    use super::super::{last_epoch, next_epoch};
    use super::*;
    use runtime::ids::Epoch;

    #[test]
    fn epochs_only_grow_also_over_a_restart() {
        let directory = tempfile::tempdir().unwrap();
        let mut last = Epoch(0);
        for after in [0, 0, 70, 3] {
            let engine = Sled::open(directory.path()).unwrap();
            assert_eq!(block_on(last_epoch(&engine)).unwrap(), last);
            let next = block_on(next_epoch(&engine, Epoch(after))).unwrap();
            assert!(next > last && next.0 > after, "{next:?} after {last:?} and {after}");
            last = next;
        }
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "a test stands for another program")]
    fn a_store_that_a_starting_program_has_locked_is_waited_for() {
        let directory = tempfile::TempDir::new().unwrap();
        drop(Sled::open(directory.path()).unwrap());
        let inherited = std::fs::File::open(directory.path().join("db")).unwrap();
        inherited.lock().unwrap();
        let starting = std::thread::spawn(move || {
            std::thread::sleep(5 * LOCKED_PAUSE);
            drop(inherited);
        });
        Sled::open(directory.path()).unwrap();
        starting.join().unwrap();
    }

    #[test]
    fn what_is_bound_to_a_lease_does_not_outlive_the_process() {
        let directory = tempfile::tempdir().unwrap();
        let engine = Sled::open(directory.path()).unwrap();
        block_on(engine.put("volume", b"record")).unwrap();
        block_on(engine.put("was stored", b"x")).unwrap();
        let lease = block_on(engine.grant(Duration::from_mins(1))).unwrap();
        for key in ["member", "was stored"] {
            block_on(engine.write(key, b"here", Expect::Any {}, Some(lease))).unwrap();
        }
        drop(engine);
        let engine = Sled::open(directory.path()).unwrap();
        let listing = block_on(engine.list("")).unwrap();
        let keys: Vec<&str> = listing.records.iter().map(|(key, _)| key.as_str()).collect();
        assert_eq!(keys, ["volume"]);
        let record = block_on(engine.get("volume")).unwrap().unwrap();
        assert_eq!(record.value, b"record");
    }
}
