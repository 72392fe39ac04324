//! Volumes with tampered disks: whatever is on them, they are opened or refused, and
//! checked, without a panic, and in bounded time.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use blockio::{BLOCK_SIZE, BlockClient, Stripes};
use machine_emu::DiskSnapshot;
use meta::NodeAudit;
use meta::audit::{Data, read_node};
use runtime::hash::crc32c;
use runtime::seed::Rng;

use super::tree::walk;
use super::volume::{DiskImages, SHAPES, VolumeShape, make, open};
use crate::cluster::{Phases, SimulatedCluster};
use crate::quiet;

/// Everything ends in this virtual time: a disk that is away is asked for a minute, for each thing.
const ENDS_WITHIN: Duration = Duration::from_mins(30);
/// The epoch in which they are opened: above all that are on the disks.
const EPOCH_OF_LOOK: u64 = 100;
/// Changes of one image, at most.
const CHANGES_MAX: u64 = 4;
/// Levels of blocks above one that is changed, at most.
const LEVELS_MAX: usize = 16;
/// Where superblocks, roots and heads of segments keep their own checksum.
const SELF_CHECKSUM_AT: usize = BLOCK_SIZE - 4;
/// Where entries of a log keep theirs.
const ENTRY_CHECKSUM_AT: usize = 28;
/// Bytes of an entry before its records.
const ENTRY_HEAD: usize = 64;

/// What came of tampered volumes.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostileTally {
    /// Volumes that were tampered with.
    pub images: u64,
    /// Of these, mounted all the same.
    pub mounted: u64,
    /// Volumes on which the check found flaws, or that it could not read.
    pub flawed: u64,
}

/// A block of a disk that holds something.
type BlockPosition = (usize, u64);

/// A volume and where its metadata is.
struct PristineVolume {
    shape: VolumeShape,
    disks: DiskImages,
    blocks: Vec<BlockPosition>,
    metadata: Vec<BlockPosition>,
    /// Of the metadata, what the newest roots lead to; the rest is of older times.
    live: Vec<BlockPosition>,
}

