//! One process of a cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc as std_mpsc;
use std::time::Duration;

use cluster::membership::{Assignment, NodeMap, ProcessId};
use futures::channel::{mpsc, oneshot};
use futures::executor::block_on;
use futures::future::{Either, join_all, select};
use runtime::delivery::DepositUnit;
use runtime::embedded::{Config, DiskAccess, Embedded};
use runtime::net::Address;
use runtime::{Context, Epoch, NodeId, NodeKind};
use transport::{
    ClientBudget, ClientMap, ClientPort, Guard, LocalProcess, ProcessAddress, Router, Routes,
};

use super::bootstrap::{ClusterStatus, status};
use super::joining::{self, MemberDisks, OwnDisks};
use super::node_start::NodeStart;
use super::peers::LocalPeer;
use super::records::joining_key;
use super::recover::raise;
use super::supervisor::{FLUSH_TIME_MAX, SupervisorCommand, SupervisorEvent, supervise};
use super::{ClusterError, Engine};
use crate::directory::VolumeDirectory;
use crate::new_disks::{NewDisk, OverwriteConsent};
use crate::node::ProcessMemory;
use crate::superblocks::{FoundDisk, formatted_disks};
use crate::volume::{TRANSFER_BYTES, cores};
use crate::{RunOptions, RunningVolume, VolumeError};
use fileio::deposit_unit;
use fileio::protocol::{AddedDisk, Error, FileIo, Flush, GetAttributes, ROOT, Renew};

/// How often a process that has just started looks whether the volume answers.
const READY_PAUSE: Duration = Duration::from_millis(50);
/// A stopping process waits this long for its nodes to move to others.
const LEAVE_MAX: Duration = Duration::from_secs(20);
/// The pause before a node that moved is asked again whether it is served.
const SERVED_PAUSE: Duration = Duration::from_millis(50);

/// How to run a process of a cluster.
#[derive(Clone, Debug)]
pub struct MemberOptions {
    /// Its number.
    pub number: u32,
    /// The name by which clients of other hosts ask for the volume.
    pub name: String,
    /// Where the other processes reach it: `host:port`.
    pub address: String,
    /// The coordination engine.
    pub engine: Engine,
    /// The length of its lease: it keeps its nodes when it cannot renew it for as long.
    pub lease: Duration,
    /// How connections to other processes are protected.
    pub guard: Arc<Guard>,
    /// Its disks.
    pub disks: MemberDisks,
    /// What its disks hold that may be overwritten when they are made, by the ids that a refusal
    /// tells.
    pub force: Vec<String>,
    /// As for a volume of one process; the cache is that of this process.
    pub run: RunOptions,
}

/// How far the file-system nodes of a process are that lets others have them before it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LeaveState {
    /// It does not, or no longer waits for that.
    Stays {},
    /// They are on their way.
    Moves {},
    /// The others have them, and may not know it yet.
    Moved {},
    /// And serve them: none needs a disk of this process to begin.
    Served {},
}

/// A process of a cluster.
pub struct ClusterMember {
    running: RunningVolume,
    id: ProcessId,
    me: Arc<LocalProcess>,
    router: Arc<Router>,
    event: std_mpsc::Receiver<SupervisorEvent>,
    /// For all who have something to tell.
    events: std_mpsc::Sender<SupervisorEvent>,
    command: mpsc::UnboundedSender<SupervisorCommand>,
    engine: Engine,
    /// Bytes of cached stripes of each node.
    cache_bytes: usize,
    /// Of all nodes here.
    memory: ProcessMemory,
    /// Its disks, as the host has them.
    new_disks: Vec<NewDisk>,
    /// What may be overwritten when they are made.
    consent: OverwriteConsent,
    /// Disks that are to become part of the volume.
    joining: Vec<AddedDisk>,
    map: Option<NodeMap>,
    /// All living processes know the map of this epoch.
    known: Epoch,
    /// To be served when all processes know the present map.
    pending: BTreeSet<NodeId>,
    /// Starts the hand-over of each node that was begun here.
    handing_over: BTreeMap<NodeId, oneshot::Sender<()>>,
    leave_state: LeaveState,
    /// What came of settling, once the process ends.
    flushed: Option<Result<(), Error>>,
    /// It has said that it has settled.
    ends: bool,
}

