//! How a test handles a disk from the outside.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use super::platter::{Platter, Survival};
use super::{DiskFaults, DiskOperation, DiskState, EmulatedDisks, OrderedFailure};
use crate::trace::FaultKind;

/// A disk, as a test holds it in its hands.
pub struct DiskControl {
    disks: Rc<EmulatedDisks>,
    disk: u32,
}

impl std::fmt::Debug for DiskControl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DiskControl").field("disk", &self.disk).finish_non_exhaustive()
    }
}

/// A full copy of a disk, with its volatile cache. Copies share memory until they differ.
#[derive(Clone, Debug)]
pub struct DiskSnapshot {
    platter: Platter,
}

impl DiskSnapshot {
    /// Offset and length of each write that was not yet flushed, oldest first.
    pub fn unflushed(&self) -> Vec<(u64, u64)> {
        self.platter.cached().collect()
    }

    /// What reads of the copy see.
    pub fn read(&self, offset: u64, length: usize) -> Vec<u8> {
        assert!(self.platter.has(offset, length as u64), "the disk ends before that");
        self.platter.read(offset, length)
    }

    /// Changes the copy, durably; the disk stays as it is.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        assert!(self.platter.has(offset, data.len() as u64), "the disk ends before that");
        self.platter.write_through(offset, data);
    }
}

impl DiskControl {
    pub(crate) fn new(disks: Rc<EmulatedDisks>, path: &str) -> Self {
        let disk = disks.table.borrow().index(path);
        let disk = disk.unwrap_or_else(|| panic!("there is no disk {path}"));
        Self { disks, disk }
    }

    fn with<T>(&self, act: impl FnOnce(&mut DiskState) -> T) -> T {
        act(self.disks.table.borrow_mut().get_mut(self.disk))
    }

    /// How often its operations go wrong from now on.
    pub fn set_faults(&self, faults: DiskFaults) {
        self.with(|disk| disk.faults = faults);
    }

    /// How often its operations go wrong now.
    pub fn faults(&self) -> DiskFaults {
        self.with(|disk| disk.faults)
    }

    /// Everything takes `factor` times as long from now on; 1 is the normal speed.
    pub fn slow(&self, factor: u64) {
        self.disks.kernel.fault(self.disk, FaultKind::DiskSlowed);
        self.with(|disk| disk.slowness = factor.max(1));
    }

    /// After `after` more operations of this kind the next one fails with `kind`; all later ones as
    /// well, if `sticky`. [`io::ErrorKind::StorageFull`] on writes makes a full disk.
    pub fn fail(&self, operation: DiskOperation, after: u64, sticky: bool, kind: io::ErrorKind) {
        let failure = OrderedFailure { operation, after, sticky, kind };
        self.with(|disk| disk.failures.push(failure));
    }

    /// During this time the host has no space for bytes of the disk that were never written.
    /// With `fails_flushes` some flushes find that out for writes that were answered before, and
    /// the disk forgets these.
    pub fn fill_host(&self, duration: Duration, fails_flushes: bool) {
        let until = self.disks.kernel.now_ns() + duration.as_nanos() as u64;
        self.with(|disk| {
            disk.host_full_until_ns = until;
            disk.full_host_fails_flushes = fails_flushes;
        });
    }

    /// Takes back all orders of [`fail`](Self::fail), all faults and slowness; the host has space.
    pub fn repair(&self) {
        self.with(|disk| {
            disk.failures.clear();
            disk.faults = DiskFaults::default();
            disk.slowness = 1;
            disk.host_full_until_ns = 0;
        });
    }

    /// One bit of each of these bytes changes at rest.
    pub fn rot(&self, offset: u64, length: usize) {
        self.disks.kernel.fault(self.disk, FaultKind::DiskBitsRotten);
        self.with(|disk| {
            assert!(disk.platter.has(offset, length as u64), "the disk ends before that");
            disk.platter.rot(offset, length, &mut disk.rng);
        });
    }

    /// These bytes become `data` at rest.
    pub fn poke(&self, offset: u64, data: &[u8]) {
        self.with(|disk| {
            assert!(disk.platter.has(offset, data.len() as u64), "the disk ends before that");
            disk.platter.poke(offset, data);
        });
    }

    /// What reads would see now, without time or faults.
    pub fn peek(&self, offset: u64, length: usize) -> Vec<u8> {
        self.with(|disk| {
            assert!(disk.platter.has(offset, length as u64), "the disk ends before that");
            disk.platter.read(offset, length)
        })
    }

    /// The offsets of all pages of 4 KiB that were ever written, in order: where damage matters.
    pub fn written(&self) -> Vec<u64> {
        self.with(|disk| disk.platter.written())
    }

    /// Offset and length of each write that is not yet flushed, oldest first.
    pub fn unflushed(&self) -> Vec<(u64, u64)> {
        self.with(|disk| disk.platter.cached().collect())
    }

    /// The power of this disk goes, and `fate` says what remains of each write that was not flushed
    /// (offset, length), oldest first; writes under way come last. Its owner finds it closed.
    pub fn cut_power(&self, mut fate: impl FnMut(u64, u64) -> Survival) {
        self.disks.cut_power(self.disk, Some(&mut fate));
    }

    /// A full copy; writes under way are in its volatile cache, as the last ones. To look at many
    /// crashes of one moment: [`restore`](Self::restore) it in a fresh world, then
    /// [`cut_power`](Self::cut_power) with another fate each time.
    pub fn snapshot(&self) -> DiskSnapshot {
        DiskSnapshot { platter: self.disks.table.borrow().platter_with_writes_under_way(self.disk) }
    }

    /// Puts an old copy in the disk's place. Operations under way are lost, its owner finds it
    /// closed.
    pub fn restore(&self, snapshot: &DiskSnapshot) {
        self.disks.kernel.fault(self.disk, FaultKind::DiskRestored);
        self.replace(|platter| *platter = snapshot.platter.clone());
    }

    /// Its length in bytes.
    pub fn length(&self) -> u64 {
        self.disks.table.borrow().get(self.disk).platter.length()
    }

    /// A new disk of zeros takes the disk's place. Operations under way are lost, its owner finds
    /// it closed.
    pub fn wipe(&self) {
        self.disks.kernel.fault(self.disk, FaultKind::DiskWiped);
        self.replace(Platter::wipe);
    }

    fn replace(&self, change: impl FnOnce(&mut Platter)) {
        self.with(|disk| {
            change(&mut disk.platter);
            disk.power_cycle += 1;
            disk.owner = None;
        });
    }
}
