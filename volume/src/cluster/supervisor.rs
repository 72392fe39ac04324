//! The keeper of a process and its coordination engine live at an application node; the process, an
//! ordinary thread, talks to them by queues.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::pin::pin;
use std::rc::Rc;
use std::sync::mpsc as std_mpsc;
use std::time::Duration;

use blockio::VolumeMap;
use cluster::coordination::{Coordination, CoordinationError, Etcd, Expect, Listing, WriteOutcome};
use cluster::membership::{
    CommandError, Duties, Keeper, KeeperEvent, NodeMap, ProcessId, leave, node_map,
};
use futures::StreamExt as _;
use futures::channel::{mpsc, oneshot};
use futures::future::select;
use runtime::wire::{from_bytes, to_bytes};
use runtime::{Context, Epoch, NodeId};

use super::absence::AbsentHosts;
use super::peers::{LocalPeer, PeerWatches};
use super::records::{SECURITY_PREFIX, removed};
use super::{Engine, handed};
use crate::{NodeHandover, VolumeError};
use fileio::protocol::Error;

/// Where each process says which epoch all its nodes know.
pub(super) const KNOWN_PREFIX: &str = "known/";
/// Where each process says whether it is about to end.
pub(super) const ENDING_PREFIX: &str = "ending/";
/// It is not.
const STAYS: u8 = 0;
/// It is, and its nodes write to the disks of all.
const ENDING: u8 = 1;
/// It is, and needs no disk any more.
const SETTLED: u8 = 2;
/// A stopping process waits this long for its nodes to flush, and this long for those of others.
pub(super) const FLUSH_TIME_MAX: Duration = Duration::from_secs(10);
/// Time to answer requests from before all processes knew that this one has no nodes any more.
const LAST_ANSWERS_TIME: Duration = Duration::from_millis(100);
/// Processes that are stopped within this time of each other stop together, and none leaves first.
const TOGETHER: Duration = Duration::from_millis(300);
/// How often a process that waits for the others to know an epoch looks.
const LOOK_PAUSE: Duration = Duration::from_millis(20);
/// The pause after a call of the engine that failed.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// What the keeper tells the process.
#[derive(Debug)]
pub(super) enum SupervisorEvent {
    /// A node begins here.
    Serve(NodeId),
    /// A node goes elsewhere.
    Stop(NodeId),
    /// The node map has changed.
    Map(NodeMap),
    /// Others have taken over.
    Fenced,
    /// All living processes know this epoch.
    AllKnow(Epoch),
    /// A node serves here now, or cannot.
    NodeStarted(NodeId, Result<(), VolumeError>),
    /// A node that began by this name has handed over, and may be let go.
    NodeHandedOver(NodeId, u64, Box<NodeHandover>),
    /// The process is about to end: its nodes go to others first, if some stay.
    Leaving(bool),
    /// All other processes end too.
    AllStopping,
    /// All file-system nodes are served, wherever they are.
    AreServed,
    /// There was time enough to leave.
    DrainTimeout,
    /// The volume answers.
    Ready,
    /// The disks of the process are part of the volume, or can never be.
    Joined(Result<(), Error>),
    /// The process shall end.
    End,
    /// What its nodes have promised is durable, or cannot be made so now.
    Flushed(Result<(), Error>),
    /// No process that ends needs the disks of this one any more.
    MayEnd,
    /// Its lease is given back.
    Ended,
}

/// What the process tells its keeper.
pub(super) enum SupervisorCommand {
    /// This process knows the epoch of the map, and all nodes of it do; tell when all others do.
    Knows(NodeMap),
    /// A node was stopped as told.
    Stopped(NodeId),
    /// A node begins here, by this name: what the one before handed over is wanted.
    Take(NodeId, u64, oneshot::Sender<Option<NodeHandover>>),
    /// A node that began by this name was stopped as told, and has handed this over.
    NodeHandover(NodeId, u64, Box<NodeHandover>),
    /// A record of the engine is wanted.
    Get(String, oneshot::Sender<Option<Vec<u8>>>),
    /// A record shall be there.
    Put(String, Vec<u8>, oneshot::Sender<()>),
    /// A record shall be there no more.
    Remove(String),
    /// The process is about to end.
    Ending,
    /// It has settled them; tell when no other process that ends still needs its disks.
    HasFlushed(NodeMap),
    /// The process ends in order.
    End,
}

struct EventSink(std_mpsc::Sender<SupervisorEvent>);

