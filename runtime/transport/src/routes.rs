//! Which process hosts which node, in one epoch.

use std::sync::Arc;

use runtime::Table;
use runtime::delivery::DepositUnit;
use runtime::ids::{Epoch, NodeId, VolumeId};

use crate::frame::{ClientMap, ClientProcess, NO_PROCESS};
use crate::guard::Guard;

/// One life of one process of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessAddress {
    /// Its number in the volume.
    pub number: u32,
    /// Drawn when it started: a process that comes back is another.
    pub incarnation: u64,
    /// `host:port` where it answers.
    pub address: String,
}

/// How the nodes of other processes are reached, in one epoch.
#[derive(Clone, Debug, Default)]
pub struct Routes {
    volume: VolumeId,
    epoch: Epoch,
    me: Option<ProcessAddress>,
    guard: Arc<Guard>,
    /// Those that live.
    processes: Arc<[Arc<ProcessAddress>]>,
    hosts: Table<NodeId, Arc<ProcessAddress>>,
}

impl Routes {
    /// Of the `processes` that live, each hosts some nodes or none. Nodes without a process are
    /// unreachable; to the others the connections are as `guard` says.
    pub fn new(
        volume: VolumeId,
        epoch: Epoch,
        me: ProcessAddress,
        guard: Arc<Guard>,
        processes: Arc<[Arc<ProcessAddress>]>,
        hosts: impl IntoIterator<Item = (NodeId, Arc<ProcessAddress>)>,
    ) -> Self {
        let hosts = hosts.into_iter().collect();
        Self { volume, epoch, me: Some(me), guard, processes, hosts }
    }

    /// The epoch in which it is so.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The volume.
    pub(crate) fn volume(&self) -> VolumeId {
        self.volume
    }

    /// How connections are protected.
    pub(crate) fn guard(&self) -> &Arc<Guard> {
        &self.guard
    }

    /// The process whose routes these are; `None` if there is no other.
    pub(crate) fn me(&self) -> Option<&ProcessAddress> {
        self.me.as_ref()
    }

    /// The process, other than this one, that hosts `node`.
    pub(crate) fn host(&self, node: NodeId) -> Option<&Arc<ProcessAddress>> {
        self.hosts.get(&node).filter(|host| Some(&***host) != self.me.as_ref())
    }

    /// The number of the process that hosts `node`, this one or another.
    pub(crate) fn number_of(&self, node: NodeId) -> Option<u32> {
        self.hosts.get(&node).map(|host| host.number)
    }

    /// Which life of that process it is.
    pub(crate) fn incarnation_of(&self, node: NodeId) -> Option<u64> {
        self.hosts.get(&node).map(|host| host.incarnation)
    }

    /// The same, for clients.
    pub(crate) fn client_map(&self, fs_nodes: u32, disk_nodes: u32) -> ClientMap {
        let processes = self.processes.iter().map(|process| ClientProcess {
            number: process.number,
            incarnation: process.incarnation,
            address: process.address.clone(),
        });
        let host = |index| self.number_of(NodeId::fs(index)).unwrap_or(NO_PROCESS);
        ClientMap {
            epoch: self.epoch.0,
            fs_nodes,
            disk_nodes,
            processes: processes.collect(),
            hosts: (0..fs_nodes).map(host).collect(),
            unit: DepositUnit::default(),
        }
    }

    /// Does this life of a process go on? One that has given its last node away still answers those
    /// who asked it just before.
    pub(crate) fn has(&self, process: &ProcessAddress) -> bool {
        self.processes.iter().any(|living| **living == *process)
    }
}
