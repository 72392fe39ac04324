//! Allocation groups that move between nodes ([`RequestGroups`], [`AckGroups`], [`ConfirmGroups`];
//! no global free list, which was the bottleneck of the thesis' Fig. 4.5).

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

use super::emptying::GroupEmptier;
use super::reclaim::Reclaim;
use crate::client::ask;
use crate::keys;
use crate::protocol::{AckGroups, ConfirmGroups, Error, GroupUrgency, RequestGroups};
use crate::server::base::NodeBase;
use crate::server::record_log::decode;
use crate::store::Batch;

/// Groups asked of another node at a time.
const GROUPS_PER_REQUEST: u32 = 8;
/// Groups in transit that one message names, at most.
const GROUPS_PER_MESSAGE_MAX: usize = 1024;
/// Attempts of an allocation that finds the store cleaning up, or others taking what it has
/// fetched.
pub(crate) const BUSY_TRIES_MAX: u32 = 200;
/// The pause before it.
pub(crate) const BUSY_PAUSE: Duration = Duration::from_millis(5);
/// Pauses for space that is being freed before other nodes are asked: it may take as long as a
/// cache is down.
pub(crate) const RECLAIM_TRIES_MAX: u32 = 100;
/// A checkpoint for the sake of space must free at least this many blocks.
pub(crate) const RECLAIM_BLOCKS_MIN: u64 = 64;
/// After the whole volume was found full, the others are not asked again for this long: an
/// allocation waits until then.
const DRY_PAUSE: Duration = Duration::from_millis(500);
/// Groups that were offered to another node should arrive within this time; else the offer is
/// repeated, at this interval.
const OFFER_PAUSE: Duration = Duration::from_secs(5);

/// Times that a node is asked again for groups that it empties.
const EMPTYING_TRIES_MAX: u32 = 100;
/// The pause before it.
const EMPTYING_PAUSE: Duration = Duration::from_millis(50);
/// A group that has come is not given on for this long: nodes that are all short of space would
/// take it from each other before one of them has used it.
const ARRIVAL_STAY: Duration = Duration::from_secs(2);

/// What came of asking a node for groups.
enum FetchResult {
    /// Some have come.
    Some,
    /// It repeated an offer of some that have come before.
    Known,
    /// It has none.
    None,
}

/// Gets groups from other nodes, and gives them away.
pub(crate) struct GroupExchange {
    base: Rc<NodeBase>,
    reclaim: Rc<Reclaim>,
    emptier: Rc<GroupEmptier>,
    /// One search for groups at a time.
    refill: KeyedLock<()>,
    /// No node had groups to give, at this time.
    dry_at: Cell<Option<Duration>>,
    /// One confirmation of what has come at a time.
    confirming: KeyedLock<()>,
    /// How often a donor has answered one: since then what it offered may have been given on.
    confirmed: Cell<u64>,
    /// Grants are made, and taken back, one at a time.
    granting: KeyedLock<()>,
    /// Grants so far.
    granted: Cell<u64>,
    /// Offers that stand are seen to.
    retrying_offers: Cell<bool>,
    /// Groups that have come since the start, and that their donors may offer once more.
    unconfirmed: RefCell<BTreeSet<u64>>,
    /// When groups have come, if that was a moment ago.
    arrived: RefCell<BTreeMap<u64, Duration>>,
}

impl GroupExchange {
    pub(crate) fn new(
        base: &Rc<NodeBase>,
        reclaim: Rc<Reclaim>,
        emptier: Rc<GroupEmptier>,
    ) -> Self {
        Self {
            base: base.clone(),
            reclaim,
            emptier,
            refill: KeyedLock::default(),
            dry_at: Cell::default(),
            confirming: KeyedLock::default(),
            confirmed: Cell::default(),
            granting: KeyedLock::default(),
            granted: Cell::default(),
            retrying_offers: Cell::default(),
            unconfirmed: RefCell::default(),
            arrived: RefCell::default(),
        }
    }

    /// Waits for space that is being freed: files being trimmed, blocks of the last
    /// checkpoint. False if there is none.
    pub(crate) async fn reclaim_space(&self) -> Result<bool, Error> {
        if self.reclaim.is_any() {
            self.base.context.sleep(BUSY_PAUSE).await;
            return Ok(true);
        }
        let waiting = self.base.store.space().status().waiting_blocks;
        if waiting >= RECLAIM_BLOCKS_MIN {
            self.base.store.checkpoint().await?;
        }
        Ok(self.base.store.space().status().waiting_blocks < waiting)
    }

