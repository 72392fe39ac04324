//! A disk that takes no writes for now: the host file system below it is full or read-only.
//!
//! The write that failed is the probe. Its owner keeps the data and asks again; until it succeeds,
//! writes to other places are refused unseen, so that the disk as a whole takes writes or does not.
//! If no owner asks again, any write may try.

use std::io;
use std::ops::Range;
use std::time::Duration;

use crate::protocol::WriteObstacle;

/// Without a try for this long any write may try: the data of the one that failed was given up.
pub(super) const TRIAL_AFTER: Duration = Duration::from_secs(3);

/// The log says that a disk takes writes again once it has done so for this long. So a host that is
/// full again and again writes a line in this time at most.
pub(super) const SETTLED_AFTER: Duration = Duration::from_secs(5);

/// Places that are remembered, at most: what is in flight at once, and a few more.
const PLACES_MAX: usize = 64;

/// What is in the way of a write that failed with `why`; `None` if the disk itself has failed.
pub(super) fn obstacle_of(why: &io::Error) -> Option<WriteObstacle> {
    use io::ErrorKind;
    match why.kind() {
        // The last one is a limit on the size of files, of the host or of the process.
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
            Some(WriteObstacle::Full {})
        }
        ErrorKind::ReadOnlyFilesystem => Some(WriteObstacle::ReadOnly {}),
        _ => None,
    }
}

/// The state of a disk that takes no writes for now.
#[derive(Debug)]
pub(super) struct Obstruction {
    pub(super) why: WriteObstacle,
    /// Unix time in seconds.
    pub(super) since: u64,
    /// Bytes of the disk that could not be written.
    places: Vec<Range<u64>>,
    /// A flush has failed, and none has succeeded since.
    flush_failed: bool,
    /// When a write was tried last.
    tried: Duration,
}

impl Obstruction {
    pub(super) fn new(why: WriteObstacle, since: u64) -> Self {
        Self { why, since, places: Vec::new(), flush_failed: false, tried: Duration::ZERO }
    }

    /// May a write of `place` try?
    pub(super) fn admits(&mut self, place: &Range<u64>, now: Duration) -> bool {
        if now.saturating_sub(self.tried) >= TRIAL_AFTER {
            self.places.clear();
        }
        self.places.is_empty() || self.places.iter().any(|failed| meet(failed, place))
    }

    /// A write of `place` has failed, or a flush if there is none.
    pub(super) fn note_failure(
        &mut self,
        why: WriteObstacle,
        place: Option<Range<u64>>,
        now: Duration,
    ) {
        self.why = why;
        self.tried = now;
        let Some(place) = place else {
            self.flush_failed = true;
            return;
        };
        let is_known = self.places.iter().any(|known| meet(known, &place));
        if !is_known && self.places.len() < PLACES_MAX {
            self.places.push(place);
        }
    }

    /// A write of `place` has succeeded; true if nothing is in the way any more.
    pub(super) fn note_write(&mut self, place: &Range<u64>, now: Duration) -> bool {
        self.tried = now;
        self.places.retain(|failed| !meet(failed, place));
        self.places.is_empty() && !self.flush_failed
    }

    /// A flush has succeeded; true if nothing is in the way any more.
    pub(super) fn note_flush(&mut self) -> bool {
        std::mem::take(&mut self.flush_failed) && self.places.is_empty()
    }
}

fn meet(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: WriteObstacle = WriteObstacle::Full {};

    #[test]
    fn only_the_write_that_failed_tries_again_until_its_owner_has_given_up() {
        let mut state = Obstruction::new(FULL, 1);
        let at = Duration::from_secs;
        state.note_failure(FULL, Some(100..200), at(0));
        state.note_failure(FULL, Some(500..600), at(0));
        assert!(state.admits(&(150..160), at(1)) && state.admits(&(0..101), at(1)));
        assert!(!state.admits(&(200..300), at(1)), "another place");
        assert!(!state.note_write(&(50..101), at(2)), "one of two");
        assert!(!state.admits(&(100..200), at(2)));
        assert!(state.admits(&(0..1), at(2) + TRIAL_AFTER), "its owner did not ask again");
        state.note_failure(FULL, Some(0..1), at(20));
        assert!(!state.admits(&(500..600), at(21)));
        assert!(state.note_write(&(0..10), at(21)));
    }

    #[test]
    fn a_flush_that_failed_must_succeed() {
        let mut state = Obstruction::new(FULL, 1);
        state.note_failure(FULL, None, Duration::ZERO);
        assert!(state.admits(&(7..8), Duration::ZERO), "no flush without a write");
        assert!(!state.note_write(&(7..8), Duration::ZERO));
        assert!(state.note_flush());
    }

    #[test]
    fn errors_of_the_host_are_told_from_those_of_the_disk() {
        let of = |number| obstacle_of(&io::Error::from_raw_os_error(number));
        let (enospc, edquot, efbig, erofs, eio) = (28, 122, 27, 30, 5);
        assert_eq!([of(enospc), of(edquot), of(efbig)], [Some(FULL); 3]);
        assert_eq!(of(erofs), Some(WriteObstacle::ReadOnly {}));
        assert_eq!(of(eio), None);
    }
}
