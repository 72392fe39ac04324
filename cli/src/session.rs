//! What a command works with: volumes and its output. Tests put their own in.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal as _, Write};
use std::path::Path;

use client::VolumeAddress;
use client::blocking::Volume;
use client::volume::{ConnectOptions, OpenCause, OpenError};
use serde::Serialize;

use crate::connection::ConnectionArguments;
use crate::exit::CommandFailure;
use crate::waiting::WaitDisplay;

type OpenVolume = dyn Fn(&VolumeAddress) -> Result<Volume, CommandFailure>;

/// One run of the program.
pub struct CommandSession {
    /// How tests open volumes; without it they are opened as `connection` says.
    open: Option<Box<OpenVolume>>,
    connection: ConnectionArguments,
    /// Those that are open: each only once, since a process has a volume alone.
    volumes: BTreeMap<VolumeAddress, Volume>,
    waiting: WaitDisplay,
    out: Box<dyn Write>,
    /// The reader of the output has gone, as in `mdfs ls VOL:/ | head`: the rest is discarded, and
    /// the exit code says what it always says.
    is_closed: bool,
    /// The output is a terminal.
    pub terminal: bool,
}

impl CommandSession {
    /// Opens real volumes and prints to standard output.
    pub fn of_this_process() -> Self {
        let out = io::BufWriter::new(io::stdout());
        Self { terminal: io::stdout().is_terminal(), ..Self::printing_to(out) }
    }

    /// Opens volumes with `open` and prints to `out`, for tests.
    pub fn new(
        open: impl Fn(&VolumeAddress) -> Result<Volume, CommandFailure> + 'static,
        out: impl Write + 'static,
    ) -> Self {
        Self { open: Some(Box::new(open)), ..Self::printing_to(out) }
    }

    fn printing_to(out: impl Write + 'static) -> Self {
        let (connection, volumes) = (ConnectionArguments::default(), BTreeMap::new());
        let waiting = WaitDisplay::default();
        Self {
            open: None,
            connection,
            volumes,
            waiting,
            out: Box::new(out),
            is_closed: false,
            terminal: false,
        }
    }

    /// Volumes are opened as these options say.
    pub fn connect_with(&mut self, connection: &ConnectionArguments) {
        self.connection = connection.clone();
    }

    /// The volume at `address`; opened if it is not yet.
    pub fn open(&mut self, address: &VolumeAddress) -> Result<Volume, CommandFailure> {
        if let Some(volume) = self.volumes.get(address) {
            return Ok(volume.clone());
        }
        let volume = self.open_again(address)?;
        self.volumes.insert(address.clone(), volume.clone());
        Ok(volume)
    }

    /// Opens the volume at `address` by a connection of its own.
    pub fn open_again(&mut self, address: &VolumeAddress) -> Result<Volume, CommandFailure> {
        if let Some(open) = &self.open {
            return open(address);
        }
        let options = self.options(address)?;
        self.waiting.watch(options.outages.clone());
        Ok(client::volume::connect(address, &options)?)
    }

    /// The volume at `address`, if a server serves it; `None` if it is in a directory of this host
    /// and no server does.
    pub(crate) fn open_served(
        &mut self,
        address: &VolumeAddress,
    ) -> Result<Option<Volume>, CommandFailure> {
        let options = self.options(address)?;
        self.waiting.watch(options.outages.clone());
        match client::volume::reach(address, &options) {
            Ok(client_handle) => Ok(Some(Volume::new(client_handle, options.who))),
            Err(OpenCause::NotServed(_)) if matches!(address, VolumeAddress::Directory(_)) => {
                Ok(None)
            }
            Err(cause) => Err(OpenError { address: address.clone(), cause }.into()),
        }
    }

    /// How the volume at `address` is opened.
    fn options(&self, address: &VolumeAddress) -> Result<ConnectOptions, OpenError> {
        self.connection.options().map_err(|error| OpenError {
            address: address.clone(),
            cause: OpenCause::NoCredentials(error),
        })
    }

    /// Prints bytes.
    pub fn print(&mut self, bytes: impl AsRef<[u8]>) -> Result<(), CommandFailure> {
        if self.is_closed {
            return Ok(());
        }
        let written = self.out.write_all(bytes.as_ref());
        self.unless_closed(written)
    }

    /// Has the reader of the output gone? Then nothing more need be found out to be printed.
    pub(crate) fn is_output_closed(&self) -> bool {
        self.is_closed
    }

    fn unless_closed(&mut self, written: io::Result<()>) -> Result<(), CommandFailure> {
        match written {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.is_closed = true;
                Ok(())
            }
            written => written.map_err(no_output),
        }
    }

    /// Prints a value as one JSON document.
    pub fn print_json(&mut self, value: &impl Serialize) -> Result<(), CommandFailure> {
        let text = serde_json::to_string_pretty(value).map_err(|error| no_output(error.into()))?;
        self.print(text)?;
        self.print("\n")
    }

    /// Prints what is still held back.
    pub fn flush(&mut self) -> Result<(), CommandFailure> {
        if self.is_closed {
            return Ok(());
        }
        let flushed = self.out.flush();
        self.unless_closed(flushed)
    }

    /// Makes durable what the command has done, and prints what is still held back.
    pub fn finish(&mut self) -> Result<(), CommandFailure> {
        for (address, volume) in std::mem::take(&mut self.volumes) {
            volume.finish().map_err(|error| CommandFailure::inside(&address, error))?;
        }
        self.flush()
    }
}

fn no_output(error: io::Error) -> CommandFailure {
    CommandFailure::local("write", Path::new("standard output"), error)
}
