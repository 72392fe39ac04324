//! The partitions of the volume, at the node of its root directory: the table, which is an extended
//! attribute of that directory, and its changes.
//!
//! Every change can be done again. What a crash has left undone of a removal goes on when the node
//! comes up.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use futures::future::try_join_all;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use meta::partition::{PARTITION_NUMBER_MAX, partition_of};
use meta::protocol::{ChangeXattr, GetXattr};
use runtime::wire::{from_bytes, to_bytes};
use runtime::{NodeId, sync::KeyedLock};

use super::base::MetadataAccess;
use super::space_claims::shares;
use crate::client::{send_to_with_retries, send_with_retries};
use crate::partition_types::{PARTITIONS_MAX, TABLE_XATTR};
use crate::protocol::{
    AdoptPartitions, CallId, Change, Credentials, ENTRIES_MAX, Error, Handle, Kind, Lookup,
    MakeNode, Name, NewNode, Partition, PartitionChange, PartitionRefusal, PartitionState,
    PartitionTable, ROOT, ReadDirectory, Remove, RemoveDirectory, XattrMode, XattrName, handle_of,
};

/// Names of a partition that are removed at the same time.
const REMOVED_AT_ONCE: usize = 16;
/// The pause before a removal that failed goes on.
const REMOVAL_PAUSE: Duration = Duration::from_secs(1);

/// Changes the partitions of the volume.
pub(super) struct PartitionManager {
    base: MetadataAccess,
    block_bytes_max: u32,
    changing: KeyedLock<()>,
    is_removing: Cell<bool>,
    calls: Cell<CallId>,
}

impl PartitionManager {
    pub(super) fn new(base: MetadataAccess, block_bytes_max: u32) -> Rc<Self> {
        let calls = Cell::new(CallId { client: base.context.random(), number: 0 });
        Rc::new(Self {
            base,
            block_bytes_max,
            changing: KeyedLock::default(),
            is_removing: Cell::default(),
            calls,
        })
    }

    /// The table as it is stored.
    pub(super) async fn table(&self) -> Result<PartitionTable, Error> {
        let Handle { ino, generation } = ROOT;
        let call = GetXattr { ino, generation, name: table_name()? };
        match self.base.meta_here(call).await {
            Ok(value) => from_bytes(&value).map_err(|_| Error::Damaged {}),
            Err(Error::NoXattr {}) => Ok(PartitionTable::default()),
            Err(error) => Err(error),
        }
    }

    /// Goes on with removals that were begun.
    pub(super) async fn resume(self: &Rc<Self>) {
        loop {
            match self.table().await {
                Ok(table) => {
                    if table.partitions.iter().any(Partition::is_going) {
                        self.start_removals();
                    }
                    return;
                }
                Err(_) => self.base.context.sleep(REMOVAL_PAUSE).await,
            }
        }
    }

    pub(super) async fn change(
        self: &Rc<Self>,
        who: &Credentials,
        change: PartitionChange,
    ) -> Result<(), Error> {
        let _alone = self.changing.exclusive(()).await;
        let table = self.table().await?;
        match change {
            PartitionChange::Create { name, block_bytes, limit_bytes } => {
                let wanted = Partition {
                    number: table.next,
                    name,
                    block_bytes,
                    limit_bytes,
                    state: PartitionState::Online {},
                };
                self.create(who, table, wanted).await
            }
            PartitionChange::SetLimit { name, limit_bytes } => {
                let number = table.named(&name).map(|partition| partition.number);
                self.edit(table, &name, |partition| partition.limit_bytes = limit_bytes).await?;
                // What was claimed below another limit is claimed anew.
                if let Some(number) = number {
                    shares(&self.base.context, number, |_| true).await?;
                }
                Ok(())
            }
            PartitionChange::Remove { name, with_content } => {
                let state = if with_content {
                    PartitionState::Removing {}
                } else {
                    PartitionState::Closing {}
                };
                let close = |partition: &mut Partition| {
                    if partition.state != (PartitionState::Removing {}) {
                        partition.state = state;
                    }
                };
                self.edit(table, &name, close).await?;
                if !with_content && !self.is_empty(&name).await? {
                    self.reopen(&name).await?;
                    return Err(PartitionRefusal::NotEmpty {}.into());
                }
                self.start_removals();
                Ok(())
            }
        }
    }

