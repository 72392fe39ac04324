//! In what form the content of files is stored.

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

    /// What `files` writes has this form from now on.
    pub(super) fn set(self, files: &FileServer) {
        files.set_unit(self.unit);
        files.set_copies(self.copies);
    }
}
