//! Clients write, read and sync sectors of the logical disk, with or without the cache.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use blockio::Stripes;
use blockio::protocol::Error;
use bytes::Bytes;
use futures::FutureExt as _;
use machine_emu::SECTOR_SIZE;
use runtime::protocol::Undelivered;
use runtime::seed::Rng;

use super::scene::{End, Scene};
use super::versions::Versions;

/// The pause before a request that did not get through is asked again, in milliseconds.
const RETRY_MS: u64 = 10;
/// Stripes that each client uses.
const STRIPES: u64 = 6;

/// One sector is full of one number; 0 stands for whatever was there at first.
type Sectors = BTreeMap<(u64, u64), Versions<u64>>;

struct Registers<'a> {
    scene: &'a Scene,
    cached: bool,
    sectors: RefCell<Sectors>,
    /// Sectors of one stripe.
    per_stripe: u64,
}

/// The power went.
struct PowerCut;

/// Runs the workload to its end: clients of `cached` or bare stripes, each with some of its own.
pub(super) async fn run(scene: &Scene, cached: bool, clients: u32, rounds: u32, round_ms: u64) {
    scene.set_up().await;
    let per_stripe = u64::from(scene.cluster.geometry().stripe_size) / SECTOR_SIZE;
    let workload = Registers { scene, cached, sectors: RefCell::default(), per_stripe };
    for _ in 0..rounds {
        let working =
            (0..clients).map(|client| workload.client(client, scene.fork_rng()).boxed_local());
        let end = scene.round(working.collect(), round_ms).await;
        if end == End::PowerCut {
            scene.come_back().await;
        }
        scene.lively("a check", workload.check_all(end == End::PowerCut)).await;
    }
}

impl Registers<'_> {
    async fn client(&self, client: u32, mut rng: Rng) {
        while !self.scene.is_over() {
            let stripe = u64::from(client) * STRIPES + rng.below(STRIPES);
            let first = rng.below(self.per_stripe);
            let count = 1 + rng.below((self.per_stripe - first).min(24));
            let done = match rng.below(10) {
                0..5 => self.write(client, stripe, first, count, &mut rng).await,
                5..8 => self.read(client, stripe, first, count).await,
                _ => self.sync(client, rng.chance(1, 3).then_some(stripe)).await,
            };
            if let Err(PowerCut) = done {
                return;
            }
        }
    }

    /// Asks until there is an answer.
    async fn ask<T>(
        &self,
        client: u32,
        mut call: impl FnMut(&dyn Stripes) -> blockio::Answer<T>,
    ) -> Result<T, PowerCut> {
        let stripes: Rc<dyn Stripes> = self.scene.cluster.stripes(client, self.cached);
        loop {
            let answer = call(&*stripes).await;
            if self.scene.answered() {
                return Err(PowerCut);
            }
            match answer {
                Ok(value) => return Ok(value),
                Err(_) if self.scene.is_hopeless() => return Err(PowerCut),
                Err(
                    Error::Undelivered { why: Undelivered::Busy | Undelivered::Lost }
                    | Error::Unreadable { .. },
                ) => {}
                Err(error) => panic!("a stripe cannot be used: {error}"),
            }
            self.scene.pass(std::time::Duration::from_millis(RETRY_MS)).await;
        }
    }

    async fn write(
        &self,
        client: u32,
        stripe: u64,
        first: u64,
        count: u64,
        rng: &mut Rng,
    ) -> Result<(), PowerCut> {
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
        self.ask(client, |stripes| stripes.write(stripe, offset, vec![data.clone()])).await?;
        let mut sectors = self.sectors.borrow_mut();
        for (sector, number) in issued {
            if let Some(versions) = sectors.get_mut(&(stripe, sector)) {
                versions.acknowledge(number);
            }
        }
        Ok(())
    }

    async fn fetch(
        &self,
        client: u32,
        stripe: u64,
        first: u64,
        count: u64,
    ) -> Result<Bytes, PowerCut> {
        let (offset, length) = ((first * SECTOR_SIZE) as u32, (count * SECTOR_SIZE) as u32);
        let data =
            self.ask(client, |stripes| stripes.read(stripe, offset, length, Vec::new())).await?;
        assert_eq!(data.len(), length as usize);
        Ok(data)
    }

    /// Reads sectors that only this client writes: each is as acknowledged last.
    async fn read(&self, client: u32, stripe: u64, first: u64, count: u64) -> Result<(), PowerCut> {
        let data = self.fetch(client, stripe, first, count).await?;
        self.check(stripe, first, &data, |versions| versions.visible(versions.acknowledged()));
        Ok(())
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

    async fn sync(&self, client: u32, stripe: Option<u64>) -> Result<(), PowerCut> {
        let covered: Vec<((u64, u64), usize)> = {
            let sectors = self.sectors.borrow();
            let named =
                sectors.iter().filter(|((at, _), _)| stripe.is_none_or(|stripe| stripe == *at));
            named.map(|(&key, versions)| (key, versions.acknowledged())).collect()
        };
        self.ask(client, |stripes| stripes.sync(stripe.into_iter().collect())).await?;
        let mut sectors = self.sectors.borrow_mut();
        for (key, number) in covered {
            if let Some(versions) = sectors.get_mut(&key) {
                versions.durable(number);
            }
        }
        Ok(())
    }

    async fn check_all(&self, crashed: bool) {
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
                    versions.settle(if unknown { 0 } else { seen });
                }
            } else {
                self.check(stripe, sector, &data, |versions| {
                    versions.visible(versions.acknowledged())
                });
            }
        }
    }
}
