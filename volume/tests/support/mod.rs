//! A whole file layer on one logical disk in memory.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use blockio::protocol::{Error, Unsynced};
use blockio::{Answer, BootId, DiskName, Geometry, Stripes, VolumeMap};
use bytes::Bytes;
use fileio::FileServer;
use fileio::client::SharedFileServer;
use futures::FutureExt as _;
use futures::executor::block_on;
use meta::memory::MemoryBudget;
use meta::{MetaServer, RootOwner, SharedAttrCache};
use runtime::Undelivered;
use runtime::embedded::{Config, DiskAccess, Embedded};
use runtime::{Context, Epoch, NodeId, VolumeId};

/// Memory lives once.
const BOOT_ID: BootId = 1;

/// One logical disk in memory. What was never written reads as nonsense, as on a real disk.
struct MemoryStripes {
    map: VolumeMap,
    stripes: RefCell<BTreeMap<u64, Vec<u8>>>,
    slots: RefCell<BTreeMap<(DiskName, u32), Bytes>>,
    /// The number of writes from now on of which the reply is lost.
    lost_replies: Arc<AtomicU32>,
}

impl MemoryStripes {
    fn new(map: VolumeMap, lost_replies: Arc<AtomicU32>) -> Rc<Self> {
        let (stripes, slots) = (RefCell::default(), RefCell::default());
        Rc::new(Self { map, stripes, slots, lost_replies })
    }

    fn with<T>(&self, stripe: u64, look: impl FnOnce(&mut Vec<u8>) -> T) -> Answer<T>
    where
        T: 'static,
    {
        let fresh = || vec![0xEE; self.map.geometry().stripe_size as usize];
        let answer = look(self.stripes.borrow_mut().entry(stripe).or_insert_with(fresh));
        futures::future::ready(Ok(answer)).boxed_local()
    }
}

impl Stripes for MemoryStripes {
    fn map(&self) -> VolumeMap {
        self.map.clone()
    }

    fn read(&self, stripe: u64, offset: u32, length: u32, expect: Vec<u32>) -> Answer<Bytes> {
        let range = offset as usize..(offset + length) as usize;
        let reading = self.with(stripe, |bytes| Bytes::copy_from_slice(&bytes[range]));
        async move {
            let data = reading.await?;
            match blockio::checksum::first_mismatch(&data, &expect) {
                Some(at) => Err(Error::Corrupt { stripe, block: (offset + at as u32) / 4096 }),
                None => Ok(data),
            }
        }
        .boxed_local()
    }

    fn write(&self, stripe: u64, offset: u32, data: Vec<Bytes>) -> Answer<BootId> {
        let written = self.with(stripe, |bytes| {
            let data = data.concat();
            bytes[offset as usize..][..data.len()].copy_from_slice(&data);
            BOOT_ID
        });
        let fewer = |left: u32| left.checked_sub(1);
        if self.lost_replies.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer).is_ok() {
            return futures::future::ready(Err(Undelivered::Lost.into())).boxed_local();
        }
        written
    }

    fn write_zeros(&self, stripe: u64, offset: u32, length: u32) -> Answer<BootId> {
        self.with(stripe, |bytes| {
            bytes[offset as usize..][..length as usize].fill(0);
            BOOT_ID
        })
    }

    fn sync(&self, _: Vec<Unsynced>) -> Answer<()> {
        futures::future::ready(Ok(())).boxed_local()
    }

    fn forget(&self, stripe: u64, offset: u32, length: u32) -> Answer<()> {
        self.with(stripe, |bytes| bytes[offset as usize..][..length as usize].fill(0xDD))
    }

    fn read_slot(&self, disk: DiskName, slot: u32) -> Answer<Bytes> {
        let found = self.slots.borrow().get(&(disk, slot)).cloned();
        let empty = || Bytes::from(vec![0; blockio::protocol::SLOT_SIZE]);
        futures::future::ready(Ok(found.unwrap_or_else(empty))).boxed_local()
    }

    fn write_slot(&self, disk: DiskName, slot: u32, data: Bytes) -> Answer<()> {
        self.slots.borrow_mut().insert((disk, slot), data);
        futures::future::ready(Ok(())).boxed_local()
    }
}

