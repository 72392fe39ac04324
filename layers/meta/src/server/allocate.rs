//! Space: blocks for this node's files, and groups for nodes that ran dry (design D6: no global
//! free list, which was the bottleneck of the thesis' Fig. 4.5).

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::rc::Rc;
use std::time::Duration;

use futures::future::join_all;
use runtime::NodeId;
use runtime::protocol::Undelivered;
use runtime::sync::KeyedLock;
use runtime::wire::to_bytes;

use super::{MetaServer, decode};
use crate::client::ask;
use crate::keys;
use crate::protocol::{
    AckGroups, Allocate, ConfirmGroups, Error, Near, NodeSpace, RequestGroups, Run,
};
use crate::store::{Batch, StoreError};

/// Groups asked of another node at a time.
const GROUPS_ASKED: u32 = 8;
/// Groups on their way that others are told of at a time.
const GROUPS_TOLD_MAX: usize = 1024;
/// An allocation that finds the store cleaning up, or others taking what it has fetched, is tried
/// again so often.
const BUSY_TRIES_MAX: u32 = 200;
/// The pause before it.
const BUSY_PAUSE: Duration = Duration::from_millis(5);
/// Space on its way back is waited for so often, then others are asked: it may be on its way for as long as a
/// cache is away.
const RECLAIM_TRIES_MAX: u32 = 100;
/// A checkpoint for the sake of space must bring back at least so many blocks.
const RECLAIM_BLOCKS_MIN: u64 = 64;
/// After the whole volume was found full, the others are not asked again for so long: an allocation
/// waits until then.
const DRY_PAUSE: Duration = Duration::from_millis(500);
/// Groups that were offered to another node should be there after so long; else it is told again, as often.
const OFFER_PAUSE: Duration = Duration::from_secs(5);
/// After none was found ahead of time, none is looked for so long.
const AHEAD_PAUSE: Duration = Duration::from_secs(5);

/// Allocation state of one node.
#[derive(Default)]
pub(super) struct Space {
    /// One search for groups at a time.
    refill: KeyedLock<()>,
    /// Nobody had groups to give, at this time.
    dry_at: Cell<Option<Duration>>,
    /// Space is being looked for before it is needed.
    looking_ahead: Cell<bool>,
    /// One confirmation of what has come at a time.
    confirming: KeyedLock<()>,
    /// How often a donor has answered one: since then what it offered may have been given on.
    confirmed: Cell<u64>,
    /// Grants are made, and taken back, one at a time.
    granting: KeyedLock<()>,
    /// Grants so far.
    granted: Cell<u64>,
    /// Offers that stand are seen to.
    seeing_to_offers: Cell<bool>,
    /// Groups that have come since the start, and that their donors may offer once more.
    unconfirmed: RefCell<BTreeSet<u64>>,
}

/// What came of asking a node for groups.
enum Fetched {
    /// Some have come.
    Some,
    /// It told again of some that have come before.
    Known,
    /// It has none.
    None,
}

impl MetaServer {
    /// Answers [`Allocate`], if this node has the space at hand.
    pub(super) fn try_allocate_now(self: &Rc<Self>, request: &Allocate) -> Option<Vec<Run>> {
        let &Allocate { blocks, from_reserve, near } = request;
        if from_reserve {
            return None;
        }
        // Once for each chunk that is begun.
        if matches!(near, Near::Apart { .. }) && self.store.is_short() {
            self.look_ahead();
        }
        self.store.allocate_near(blocks, near).ok()
    }

    /// Looks for space in the background: whoever allocates when there is none waits for a checkpoint, or for
    /// others, and gets what is left between the blocks of others before.
    fn look_ahead(self: &Rc<Self>) {
        if self.space.looking_ahead.replace(true) {
            return;
        }
        let me = self.clone();
        self.context.task(async move {
            if let Err(error) = me.find_space_ahead().await {
                tracing::debug!(%error, "no space was found ahead of time");
                me.context.sleep(AHEAD_PAUSE).await;
            }
            me.space.looking_ahead.set(false);
        });
    }

    /// What was freed here first, then what others can spare.
    async fn find_space_ahead(&self) -> Result<(), Error> {
        if self.store.space().waiting_blocks >= RECLAIM_BLOCKS_MIN {
            self.store.checkpoint().await?;
        }
        if self.store.is_short() { self.refill(0).await } else { Ok(()) }
    }