impl std::fmt::Debug for ClusterMember {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Member").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Ends a [`ClusterMember`] from another thread.
#[derive(Clone, Debug)]
pub struct MemberStopper(std_mpsc::Sender<SupervisorEvent>);

impl MemberStopper {
    /// Asks it to end in order.
    pub fn end(&self) {
        // One that is gone has ended.
        let _ = self.0.send(SupervisorEvent::End);
    }
}

impl Drop for ClusterMember {
    fn drop(&mut self) {
        // What libfabric leaves behind when its process just ends is there for others to see.
        self.me.guard.retire(|_, _| true);
    }
}

impl ClusterMember {
    /// Starts a process in `directory`, which is made if it is not there. It serves nothing before
    /// [`run`](Self::run).
    pub fn start(directory: &Path, options: &MemberOptions) -> Result<Self, VolumeError> {
        let MemberOptions {
            number,
            ref name,
            ref address,
            ref engine,
            lease,
            ref guard,
            disks: ref own,
            ref force,
            ref run,
        } = *options;
        let id = ProcessId(number);
        let disks = formatted_disks(directory);
        let found = match (status(engine), disks.first()) {
            (
                Err(VolumeError::Cluster(ClusterError::NoCluster)),
                Some(FoundDisk { path, superblock }),
            ) => {
                return Err(ClusterError::Lost(path.clone(), superblock.volume()).into());
            }
            (found, _) => found?,
        };
        if found.removed.contains(&id) {
            return Err(ClusterError::Removed(id).into());
        }
        joining::check_record(&disks, &found.volume)?;
        let found = joining::claim(engine, found, id, own)?;
        // Its own directory, with its disks.
        let path = directory;
        let mut directory = VolumeDirectory::of_cluster(path)?;
        let OwnDisks { known: new_disks, joining, joined } =
            joining::place(&mut directory, path, &found, id, (own, force))?;
        let ClusterStatus { volume: volume_map, map, .. } = found;
        let geometry = volume_map.geometry();
        let ours = disks.iter().filter(|disk| disk.superblock.volume() == geometry.volume);
        let newest = ours.map(|disk| disk.superblock.epoch).max().unwrap_or_default();
        if newest > map.epoch {
            raise(engine, volume_map.clone(), newest, lease)?;
        }
        let threads = if run.threads == 0 { cores() } else { run.threads };
        let config = Config {
            threads,
            fs_nodes: geometry.fs_nodes,
            disk_nodes: volume_map.disk_nodes().max(map.disks.len() as u32),
            epoch: Epoch(0),
            pool_bytes: run.cache_bytes + TRANSFER_BYTES,
            disk_access: DiskAccess::from_environment()?,
        };
        let router = Arc::<Router>::default();
        let machine = Embedded::start_part(config, number, Some(router.clone()))?;
        run.find_memory(&machine, &geometry);
        let (volume, incarnation) = (geometry.volume, AtomicU64::new(0));
        let me = Arc::new(LocalProcess { volume, number, incarnation, guard: guard.clone() });
        let client_budget = Arc::<ClientBudget>::default();
        let unit = deposit_unit(&volume_map);
        let clients = (name.clone(), router.clone(), client_budget.clone());
        listen(&machine, address, &me, (clients, unit))?;
        let (events, event) = std_mpsc::channel();
        let (command, commands) = mpsc::unbounded();
        if let Some(disk_node) = joined {
            let key = joining_key(disk_node);
            let _ = command.unbounded_send(SupervisorCommand::Remove(key));
        }
        let own_engine = engine.clone();
        let (engine, address, teller) = (engine.clone(), address.clone(), events.clone());
        let peer = LocalPeer { volume, id, guard: guard.clone() };
        let disks = volume_map.clone();
        let sitting = machine.on_node(machine.application(), move |context| async move {
            let work = supervise(context, (engine, lease), disks, address, peer, teller, commands);
            if let Err(error) = work.await {
                tracing::error!(%error, "the coordination engine cannot be used");
            }
        });
        // It goes on by itself.
        drop(sitting);
        let living = map.processes.len().max(1);
        // As if the nodes were spread evenly; a process that takes over has more.
        let cache_bytes = run.cache_bytes * living;
        let memory = ProcessMemory::of_machine(&machine, &geometry, run);
        let running =
            RunningVolume::of_cluster(machine, volume_map, (number, client_budget), directory);
        Ok(Self {
            running,
            id,
            me,
            router,
            event,
            events,
            command,
            engine: own_engine,
            cache_bytes,
            memory,
            new_disks,
            consent: OverwriteConsent::of_ids(force.clone()),
            joining,
            handing_over: BTreeMap::new(),
            map: None,
            known: Epoch(0),
            pending: BTreeSet::new(),
            leave_state: LeaveState::Stays {},
            flushed: None,
            ends: false,
        })
    }

