//! Keys in the root directory, for programs of root.

use fileio::protocol::Error;
pub use fileio::root_keys::{KeyFamily, KeysKept, RootKey, TOKEN_KEYS};
use runtime::Spawn;

use crate::FileSystem;

/// The keys of one purpose in a volume.
#[derive(Debug)]
pub struct RootKeys<'a, S> {
    volume: &'a FileSystem<S>,
    family: KeyFamily,
}

impl<'a, S: Spawn> RootKeys<'a, S> {
    /// The keys of `family` in `volume`.
    pub fn new(volume: &'a FileSystem<S>, family: KeyFamily) -> Self {
        Self { volume, family }
    }

    /// The valid keys, the newest first; the first one is made if there are none.
    pub async fn valid_or_first(
        &self,
        make: impl Fn(u32) -> Vec<u8>,
    ) -> Result<Vec<RootKey>, Error> {
        let session = &self.volume.session;
        self.family.valid_or_first(session.machine(), make, || session.call()).await
    }

    /// Creates the next key and removes those that are not `kept`; returns its number.
    pub async fn rotate(
        &self,
        kept: KeysKept,
        make: impl Fn(u32) -> Vec<u8>,
    ) -> Result<u32, Error> {
        let session = &self.volume.session;
        self.family.rotate(session.machine(), kept, make, || session.call()).await
    }
}
