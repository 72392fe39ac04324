//! `mdfs check` and `mdfs scrub`: is everything in a volume as it must be?

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use client::VolumeAddress;
use client::scrub::ScrubExtent;
use client::volume::{OpenCause, OpenError};
use serde::Serialize;
use volume::{CheckOptions, CheckResult, CheckStep, Summary, UnreadableFile, UnreadableFiles};

use super::online_check::OnlineCheck;
use crate::connection::{ConnectionArguments, volume_address};
use crate::exit::CommandFailure;
use crate::output::{lossy, printable, table};
use crate::progress::Progress;
use crate::session::CommandSession;
use crate::size::{ByteSize, human};

/// Check a volume: all of its metadata, or what can be compared while it is in use.
///
/// Of a volume that is not served, reads superblocks, roots, logs, every page of metadata with its
/// checksum, and compares names with files, counts of links, and every block with its owner. What a
/// crash has left to be finished by the next start is reported as pending, not as damage.
///
/// Of a volume that is served, also by a cluster, the nodes read their metadata from the disks and
/// compare it with its checksums, while others work; superblocks and logs, too. Names, links and
/// space are not compared with one another then.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mdfs check scratch
  mdfs check scratch --data --rate 200MiB
  mdfs check scratch --json | jq .flaws
  mdfs check scratch --files                which files to bring back from elsewhere
  mdfs check mdfs://node1/scratch --data    a cluster, while it works

Exit codes: 0 the volume is sound, 4 there are flaws, 3 it cannot be checked (its disks are not those of
the volume, or no server answers). Each flaw is one line on standard output: the thing and where it is,
what is wrong, what to do next.")]
pub(crate) struct Check {
    /// Read all data of files too, and compare each block with its checksum.
    #[arg(long)]
    data: bool,
    #[command(flatten)]
    common: CheckArguments,
}

/// Read all data and metadata of a volume, and compare it with its checksums.
///
/// The same as `mdfs check --data`: finds bad blocks before they are needed, also while the volume
/// is in use.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mdfs scrub scratch
  mdfs scrub scratch --rate 100MiB          leaves the disks time for others
  mdfs scrub mdfs://node1/scratch --repair

Exit codes: 0 the volume is sound, 4 there are flaws, 3 it cannot be checked.")]
pub(crate) struct ScrubCommand {
    #[command(flatten)]
    common: CheckArguments,
}

/// What both have in common.
#[derive(Debug, clap::Args)]
struct CheckArguments {
    /// Name the files that cannot be read in full, and why. Reads all data, of the disks that are
    /// there: of a volume that is not served disks may be missing.
    #[arg(long)]
    files: bool,
    /// Bytes per second, at most, as in 200MiB [default: as many as the disks give]
    #[arg(long, value_name = "SIZE")]
    rate: Option<ByteSize>,
    /// Write anew what is bad and has a good copy. For volumes that are served; metadata are also
    /// mended when a volume starts.
    #[arg(long)]
    repair: bool,
    /// As JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: ConnectionArguments,
    /// The volume: its directory, or `mdfs://HOST[:PORT]/VOLUME`.
    #[arg(value_name = "VOL", value_parser = volume_address())]
    volume: VolumeAddress,
}

#[derive(Debug, Serialize)]
struct CheckReport {
    volume: String,
    id: String,
    sound: bool,
    inodes: u64,
    directories: u64,
    names: u64,
    file_bytes: u64,
    data_bytes: u64,
    total_bytes: u64,
    free_bytes: u64,
    xattrs: u64,
    stored_replies: u64,
    /// Bytes of data that were read and compared; absent if that was not asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    read_bytes: Option<u64>,
    pending: PendingRecord,
    lost_nodes: u32,
    /// Files that cannot be read in full; absent if that was not asked for.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    files: Option<UnreadableRecord>,
    flaws_count: u64,
    flaws: Vec<FlawRecord>,
}

#[derive(Debug, Serialize)]
struct UnreadableRecord {
    unreadable: Vec<UnreadableFileRecord>,
    /// Nodes where names are lost: files may be listed without their names.
    names_lost: Vec<u32>,
}

#[derive(Debug, Serialize)]
struct UnreadableFileRecord {
    /// Bytes that are not UTF-8 are replaced.
    path: String,
    #[serde(skip)]
    raw: Vec<u8>,
    inode: u64,
    why: String,
}

