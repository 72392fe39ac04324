//! The logical disk as the store uses it: by block number, patient with a server that is busy or
//! away, with a disk that cannot read once, and with one that takes no writes for now.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use blockio::protocol::{Error as DiskError, SLOT_SIZE, Unsynced};
use blockio::stripes::Answer;
use blockio::{BLOCK_SIZE, DiskName, Geometry, Stripes, VolumeMap, is_behind};
use bytes::Bytes;
use runtime::{Context, Undelivered};

use super::groups::Run;

/// Requests to a disk that is busy or down are retried for this long before the store gives up: its
/// host may have to be repaired first, and until then nothing is lost.
const RETRY_TIMEOUT: Duration = Duration::from_hours(24);
const DELAY_FIRST: Duration = Duration::from_millis(1);
const DELAY_LAST: Duration = Duration::from_millis(64);

/// The pause before a write is repeated to a disk that takes none for now. Without an end: what
/// waits is not lost, and goes on by itself.
const UNWRITABLE_PAUSE: Duration = Duration::from_millis(500);

/// A disk node knows of a change of the disks before this node; by then this one does, too.
const FOLLOW_MAX: Duration = Duration::from_secs(30);
/// The pause before it is looked again.
const FOLLOW_PAUSE: Duration = Duration::from_millis(100);

/// Attempts to read what a disk cannot read. A mount takes the longest log and the newest root that
/// it can read for the last ones, and uses the blocks that are free by these. If a read that fails
/// once hides a part, and the mount crashes before its own root is written, the next mount sees
/// more, and finds other content in the blocks that it relies on.
const READS_MAX: u32 = 4;

/// The logical disk.
#[derive(Clone)]
pub(crate) struct Device {
    ctx: Context,
    stripes: Rc<dyn Stripes>,
    pub(crate) geometry: Geometry,
    /// Copies of metadata.
    pub(crate) copies: u32,
    pub(crate) pauses: Rc<WritePauses>,
    /// Stripes are read from disks, too, that may lack what was written to them.
    reads_behind: bool,
}

/// What of one store waits for a disk that takes no writes.
#[derive(Default)]
pub(crate) struct WritePauses {
    /// Requests to the disks of this store.
    requests: Cell<u32>,
    /// Records that wait for those of another store, which waits.
    dependencies: Cell<u32>,
    why: Cell<Option<DiskError>>,
    /// Called when something begins to wait.
    begun: RefCell<Option<Box<dyn Fn()>>>,
}

impl std::fmt::Debug for WritePauses {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WritePauses").field("why", &self.why).finish_non_exhaustive()
    }
}

impl WritePauses {
    /// Why something waits, if it does.
    pub(crate) fn why(&self) -> Option<DiskError> {
        self.why.get().filter(|_| self.requests.get() + self.dependencies.get() > 0)
    }

    /// Fails while something waits.
    pub(crate) fn check(&self) -> Result<(), DiskError> {
        self.why().map_or(Ok(()), Err)
    }

    /// The same without what waits for other stores: two stores that wait for each other would
    /// never learn that the disk takes writes again.
    pub(crate) fn why_here(&self) -> Option<DiskError> {
        self.why.get().filter(|_| self.requests.get() > 0)
    }

    /// From now on `begun` is called when something begins to wait.
    pub(crate) fn on_begin(&self, begun: Box<dyn Fn()>) {
        *self.begun.borrow_mut() = Some(begun);
    }

    /// A request to a disk waits until this is dropped.
    fn begin_request(self: &Rc<Self>, why: DiskError) -> WritePause {
        self.begin(why, |pauses| &pauses.requests)
    }

    /// Records wait for another store until this is dropped.
    pub(crate) fn begin_dependency(self: &Rc<Self>, why: DiskError) -> WritePause {
        self.begin(why, |pauses| &pauses.dependencies)
    }

    fn begin(self: &Rc<Self>, why: DiskError, count: fn(&Self) -> &Cell<u32>) -> WritePause {
        tracing::debug!(%why, "a store waits for a disk");
        self.why.set(Some(why));
        count(self).set(count(self).get() + 1);
        if let Some(begun) = &*self.begun.borrow() {
            begun();
        }
        WritePause { pauses: self.clone(), count }
    }
}

/// Something that waits for a disk.
pub(crate) struct WritePause {
    pauses: Rc<WritePauses>,
    count: fn(&WritePauses) -> &Cell<u32>,
}

impl Drop for WritePause {
    fn drop(&mut self) {
        let count = (self.count)(&self.pauses);
        count.set(count.get() - 1);
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Device").field("geometry", &self.geometry).finish_non_exhaustive()
    }
}

impl Device {
    pub(crate) fn new(ctx: Context, stripes: Rc<dyn Stripes>) -> Self {
        let (geometry, copies) = (stripes.geometry(), stripes.map().redundancy().metadata_copies());
        Self { ctx, stripes, geometry, copies, pauses: Rc::default(), reads_behind: false }
    }