    async fn create(
        &self,
        who: &Credentials,
        mut table: PartitionTable,
        wanted: Partition,
    ) -> Result<(), Error> {
        let Partition { ref name, block_bytes, limit_bytes, .. } = wanted;
        let (least, most) = (blockio::BLOCK_SIZE as u32, self.block_bytes_max);
        let is_block = block_bytes.is_power_of_two() && (least..=most).contains(&block_bytes);
        if !is_block {
            return Err(PartitionRefusal::BadBlock { max_bytes: most }.into());
        }
        let number = match table.named(name) {
            Some(known) if known.is_going() => return Err(PartitionRefusal::IsGoing {}.into()),
            Some(known) if known.block_bytes == block_bytes && known.limit_bytes == limit_bytes => {
                known.number
            }
            Some(_) => return Err(PartitionRefusal::Exists {}.into()),
            None => {
                let is_full = table.partitions.len() >= PARTITIONS_MAX;
                if is_full || wanted.number > PARTITION_NUMBER_MAX {
                    return Err(PartitionRefusal::TooMany { max: PARTITIONS_MAX as u32 }.into());
                }
                if self.find(name).await?.is_some() {
                    return Err(PartitionRefusal::Exists {}.into());
                }
                let number = wanted.number;
                table.next = number + 1;
                table.partitions.push(wanted.clone());
                self.store(&mut table).await?;
                number
            }
        };
        self.tell_all(&table).await?;
        if let Some(found) = self.find(name).await? {
            // Made before, or by another request meanwhile.
            let is_there = partition_of(found.ino) == number;
            return if is_there { Ok(()) } else { Err(PartitionRefusal::Exists {}.into()) };
        }
        let made = MakeNode {
            who: who.clone(),
            call: self.next_call(),
            directory: ROOT,
            name: name.clone(),
            node: NewNode::PartitionRoot { partition: number },
            change: Change::default(),
            durable: true,
        };
        send_with_retries(&self.base.context, made).await?;
        Ok(())
    }

    /// Changes one partition in the table, and tells all nodes.
    async fn edit(
        &self,
        mut table: PartitionTable,
        name: &Name,
        edit: impl FnOnce(&mut Partition),
    ) -> Result<(), Error> {
        let partition = table.partitions.iter_mut().find(|partition| partition.name == *name);
        let partition = partition.ok_or(PartitionRefusal::NotFound {})?;
        let before = partition.clone();
        edit(partition);
        if *partition != before {
            self.store(&mut table).await?;
        }
        self.tell_all(&table).await
    }

    /// Takes a partition for one that stays, unless it is removed with its content.
    async fn reopen(&self, name: &Name) -> Result<(), Error> {
        let reopen = |partition: &mut Partition| {
            if partition.state == (PartitionState::Closing {}) {
                partition.state = PartitionState::Online {};
            }
        };
        self.edit(self.table().await?, name, reopen).await
    }

    async fn store(&self, table: &mut PartitionTable) -> Result<(), Error> {
        table.version += 1;
        let Handle { ino, generation } = ROOT;
        let stored = ChangeXattr {
            ino,
            generation,
            name: table_name()?,
            value: Some(to_bytes(table)),
            mode: XattrMode::Either {},
            time: self.base.now(),
            durable: true,
            call: self.next_call(),
        };
        self.base.meta_here(stored).await?;
        Ok(())
    }

    /// All nodes know the table when this is done.
    async fn tell_all(&self, table: &PartitionTable) -> Result<(), Error> {
        let context = &self.base.context;
        let told = (0..context.fs_nodes()).map(|node| {
            let call = AdoptPartitions { table: table.clone() };
            send_to_with_retries(context, NodeId::fs(node), call)
        });
        match try_join_all(told).await {
            Ok(_) => Ok(()),
            Err(Error::Undelivered { .. }) => Err(PartitionRefusal::NotReady {}.into()),
            Err(error) => Err(error),
        }
    }

