//! Flushed writes survive a crash; unflushed writes come back old, new or torn, and touch nothing
//! else.
//!
//! Method: random requests through the real server, many at once, with power cuts at any moment,
//! next to a model that keeps per sector every content that the promise still allows, oldest first.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use crate::support::{Volume, sync_all};
use blockio::{BlockClient, Config, DiskName, Stripes as _};
use bytes::Bytes;
use futures::future::{join_all, select};
use runtime::seed::{Rng, with_seed};
use runtime::{Context, Epoch};

const SECTOR: u32 = 512;
/// Sectors under test: the first two of each of the first six stripes.
const SECTORS: u64 = 12;
/// Each worker has every third sector for itself; stripes, disks and flushes are shared.
const WORKERS: u64 = 3;
const LIVES: u64 = 60;
const STEPS: u64 = 40;

/// Per sector the fill bytes that it may have, oldest first.
type Model = Rc<RefCell<BTreeMap<u64, Vec<u8>>>>;

#[test]
fn flushed_writes_survive_any_crash() {
    with_seed(|rng| {
        let volume = Volume::start(rng.bits(), 2, 2, Config::default());
        volume.set_latency(Duration::from_millis(3));
        let model = Model::default();
        for sector in 0..SECTORS {
            model.borrow_mut().insert(sector, vec![0]);
            volume.ask(async move |client| write(&client, sector, 0).await);
        }
        volume.ask(async |client| sync_all(&client).await).expect("the disks are good");
        for boot_id in 0..LIVES {
            let (context, model_now) = (volume.context(), model.clone());
            let (power_ms, seed) = (rng.below(200), rng.bits());
            volume.ask(async move |client| {
                let cut = context.sleep(Duration::from_millis(power_ms));
                let workers = (0..WORKERS).map(|worker| {
                    let rng = Rng::new(seed ^ worker);
                    work(worker, client.clone(), context.clone(), model_now.clone(), rng)
                });
                let work = join_all(workers);
                // What is cut off here ends with the world.
                select(cut, work).await;
            });
            volume.crash(Epoch(boot_id + 2), rng);
            check(&volume, &model, boot_id);
        }
    });
}

/// Writes each sector only once at a time: overlapping writes have no order.
async fn work(worker: u64, client: BlockClient, context: Context, model: Model, mut rng: Rng) {
    let mine: Vec<u64> = (worker..SECTORS).step_by(WORKERS as usize).collect();
    for step in 0..STEPS {
        if rng.chance(1, 3) {
            sync_all(&client).await.expect("the disks are good");
            for sector in &mine {
                model.borrow_mut().entry(*sector).and_modify(forget_all_but_newest);
            }
        } else if rng.chance(1, 5) {
            let sector = mine[rng.index(mine.len())];
            let found = read(&client, sector).await;
            let newest = model.borrow()[&sector].last().copied();
            assert!(found.iter().all(|&byte| Some(byte) == newest), "step {step}: sector {sector}");
        } else {
            let fill = rng.bits().to_le_bytes()[0];
            let start = rng.index(mine.len());
            let writes = mine[start..].iter().map(|&sector| {
                model.borrow_mut().entry(sector).or_default().push(fill);
                write(&client, sector, fill)
            });
            join_all(writes).await;
        }
        context.sleep(Duration::from_millis(rng.below(3))).await;
    }
}

async fn write(client: &BlockClient, sector: u64, fill: u8) {
    let data = Bytes::from(vec![fill; SECTOR as usize]);
    let (stripe, offset) = (sector / 2, (sector % 2) as u32 * SECTOR);
    client.write(stripe, offset, vec![data]).await.expect("the sector exists");
}

async fn read(client: &BlockClient, sector: u64) -> Bytes {
    let (stripe, offset) = (sector / 2, (sector % 2) as u32 * SECTOR);
    client.read(stripe, offset, SECTOR, Vec::new()).await.expect("the sector exists")
}

fn forget_all_but_newest(fills: &mut Vec<u8>) {
    fills.drain(..fills.len() - 1);
}

fn check(volume: &Volume, model: &Model, boot_id: u64) {
    for (&sector, fills) in &mut *model.borrow_mut() {
        let found = volume.ask(async move |client| read(&client, sector).await);
        let fill = found[0];
        assert!(found.iter().all(|&byte| byte == fill), "life {boot_id}: sector {sector} is torn");
        assert!(
            fills.contains(&fill),
            "life {boot_id}: sector {sector} has {fill}, not of {fills:?}"
        );
        // The crash decided: from now on this is the only content.
        *fills = vec![fill];
    }
}

#[test]
fn a_slot_is_durable_when_answered() {
    with_seed(|rng| {
        let volume = Volume::start(rng.bits(), 2, 2, Config::default());
        let mut model = BTreeMap::new();
        for boot_id in 0..20 {
            for _ in 0..rng.below(6) {
                let (disk_node, disk) = (rng.below(2) as u32, rng.below(2) as u32);
                let (disk, slot) = (DiskName { disk_node, disk }, rng.below(8) as u32);
                let data = Bytes::from(vec![rng.bits().to_le_bytes()[0]; 4096]);
                model.insert((disk, slot), data.clone());
                volume
                    .ask(async move |client| client.write_slot(disk, slot, data).await)
                    .expect("the slot exists");
            }
            volume.crash(Epoch(boot_id + 2), rng);
            for (&(disk, slot), data) in &model {
                let found = volume.ask(async move |client| client.read_slot(disk, slot).await);
                assert_eq!(found.as_ref(), Ok(data), "slot {slot} of disk {disk}");
            }
        }
    });
}
