//! What the components of one node are built on.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use meta::hash::{ino_node, is_owner};
use meta::partition::partition_of;
use meta::protocol::{ChangeInode, CommitMark, GetDirty, GetInode, Inode, InodeChange};
use meta::{FileInformation, SharedAttrCache};
use runtime::protocol::Undelivered;
use runtime::{Call, Context, NodeId, Route};

use super::changed_ranges::RangeChange;
use super::delegations::DelegationTable;
use super::partitions::Partitions;
use super::replays::ReplayTable;
use super::restart_delay::RestartDelay;
use super::rights::OpenRights;
use crate::protocol::{Attributes, Credentials, Error, Handle, Time};
use crate::rules;

/// How often metadata gives back memory in a volume that is only read.
const MEMORY_INTERVAL: Duration = Duration::from_millis(500);

/// How a component reaches its node and the metadata. Cheap to clone.
#[derive(Clone)]
pub(super) struct MetadataAccess {
    pub(super) context: Context,
    /// What the metadata server of this node has in memory.
    pub(super) information: FileInformation,
    /// What all nodes of this process publish.
    shared_attrs: Option<Arc<SharedAttrCache>>,
    /// The order of changes of content.
    pub(super) replays: Rc<ReplayTable>,
    /// What users may do with files that they have open.
    pub(super) rights: Rc<OpenRights>,
    /// Who may keep what it has read.
    pub(super) delegations: Rc<DelegationTable>,
    /// For how long changes wait for those to whom files were delegated before the start.
    pub(super) restart_delay: Rc<RestartDelay>,
    pub(super) partitions: Rc<Partitions>,
    /// The volume is only read, with what is there of it.
    pub(super) is_read_only: bool,
}

impl MetadataAccess {
    pub(super) fn new(
        context: Context,
        information: FileInformation,
        shared_attrs: Option<Arc<SharedAttrCache>>,
    ) -> Self {
        let replays = Rc::new(ReplayTable::new(context.clone()));
        let (rights, delegations, restart_delay) = Default::default();
        let partitions = Partitions::new(context.clone(), information.clone());
        let is_read_only = false;
        Self {
            context,
            information,
            shared_attrs,
            replays,
            rights,
            delegations,
            restart_delay,
            partitions,
            is_read_only,
        }
    }

    /// The same for a volume that is only read.
    pub(super) fn read_only(self) -> Self {
        Self { is_read_only: true, ..self }
    }

    /// Lets the metadata of this node give back memory now and then, as long as the node runs. In a
    /// volume that is written this comes with looking for changes.
    pub(super) async fn give_memory_back(&self) {
        loop {
            self.context.sleep(MEMORY_INTERVAL).await;
            // There are no changes.
            let _ = self.meta_here(GetDirty { age_ms: u64::MAX }).await;
        }
    }

    /// Calls the metadata server of `node`.
    pub(super) async fn meta<C>(&self, node: NodeId, call: C) -> Result<C::Reply, Error>
    where
        C: Call<Protocol = meta::protocol::Meta> + Clone,
    {
        Ok(meta::client::ask(&self.context, node, call).await?)
    }

    /// Calls the metadata server of this node.
    pub(super) async fn meta_here<C>(&self, call: C) -> Result<C::Reply, Error>
    where
        C: Call<Protocol = meta::protocol::Meta> + Clone,
    {
        self.meta(self.context.node(), call).await
    }

    /// Does the key of a request belong to this node? Another node knows nothing of it, and would
    /// change what is not there, or make a second one of it.
    pub(super) fn owns(&self, route: Route<'_>) -> bool {
        is_owner(self.context.node(), route, self.context.fs_nodes())
    }

    /// May `who` read (or write) the content, by the mode or because it is open for that?
    pub(super) fn check_transfer(
        &self,
        who: &Credentials,
        file: &Attributes,
        wanted: u32,
    ) -> Result<(), Error> {
        match rules::check_transfer(who, file, wanted) {
            Err(Error::AccessDenied {}) if self.rights.has(who, file, wanted) => Ok(()),
            verdict => verdict,
        }
    }

