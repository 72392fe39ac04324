//! Clients write, read and sync sectors of the logical disk, with or without the cache, while
//! single nodes restart.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use blockio::Stripes;
use blockio::protocol::{Error, Unsynced};
use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::join;
use machine_emu::SECTOR_SIZE;
use runtime::seed::Rng;

use super::harness::{Harness, RoundEnd};
use super::versions::Versions;

/// The pause before a request that did not get through is asked again, in milliseconds.
const RETRY_MS: u64 = 10;
/// Stripes that each client uses.
const STRIPES: u64 = 6;

/// One sector is full of one number; 0 stands for whatever was there at first.
type Sectors = BTreeMap<(u64, u64), Versions<u64>>;

struct Registers<'a> {
    harness: &'a Harness,
    cached: bool,
    sectors: RefCell<Sectors>,
    /// Sectors of one stripe.
    per_stripe: u64,
    /// The last acknowledged write of each sector that no sync has covered: its number and the life
    /// in which it was answered.
    unsynced: RefCell<BTreeMap<(u64, u64), (usize, u64)>>,
    /// Single nodes that had restarted when the power went last.
    restarts_before: Cell<u64>,
}

/// Why a client goes no further.
enum RegisterFailure {
    /// The power went.
    PowerCut,
    /// What it wrote and did not sync is lost.
    Lost,
}

/// Runs the workload to its end: clients of `cached` or bare stripes, each with some of its own.
pub(super) async fn run(harness: &Harness, cached: bool, clients: u32, rounds: u32, round_ms: u64) {
    harness.set_up().await;
    let per_stripe = u64::from(harness.cluster.geometry().stripe_size) / SECTOR_SIZE;
    let workload = Registers {
        harness,
        cached,
        sectors: RefCell::default(),
        per_stripe,
        unsynced: RefCell::default(),
        restarts_before: Cell::new(0),
    };
    for _ in 0..rounds {
        let working =
            (0..clients).map(|client| workload.client(client, harness.fork_rng()).boxed_local());
        let end = harness.round(working.collect(), round_ms).await;
        if end == RoundEnd::PowerCut {
            harness.recover().await;
        }
        harness.within_limit("a check", workload.check_all(end == RoundEnd::PowerCut)).await;
    }
}

