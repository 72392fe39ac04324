//! The registration cache: which memory is registered for whom.
//!
//! A region covers a whole mapping and lasts, so that a buffer that comes again finds it. It
//! belongs to an [`RegionOwner`], as a rule one connection in one epoch: when the peer is dead or
//! the epoch over, all of the owner's regions are closed in one go, and only then may the new epoch
//! be acknowledged. Memory of others is registered for one transfer; such regions are closed in
//! batches, not one by one (Wu 2004, section 4.2).

#![allow(unsafe_code, reason = "registers memory with a C library")]

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::Arc;

use super::in_use;
use super::memory::{FabricBuffer, Hold, Mapping};
use super::objects::{Objects, check, close, failed, no_operation};
use super::operations::RemoteSegment;
use super::options::Limits;
use crate::FabricError;
use crate::sys::{self, fid_mr};

/// For whom memory is registered: a connection in an epoch, by a number that is used once.
/// [`RegionOwner::LOCAL`] is this process itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RegionOwner(pub u64);

impl RegionOwner {
    /// Registered for operations of our own.
    pub const LOCAL: Self = Self(0);
}

/// Bytes registered at once, at most.
const REGISTERED_MAX: usize = 4 << 30;
/// Regions that wait to be closed together.
const BATCH: usize = 32;

const LOCAL_ACCESS: u64 = sys::FI_SEND | sys::FI_RECV | sys::FI_READ | sys::FI_WRITE;

/// A buffer that a peer may read or write until this is dropped, or its owner's regions are closed.
#[derive(Debug)]
pub struct Exposure {
    hold: Option<Hold>,
    region: (RegionOwner, u64, bool),
    /// Where the peer finds it.
    pub remote: RemoteSegment,
}

impl Exposure {
    /// Whether the peer may write it.
    pub fn is_writable(&self) -> bool {
        self.region.2
    }
}

/// An exposure that was not ended (see [`Fabric::conceal`](super::Fabric::conceal)) may still be
/// used by the peer: pages that it may write lose all access for good, so that a late write meets
/// nothing.
impl Drop for Exposure {
    fn drop(&mut self) {
        if let Some(hold) = self.hold.take()
            && self.is_writable()
        {
            hold.seal();
        }
    }
}

struct MemoryRegion {
    handle: *mut fid_mr,
    /// Keeps the pages until the region is closed.
    memory: Arc<Mapping>,
    key: u64,
    address: u64,
}

/// Registered memory, and what it cost.
#[derive(Default)]
pub(super) struct RegionCache {
    /// By owner, memory, and whether the owner may write it.
    open: BTreeMap<(RegionOwner, u64, bool), MemoryRegion>,
    closing: Vec<MemoryRegion>,
    registered: usize,
    pub(super) registrations: u64,
    pub(super) hits: u64,
}

impl RegionCache {
    /// What the provider wants to know of `buffer` as a local end: nothing, or its descriptor.
    pub(super) fn descriptor(
        &mut self,
        objects: &Objects,
        limits: &Limits,
        buffer: &FabricBuffer,
    ) -> Result<*mut std::ffi::c_void, FabricError> {
        if !limits.registers_local {
            return Ok(null_mut());
        }
        let memory = buffer.chunk().memory();
        let region = self.find(objects, limits, RegionOwner::LOCAL, memory, LOCAL_ACCESS)?;
        // SAFETY: the region is open.
        Ok(unsafe { (*region).mem_desc })
    }

    /// Lets `owner` read `buffer`.
    pub(super) fn expose_to_read(
        &mut self,
        objects: &Objects,
        limits: &Limits,
        owner: RegionOwner,
        buffer: &FabricBuffer,
    ) -> Result<Exposure, FabricError> {
        self.expose(objects, limits, owner, buffer, sys::FI_REMOTE_READ, buffer.hold_to_read())
    }

    /// Lets `owner` write `buffer`.
    pub(super) fn expose_to_write(
        &mut self,
        objects: &Objects,
        limits: &Limits,
        owner: RegionOwner,
        buffer: &mut FabricBuffer,
    ) -> Result<Exposure, FabricError> {
        let hold = buffer.hold_to_write();
        let access = sys::FI_REMOTE_READ | sys::FI_REMOTE_WRITE;
        self.expose(objects, limits, owner, buffer, access, hold)
    }

    fn expose(
        &mut self,
        objects: &Objects,
        limits: &Limits,
        owner: RegionOwner,
        buffer: &FabricBuffer,
        access: u64,
        hold: Hold,
    ) -> Result<Exposure, FabricError> {
        assert_ne!(owner, RegionOwner::LOCAL, "memory is exposed to a peer");
        let (memory, offset) = (buffer.chunk().memory().clone(), buffer.chunk().offset() as u64);
        self.find(objects, limits, owner, &memory, access)?;
        let region_key = (owner, memory.id(), access & sys::FI_REMOTE_WRITE != 0);
        let region = &self.open[&region_key];
        let remote = RemoteSegment {
            address: region.address + offset,
            key: region.key,
            length: buffer.len() as u64,
        };
        Ok(Exposure { hold: Some(hold), region: region_key, remote })
    }

