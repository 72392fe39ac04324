//! In what form the content of files is stored.

use blockio::RedundancyClass;
use fileio::FileServer;

/// The form of all new content.
#[derive(Clone, Copy, Debug)]
pub(super) struct ContentForm {
    /// Blocks of a logical block.
    pub(super) unit: u32,
    /// Copies of each, on different disks.
    pub(super) copies: u32,
}

impl ContentForm {
    pub(super) const USUAL: Self = Self { unit: 1, copies: 1 };

    /// As a volume records it.
    pub(super) fn redundancy(self) -> RedundancyClass {
        match self.copies {
            1 => RedundancyClass::None {},
            count => RedundancyClass::Copies { count: count as u8 },
        }
    }

    /// What `files` writes has blocks of this form from now on.
    pub(super) fn set(self, files: &FileServer) {
        files.set_unit(self.unit);
    }
}
