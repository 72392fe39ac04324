//! What a command works with: volumes and its output. Tests put their own in.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal as _, Write};
use std::path::{Path, PathBuf};

use client::blocking::Volume;
use serde::Serialize;

use crate::exit::Failure;

type Open = dyn Fn(&Path) -> Result<Volume, Failure>;

/// One run of the program.
pub struct Session {
    open: Box<Open>,
    /// Those that are open: each only once, since a process has a volume alone.
    volumes: BTreeMap<PathBuf, Volume>,
    out: Box<dyn Write>,
    /// Somebody looks at the output.
    pub terminal: bool,
}

impl Session {
    /// Opens real volumes and prints to standard output.
    pub fn of_this_process() -> Self {
        let out = io::BufWriter::new(io::stdout());
        let open = |directory: &Path| Ok(client::volume::open(directory)?);
        let terminal = io::stdout().is_terminal();
        Self { open: Box::new(open), volumes: BTreeMap::new(), out: Box::new(out), terminal }
    }

    /// Opens volumes with `open` and prints to `out`, for tests.
    pub fn new(
        open: impl Fn(&Path) -> Result<Volume, Failure> + 'static,
        out: impl Write + 'static,
    ) -> Self {
        let volumes = BTreeMap::new();
        Self { open: Box::new(open), volumes, out: Box::new(out), terminal: false }
    }

    /// The volume in `directory`; opened if it is not yet.
    pub fn open(&mut self, directory: &Path) -> Result<Volume, Failure> {
        if let Some(volume) = self.volumes.get(directory) {
            return Ok(volume.clone());
        }
        let volume = (self.open)(directory)?;
        self.volumes.insert(directory.to_owned(), volume.clone());
        Ok(volume)
    }

    /// Prints bytes.
    pub fn print(&mut self, bytes: impl AsRef<[u8]>) -> Result<(), Failure> {
        self.out.write_all(bytes.as_ref()).map_err(no_output)
    }

    /// Prints a value as one JSON document.
    pub fn print_json(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        let text = serde_json::to_string_pretty(value).map_err(|error| no_output(error.into()))?;
        self.print(text)?;
        self.print("\n")
    }

    /// Prints what is still held back.
    pub fn flush(&mut self) -> Result<(), Failure> {
        self.out.flush().map_err(no_output)
    }

    /// Makes durable what the command has done, and prints what is still held back.
    pub fn finish(&mut self) -> Result<(), Failure> {
        for (directory, volume) in std::mem::take(&mut self.volumes) {
            volume.finish().map_err(|error| Failure::inside(&directory, error))?;
        }
        self.flush()
    }
}

fn no_output(error: io::Error) -> Failure {
    Failure::local("write", Path::new("standard output"), error)
}
