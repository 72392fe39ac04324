//! What the commands of the shell do, and what they cost.

use std::path::Path;

use bytes::Bytes;
use client::{FileSystem, Kind, OpenOptions};
use runtime::Context;
use sim::emulated::{Emulation, EmulationTally};

use super::ShellCommand;
use mdfs_cli::exit::CommandFailure;
use mdfs_cli::local::{self, Target, chunks};
use mdfs_cli::output::{LIST_ALIGNED_RIGHT, ListedFile, describe, list_row, printable, table};
use mdfs_cli::session::CommandSession;
use mdfs_cli::size::human;

/// What the volume is called in errors.
const VOLUME: &str = "emulated";
/// Bytes that are read at a time.
const READ_BYTES: usize = 1 << 20;

/// The volume of a machine, in hand.
pub(super) struct Shell<'a> {
    machine: &'a Emulation,
    system: FileSystem<Context>,
}

/// An error in the volume, with what to do.
fn inside(error: client::Error) -> CommandFailure {
    CommandFailure::inside(&Path::new(VOLUME).into(), error)
}

impl<'a> Shell<'a> {
    /// The shell is a program on the first application node.
    pub(super) fn new(machine: &'a Emulation) -> Self {
        Self { machine, system: machine.program(0) }
    }

    /// Lets the machine run until `work` is done.
    fn run<T>(
        &self,
        work: impl Future<Output = Result<T, client::Error>>,
    ) -> Result<T, CommandFailure> {
        self.machine.run(work).map_err(inside)
    }

    /// Does it, and prints below what it cost.
    pub(super) fn perform(
        &self,
        command: ShellCommand,
        session: &mut CommandSession,
    ) -> Result<(), CommandFailure> {
        let before = self.machine.tally();
        let system = &self.system;
        match command {
            ShellCommand::Ls { long, path } => self.list(long, &path, session)?,
            ShellCommand::Stat { path } => {
                let found = self.run(system.symlink_metadata(&path))?;
                let target = self.target(&path, found.kind)?;
                session.print(describe(
                    path.as_bytes(),
                    &found,
                    target.as_deref(),
                    session.terminal,
                ))?;
            }
            ShellCommand::Mkdir { path } => drop(self.run(system.mkdir(&path))?),
            ShellCommand::Put { local, path } => self.put(&local, &path)?,
            ShellCommand::Get { path, local } => {
                let target = Target::create(&local)?;
                let length = self.read(&path, |at, piece| target.write(at, &[piece]))?;
                target.finish(length)?;
            }
            ShellCommand::Cat { path } => {
                self.read(&path, |_, piece| session.print(piece))?;
            }
            ShellCommand::Rm { recursive: true, path } => self.run(system.remove_all(&path))?,
            ShellCommand::Rm { recursive: false, path } => self
                .run(system.remove_file(&path))
                .map_err(|failure| failure.for_directory("remove it with -r"))?,
            ShellCommand::Mv { from, to } => self.run(system.rename(&from, &to))?,
            ShellCommand::Df => {
                let space = self.run(system.space())?;
                let [total, free] = [space.total_bytes, space.free_bytes].map(human);
                session.print(format!("{total}, of which {free} are free\n"))?;
            }
            ShellCommand::Sync => self.run(system.sync())?,
            ShellCommand::Restart => self
                .machine
                .run(self.machine.restart())
                .map_err(|error| CommandFailure::Wrong(error.to_string()))?,
            ShellCommand::Wait { seconds } => self.machine.world().advance(seconds),
            ShellCommand::Cost => return report_cost(session, self.machine.tally()),
            ShellCommand::Quit => return Ok(()),
        }
        report_cost(session, self.machine.tally() - before)
    }

    fn target(&self, path: &str, kind: Kind) -> Result<Option<Vec<u8>>, CommandFailure> {
        if kind != (Kind::Symlink {}) {
            return Ok(None);
        }
        self.run(self.system.read_link(path)).map(Some)
    }

    fn list(
        &self,
        long: bool,
        path: &str,
        session: &mut CommandSession,
    ) -> Result<(), CommandFailure> {
        let found = self.run(self.system.metadata(path))?;
        let mut lines = Vec::new();
        if found.kind == (Kind::Directory {}) {
            let entries = self.run(async {
                let listing = self.system.read_dir(path).await?;
                listing.with_attributes().rest().await
            })?;
            // What was removed meanwhile has no attributes any more.
            let existing =
                entries.into_iter().filter_map(|entry| Some((entry.name, entry.attributes?)));
            for (name, attributes) in existing {
                let name = name.as_bytes().to_vec();
                lines.push(ListedFile { name, attributes: *attributes, target: None });
            }
            lines.sort_by(|a, b| a.name.cmp(&b.name));
        } else {
            let name = path.as_bytes().to_vec();
            lines.push(ListedFile { name, attributes: found, target: None });
        }
        if long {
            let rows: Vec<_> =
                lines.iter().map(|line| list_row(line, false, session.terminal)).collect();
            return session.print(table(&rows, &LIST_ALIGNED_RIGHT));
        }
        for line in lines {
            session.print(printable(&line.name, session.terminal))?;
            session.print("\n")?;
        }
        Ok(())
    }

    /// Writes a file of this computer, and makes it durable.
    fn put(&self, local: &Path, path: &str) -> Result<(), CommandFailure> {
        let source = local::open(local)?;
        let file = self.run(self.system.create(path))?;
        for chunk in chunks(source) {
            let (at, bytes) = chunk.map_err(|error| CommandFailure::local("read", local, error))?;
            self.run(file.write_at(at, bytes))?;
        }
        self.run(file.sync())
    }

    /// Gives the bytes of a file to `take`, piece by piece with their offsets; how many they are.
    fn read(
        &self,
        path: &str,
        mut take: impl FnMut(u64, Bytes) -> Result<(), CommandFailure>,
    ) -> Result<u64, CommandFailure> {
        let file = self.run(self.system.open(path, OpenOptions::new().read(true)))?;
        let mut at = 0;
        loop {
            let pieces = self.run(file.read_bytes_at(at, READ_BYTES))?;
            let before = at;
            for piece in pieces {
                let length = piece.len() as u64;
                take(at, piece)?;
                at += length;
            }
            if at == before {
                return Ok(at);
            }
        }
    }
}

fn report_cost(session: &mut CommandSession, cost: EmulationTally) -> Result<(), CommandFailure> {
    session.print(format!("-- {cost}\n"))
}
