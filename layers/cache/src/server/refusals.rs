//! Disks that do not take what is dirty here: no more is accepted for them until they do, so that
//! what waits stays within memory and writers learn of it at once.

use std::cell::RefCell;
use std::collections::BTreeMap;

use blockio::{DiskName, VolumeMap};

use super::lines::Lines;
use crate::line::Line;
use crate::protocol::Error;

/// Lines that a disk refused, with what it said.
type RefusedLines = BTreeMap<u64, Error>;

/// The disks that refuse lines of one cache. Each line that was refused counts until it was written
/// or is not dirty any more.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    by_disk: RefCell<BTreeMap<DiskName, RefusedLines>>,
}

impl Refusals {
    /// The line of `stripe` was written back, or was not.
    pub(super) fn note(&self, map: &VolumeMap, stripe: u64, result: Result<(), Error>) {
        let disk = map.place(stripe).disk;
        let mut by_disk = self.by_disk.borrow_mut();
        let refused = by_disk.entry(disk).or_default();
        match result {
            Err(error) if error.is_unwritable() || matches!(error, Error::DiskFailed { .. }) => {
                if refused.is_empty() {
                    tracing::debug!(%error, stripe, "writes to a disk are refused");
                }
                refused.insert(stripe, error);
            }
            Err(_) => {}
            Ok(()) => {
                refused.remove(&stripe);
            }
        }
        if refused.is_empty() {
            by_disk.remove(&disk);
        }
    }

    /// Was the line of `stripe` refused last?
    pub(super) fn has(&self, map: &VolumeMap, stripe: u64) -> bool {
        let disk = map.place(stripe).disk;
        let by_disk = self.by_disk.borrow();
        by_disk.get(&disk).is_some_and(|refused| refused.contains_key(&stripe))
    }

    /// Fails while the disk of `stripe` takes no more, unless its line is dirty already.
    pub(super) fn check(&self, map: &VolumeMap, lines: &Lines, stripe: u64) -> Result<(), Error> {
        let mut by_disk = self.by_disk.borrow_mut();
        if by_disk.is_empty() || lines.get(stripe).is_some_and(Line::is_dirty) {
            return Ok(());
        }
        let disk = map.place(stripe).disk;
        let Some(refused) = by_disk.get_mut(&disk) else { return Ok(()) };
        while let Some((&stripe, &error)) = refused.first_key_value() {
            if lines.get(stripe).is_some_and(Line::is_dirty) {
                return Err(error);
            }
            refused.remove(&stripe);
        }
        Ok(())
    }
}
