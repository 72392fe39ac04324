//! What is kept of a run: a page that plays the load of the mesh, and a trace of its messages.

use std::fs;
use std::path::PathBuf;

use machine_emu::mesh::movie;
use sim::emulated::Emulation;

use mdfs_cli::exit::CommandFailure;
use mdfs_cli::session::CommandSession;

/// Where to.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct OutputFiles {
    /// Write a page that plays the load of the mesh
    #[arg(long, value_name = "FILE")]
    movie: Option<PathBuf>,
    /// Write the trace of all messages, for --replay
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

impl OutputFiles {
    /// Is anything to be kept?
    pub(super) fn is_meant(&self) -> bool {
        self.movie.is_some() || self.record.is_some()
    }

    /// Writes the files.
    pub(super) fn write(
        &self,
        machine: &Emulation,
        session: &mut CommandSession,
    ) -> Result<(), CommandFailure> {
        let title = format!("An emulated J-Machine, seed {}", machine.world().seed());
        let page = machine.world().network().mesh(|mesh| movie(mesh, &title)).flatten();
        if let (Some(path), Some(page)) = (&self.movie, page) {
            fs::write(path, page).map_err(|error| CommandFailure::local("write", path, error))?;
            session.print(format!("open {} in a browser\n", path.display()))?;
        }
        if let (Some(path), Some(trace)) = (&self.record, machine.trace()) {
            fs::write(path, trace.to_bytes())
                .map_err(|error| CommandFailure::local("write", path, error))?;
            let lost = match trace.events_lost {
                0 => String::new(),
                lost => format!("; {lost} later ones found no room"),
            };
            let events = trace.events.len();
            session.print(format!("{events} events are in {}{lost}\n", path.display()))?;
        }
        Ok(())
    }
}
