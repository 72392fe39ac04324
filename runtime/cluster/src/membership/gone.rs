//! What is kept of a process that is gone, and of one that is suspected to be. Bytes:
//! docs/format.md, "Records of a cluster".

use std::time::Duration;

use super::map::{ProcessId, open_record, seal};
use runtime::wire::Malformed;

/// The prefix of the keys of processes that are gone.
pub(super) const GONE_PREFIX: &str = "cluster/gone/";
/// The prefix of the keys of processes that are suspected.
const SUSPECT_PREFIX: &str = "cluster/suspects/";
/// The form of these records.
const FORM: u16 = 1;

/// The key of what is kept of a process that is gone.
pub(super) fn gone_key(id: ProcessId) -> String {
    format!("{GONE_PREFIX}{:010}", id.0)
}

/// The key of the suspicion against a process.
pub(super) fn suspect_key(id: ProcessId) -> String {
    format!("{SUSPECT_PREFIX}{:010}", id.0)
}

runtime::record! {
    /// The last end of a process.
    pub struct GoneRecord {
        /// Which incarnation has ended.
        incarnation: u64,
        /// When, in nanoseconds since 1970 by the clock of who wrote it.
        since_ns: u64,
        /// It has said itself that it answers nothing any more: others need not wait.
        is_silent: bool,
    }
}

impl GoneRecord {
    /// That `incarnation` has ended at `since`, a time since 1970.
    pub fn new(incarnation: u64, since: Duration, is_silent: bool) -> Self {
        let since_ns = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
        Self { incarnation, since_ns, is_silent }
    }

    /// The bytes that the engine keeps.
    pub fn to_record(&self) -> Vec<u8> {
        seal(FORM, self)
    }

    /// Reads what the engine kept.
    pub fn from_record(bytes: &[u8]) -> Result<Self, Malformed> {
        open_record(FORM, bytes)
    }
}

runtime::record! {
    /// A process does not answer another one, which says so before it ends its lease.
    pub struct SuspectRecord {
        /// Which incarnation.
        incarnation: u64,
        /// Who says so.
        by: ProcessId,
    }
}

impl SuspectRecord {
    /// The bytes that the engine keeps.
    pub fn to_record(&self) -> Vec<u8> {
        seal(FORM, self)
    }

    /// Reads what the engine kept.
    pub fn from_record(bytes: &[u8]) -> Result<Self, Malformed> {
        open_record(FORM, bytes)
    }
}
