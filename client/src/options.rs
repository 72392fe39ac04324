//! How a file is opened.

use crate::error::Cause;

/// Permission bits of a new file, unless said otherwise.
pub const FILE_MODE: u32 = 0o644;

/// How a file is opened; the words are those of [`std::fs::OpenOptions`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "six independent switches, as POSIX has them")]
pub struct OpenOptions {
    pub(crate) read: bool,
    pub(crate) write: bool,
    pub(crate) append: bool,
    pub(crate) truncate: bool,
    pub(crate) create: bool,
    pub(crate) create_new: bool,
    pub(crate) mode: u32,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl OpenOptions {
    /// Nothing is allowed yet.
    pub const fn new() -> Self {
        Self {
            read: false,
            write: false,
            append: false,
            truncate: false,
            create: false,
            create_new: false,
            mode: FILE_MODE,
        }
    }

    /// For reading.
    #[must_use]
    pub const fn read(mut self, read: bool) -> Self {
        self.read = read;
        self
    }

    /// For writing at any offset.
    #[must_use]
    pub const fn write(mut self, write: bool) -> Self {
        self.write = write;
        self
    }

    /// For writing at the end only.
    #[must_use]
    pub const fn append(mut self, append: bool) -> Self {
        self.append = append;
        self
    }

    /// Throws the content away.
    #[must_use]
    pub const fn truncate(mut self, truncate: bool) -> Self {
        self.truncate = truncate;
        self
    }

    /// Makes the file if it does not exist.
    #[must_use]
    pub const fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// Makes the file, which must not exist, not even as a symbolic link.
    #[must_use]
    pub const fn create_new(mut self, create_new: bool) -> Self {
        self.create_new = create_new;
        self
    }

    /// Permission bits, if the file is made.
    #[must_use]
    pub const fn mode(mut self, mode: u32) -> Self {
        self.mode = mode;
        self
    }

    pub(crate) fn writes(&self) -> bool {
        self.write || self.append
    }

    pub(crate) fn creates(&self) -> bool {
        self.create || self.create_new
    }

    /// The rules of [`std::fs::OpenOptions`].
    pub(crate) fn check(&self) -> Result<(), Cause> {
        let nothing = !self.read && !self.writes();
        let changes_unwritable = !self.writes() && (self.truncate || self.creates());
        let cuts_appended = self.append && self.truncate && !self.create_new;
        if nothing || changes_unwritable || cuts_appended {
            return Err(Cause::BadOptions);
        }
        Ok(())
    }
}
