//! The disk node: the disks of one node, for everybody (thesis section 2.3.3).

use std::cell::Cell;
use std::io;
use std::rc::Rc;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::{LocalBoxFuture, join_all, ready, try_join_all};
use runtime::disk::Disk;
use runtime::protocol::Undelivered;
use runtime::wire::from_bytes;
use runtime::{Caller, Context, Epoch, NodeKind};

use crate::degraded::{self, DiskTrouble};
use crate::disk_set::DiskName;
use crate::disk_state::{DiskStage, VolumeRecord};
use crate::failover::Failover;
use crate::geometry::DISKS_PER_NODE_MAX;
use crate::manager::Manager;
use crate::new_disks::NewDisks;
use crate::open::{CheckedDisk, DiskError, ExpectedDisk, check_disk, check_superblocks};
use crate::protocol::{
    BlockIo, CheckSuperblocks, Describe, DiskStatus, Error, FollowRecord, PrepareDisks, Read,
    ReadSlot, Reply, Request, SLOT_SIZE, Sync, Write, WriteSlot,
};
use crate::stripes::BootId;
use crate::volume_map::VolumeMap;

/// Requests in flight at each disk: enough to hide its latency, few enough to be fair.
pub const DEPTH_PER_DISK: usize = 4;
/// Requests that wait for one disk, at most; past it the answer is `Busy`. As many as a node runs
/// at once: waiting in the node's own queue comes first.
pub const QUEUE_LENGTH_MAX: usize = 2 * runtime::host::RUNNING_MAX;
/// Bytes that writes may hold at one disk node, from their arrival until the disk has them; past it
/// the answer is `Busy`.
pub const WRITE_BUFFER_BYTES: usize = 64 << 20;

/// Limits of one disk node, and what it must know of its disks.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// See [`DEPTH_PER_DISK`].
    pub depth_per_disk: usize,
    /// See [`QUEUE_LENGTH_MAX`].
    pub queue_length_max: usize,
    /// See [`WRITE_BUFFER_BYTES`]. One stripe always has room.
    pub write_buffer_bytes: usize,
    /// See [`ExpectedDisk::served`].
    pub served: Epoch,
    /// The boot ID that the last server of these disks has [handed over](Server::hand_over): all
    /// that was answered under it is durable. Otherwise a new one is drawn.
    pub boot_id: Option<BootId>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            depth_per_disk: DEPTH_PER_DISK,
            queue_length_max: QUEUE_LENGTH_MAX,
            write_buffer_bytes: WRITE_BUFFER_BYTES,
            served: Epoch(0),
            boot_id: None,
        }
    }
}

/// Why a disk node cannot start.
#[derive(Debug, thiserror::Error)]
pub enum DiskNodeError {
    /// The node was given too few or too many disks.
    #[error("disk node {disk_node} has {expected} disks, {found} were given")]
    Count {
        /// The disk node.
        disk_node: u32,
        /// Disks that it has in this volume.
        expected: u32,
        /// Disks that it was given.
        found: usize,
    },
    /// One of its disks cannot be used.
    #[error("disk {disk} of disk node {disk_node}: {why}")]
    Disk {
        /// The disk node.
        disk_node: u32,
        /// The disk within the node.
        disk: u32,
        /// What is wrong with it.
        why: DiskError,
    },
}

/// Checks all disks of the disk node of `context`: only reads.
async fn check_disks(
    context: &Context,
    map: &VolumeMap,
    disks: &[Rc<dyn Disk>],
    config: Config,
) -> Result<(u32, Vec<DiskName>, Vec<CheckedDisk>), DiskNodeError> {
    let (disk_node, names) = disks_here(context, map, disks.len())?;
    let epoch = context.epoch();
    let checks = names.clone().into_iter().zip(disks).map(|(disk, device)| async move {
        let map = map.clone();
        let expected = ExpectedDisk { map, disk, epoch, served: config.served };
        let found = check_disk(&**device, &expected).await;
        found.map_err(|why| DiskNodeError::Disk { disk_node, disk: disk.disk, why })
    });
    Ok((disk_node, names, try_join_all(checks).await?))
}

