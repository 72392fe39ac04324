//! `mdfs check` and `mdfs scrub` of a volume that is in use: its nodes compare what they have with
//! its checksums.

use std::collections::BTreeSet;
use std::time::Duration;

use client::VolumeAddress;
use client::blocking::Volume;
use client::protocol::ScrubFlaw;
use client::scrub::{ScrubExtent, VolumeScrub};
use futures::executor::block_on;
use futures::future::join_all;
use serde::Serialize;

use crate::exit::CommandFailure;
use crate::output::{lossy, printable, table};
use crate::progress::Progress;
use crate::session::CommandSession;
use crate::size::human;
use crate::time::now;

/// Nodes that work at the same time, at most.
const NODES_AT_ONCE: usize = 8;

/// What a check of a volume in use leaves out.
const LEFT_OUT: &str =
    "links, names and space against one another: stop the volume, then `mdfs check`";

/// How a volume in use is checked.
#[derive(Clone, Copy, Debug)]
pub(super) struct OnlineCheck {
    pub(super) extent: ScrubExtent,
    /// Bytes per second, at most; 0 for no limit.
    pub(super) rate_bytes: u64,
    pub(super) json: bool,
}

#[derive(Debug, Serialize)]
struct OnlineReport {
    volume: String,
    sound: bool,
    /// Whether the data of files was compared.
    data: bool,
    nodes: u32,
    keys: u64,
    read_bytes: u64,
    not_checked: &'static str,
    repaired: u64,
    /// Names of files that cannot be read in full.
    unreadable: Vec<String>,
    flaws: Vec<OnlineFlaw>,
}

#[derive(Debug, Serialize)]
struct OnlineFlaw {
    node: u32,
    what: String,
    repaired: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    inode: Option<u64>,
    #[serde(skip)]
    raw_paths: Vec<Vec<u8>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    paths: Vec<String>,
}

/// A node that is not done yet, and where it goes on.
struct NodeCursor {
    node: u32,
    after: Vec<u8>,
}

impl OnlineCheck {
    pub(super) fn run(
        self,
        address: &VolumeAddress,
        volume: &Volume,
        session: &mut CommandSession,
    ) -> Result<(), CommandFailure> {
        let failed = |error| CommandFailure::inside(address, error);
        let scrub = VolumeScrub::of(volume.file_system());
        let nodes = scrub.nodes();
        let mut report = OnlineReport {
            volume: address.to_string(),
            sound: true,
            data: self.extent.data,
            nodes,
            keys: 0,
            read_bytes: 0,
            not_checked: LEFT_OUT,
            repaired: 0,
            unreadable: Vec::new(),
            flaws: Vec::new(),
        };
        let progress = Progress::of_work(nodes.into());
        let began = now();
        let mut waiting = (0..nodes).rev();
        let mut working: Vec<NodeCursor> = Vec::new();
        loop {
            while working.len() < NODES_AT_ONCE
                && let Some(node) = waiting.next()
            {
                working.push(NodeCursor { node, after: Vec::new() });
            }
            if working.is_empty() {
                break;
            }
            let asked = working
                .iter()
                .map(|NodeCursor { node, after }| scrub.part(*node, after.clone(), self.extent));
            let answers = block_on(join_all(asked));
            for (cursor, answer) in std::mem::take(&mut working).into_iter().zip(answers) {
                let part = answer.map_err(failed)?;
                report.keys += part.keys;
                report.read_bytes += part.read_bytes;
                let flaw = |flaw| OnlineFlaw::new(cursor.node, flaw);
                report.flaws.extend(part.flaws.into_iter().map(flaw));
                working.extend(part.next.map(|after| NodeCursor { node: cursor.node, after }));
            }
            let done = u64::from(nodes) - waiting.len() as u64 - working.len() as u64;
            progress.at(done, format!("{done} nodes, {} read", human(report.read_bytes)));
            wait_for(began.elapsed(), report.read_bytes, self.rate_bytes);
        }
        progress.finish();
        report.name_files(volume);
        report.repaired = report.flaws.iter().filter(|flaw| flaw.repaired).count() as u64;
        let left = report.flaws.len() as u64 - report.repaired;
        report.sound = left == 0;
        if self.json {
            session.print_json(&report)?;
        } else {
            report.print(session)?;
        }
        if report.sound {
            return Ok(());
        }
        Err(CommandFailure::FlawedInUse { volume: address.clone(), count: left })
    }
}