    /// Will files that are gone free space, some time soon?
    fn is_space_coming(&self) -> bool {
        self.reclaim.is_any() || self.base.open_files.may_free_space()
    }

    /// Gets groups from the other nodes, the next in the ring first; `NoSpace` if all of them have
    /// said that they have none.
    pub(crate) async fn refill(&self, blocks: u32, urgency: GroupUrgency) -> Result<(), Error> {
        let before = self.base.store.space().status().free_blocks;
        let asked_at = self.base.context.now();
        let _alone = self.refill.exclusive(()).await;
        if self.base.store.space().status().free_blocks > before.max(u64::from(blocks)) {
            return Ok(()); // another request has fetched them meanwhile
        }
        if let Some(dry_at) = self.dry_at.get() {
            if dry_at >= asked_at {
                return Err(Error::NoSpace {}); // found out while this waited
            }
            // Files may have been removed since: that result is out of date.
            let pause = (dry_at + DRY_PAUSE).saturating_sub(self.base.context.now());
            self.base.context.sleep(pause).await;
        }
        let nodes = self.base.context.fs_nodes();
        let ring = (1..nodes).map(|step| NodeId::fs((self.base.node + step) % nodes));
        let (mut failure, mut donors): (_, Vec<NodeId>) = (None, ring.collect());
        // Those that have no free group are asked again, to empty some, if no other node has any.
        let last = (urgency == (GroupUrgency::Needed {})).then_some(GroupUrgency::Last {});
        for urgency in [urgency].into_iter().chain(last) {
            let mut without = Vec::new();
            for donor in donors {
                match self.fetch_patiently(donor, urgency).await {
                    Ok(FetchResult::Some) => return Ok(()),
                    Ok(FetchResult::None) => without.push(donor),
                    Ok(FetchResult::Known) => failure = failure.or(Some(Undelivered::Busy.into())),
                    Err(error) => failure = failure.or(Some(error)),
                }
            }
            donors = without;
        }
        if let Some(error) = failure {
            return Err(error);
        }
        if self.is_space_coming() {
            return Err(Undelivered::Busy.into());
        }
        self.dry_at.set(Some(self.base.context.now()));
        Err(Error::NoSpace {})
    }

    /// Asks `donor` for groups, and waits for those that it empties.
    async fn fetch_patiently(
        &self,
        donor: NodeId,
        urgency: GroupUrgency,
    ) -> Result<FetchResult, Error> {
        let is_last = urgency == GroupUrgency::Last {};
        for _ in 0..if is_last { EMPTYING_TRIES_MAX } else { 0 } {
            let fetched = self.fetch_groups(donor, GROUPS_PER_REQUEST, urgency, None).await;
            if !matches!(fetched, Err(Error::Undelivered { why: Undelivered::Busy })) {
                return fetched;
            }
            self.base.context.sleep(EMPTYING_PAUSE).await;
        }
        self.fetch_groups(donor, GROUPS_PER_REQUEST, urgency, None).await
    }