    /// What has this name in the root directory.
    async fn find(&self, name: &Name) -> Result<Option<Handle>, Error> {
        let lookup = Lookup { who: Credentials::root(), directory: ROOT, name: name.clone() };
        match send_with_retries(&self.base.context, lookup).await {
            Ok(found) => Ok(Some(handle_of(&found))),
            Err(Error::NotFound {}) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The root of a partition, if it is there.
    async fn root_of(&self, partition: &Partition) -> Result<Option<Handle>, Error> {
        let found = self.find(&partition.name).await?;
        Ok(found.filter(|found| partition_of(found.ino) == partition.number))
    }

    async fn is_empty(&self, name: &Name) -> Result<bool, Error> {
        let table = self.table().await?;
        let partition = table.named(name).ok_or(PartitionRefusal::NotFound {})?;
        match self.root_of(partition).await? {
            Some(root) => Ok(self.page(root).await?.is_empty()),
            None => Ok(true),
        }
    }

    fn start_removals(self: &Rc<Self>) {
        if self.is_removing.replace(true) {
            return;
        }
        let me = self.clone();
        self.base.context.task(async move {
            while let Err(error) = me.remove_all().await {
                tracing::debug!(%error, "a partition is not yet removed");
                me.base.context.sleep(REMOVAL_PAUSE).await;
            }
            me.is_removing.set(false);
        });
    }

    /// Removes all partitions that are to go.
    async fn remove_all(&self) -> Result<(), Error> {
        loop {
            let going = {
                // Else a change that starts no second removal beside this one might not be seen.
                let _alone = self.changing.exclusive(()).await;
                self.table().await?.partitions.into_iter().find(Partition::is_going)
            };
            let Some(going) = going else { return Ok(()) };
            if let Some(root) = self.root_of(&going).await? {
                if going.state == (PartitionState::Removing {}) {
                    self.remove_content(root).await?;
                }
                match self.remove_directory(ROOT, going.name.clone()).await {
                    Err(Error::NotEmpty {}) if going.state == (PartitionState::Closing {}) => {
                        let _alone = self.changing.exclusive(()).await;
                        self.reopen(&going.name).await?;
                        continue;
                    }
                    removed => removed?,
                }
            }
            let _alone = self.changing.exclusive(()).await;
            let mut table = self.table().await?;
            table.partitions.retain(|partition| partition.number != going.number);
            self.store(&mut table).await?;
            self.tell_all(&table).await?;
            tracing::info!(partition = %going.name, "removed");
        }
    }

    /// Removes all that is in a directory, the deepest first.
    async fn remove_content(&self, root: Handle) -> Result<(), Error> {
        // Each directory with the one above and its name there.
        let mut open: Vec<(Handle, Option<(Handle, Name)>)> = vec![(root, None)];
        while let Some((directory, above)) = open.last().cloned() {
            let entries = self.page(directory).await?;
            let (below, files): (Vec<_>, Vec<_>) =
                entries.into_iter().partition(|(_, _, kind)| *kind == (Kind::Directory {}));
            let removed = files.into_iter().map(|(_, name, _)| self.remove_file(directory, name));
            stream::iter(removed)
                .buffer_unordered(REMOVED_AT_ONCE)
                .try_for_each(|()| std::future::ready(Ok(())))
                .await?;
            if let Some((handle, name, _)) = below.into_iter().next() {
                open.push((handle, Some((directory, name))));
            } else if self.page(directory).await?.is_empty() {
                open.pop();
                if let Some((parent, name)) = above {
                    self.remove_directory(parent, name).await?;
                }
            }
        }
        Ok(())
    }

    /// The first entries of a directory.
    async fn page(&self, directory: Handle) -> Result<Vec<(Handle, Name, Kind)>, Error> {
        let who = Credentials::root();
        let call =
            ReadDirectory { who, directory, after: 0, count_max: ENTRIES_MAX, attributes: false };
        let page = send_with_retries(&self.base.context, call).await?;
        Ok(page.entries.into_iter().map(|entry| (entry.handle, entry.name, entry.kind)).collect())
    }

    async fn remove_file(&self, directory: Handle, name: Name) -> Result<(), Error> {
        let (who, call) = (Credentials::root(), self.next_call());
        let removed = Remove { who, call, directory, name, durable: false };
        gone(send_with_retries(&self.base.context, removed).await)
    }

    async fn remove_directory(&self, directory: Handle, name: Name) -> Result<(), Error> {
        let (who, call) = (Credentials::root(), self.next_call());
        let removed = RemoveDirectory { who, call, directory, name, durable: true };
        gone(send_with_retries(&self.base.context, removed).await)
    }

    fn next_call(&self) -> CallId {
        let CallId { client, number } = self.calls.get();
        self.calls.set(CallId { client, number: number + 1 });
        CallId { client, number }
    }
}

/// What others have removed is gone too.
fn gone(removed: Result<(), Error>) -> Result<(), Error> {
    match removed {
        Err(Error::NotFound {} | Error::Stale {}) => Ok(()),
        removed => removed,
    }
}

fn table_name() -> Result<XattrName, Error> {
    XattrName::new(TABLE_XATTR.as_bytes()).map_err(|_| Error::Invalid {})
}
