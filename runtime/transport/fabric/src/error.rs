//! What can go wrong, with its cause and the next step.

/// An error of this crate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FabricError {
    /// The library is not on this machine, or too old.
    #[error(
        "libfabric cannot be loaded: {cause}; install it (Debian: libfabric1), or use plain TCP"
    )]
    NoLibrary {
        /// What the linker said.
        cause: String,
    },
    /// The library has no such provider here.
    #[error(
        "libfabric has no provider {provider} with messages and RMA here: {cause}; `fi_info -l` \
         lists what there is"
    )]
    NoProvider {
        /// As asked for.
        provider: &'static str,
        /// What the library said.
        cause: String,
    },
    /// A call failed.
    #[error("{call} failed: {cause}")]
    Failed {
        /// The call.
        call: &'static str,
        /// What the library said.
        cause: String,
        /// Its number, without sign.
        code: i32,
    },
    /// A named limit is reached: try again when something has completed.
    #[error("{what} is used up for now: try again when an operation has completed")]
    Busy {
        /// Of what there is no more.
        what: &'static str,
    },
    /// More than can ever be carried.
    #[error("{what} has {length} bytes, at most {limit} are carried: send it in parts")]
    TooLong {
        /// What is too long.
        what: &'static str,
        /// Its length in bytes.
        length: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// The other side is not, or no longer, connected.
    #[error("no connection {connection}: it was lost or closed; connect anew")]
    NotConnected {
        /// Its number.
        connection: u32,
    },
    /// A text or a record is not what it should be.
    #[error("{what} is malformed: {cause}")]
    Malformed {
        /// What it should be.
        what: &'static str,
        /// Why it is not.
        cause: String,
    },
}
