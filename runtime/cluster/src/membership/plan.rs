//! From one node map to the next. Pure functions: the same map and members give the same plan, so
//! that any process may make it.
//!
//! Disk nodes stay with their processes: disks live in hosts. One without disks in use can be
//! free. File-system nodes are spread over the living processes that do not leave, evenly within
//! one, by as few moves as that takes.

use std::collections::{BTreeMap, BTreeSet};

use super::map::{Assignment, MemberRecord, NodeMap, PROCESSES_MAX, Process, ProcessId};
use runtime::ids::{DISK_NODES_MAX, Epoch, FS_NODES_MAX, NodeId, NodeKind};

/// Nodes that settle at one time, at most: each is without service for a moment, and the disks are
/// busy.
pub const MOVES_CONCURRENCY_MAX: usize = 16;

/// A process of a new volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Founder {
    /// Its number.
    pub id: ProcessId,
    /// The disk nodes whose disks it has, by their indices.
    pub disks: Vec<u32>,
}

/// A map cannot be made, or not be changed so.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Too many of something, or none.
    #[error(
        "a cluster has 1 to {PROCESSES_MAX} processes, 1 to {FS_NODES_MAX} file-system nodes and 1 to \
         {DISK_NODES_MAX} disk nodes; this one would have {0}, {1} and {2}"
    )]
    Size(usize, usize, usize),
    /// Two processes have one number.
    #[error("{0} is named twice; give each process a number of its own")]
    Twice(ProcessId),
    /// A disk node has two processes, or cannot be.
    #[error(
        "disk node {0} must be given to one process, and its number be below {DISK_NODES_MAX}; \
         correct `disk-node` in the machine file"
    )]
    Disk(u32),
    /// A disk node has a process already.
    #[error(
        "disk node {0} is with {1} already; in the machine file give another one a `disk-node` of \
         its own, as in `disk-node = {2}`"
    )]
    Taken(u32, ProcessId, u32),
    /// There is no such process.
    #[error("there is no {0} in the node map; `mdfs cluster status` shows those that there are")]
    Unknown(ProcessId),
}

impl NodeMap {
    /// The first map of a volume, in which all processes are still away.
    pub fn first(fs_nodes: u32, founders: &[Founder]) -> Result<Self, PlanError> {
        let epoch = Epoch(1);
        let last = founders.iter().flat_map(|founder| &founder.disks).max();
        let disk_nodes = last.map_or(0, |last| *last as usize + 1);
        if let Some(last) = last.filter(|last| **last >= DISK_NODES_MAX) {
            return Err(PlanError::Disk(*last));
        }
        let sizes = [founders.len(), fs_nodes as usize, disk_nodes];
        let limits = [PROCESSES_MAX, FS_NODES_MAX as usize, DISK_NODES_MAX as usize];
        if sizes.iter().zip(limits).any(|(&size, limit)| size == 0 || size > limit) {
            return Err(PlanError::Size(sizes[0], sizes[1], sizes[2]));
        }
        let mut processes: Vec<Process> = founders.iter().map(|founder| away(founder.id)).collect();
        processes.sort_by_key(|process| process.id);
        if let Some(pair) = processes.windows(2).find(|pair| pair[0].id == pair[1].id) {
            return Err(PlanError::Twice(pair[0].id));
        }
        let mut disks = vec![None; disk_nodes];
        for founder in founders {
            for &disk in &founder.disks {
                let assignment =
                    disks.get_mut(disk as usize).filter(|assignment| assignment.is_none());
                let assignment = assignment.ok_or(PlanError::Disk(disk))?;
                *assignment = Some(Assignment::Serving { by: founder.id, since: epoch });
            }
        }
        // What is left over had disks that are retired.
        let free = Assignment::Serving { by: ProcessId::NONE, since: epoch };
        let disks = disks.into_iter().map(|assignment| assignment.unwrap_or(free)).collect();
        // Neighbours stay together.
        let by = |node: u32| processes[node as usize * processes.len() / fs_nodes as usize].id;
        let fs =
            (0..fs_nodes).map(|node| Assignment::Serving { by: by(node), since: epoch }).collect();
        Ok(Self { epoch, processes, fs, disks })
    }

