//! Errors of the layers below, as clients see them.

use crate::protocol::Error;

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
        }
    }
}

impl From<blockio::protocol::Error> for Error {
    fn from(error: blockio::protocol::Error) -> Self {
        match error {
            blockio::protocol::Error::Undelivered { why } => why.into(),
            blockio::protocol::Error::LostWrites { .. } => Self::LostWrites {},
            other => {
                tracing::error!(error = %other, "file data cannot be read or written");
                Self::Damaged {}
            }
        }
    }
}