/// The disk node of `context` and its disks, if it was given as many.
fn disks_here(
    context: &Context,
    map: &VolumeMap,
    found: usize,
) -> Result<(u32, Vec<DiskName>), DiskNodeError> {
    let NodeKind::Disk(disk_node) = context.node().kind() else {
        panic!("{} is no disk node", context.node());
    };
    let names = map.disks_of(disk_node);
    if found != names.len() {
        let expected = names.len() as u32;
        return Err(DiskNodeError::Count { disk_node, expected, found });
    }
    Ok((disk_node, names))
}

/// Disks with their numbers. The map may go on meanwhile, so it is asked once which there are.
fn numbered(names: &[DiskName], disks: Vec<Rc<dyn Disk>>) -> Vec<(u32, Rc<dyn Disk>)> {
    names.iter().map(|name| name.disk).zip(disks).collect()
}

/// What a server that opens what is there has found, disk by disk.
type FoundDisks = (Vec<Rc<dyn Disk>>, Vec<DiskTrouble>);

/// A disk that refuses all writes.
struct ReadOnly(Rc<dyn Disk>);

impl Disk for ReadOnly {
    fn length(&self) -> u64 {
        self.0.length()
    }
    fn read(&self, offset: u64, length: usize) -> LocalBoxFuture<'static, io::Result<Bytes>> {
        self.0.read(offset, length)
    }
    fn write(&self, _: u64, _: Vec<Bytes>) -> LocalBoxFuture<'static, io::Result<()>> {
        ready(Err(io::ErrorKind::ReadOnlyFilesystem.into())).boxed_local()
    }
    fn sync(&self) -> LocalBoxFuture<'static, io::Result<()>> {
        ready(Ok(())).boxed_local()
    }
    fn name(&self) -> String {
        self.0.name()
    }
    fn is_direct(&self) -> bool {
        self.0.is_direct()
    }
}

/// The server of one disk node.
pub struct Server {
    map: VolumeMap,
    disk_node: u32,
    manager: Rc<Manager>,
    write_buffer_bytes: usize,
    /// Of these, held by writes.
    held_bytes: Cell<usize>,
    /// Disks that are not there.
    missing: Vec<u32>,
    failover: Failover,
    new_disks: NewDisks,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("disk_node", &self.disk_node).finish_non_exhaustive()
    }
}

impl Server {
    /// Takes the disks of the disk node of `context` for its epoch; `disks` in their order.
    ///
    /// All of them are checked before the first is written. Once this returns, the epoch is durable
    /// on each, so the server may answer in it.
    pub async fn open(
        context: &Context,
        map: &VolumeMap,
        disks: Vec<Rc<dyn Disk>>,
        config: Config,
    ) -> Result<Rc<Self>, DiskNodeError> {
        let (disk_node, names, checked) = check_disks(context, map, &disks, config).await?;
        let epoch = context.epoch();
        let take_overs = names.iter().zip(&disks).zip(checked);
        let take_overs = take_overs.map(|((name, device), found)| async move {
            let taken = found.take_over(&**device, map, epoch).await;
            taken.map_err(|why| DiskNodeError::Disk { disk_node, disk: name.disk, why })
        });
        try_join_all(take_overs).await?;
        let disks = numbered(&names, disks);
        Ok(Self::new(context, map, disk_node, disks, (Vec::new(), false), config))
    }

    /// Checks the disks of the disk node of `context` likewise and serves them, without a write to
    /// any: the epoch is not made durable, and writes are refused. Says which disks have a
    /// superblock that is missing, damaged or old; the other one of these disks is good.
    pub async fn open_to_read(
        context: &Context,
        map: &VolumeMap,
        disks: Vec<Rc<dyn Disk>>,
        config: Config,
    ) -> Result<(Rc<Self>, Vec<u32>), DiskNodeError> {
        let (disk_node, names, checked) = check_disks(context, map, &disks, config).await?;
        let hurt = (0..).zip(&checked).filter(|(_, found)| found.needs_repair());
        let hurt = hurt.map(|(disk, _)| disk).collect();
        let disks = disks.into_iter().map(|disk| Rc::new(ReadOnly(disk)) as Rc<dyn Disk>);
        let disks = numbered(&names, disks.collect());
        Ok((Self::new(context, map, disk_node, disks, (Vec::new(), true), config), hurt))
    }

