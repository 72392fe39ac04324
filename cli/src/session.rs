//! What a command works with: volumes and its output. Tests put their own in.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal as _, Write};
use std::path::{Path, PathBuf};

use client::blocking::Volume;
use serde::Serialize;

use crate::exit::CommandFailure;

type OpenVolume = dyn Fn(&Path) -> Result<Volume, CommandFailure>;

/// One run of the program.
pub struct CommandSession {
    open: Box<OpenVolume>,
    /// Those that are open: each only once, since a process has a volume alone.
    volumes: BTreeMap<PathBuf, Volume>,
    out: Box<dyn Write>,
    /// The output is a terminal.
    pub terminal: bool,
}

impl CommandSession {
    /// Opens real volumes and prints to standard output.
    pub fn of_this_process() -> Self {
        let out = io::BufWriter::new(io::stdout());
        let open = |directory: &Path| Ok(client::volume::open(directory)?);
        let terminal = io::stdout().is_terminal();
        Self { open: Box::new(open), volumes: BTreeMap::new(), out: Box::new(out), terminal }
    }

    /// Opens volumes with `open` and prints to `out`, for tests.
    pub fn new(
        open: impl Fn(&Path) -> Result<Volume, CommandFailure> + 'static,
        out: impl Write + 'static,
    ) -> Self {
        let volumes = BTreeMap::new();
        Self { open: Box::new(open), volumes, out: Box::new(out), terminal: false }
    }

    /// The volume in `directory`; opened if it is not yet.
    pub fn open(&mut self, directory: &Path) -> Result<Volume, CommandFailure> {
        if let Some(volume) = self.volumes.get(directory) {
            return Ok(volume.clone());
        }
        let volume = (self.open)(directory)?;
        self.volumes.insert(directory.to_owned(), volume.clone());
        Ok(volume)
    }

    /// Prints bytes.
    pub fn print(&mut self, bytes: impl AsRef<[u8]>) -> Result<(), CommandFailure> {
        self.out.write_all(bytes.as_ref()).map_err(no_output)
    }

    /// Prints a value as one JSON document.
    pub fn print_json(&mut self, value: &impl Serialize) -> Result<(), CommandFailure> {
        let text = serde_json::to_string_pretty(value).map_err(|error| no_output(error.into()))?;
        self.print(text)?;
        self.print("\n")
    }

    /// Prints what is still held back.
    pub fn flush(&mut self) -> Result<(), CommandFailure> {
        self.out.flush().map_err(no_output)
    }

    /// Makes durable what the command has done, and prints what is still held back.
    pub fn finish(&mut self) -> Result<(), CommandFailure> {
        for (directory, volume) in std::mem::take(&mut self.volumes) {
            volume.finish().map_err(|error| CommandFailure::inside(&directory, error))?;
        }
        self.flush()
    }
}

fn no_output(error: io::Error) -> CommandFailure {
    CommandFailure::local("write", Path::new("standard output"), error)
}
