//! The operator of a volume: adds disks, drains and retires them, while clients work and the power
//! goes. What was retired is wiped at once: nothing may be there. Where data have copies, disks
//! fail in use, or are lost with all that is on them, and are given up; disk nodes are away now and
//! then; and with three copies two of all that at once.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::Duration;

use blockio::{
    DiskName, DiskStage, Superblock, VolumeMap, VolumeRecord, has_disk_behind, identify,
    incomplete_disks,
};
use fileio::protocol::{
    AddedDisk, ChangeDisks, Credentials, DiskChange, DiskCondition, DiskList, DiskRefusal, Error,
    GetDisks, NEVER_LOST, ROOT,
};
use machine_emu::DiskOperation;
use runtime::NodeId;
use runtime::seed::Rng;
use volume::disk_manager::{VOLUME_KEY, can_do_without};

use super::cluster::path_of;
use super::harness::{CallFailure, Harness, PowerCut, WorkResult};

/// The client that the operator is.
const CLIENT: u32 = 6;
/// Disks of a disk node, at most.
const DISKS_MAX: u32 = 8;

/// Bytes of the disks in use, at least, after the largest of them: what clients write fits.
const BYTES_MIN: u64 = 48 << 20;

/// What the operator has done.
#[derive(Debug, Default)]
pub(super) struct Operator {
    /// Disks that were retired.
    retired: RefCell<Vec<DiskName>>,
    /// Disks that were lost, or have failed in use.
    lost: RefCell<Vec<DiskName>>,
    changes: Cell<u64>,
}

impl Operator {
    /// Changes disks until the round is over.
    pub(super) async fn work(&self, harness: &Harness, mut rng: Rng) {
        while !harness.is_over() {
            harness.pass(Duration::from_millis(rng.below(400))).await;
            if harness.cluster.data_copies() > 1
                && rng.chance(1, 3)
                && self.take_disk_nodes_away(harness, &mut rng).await.is_err()
            {
                return;
            }
            if let Err(PowerCut) = self.change(harness, &mut rng).await {
                return;
            }
        }
    }

    async fn change(&self, harness: &Harness, rng: &mut Rng) -> WorkResult {
        let list = self.list(harness).await?;
        if harness.cluster.data_copies() > 1 {
            self.break_a_disk(harness, rng);
        }
        let any = |condition: DiskCondition, rng: &mut Rng| {
            let all: Vec<_> =
                list.disks.iter().filter(|disk| disk.condition == condition).collect();
            (!all.is_empty()).then(|| {
                let disk = all[rng.index(all.len())];
                (disk.disk_node, disk.disk)
            })
        };
        let change = match rng.below(10) {
            0..2 => Self::new_disk(harness, &list, rng),
            2..4 => any(DiskCondition::Online {}, rng)
                .filter(|_| bytes_online(&list) >= BYTES_MIN)
                .filter(|chosen| {
                    let copies = harness.cluster.content().copies_max() as usize;
                    let has_room =
                        copies == 1 || room_without(&list, *chosen, copies) >= 2 * BYTES_MIN;
                    // What is on a disk that has failed must find a place, too.
                    has_room && !self.is_broken(harness)
                })
                .map(|(disk_node, disk)| DiskChange::Drain { disk_node, disk }),
            4 => any(DiskCondition::Draining {}, rng).map(|(disk_node, disk)| {
                // Too early: that is refused, or all has moved meanwhile.
                let retires = list.version % 2 == 1;
                if retires {
                    DiskChange::Retire { disk_node, disk }
                } else {
                    DiskChange::Keep { disk_node, disk }
                }
            }),
            5..8 => any(DiskCondition::Drained {}, rng)
                .map(|(disk_node, disk)| DiskChange::Retire { disk_node, disk }),
            8 => Some(DiskChange::Balance {}),
            _ => {
                let pace = ["gentle", "balanced", "fast"][rng.index(3)].to_owned();
                Some(DiskChange::SetPace { pace })
            }
        };
        let Some(change) = change else { return Ok(()) };
        self.ask(harness, change).await
    }