    /// The map that follows when these are the living members; `None` if this one is right.
    ///
    /// Who is no longer there loses its file-system nodes to the others, who is there in another
    /// life begins its nodes anew, who is new is taken in, and some nodes begin to move where that
    /// makes the load even. Moves whose source or destination is gone come to their end.
    pub fn next(&self, members: &[MemberRecord]) -> Option<Self> {
        let mut planner = Planner::new(self);
        planner.look_at_members(members);
        planner.end_broken_moves();
        planner.take_over();
        planner.begin_moves();
        planner.forget_the_gone();
        planner.outcome()
    }

    /// The map that follows when `process`, in the life `incarnation`, has settled `nodes`: those
    /// that were to move do. `None` if none of them was.
    pub fn settled(&self, process: ProcessId, incarnation: u64, nodes: &[NodeId]) -> Option<Self> {
        let is_current = |known: &Process| known.incarnation == incarnation && known.is_living();
        self.process(process).filter(|known| is_current(known))?;
        let mut planner = Planner::new(self);
        for &node in nodes {
            if let NodeKind::Fs(index) = node.kind()
                && let Some(Assignment::Moving { from, to, .. }) = self.assignment(node)
                && from == process
            {
                planner.serve(index as usize, to);
            }
        }
        planner.outcome()
    }

    /// The same map in the epoch after `after`, in which all nodes begin anew: what disks and
    /// processes know of later epochs than this map has was lost with its successors.
    #[must_use]
    pub fn raised(&self, after: Epoch) -> Self {
        let since = Epoch(self.epoch.max(after).0 + 1);
        let begun = |assignment: &Assignment| Assignment::Serving { by: assignment.owner(), since };
        Self {
            epoch: since,
            processes: self.processes.clone(),
            fs: self.fs.iter().map(begun).collect(),
            disks: self.disks.iter().map(begun).collect(),
        }
    }

    /// The map in which `process`, which is `gone` as that incarnation and has kept what it serves,
    /// goes on as the incarnation `returned`. `None` if the map does not know it as `gone`: others
    /// may have taken over.
    pub fn returned(&self, process: ProcessId, gone: u64, returned: u64) -> Option<Self> {
        let mut planner = Planner::new(self);
        let known = planner.next.processes.iter_mut().find(|known| known.id == process);
        known.filter(|known| known.incarnation == gone && known.is_living())?.incarnation =
            returned;
        planner.outcome()
    }

    /// The map in which `process` shall give its file-system nodes away, or, if not `leaving`, take
    /// some again. `None` if that is so already. Once it has none and stops, and has no disk nodes,
    /// it is gone from the map.
    pub fn leave(&self, process: ProcessId, leaving: bool) -> Result<Option<Self>, PlanError> {
        let mut planner = Planner::new(self);
        let known = planner.next.processes.iter_mut().find(|known| known.id == process);
        known.ok_or(PlanError::Unknown(process))?.leaving = leaving;
        Ok(planner.outcome())
    }
}

impl NodeMap {
    /// The map in which `process` has disk node `disk`, which is free; `None` if it has it
    /// already. Its disks become part of the volume later.
    pub fn with_disk_node(&self, process: ProcessId, disk: u32) -> Result<Option<Self>, PlanError> {
        if disk >= DISK_NODES_MAX || process == ProcessId::NONE {
            return Err(PlanError::Disk(disk));
        }
        let mut planner = Planner::new(self);
        let since = planner.next.epoch;
        let next = &mut planner.next;
        let free = Assignment::Serving { by: ProcessId::NONE, since };
        let at = disk as usize;
        next.disks.resize(next.disks.len().max(at + 1), free);
        match next.disks[at] {
            it if it.owner() == process => return Ok(None),
            it if it.is_free() => {}
            it => return Err(PlanError::Taken(disk, it.owner(), self.disks.len() as u32)),
        }
        next.disks[at] = Assignment::Serving { by: process, since };
        if next.process(process).is_none() {
            if next.processes.len() >= PROCESSES_MAX {
                let (fs, disks) = (next.fs.len(), next.disks.len());
                return Err(PlanError::Size(next.processes.len() + 1, fs, disks));
            }
            next.processes.push(away(process));
            next.processes.sort_by_key(|process| process.id);
        }
        Ok(planner.outcome())
    }

