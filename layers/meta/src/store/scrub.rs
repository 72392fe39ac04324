//! Comparing the pages and the log of a store that runs with their checksums, as the disks have
//! them now.
//!
//! Pages of a root are not changed before the next root is durable. So a page that does not match
//! is damaged, if the root is still the same afterwards.

use std::ops::Bound;
use std::rc::Rc;

use blockio::protocol::Error as DiskError;
use blockio::{BLOCK_SIZE, Stripes};
use bytes::Bytes;

use super::Store;
use super::bad_pages::BadCopy;
use super::batch::RecordHead;
use super::device::Device;
use super::error::{StoreError, StoreResult};
use super::groups::Run;
use super::log::replay::replay_growing;
use super::page::PageRef;
use super::root;
use super::state::ChangeMode;
use super::tree::{TreeRoot, step};

/// Times that a checkpoint may come between.
const TRIES_MAX: u32 = 64;

/// What was found on the way to a leaf.
#[derive(Debug, Default)]
pub(crate) struct ScrubbedKeys {
    /// Keys of the leaf and of the log, with their values.
    pub(crate) entries: Vec<(Bytes, Bytes)>,
    /// The key to go on with; `None` at the end.
    pub(crate) next: Option<Bytes>,
    /// Bytes that were read from disks.
    pub(crate) read_bytes: u64,
    /// What is damaged.
    pub(crate) damage: Vec<StoreError>,
    /// Copies of pages that are bad, while the other one is good.
    pub(crate) bad: Vec<BadCopy>,
}

/// Reads the pages that lead to the key `from` from the disks, past all caches, and up to `limit`
/// keys from there on. With `repair` a checkpoint writes pages with a bad copy anew. Errors mean
/// that what comes behind the key cannot be found.
pub(crate) async fn scrub_keys(
    store: &Store,
    below: &Rc<dyn Stripes>,
    from: &[u8],
    (limit, repair): (usize, bool),
) -> StoreResult<ScrubbedKeys> {
    let device = Device::new(store.ctx.clone(), below.clone());
    for _ in 0..TRIES_MAX {
        let root = store.state.borrow().root;
        let (mut found, mut bad_pages) = (ScrubbedKeys::default(), Vec::new());
        let path = scrub_path(store, &device, root.tree, from, (&mut found, &mut bad_pages)).await;
        let entries = match path {
            Ok((true, ref end)) => {
                let end = end.as_ref().map_or(&[u8::MAX][..], |end| end);
                store.scan(Bound::Included(from), end, limit).await
            }
            Ok((false, ref end)) => {
                let end = end.as_ref().map_or(&[u8::MAX][..], |end| end);
                let mut entries = Vec::new();
                store.merge(None, Bound::Included(from), end, limit, &mut entries);
                Ok(entries)
            }
            Err(error) => Err(error),
        };
        // The pages of that tree were given back meanwhile.
        if store.generation() != root.generation {
            continue;
        }
        for (place, bad) in bad_pages {
            if repair {
                store.pages.note_bad(place, Bytes::copy_from_slice(from), &bad);
            }
            found.bad.push(bad);
        }
        (found.next, found.entries) = (path?.1, entries?);
        if found.entries.len() == limit {
            let after = |(key, _): &(Bytes, Bytes)| Bytes::from([key, &[0][..]].concat());
            found.next = found.entries.last().map(after);
        }
        return Ok(found);
    }
    Err(StoreError::Busy)
}

/// Reads the pages on the way to the leaf of `key`: each of them once in a walk over all keys. Is
/// the leaf whole, and which is the first key of a later one?
async fn scrub_path(
    store: &Store,
    device: &Device,
    tree: TreeRoot,
    key: &[u8],
    (found, bad): (&mut ScrubbedKeys, &mut Vec<(PageRef, BadCopy)>),
) -> StoreResult<(bool, Option<Bytes>)> {
    let Some(mut place) = tree.top else { return Ok((true, None)) };
    let mut end = None;
    for level in (1..tree.height).rev() {
        let page = store.pages.load(place, level).await?;
        if page.child_index(key) == 0 {
            scrub_page(device, place, "a tree page", found, bad).await;
        }
        place = step(&page, place, key, &mut end)?;
    }
    Ok((scrub_page(device, place, "a tree page", found, bad).await, end))
}

