//! What an operator does to the node map.

use std::collections::BTreeMap;

use super::gone::{GONE_PREFIX, GoneRecord};
use super::keeper::{MAP_KEY, MEMBERS_PREFIX, PREFIX};
use super::map::{MemberRecord, NodeMap, ProcessId};
use super::plan::PlanError;
use crate::coordination::{Coordination, CoordinationError, Expect, Record, WriteOutcome};
use runtime::wire::Malformed;

/// Attempts at a change while others change the map, too.
const TRIES_MAX: u32 = 16;

/// The node map could not be changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] CoordinationError),
    /// There is a map already.
    #[error("there is a node map already: the cluster was made before")]
    Exists,
    /// There is none.
    #[error("there is no node map; make the cluster first: `mdfs cluster init`")]
    NoMap,
    /// It cannot be read.
    #[error("the node map is of another version of the program, or damaged: {0}")]
    Unreadable(#[from] Malformed),
    /// It cannot be changed so.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

/// Makes `first` the node map of a new cluster. After an unknown outcome it may be called again.
pub async fn found(engine: &dyn Coordination, first: &NodeMap) -> Result<(), CommandError> {
    let record = first.to_record();
    match engine.write(MAP_KEY, &record, Expect::Absent {}, None).await? {
        WriteOutcome::Done { .. } => Ok(()),
        WriteOutcome::Differs { found: Some(found) } if found.value == record => Ok(()),
        WriteOutcome::Differs { .. } => Err(CommandError::Exists),
    }
}

/// The node map, and the record that holds it.
async fn read(engine: &dyn Coordination) -> Result<(NodeMap, Record), CommandError> {
    let record = engine.get(MAP_KEY).await?.ok_or(CommandError::NoMap)?;
    Ok((NodeMap::from_record(&record.value)?, record))
}

/// Puts `next` in the place of `known`, which must be the present map; `None`: there is none.
pub async fn replace(
    engine: &dyn Coordination,
    known: Option<&NodeMap>,
    next: &NodeMap,
) -> Result<(), CommandError> {
    let seen = engine.get(MAP_KEY).await?;
    if seen.as_ref().map(|seen| &*seen.value) != known.map(NodeMap::to_record).as_deref() {
        return Err(CoordinationError::Busy.into());
    }
    let expect = Expect::still(seen.as_ref());
    match engine.write(MAP_KEY, &next.to_record(), expect, None).await? {
        WriteOutcome::Done { .. } => Ok(()),
        WriteOutcome::Differs { .. } => Err(CoordinationError::Busy.into()),
    }
}

/// The node map.
pub async fn node_map(engine: &dyn Coordination) -> Result<NodeMap, CommandError> {
    Ok(read(engine).await?.0)
}

/// Lets `process` give its file-system nodes to the others, one after the other, without a request
/// that fails; or, if not `leaving`, take some again. The map shows how far that has come.
pub async fn leave(
    engine: &dyn Coordination,
    process: ProcessId,
    leaving: bool,
) -> Result<(), CommandError> {
    change(engine, |map| map.leave(process, leaving)).await
}

/// Gives `process` the disk node `disk`, which is free.
pub async fn take_disk_node(
    engine: &dyn Coordination,
    process: ProcessId,
    disk: u32,
) -> Result<(), CommandError> {
    change(engine, |map| map.with_disk_node(process, disk)).await
}

/// Takes all disk nodes of `process` from it: their disks are retired.
pub async fn drop_disk_nodes(
    engine: &dyn Coordination,
    process: ProcessId,
) -> Result<(), CommandError> {
    change(engine, |map| Ok(map.without_disk_nodes(process))).await
}

/// Replaces the map by the one that follows from it, if any does.
async fn change(
    engine: &dyn Coordination,
    following: impl Fn(&NodeMap) -> Result<Option<NodeMap>, PlanError>,
) -> Result<(), CommandError> {
    for _ in 0..TRIES_MAX {
        let (map, record) = read(engine).await?;
        let Some(next) = following(&map)? else { return Ok(()) };
        let expect = Expect::still(Some(&record));
        match engine.write(MAP_KEY, &next.to_record(), expect, None).await {
            Ok(WriteOutcome::Done { .. }) => return Ok(()),
            Ok(WriteOutcome::Differs { .. }) | Err(CoordinationError::Unknown(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(CoordinationError::Busy.into())
}

/// The processes that keep a lease, each with its incarnation, and the last end of those that have
/// ended.
#[allow(clippy::type_complexity, reason = "two maps by the numbers of processes")]
pub async fn presence(
    engine: &dyn Coordination,
) -> Result<(BTreeMap<ProcessId, u64>, BTreeMap<ProcessId, GoneRecord>), CommandError> {
    let listing = engine.list(PREFIX).await?;
    let (mut members, mut gone) = (BTreeMap::new(), BTreeMap::new());
    for (key, record) in &listing.records {
        if key.starts_with(MEMBERS_PREFIX) {
            let member = MemberRecord::from_record(&record.value)?;
            members.insert(member.id, member.incarnation);
        } else if let Some(number) = key.strip_prefix(GONE_PREFIX)
            && let Ok(number) = number.parse()
        {
            gone.insert(ProcessId(number), GoneRecord::from_record(&record.value)?);
        }
    }
    Ok((members, gone))
}
