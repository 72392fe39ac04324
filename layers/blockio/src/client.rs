//! The client of the disk nodes: routes by geometry and keeps no state about past requests.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::{join_all, ready};
use runtime::protocol::{Call, Undelivered};
use runtime::{Context, NodeId};

use crate::checksum::{first_mismatch, unit_bytes};
use crate::disk_set::DiskName;
use crate::geometry::{BLOCK_SIZE, Geometry};
use crate::protocol::{BlockIo, Error, Read, ReadSlot, Sync, Unsynced, Write, WriteSlot};
use crate::stripes::{Answer, BootId, DROPPED, Stripes};
use crate::volume_map::{VolumeMap, is_silent};

/// The first pause after `Busy`, or while a node is away, in microseconds; each further one is
/// twice as long.
pub const BUSY_PAUSE_US: u64 = 1_000;
/// The longest pause after `Busy`, in microseconds.
pub const BUSY_PAUSE_MAX_US: u64 = 64_000;
/// Times that a disk node that is busy or away is asked in all, over about two seconds.
pub const BUSY_TRIES: u32 = 32;

static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// The logical disk, straight from the disk nodes.
#[derive(Clone, Debug)]
pub struct BlockClient {
    context: Context,
    map: VolumeMap,
}

impl BlockClient {
    /// The logical disk of `map`, asked from the node of `context`.
    pub fn new(context: Context, map: VolumeMap) -> Self {
        Self { context, map }
    }

    /// Sends a request about a disk until its node is neither busy nor down, at most
    /// [`BUSY_TRIES`] times. `None`, at once, if its node [`is_silent`].
    async fn ask<C>(self, disk: DiskName, call: C) -> Result<Option<C::Reply>, Error>
    where
        C: Call<Protocol = BlockIo> + Clone,
    {
        let node = NodeId::disk(disk.disk_node);
        let mut pause_us = BUSY_PAUSE_US;
        for _ in 1..BUSY_TRIES {
            if is_silent(&self.map, disk) {
                return Ok(None);
            }
            match self.context.spawn(node, call.clone()).await {
                Err(error) if error.is_transient() => {}
                answer => return answer.map(Some),
            }
            // Half to one and a half, so that those who were refused together do not come back
            // together.
            let spread_us = pause_us / 2 + self.context.random() % pause_us;
            self.context.sleep(Duration::from_micros(spread_us)).await;
            pause_us = (2 * pause_us).min(BUSY_PAUSE_MAX_US);
        }
        self.context.spawn(node, call).await.map(Some)
    }

    /// As [`ask`](Self::ask), where nothing else will do.
    async fn ask_or_fail<C>(self, disk: DiskName, call: C) -> Result<C::Reply, Error>
    where
        C: Call<Protocol = BlockIo> + Clone,
    {
        let DiskName { disk_node, disk: number } = disk;
        let answer = self.ask(disk, call).await?;
        answer.ok_or(Error::Missing { disk_node, disk: number })
    }

    /// Writes to a disk, or nowhere if its node [`is_silent`]: further copies have it.
    async fn write_or_drop(self, disk: DiskName, call: Write) -> Result<BootId, Error> {
        Ok(self.ask(disk, call).await?.unwrap_or(DROPPED))
    }

    /// Makes what was written at the node of `disk` durable, if its boot ID is still the same.
    /// Nothing is to be done at a silent one.
    async fn flush(self, disk: DiskName, written: Vec<Unsynced>) -> Result<(), Error> {
        let Some(boot_id) = self.ask(disk, Sync {}).await? else { return Ok(()) };
        let lost = written.iter().find(|unsynced| unsynced.boot_id != boot_id);
        lost.map_or(Ok(()), |lost| Err(Error::LostWrites { stripe: lost.stripe, boot_id }))
    }

    async fn read_once(self, call: Read) -> Result<Bytes, Error> {
        let disk = self.map.place(call.stripe).disk;
        let length = call.length as usize;
        let data = self.ask_or_fail(disk, call).await?;
        if data.len() == length { Ok(data) } else { Err(Undelivered::ProtocolMismatch.into()) }
    }