/// Is a copy of a page whole on the disks?
async fn scrub_page(
    device: &Device,
    place: PageRef,
    what: &'static str,
    found: &mut ScrubbedKeys,
    bad: &mut Vec<(PageRef, BadCopy)>,
) -> bool {
    let (mut wrong, mut is_whole) = (Vec::new(), false);
    let map = device.map();
    let disk_of = |run: Run| map.place(device.geometry.block(run.start).0).disk;
    // What is on a disk whose host is away stays as it is.
    for run in place.runs().filter(|run| !map.state(disk_of(*run)).is_absent()) {
        found.read_bytes += u64::from(run.count) * BLOCK_SIZE as u64;
        let error = match device.read(run, place.checksums()).await {
            Ok(_) => {
                is_whole = true;
                continue;
            }
            Err(DiskError::Corrupt { .. }) => StoreError::Damaged { what, block: run.start },
            Err(other) => other.into(),
        };
        wrong.push(BadCopy { block: run.start, disk: disk_of(run), error });
    }
    if is_whole {
        bad.extend(wrong.into_iter().map(|copy| (place, copy)));
    } else {
        found.damage.extend(wrong.first().map(|copy| copy.error));
    }
    is_whole
}

/// Copies of the pages of the space map of `store` that are bad, in words. With `repair` it is
/// written anew.
pub(crate) async fn scrub_map(
    store: &Store,
    below: &Rc<dyn Stripes>,
    repair: bool,
) -> StoreResult<ScrubbedKeys> {
    let device = Device::new(store.ctx.clone(), below.clone());
    for _ in 0..TRIES_MAX {
        let (generation, pages) = {
            let state = store.state.borrow();
            (state.root.generation, state.map_pages.clone())
        };
        let (mut found, mut bad) = (ScrubbedKeys::default(), Vec::new());
        for place in pages {
            scrub_page(&device, place, "the space map", &mut found, &mut bad).await;
        }
        if store.generation() != generation {
            continue;
        }
        found.bad = bad.into_iter().map(|(_, bad)| bad).collect();
        if repair && !found.bad.is_empty() {
            // Each checkpoint writes all of it.
            store.start_checkpoint();
        }
        return Ok(found);
    }
    Err(StoreError::Busy)
}

/// What is wrong with the log of `store` on the disks, in words. With `repair` it goes on in a
/// segment that has both copies, and a checkpoint gives the ones before back.
pub(crate) async fn scrub_log(
    store: &Store,
    below: &Rc<dyn Stripes>,
    repair: bool,
) -> StoreResult<Vec<String>> {
    let device = Device::new(store.ctx.clone(), below.clone()).reading_behind();
    for _ in 0..TRIES_MAX {
        let (root, durable) = {
            let state = store.state.borrow();
            if state.changes != ChangeMode::Logged {
                // One that is only read has none of its own.
                return Ok(Vec::new());
            }
            (state.root, state.log.durable)
        };
        let mut last = root.position;
        let apply = |head: RecordHead, _| {
            last = last.max(head.position);
            Ok(())
        };
        let replayed = replay_growing(&device, (root.log, durable), root.start, apply).await;
        if store.generation() != root.generation {
            continue;
        }
        let told = match replayed {
            Ok(_) if last < durable => {
                vec![format!("its log ends at record {last}, and should go on to {durable}")]
            }
            Ok((_, mut copies)) => {
                let map = device.map();
                copies.disks.retain(|disk, _| !map.state(*disk).is_absent());
                copies.tell().into_iter().map(|what| format!("log: {what}")).collect()
            }
            Err(error @ StoreError::Damaged { .. }) => vec![error.to_string()],
            Err(error) => return Err(error),
        };
        if repair && !told.is_empty() {
            store.space().restart_log().await?;
        }
        return Ok(told);
    }
    Err(StoreError::Busy)
}

/// Disks that should have a copy of the root of `store` and have none, in words. With `repair` they
/// get one.
pub(crate) async fn scrub_roots(store: &Store, repair: bool) -> Vec<String> {
    for _ in 0..TRIES_MAX {
        let (generation, is_busy) = {
            let state = store.state.borrow();
            (state.root.generation, state.checkpointing)
        };
        let newest = root::newest(&store.pages.device, store.pages.owner).await;
        if is_busy || store.generation() != generation {
            store.ctx.sleep(std::time::Duration::from_millis(20)).await;
            continue;
        }
        let (root, copies) = match newest {
            Ok(newest) => newest,
            Err(error) => return vec![format!("its root cannot be read from the disks: {error}")],
        };
        let disks = copies.lacking.iter().chain(&copies.unreadable);
        let told = disks.map(|disk| format!("the copy of its root on disk {disk} is bad"));
        let told: Vec<String> = told.collect();
        if repair && !told.is_empty() {
            root.heal(&store.pages.device, &copies).await;
        }
        return told;
    }
    Vec::new()
}