impl Registers<'_> {
    async fn client(&self, client: u32, mut rng: Rng) {
        while !self.harness.is_over() {
            let stripe = u64::from(client) * STRIPES + rng.below(STRIPES);
            let first = rng.below(self.per_stripe);
            let count = 1 + rng.below((self.per_stripe - first).min(24));
            let done = match rng.below(11) {
                // All of the stripe is read from the disk while a part of it is written.
                10 => {
                    let reading = self.fetch(client, stripe, 0, self.per_stripe);
                    let writing = self.write(client, stripe, first, count, &mut rng);
                    let (read, written) = join(reading, writing).await;
                    read.and(written)
                }
                0..5 => self.write(client, stripe, first, count, &mut rng).await,
                5..8 => self.read(client, stripe, first, count).await,
                _ => self.sync(client, rng.chance(1, 3).then_some(stripe)).await,
            };
            if let Err(RegisterFailure::PowerCut) = done {
                return;
            }
        }
    }

    /// Asks until there is an answer.
    async fn ask<T>(
        &self,
        client: u32,
        mut call: impl FnMut(&dyn Stripes) -> blockio::Answer<T>,
    ) -> Result<T, RegisterFailure> {
        let stripes: Rc<dyn Stripes> = self.harness.cluster.stripes(client, self.cached);
        loop {
            let answer = call(&*stripes).await;
            if self.harness.answered() {
                return Err(RegisterFailure::PowerCut);
            }
            match answer {
                Ok(value) => return Ok(value),
                // A flush that failed is told as a loss too, and only a power cut ends its fault.
                Err(_) if self.harness.is_uncertain() => return Err(RegisterFailure::PowerCut),
                Err(Error::LostWrites { .. }) => return Err(RegisterFailure::Lost),
                Err(Error::Unreadable { .. }) => {}
                Err(error) if error.is_transient() => {}
                Err(Error::Unwritable { .. }) if self.harness.has_filled_hosts() => {}
                Err(error) => panic!("a stripe cannot be used: {error}"),
            }
            self.harness.pass(Duration::from_millis(RETRY_MS)).await;
        }
    }

    async fn write(
        &self,
        client: u32,
        stripe: u64,
        first: u64,
        count: u64,
        rng: &mut Rng,
    ) -> Result<(), RegisterFailure> {
        let mut data = Vec::new();
        let mut issued = Vec::new();
        for sector in first..first + count {
            let value = rng.bits() | 1;
            data.extend(value.to_le_bytes().repeat(SECTOR_SIZE as usize / 8));
            let mut sectors = self.sectors.borrow_mut();
            let versions = sectors.entry((stripe, sector)).or_insert_with(|| Versions::new(0));
            issued.push((sector, versions.issue(value)));
        }
        let data = Bytes::from(data);
        let offset = (first * SECTOR_SIZE) as u32;
        let boot_id =
            self.ask(client, |stripes| stripes.write(stripe, offset, vec![data.clone()])).await?;
        let mut sectors = self.sectors.borrow_mut();
        for (sector, number) in issued {
            if let Some(versions) = sectors.get_mut(&(stripe, sector)) {
                versions.acknowledge(number);
            }
            self.unsynced.borrow_mut().insert((stripe, sector), (number, boot_id));
        }
        Ok(())
    }

    async fn fetch(
        &self,
        client: u32,
        stripe: u64,
        first: u64,
        count: u64,
    ) -> Result<Bytes, RegisterFailure> {
        let (offset, length) = ((first * SECTOR_SIZE) as u32, (count * SECTOR_SIZE) as u32);
        let data =
            self.ask(client, |stripes| stripes.read(stripe, offset, length, Vec::new())).await?;
        assert_eq!(data.len(), length as usize);
        Ok(data)
    }

    /// Reads sectors that only this client writes: each is as acknowledged last, or, if a node has
    /// restarted, at least as synced last.
    async fn read(
        &self,
        client: u32,
        stripe: u64,
        first: u64,
        count: u64,
    ) -> Result<(), RegisterFailure> {
        let data = self.fetch(client, stripe, first, count).await?;
        self.check(stripe, first, &data, |versions| self.visible(versions));
        Ok(())
    }

    /// What was not synced may be lost: a node has restarted, or a flush has failed that covered
    /// what the cache no longer has.
    fn may_have_lost(&self) -> bool {
        self.harness.restarts() > self.restarts_before.get() || self.harness.has_filled_hosts()
    }

    fn visible<'v>(&self, versions: &'v Versions<u64>) -> &'v [u64] {
        if self.may_have_lost() {
            versions.after_crash()
        } else {
            versions.visible(versions.acknowledged())
        }
    }

    fn check(
        &self,
        stripe: u64,
        first: u64,
        data: &[u8],
        possible: impl Fn(&Versions<u64>) -> &[u64],
    ) {
        let sectors = self.sectors.borrow();
        for (sector, bytes) in (first..).zip(data.chunks(SECTOR_SIZE as usize)) {
            let Some(versions) = sectors.get(&(stripe, sector)) else { continue };
            let possible = possible(versions);
            let is_whole = |value: u64| bytes.chunks(8).all(|word| word == value.to_le_bytes());
            let seen = u64::from_le_bytes(std::array::from_fn(|i| bytes[i]));
            let right = possible.contains(&0) || possible.contains(&seen) && is_whole(seen);
            assert!(right, "sector {sector} of stripe {stripe} holds {seen:x}, not {possible:x?}");
        }
    }

    /// Syncs what the client has written. After a loss that is as after a crash: any version since
    /// the last sync may be there, until the sector is written again.
    async fn sync(&self, client: u32, stripe: Option<u64>) -> Result<(), RegisterFailure> {
        let own = u64::from(client) * STRIPES..u64::from(client + 1) * STRIPES;
        let stripes = stripe.map_or(own, |stripe| stripe..stripe + 1);
        let covered: Vec<((u64, u64), (usize, u64))> = {
            let unsynced = self.unsynced.borrow();
            unsynced
                .range((stripes.start, 0)..(stripes.end, 0))
                .map(|(&at, &to)| (at, to))
                .collect()
        };
        let written: BTreeSet<Unsynced> = covered
            .iter()
            .map(|&((stripe, _), (_, boot_id))| Unsynced { stripe, boot_id })
            .collect();
        let written: Vec<Unsynced> = written.into_iter().collect();
        let synced = self.ask(client, |stripes| stripes.sync(written.clone())).await;
        if let Err(RegisterFailure::PowerCut) = synced {
            return synced;
        }
        let mut sectors = self.sectors.borrow_mut();
        for (key, (number, _)) in covered {
            self.unsynced.borrow_mut().remove(&key);
            if let (Ok(()), Some(versions)) = (&synced, sectors.get_mut(&key)) {
                versions.durable(number);
            }
        }
        let told_in_vain = synced.is_err() && !self.may_have_lost();
        assert!(!told_in_vain, "a loss is reported, and no node has restarted");
        synced
    }

    async fn check_all(&self, crashed: bool) {
        if crashed {
            self.unsynced.borrow_mut().clear();
            self.restarts_before.set(self.harness.restarts());
        }
        let keys: Vec<(u64, u64)> = self.sectors.borrow().keys().copied().collect();
        for (stripe, sector) in keys {
            let Ok(data) = self.fetch(0, stripe, sector, 1).await else {
                panic!("no crash was asked for")
            };
            if crashed {
                self.check(stripe, sector, &data, Versions::after_crash);
                let seen = u64::from_le_bytes(std::array::from_fn(|i| data[i]));
                if let Some(versions) = self.sectors.borrow_mut().get_mut(&(stripe, sector)) {
                    let unknown = versions.after_crash().contains(&0);
                    versions.flush(if unknown { 0 } else { seen });
                }
            } else {
                self.check(stripe, sector, &data, |versions| self.visible(versions));
            }
        }
    }
}