    /// Answers [`Allocate`]. `NoSpace` only if somebody has found out that there is none: space that is on its
    /// way back, or that a node has which does not answer, is worth asking again for.
    pub(super) async fn allocate(&self, request: &Allocate) -> Result<Vec<Run>, Error> {
        let &Allocate { blocks, from_reserve, near } = request;
        for attempt in 0..BUSY_TRIES_MAX {
            let allocated = if from_reserve {
                self.store.allocate_relief(blocks)
            } else {
                self.store.allocate_near(blocks, near)
            };
            match allocated {
                Ok(runs) => return Ok(runs),
                // Space that was freed comes back with a checkpoint.
                Err(StoreError::Busy) => self.context.sleep(BUSY_PAUSE).await,
                Err(StoreError::NoSpace)
                    if attempt < RECLAIM_TRIES_MAX && self.reclaim().await? => {}
                Err(StoreError::NoSpace) => self.refill(blocks).await?,
                Err(error) => return Err(error.into()),
            }
        }
        Err(Undelivered::Busy.into())
    }

    pub(super) async fn release(&self, runs: Vec<Run>) -> Result<(), Error> {
        self.forget_and_release(runs).await
    }

    /// Waits for space that is on its way back: files being trimmed, blocks of the last
    /// checkpoint. False if there is none.
    async fn reclaim(&self) -> Result<bool, Error> {
        if self.trims.is_any() {
            self.context.sleep(BUSY_PAUSE).await;
            return Ok(true);
        }
        let waiting = self.store.space().waiting_blocks;
        if waiting >= RECLAIM_BLOCKS_MIN {
            self.store.checkpoint().await?;
        }
        Ok(self.store.space().waiting_blocks < waiting)
    }

    /// Will files that are gone free space, some time soon?
    fn is_space_coming(&self) -> bool {
        self.trims.is_any() || self.open_files.is_space_kept()
    }