impl Duties for EventSink {
    fn tell(&self, event: KeeperEvent) {
        let event = match event {
            KeeperEvent::Serve { node, .. } => SupervisorEvent::Serve(node),
            KeeperEvent::Stop { node } => SupervisorEvent::Stop(node),
            KeeperEvent::Map(map) => SupervisorEvent::Map(NodeMap::clone(&map)),
            KeeperEvent::Fenced => SupervisorEvent::Fenced,
        };
        // A process that ends hears nothing any more.
        let _ = self.0.send(event);
    }
}

/// Keeps process `id` until the process says that it ends, or is gone.
pub(super) async fn supervise(
    context: Context,
    (engine, lease): (Engine, Duration),
    volume: VolumeMap,
    address: String,
    me: LocalPeer,
    event: std_mpsc::Sender<SupervisorEvent>,
    mut commands: mpsc::UnboundedReceiver<SupervisorCommand>,
) -> Result<(), CoordinationError> {
    let engine: Rc<dyn Coordination> = Rc::new(Etcd::new(&engine)?);
    let duties = Rc::new(EventSink(event.clone()));
    let (id, security) = (me.id, me.guard.describe());
    let keeper = Keeper::start(&context, engine.clone(), (id, &[address]), lease, duties);
    let mut watches = PeerWatches::new(&context, &keeper, me);
    say_ending(&context, &*engine, id, STAYS).await;
    let security_key = format!("{SECURITY_PREFIX}{}", id.0);
    again(&context, async || engine.put(&security_key, security.as_bytes()).await).await;
    // As an earlier life may have, when it ended.
    stay(&context, &*engine, id).await;
    let latest = Rc::new(Cell::new(Epoch(0)));
    let absent = Rc::new(AbsentHosts::new(context.clone(), engine.clone(), volume));
    let watching = absent.clone();
    context.task(async move { watching.watch().await });
    while let Some(command) = commands.next().await {
        let (context, engine, event) = (context.clone(), engine.clone(), event.clone());
        match command {
            SupervisorCommand::Stopped(node) => keeper.stopped(node),
            SupervisorCommand::Ending => {
                absent.end();
                context.clone().task(async move {
                    say_ending(&context, &*engine, id, ENDING).await;
                    context.sleep(TOGETHER).await;
                    let leaves = others_stay(&context, &*engine, id).await
                        && has_begun_to_leave(&*engine, id).await;
                    let _ = event.send(SupervisorEvent::Leaving(leaves));
                    while leaves && others_stay(&context, &*engine, id).await {
                        context.sleep(RETRY_PAUSE).await;
                    }
                    let _ = event.send(SupervisorEvent::AllStopping);
                });
            }
            SupervisorCommand::Take(node, by, answer) => context.clone().task(async move {
                let mut found = None;
                again(&context, async || handed::take(&*engine, node, by, &mut found).await).await;
                let _ = answer.send(found);
            }),
            SupervisorCommand::NodeHandover(node, by, state) => {
                let keeper = keeper.clone();
                context.clone().task(async move {
                    again(&context, async || handed::give(&*engine, node, by, &state).await).await;
                    keeper.stopped(node);
                });
            }
            SupervisorCommand::HasFlushed(map) => context.clone().task(async move {
                say_ending(&context, &*engine, id, SETTLED).await;
                let others = none_settles(&context, &*engine, &map);
                select(pin!(others), context.sleep(FLUSH_TIME_MAX)).await;
                context.sleep(LAST_ANSWERS_TIME).await;
                let _ = event.send(SupervisorEvent::MayEnd);
            }),
            SupervisorCommand::End => {
                let (keeper, event) = (keeper.clone(), event.clone());
                context.task(async move {
                    keeper.end().await;
                    let _ = event.send(SupervisorEvent::Ended);
                });
            }
            SupervisorCommand::Knows(map) => {
                latest.set(latest.get().max(map.epoch));
                watches.follow(&map);
                let (latest, absent, left) = (latest.clone(), absent.clone(), absent.note(&map));
                context.clone().task(async move {
                    again(&context, async || absent.do_without(&left).await).await;
                    say_known(&context, &*engine, id, map.epoch).await;
                    if all_know(&context, &*engine, &map, &latest).await {
                        let _ = event.send(SupervisorEvent::AllKnow(map.epoch));
                    }
                });
            }
            SupervisorCommand::Get(key, answer) => context.clone().task(async move {
                let record = again(&context, async || engine.get(&key).await).await;
                let _ = answer.send(record.map(|record| record.value));
            }),
            SupervisorCommand::Remove(key) => context.clone().task(async move {
                again(&context, async || engine.remove(&key, Expect::Any {}).await).await;
            }),
            SupervisorCommand::Put(key, value, done) => context.clone().task(async move {
                again(&context, async || engine.put(&key, &value).await).await;
                let _ = done.send(());
            }),
        }
    }
    Ok(())
}

