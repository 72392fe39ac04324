//! Reading over links with delay (ADR 84): data are transferred before the program asks for them.
//!
//! # What a program sees
//!
//! The rule is close-to-open, with locks. Bytes that were read ahead are given only to the opening
//! of the file that read them (and its clones), and only if all of this holds:
//!
//! - They were asked for after the file was opened. So an open after another client's close (or
//!   sync) finds what was written before.
//! - They were asked for after the last lock on the file that this opening got. So who reads under
//!   a lock finds what was written under it before.
//! - This client has changed the file neither since nor meanwhile, through any opening.
//! - No attributes seen since by [`metadata`](crate::File::metadata) tell of a change.
//! - They are at most [`AGE_MAX`] old.
//!
//! An end of the file is never remembered. In all other cases, and always if the link is near,
//! a read goes to the server as without this.

mod reader;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use fileio::protocol::{GetAttributes, Handle};
use runtime::Spawn;
use runtime::sync::lock;

pub(crate) use self::reader::WideReader;
use crate::Attributes;
use crate::adaptive::LinkEstimate;
use crate::adaptive::estimate::{Departure, Estimate};

/// Links with a shorter round trip are near: nothing is read ahead.
pub const FAR_MIN: Duration = Duration::from_millis(2);

/// Bytes that a client has under way or unread, at most, in the default mode.
pub const AHEAD_BYTES_MAX: u64 = 64 << 20;

/// The same in thesis mode: one buffer of its largest size.
pub const THESIS_BYTES_MAX: u64 = 512 << 20;

/// Bytes that were read ahead are used for this time after they were asked for, at most.
pub const AGE_MAX: Duration = Duration::from_secs(10);

/// How a client reads over links with delay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WideMode {
    /// As over any other link.
    #[default]
    Off,
    /// Several transfers under way, if the link to the servers has a round trip of [`FAR_MIN`].
    Auto,
    /// Several transfers under way over any link.
    On,
    /// One transfer at a time, of the size that the thesis's controller says, over any link.
    Thesis,
}

impl WideMode {
    /// The names of all modes, for people.
    pub const NAMES: [(&'static str, Self); 4] =
        [("off", Self::Off), ("auto", Self::Auto), ("on", Self::On), ("thesis", Self::Thesis)];

    /// The mode of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::NAMES.into_iter().find(|(known, _)| *known == name).map(|(_, mode)| mode)
    }

    fn bytes_max(self) -> u64 {
        match self {
            Self::Off => 0,
            Self::Auto | Self::On => AHEAD_BYTES_MAX,
            Self::Thesis => THESIS_BYTES_MAX,
        }
    }
}

/// What all files of a client share.
#[derive(Debug)]
pub(crate) struct WideSession {
    mode: WideMode,
    estimate: Mutex<Estimate>,
    /// Bytes that are under way or unread.
    held: AtomicU64,
    files: Mutex<BTreeMap<Handle, Weak<FileChanges>>>,
}

/// Counts what makes bytes that were read ahead useless.
#[derive(Debug, Default)]
struct FileChanges(AtomicU64);

impl WideSession {
    pub(crate) fn new(mode: WideMode) -> Self {
        Self { mode, estimate: Mutex::default(), held: AtomicU64::new(0), files: Mutex::default() }
    }

    /// For a new opening of `file`; `None` if nothing is ever read ahead.
    pub(crate) fn open(self: &Arc<Self>, file: Handle) -> Option<WideReader> {
        (self.mode != WideMode::Off).then(|| WideReader::new(self.clone(), self.changes(file)))
    }

    fn changes(&self, file: Handle) -> Arc<FileChanges> {
        let mut files = lock(&self.files);
        if let Some(known) = files.get(&file).and_then(Weak::upgrade) {
            return known;
        }
        files.retain(|_, changes| changes.strong_count() > 0);
        let changes = Arc::<FileChanges>::default();
        files.insert(file, Arc::downgrade(&changes));
        changes
    }

    /// This client changes `file`, or has just done so.
    pub(crate) fn note_change(&self, file: Handle) {
        if self.mode != WideMode::Off
            && let Some(changes) = lock(&self.files).get(&file).and_then(Weak::upgrade)
        {
            changes.0.fetch_add(1, Relaxed);
        }
    }

    fn figures(&self) -> LinkEstimate {
        lock(&self.estimate).figures()
    }

    fn depart(&self, now: Duration) -> Departure {
        lock(&self.estimate).depart(now)
    }

    fn arrive(&self, departure: Departure, now: Duration, bytes: u64) {
        lock(&self.estimate).arrive(departure, now, bytes);
    }

    /// Is it worth while to read ahead? The first answer takes a request to the server.
    async fn is_far<S: Spawn>(&self, machine: &S, file: Handle) -> bool {
        let Some(now) = machine.now() else { return false };
        if self.mode == WideMode::Auto && self.figures().round_trip.is_zero() {
            let departure = self.depart(now);
            let asked = crate::ask(machine, GetAttributes { file }).await;
            if asked.is_ok() {
                self.arrive(departure, machine.now().unwrap_or(now), 0);
            }
        }
        self.mode != WideMode::Auto || self.figures().round_trip >= FAR_MIN
    }

    /// Takes `bytes` bytes of what may be held; false if there is no room.
    fn reserve(self: &Arc<Self>, bytes: u64) -> Option<ReservedBytes> {
        let max = self.mode.bytes_max();
        let taken = self
            .held
            .fetch_update(Relaxed, Relaxed, |held| Some(held + bytes).filter(|held| *held <= max));
        taken.ok().map(|_| ReservedBytes { session: self.clone(), bytes })
    }
}

/// Bytes that are held; given back when it is dropped.
#[derive(Debug)]
struct ReservedBytes {
    session: Arc<WideSession>,
    bytes: u64,
}

impl Drop for ReservedBytes {
    fn drop(&mut self) {
        self.session.held.fetch_sub(self.bytes, Relaxed);
    }
}

/// What tells of a change of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileMark {
    size: u64,
    mtime: fileio::protocol::Time,
    ctime: fileio::protocol::Time,
}

impl FileMark {
    fn of(attributes: &Attributes) -> Self {
        Self { size: attributes.size, mtime: attributes.mtime, ctime: attributes.ctime }
    }
}
