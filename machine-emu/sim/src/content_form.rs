//! In what form the content of files is stored.

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
    /// Chunks become wide stripes at once, instead of when they were left alone for a while.
    pub(super) encodes_at_once: bool,
}

impl ContentForm {
    pub(super) const USUAL: Self =
        Self { unit: 1, redundancy: RedundancyClass::None {}, encodes_at_once: false };

    /// Copies of what is in no wide stripe.
    pub(super) fn copies(self) -> u32 {
        self.redundancy.copies()
    }

    /// What `files` writes has blocks of this form from now on.
    pub(super) fn set(self, files: &FileServer, metadata: &MetaServer) {
        files.set_unit(self.unit);
        if self.encodes_at_once {
            metadata.encode_at_once();
        }
    }
}
