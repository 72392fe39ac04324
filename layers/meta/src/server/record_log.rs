//! Records of this node: changes of its store in order, and their order with respect to records of
//! other nodes (ADR 17).

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use blockio::protocol::Error as DiskError;
use futures::future::LocalBoxFuture;
use runtime::protocol::Undelivered;
use runtime::wire::Wire;
use runtime::{Context, NodeId};

use crate::keys;
use crate::protocol::{CommitDependency, Error};
use crate::shared_attrs::publisher::Publisher;
use crate::store::{Batch, Position, Store, StoreError, WritePauses};

/// Attempts of a commit that finds the log full.
const LOG_FULL_TRIES_MAX: u32 = 1000;
/// The pause before it.
const LOG_FULL_PAUSE: Duration = Duration::from_millis(5);
/// Keys that one record deletes, at most.
pub(super) const DELETED_MAX: usize = 128;

/// Times that a record for which there is no space gets more from other nodes, at most.
const REFILLS_MAX: u32 = 8;

/// Gets space from other nodes; `NoSpace` if none has any.
pub(super) type Refill = Box<dyn Fn() -> LocalBoxFuture<'static, Result<(), Error>>>;

/// Commits the records of one node.
pub(super) struct RecordLog {
    context: Context,
    /// This node's index.
    node: u32,
    store: Rc<Store>,
    publisher: Rc<Publisher>,
    /// None before the node is up: the others may wait for it.
    refill: RefCell<Option<Refill>>,
}

impl RecordLog {
    /// Commits to `store`, the store of node `node`.
    pub(super) fn new(
        context: Context,
        node: u32,
        store: Rc<Store>,
        publisher: Rc<Publisher>,
    ) -> Self {
        Self { context, node, store, publisher, refill: RefCell::default() }
    }

    /// From now on space that is missing is got by `refill`.
    pub(super) fn set_refill(&self, refill: Refill) {
        *self.refill.borrow_mut() = Some(refill);
    }

    /// Commits a batch; waits while the log is full, and gets space from other nodes when this one
    /// has none: metadata grows here, whatever is free elsewhere. `make` is called right before
    /// each try, so that the batch says what is true then.
    pub(super) async fn record<T>(
        &self,
        mut make: impl FnMut() -> Result<(Batch, T), Error>,
    ) -> Result<(Position, T), Error> {
        for _ in 0..REFILLS_MAX {
            let done = self.record_within(&mut make).await;
            if !matches!(done, Err(Error::NoSpace {})) {
                return done;
            }
            let refilled = self.refill.borrow().as_ref().map(|refill| refill());
            let Some(refilled) = refilled else { return done };
            // Boxed, to keep the future of the usual case small.
            refilled.await?;
        }
        Err(Error::NoSpace {})
    }

    /// As [`record`](Self::record), within the space that this node has: for the exchange of space
    /// itself.
    pub(super) async fn record_within<T>(
        &self,
        mut make: impl FnMut() -> Result<(Batch, T), Error>,
    ) -> Result<(Position, T), Error> {
        for _ in 0..LOG_FULL_TRIES_MAX {
            let (batch, outcome) = make()?;
            // Before any caller can learn of the change.
            name_keys(&batch).for_each(|key| self.publisher.invalidate_name(key));
            match self.store.commit(batch) {
                Ok(position) => return Ok((position, outcome)),
                Err(StoreError::Busy) => self.context.sleep(LOG_FULL_PAUSE).await,
                Err(error) => return Err(error.into()),
            }
        }
        Err(Undelivered::Busy.into())
    }

    /// The same for a batch that `fill` fills.
    pub(super) async fn record_batch(
        &self,
        mut fill: impl FnMut(&mut Batch),
    ) -> Result<Position, Error> {
        let make = || {
            let mut batch = Batch::new();
            fill(&mut batch);
            Ok((batch, ()))
        };
        Ok(self.record(make).await?.0)
    }