/// Waits until `bytes` bytes may have been read at `rate_bytes` per second, in the time that has
/// `passed`.
fn wait_for(passed: Duration, bytes: u64, rate_bytes: u64) {
    if rate_bytes == 0 {
        return;
    }
    let due_us = u128::from(bytes) * 1_000_000 / u128::from(rate_bytes);
    let due = Duration::from_micros(u64::try_from(due_us).unwrap_or(u64::MAX));
    #[allow(clippy::disallowed_methods, reason = "a program waits for itself")]
    std::thread::sleep(due.saturating_sub(passed));
}

impl OnlineFlaw {
    fn new(node: u32, flaw: ScrubFlaw) -> Self {
        let ScrubFlaw { inode, is_mended, what, .. } = flaw;
        let inode = Some(inode).filter(|&inode| inode != 0);
        let (raw_paths, paths) = (Vec::new(), Vec::new());
        Self { node, what, repaired: is_mended, inode, raw_paths, paths }
    }
}

impl OnlineReport {
    /// People know files by their paths.
    fn name_files(&mut self, volume: &Volume) {
        let inodes: BTreeSet<u64> = self.flaws.iter().filter_map(|flaw| flaw.inode).collect();
        if inodes.is_empty() {
            return;
        }
        let paths = block_on(VolumeScrub::of(volume.file_system()).paths_of(&inodes));
        for flaw in &mut self.flaws {
            let known = flaw.inode.and_then(|ino| paths.get(&ino));
            flaw.raw_paths = known.cloned().unwrap_or_default();
            flaw.paths = flaw.raw_paths.iter().map(|path| lossy(path)).collect();
        }
        let all: BTreeSet<String> = self.flaws.iter().flat_map(|flaw| flaw.paths.clone()).collect();
        self.unreadable = all.into_iter().collect();
    }

    fn print(&self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        for OnlineFlaw { node, what, repaired, inode, raw_paths, .. } in &self.flaws {
            let thing = match (raw_paths.first(), inode) {
                (Some(path), _) => printable(path, session.terminal),
                (None, Some(ino)) => format!("inode {ino}, without a name").into_bytes(),
                (None, None) => format!("the metadata of node {node}").into_bytes(),
            };
            session.print(thing)?;
            let outcome = match (repaired, inode) {
                (true, _) => "repaired",
                (false, Some(_)) => "bring the file back from its source or a copy",
                (false, None) => "see the advice of `mdfs check` on the volume when it is stopped",
            };
            session.print(format!(": {what}; {outcome}\n"))?;
        }
        let left = self.flaws.len() as u64 - self.repaired;
        let verdict = match (left, self.repaired) {
            (0, 0) => "no flaw".to_owned(),
            (0, repaired) => format!("{repaired} flaws repaired"),
            (left, repaired) => format!("{left} flaws, and {repaired} repaired"),
        };
        let data = if self.data { "data and metadata" } else { "metadata" };
        let rows = [
            ("volume", format!("{}, in use", self.volume)),
            ("compared", format!("{data} of {} nodes, {}", self.nodes, human(self.read_bytes))),
            ("keys", self.keys.to_string()),
            ("not checked", self.not_checked.to_owned()),
            ("cannot be read", format!("{} names", self.unreadable.len())),
            ("verdict", verdict),
        ];
        let rows: Vec<Vec<Vec<u8>>> =
            rows.into_iter().map(|(head, value)| vec![head.into(), value.into()]).collect();
        session.print(table(&rows, &[false, false]))
    }
}