    async fn ask(&self, harness: &Harness, change: DiskChange) -> WorkResult {
        let (who, root) = (Credentials::root(), ROOT);
        // It may be a disk that has failed that is retired.
        let was_broken = self.is_broken(harness);
        let was_behind = has_disk_behind(&recorded(harness));
        let asked = harness.ask(CLIENT, ChangeDisks { who, root, change: change.clone() }).await;
        match asked {
            Ok(()) => {
                self.changes.set(self.changes.get() + 1);
                let wipe = |disk| harness.cluster.world().disk(&path_of(disk)).wipe();
                match change {
                    DiskChange::Retire { disk_node, disk } => {
                        let disk = DiskName { disk_node, disk };
                        self.retired.borrow_mut().push(disk);
                        wipe(disk);
                    }
                    DiskChange::DeclareLost { disk_node, disk } => {
                        let disk = DiskName { disk_node, disk };
                        self.lost.borrow_mut().push(disk);
                        wipe(disk);
                    }
                    _ => {}
                }
                Ok(())
            }
            // What was asked for, and is true no more: others have moved data meanwhile.
            Err(CallFailure::Refused(Error::DisksUnchanged { why })) => match why {
                DiskRefusal::NotDrained { .. }
                | DiskRefusal::NoRoom { .. }
                | DiskRefusal::TooFewDisks { .. }
                | DiskRefusal::TooFewDiskNodes { .. }
                | DiskRefusal::OnlyCopy {}
                | DiskRefusal::TooMany { .. }
                | DiskRefusal::BadSize {}
                | DiskRefusal::TooManySets { .. }
                | DiskRefusal::TooManyStates { .. } => Ok(()),
                // A disk has failed, until it is given up or the power goes.
                DiskRefusal::NotReady {} if was_broken || self.is_broken(harness) => Ok(()),
                DiskRefusal::NotReady {} if was_behind || has_disk_behind(&recorded(harness)) => {
                    Ok(())
                }
                DiskRefusal::NotReady {} if harness.is_uncertain() => Err(PowerCut),
                why => panic!("{change:?}: {why}"),
            },
            Err(failure) => failure.power_cut(),
        }
    }

    async fn list(&self, harness: &Harness) -> WorkResult<DiskList> {
        let listed = harness.ask(CLIENT, GetDisks { who: Credentials::root(), root: ROOT }).await;
        listed.or_else(CallFailure::power_cut)
    }

    /// A disk at one of the disk nodes, of the size of others or not.
    fn new_disk(harness: &Harness, list: &DiskList, rng: &mut Rng) -> Option<DiskChange> {
        let disk_node = rng.index(list.next.len()) as u32;
        let disk = list.next[disk_node as usize];
        if disk >= DISKS_MAX {
            return None;
        }
        let name = DiskName { disk_node, disk };
        let usual = harness.cluster.map().disk_length(DiskName::default());
        let bytes = usual / 2 + rng.below(usual) / 4096 * 4096;
        let world = harness.cluster.world();
        // One that was made ready in vain is there already.
        if !world.disks().contains(&path_of(name)) {
            world.create_used_disk(&path_of(name), bytes);
        }
        let bytes = world.disk(&path_of(name)).length();
        Some(DiskChange::Add { disks: vec![AddedDisk { disk_node, disk, bytes }] })
    }

    /// After all have died: who starts learns of the disks what the record says, or, where that is
    /// lost, what the disks say.
    pub(super) async fn learn(&self, harness: &Harness, rng: &mut Rng) {
        let recorded = recorded(harness);
        let keeps_record = rng.chance(2, 3);
        // What has missed something is told by the record alone.
        if keeps_record || has_disk_behind(&recorded) {
            return self.lose_a_disk(harness, recorded, rng);
        }
        let superblocks = read_superblocks(harness).await;
        let told = match VolumeMap::from_superblocks(&superblocks) {
            Ok(told) => told,
            // None has heard of that.
            Err(_) if !self.lost.borrow().is_empty() => recorded.clone(),
            Err(error) => panic!("the disks are there: {error}"),
        };
        assert!(told.version() <= recorded.version(), "something is known that was never decided");
        // The engine has nothing but that now.
        decide(harness, &VolumeRecord::of(&told));
        self.lose_a_disk(harness, told, rng);
    }

    /// Now and then a disk is lost while no node lives, and what has failed is, too. Who starts
    /// knows of it.
    fn lose_a_disk(&self, harness: &Harness, map: VolumeMap, rng: &mut Rng) {
        let mut lost = self.broken(&map);
        lost.extend(self.choose_lost(&map, (1, 3), rng));
        if lost.is_empty() {
            harness.cluster.know(map);
            return;
        }
        let mut record = VolumeRecord::of(&map);
        for disk in lost {
            self.lost.borrow_mut().push(disk);
            harness.cluster.world().disk(&path_of(disk)).wipe();
            record = record.with_state(disk, DiskStage::Lost {});
        }
        decide(harness, &record);
        harness.cluster.know(VolumeMap::of_record(&record).expect("fewer disks"));
    }

