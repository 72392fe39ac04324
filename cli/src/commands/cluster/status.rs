//! `mdfs cluster status`: who is there, and who serves what.

use std::path::PathBuf;

use ::cluster::membership::{Assignment, NodeMap, Process};
use runtime::{NodeId, NodeKind};
use serde::Serialize;
use volume::cluster::{self, ClusterStatus};

use super::file::MachineFile;
use crate::exit::CommandFailure;
use crate::output::table;
use crate::session::CommandSession;

/// Show the processes of a cluster, and how the nodes are spread over them.
#[derive(Debug, clap::Args)]
pub(super) struct Status {
    /// The machine file.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Which process has each node, too; `2>3` is on its way from 2 to 3.
    #[arg(long)]
    nodes: bool,
    /// As JSON, with the nodes.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct ProcessList {
    volume: String,
    epoch: u64,
    processes: Vec<ProcessRow>,
}

#[derive(Debug, Serialize)]
struct ProcessRow {
    number: u32,
    state: &'static str,
    addresses: Vec<String>,
    /// How its connections are protected, `tls` or `none`, and by which providers of libfabric they
    /// may go, as in `tls+shm`; `-` if it never said.
    links: String,
    nodes: usize,
    /// On their way here.
    incoming: usize,
    disk_nodes: Vec<u32>,
    /// The numbers of its file-system nodes.
    node_numbers: Vec<u32>,
}

impl Status {
    pub(super) fn run(&self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        let file = MachineFile::read(&self.file)?;
        let ClusterStatus { geometry, map, removed, security } = cluster::status(&file.engine()?)
            .map_err(|error| {
            CommandFailure::Wrong(format!("nothing is known of the cluster: {error}"))
        })?;
        let row = |process: &Process| {
            let links = security.get(&process.id).map_or("-", String::as_str).to_owned();
            let mut row = ProcessRow { links, ..row(&map, process) };
            if removed.contains(&process.id) {
                row.state = "removed";
            }
            row
        };
        let processes = map.processes.iter().map(row).collect();
        let report =
            ProcessList { volume: geometry.volume.to_string(), epoch: map.epoch.0, processes };
        if self.json {
            return session.print_json(&report);
        }
        let heads = ["process", "state", "address", "links", "nodes", "incoming", "disk nodes"];
        let mut rows = vec![heads.map(|head| head.as_bytes().to_vec()).to_vec()];
        rows.extend(report.processes.iter().map(|row| {
            let disks: Vec<String> = row.disk_nodes.iter().map(u32::to_string).collect();
            let cells = [
                row.number.to_string(),
                row.state.to_owned(),
                row.addresses.join(" "),
                row.links.clone(),
                row.nodes.to_string(),
                row.incoming.to_string(),
                if disks.is_empty() { "-".to_owned() } else { disks.join(" ") },
            ];
            cells.map(String::into_bytes).to_vec()
        }));
        let head = format!("volume {}, epoch {}\n", report.volume, report.epoch);
        session.print(head)?;
        session.print(table(&rows, &[true, false, false, false, true, true, false]))?;
        if self.nodes { session.print(owners(&map)) } else { Ok(()) }
    }
}

/// Runs of nodes that one process has, or that move to the same process.
fn owners(map: &NodeMap) -> Vec<u8> {
    let mut runs: Vec<(u32, u32, String)> = Vec::new();
    for (node, assignment) in map.assignments() {
        let NodeKind::Fs(index) = node.kind() else { continue };
        let (from, to) = (assignment.owner().0, assignment.destination().0);
        let owner = if from == to { from.to_string() } else { format!("{from}>{to}") };
        match runs.last_mut() {
            Some((_, last, same)) if *same == owner && *last + 1 == index => *last = index,
            _ => runs.push((index, index, owner)),
        }
    }
    let mut rows = vec![["nodes", "process"].map(|head| head.as_bytes().to_vec()).to_vec()];
    rows.extend(runs.into_iter().map(|(first, last, owner)| {
        let nodes = if first == last { first.to_string() } else { format!("{first}-{last}") };
        vec![nodes.into_bytes(), owner.into_bytes()]
    }));
    table(&rows, &[true, true])
}

fn row(map: &NodeMap, process: &Process) -> ProcessRow {
    let id = process.id;
    let has = |(_, assignment): &(NodeId, Assignment)| assignment.owner() == id;
    let comes = |assignment: Assignment| assignment.owner() != id && assignment.destination() == id;
    let fs = |(node, _): (NodeId, Assignment)| match node.kind() {
        NodeKind::Fs(index) => Some(index),
        _ => None,
    };
    let disk = |(node, _): (NodeId, Assignment)| match node.kind() {
        NodeKind::Disk(index) => Some(index),
        _ => None,
    };
    let node_numbers: Vec<u32> = map.assignments().filter(has).filter_map(fs).collect();
    ProcessRow {
        number: id.0,
        state: match (process.is_living(), process.leaving) {
            (true, false) => "up",
            (true, true) => "leaving",
            (false, _) => "down",
        },
        addresses: process.addresses.clone(),
        links: String::new(),
        nodes: node_numbers.len(),
        incoming: map.assignments().filter(|(_, assignment)| comes(*assignment)).count(),
        disk_nodes: map.assignments().filter(has).filter_map(disk).collect(),
        node_numbers,
    }
}