    /// Serves what is there of the disks of the disk node of `context`, in their order, without a
    /// write to any. What is on a disk that is missing is [`Error::Missing`], at once. Says what is
    /// wrong with which disk.
    pub async fn open_degraded(
        context: &Context,
        map: &VolumeMap,
        opened: Vec<io::Result<Rc<dyn Disk>>>,
        config: Config,
    ) -> Result<(Rc<Self>, Vec<DiskTrouble>), DiskNodeError> {
        let (disk_node, names) = disks_here(context, map, opened.len())?;
        let epoch = context.epoch();
        let (mut disks, mut troubles): FoundDisks = Default::default();
        for (&disk, opened) in names.iter().zip(opened) {
            let expected = ExpectedDisk { map: map.clone(), disk, epoch, served: config.served };
            let (found, trouble) = degraded::find(opened, &expected).await;
            disks.push(Rc::new(ReadOnly(found)));
            troubles.extend(trouble);
        }
        let missing = troubles.iter().filter(|trouble| trouble.is_left_out);
        let missing = missing.map(|trouble| trouble.disk).collect();
        let disks = numbered(&names, disks);
        Ok((Self::new(context, map, disk_node, disks, (missing, true), config), troubles))
    }

    fn new(
        context: &Context,
        map: &VolumeMap,
        disk_node: u32,
        disks: Vec<(u32, Rc<dyn Disk>)>,
        (missing, is_read_only): (Vec<u32>, bool),
        config: Config,
    ) -> Rc<Self> {
        let Config { depth_per_disk, queue_length_max, write_buffer_bytes, boot_id, .. } = config;
        Rc::new(Self {
            map: map.clone(),
            disk_node,
            manager: Manager::new(
                context.clone(),
                (disk_node, boot_id.unwrap_or_else(|| context.random())),
                disks,
                depth_per_disk,
                queue_length_max,
            ),
            write_buffer_bytes: write_buffer_bytes.max(map.geometry().stripe_size as usize),
            held_bytes: Cell::new(0),
            missing,
            failover: Failover::new(context, map, disk_node, is_read_only),
            new_disks: NewDisks::new(context.clone()),
        })
    }

    /// Ends in order, at the node of `context`: lets nothing in any more, makes durable what was
    /// answered, and returns this life for the server that goes on with it ([`Config::boot_id`]).
    /// After an error there is none to go on with.
    pub async fn hand_over(&self, context: &Context) -> Result<BootId, Error> {
        context.close::<BlockIo>(|_| false);
        context.drained::<BlockIo>().await;
        self.sync().await
    }

    async fn read(&self, request: &Read) -> Result<Bytes, Error> {
        let &Read { stripe, offset, length } = request;
        let (disk, at) = self.locate(stripe, offset, u64::from(length))?;
        if length == 0 {
            return Ok(Bytes::new());
        }
        self.manager.read(disk, at, length as usize).await
    }

    async fn write(&self, request: Write) -> Result<BootId, Error> {
        let Write { stripe, offset, data } = request;
        let length: usize = data.iter().map(Bytes::len).sum();
        let (disk, at) = self.place(stripe, offset, length as u64)?;
        if length == 0 {
            return Ok(self.manager.boot_id());
        }
        let _held = self.hold(length)?;
        let written = match self.present(disk) {
            Ok(present) => self.manager.write(present, at, data).await,
            Err(error) => Err(error),
        };
        self.failover.answer(disk, written, || Ok(self.manager.boot_id()))
    }

    async fn sync(&self) -> Result<BootId, Error> {
        let disks = self.manager.disks().into_iter();
        let flushes = disks.map(|disk| async move {
            let flushed = self.manager.sync(disk as usize).await;
            self.failover.answer(disk, flushed, || Ok(()))
        });
        // All of them run to the end: one failed disk must not leave the others undone.
        let outcome: Result<(), Error> = join_all(flushes).await.into_iter().collect();
        outcome.map(|()| self.manager.boot_id())
    }

    async fn read_slot(&self, request: &ReadSlot) -> Result<Bytes, Error> {
        let (disk, at) = self.locate_slot(request.disk, request.slot, SLOT_SIZE)?;
        self.manager.read(disk, at, SLOT_SIZE).await
    }