    /// What is decided, and for what has failed will be.
    fn with_broken(&self, map: &VolumeMap) -> VolumeRecord {
        let broken = self.broken(map).into_iter();
        broken
            .fold(VolumeRecord::of(map), |record, disk| record.with_state(disk, DiskStage::Lost {}))
    }

    /// One of which all that is on it has other copies, and room elsewhere.
    fn choose_lost(
        &self,
        map: &VolumeMap,
        (one, in_all): (u64, u64),
        rng: &mut Rng,
    ) -> Option<DiskName> {
        if map.redundancy().copies() < 2 || !rng.chance(one, in_all) {
            return None;
        }
        let record = self.with_broken(map);
        let disks = map.disks();
        let disk = disks[rng.index(disks.len())];
        let gone: Vec<DiskName> = incomplete_disks(map).into_iter().chain([disk]).collect();
        (record.can_lose(disk) && room_of(map, &gone) >= 2 * BYTES_MIN).then_some(disk)
    }

    /// Now and then a disk fails while it is in use. The volume gives it up by itself, or does not
    /// get to it before the power goes.
    fn break_a_disk(&self, harness: &Harness, rng: &mut Rng) {
        if let Some(disk) = self.choose_lost(&recorded(harness), (1, 8), rng) {
            self.lost.borrow_mut().push(disk);
            harness.lose_uncommitted();
            let (operation, kind) = (DiskOperation::Write, std::io::ErrorKind::Other);
            harness.cluster.world().disk(&path_of(disk)).fail(operation, 0, true, kind);
        }
    }

    /// The host of a disk node dies, is away for a while, and starts again; two of them at the same
    /// time where there are enough copies.
    async fn take_disk_nodes_away(&self, harness: &Harness, rng: &mut Rng) -> WorkResult {
        let mut away = Vec::new();
        while (away.is_empty() || rng.chance(1, 2))
            && let Some(node) = self.take_a_disk_node_away(harness, rng).await?
        {
            away.push(node);
        }
        while !away.is_empty() && !harness.is_power_off() {
            match harness.cluster.restart_some(&away, harness.phases()).await {
                Ok(()) => break,
                // An injected error: once more.
                Err(_) => harness.pass(Duration::from_millis(100)).await,
            }
        }
        Ok(())
    }

    /// Takes one away that the volume can do without. Its disks are given up, or one of them, or
    /// none.
    async fn take_a_disk_node_away(
        &self,
        harness: &Harness,
        rng: &mut Rng,
    ) -> WorkResult<Option<NodeId>> {
        let (map, cluster) = (harness.cluster.map(), &harness.cluster);
        let recorded = recorded(harness);
        let mut record = VolumeRecord::of(&recorded);
        let disk_node = rng.index(map.disk_nodes() as usize) as u32;
        let is_spare = self.with_broken(&recorded).can_lose_node(disk_node);
        if record.version != map.version() || !is_spare || !can_do_without(&map, disk_node) {
            return Ok(None);
        }
        let disks = map.disks_of(disk_node);
        let gone: Vec<DiskName> = incomplete_disks(&map).into_iter().chain(disks.clone()).collect();
        let gives_up = room_of(&map, &gone) >= BYTES_MIN && rng.chance(2, 3);
        let delay = if gives_up { rng.below(3) as u32 } else { NEVER_LOST };
        record.loss_delay_seconds = if rng.chance(1, 2) { delay } else { NEVER_LOST };
        for disk in &disks {
            record = record.with_state(*disk, DiskStage::Offline {});
        }
        let node = NodeId::disk(disk_node);
        harness.lose_uncommitted();
        cluster.world().crash(node);
        decide(harness, &record);
        map.advance(&record).expect("it is the record of this volume");
        harness.pass(Duration::from_millis(rng.below(3000))).await;
        if gives_up && record.loss_delay_seconds == NEVER_LOST {
            let DiskName { disk_node, disk } = disks[rng.index(disks.len())];
            self.ask(harness, DiskChange::DeclareLost { disk_node, disk }).await?;
            harness.pass(Duration::from_millis(rng.below(3000))).await;
        }
        Ok(Some(node))
    }