    /// Blocks of a logical block of new content of a file. Content that is there says so itself
    /// ([`Chunk::unit_or`](meta::protocol::Chunk::unit_or)).
    pub(super) fn unit_of(&self, ino: u64) -> u32 {
        self.partitions.unit_of(partition_of(ino))
    }

    pub(super) fn node_of(&self, ino: u64) -> NodeId {
        ino_node(ino, self.context.fs_nodes())
    }

    pub(super) fn now(&self) -> Time {
        Time::from_unix(self.context.unix_time())
    }

    /// The changes that are in a file of this node, which is brought into memory.
    pub(super) async fn installed(&self, file: Handle) -> Result<CommitMark, Error> {
        let Handle { ino, generation } = file;
        let known = || self.information.look(ino, generation, |it| Some(it.installed().clone()));
        self.attributes(file).await?;
        if let Some(installed) = known() {
            return Ok(installed);
        }
        self.inode(file).await?;
        known().ok_or_else(|| Undelivered::Busy.into())
    }

    /// The number of a change of a file of this node that is installed now. `order` is that of its
    /// first answer, if that was lost.
    pub(super) async fn next_mark(
        &self,
        file: Handle,
        order: Option<u64>,
    ) -> Result<CommitMark, Error> {
        let Handle { ino, generation } = file;
        let mark = |installed: &CommitMark| self.replays.mark(ino, installed, order);
        match self.information.look(ino, generation, |known| Some(mark(known.installed()))) {
            Some(next) => Ok(next),
            None => Ok(mark(&Box::pin(self.installed(file)).await?)),
        }
    }

    /// Bytes of a file of this node were changed.
    pub(super) fn note_change(&self, file: Handle, range: Range<u64>, change: RangeChange) {
        if !self.replays.is_noting() {
            return;
        }
        let Handle { ino, generation } = file;
        self.information.look(ino, generation, |known| {
            let recorded = (known.committed(), known.sealed_sequence());
            self.replays.note(ino, range, change, recorded);
            Some(())
        });
    }

    /// The attributes of an inode of any node; without a message if it is of this node and in use.
    pub(super) async fn attributes(&self, handle: Handle) -> Result<Attributes, Error> {
        match self.information.attributes(handle.ino, handle.generation) {
            Some(known) => Ok(known),
            None => Ok(self.inode(handle).await?.attributes),
        }
    }

    /// An inode of any node.
    pub(super) async fn inode(&self, handle: Handle) -> Result<Inode, Error> {
        let call = GetInode { ino: handle.ino, generation: handle.generation };
        self.meta(self.node_of(handle.ino), call).await
    }

    /// The attributes that a node of this process publishes.
    pub(super) fn shared_attributes(&self, file: Handle) -> Option<Attributes> {
        self.shared_attrs.as_ref()?.attributes(file.ino, file.generation)
    }

    /// Notes that the content was read, as seldom as `relatime` does.
    pub(super) async fn note_access(&self, file: &Attributes) -> Result<Attributes, Error> {
        let now = self.now();
        if self.is_read_only || !rules::notes_access(file, now) {
            return Ok(*file);
        }
        let change = InodeChange { atime: Some(now), ..InodeChange::default() };
        let Attributes { ino, generation, .. } = *file;
        let call = ChangeInode {
            ino,
            generation,
            change,
            redundancy: None,
            only_if_ctime: None,
            durable: false,
        };
        match self.meta(self.node_of(ino), call).await {
            // A read needs no space. The next one notes it.
            Err(Error::Unwritable { .. } | Error::NoSpace {}) => Ok(*file),
            noted => noted,
        }
    }
}

/// Was it decided, or may it have been, though it could not be done to its end?
pub(super) fn is_in_doubt(error: Error) -> bool {
    matches!(error, Error::Undelivered { why: Undelivered::Lost })
}

/// The answer to what may be done once more, whatever came of it: if a reply on the way to another
/// node was lost, who asked this node asks it again.
pub(super) fn or_again<T>(answer: Result<T, Error>) -> Result<T, Error> {
    answer.map_err(|error| if error.is_lost() { Undelivered::Busy.into() } else { error })
}