    async fn write_slot(&self, request: WriteSlot) -> Result<(), Error> {
        let disk = request.disk;
        let written = self.write_slot_once(request).await;
        // Another disk has to have it.
        self.failover
            .answer(disk, written, || Err(Error::Missing { disk_node: self.disk_node, disk }))
    }

    async fn write_slot_once(&self, request: WriteSlot) -> Result<(), Error> {
        let WriteSlot { disk, slot, data } = request;
        let (disk, at) = self.locate_slot(disk, slot, data.len())?;
        let written = self.manager.write(disk, at, vec![data]).await?;
        self.manager.sync(disk).await?;
        // Else another flush has failed in between, and perhaps lost it.
        if written == self.manager.boot_id() { Ok(()) } else { Err(Undelivered::Busy.into()) }
    }

    fn describe(&self) -> Vec<DiskStatus> {
        let status = |disk| {
            let name = DiskName { disk_node: self.disk_node, disk };
            let status = self.manager.status(disk, self.map.stripes_on(name))?;
            let healthy = status.healthy && !self.missing.contains(&name.disk);
            Some(DiskStatus { healthy, ..status })
        };
        self.manager.disks().into_iter().filter_map(status).collect()
    }

    /// Lets disks that come while the node is served be found: `path_of` tells where each is.
    pub fn find_new_disks(&self, path_of: impl Fn(DiskName) -> String + 'static) {
        self.new_disks.find_by(path_of);
    }

    async fn prepare_disks(&self, request: PrepareDisks) -> Result<(), Error> {
        let next = VolumeMap::of_record(&decoded(&request.record)?);
        let next = next.map_err(|_| Error::BadRecord {})?;
        // A late copy of the request finds that the record is followed.
        let _alone = self.new_disks.following().await;
        if next.volume() != self.map.volume() || next.version() <= self.map.version() {
            return Err(Error::BadRecord {});
        }
        for name in next.disks_of(self.disk_node) {
            match self.manager.disk(name.disk) {
                Some(device) => self.new_disks.check_version(&*device, name).await?,
                // One that is only missing here holds data.
                None if self.map.stripes_on(name) > 0 => {
                    return Err(Error::NotReady { disk_node: name.disk_node, disk: name.disk });
                }
                None => self.new_disks.prepare(&next, name).await?,
            }
        }
        Ok(())
    }

    /// New disks are served before the map has them: what is in it can be used.
    async fn follow_record(&self, request: FollowRecord) -> Result<(), Error> {
        let record = decoded(&request.record)?;
        let _alone = self.new_disks.following().await;
        let next = VolumeMap::of_record(&record).map_err(|_| Error::BadRecord {})?;
        if next.volume() != self.map.volume() {
            return Err(Error::BadRecord {});
        }
        if next.version() < self.map.version() {
            return Ok(());
        }
        for name in next.disks_of(self.disk_node) {
            if self.manager.disk(name.disk).is_none() {
                self.manager.add(name.disk, self.new_disks.open(&next, name).await?);
            }
        }
        let (mut updated, mut failure) = (0, None);
        for disk in self.manager.disks() {
            let name = DiskName { disk_node: self.disk_node, disk };
            let Some(device) = self.manager.served_disk(disk) else { continue };
            match self.new_disks.update(&device, &next, name).await {
                Ok(()) => updated += 1,
                // It is closed in a moment, and others know that nothing is read from it any more.
                Err(_) if next.state(name).is_gone() => updated += 1,
                Err(error) if self.manager.is_healthy(disk) => return Err(error),
                // It learns of it when it is opened again; that it has failed must not keep others,
                // nor what it holds, from being moved.
                Err(error) => failure = Some(error),
            }
        }
        if let Some(failure) = failure.filter(|_| updated == 0) {
            return Err(failure);
        }
        self.map.advance(&record).map_err(|_| Error::BadRecord {})?;
        let gone = self.manager.disks().into_iter().filter(|disk| self.state(*disk).is_gone());
        gone.for_each(|disk| self.manager.close(disk));
        Ok(())
    }