    /// Disks that have failed, or are lost, and are not given up yet.
    fn broken(&self, map: &VolumeMap) -> Vec<DiskName> {
        let lost = self.lost.borrow();
        lost.iter().copied().filter(|disk| !map.state(*disk).is_gone()).collect()
    }

    fn is_broken(&self, harness: &Harness) -> bool {
        !self.broken(&recorded(harness)).is_empty()
    }

    /// Once nothing goes wrong any more: what is being drained is drained in bounded time.
    pub(super) async fn finish(&self, harness: &Harness) {
        let context = harness.cluster.application(CLIENT);
        loop {
            let Ok(list) = self.list(harness).await else { panic!("no crash was asked for") };
            let moves = [DiskCondition::Draining {}, DiskCondition::Lost {}];
            let is_busy = list.disks.iter().any(|disk| moves.contains(&disk.condition));
            // One that was not written to after it broke has not failed.
            let has_failed = self.is_broken(harness)
                && list.disks.iter().any(|disk| disk.condition == DiskCondition::Offline {});
            let is_whole = !has_failed && !has_disk_behind(&recorded(harness));
            if !is_busy && !list.balancing && is_whole {
                return;
            }
            context.sleep(Duration::from_millis(500)).await;
        }
    }
}

/// Bytes of data for which there is room without these disks.
fn room_of(map: &VolumeMap, disks: &[DiskName]) -> u64 {
    let of = VolumeRecord::of(map);
    let without = disks.iter().fold(of, |of, disk| of.with_state(*disk, DiskStage::Lost {}));
    let Ok(without) = VolumeMap::of_record(&without) else { return 0 };
    let stripe = u64::from(map.geometry().stripe_size);
    without.stripes_in_copies(map.redundancy().copies()) * stripe
}

/// What the record of the volume says.
fn recorded(harness: &Harness) -> VolumeMap {
    let records = harness.cluster.records();
    let record = records.borrow().get(VOLUME_KEY).expect("the volume has a record");
    VolumeRecord::decode(&record.value).expect("it is whole")
}

/// The record of the volume is this one now.
fn decide(harness: &Harness, record: &VolumeRecord) {
    let bytes = runtime::wire::to_bytes(record);
    let expect = cluster::coordination::Expect::Any {};
    let written = harness.cluster.records().borrow_mut().write(VOLUME_KEY, &bytes, expect, None);
    written.expect("a short record");
}

fn bytes_online(list: &DiskList) -> u64 {
    let online = list.disks.iter().filter(|disk| disk.condition == DiskCondition::Online {});
    let bytes: Vec<u64> = online.map(|disk| disk.bytes).collect();
    bytes.iter().sum::<u64>() - bytes.iter().max().copied().unwrap_or(0)
}

/// Bytes of which `copies` can be stored once a disk is drained: each on a node of its own, or on a
/// disk of its own where there are too few nodes.
fn room_without(list: &DiskList, drained: (u32, u32), copies: usize) -> u64 {
    let (mut nodes, mut disks) = (BTreeMap::<u32, u64>::new(), Vec::new());
    for disk in &list.disks {
        let stays = disk.condition == DiskCondition::Online {};
        if stays && (disk.disk_node, disk.disk) != drained {
            *nodes.entry(disk.disk_node).or_default() += disk.bytes;
            disks.push(disk.bytes);
        }
    }
    let mut domains: Vec<u64> =
        if nodes.len() >= copies { nodes.into_values().collect() } else { disks };
    domains.sort_unstable_by(|one, other| other.cmp(one));
    // However much the largest ones have, each has one copy of a block.
    let without =
        |largest: usize| domains.iter().skip(largest).sum::<u64>() / (copies - largest) as u64;
    (0..copies).map(without).min().unwrap_or(0)
}

/// What all disks say that can be read.
async fn read_superblocks(harness: &Harness) -> Vec<Superblock> {
    let world = harness.cluster.world();
    let (node, found) = (NodeId::disk(0), std::rc::Rc::<RefCell<Vec<Superblock>>>::default());
    world.restart(node);
    let (paths, all) = (world.disks(), found.clone());
    let read = world.on(node, move |context| async move {
        for path in paths {
            let Ok(disk) = context.open_disk(&path).await else { continue };
            if let Ok(superblock) = identify(&*disk).await {
                all.borrow_mut().push(superblock);
            }
        }
    });
    let _ = read.await;
    world.kill(node);
    found.take()
}
