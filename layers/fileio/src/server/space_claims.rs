//! How the nodes share the size limit of a partition.
//!
//! Each node may use what it has claimed. Claims are given out by one node for each partition, and
//! together they are never above the limit. When too little is left, that node lets all others give
//! up what they have claimed and do not use. Nothing of this is stored: a node that has come up has
//! claimed what it uses, and one that gives out claims asks all nodes for theirs.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use futures::future::try_join_all;
use meta::FileInformation;
use meta::partition::PartitionNumber;
use runtime::sync::KeyedLock;
use runtime::{Context, NodeId};

use super::base::or_again;
use crate::client::send_to_with_retries;
use crate::protocol::{ClaimSpace, Error, GetPartitionShare, PartitionShare};

/// A claim grows by this part of what is left, shared by all nodes: so that a node need not ask
/// often while there is much, and takes little while there is little.
const LEFT_PARTS: u64 = 4;

/// Times that a claim is asked for, at most: it may be given up before it is used.
const CLAIMS_MAX: u32 = 8;

/// What this node may use of a partition.
#[derive(Clone, Copy, Default)]
struct OwnClaim {
    bytes: u64,
    /// Of these, bytes that files are about to use.
    held: u64,
    /// Raised when something of it is given up.
    given_up: u64,
}

/// Space that a file is about to use. To be dropped when the file has it, or does not get it.
pub(super) struct SpaceHold {
    claims: Rc<SpaceClaims>,
    partition: PartitionNumber,
    bytes: u64,
}

impl Drop for SpaceHold {
    fn drop(&mut self) {
        self.claims.change(self.partition, |claim| claim.held -= self.bytes);
    }
}

/// The claims of one node, and those that it gives out.
pub(super) struct SpaceClaims {
    context: Context,
    information: FileInformation,
    own: RefCell<BTreeMap<PartitionNumber, OwnClaim>>,
    claiming: KeyedLock<PartitionNumber>,
    /// By partition and node; without a partition of which nothing is known.
    given: RefCell<BTreeMap<PartitionNumber, BTreeMap<u32, u64>>>,
    giving: KeyedLock<PartitionNumber>,
}

impl SpaceClaims {
    pub(super) fn new(context: Context, information: FileInformation) -> Self {
        Self {
            context,
            information,
            own: RefCell::default(),
            claiming: KeyedLock::default(),
            given: RefCell::default(),
            giving: KeyedLock::default(),
        }
    }

    /// What this node has of a partition. With `give_up` it claims no more than it needs.
    pub(super) fn share(&self, partition: PartitionNumber, give_up: bool) -> PartitionShare {
        let used = self.information.partition_use(partition);
        let claim = self.change(partition, |claim| {
            let needed = used.bytes + claim.held;
            if give_up {
                claim.bytes = needed;
                claim.given_up += 1;
            }
            claim.bytes = claim.bytes.max(needed);
        });
        let (used_bytes, claimed_bytes) = (used.bytes, claim.bytes);
        PartitionShare { used_bytes, inodes: used.inodes, claimed_bytes }
    }

    fn change(&self, partition: PartitionNumber, edit: impl FnOnce(&mut OwnClaim)) -> OwnClaim {
        let mut own = self.own.borrow_mut();
        let claim = own.entry(partition).or_default();
        edit(claim);
        *claim
    }

    /// Holds `bytes` more, if they are within what this node has claimed.
    fn try_hold(self: &Rc<Self>, partition: PartitionNumber, bytes: u64) -> Option<SpaceHold> {
        let used = self.information.partition_use(partition).bytes;
        let mut fits = false;
        self.change(partition, |claim| {
            fits = used + claim.held + bytes <= claim.bytes;
            claim.held += if fits { bytes } else { 0 };
        });
        fits.then(|| SpaceHold { claims: self.clone(), partition, bytes })
    }