    async fn check_superblocks(&self, repair: bool) -> Result<Vec<String>, Error> {
        let _alone = self.new_disks.following().await;
        let mut told = Vec::new();
        for disk in self.manager.disks() {
            let name = DiskName { disk_node: self.disk_node, disk };
            let Some(device) = self.manager.served_disk(disk) else { continue };
            if self.missing.contains(&disk) || !self.manager.is_healthy(disk) {
                continue;
            }
            match check_superblocks(&device).await {
                Ok(true) => {}
                Ok(false) => {
                    told.push(format!("a superblock of disk {name} is bad, and the other is good"));
                    if repair {
                        self.new_disks.update(&device, &self.map, name).await?;
                    }
                }
                Err(error) => told.push(format!("disk {name}: {error}")),
            }
        }
        Ok(told)
    }

    /// The disk of this node that holds these bytes of a stripe, if it is there, and where.
    fn locate(&self, stripe: u64, offset: u32, length: u64) -> Result<(usize, u64), Error> {
        let (disk, at) = self.place(stripe, offset, length)?;
        Ok((self.present(disk)?, at))
    }

    /// The disk of this node that has these bytes of a stripe, or has had them, and where.
    fn place(&self, stripe: u64, offset: u32, length: u64) -> Result<(u32, u64), Error> {
        let exists = self.map.contains(stripe, offset, length);
        let place = exists.then(|| self.map.place(stripe));
        let Some(place) = place.filter(|place| place.disk.disk_node == self.disk_node) else {
            let length = u32::try_from(length).unwrap_or(u32::MAX);
            return Err(Error::OutOfRange { stripe, offset, length });
        };
        let at = self.map.geometry().stripe_offset(place.index) + u64::from(offset);
        Ok((place.disk.disk, at))
    }

    fn locate_slot(&self, disk: u32, slot: u32, length: usize) -> Result<(usize, u64), Error> {
        let geometry = self.map.geometry();
        let exists = disk < DISKS_PER_NODE_MAX && slot < geometry.slots_per_disk();
        if !exists || length != SLOT_SIZE || self.state(disk) == (DiskStage::Retired {}) {
            return Err(Error::NoSuchSlot { disk, slot, length: length as u64 });
        }
        let present = self.present(disk)?;
        if self.manager.disk(disk).is_none() {
            // Others may have heard of a new disk before it is served.
            return Err(Undelivered::Busy.into());
        }
        Ok((present, geometry.slot_offset(slot)))
    }

    fn state(&self, disk: u32) -> DiskStage {
        self.map.state(DiskName { disk_node: self.disk_node, disk })
    }

    fn present(&self, disk: u32) -> Result<usize, Error> {
        if self.missing.contains(&disk) || self.failover.is_lost(disk) {
            return Err(Error::Missing { disk_node: self.disk_node, disk });
        }
        Ok(disk as usize)
    }

    /// Room for the data of a write, given back when dropped.
    fn hold(&self, length: usize) -> Result<HeldBytes<'_>, Error> {
        let after = self.held_bytes.get() + length;
        if after > self.write_buffer_bytes {
            return Err(Undelivered::Busy.into());
        }
        self.held_bytes.set(after);
        Ok(HeldBytes { server: self, length })
    }
}

impl runtime::Server<BlockIo> for Server {
    fn handle(self: Rc<Self>, caller: Caller, request: Request) -> LocalBoxFuture<'static, Reply> {
        request.dispatch(self, caller)
    }
}

runtime::handlers! { Server;
    Read => |server, _, request| server.read(&request).await;
    Write => |server, _, request| server.write(request).await;
    Sync => |server, _, _request| server.sync().await;
    ReadSlot => |server, _, request| server.read_slot(&request).await;
    WriteSlot => |server, _, request| server.write_slot(request).await;
    Describe => |server, _, _request| Ok(server.describe());
    PrepareDisks => |server, _, request| server.prepare_disks(request).await;
    FollowRecord => |server, _, request| server.follow_record(request).await;
    CheckSuperblocks => |server, _, request| server.check_superblocks(request.repair).await;
}

fn decoded(record: &[u8]) -> Result<VolumeRecord, Error> {
    from_bytes(record).map_err(|_| Error::BadRecord {})
}

struct HeldBytes<'a> {
    server: &'a Server,
    length: usize,
}

impl Drop for HeldBytes<'_> {
    fn drop(&mut self) {
        self.server.held_bytes.set(self.server.held_bytes.get() - self.length);
    }
}