/// Repeats a call until the engine answers.
async fn again<T, E: std::fmt::Display>(
    context: &Context,
    mut call: impl AsyncFnMut() -> Result<T, E>,
) -> T {
    loop {
        match call().await {
            Ok(done) => return done,
            Err(error) => tracing::warn!(%error, "the coordination engine is waited for"),
        }
        context.sleep(RETRY_PAUSE).await;
    }
}

fn known_key(id: ProcessId) -> String {
    format!("{KNOWN_PREFIX}{}", id.0)
}

/// An older word never replaces a newer one.
async fn say_known(context: &Context, engine: &dyn Coordination, id: ProcessId, epoch: Epoch) {
    let key = known_key(id);
    again(context, async || {
        let seen = engine.get(&key).await?;
        let last: Option<Epoch> = seen.as_ref().and_then(|seen| from_bytes(&seen.value).ok());
        if last.is_none_or(|last| last < epoch) {
            let still = Expect::still(seen.as_ref());
            let written = engine.write(&key, &to_bytes(&epoch), still, None).await?;
            if let WriteOutcome::Differs { .. } = written {
                return Err(CoordinationError::Busy);
            }
        }
        Ok(())
    })
    .await;
}

fn ending_key(id: ProcessId) -> String {
    format!("{ENDING_PREFIX}{}", id.0)
}

async fn say_ending(context: &Context, engine: &dyn Coordination, id: ProcessId, word: u8) {
    let key = ending_key(id);
    again(context, async || engine.put(&key, &[word]).await).await;
}

/// What a process has said last, if it has.
fn said_of_end(listing: &Listing, id: ProcessId) -> Option<&[u8]> {
    let key = ending_key(id);
    let commands = listing.records.iter().find(|(at, _)| *at == key);
    commands.map(|(_, record)| record.value.as_slice())
}

/// Is there another process than `id` that lives and does not end?
async fn others_stay(context: &Context, engine: &dyn Coordination, id: ProcessId) -> bool {
    let listing = again(context, async || engine.list(ENDING_PREFIX).await).await;
    let ends = |other| said_of_end(&listing, other).is_some_and(|word| word != [STAYS]);
    let Ok(map) = node_map(engine).await else { return false };
    let mut others = map.processes.iter().filter(|process| process.id != id);
    others.any(|process| process.is_living() && !ends(process.id))
}

/// Has the nodes of a process go to others.
async fn has_begun_to_leave(engine: &dyn Coordination, id: ProcessId) -> bool {
    let begun = leave(engine, id, true).await;
    if let Err(error) = &begun {
        tracing::warn!(%error, "the nodes of this process stay until it is gone");
    }
    begun.is_ok()
}

/// The process takes nodes again, unless it was removed just now.
async fn stay(context: &Context, engine: &dyn Coordination, id: ProcessId) {
    again(context, async || {
        if removed(engine).await?.contains(&id) {
            return Ok(());
        }
        match leave(engine, id, false).await {
            // Who is new in the map has never left.
            Err(CommandError::Plan(_)) => Ok(()),
            stayed => stayed,
        }
    })
    .await;
}

/// Waits until no process that lives by `map` ends and has not settled yet.
async fn none_settles(context: &Context, engine: &dyn Coordination, map: &NodeMap) {
    loop {
        let listing = again(context, async || engine.list(ENDING_PREFIX).await).await;
        let settles = |id| said_of_end(&listing, id).is_some_and(|word| word == [ENDING]);
        if !map.processes.iter().any(|process| process.is_living() && settles(process.id)) {
            return;
        }
        context.sleep(LOOK_PAUSE).await;
    }
}

/// Waits until all processes that live by `map` have said that they know it. False if there is a
/// later map meanwhile: perhaps one of them lives no longer.
async fn all_know(
    context: &Context,
    engine: &dyn Coordination,
    map: &NodeMap,
    latest: &Cell<Epoch>,
) -> bool {
    while latest.get() == map.epoch {
        let listing = again(context, async || engine.list(KNOWN_PREFIX).await).await;
        let known: BTreeMap<String, Epoch> = listing
            .records
            .into_iter()
            .filter_map(|(key, record)| Some((key, from_bytes(&record.value).ok()?)))
            .collect();
        let mut living = map.processes.iter().filter(|process| process.is_living());
        if living.all(|process| known.get(&known_key(process.id)).is_some_and(|e| *e >= map.epoch))
        {
            return true;
        }
        context.sleep(LOOK_PAUSE).await;
    }
    false
}