    /// The same map, in which processes have disk nodes of `other` that are free here: the map is
    /// of before they joined. To be [`raised`](Self::raised).
    #[must_use]
    pub fn with_disk_nodes_of(&self, other: &Self) -> Self {
        let mut map = self.clone();
        for (at, assignment) in other.disks.iter().enumerate() {
            let by = assignment.owner();
            if map.disks.get(at).is_some_and(|known| !known.is_free()) {
                continue;
            }
            let free = Assignment::Serving { by: ProcessId::NONE, since: self.epoch };
            map.disks.resize(map.disks.len().max(at + 1), free);
            map.disks[at] = Assignment::Serving { by, since: self.epoch };
            if by != ProcessId::NONE && map.process(by).is_none() {
                map.processes.push(away(by));
                map.processes.sort_by_key(|process| process.id);
            }
        }
        map
    }

    /// The map in which the disk nodes of `process`, whose disks are retired, are free. `None` if
    /// it has none.
    #[must_use]
    pub fn without_disk_nodes(&self, process: ProcessId) -> Option<Self> {
        let mut planner = Planner::new(self);
        let free = Assignment::Serving { by: ProcessId::NONE, since: planner.next.epoch };
        let own = planner.next.disks.iter_mut().filter(|it| it.owner() == process);
        own.for_each(|assignment| *assignment = free);
        planner.outcome()
    }
}

fn away(id: ProcessId) -> Process {
    Process { id, incarnation: 0, leaving: false, addresses: Vec::new() }
}

/// A map that is being changed.
struct Planner<'a> {
    old: &'a NodeMap,
    next: NodeMap,
}

impl<'a> Planner<'a> {
    fn new(old: &'a NodeMap) -> Self {
        let next = NodeMap { epoch: Epoch(old.epoch.0 + 1), ..old.clone() };
        Self { old, next }
    }

    /// The new map, if anything but the epoch is new.
    fn outcome(self) -> Option<NodeMap> {
        let same = NodeMap { epoch: self.old.epoch, ..self.next.clone() } == *self.old;
        (!same).then_some(self.next)
    }

    fn is_living(&self, id: ProcessId) -> bool {
        self.next.process(id).is_some_and(Process::is_living)
    }

    fn serve(&mut self, node: usize, by: ProcessId) {
        self.next.fs[node] = Assignment::Serving { by, since: self.next.epoch };
    }

    /// Who is there, and in which life.
    fn look_at_members(&mut self, members: &[MemberRecord]) {
        let members: BTreeMap<ProcessId, &MemberRecord> =
            members.iter().map(|member| (member.id, member)).collect();
        for (&id, _) in members.iter().filter(|(id, _)| self.old.process(**id).is_none()) {
            if self.next.processes.len() < PROCESSES_MAX && id != ProcessId::NONE {
                self.next.processes.push(away(id));
            }
        }
        self.next.processes.sort_by_key(|process| process.id);
        let mut reborn = Vec::new();
        for process in &mut self.next.processes {
            let member = members.get(&process.id);
            let incarnation = member.map_or(0, |member| member.incarnation);
            if incarnation != 0 && incarnation != process.incarnation {
                reborn.push(process.id);
            }
            process.incarnation = incarnation;
            if let Some(member) = member {
                process.addresses.clone_from(&member.addresses);
            }
        }
        // What it had it begins anew, in the new epoch.
        let since = self.next.epoch;
        for assignment in self.next.fs.iter_mut().chain(&mut self.next.disks) {
            match *assignment {
                Assignment::Serving { by, .. } if reborn.contains(&by) => {
                    *assignment = Assignment::Serving { by, since };
                }
                // The life that was to settle it is over, and all that it held with it.
                Assignment::Moving { from, to, .. } if reborn.contains(&from) => {
                    *assignment = Assignment::Serving { by: to, since };
                }
                _ => {}
            }
        }
    }

