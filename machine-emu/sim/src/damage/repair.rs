//! A scrub that makes bad copies of data anew.

use std::time::Duration;

use fileio::protocol::{Credentials, ROOT, Scrub, ScrubFlaw};
use runtime::NodeId;

use super::DamageWorkload;

/// The pause before a scrub is asked for again.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

impl DamageWorkload<'_> {
    /// Of data whose copies are bad on one disk at most all is mended, and nothing is left to mend.
    pub(super) async fn repair(&self) {
        let is_data = |flaw: &ScrubFlaw| flaw.inode != 0;
        let found = self.scrub(true).await;
        let stays = found.iter().find(|flaw| is_data(flaw) && !flaw.is_mended);
        assert!(stays.is_none(), "a bad copy is not made anew: {stays:?}");
        let found = self.scrub(false).await;
        let again = found.iter().find(|flaw| is_data(flaw));
        assert!(again.is_none(), "a copy is bad that was made anew: {again:?}");
    }

    /// What is wrong at all nodes.
    async fn scrub(&self, repair: bool) -> Vec<ScrubFlaw> {
        let context = self.harness.cluster.application(0);
        let mut flaws = Vec::new();
        for node in (0..self.harness.cluster.geometry().fs_nodes).map(NodeId::fs) {
            let mut next = Some(Vec::new());
            while let Some(after) = next {
                let who = Credentials::root();
                let call = Scrub { who, root: ROOT, after: after.clone(), data: true, repair };
                let asked = self.harness.within_limit("a scrub", context.spawn(node, call)).await;
                match asked {
                    Ok(part) => {
                        flaws.extend(part.flaws);
                        next = part.next;
                    }
                    // Checkpoints came between again and again, or the network lost it.
                    Err(error) if error.not_applied() || error.is_lost() => {
                        context.sleep(RETRY_PAUSE).await;
                        next = Some(after);
                    }
                    Err(error) => panic!("a scrub of node {node}: {error}"),
                }
            }
        }
        flaws
    }
}
