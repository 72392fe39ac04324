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

/// Methods that set one option each.
macro_rules! setters {
    ($($(#[$documentation:meta])* $option:ident: $type:ty;)*) => {
        impl OpenOptions {
            $(
                $(#[$documentation])*
                #[must_use]
                pub const fn $option(mut self, $option: $type) -> Self {
                    self.$option = $option;
                    self
                }
            )*
        }
    };
}

setters! {
    /// For reading.
    read: bool;
    /// For writing at any offset.
    write: bool;
    /// For writing at the end only.
    append: bool;
    /// Throws the content away.
    truncate: bool;
    /// Makes the file if it does not exist.
    create: bool;
    /// Makes the file, which must not exist, not even as a symbolic link.
    create_new: bool;
    /// Permission bits, if the file is made.
    mode: u32;
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