    /// Gets groups from the other nodes, the next in the ring first; `NoSpace` if all of them have said that
    /// they have none.
    async fn refill(&self, blocks: u32) -> Result<(), Error> {
        let before = self.store.space().free_blocks;
        let asked_at = self.context.now();
        let _alone = self.space.refill.exclusive(()).await;
        if self.store.space().free_blocks > before.max(u64::from(blocks)) {
            return Ok(()); // somebody else has fetched them meanwhile
        }
        if let Some(dry_at) = self.space.dry_at.get() {
            if dry_at >= asked_at {
                return Err(Error::NoSpace {}); // found out while this waited
            }
            // Somebody may have removed files since: what was found then is no answer now.
            let pause = (dry_at + DRY_PAUSE).saturating_sub(self.context.now());
            self.context.sleep(pause).await;
        }
        let nodes = self.context.fs_nodes();
        let mut failure = None;
        for step in 1..nodes {
            let donor = NodeId::fs((self.node + step) % nodes);
            match self.fetch_groups(donor, GROUPS_ASKED).await {
                Ok(Fetched::Some) => return Ok(()),
                // The others may have some.
                Ok(Fetched::None) => {}
                Ok(Fetched::Known) => failure = failure.or(Some(Undelivered::Busy.into())),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        if let Some(error) = failure {
            return Err(error);
        }
        if self.is_space_coming() {
            return Err(Undelivered::Busy.into());
        }
        self.space.dry_at.set(Some(self.context.now()));
        Err(Error::NoSpace {})
    }

    /// Asks `donor` for those groups that it has offered already, or for up to `count`, and takes them. The caller
    /// holds `refill`.
    async fn fetch_groups(&self, donor: NodeId, count: u32) -> Result<Fetched, Error> {
        let confirmed = self.space.confirmed.get();
        let groups = ask(&self.context, donor, RequestGroups { to: self.node, count }).await?;
        if groups.is_empty() {
            return Ok(Fetched::None);
        }
        let (position, fetched) = self
            .record(|| {
                // One of them may have been confirmed and given on since the donor has looked.
                if self.space.confirmed.get() != confirmed {
                    return Err(Undelivered::Busy.into());
                }
                let mut batch = Batch::new();
                // An offer may be repeated after a crash of the donor.
                let owned = self.store.groups();
                let mut fetched = Fetched::Known;
                for group in groups.iter().filter(|group| owned.binary_search(group).is_err()) {
                    self.space.unconfirmed.borrow_mut().insert(*group);
                    batch.take_group(*group);
                    batch.put(keys::arrival(*group), to_bytes(&donor.0));
                    fetched = Fetched::Some;
                }
                Ok((batch, fetched))
            })
            .await?;
        self.store.durable(position).await?;
        // If this fails it is done before one of them is given on.
        let confirmed = self.confirm_arrivals().await;
        if let Err(error) = confirmed {
            tracing::debug!(%error, %donor, "the arrival of groups could not be confirmed yet");
        }
        Ok(fetched)
    }

    /// Sees to it that no donor offers again what has come from it. Only then may it be given on:
    /// else an old offer could bring back a group that somebody else has by now.
    async fn confirm_arrivals(&self) -> Result<(), Error> {
        let _alone = self.space.confirming.exclusive(()).await;
        loop {
            let mut arrived: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
            let found = self.durable_groups(keys::ARRIVALS).await?;
            let are_all = found.len() < GROUPS_TOLD_MAX;
            for (group, donor) in found {
                arrived.entry(donor).or_default().push(group);
            }
            let mut confirmed = Ok(());
            for (donor, groups) in arrived {
                // One that is away does not keep the others waiting.
                confirmed = confirmed.and(self.confirm_to(donor, &groups).await);
            }
            if are_all || confirmed.is_err() {
                return confirmed;
            }
        }
    }

    async fn confirm_to(&self, donor: u32, groups: &[u64]) -> Result<(), Error> {
        let call = AckGroups { to: self.node, groups: groups.to_vec() };
        ask(&self.context, NodeId::fs(donor), call).await?;
        self.space.confirmed.set(self.space.confirmed.get() + 1);
        let arrivals: Vec<_> = groups.iter().copied().map(keys::arrival).collect();
        self.delete_all(&arrivals).await?;
        self.space.unconfirmed.borrow_mut().retain(|group| !groups.contains(group));
        Ok(())
    }

    /// Answers [`ConfirmGroups`](crate::protocol::ConfirmGroups): fetches what was offered.
    pub(super) async fn confirm_groups(&self, donor: u32) -> Result<(), Error> {
        let _alone = self.space.refill.exclusive(()).await;
        self.fetch_groups(NodeId::fs(donor), 0).await.map(drop)
    }

    /// Sees to it, in the background, that groups offered to others get there. Whoever asked for them may have
    /// crashed, or may have had what it needs from somebody else before the answer came; until it asks again
    /// nobody could use them.
    pub(super) fn retry_offers(self: &Rc<Self>) {
        if self.space.seeing_to_offers.replace(true) {
            return;
        }
        let me = self.clone();
        self.context.task(async move {
            loop {
                me.context.sleep(OFFER_PAUSE).await;
                let granted = me.space.granted.get();
                match me.remind_of_offers().await {
                    Ok(false) if me.space.granted.get() == granted => break,
                    Ok(_) => {}
                    Err(error) => tracing::debug!(%error, "groups offered have not arrived yet"),
                }
            }
            me.space.seeing_to_offers.set(false);
        });
    }

    /// False if no offer stands.
    async fn remind_of_offers(&self) -> Result<bool, Error> {
        let offered = self.durable_groups(keys::GRANTS).await?;
        let receivers: BTreeSet<u32> = offered.into_iter().map(|(_, receiver)| receiver).collect();
        let reminded = receivers.iter().map(|&receiver| {
            ask(&self.context, NodeId::fs(receiver), ConfirmGroups { donor: self.node })
        });
        join_all(reminded).await.into_iter().collect::<Result<(), Error>>()?;
        Ok(!receivers.is_empty())
    }

    pub(super) async fn request_groups(
        self: &Rc<Self>,
        request: RequestGroups,
    ) -> Result<Vec<u64>, Error> {
        let RequestGroups { to, count } = request;
        let mut groups = self.unconfirmed_grants(to).await?;
        if count == 0 {
            return Ok(groups);
        }
        if groups.is_empty() {
            self.confirm_arrivals().await?;
        } else {
            self.retry_offers();
        }
        for attempt in 0..BUSY_TRIES_MAX {
            if !groups.is_empty() {
                break;
            }
            // Both in one moment: what has come back in between must not be overlooked.
            if self.spare_groups(1).is_empty() {
                if attempt < RECLAIM_TRIES_MAX && self.reclaim().await? {
                    continue;
                }
                // The asker may ask others, and comes again.
                let is_coming = self.is_space_coming();
                return if is_coming { Err(Undelivered::Busy.into()) } else { Ok(groups) };
            }
            groups = self.grant(to, count).await?;
        }
        if groups.is_empty() { Err(Undelivered::Busy.into()) } else { Ok(groups) }
    }

    /// Offers up to `count` groups to node `to`, durably: the receiver must not use what a crash here could give
    /// back to us.
    async fn grant(self: &Rc<Self>, to: u32, count: u32) -> Result<Vec<u64>, Error> {
        let granting = self.space.granting.exclusive(()).await;
        let (position, spare) = self
            .record(|| {
                let spare = self.spare_groups(count as usize);
                let mut batch = Batch::new();
                for &group in &spare {
                    batch.give_group(group);
                    batch.put(keys::grant_intent(group), to_bytes(&to));
                }
                Ok((batch, spare))
            })
            .await?;
        self.space.granted.set(self.space.granted.get() + 1);
        self.retry_offers();
        drop(granting);
        self.store.durable(position).await?;
        Ok(spare)
    }

    /// Groups that may be given away. Not one that has come while this request was on its way: should it be
    /// given on before its donor has forgotten the offer, and all crash, the donor would offer it again, and it
    /// would have two owners.
    fn spare_groups(&self, count: usize) -> Vec<u64> {
        let unconfirmed = self.space.unconfirmed.borrow();
        let mut spare = self.store.spare_groups(count + unconfirmed.len());
        spare.retain(|group| !unconfirmed.contains(group));
        spare.truncate(count);
        spare
    }

    /// Groups given to `to` in an offer whose answer may have been lost.
    async fn unconfirmed_grants(&self, to: u32) -> Result<Vec<u64>, Error> {
        let mut groups = self.durable_groups(keys::GRANTS).await?;
        groups.retain(|(_, receiver)| *receiver == to);
        Ok(groups.into_iter().map(|(group, _)| group).collect())
    }

    /// The groups with a note of this kind, and the node that each note names. Other nodes are told of them, so
    /// they are durable: else a crash here could undo what the others go by, and a group would have two owners,
    /// or none.
    async fn durable_groups(&self, kind: u64) -> Result<Vec<(u64, u32)>, Error> {
        let (from, end) = keys::intents(kind);
        let found = self.store.scan(Bound::Included(&from), &end, GROUPS_TOLD_MAX).await?;
        self.store.flushed(&from, &end).await?;
        let noted = found.iter().map(|(key, node)| {
            let group = keys::intent_number(key).ok_or(Error::Damaged {})?;
            Ok((group, decode(node)?))
        });
        noted.collect()
    }

    pub(super) async fn ack_groups(&self, request: AckGroups) -> Result<(), Error> {
        let AckGroups { to, groups } = request;
        let granting = self.space.granting.exclusive(()).await;
        // The request may be an old one, and the group has come back and gone to another node since.
        let mut arrived = self.unconfirmed_grants(to).await?;
        arrived.retain(|group| groups.contains(group));
        let position = if arrived.is_empty() {
            // A copy of the request has just been here: its record comes before this one.
            self.record(|| Ok((Batch::new(), ()))).await?.0
        } else {
            let grants: Vec<_> = arrived.into_iter().map(keys::grant_intent).collect();
            self.delete_all(&grants).await?
        };
        drop(granting);
        // Not even a crash may bring the offer back.
        Ok(self.store.durable(position).await?)
    }

    pub(super) fn get_space(&self) -> NodeSpace {
        let space = self.store.space();
        NodeSpace {
            // What is kept back for deletions can never be used by files.
            total_blocks: space.owned_blocks - space.reserved_blocks,
            free_blocks: space.free_blocks,
            inodes: self.inode_count.get(),
        }
    }
}