    /// Waits until the record is durable, if it shall be. While a disk takes no writes the answer
    /// is [`Undelivered::Lost`]: it is done, but may be undone by a crash. The caller's next try
    /// finds the reply, and then waits for the disk ([`FindReply`](crate::protocol::FindReply)).
    pub(super) async fn ensure_durable(
        &self,
        position: Position,
        durable: bool,
    ) -> Result<(), Error> {
        if durable {
            match self.store.durable_unless(position, WritePauses::why).await {
                Err(StoreError::Disk(error)) if error.is_unwritable() => {
                    return Err(Undelivered::Lost.into());
                }
                durable => drop(durable?),
            }
        }
        Ok(())
    }

    /// Deletes keys, also on a full volume; returns the last record.
    pub(super) async fn delete_all(&self, keys: &[Vec<u8>]) -> Result<Position, Error> {
        self.delete_parts(keys, true).await
    }

    /// The same within the space that this node has.
    pub(super) async fn delete_all_within(&self, keys: &[Vec<u8>]) -> Result<Position, Error> {
        self.delete_parts(keys, false).await
    }

    /// Deletes some keys in each record: fewer if the store is too full to write the pages of as
    /// many anew. Only if it has no room for one key it gets more from other nodes.
    async fn delete_parts(&self, keys: &[Vec<u8>], refills: bool) -> Result<Position, Error> {
        let mut last = Position::default(); // durable as it is
        let (mut left, mut most) = (keys, DELETED_MAX);
        while !left.is_empty() {
            let (part, rest) = left.split_at(most.min(left.len()));
            let make = || Ok((deletes(part), ()));
            let deleted = match self.record_within(make).await {
                Err(Error::NoSpace {}) if part.len() > 1 => {
                    most = (part.len() / 8).max(1);
                    continue;
                }
                Err(Error::NoSpace {}) if refills => self.record(make).await,
                deleted => deleted,
            };
            (last, left) = (deleted?.0, rest);
        }
        Ok(last)
    }

    /// The dependency of a record of `caller` on the record of this node at `position`. For a
    /// caller that may outlive this node it waits until that is durable.
    pub(super) async fn dependency_for(
        &self,
        caller: NodeId,
        position: Position,
    ) -> Result<CommitDependency, Error> {
        let is_mine = caller == self.context.node();
        if is_mine || self.store.is_durable(position) {
            return Ok(CommitDependency::default());
        }
        if self.context.shares_failure_domain(caller) {
            return Ok(CommitDependency { node: self.node, position: position.number() });
        }
        self.store.durable(position).await?;
        Ok(CommitDependency::default())
    }
}

fn deletes(keys: &[Vec<u8>]) -> Batch {
    let mut batch = Batch::new();
    batch.take_from_reserve();
    for key in keys {
        batch.delete(key.clone());
    }
    batch
}

/// The keys of the names that a batch changes.
fn name_keys(batch: &Batch) -> impl Iterator<Item = &[u8]> {
    batch.keys().filter(|key| keys::table_of(key) == Some(keys::KeyTable::Name))
}

/// Decodes a value of the store. One that cannot be read was not written by us: damage.
pub(super) fn decode<T: Wire>(value: &[u8]) -> Result<T, Error> {
    runtime::wire::from_bytes(value).map_err(|_| Error::Damaged {})
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::NoSpace => Self::NoSpace {},
            StoreError::Busy => Undelivered::Busy.into(),
            StoreError::TooLarge { .. } => Self::TooLarge {},
            StoreError::Disk(DiskError::Undelivered { why }) => why.into(),
            StoreError::Disk(DiskError::LostWrites { .. }) => Self::LostWrites {},
            StoreError::Disk(DiskError::Unwritable { disk_node, disk, why }) => {
                Self::Unwritable { disk_node, disk, why }
            }
            StoreError::ReadOnly => Self::ReadOnly {},
            StoreError::Disk(DiskError::Missing { disk_node, disk }) => {
                Self::Missing { disk_node, disk }
            }
            // The log says so once, where it happened.
            StoreError::Failed(_)
            | StoreError::DependencyStopped { .. }
            | StoreError::Disk(DiskError::DiskFailed { .. }) => Self::Damaged {},
            other => {
                tracing::error!(error = %other, "the metadata store failed");
                Self::Damaged {}
            }
        }
    }
}