/// Memory for the metadata of a small volume, never short.
pub(crate) const METADATA_BYTES: usize = 16 << 20;

/// A machine of `fs_nodes` nodes on one thread, with an empty volume.
#[allow(dead_code, reason = "not every test takes what there is usually")]
pub(crate) fn machine(fs_nodes: u32, stripes: u64) -> Embedded {
    machine_within(fs_nodes, stripes, MemoryBudget::new(METADATA_BYTES))
}

/// As [`machine`], with so much memory for metadata.
pub(crate) fn machine_within(fs_nodes: u32, stripes: u64, memory: Arc<MemoryBudget>) -> Embedded {
    machine_with(fs_nodes, stripes, memory, &Arc::new(SharedAttrCache::new(fs_nodes)), 1)
}

/// As [`machine`], whose logical blocks have `unit` blocks.
#[allow(dead_code, reason = "not every test takes what is not usual")]
pub(crate) fn machine_of_units(fs_nodes: u32, stripes: u64, unit: u32) -> Embedded {
    let memory = MemoryBudget::new(METADATA_BYTES);
    machine_with(fs_nodes, stripes, memory, &Arc::new(SharedAttrCache::new(fs_nodes)), unit)
}

/// As [`machine_within`], whose nodes publish to `shared_attrs`, with logical blocks of `unit`
/// blocks.
pub(crate) fn machine_with(
    fs_nodes: u32,
    stripes: u64,
    memory: Arc<MemoryBudget>,
    shared_attrs: &Arc<SharedAttrCache>,
    unit: u32,
) -> Embedded {
    start(fs_nodes, stripes, memory, shared_attrs, unit, Arc::default())
}

/// As [`machine`], whose logical disk loses the replies to this number of writes to come.
#[allow(dead_code, reason = "not every test takes what is not usual")]
pub(crate) fn machine_that_loses(lost_replies: &Arc<AtomicU32>) -> Embedded {
    let memory = MemoryBudget::new(METADATA_BYTES);
    start(1, 256, memory, &Arc::new(SharedAttrCache::new(1)), 1, lost_replies.clone())
}

fn start(
    fs_nodes: u32,
    stripes: u64,
    memory: Arc<MemoryBudget>,
    shared_attrs: &Arc<SharedAttrCache>,
    unit: u32,
    lost_replies: Arc<AtomicU32>,
) -> Embedded {
    let machine = Embedded::start(Config {
        threads: 1,
        fs_nodes,
        disk_nodes: 2,
        epoch: Epoch(1),
        pool_bytes: 64 << 20,
        disk_access: DiskAccess::Best,
    })
    .expect("threads can be started");
    let geometry = Geometry { volume: VolumeId(7), stripe_size: 64 << 10, fs_nodes };
    let map = VolumeMap::grid(geometry, 2, 1, stripes / 2).expect("a small volume");
    machine.serve_shared(Arc::new(SharedFileServer(shared_attrs.clone())));
    let shared_attrs = Some(shared_attrs.clone());
    let booted = machine.on_node(NodeId::fs(0), move |context| async move {
        let disk: Rc<dyn Stripes> = MemoryStripes::new(map, lost_replies);
        for node in 0..fs_nodes {
            let context: Context = context.beside(NodeId::fs(node));
            MetaServer::format(&context, &disk, RootOwner::default())
                .await
                .expect("an empty volume");
            let (memory, shared_attrs) = (memory.clone(), shared_attrs.clone());
            let meta = MetaServer::mount(
                context.clone(),
                disk.clone(),
                memory,
                shared_attrs.clone(),
                Arc::default(),
            );
            let meta = meta.await.expect("a volume");
            let information = meta.information();
            context.serve::<meta::protocol::Meta>(meta);
            volume::node::end_recovery(context.clone()).await.expect("nothing to recover");
            let files = FileServer::new(context.clone(), disk.clone(), information, shared_attrs);
            files.set_unit(unit);
            context.serve::<fileio::protocol::FileIo>(files);
        }
    });
    block_on(booted).expect("the nodes start");
    machine
}