    /// To end it from elsewhere.
    pub fn ender(&self) -> MemberStopper {
        MemberStopper(self.events.clone())
    }

    /// The volume as this process has it.
    pub fn running(&self) -> &RunningVolume {
        &self.running
    }

    /// Does what the node map says until it is asked to end. `ready` is called once, when
    /// the volume answers.
    pub fn run<E: From<VolumeError>>(
        &mut self,
        ready: impl FnOnce(&RunningVolume) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut ready = Some(ready);
        self.report_when_ready();
        loop {
            let event =
                self.event.recv().map_err(|_| VolumeError::Node(runtime::Undelivered::Lost))?;
            match event {
                SupervisorEvent::Map(map) => self.follow(map),
                SupervisorEvent::Serve(node) => {
                    self.pending.insert(node);
                    self.start_pending_nodes();
                }
                SupervisorEvent::AllKnow(epoch) => {
                    self.known = epoch;
                    self.start_pending_nodes();
                    self.end_if_unused();
                }
                SupervisorEvent::Stop(node) => self.stop_serving(node),
                SupervisorEvent::NodeStarted(node, Ok(())) => {
                    tracing::info!(%node, "is served here");
                }
                SupervisorEvent::NodeStarted(_, Err(error)) => return Err(error.into()),
                SupervisorEvent::NodeHandedOver(node, by, handed) => {
                    self.running.machine().stop_node(node);
                    self.command(SupervisorCommand::NodeHandover(node, by, handed));
                }
                SupervisorEvent::Leaving(leaving) => {
                    if leaving {
                        self.leave_state = LeaveState::Moves {};
                        self.start_drain_timer();
                        self.look_whether_left();
                    } else {
                        self.settle_all();
                    }
                }
                event @ (SupervisorEvent::AllStopping | SupervisorEvent::DrainTimeout) => {
                    // Nor does it wait any longer for those who do not hear of it.
                    let leave_state =
                        std::mem::replace(&mut self.leave_state, LeaveState::Stays {});
                    if leave_state == (LeaveState::Moves {}) {
                        tracing::info!(why = ?event, "not all nodes have gone to others");
                        self.settle_all();
                    }
                    self.end_if_unused();
                }
                SupervisorEvent::AreServed => {
                    if self.leave_state == (LeaveState::Moved {}) {
                        self.leave_state = LeaveState::Served {};
                    }
                    self.end_if_unused();
                }
                SupervisorEvent::Ready => {
                    if let Some(ready) = ready.take() {
                        ready(&self.running)?;
                    }
                    self.join();
                }
                SupervisorEvent::Joined(joined) => {
                    let not_joined =
                        |error| VolumeError::from(ClusterError::NotJoined(self.id, error));
                    joined.map_err(not_joined)?;
                    tracing::info!("the disks of this process are part of the volume");
                }
                SupervisorEvent::Fenced => self.drop_nodes(),
                SupervisorEvent::End => {
                    self.command(SupervisorCommand::Ending);
                }
                SupervisorEvent::Flushed(flushed) => {
                    // The others go on without this process, whatever came of it.
                    self.flushed = Some(flushed);
                    self.end_if_unused();
                }
                SupervisorEvent::MayEnd => self.command(SupervisorCommand::End),
                SupervisorEvent::Ended => {
                    let flushed = self.flushed.take().unwrap_or(Ok(()));
                    flushed.map_err(VolumeError::Flush)?;
                    return Ok(());
                }
            }
        }
    }