/// Tampers with `images` volumes, drawn from `seed`. Errors are panics and hangs, with the number
/// of the image.
pub fn hostile(seed: u64, images: u64) -> Result<HostileTally, String> {
    let bases = SHAPES.map(PristineVolume::new);
    let mut tally = HostileTally::default();
    for number in 0..images {
        let mut rng = Rng::new(seed ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let base = &bases[rng.index(bases.len())];
        let explain = |error| format!("image {number} of seed {seed:#x}: {error}");
        let disks = base.tampered(&mut rng);
        let (mounted, flawed) = look_at(base.shape, &disks).map_err(explain)?;
        tally.images += 1;
        tally.mounted += u64::from(mounted);
        tally.flawed += u64::from(flawed);
    }
    Ok(tally)
}

/// Checks, then mounts, checks again and uses a volume. Says whether it could be mounted, and
/// whether the first check found flaws.
fn look_at(shape: VolumeShape, disks: &DiskImages) -> Result<(bool, bool), String> {
    quiet::catch(|| {
        let cluster = open(shape, disks, EPOCH_OF_LOOK);
        let world = cluster.world().clone();
        let flawed = world.run_within(ENDS_WITHIN, async {
            // The disks may be refused: then there is nothing to check.
            if cluster.mount(Phases::Stripes).await.is_err() {
                return true;
            }
            check(&cluster).await
        });
        let flawed = flawed.ok_or_else(|| "a check does not end".to_owned())?;
        cluster.restart();
        let mounted = world.run_within(ENDS_WITHIN, async {
            if cluster.mount(Phases::All).await.is_err() {
                return false;
            }
            // What they say of a damaged volume is not asked here, only that they come back.
            let _ = cluster.audit().await.map(NodeAudit::final_checkpoint);
            let _ = walk(&cluster.application(0)).await;
            true
        });
        Ok((mounted.ok_or_else(|| "a mount does not end".to_owned())?, flawed))
    })
    .unwrap_or_else(|panic| Err(format!("a panic: {panic}")))
}

/// Are there flaws?
async fn check(cluster: &SimulatedCluster) -> bool {
    let geometry = cluster.geometry();
    let context = cluster.application(1);
    let stripes: Rc<dyn Stripes> = Rc::new(BlockClient::new(context.clone(), cluster.map()));
    let mut all = NodeAudit::default();
    for node in 0..geometry.fs_nodes {
        let data = Data { rate_bytes: 0, on_read: Box::new(|_| {}) };
        match read_node(&context, stripes.clone(), node, Some(data)).await {
            Ok(audit) => all.join(audit),
            Err(error) => all.lose_node(node, error.to_string()),
        }
    }
    !all.final_checkpoint().flaws.is_empty()
}

impl PristineVolume {
    fn new(shape: VolumeShape) -> Self {
        let disks = make(shape);
        let mut base =
            Self { shape, disks, blocks: Vec::new(), metadata: Vec::new(), live: Vec::new() };
        let count = shape.disk_length() / BLOCK_SIZE as u64;
        for disk in 0..base.disks.len() {
            for block in 0..count {
                let content = read(&base.disks[disk], block);
                if content.iter().all(|&byte| byte == 0) {
                    continue;
                }
                base.blocks.push((disk, block));
                if content.starts_with(b"md") || content.starts_with(b"MDFSDISK") {
                    base.metadata.push((disk, block));
                }
            }
        }
        base.live = base.find_live();
        base
    }

    /// The newest root of each node, its log, and the pages whose checksums these name.
    fn find_live(&self) -> Vec<BlockPosition> {
        let number = |block: &[u8], at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&block[at..at + 8]);
            u64::from_le_bytes(bytes)
        };
        let blocks =
            self.metadata.iter().map(|&place| (place, read(&self.disks[place.0], place.1)));
        let blocks: Vec<(BlockPosition, Vec<u8>)> = blocks.collect();
        // By node: epoch, generation and log of the newest root.
        let mut newest: BTreeMap<u64, [u64; 3]> = BTreeMap::new();
        for (_, block) in blocks.iter().filter(|(_, block)| block.starts_with(b"mdRT")) {
            let root = [number(block, 40), number(block, 32), number(block, 48)];
            let best = newest.entry(number(block, 24)).or_insert(root);
            *best = root.max(*best);
        }
        let is_first = |block: &[u8]| match &block[..4] {
            b"mdRT" => {
                newest.get(&number(block, 24)).is_some_and(|root| root[1] == number(block, 32))
            }
            b"mdLS" | b"mdLE" => newest.values().any(|root| root[2] == number(block, 40)),
            b"MDFS" => true,
            _ => false,
        };
        let mut live: BTreeMap<BlockPosition, &[u8]> = BTreeMap::new();
        for (place, block) in blocks.iter().filter(|(_, block)| is_first(block)) {
            live.insert(*place, block);
        }
        let mut before = 0;
        while before < live.len() {
            before = live.len();
            let named: BTreeSet<&[u8]> = live.values().flat_map(|block| block.windows(4)).collect();
            for (place, block) in &blocks {
                if block.starts_with(b"mdPG") && named.contains(&crc32c(block).to_le_bytes()[..]) {
                    live.insert(*place, block);
                }
            }
        }
        live.into_keys().collect()
    }

    /// A copy with some blocks changed; on half of all with their checksums right again, all the
    /// way up, so that what is behind the checksums is reached.
    fn tampered(&self, rng: &mut Rng) -> DiskImages {
        let mut disks = self.disks.clone();
        let stamped = rng.chance(1, 2);
        for _ in 0..=rng.below(CHANGES_MAX) {
            // Mostly what is decoded.
            let places = match rng.below(16) {
                0 => &self.blocks,
                1 => &self.metadata,
                _ => &self.live,
            };
            let place = places[rng.index(places.len())];
            let other = places[rng.index(places.len())];
            let before = read(&disks[place.0], place.1);
            let after = change(rng, &before, &read(&disks[other.0], other.1));
            if stamped {
                self.stamp(&mut disks, place, &before, after);
            } else {
                disks[place.0].write(place.1 * BLOCK_SIZE as u64, &after);
            }
        }
        disks
    }

    /// Writes `after` with a right checksum, and puts it wherever the one of `before` is named.
    fn stamp(&self, disks: &mut DiskImages, place: BlockPosition, before: &[u8], after: Vec<u8>) {
        let mut todo = vec![(place, before.to_vec(), after)];
        let mut done = BTreeSet::new();
        for _ in 0..LEVELS_MAX {
            let mut above = Vec::new();
            for (place, before, mut after) in todo {
                if !done.insert(place) {
                    continue;
                }
                stamp_self(&mut after);
                disks[place.0].write(place.1 * BLOCK_SIZE as u64, &after);
                let (old, new) = (crc32c(&before).to_le_bytes(), crc32c(&after).to_le_bytes());
                for &parent in &self.metadata {
                    let content = read(&disks[parent.0], parent.1);
                    let mut changed = content.clone();
                    for at in 0..content.len() - 3 {
                        if content[at..at + 4] == old {
                            changed[at..at + 4].copy_from_slice(&new);
                        }
                    }
                    if changed != content {
                        above.push((parent, content, changed));
                    }
                }
            }
            todo = above;
        }
    }
}

