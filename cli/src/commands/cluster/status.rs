//! `mdfs cluster status`: who is there, and who serves what.

use std::collections::BTreeSet;
use std::path::PathBuf;

use ::cluster::membership::{Assignment, GoneRecord, NodeMap, ProcessId};
use client::Time;
use runtime::{NodeId, NodeKind};
use serde::Serialize;
use volume::cluster::{self, ClusterStatus};

use super::file::MachineFile;
use crate::exit::CommandFailure;
use crate::output::table;
use crate::session::CommandSession;
use crate::time::date;

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
    /// `up`, `leaving`, `down` or `removed`.
    state: &'static str,
    /// Since when it is down, in UTC; `unknown` if no process noted that, `-` if it runs, or never
    /// did.
    since: String,
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
        let status = cluster::status(&file.engine()?).map_err(|error| {
            CommandFailure::Wrong(format!("nothing is known of the cluster: {error}"))
        })?;
        let ClusterStatus { volume, map, .. } = &status;
        // Those of the file that have no nodes are not in the map while they are down.
        let ids = file.numbers().into_iter().map(ProcessId);
        let ids: BTreeSet<ProcessId> =
            ids.chain(map.processes.iter().map(|process| process.id)).collect();
        let mut processes: Vec<ProcessRow> = ids.into_iter().map(|id| row(&status, id)).collect();
        for row in processes.iter_mut().filter(|row| row.addresses.is_empty()) {
            let named = file.process(row.number).map(|process| process.address.clone());
            row.addresses.extend(named.ok());
        }
        let report =
            ProcessList { volume: volume.volume().to_string(), epoch: map.epoch.0, processes };
        if self.json {
            return session.print_json(&report);
        }
        let heads =
            ["process", "state", "since", "address", "links", "nodes", "incoming", "disk nodes"];
        let mut rows = vec![heads.map(|head| head.as_bytes().to_vec()).to_vec()];
        rows.extend(report.processes.iter().map(|row| {
            let disks: Vec<String> = row.disk_nodes.iter().map(u32::to_string).collect();
            let cells = [
                row.number.to_string(),
                row.state.to_owned(),
                row.since.clone(),
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
        session.print(table(&rows, &[true, false, false, false, false, true, true, false]))?;
        for row in report.processes.iter().filter(|row| row.state == "down") {
            let (number, file) = (row.number, self.file.display());
            session.print(format!(
                "process {number} is down; on its host: mdfs cluster serve {file} {number}\n"
            ))?;
        }
        if self.nodes { session.print(owners(map)) } else { Ok(()) }
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

/// A process runs if the map knows it as the incarnation that keeps a lease.
fn row(status: &ClusterStatus, id: ProcessId) -> ProcessRow {
    let ClusterStatus { map, removed, security, members, gone, .. } = status;
    let known = map.process(id);
    let is_up = known.is_some_and(|known| members.get(&id) == Some(&known.incarnation));
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
        state: match known {
            _ if removed.contains(&id) => "removed",
            Some(known) if is_up && known.leaving => "leaving",
            Some(_) if is_up => "up",
            _ => "down",
        },
        since: if is_up {
            "-".to_owned()
        } else {
            let last = known.map_or(0, |known| known.incarnation);
            down_since(last, gone.get(&id), security.contains_key(&id))
        },
        addresses: known.map(|known| known.addresses.clone()).unwrap_or_default(),
        links: security.get(&id).map_or("-", String::as_str).to_owned(),
        nodes: node_numbers.len(),
        incoming: map.assignments().filter(|(_, assignment)| comes(*assignment)).count(),
        disk_nodes: map.assignments().filter(has).filter_map(disk).collect(),
        node_numbers,
    }
}

/// Since when a process is down whose incarnation `last` the map names as living, or 0. The end
/// that is noted is that of the last incarnation only if the map does not name a later one: then
/// no process has noted its end yet, or could.
fn down_since(last: u64, noted: Option<&GoneRecord>, has_run: bool) -> String {
    match noted.filter(|gone| last == 0 || gone.incarnation == last) {
        Some(gone) => date_of(gone.since_ns),
        None if last != 0 || has_run => "unknown".to_owned(),
        None => "-".to_owned(),
    }
}

fn date_of(since_ns: u64) -> String {
    date(Time { seconds: (since_ns / 1_000_000_000).cast_signed(), nanos: 0 })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_process_is_down_since_the_end_of_its_last_incarnation_or_that_is_unknown() {
        let end_of = |incarnation| GoneRecord::new(incarnation, Duration::from_hours(24), false);
        let since =
            |last, gone: Option<u64>, has_run| down_since(last, gone.map(end_of).as_ref(), has_run);
        assert!(since(0, Some(22), true).starts_with("1970-01-02"));
        assert!(since(22, Some(22), true).starts_with("1970-01-02"));
        assert_eq!(since(22, Some(21), true), "unknown", "of an earlier incarnation");
        assert_eq!(since(0, None, true), "unknown", "its end was not noted");
        assert_eq!(since(0, None, false), "-", "it never ran");
    }
}
