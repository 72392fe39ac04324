//! In what form the content of files is stored.

use std::time::Duration;

use blockio::RedundancyClass;
use fileio::FileServer;
use meta::MetaServer;

/// The form of all new content.
#[derive(Clone, Copy, Debug)]
pub(super) struct ContentForm {
    /// Blocks of a logical block.
    pub(super) unit: u32,
    /// How it survives the loss of disks.
    pub(super) redundancy: RedundancyClass,
    /// Files get other classes while they are used.
    pub(super) changes_classes: bool,
    /// Chunks become wide stripes at once, instead of when they were left alone for a while.
    pub(super) encodes_at_once: bool,
    /// All of it is compared with its checksums again and again.
    pub(super) is_scrubbed: bool,
}

/// The time between two comparisons.
const SCRUB_INTERVAL: Duration = Duration::from_secs(10);

impl ContentForm {
    pub(super) const USUAL: Self = Self {
        unit: 1,
        redundancy: RedundancyClass::None {},
        changes_classes: false,
        encodes_at_once: false,
        is_scrubbed: false,
    };

    /// Copies of what is in no wide stripe.
    pub(super) fn copies(self) -> u32 {
        self.redundancy.copies()
    }

    /// Copies of it, at most, whatever the class of a file.
    pub(super) fn copies_max(self) -> u32 {
        if self.changes_classes { self.redundancy.metadata_copies() } else { self.copies() }
    }

    /// May any file be in wide stripes?
    pub(super) fn may_have_wide_stripes(self) -> bool {
        self.changes_classes || self.redundancy.wide_stripes().is_some()
    }

    /// What `files` writes has blocks of this form from now on.
    pub(super) fn set(self, files: &FileServer, metadata: &MetaServer) {
        files.set_unit(self.unit);
        if self.encodes_at_once {
            metadata.encode_at_once();
        }
        if self.is_scrubbed {
            metadata.scrub_every(SCRUB_INTERVAL);
        }
    }
}