fn read(disk: &DiskSnapshot, block: u64) -> Vec<u8> {
    disk.read(block * BLOCK_SIZE as u64, BLOCK_SIZE)
}

/// Some other content of a block.
fn change(rng: &mut Rng, before: &[u8], other: &[u8]) -> Vec<u8> {
    let mut after = before.to_vec();
    // Most of a small volume's blocks is zeros at their end.
    let used = before.iter().rposition(|&byte| byte != 0).map_or(1, |last| last + 1);
    let used = if rng.chance(1, 2) { used.min(256) } else { used };
    match rng.below(8) {
        0 => after[rng.index(used)] ^= 1 << rng.below(8),
        1 | 2 => after[rng.index(used)] = rng.bits() as u8,
        3 | 4 => {
            // A number at its edges.
            let values = [0, 1, u64::MAX, u64::MAX - 1, 1 << 62, (1 << 62) - 1, 1 << 32, 1 << 12];
            let value = values[rng.index(values.len())].to_le_bytes();
            let length = [1, 2, 4, 8][rng.index(4)];
            let at = rng.index(used.min(BLOCK_SIZE - 8));
            after[at..at + length].copy_from_slice(&value[..length]);
        }
        5 => {
            let (at, length) = (rng.index(used), 1 + rng.index(64));
            let end = (at + length).min(BLOCK_SIZE);
            rng.fill(&mut after[at..end]);
        }
        6 => after[rng.index(used)..].fill(0),
        _ => after.copy_from_slice(other),
    }
    after
}

/// Makes the checksum right that the block keeps of itself, if it keeps one.
fn stamp_self(block: &mut [u8]) {
    if block.starts_with(b"mdLE") {
        let length = u32::from_le_bytes([block[4], block[5], block[6], block[7]]) as usize;
        // Of a longer entry the rest is in the next blocks; its checksum stays wrong.
        if let Some(end) = ENTRY_HEAD.checked_add(length).filter(|end| *end <= block.len()) {
            block[ENTRY_CHECKSUM_AT..ENTRY_CHECKSUM_AT + 4].fill(0);
            let checksum = crc32c(&block[..end]).to_le_bytes();
            block[ENTRY_CHECKSUM_AT..ENTRY_CHECKSUM_AT + 4].copy_from_slice(&checksum);
        }
    } else if [&b"mdRT"[..], b"mdLS", b"MDFSDISK"].iter().any(|magic| block.starts_with(magic)) {
        let checksum = crc32c(&block[..SELF_CHECKSUM_AT]).to_le_bytes();
        block[SELF_CHECKSUM_AT..].copy_from_slice(&checksum);
    }
}