    fn command(&self, command: SupervisorCommand) {
        // The seat is gone only when the engine cannot be used at all, which it has said.
        let _ = self.command.unbounded_send(command);
    }

    /// The nodes live by this map from now on.
    fn follow(&mut self, map: NodeMap) {
        let Some(mine) = map.process(self.id) else { return };
        self.me.incarnation.store(mine.incarnation, Relaxed);
        let life = |process: &cluster::membership::Process| ProcessAddress {
            number: process.id.0,
            incarnation: process.incarnation,
            address: process.addresses.first().cloned().unwrap_or_default(),
        };
        let living = map.processes.iter().filter(|process| process.is_living());
        let living: Arc<[Arc<ProcessAddress>]> =
            living.map(|process| Arc::new(life(process))).collect();
        // A node that settles answers until it has: two that settle may need each other for it.
        let hosts = map.assignments().filter_map(|(node, assignment)| {
            let host = living.iter().find(|process| process.number == assignment.owner().0)?;
            Some((node, host.clone()))
        });
        let (volume, guard) = (self.running.geometry().volume, self.me.guard.clone());
        let routes = Routes::new(volume, map.epoch, life(mine), guard, living.clone(), hosts);
        self.router.set(routes);
        self.running.machine().know_disk_nodes(map.disks.len() as u32);
        self.running.machine().begin_epoch(map.epoch);
        // Who lived by the last map, and not by this one, may only stand still.
        let lives = |map: &NodeMap, number: u32, incarnation: u64| {
            map.process(ProcessId(number))
                .is_some_and(|it| it.is_living() && it.incarnation == incarnation)
        };
        if let Some(last) = &self.map {
            let is_over = |number, life| lives(last, number, life) && !lives(&map, number, life);
            self.me.guard.retire(is_over);
        }
        tracing::info!(epoch = map.epoch.0, "a node map");
        self.command(SupervisorCommand::Knows(map.clone()));
        self.map = Some(map);
        self.look_whether_left();
    }

    /// A process that leaves ends when the others have all its file-system nodes.
    fn look_whether_left(&mut self) {
        let is_mine = |(node, assignment): (NodeId, Assignment)| {
            matches!(node.kind(), NodeKind::Fs(_)) && assignment.owner() == self.id
        };
        let has_none = self.map.as_ref().is_some_and(|map| !map.assignments().any(is_mine));
        if has_none && self.leave_state == (LeaveState::Moves {}) {
            self.leave_state = LeaveState::Moved {};
            self.report_when_served();
            self.settle_all();
        }
    }

    /// A process that has settled goes on to its end, one whose nodes have gone to others only when
    /// all know that: another could have sent it a request, whose reply would be lost. And when the
    /// others serve them: a node that begins may read from the disks that go away with the process.
    fn end_if_unused(&mut self) {
        if self.flushed.is_none() || self.ends {
            return;
        }
        let Some(map) = &self.map else { return self.command(SupervisorCommand::End) };
        let waits = match self.leave_state {
            LeaveState::Stays {} => false,
            LeaveState::Moves {} | LeaveState::Moved {} => true,
            LeaveState::Served {} => self.known != map.epoch,
        };
        if waits {
            return;
        }
        self.ends = true;
        if self.leave_state == (LeaveState::Served {}) {
            tracing::info!(
                epoch = map.epoch.0,
                "others serve its nodes, and all have heard of that"
            );
        }
        self.command(SupervisorCommand::HasFlushed(map.clone()));
    }