    /// The same, which reads stripes from disks, too, that may lack what was written to them.
    pub(crate) fn reading_behind(&self) -> Self {
        Self { reads_behind: true, ..self.clone() }
    }

    /// The disks of the volume.
    pub(crate) fn map(&self) -> VolumeMap {
        self.stripes.map()
    }

    /// Waits until this node follows a record of the volume after `version`; false if there is
    /// none.
    pub(crate) async fn follows(&self, version: u64) -> bool {
        let end = self.ctx.now() + FOLLOW_MAX;
        while self.map().version() <= version && self.ctx.now() < end {
            self.ctx.sleep(FOLLOW_PAUSE).await;
        }
        self.map().version() > version
    }

    /// Reads a run whose blocks have these checksums.
    pub(crate) async fn read(&self, run: Run, expect: &[u32]) -> Result<Bytes, DiskError> {
        let (stripe, offset) = self.geometry.block(run.start);
        let length = run.count * BLOCK_SIZE as u32;
        let read = || self.stripes.read(stripe, offset, length, expect.to_vec());
        let bytes = self.insistently(read).await?;
        exactly(bytes, length as usize)
    }

    /// Reads a whole stripe, unchecked: not from a disk that may lack what was written to it.
    pub(crate) async fn read_stripe(&self, stripe: u64) -> Result<Bytes, DiskError> {
        if !self.reads_behind && is_behind(&self.map(), stripe) {
            let DiskName { disk_node, disk } = self.map().place(stripe).disk;
            return Err(DiskError::Missing { disk_node, disk });
        }
        let length = self.geometry.stripe_size;
        let bytes = self.insistently(|| self.stripes.read(stripe, 0, length, Vec::new())).await?;
        exactly(bytes, length as usize)
    }

    /// Writes whole blocks from block `start` on, within its stripe; returns what to sync.
    pub(crate) async fn write(&self, start: u64, data: Bytes) -> Result<Unsynced, DiskError> {
        let (stripe, offset) = self.geometry.block(start);
        let write = || self.stripes.write(stripe, offset, vec![data.clone()]);
        Ok(Unsynced { stripe, boot_id: self.patiently(write).await? })
    }

    /// Waits while the hosts of all these stripes are away, and tells whether it had to: what was
    /// written to them is nowhere.
    pub(crate) async fn wait_for_host(&self, stripes: &[u64]) -> bool {
        let map = self.map();
        let is_away = |stripe: &u64| map.state(map.place(*stripe).disk).is_absent();
        let mut has_waited = false;
        while map.version() > 0 && stripes.iter().all(is_away) {
            has_waited = true;
            self.ctx.sleep(UNWRITABLE_PAUSE).await;
        }
        has_waited
    }

    /// Makes what was written durable, or tells that it was lost and must be written again.
    pub(crate) async fn sync(&self, written: &[Unsynced]) -> Result<(), DiskError> {
        self.patiently(|| self.stripes.sync(written.to_vec())).await
    }

    pub(crate) async fn read_slot(&self, disk: DiskName, slot: u32) -> Result<Bytes, DiskError> {
        let bytes = self.insistently(|| self.stripes.read_slot(disk, slot)).await?;
        exactly(bytes, SLOT_SIZE)
    }

    pub(crate) async fn write_slot(
        &self,
        disk: DiskName,
        slot: u32,
        data: Bytes,
    ) -> Result<(), DiskError> {
        self.patiently(|| self.stripes.write_slot(disk, slot, data.clone())).await
    }

    async fn insistently<T>(&self, read: impl Fn() -> Answer<T>) -> Result<T, DiskError> {
        for _ in 1..READS_MAX {
            match self.patiently(&read).await {
                Err(DiskError::Unreadable { .. }) => self.ctx.sleep(DELAY_LAST).await,
                answer => return answer,
            }
        }
        self.patiently(read).await
    }

    async fn patiently<T>(&self, ask: impl Fn() -> Answer<T>) -> Result<T, DiskError> {
        let mut delay = DELAY_FIRST;
        let end = self.ctx.now() + RETRY_TIMEOUT;
        let mut paused = None;
        loop {
            match ask().await {
                Err(error) if error.is_unwritable() => {
                    paused.get_or_insert_with(|| self.pauses.begin_request(error));
                    self.ctx.sleep(UNWRITABLE_PAUSE).await;
                    continue;
                }
                Err(error) if error.is_transient() && self.ctx.now() < end => {
                    self.ctx.sleep(delay).await;
                }
                answer => return answer,
            }
            delay = (delay * 2).min(DELAY_LAST);
        }
    }
}

fn exactly(bytes: Bytes, length: usize) -> Result<Bytes, DiskError> {
    if bytes.len() == length { Ok(bytes) } else { Err(Undelivered::ProtocolMismatch.into()) }
}