    /// Reads and compares with the expected checksums. If they differ it reads once more: the bytes
    /// may have been damaged on the way.
    async fn read_checked(self, call: Read, expect: Vec<u32>) -> Result<Bytes, Error> {
        let data = self.clone().read_once(call.clone()).await?;
        let Some(at) = first_mismatch(&data, &expect) else { return Ok(data) };
        let Read { stripe, offset, .. } = call;
        let block = at / BLOCK_SIZE;
        tracing::warn!(stripe, offset, block, "checksum mismatch, reading again");
        let data = self.read_once(call).await?;
        match first_mismatch(&data, &expect) {
            None => Ok(data),
            Some(at) => {
                let block = (offset + at as u32) / BLOCK_SIZE as u32;
                Err(Error::Corrupt { stripe, block })
            }
        }
    }

    fn check(&self, stripe: u64, offset: u32, length: u64) -> Result<(), Error> {
        if self.map.contains(stripe, offset, length) {
            return Ok(());
        }
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        Err(Error::OutOfRange { stripe, offset, length })
    }
}

impl Stripes for BlockClient {
    fn geometry(&self) -> Geometry {
        self.map.geometry()
    }

    fn map(&self) -> VolumeMap {
        self.map.clone()
    }

    fn read(&self, stripe: u64, offset: u32, length: u32, expect: Vec<u32>) -> Answer<Bytes> {
        if let Err(error) = self.check(stripe, offset, u64::from(length)) {
            return refuse(error);
        }
        let fits = || unit_bytes(&(offset..offset + length), expect.len()).is_some();
        if !expect.is_empty() && !fits() {
            return refuse(Error::OutOfRange { stripe, offset, length });
        }
        self.clone().read_checked(Read { stripe, offset, length }, expect).boxed_local()
    }

    fn write(&self, stripe: u64, offset: u32, data: Vec<Bytes>) -> Answer<BootId> {
        let length = data.iter().map(|piece| piece.len() as u64).sum();
        if let Err(error) = self.check(stripe, offset, length) {
            return refuse(error);
        }
        let disk = self.map.place(stripe).disk;
        self.clone().write_or_drop(disk, Write { stripe, offset, data }).boxed_local()
    }

    fn write_zeros(&self, stripe: u64, offset: u32, length: u32) -> Answer<BootId> {
        if let Err(error) = self.check(stripe, offset, u64::from(length)) {
            return refuse(error);
        }
        let mut data = vec![Bytes::from_static(&ZEROS); length as usize / ZEROS.len()];
        let rest = length as usize % ZEROS.len();
        if rest > 0 {
            data.push(Bytes::from_static(&ZEROS[..rest]));
        }
        self.write(stripe, offset, data)
    }

    /// Waits for all nodes even if one fails, and returns the first failure.
    fn sync(&self, written: Vec<Unsynced>) -> Answer<()> {
        let mut nodes: BTreeMap<u32, (DiskName, Vec<Unsynced>)> = BTreeMap::new();
        for unsynced in written {
            if let Err(error) = self.check(unsynced.stripe, 0, 0) {
                return refuse(error);
            }
            let disk = self.map.place(unsynced.stripe).disk;
            nodes.entry(disk.disk_node).or_insert((disk, Vec::new())).1.push(unsynced);
        }
        let client = self.clone();
        let flushes =
            nodes.into_values().map(move |(disk, written)| client.clone().flush(disk, written));
        join_all(flushes).map(|answers| answers.into_iter().collect()).boxed_local()
    }

    /// A disk does not track which bytes are in use.
    fn forget(&self, stripe: u64, offset: u32, length: u32) -> Answer<()> {
        ready(self.check(stripe, offset, u64::from(length))).boxed_local()
    }

    fn read_slot(&self, disk: DiskName, slot: u32) -> Answer<Bytes> {
        self.clone().ask_or_fail(disk, ReadSlot { disk: disk.disk, slot }).boxed_local()
    }

    fn write_slot(&self, disk: DiskName, slot: u32, data: Bytes) -> Answer<()> {
        self.clone().ask_or_fail(disk, WriteSlot { disk: disk.disk, slot, data }).boxed_local()
    }
}

fn refuse<T: 'static>(error: Error) -> Answer<T> {
    ready(Err(error)).boxed_local()
}