    /// Tells when all file-system nodes are served, wherever they are. No longer than
    /// [`LEAVE_MAX`]: then the process ends all the same.
    fn report_when_served(&self) {
        let machine = self.running.machine();
        let events = self.events.clone();
        let asking = machine.on_node(machine.application(), move |context| async move {
            // Any request does that a file server answers to all, and to which nothing happens.
            let unknown = Renew { client: 0, lease: 0 };
            for node in (0..context.fs_nodes()).map(NodeId::fs) {
                while context.spawn(node, unknown.clone()).await.is_err() {
                    context.sleep(SERVED_PAUSE).await;
                }
            }
            let _ = events.send(SupervisorEvent::AreServed);
        });
        drop(asking);
    }

    fn start_drain_timer(&self) {
        let machine = self.running.machine();
        let events = self.events.clone();
        let waiting = machine.on_node(machine.application(), move |context| async move {
            context.sleep(LEAVE_MAX).await;
            let _ = events.send(SupervisorEvent::DrainTimeout);
        });
        drop(waiting);
    }

    /// Begins to serve the pending nodes, once all know the map: then nothing of their earlier
    /// lives is answered anywhere.
    fn start_pending_nodes(&mut self) {
        if self.flushed.is_some() || self.map.as_ref().is_none_or(|map| map.epoch != self.known) {
            return;
        }
        let nodes = std::mem::take(&mut self.pending);
        let machine = self.running.machine();
        for node in &nodes {
            machine.start_node(*node);
        }
        for node in nodes {
            tracing::info!(%node, "begins here");
            let start = NodeStart {
                map: self.running.map().clone(),
                cache_bytes: self.cache_bytes,
                memory: self.memory.clone(),
                path_of: self.running.path_of_disks(),
                engine: self.engine.clone(),
                new_disks: self.new_disks.clone(),
                consent: self.consent.clone(),
                command: self.command.clone(),
            };
            let events = self.events.clone();
            let (sender, hand_over) = oneshot::channel();
            self.handing_over.insert(node, sender);
            // It reports by events.
            drop(machine.on_node(node, move |context| start.run(context, events, hand_over)));
        }
    }

    /// Has a node hand over, and lets it go.
    fn stop_serving(&mut self, node: NodeId) {
        // One that waits for all to know the map has done nothing yet.
        let is_pending = self.pending.remove(&node);
        let hand_over = self.handing_over.remove(&node);
        let is_disk_node = matches!(node.kind(), NodeKind::Disk(_));
        if is_pending || (self.flushed.is_some() && !is_disk_node) {
            self.running.machine().stop_node(node);
            return self.command(SupervisorCommand::Stopped(node));
        }
        let is_started = hand_over.is_some_and(|hand_over| hand_over.send(()).is_ok());
        if !is_started {
            // Its start has ended with a panic: there is nothing to wait for.
            self.running.machine().stop_node(node);
            self.command(SupervisorCommand::Stopped(node));
        }
    }

    /// Others have taken over: what the file-system nodes of this process hold is lost, as after a
    /// crash. No other process has its disks, so its disk nodes end in order.
    fn drop_nodes(&mut self) {
        for node in std::mem::take(&mut self.pending) {
            self.command(SupervisorCommand::Stopped(node));
        }
        for node in self.running.machine().nodes() {
            match node.kind() {
                NodeKind::Disk(_) => self.stop_serving(node),
                NodeKind::Fs(_) => {
                    self.handing_over.remove(&node);
                    self.running.machine().stop_node(node);
                    self.command(SupervisorCommand::Stopped(node));
                }
                NodeKind::Application(_) => {}
            }
        }
    }