    /// Lets this node use `bytes` more, or says that there is no space.
    pub(super) async fn hold(
        self: &Rc<Self>,
        partition: PartitionNumber,
        bytes: u64,
    ) -> Result<SpaceHold, Error> {
        if let Some(hold) = self.try_hold(partition, bytes) {
            return Ok(hold);
        }
        let _alone = self.claiming.exclusive(partition).await;
        for _ in 0..CLAIMS_MAX {
            if let Some(hold) = self.try_hold(partition, bytes) {
                return Ok(hold);
            }
            let share = self.share(partition, false);
            let OwnClaim { held, given_up, .. } = self.change(partition, |_| {});
            let wanted_bytes =
                (share.used_bytes + held + bytes).saturating_sub(share.claimed_bytes);
            let node = self.context.node().0;
            let call = ClaimSpace { partition, node, share, wanted_bytes };
            let giver = NodeId::fs(u32::from(partition) % self.context.fs_nodes());
            let claimed = or_again(send_to_with_retries(&self.context, giver, call).await)?;
            let mut is_late = false;
            self.change(partition, |claim| {
                // It was given up while the answer was on its way.
                is_late = claim.given_up != given_up;
                claim.bytes = if is_late { claim.bytes } else { claimed };
            });
            if !is_late && claimed < share.claimed_bytes + wanted_bytes {
                return self.try_hold(partition, bytes).ok_or(Error::NoSpace {});
            }
            // A smaller request that did not have to ask may have been faster.
        }
        Err(runtime::Undelivered::Busy.into())
    }

    /// Gives out a claim of a partition with this limit. Returns what the node may use in all.
    pub(super) async fn grant(&self, request: ClaimSpace, limit: u64) -> Result<u64, Error> {
        let ClaimSpace { partition, node, share, wanted_bytes } = request;
        let _alone = self.giving.exclusive(partition).await;
        if !self.given.borrow().contains_key(&partition) {
            self.ask_all(partition, |_| false).await?;
        }
        if let Some(bytes) = self.try_grant(partition, limit, (node, share), wanted_bytes) {
            return Ok(bytes);
        }
        // The node that asks needs what it has.
        self.ask_all(partition, |other| other != node).await?;
        let given = self.try_grant(partition, limit, (node, share), wanted_bytes);
        // As much as there is.
        Ok(given.unwrap_or_else(|| {
            let left = limit.saturating_sub(self.claimed_by_others(partition, node));
            let bytes = left.max(share.claimed_bytes);
            tracing::debug!(partition, limit, ?share, wanted_bytes, bytes, "all is claimed");
            self.note_given(partition, node, bytes);
            bytes
        }))
    }

    /// Gives out what is wanted and a part of what is left, if there is enough.
    fn try_grant(
        &self,
        partition: PartitionNumber,
        limit: u64,
        (node, share): (u32, PartitionShare),
        wanted: u64,
    ) -> Option<u64> {
        let left = limit.checked_sub(self.claimed_by_others(partition, node))?;
        let needed = share.claimed_bytes + wanted;
        let unclaimed = left.checked_sub(needed)?;
        let bytes = needed + unclaimed / (LEFT_PARTS * u64::from(self.context.fs_nodes()));
        self.note_given(partition, node, bytes);
        Some(bytes)
    }

    fn claimed_by_others(&self, partition: PartitionNumber, node: u32) -> u64 {
        let given = self.given.borrow();
        let claims = given.get(&partition).into_iter().flatten();
        claims.filter(|(other, _)| **other != node).map(|(_, bytes)| bytes).sum()
    }

    /// A late copy of a request must not hide what was given out since, so a claim only grows here
    /// until the nodes are asked.
    fn note_given(&self, partition: PartitionNumber, node: u32, bytes: u64) {
        let mut given = self.given.borrow_mut();
        let claim = given.entry(partition).or_default().entry(node).or_default();
        *claim = bytes.max(*claim);
    }

    async fn ask_all(
        &self,
        partition: PartitionNumber,
        give_up: impl Fn(u32) -> bool,
    ) -> Result<(), Error> {
        let shares = shares(&self.context, partition, give_up).await?;
        let claims = shares.into_iter().map(|(node, share)| (node, share.claimed_bytes));
        self.given.borrow_mut().insert(partition, claims.collect());
        Ok(())
    }
}

/// What all nodes have of a partition. Some [give up](GetPartitionShare) what they do not use.
pub(super) async fn shares(
    context: &Context,
    partition: PartitionNumber,
    give_up: impl Fn(u32) -> bool,
) -> Result<Vec<(u32, PartitionShare)>, Error> {
    let asked = (0..context.fs_nodes()).map(|node| {
        let call = GetPartitionShare { partition, give_up: give_up(node) };
        async move {
            let share = or_again(send_to_with_retries(context, NodeId::fs(node), call).await)?;
            Ok((node, share))
        }
    });
    try_join_all(asked).await
}
