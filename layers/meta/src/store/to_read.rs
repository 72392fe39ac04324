//! A store that is served to be read, of a volume that may lack a part: nothing is written to the
//! disks, and what of the log or the space map is damaged is left out.

use std::rc::Rc;

use blockio::Stripes;
use runtime::Context;

use super::Store;
use super::batch::BatchOp;
use super::error::{StoreError, StoreResult};
use super::groups::GroupLayout;
use super::log::Log;
use super::log::format::SegmentCopies;
use super::log::replay::replay;
use super::open::{RecoveredState, pages, recover};
use super::root::{self, Root};
use super::space::BlockAllocator;
use super::state::{ChangeMode, NUMBERS_AHEAD, StoreState};
use super::tree::TreeReader;
use crate::memory::MemoryShare;

/// The store of `node`, to be read. What is committed until changes are [refused](refuse_changes)
/// is kept in memory. Also says what of it is damaged; an error means that not even its start was
/// found.
pub(crate) async fn mount_to_read(
    ctx: Context,
    stripes: Rc<dyn Stripes>,
    node: u32,
    share: Rc<MemoryShare>,
) -> StoreResult<(Rc<Store>, Vec<StoreError>)> {
    let pages = pages(&ctx, stripes, node, share);
    let (root, _) = root::newest(&pages.device, pages.owner).await?;
    let (past, damage) = recover_to_read(&pages, &root).await;
    let RecoveredState { space, overlay, root, map_pages, segments, .. } = past;
    let geometry = pages.device.geometry;
    let nowhere = SegmentCopies::nowhere();
    let next = (0, nowhere, nowhere);
    let log = Log::new(root.log, &geometry, root.position, segments, next);
    let share = pages.share.clone();
    let mut state = StoreState::new(geometry, (space, overlay), log, (root, map_pages), share);
    state.changes = ChangeMode::InMemory;
    Ok((Store::new(ctx, pages, state), damage))
}

/// From now on `store`, which was mounted to be read, takes no change, not even in memory.
pub(crate) fn refuse_changes(store: &Store) {
    store.state.borrow_mut().changes = ChangeMode::Refused;
}

/// As [`recover`]; without the rest of a log, and without a space map, if these are damaged. Says
/// what is.
pub(super) async fn recover_to_read(
    pages: &TreeReader,
    root: &Root,
) -> (RecoveredState, Vec<StoreError>) {
    match recover(pages, root).await {
        Ok(past) => (past, Vec::new()),
        Err(error) => recover_keys(pages, root, error).await,
    }
}

/// The keys of a node as far as its log can be read. What is used of its space stays unknown.
async fn recover_keys(
    pages: &TreeReader,
    root: &Root,
    error: StoreError,
) -> (RecoveredState, Vec<StoreError>) {
    let space = BlockAllocator::new(GroupLayout::of(&pages.device.map()));
    let mut past = RecoveredState::before_log(space, root);
    let mut last = None;
    let apply = |head, ops| past.replay_record(&mut last, head, ops, replay_key);
    let replayed = replay(&pages.device, root.log, root.start, apply).await;
    let log_error = replayed.map(|(_, copies)| past.log_copies = copies).err();
    past.root.counter = past.root.counter.saturating_add(NUMBERS_AHEAD);
    let other = log_error.filter(|log_error| *log_error != error);
    (past, [Some(error), other].into_iter().flatten().collect())
}

/// The key of an operation, without its space.
#[allow(clippy::unnecessary_wraps, reason = "it stands for the replay of a mount")]
fn replay_key(past: &mut RecoveredState, op: BatchOp) -> StoreResult<()> {
    let (key, value) = match op {
        BatchOp::Put { key, value } => (key, Some(value)),
        BatchOp::Delete { key } => (key, None),
        _ => return Ok(()),
    };
    past.overlay.set(key, value);
    Ok(())
}