    fn report_when_ready(&self) {
        let machine = self.running.machine();
        let events = self.events.clone();
        let looking = machine.on_node(machine.application(), move |context| async move {
            let root = GetAttributes { file: ROOT };
            while fileio::client::ask(&context, root.clone()).await.is_err() {
                context.sleep(READY_PAUSE).await;
            }
            let _ = events.send(SupervisorEvent::Ready);
        });
        drop(looking);
    }

    /// Makes the disks of a process that joins part of the volume.
    fn join(&mut self) {
        let disks = std::mem::take(&mut self.joining);
        let Some(disk_node) = disks.first().map(|disk| disk.disk_node) else { return };
        let machine = self.running.machine();
        let (events, command) = (self.events.clone(), self.command.clone());
        let joining = machine.on_node(machine.application(), move |context| async move {
            let joined = joining::join(&context, disks).await;
            if joined.is_ok() {
                let key = joining_key(disk_node);
                let _ = command.unbounded_send(SupervisorCommand::Remove(key));
            }
            let _ = events.send(SupervisorEvent::Joined(joined));
        });
        drop(joining);
    }

    /// Settles the nodes of this process. Where all processes end together some may wait for disks
    /// that are gone: then what is not durable was not acknowledged as such, and stays away as
    /// after a crash.
    fn settle_all(&self) {
        let machine = self.running.machine();
        let nodes = machine.nodes().into_iter();
        let nodes: Vec<NodeId> =
            nodes.filter(|node| matches!(node.kind(), NodeKind::Fs(_))).collect();
        let events = self.events.clone();
        let moving = machine.on_node(machine.application(), move |context| async move {
            let flushed = join_all(nodes.into_iter().map(|node| context.spawn(node, Flush {})));
            let flushed = match select(flushed, context.sleep(FLUSH_TIME_MAX)).await {
                Either::Left((flushed, _)) => flushed,
                Either::Right(_) => {
                    tracing::warn!("not all disks are there: what is not durable yet is given up");
                    Vec::new()
                }
            };
            let is_away = |error: &Error| matches!(error, Error::Undelivered { .. });
            let failed = flushed.into_iter().filter_map(Result::err).find(|e| !is_away(e));
            let _ = events.send(SupervisorEvent::Flushed(failed.map_or(Ok(()), Err)));
        });
        drop(moving);
    }
}

/// The name of a volume, the processes that answer its clients, and what these may take together.
type ClientAccess = (String, Arc<Router>, Arc<ClientBudget>);

/// Answers other processes, and clients of the volume.
fn listen(
    machine: &Embedded,
    address: &str,
    me: &Arc<LocalProcess>,
    (clients, unit): (ClientAccess, DepositUnit),
) -> Result<(), VolumeError> {
    let (address, me) = (Address::Tcp(address.to_owned()), me.clone());
    let listening = machine.on_node(machine.application(), move |context| async move {
        let port = client_port(&context, &me, clients, unit);
        let listener = context.listen(&address).await?;
        let serving = context.clone();
        context.task(async move {
            transport::serve_processes::<FileIo>(serving, listener, me, Some(port)).await;
        });
        Ok::<_, std::io::Error>(())
    });
    Ok(block_on(listening)??)
}

fn client_port(
    context: &Context,
    me: &LocalProcess,
    (name, router, budget): ClientAccess,
    unit: DepositUnit,
) -> ClientPort<FileIo> {
    let map = move |context: &Context| {
        let map = router.client_map(context.fs_nodes(), context.disk_nodes());
        ClientMap { unit, ..map }
    };
    ClientPort {
        volume: me.volume,
        name,
        process: me.number,
        map: Box::new(map),
        authentication: crate::token_keys::authentication(context),
        guard: me.guard.clone(),
        budget,
        count: Arc::default(),
        subtrees: Some(Box::new(crate::VolumeSubtrees::of_this_host())),
    }
}
