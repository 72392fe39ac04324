//! The partition information cache (thesis section 2.5.2): local, and replicated at each node,
//! since it has few entries that rarely change.
//!
//! The table is kept by the node of the root directory, which tells the others of changes. A node
//! that has just come up asks for it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use meta::FileInformation;
use meta::partition::{PartitionNumber, partition_of};
use runtime::Context;
use runtime::sync::KeyedLock;

use super::base::or_again;
use super::space_claims::{SpaceClaims, SpaceHold};
use crate::client::ask;
use crate::protocol::{
    ClaimSpace, Error, GetPartitions, Partition, PartitionRefusal, PartitionShare, PartitionTable,
    ROOT,
};

/// A copy of this age is asked for again, in the background: a node may not have heard of a change.
const AGE_MAX: Duration = Duration::from_secs(10);

/// The table as this node knows it.
#[derive(Clone)]
struct KnownTable {
    table: Rc<PartitionTable>,
    since: Duration,
}

/// What one node knows of the partitions.
pub(super) struct Partitions {
    context: Context,
    known: RefCell<Option<KnownTable>>,
    /// One question at a time.
    asking: KeyedLock<()>,
    /// A question is asked in the background.
    is_refreshing: Cell<bool>,
    claims: Rc<SpaceClaims>,
    /// Blocks of a logical block of new content of partition 0.
    unit: Cell<u32>,
}

impl Partitions {
    pub(super) fn new(context: Context, information: FileInformation) -> Rc<Self> {
        let claims = Rc::new(SpaceClaims::new(context.clone(), information));
        Rc::new(Self {
            context,
            known: RefCell::default(),
            asking: KeyedLock::default(),
            is_refreshing: Cell::default(),
            claims,
            unit: Cell::new(1),
        })
    }

    /// Blocks of a logical block of new content of files of a partition that this node
    /// [knows](Self::learn).
    pub(super) fn unit_of(&self, partition: PartitionNumber) -> u32 {
        let known = self.known.borrow();
        let found = known.as_ref().and_then(|known| known.table.find(partition));
        found.map_or(self.unit.get(), |found| found.block_bytes / blockio::BLOCK_SIZE as u32)
    }

    /// Gets to know the partition of a file, if this node does not: one that was removed has open
    /// files at most.
    pub(super) async fn learn(self: &Rc<Self>, ino: u64) -> Result<(), Error> {
        let partition = partition_of(ino);
        if partition == 0 {
            return Ok(());
        }
        match self.find(partition).await {
            Ok(_) | Err(Error::Stale {}) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// From now on a logical block of new content of partition 0 has `unit` blocks.
    pub(super) fn set_unit(&self, unit: u32) {
        self.unit.set(unit);
    }

    /// The table is this from now on, unless a newer one is known.
    pub(super) fn adopt(&self, table: Rc<PartitionTable>) {
        let mut known = self.known.borrow_mut();
        let version = known.as_ref().map_or(0, |known| known.table.version);
        if table.version >= version {
            *known = Some(KnownTable { table, since: self.context.now() });
        }
    }

    /// The partition with this number, not 0. One that was removed has no files.
    async fn find(self: &Rc<Self>, number: PartitionNumber) -> Result<Partition, Error> {
        if let Some(found) = self.find_now(number) {
            return Ok(found);
        }
        let _alone = self.asking.exclusive(()).await;
        // Perhaps it was asked for meanwhile, or is new.
        if self.find_now(number).is_none() {
            self.refresh().await?;
        }
        self.find_now(number).ok_or(Error::Stale {})
    }

    fn find_now(self: &Rc<Self>, number: PartitionNumber) -> Option<Partition> {
        let KnownTable { table, since } = self.known.borrow().clone()?;
        if self.context.now().saturating_sub(since) > AGE_MAX && !self.is_refreshing.replace(true) {
            let me = self.clone();
            self.context.task(async move {
                if let Err(error) = me.refresh().await {
                    tracing::debug!(%error, "the table of partitions is as it was");
                }
                me.is_refreshing.set(false);
            });
        }
        table.find(number).cloned()
    }

    async fn refresh(&self) -> Result<(), Error> {
        let table = or_again(ask(&self.context, GetPartitions { root: ROOT }).await)?;
        self.adopt(Rc::new(table));
        Ok(())
    }

    /// May something be made in this directory? Not in a partition that is being removed.
    pub(super) async fn check_make(self: &Rc<Self>, directory: u64) -> Result<(), Error> {
        let partition = partition_of(directory);
        if partition != 0 && self.find(partition).await?.is_going() {
            return Err(PartitionRefusal::IsGoing {}.into());
        }
        Ok(())
    }

    /// May the name of this directory be taken out of `directory`? Not that of a partition, unless
    /// it is being removed.
    pub(super) async fn check_take(
        self: &Rc<Self>,
        directory: u64,
        named: u64,
    ) -> Result<(), Error> {
        let partition = partition_of(named);
        if partition == partition_of(directory) {
            return Ok(());
        }
        match self.find(partition).await {
            Ok(found) if !found.is_going() => Err(PartitionRefusal::IsRoot {}.into()),
            Ok(_) | Err(Error::Stale {}) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Holds `bytes` by which a file is about to grow, or says [`Error::NoSpace`] if the size limit
    /// of its partition does not let it.
    pub(super) async fn hold(
        self: &Rc<Self>,
        ino: u64,
        bytes: u64,
    ) -> Result<Option<SpaceHold>, Error> {
        let partition = partition_of(ino);
        if partition == 0 || bytes == 0 {
            return Ok(None);
        }
        match self.find(partition).await?.limit_bytes {
            Some(_) => self.claims.hold(partition, bytes).await.map(Some),
            None => Ok(None),
        }
    }

    /// The size limit of a partition, if it has one.
    pub(super) async fn limit(
        self: &Rc<Self>,
        partition: PartitionNumber,
    ) -> Result<Option<u64>, Error> {
        Ok(self.find(partition).await?.limit_bytes)
    }

    /// What this node has of a partition.
    pub(super) fn share(&self, partition: PartitionNumber, give_up: bool) -> PartitionShare {
        self.claims.share(partition, give_up)
    }

    /// Answers [`ClaimSpace`].
    pub(super) async fn claim(self: &Rc<Self>, request: ClaimSpace) -> Result<u64, Error> {
        match self.limit(request.partition).await? {
            Some(limit) => self.claims.grant(request, limit).await,
            None => Ok(u64::MAX),
        }
    }
}
