//! The bytes of a disk: what is durable, what is only in the volatile cache, and what a power cut
//! makes of the latter. No time, no nodes.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use bytes::Bytes;
use runtime::seed::Rng;

/// A write tears at multiples of this.
pub const SECTOR_SIZE: u64 = 512;

const PAGE_SIZE: u64 = 4096;

/// Bytes in the volatile cache, at most; past it the oldest writes become durable by themselves.
const CACHE_BYTES_MAX: usize = 64 << 20;

type PlatterPage = [u8; PAGE_SIZE as usize];

/// Bytes by page. Clones share their pages until one of them is written.
#[derive(Clone, Debug)]
struct PlatterImage {
    pages: BTreeMap<u64, Rc<PlatterPage>>,
    /// What pages hold that were never written: zeros, or noise from this seed.
    noise: Option<u64>,
}

impl PlatterImage {
    fn fresh(noise: Option<u64>, page: u64) -> PlatterPage {
        let mut fresh = [0; PAGE_SIZE as usize];
        if let Some(seed) = noise {
            Rng::new(seed ^ page.wrapping_mul(0x9E37_79B9_7F4A_7C15)).fill(&mut fresh);
        }
        fresh
    }

    fn read(&self, offset: u64, mut out: &mut [u8]) {
        let mut at = offset;
        while !out.is_empty() {
            let start = (at % PAGE_SIZE) as usize;
            let count = (PAGE_SIZE as usize - start).min(out.len());
            let (part, rest) = out.split_at_mut(count);
            let page = at / PAGE_SIZE;
            match self.pages.get(&page) {
                Some(bytes) => part.copy_from_slice(&bytes[start..start + count]),
                None if self.noise.is_none() => part.fill(0),
                None => {
                    part.copy_from_slice(&Self::fresh(self.noise, page)[start..start + count]);
                }
            }
            out = rest;
            at += count as u64;
        }
    }

    fn write(&mut self, offset: u64, mut data: &[u8]) {
        let mut at = offset;
        while !data.is_empty() {
            let start = (at % PAGE_SIZE) as usize;
            let count = (PAGE_SIZE as usize - start).min(data.len());
            let noise = self.noise;
            let page = at / PAGE_SIZE;
            let bytes = self.pages.entry(page).or_insert_with(|| Rc::new(Self::fresh(noise, page)));
            Rc::make_mut(bytes)[start..start + count].copy_from_slice(&data[..count]);
            data = &data[count..];
            at += count as u64;
        }
    }
}

/// One write in the volatile cache.
#[derive(Clone, Debug)]
struct Cached {
    sequence: u64,
    offset: u64,
    data: Bytes,
}

/// What a power cut makes of one write that was not flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survival {
    /// Nothing of it is on the disk.
    Lost,
    /// All of it is.
    Whole,
    /// Some of its sectors are; which ones follows from the seed.
    Torn(u64),
}

/// The bytes of one disk.
#[derive(Clone, Debug)]
pub(crate) struct Platter {
    length: u64,
    durable: PlatterImage,
    /// What reads see: the durable bytes with the cached writes on top.
    visible: PlatterImage,
    cached: VecDeque<Cached>,
    cached_bytes: usize,
    sequence: u64,
}

impl Platter {
    pub(crate) fn new(length: u64, noise: Option<u64>) -> Self {
        let blank = PlatterImage { pages: BTreeMap::new(), noise };
        Self {
            length,
            durable: blank.clone(),
            visible: blank,
            cached: VecDeque::new(),
            cached_bytes: 0,
            sequence: 0,
        }
    }

    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// True if the disk has such bytes.
    pub(crate) fn has(&self, offset: u64, length: u64) -> bool {
        offset.checked_add(length).is_some_and(|end| end <= self.length)
    }

    pub(crate) fn read(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut out = vec![0; length];
        self.visible.read(offset, &mut out);
        out
    }

    pub(crate) fn read_into(&self, offset: u64, out: &mut [u8]) {
        self.visible.read(offset, out);
    }

    /// What would be there if the volatile cache were empty.
    pub(crate) fn read_durable_into(&self, offset: u64, out: &mut [u8]) {
        self.durable.read(offset, out);
    }

    /// Changes bytes at rest.
    pub(crate) fn poke(&mut self, offset: u64, data: &[u8]) {
        self.durable.write(offset, data);
        self.visible.write(offset, data);
    }

    /// Everything is zeros, at rest and in the cache.
    pub(crate) fn wipe(&mut self) {
        *self = Self { sequence: self.sequence, ..Self::new(self.length, None) };
    }

    /// Has all of this been written before? A sparse file has space for it then.
    pub(crate) fn was_written(&self, offset: u64, length: u64) -> bool {
        let pages = offset / PAGE_SIZE..(offset + length).div_ceil(PAGE_SIZE);
        pages.into_iter().all(|page| self.visible.pages.contains_key(&page))
    }

    /// The offsets of all pages of 4 KiB that were ever written, in order.
    pub(crate) fn written(&self) -> Vec<u64> {
        self.visible.pages.keys().map(|page| page * PAGE_SIZE).collect()
    }

    /// Writes into the volatile cache.
    pub(crate) fn write(&mut self, offset: u64, data: Bytes) {
        self.visible.write(offset, &data);
        self.sequence += 1;
        self.cached_bytes += data.len();
        self.cached.push_back(Cached { sequence: self.sequence, offset, data });
        while self.cached_bytes > CACHE_BYTES_MAX {
            self.flush_first();
        }
    }

    fn flush_first(&mut self) {
        if let Some(write) = self.cached.pop_front() {
            self.cached_bytes -= write.data.len();
            self.durable.write(write.offset, &write.data);
        }
    }

