//! Errors of the layers below, as clients see them.

use crate::protocol::Error;

/// Says in the log that something failed that is tried again. Nothing if a disk takes no writes for
/// now: its disk node has said so, once.
pub(super) fn warn_of_retry(error: Error, message: &'static str) {
    if !error.is_unwritable() {
        tracing::warn!(%error, "{message}");
    }
}

impl From<meta::protocol::Error> for Error {
    fn from(error: meta::protocol::Error) -> Self {
        use meta::protocol::Error as Meta;
        match error {
            Meta::Undelivered { why } => why.into(),
            Meta::Stale {} => Self::Stale {},
            Meta::Exists {} => Self::Exists {},
            Meta::Changed {} => Self::Changed {},
            Meta::NotDirectory {} => Self::NotDirectory {},
            Meta::NoSpace {} => Self::NoSpace {},
            Meta::Damaged {} => Self::Damaged {},
            Meta::TooLarge {} => Self::TooLarge {},
            Meta::LostWrites {} => Self::LostWrites {},
            Meta::NoXattr {} => Self::NoXattr {},
            Meta::Unwritable { disk_node, disk, why } => Self::Unwritable { disk_node, disk, why },
            Meta::ReadOnly {} => Self::ReadOnly {},
            Meta::Missing { disk_node, disk } => Self::Unreadable { disk_node, disk },
        }
    }
}

impl From<blockio::protocol::Error> for Error {
    fn from(error: blockio::protocol::Error) -> Self {
        match error {
            blockio::protocol::Error::Undelivered { why } => why.into(),
            blockio::protocol::Error::LostWrites { .. } => Self::LostWrites {},
            blockio::protocol::Error::Unwritable { disk_node, disk, why } => {
                Self::Unwritable { disk_node, disk, why }
            }
            blockio::protocol::Error::Missing { disk_node, disk } => {
                Self::Unreadable { disk_node, disk }
            }
            // The log says so once, where it happened.
            blockio::protocol::Error::DiskFailed { .. } => Self::Damaged {},
            other => {
                tracing::error!(error = %other, "file data cannot be read or written");
                Self::Damaged {}
            }
        }
    }
}
