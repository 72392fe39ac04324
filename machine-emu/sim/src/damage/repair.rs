//! A scrub that makes bad copies of data anew.

use fileio::protocol::ScrubFlaw;

use super::DamageWorkload;

impl DamageWorkload<'_> {
    /// Of data whose copies are bad on one disk at most all is mended, and nothing is left to mend.
    pub(super) async fn repair(&self) {
        let is_data = |flaw: &ScrubFlaw| flaw.inode != 0;
        let found = self.harness.scrub(true).await;
        let stays = found.iter().find(|flaw| is_data(flaw) && !flaw.is_mended);
        assert!(stays.is_none(), "a bad copy is not made anew: {stays:?}");
        let found = self.harness.scrub(false).await;
        let again = found.iter().find(|flaw| is_data(flaw));
        assert!(again.is_none(), "a copy is bad that was made anew: {again:?}");
    }
}