#[derive(Debug, Serialize)]
struct PendingRecord {
    operations: u64,
    trims: u64,
    unlinked_files: u64,
    passing_groups: u64,
}

#[derive(Debug, Serialize)]
struct FlawRecord {
    thing: String,
    what: String,
    next_step: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    inode: Option<u64>,
}

impl Check {
    pub(super) fn run(&self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        self.common.run(self.data || self.common.files, session)
    }
}

impl ScrubCommand {
    pub(super) fn run(&self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        self.common.run(true, session)
    }
}

impl CheckArguments {
    fn run(&self, data: bool, session: &mut CommandSession) -> Result<(), CommandFailure> {
        if self.rate.is_some_and(|rate| rate.0 == 0) {
            return Err(CommandFailure::Usage(
                "--rate 0 reads nothing; leave it out for no limit".to_owned(),
            ));
        }
        session.connect_with(&self.connection);
        if let Some(volume) = session.open_served(&self.volume)? {
            let extent = ScrubExtent { data, repair: self.repair };
            let (rate_bytes, json) = (self.rate.map_or(0, |rate| rate.0), self.json);
            let check = OnlineCheck { extent, rate_bytes, json };
            return check.run(&self.volume, &volume, session);
        }
        let VolumeAddress::Directory(directory) = &self.volume else { return Ok(()) };
        if self.repair {
            return Err(CommandFailure::Usage(
                "--repair is for a volume that is served; start `mdfs serve` first, which writes \
                 anew much of what is bad by itself"
                    .to_owned(),
            ));
        }
        self.run_at_rest(directory, data, session)
    }

    /// Checks a volume that is not served.
    fn run_at_rest(
        &self,
        volume: &Path,
        data: bool,
        session: &mut CommandSession,
    ) -> Result<(), CommandFailure> {
        let opened = |cause| OpenError { address: volume.into(), cause };
        let progress = Progress::of_work(1);
        let read = Arc::new(AtomicU64::new(0));
        let options = CheckOptions {
            data,
            files: self.files,
            rate_bytes: self.rate.map_or(0, |rate| rate.0),
            on_step: on_step(progress.clone(), read.clone()),
        };
        let checked = volume::check(volume, &options);
        progress.finish();
        let checked = checked.map_err(|error| opened(OpenCause::Stack(error)))?;
        let count = checked.summary.flaws.count();
        let mut report = CheckReport::new(volume, &checked, data.then(|| read.load(Relaxed)));
        if self.files {
            report.files = Some(UnreadableRecord::new(&checked.summary.unreadable));
        }
        if self.json {
            session.print_json(&report)?;
        } else {
            report.print(session)?;
        }
        if count == 0 {
            Ok(())
        } else {
            Err(CommandFailure::Flawed { volume: volume.to_owned(), count })
        }
    }
}

/// Shows the progress, from all threads.
fn on_step(progress: Progress, read: Arc<AtomicU64>) -> Arc<dyn Fn(CheckStep) + Send + Sync> {
    let done = AtomicU64::new(0);
    Arc::new(move |step| {
        match step {
            CheckStep::Node { of } => {
                progress.set_total(of.into());
                done.fetch_add(1, Relaxed);
            }
            CheckStep::Data { bytes } => drop(read.fetch_add(bytes, Relaxed)),
        }
        let (nodes, bytes) = (done.load(Relaxed), read.load(Relaxed));
        let data = if bytes == 0 { String::new() } else { format!(", {} of data", human(bytes)) };
        progress.at(nodes, format!("{nodes} nodes{data}"));
    })
}