    /// Gets groups of this disk set from the other nodes, until it has `blocks` blocks more or none
    /// has any to give.
    pub(crate) async fn fetch_from_set(&self, set: u32, blocks: u64) -> Result<(), Error> {
        let _alone = self.refill.exclusive(()).await;
        let nodes = self.base.context.fs_nodes();
        let enough = self.base.store.space().status().owned_blocks + blocks;
        for donor in (1..nodes).map(|step| NodeId::fs((self.base.node + step) % nodes)) {
            loop {
                if self.base.store.space().status().owned_blocks >= enough {
                    return Ok(());
                }
                let urgency = GroupUrgency::Needed {};
                let fetched =
                    self.fetch_groups(donor, GROUPS_PER_REQUEST, urgency, Some(set)).await?;
                if !matches!(fetched, FetchResult::Some) {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Asks `donor` for those groups that it has offered already, or for up to `count`, and takes
    /// them. The caller holds `refill`.
    async fn fetch_groups(
        &self,
        donor: NodeId,
        count: u32,
        urgency: GroupUrgency,
        set: Option<u32>,
    ) -> Result<FetchResult, Error> {
        let confirmed = self.confirmed.get();
        let call = RequestGroups { to: self.base.node, count, urgency, set };
        let groups = ask(&self.base.context, donor, call).await?;
        if groups.is_empty() {
            return Ok(FetchResult::None);
        }
        let make = || {
            // One of them may have been confirmed and given on since the donor has looked.
            if self.confirmed.get() != confirmed {
                return Err(Undelivered::Busy.into());
            }
            let mut batch = Batch::new();
            // It brings more than it takes.
            batch.take_from_reserve();
            // An offer may be repeated after a crash of the donor.
            let owned = self.base.store.space().groups();
            let mut fetched = FetchResult::Known;
            for group in groups.iter().filter(|group| owned.binary_search(group).is_err()) {
                self.unconfirmed.borrow_mut().insert(*group);
                self.arrived.borrow_mut().insert(*group, self.base.context.now());
                batch.take_group(*group);
                batch.put(keys::arrival(*group), to_bytes(&donor.0));
                fetched = FetchResult::Some;
            }
            Ok((batch, fetched))
        };
        let (position, fetched) = self.base.records.record_within(make).await?;
        self.base.store.durable(position).await?;
        // If this fails it is done before one of them is given on.
        let confirmed = self.confirm_arrivals().await;
        if let Err(error) = confirmed {
            tracing::debug!(%error, %donor, "the arrival of groups could not be confirmed yet");
        }
        Ok(fetched)
    }

    /// Confirms to each donor what has come from it, so that it is not offered again. Only then may
    /// it be given on: else an old offer could bring back a group that another node has by now.
    async fn confirm_arrivals(&self) -> Result<(), Error> {
        let _alone = self.confirming.exclusive(()).await;
        loop {
            let mut arrived: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
            let found = self.durable_groups(keys::ARRIVALS).await?;
            let are_all = found.len() < GROUPS_PER_MESSAGE_MAX;
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
        let call = AckGroups { to: self.base.node, groups: groups.to_vec() };
        ask(&self.base.context, NodeId::fs(donor), call).await?;
        self.confirmed.set(self.confirmed.get() + 1);
        let arrivals: Vec<_> = groups.iter().copied().map(keys::arrival).collect();
        self.base.records.delete_all_within(&arrivals).await?;
        self.unconfirmed.borrow_mut().retain(|group| !groups.contains(group));
        Ok(())
    }

    /// Answers [`ConfirmGroups`](crate::protocol::ConfirmGroups): fetches what was offered.
    pub(crate) async fn confirm_groups(&self, donor: u32) -> Result<(), Error> {
        let _alone = self.refill.exclusive(()).await;
        self.fetch_groups(NodeId::fs(donor), 0, GroupUrgency::Needed {}, None).await.map(drop)
    }

    /// Repeats offers, in the background, until the groups arrive. The receiver may have crashed,
    /// or have got groups from another node before the reply came; until it requests them again no
    /// node could use them.
    pub(crate) fn retry_offers(self: &Rc<Self>) {
        if self.retrying_offers.replace(true) {
            return;
        }
        let me = self.clone();
        self.base.context.task(async move {
            loop {
                me.base.context.sleep(OFFER_PAUSE).await;
                let granted = me.granted.get();
                match me.resend_offers().await {
                    Ok(false) if me.granted.get() == granted => break,
                    Ok(_) => {}
                    Err(error) => tracing::debug!(%error, "groups offered have not arrived yet"),
                }
            }
            me.retrying_offers.set(false);
        });
    }

    /// False if no offer stands.
    async fn resend_offers(&self) -> Result<bool, Error> {
        let offered = self.durable_groups(keys::GRANTS).await?;
        let receivers: BTreeSet<u32> = offered.into_iter().map(|(_, receiver)| receiver).collect();
        let reminded = receivers.iter().map(|&receiver| {
            ask(&self.base.context, NodeId::fs(receiver), ConfirmGroups { donor: self.base.node })
        });
        join_all(reminded).await.into_iter().collect::<Result<(), Error>>()?;
        Ok(!receivers.is_empty())
    }

    pub(crate) async fn request_groups(
        self: &Rc<Self>,
        request: RequestGroups,
    ) -> Result<Vec<u64>, Error> {
        let RequestGroups { to, count, urgency, set } = request;
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
            if self.spare_groups(1, urgency, set).is_empty() {
                if set.is_some() {
                    // It is a wish: nothing is freed or emptied for it.
                    return Ok(groups);
                }
                if attempt < RECLAIM_TRIES_MAX && self.reclaim_space().await? {
                    continue;
                }
                let may_empty = urgency == GroupUrgency::Last {};
                if may_empty && self.emptier.start(count as usize) {
                    return Err(Undelivered::Busy.into());
                }
                // The caller may try others, and retries.
                let is_coming = self.is_space_coming() || self.has_arrivals_to_spare(urgency);
                return if is_coming { Err(Undelivered::Busy.into()) } else { Ok(groups) };
            }
            groups = self.grant(to, count, urgency, set).await?;
        }
        if groups.is_empty() { Err(Undelivered::Busy.into()) } else { Ok(groups) }
    }

    /// Offers up to `count` groups to node `to`, durably: the receiver must not use what a crash
    /// here could give back to us.
    async fn grant(
        self: &Rc<Self>,
        to: u32,
        count: u32,
        urgency: GroupUrgency,
        set: Option<u32>,
    ) -> Result<Vec<u64>, Error> {
        let granting = self.granting.exclusive(()).await;
        let make = || {
            let spare = self.spare_groups(count as usize, urgency, set);
            let mut batch = Batch::new();
            for &group in &spare {
                batch.give_group(group);
                batch.put(keys::grant_intent(group), to_bytes(&to));
            }
            Ok((batch, spare))
        };
        let (position, spare) = self.base.records.record_within(make).await?;
        self.granted.set(self.granted.get() + 1);
        self.retry_offers();
        drop(granting);
        self.base.store.durable(position).await?;
        Ok(spare)
    }

    /// Groups that may be given away. Not one that has come while this request was in flight: if it
    /// were given on before its donor has deleted the offer, and all crashed, the donor would offer
    /// it again, and it would have two owners. And not one that has just come, for use here.
    fn spare_groups(&self, count: usize, urgency: GroupUrgency, set: Option<u32>) -> Vec<u64> {
        let now = self.base.context.now();
        let mut arrived = self.arrived.borrow_mut();
        arrived.retain(|_, at| *at + ARRIVAL_STAY > now);
        let unconfirmed = self.unconfirmed.borrow();
        let kept = unconfirmed.len() + arrived.len();
        let ahead = urgency == GroupUrgency::Ahead {};
        let count_of_all = count.saturating_add(kept);
        let mut spare = self.base.store.space().spare_groups_of(count_of_all, ahead, set);
        spare.retain(|group| !unconfirmed.contains(group) && !arrived.contains_key(group));
        spare.truncate(count);
        spare
    }

    /// Are there groups that could be given away, had they not just come?
    fn has_arrivals_to_spare(&self, urgency: GroupUrgency) -> bool {
        let ahead = urgency == GroupUrgency::Ahead {};
        !self.base.store.space().spare_groups(1, ahead).is_empty()
    }

    /// Groups given to `to` in an offer whose answer may have been lost.
    async fn unconfirmed_grants(&self, to: u32) -> Result<Vec<u64>, Error> {
        let mut groups = self.durable_groups(keys::GRANTS).await?;
        groups.retain(|(_, receiver)| *receiver == to);
        Ok(groups.into_iter().map(|(group, _)| group).collect())
    }

    /// The groups with a note of this kind, and the node that each note names. Other nodes act on
    /// them, so they are made durable: else a crash here could undo them, and a group would have
    /// two owners, or none.
    async fn durable_groups(&self, kind: u64) -> Result<Vec<(u64, u32)>, Error> {
        let (from, end) = keys::intents(kind);
        let found =
            self.base.store.scan(Bound::Included(&from), &end, GROUPS_PER_MESSAGE_MAX).await?;
        self.base.store.flushed(&from, &end).await?;
        let is_marked = found.iter().map(|(key, node)| {
            let group = keys::intent_number(key).ok_or(Error::Damaged {})?;
            Ok((group, decode(node)?))
        });
        is_marked.collect()
    }

    pub(crate) async fn ack_groups(&self, request: AckGroups) -> Result<(), Error> {
        let AckGroups { to, groups } = request;
        let granting = self.granting.exclusive(()).await;
        // The request may be an old one, and the group has come back and gone to another node
        // since.
        let mut arrived = self.unconfirmed_grants(to).await?;
        arrived.retain(|group| groups.contains(group));
        let position = if arrived.is_empty() {
            // A copy of the request has just been here: its record comes before this one.
            self.base.records.record_within(|| Ok((Batch::new(), ()))).await?.0
        } else {
            let grants: Vec<_> = arrived.into_iter().map(keys::grant_intent).collect();
            self.base.records.delete_all_within(&grants).await?
        };
        drop(granting);
        // Not even a crash may bring the offer back.
        Ok(self.base.store.durable(position).await?)
    }
}