    /// Ends an exposure that the peer has said to be done with. A region of memory of others is
    /// closed with the next batch.
    pub(super) fn conceal(&mut self, mut exposure: Exposure) {
        exposure.hold = None;
        let key = exposure.region;
        if self.open.get(&key).is_some_and(|region| region.memory.is_held()) {
            self.closing.extend(self.open.remove(&key));
            if self.closing.len() >= BATCH {
                self.close_batch();
            }
        }
    }

    /// Closes all regions of `owner`, and says how many.
    pub(super) fn close_owner(&mut self, owner: RegionOwner) -> usize {
        let all = (owner, u64::MIN, false)..=(owner, u64::MAX, true);
        let keys: Vec<_> = self.open.range(all).map(|(key, _)| *key).collect();
        let count = keys.len();
        for key in keys {
            self.closing.extend(self.open.remove(&key));
        }
        // Those of earlier transfers of the owner may be among the waiting ones.
        self.close_batch();
        count
    }

    /// Closes all; the endpoint must be closed.
    pub(super) fn close_all(&mut self) {
        self.closing.extend(std::mem::take(&mut self.open).into_values());
        self.close_batch();
    }

    fn close_batch(&mut self) {
        for region in self.closing.drain(..) {
            self.registered -= region.memory.length();
            // SAFETY: open, and forgotten at once; its memory is let go after it.
            unsafe { close(&raw mut (*region.handle).fid) };
            in_use::region_closed(region.memory.length());
        }
    }

    fn find(
        &mut self,
        objects: &Objects,
        limits: &Limits,
        owner: RegionOwner,
        memory: &Arc<Mapping>,
        access: u64,
    ) -> Result<*mut fid_mr, FabricError> {
        let region_key = (owner, memory.id(), access & sys::FI_REMOTE_WRITE != 0);
        if let Some(region) = self.open.get(&region_key) {
            self.hits += 1;
            return Ok(region.handle);
        }
        if self.registered + memory.length() > REGISTERED_MAX {
            self.close_batch();
            return Err(FabricError::Busy { what: "registered memory" });
        }
        let region = register(objects, limits, memory, access)?;
        in_use::region_opened(memory.length());
        let handle = region.handle;
        self.registrations += 1;
        self.registered += memory.length();
        self.open.insert(region_key, region);
        Ok(handle)
    }
}

fn register(
    objects: &Objects,
    limits: &Limits,
    memory: &Arc<Mapping>,
    access: u64,
) -> Result<MemoryRegion, FabricError> {
    let mut handle = null_mut();
    let wanted = if limits.chooses_keys { 0 } else { random_key()? };
    // SAFETY: the domain is open; the memory stays mapped until the region is closed, which holds
    // an `Arc` of it.
    let key = unsafe {
        let domain = objects.domain;
        let reg = (*(*domain).mr).reg.ok_or_else(no_operation)?;
        let (base, length) = (memory.base().cast_const().cast(), memory.length());
        let object = &raw mut (*domain).fid;
        let made = &raw mut handle;
        check("fi_mr_reg", reg(object, base, length, access, 0, wanted, 0, made, null_mut()))?;
        if limits.binds_regions {
            let object = &raw mut (*handle).fid;
            let bind = (*(*object).ops).bind.ok_or_else(no_operation)?;
            let control = (*(*object).ops).control.ok_or_else(no_operation)?;
            let bound = check("fi_mr_bind", bind(object, &raw mut (*objects.endpoint).fid, 0))
                .and_then(|()| {
                    check("fi_mr_enable", control(object, sys::FI_ENABLE as c_int, null_mut()))
                });
            if let Err(error) = bound {
                close(object);
                return Err(error);
            }
        }
        (*handle).key
    };
    let address = if limits.names_addresses { memory.base() as u64 } else { 0 };
    Ok(MemoryRegion { handle, memory: memory.clone(), key, address })
}

/// A key that a stranger does not guess.
fn random_key() -> Result<u64, FabricError> {
    // The highest bits stay clear: some providers keep them for themselves.
    Ok(random()? >> 16)
}

/// An unguessable number.
pub(crate) fn random() -> Result<u64, FabricError> {
    let mut key = [0; 8];
    // SAFETY: fills the array, whose length is passed.
    let got = unsafe { libc::getrandom(key.as_mut_ptr().cast(), key.len(), 0) };
    if got != 8 {
        return Err(failed("getrandom", -libc::EIO));
    }
    Ok(u64::from_le_bytes(key))
}
