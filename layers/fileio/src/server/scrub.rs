//! Comparing what a node has with its checksums ([`Scrub`]).

use meta::protocol as metadata;

use super::attributes::FileAttributes;
use crate::protocol::{Error, ROOT, Scrub, ScrubPart};

impl FileAttributes {
    pub(super) async fn scrub(&self, request: Scrub) -> Result<ScrubPart, Error> {
        let Scrub { who, root, after, data, repair } = request;
        if root != ROOT {
            return Err(Error::Invalid {});
        }
        let owner = self.base.attributes(ROOT).await?.uid;
        if ![0, owner].contains(&who.uid) {
            return Err(Error::NotPermitted {});
        }
        self.base.meta_here(metadata::Scrub { after, data, repair }).await
    }
}
