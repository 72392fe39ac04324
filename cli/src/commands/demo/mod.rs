//! `mdfs demo`: the main job, from an empty directory to files copied out by a real NFS client.

mod checkpoint;
mod nfs;
mod report;
mod server;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use volume::FormatOptions;

use self::checkpoint::DemoCheckpoint;
use self::report::{DemoReport, DemoRow};
use self::server::Server;
use crate::exit::CommandFailure;
use crate::session::CommandSession;
use crate::size::{ByteSize, human};
use crate::time::now;

/// Writers, as in the thesis' Fig. 4.5.
const WRITERS: u64 = 8;
/// Bytes that a program hands over at a time when it writes a checkpoint.
const CHUNK_BYTES: usize = 1 << 20;
/// The thesis' own case: files of this size,
const SMALL_FILE_BYTES: u64 = 64 << 10;
/// written in pieces of this size.
const SMALL_CHUNK_BYTES: usize = 2 << 10;
/// Rounds of small files: one round of eight is too short to be measured.
const SMALL_ROUNDS: u64 = 16;
/// Room on each disk beside the checkpoints.
const SPARE_BYTES: u64 = 512 << 20;

/// Show the main job: checkpoints of eight writers, a restart, and a real NFS client.
///
/// Formats a volume on 2 disk nodes of 2 disks, serves it, lets 8 writers write a checkpoint each
/// through the stdio-like API, restarts the server, reads everything back and compares it, lists
/// and copies files out and in again with nfs-ls, nfs-cat and nfs-cp of libnfs-utils, and prints
/// what was measured. Everything is removed at the end.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mdfs demo
  mdfs demo --size 256MiB --keep --dir /scratch/demo")]
pub(crate) struct Demo {
    /// Bytes of each writer's checkpoint.
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    size: ByteSize,
    /// Where to work; must not exist yet.
    #[arg(long, value_name = "DIR", default_value = "mdfs-demo")]
    dir: PathBuf,
    /// Leave the volume there.
    #[arg(long)]
    keep: bool,
}

impl Demo {
    pub(super) fn run(&self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        nfs::check_tools()?;
        fs::create_dir(&self.dir).map_err(|e| CommandFailure::local("make", &self.dir, e))?;
        let outcome = self.steps(session);
        if self.keep {
            return outcome;
        }
        let removed = fs::remove_dir_all(&self.dir);
        outcome.and(removed.map_err(|e| CommandFailure::local("remove", &self.dir, e)))
    }

    fn steps(&self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        let volume = self.dir.join("volume");
        let mut report = DemoReport::default();
        let large = DemoCheckpoint::new("/checkpoint", WRITERS, self.size.0, CHUNK_BYTES);
        let small = DemoCheckpoint::new(
            "/thesis",
            WRITERS * SMALL_ROUNDS,
            SMALL_FILE_BYTES,
            SMALL_CHUNK_BYTES,
        );
        print_line(session, &format!("format  2 disk nodes x 2 disks in {}", volume.display()))?;
        self.format(&volume)?;

        print_line(session, "serve   with the NFS gateway")?;
        let server = Server::start(&volume)?;
        print_line(
            session,
            &format!("write   {WRITERS} writers, {} each, synced", human(self.size.0)),
        )?;
        report.add(timed("checkpoint, 8 writers, fwrite 1 MiB, sync", &large, || {
            large.write(&volume, WRITERS)
        })?);
        print_line(session, "write   eight 64 KiB files in 2 KiB pieces, 16 times, synced")?;
        report.add(timed("thesis: 64 KiB files, fwrite 2 KiB, sync", &small, || {
            small.write(&volume, WRITERS)
        })?);

        print_line(session, "restart the server")?;
        server.stop()?;
        let server = Server::start(&volume)?;
        print_line(session, "read    everything back and compare the checksums")?;
        report.add(timed("restart, 8 readers, fread 1 MiB", &large, || {
            large.verify(&volume, WRITERS)
        })?);
        report.add(timed("thesis: 64 KiB files, fread 2 KiB", &small, || {
            small.verify(&volume, WRITERS)
        })?);

        print_line(session, "NFS     list, copy out, copy back in, compare")?;
        self.over_nfs(&volume, server.nfs_port(), &large, &mut report)?;
        server.stop()?;
        session.print(report.table())?;
        print_line(session, "all checksums match; the server was stopped cleanly")
    }

    fn format(&self, volume: &Path) -> Result<(), CommandFailure> {
        let options = FormatOptions {
            disk_nodes: 2,
            disks_per_node: 2,
            disk_bytes: self.size.0.saturating_mul(WRITERS) / 2 + SPARE_BYTES,
            ..FormatOptions::default()
        };
        volume::format(volume, &options)
            .map_err(|error| CommandFailure::Format { volume: volume.to_owned(), error })?;
        Ok(())
    }

    /// A real NFS client sees, takes and brings the same bytes.
    fn over_nfs(
        &self,
        volume: &Path,
        port: u16,
        large: &DemoCheckpoint,
        report: &mut DemoReport,
    ) -> Result<(), CommandFailure> {
        let listed = nfs::list(port, "/checkpoint")?;
        for file in large.names() {
            if !listed.contains(&file) {
                return Err(CommandFailure::Wrong(format!(
                    "nfs-ls does not list {file}: {listed}"
                )));
            }
        }
        let (name, copy) = ("/checkpoint/rank-0", self.dir.join("rank-0"));
        let start = now();
        nfs::copy_out(port, name, &copy)?;
        report.add(DemoRow::new("nfs-cp out, one file", large.file_bytes(), 1, start.elapsed()));
        large.verify_local(0, &copy)?;
        let start = now();
        nfs::copy_in(port, &copy, "/checkpoint/rank-0-copy")?;
        report.add(DemoRow::new("nfs-cp in, one file", large.file_bytes(), 1, start.elapsed()));
        large.verify_as(volume, 0, "/checkpoint/rank-0-copy")?;
        let start = now();
        let shown = nfs::show(port, "/checkpoint/rank-1")?;
        report.add(DemoRow::new("nfs-cat, one file", large.file_bytes(), 1, start.elapsed()));
        large.verify_bytes(1, &shown)
    }
}

fn print_line(session: &mut CommandSession, line: &str) -> Result<(), CommandFailure> {
    session.print(format!("{line}\n"))?;
    session.flush()
}

fn timed(
    what: &str,
    checkpoint: &DemoCheckpoint,
    work: impl FnOnce() -> Result<(), CommandFailure>,
) -> Result<DemoRow, CommandFailure> {
    let start = now();
    work()?;
    let elapsed: Duration = start.elapsed();
    Ok(DemoRow::new(what, checkpoint.bytes(), checkpoint.operations(), elapsed))
}