impl CheckReport {
    fn new(volume: &Path, checked: &CheckResult, read_bytes: Option<u64>) -> Self {
        let Summary { pending, flaws, .. } = &checked.summary;
        let found = &checked.summary;
        let geometry = checked.map.geometry();
        let block_bytes = u64::from(geometry.stripe_size / geometry.blocks_per_stripe());
        Self {
            volume: volume.display().to_string(),
            id: geometry.volume.to_string(),
            sound: flaws.is_empty(),
            inodes: found.inodes,
            directories: found.directories,
            names: found.names,
            file_bytes: found.file_bytes,
            data_bytes: found.data_blocks.saturating_mul(block_bytes),
            total_bytes: found.owned_blocks.saturating_mul(block_bytes),
            free_bytes: found.free_blocks.saturating_mul(block_bytes),
            xattrs: found.xattrs,
            stored_replies: found.replies,
            read_bytes,
            pending: PendingRecord {
                operations: pending.intents,
                trims: pending.trims,
                unlinked_files: pending.unlinked,
                passing_groups: pending.passing_groups,
            },
            lost_nodes: checked.lost_nodes,
            files: None,
            flaws_count: flaws.count(),
            flaws: flaws.listed().iter().map(FlawRecord::new).collect(),
        }
    }

    fn print(&self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        let files = self.files.iter().flat_map(|files| &files.unreadable);
        let told: BTreeSet<u64> = files.clone().map(|file| file.inode).collect();
        for UnreadableFileRecord { raw, why, .. } in files {
            session.print(b"cannot be read: ")?;
            session.print(printable(raw, session.terminal))?;
            session.print(format!(": {why}\n"))?;
        }
        for flaw in &self.flaws {
            let FlawRecord { thing, what, next_step, inode } = flaw;
            if inode.is_some_and(|inode| told.contains(&inode)) {
                continue;
            }
            session.print(format!("{thing}: {what}; {next_step}\n"))?;
        }
        let untold = self.flaws_count - self.flaws.len() as u64;
        if untold > 0 {
            session.print(format!("and {untold} more\n"))?;
        }
        let mut rows = vec![
            ("volume", self.id.clone()),
            ("files", format!("{} ({} directories)", self.inodes, self.directories)),
            ("names", self.names.to_string()),
            ("file sizes", human(self.file_bytes)),
            ("data", human(self.data_bytes)),
            ("free", format!("{} of {}", human(self.free_bytes), human(self.total_bytes))),
            ("attributes", self.xattrs.to_string()),
            ("replies kept", self.stored_replies.to_string()),
            ("pending", self.pending.in_words()),
        ];
        if let Some(bytes) = self.read_bytes {
            rows.push(("data compared", human(bytes)));
        }
        if self.lost_nodes > 0 {
            rows.push(("unreadable", format!("the metadata of {} nodes", self.lost_nodes)));
        }
        if let Some(UnreadableRecord { unreadable, names_lost }) = &self.files {
            rows.push(("cannot be read", format!("{} names", unreadable.len())));
            if !names_lost.is_empty() {
                let nodes = names_lost.len();
                rows.push(("names lost", format!("at {nodes} nodes, of any directory")));
            }
        }
        let verdict = match self.flaws_count {
            0 => "sound".to_owned(),
            1 => "1 flaw".to_owned(),
            count => format!("{count} flaws"),
        };
        rows.push(("verdict", verdict));
        let rows: Vec<Vec<Vec<u8>>> =
            rows.into_iter().map(|(head, value)| vec![head.into(), value.into()]).collect();
        session.print(table(&rows, &[false, false]))
    }
}

impl UnreadableRecord {
    fn new(found: &UnreadableFiles) -> Self {
        let record = |file: &UnreadableFile| {
            let UnreadableFile { path, ino, why } = file.clone();
            UnreadableFileRecord { path: lossy(&path), raw: path, inode: ino, why }
        };
        let names_lost = found.names_lost.iter().copied().collect();
        Self { unreadable: found.files.iter().map(record).collect(), names_lost }
    }
}

impl FlawRecord {
    fn new(flaw: &volume::Flaw) -> Self {
        let volume::Flaw { thing, what, step, ino, .. } = flaw.clone();
        Self { thing, what, next_step: step, inode: ino }
    }
}

impl PendingRecord {
    fn in_words(&self) -> String {
        let Self { operations, trims, unlinked_files, passing_groups } = self;
        let parts = [
            (*operations, "operations to finish"),
            (*trims, "files to free"),
            (*unlinked_files, "files without a name"),
            (*passing_groups, "groups of blocks on their way"),
        ];
        let parts: Vec<String> = parts
            .into_iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, what)| format!("{count} {what}"))
            .collect();
        if parts.is_empty() { "nothing".to_owned() } else { parts.join(", ") }
    }
}