    /// The number of the last write.
    pub(crate) fn last_write(&self) -> u64 {
        self.sequence
    }

    /// The number of the last write before those in the volatile cache.
    pub(crate) fn flushed_up_to(&self) -> u64 {
        self.cached.front().map_or(self.sequence, |write| write.sequence - 1)
    }

    /// Makes the writes up to this number durable, and no other: who writes during a flush has no
    /// right to more.
    pub(crate) fn flush(&mut self, up_to: u64) {
        while self.cached.front().is_some_and(|write| write.sequence <= up_to) {
            self.flush_first();
        }
    }

    /// A failed flush: the cache forgets some of its writes. They are still read, until the power
    /// goes, and a later flush will not bring them back.
    pub(crate) fn fail_flush(&mut self, rng: &mut Rng) {
        self.cached.retain(|_| rng.chance(1, 2));
        self.cached_bytes = self.cached.iter().map(|write| write.data.len()).sum();
    }

    /// Offset and length of each write in the volatile cache, oldest first.
    pub(crate) fn cached(&self) -> impl Iterator<Item = (u64, u64)> {
        self.cached.iter().map(|write| (write.offset, write.data.len() as u64))
    }

    /// The power goes: each cached write has its fate, and what is durable is all there is.
    pub(crate) fn cut_power(&mut self, mut fate: impl FnMut(u64, u64) -> Survival) {
        for write in std::mem::take(&mut self.cached) {
            match fate(write.offset, write.data.len() as u64) {
                Survival::Lost => {}
                Survival::Whole => self.durable.write(write.offset, &write.data),
                Survival::Torn(seed) => self.tear(&write, &mut Rng::new(seed)),
            }
        }
        self.cached_bytes = 0;
        self.visible = self.durable.clone();
    }

    fn tear(&mut self, write: &Cached, rng: &mut Rng) {
        let mut at = 0;
        while at < write.data.len() {
            let offset = write.offset + at as u64;
            let to_boundary = (SECTOR_SIZE - offset % SECTOR_SIZE) as usize;
            let end = (at + to_boundary).min(write.data.len());
            if rng.chance(1, 2) {
                self.durable.write(offset, &write.data[at..end]);
            }
            at = end;
        }
    }

    /// Writes past the cache: durable at once.
    pub(crate) fn write_through(&mut self, offset: u64, data: &[u8]) {
        self.durable.write(offset, data);
        self.visible.write(offset, data);
    }

    /// Changes bits at rest.
    pub(crate) fn rot(&mut self, offset: u64, length: usize, rng: &mut Rng) {
        for image in [&mut self.durable, &mut self.visible] {
            let mut bytes = vec![0; length];
            image.read(offset, &mut bytes);
            let mut same = rng.clone();
            for byte in &mut bytes {
                *byte ^= 1 << same.below(8);
            }
            image.write(offset, &bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use runtime::seed::with_seed;

    use super::*;

    #[test]
    fn a_disk_reads_back_what_was_written_last() {
        with_seed(|rng| {
            let mut platter = Platter::new(64 << 10, None);
            let mut model = vec![0u8; 64 << 10];
            for _ in 0..500 {
                let offset = rng.index(60 << 10);
                let mut data = vec![0; 1 + rng.index(4096)];
                rng.fill(&mut data);
                model[offset..offset + data.len()].copy_from_slice(&data);
                platter.write(offset as u64, data.into());
                if rng.chance(1, 20) {
                    platter.flush(platter.last_write());
                }
            }
            assert!(platter.read(0, 64 << 10) == model);
        });
    }

    /// Every sector of the disk after a power cut holds a value that the flushed state or one of
    /// the later writes gave it.
    #[test]
    fn after_a_power_cut_every_sector_is_as_flushed_or_as_written_later() {
        with_seed(|rng| {
            for _ in 0..200 {
                let sectors = 16;
                let mut platter = Platter::new(sectors * SECTOR_SIZE, None);
                let mut possible = vec![vec![0u8]; sectors as usize];
                for value in 1..40 {
                    let first = rng.below(sectors);
                    let count = 1 + rng.below(sectors - first);
                    let data = vec![value; (count * SECTOR_SIZE) as usize];
                    platter.write(first * SECTOR_SIZE, data.into());
                    for sector in first..first + count {
                        possible[sector as usize].push(value);
                    }
                    if rng.chance(1, 10) {
                        platter.flush(platter.last_write());
                        for values in &mut possible {
                            *values = values.split_off(values.len() - 1);
                        }
                    }
                }
                platter.cut_power(|_, _| match rng.below(3) {
                    0 => Survival::Lost,
                    1 => Survival::Whole,
                    _ => Survival::Torn(rng.bits()),
                });
                for (sector, values) in possible.iter().enumerate() {
                    let bytes = platter.read(sector as u64 * SECTOR_SIZE, SECTOR_SIZE as usize);
                    assert!(values.contains(&bytes[0]), "sector {sector}");
                    assert!(bytes.iter().all(|&byte| byte == bytes[0]), "a sector is never torn");
                }
            }
        });
    }

    #[test]
    fn an_unwritten_page_of_a_used_disk_is_noise_and_stays_the_same_noise() {
        let mut platter = Platter::new(1 << 20, Some(7));
        let before = platter.read(0, 8192);
        platter.write(100, Bytes::from_static(b"x"));
        let after = platter.read(0, 8192);
        assert!(before.iter().any(|&byte| byte != 0));
        assert_eq!(before[..100], after[..100]);
        assert_eq!(before[101..], after[101..]);
    }
}