    fn end_broken_moves(&mut self) {
        for node in 0..self.next.fs.len() {
            let Assignment::Moving { from, to, .. } = self.next.fs[node] else { continue };
            if !self.is_living(from) {
                self.serve(node, to);
            } else if !self.is_living(to) {
                self.serve(node, from);
            }
        }
    }

    /// How many nodes each process shall have that may have any, and has or will have.
    fn loads(&self) -> BTreeMap<ProcessId, NodeCount> {
        let living = || self.next.processes.iter().filter(|process| process.is_living());
        let staying = living().filter(|process| !process.leaving);
        let mut loads: BTreeMap<ProcessId, NodeCount> =
            staying.map(|process| (process.id, NodeCount::default())).collect();
        if loads.is_empty() {
            // Processes that leave are better than none.
            loads = living().map(|process| (process.id, NodeCount::default())).collect();
        }
        for assignment in &self.next.fs {
            if let Some(load) = loads.get_mut(&assignment.destination()) {
                load.has += 1;
            }
        }
        // Who has most may keep one more than the others.
        let mut by_load: Vec<(usize, ProcessId)> =
            loads.iter().map(|(&id, load)| (load.has, id)).collect();
        by_load.sort_by_key(|&(has, id)| (std::cmp::Reverse(has), id));
        let count = loads.len().max(1);
        let (each, rest) = (self.next.fs.len() / count, self.next.fs.len() % count);
        for (rank, (_, id)) in by_load.into_iter().enumerate() {
            loads.entry(id).or_default().shall_have = each + usize::from(rank < rest);
        }
        loads
    }

    /// The nodes of the dead go to the living who lack most.
    fn take_over(&mut self) {
        let mut loads = self.loads();
        for node in 0..self.next.fs.len() {
            if self.is_living(self.next.fs[node].destination()) {
                continue;
            }
            let Some(by) = neediest(&mut loads) else { return };
            self.serve(node, by);
        }
    }

    /// Nodes begin to move from those who have too many.
    fn begin_moves(&mut self) {
        if !self.next.processes.iter().any(|process| process.is_living() && !process.leaving) {
            return;
        }
        let mut loads = self.loads();
        let is_moving = |assignment: &&Assignment| matches!(assignment, Assignment::Moving { .. });
        let mut moving = self.next.fs.iter().filter(is_moving).count();
        let since = self.next.epoch;
        for node in 0..self.next.fs.len() {
            let Assignment::Serving { by: from, .. } = self.next.fs[node] else { continue };
            let has_enough = |load: &NodeCount| load.has <= load.shall_have;
            if moving >= MOVES_CONCURRENCY_MAX || loads.get(&from).is_some_and(has_enough) {
                continue;
            }
            let Some(to) = neediest(&mut loads) else { return };
            if let Some(load) = loads.get_mut(&from) {
                load.has -= 1;
            }
            self.next.fs[node] = Assignment::Moving { from, to, since };
            moving += 1;
        }
    }

    /// Who is away and has nothing is no longer part of the cluster.
    fn forget_the_gone(&mut self) {
        let assignments = self.next.fs.iter().chain(&self.next.disks);
        let needed: BTreeSet<ProcessId> = assignments
            .flat_map(|assignment| [assignment.owner(), assignment.destination()])
            .collect();
        self.next.processes.retain(|process| process.is_living() || needed.contains(&process.id));
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct NodeCount {
    has: usize,
    shall_have: usize,
}

/// The process that lacks most nodes; it gets one more. `None` if none lacks any.
fn neediest(loads: &mut BTreeMap<ProcessId, NodeCount>) -> Option<ProcessId> {
    let lacking = loads.iter_mut().filter(|(_, load)| load.has < load.shall_have);
    let (&id, load) = lacking.min_by_key(|(_, load)| load.has)?;
    load.has += 1;
    Some(id)
}

#[cfg(test)]
mod tests;
