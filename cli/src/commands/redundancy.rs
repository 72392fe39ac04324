//! `mdfs redundancy`: how the files of a directory survive the loss of disks.

use client::Kind;
use client::blocking::Volume;
use client::protocol::{Change, DiskChange, DiskList};
use serde::Serialize;
use volume::RedundancyClass;

use crate::connection::ConnectionArguments;
use crate::exit::CommandFailure;
use crate::output::lossy;
use crate::session::CommandSession;
use crate::volume_path::{VolumePath, join};

/// Choose how the files of a directory survive the loss of disks, in place of what `mdfs format`
/// was told for the volume.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mdfs redundancy show scratch:/home
  mdfs redundancy set 2x scratch:/home       what is made in it from now on
  mdfs redundancy set -r 4+1 scratch:/data   what is there, too, in the background")]
pub(crate) struct RedundancyCommand {
    #[command(subcommand)]
    action: RedundancyAction,
}

#[derive(Debug, clap::Subcommand)]
enum RedundancyAction {
    Set(SetRedundancy),
    Show(ShowRedundancy),
}

/// Set the redundancy of files and directories.
///
/// What is made in a directory gets its redundancy; a file keeps it when it is renamed. The data of
/// a file that has another one is stored anew in the background, while the file is used. It cannot
/// be weaker than that of the volume. In a volume with `none` it saves files from a lost disk, as
/// `mdfs disk lost --accept-data-loss` says; the volume does not go on without the disk by itself.
/// The first time that a redundancy is chosen in a volume root or the owner of its root directory
/// has to do it; after that, all may choose it for their files.
#[derive(Debug, clap::Args)]
struct SetRedundancy {
    /// All that is in directories, too.
    #[arg(short, long)]
    recursive: bool,
    #[command(flatten)]
    connection: ConnectionArguments,
    /// `none`, `2x`, `3x`, or `K+M` as in 4+1; not more disks may be lost than metadata survives.
    #[arg(value_name = "CLASS")]
    class: RedundancyClass,
    /// Files and directories.
    #[arg(value_name = "VOL:/PATH", value_parser = VolumePath::parser(), required = true)]
    paths: Vec<VolumePath>,
}

/// Show the redundancy of a file or directory, and what the volume has.
#[derive(Debug, clap::Args)]
struct ShowRedundancy {
    /// As JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: ConnectionArguments,
    /// The file or directory.
    #[arg(value_name = "VOL:/PATH", value_parser = VolumePath::parser())]
    path: VolumePath,
}

#[derive(Debug, Serialize)]
struct RedundancyReport {
    path: String,
    redundancy: String,
    /// It is the volume's.
    is_default: bool,
    volume_redundancy: String,
    /// What is used besides.
    others: Vec<String>,
    /// Pieces of files of the volume that wait to be stored as they shall be.
    waiting_pieces: u64,
    /// Nodes that do not say what waits at them.
    silent_nodes: u32,
}

impl RedundancyCommand {
    pub(super) fn run(&self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        match &self.action {
            RedundancyAction::Set(set) => set.run(session),
            RedundancyAction::Show(show) => show.run(session),
        }
    }
}

impl SetRedundancy {
    fn run(&self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        session.connect_with(&self.connection);
        for VolumePath { volume: address, path } in &self.paths {
            let volume = session.open(address)?;
            let failed = |error| CommandFailure::inside(address, error);
            let list = volume.disks().map_err(failed)?;
            let class = self.class.to_string();
            if !is_allowed(&list, &class) {
                let allowed = volume.change_disks(DiskChange::AllowClass { class });
                let operation = "use this redundancy in";
                allowed.map_err(|error| failed(client::Error { operation, ..error }))?;
            }
            self.set(&volume, path).map_err(failed)?;
        }
        Ok(())
    }

    /// Sets that of one file or directory; before that of what is in it, so that what is made
    /// meanwhile has it, too.
    fn set(&self, volume: &Volume, path: &[u8]) -> Result<(), client::Error> {
        let change = Change { redundancy: Some(self.class), ..Change::default() };
        let changed = volume.set_attributes(path, change)?;
        if !self.recursive || changed.kind != (Kind::Directory {}) {
            return Ok(());
        }
        for entry in volume.read_dir(path)? {
            if !matches!(entry.kind, Kind::File {} | Kind::Directory {}) {
                continue;
            }
            match self.set(volume, &join(path, entry.name.as_bytes())) {
                // It was removed meanwhile.
                Err(error) if error.cause.is_not_found() => {}
                done => done?,
            }
        }
        Ok(())
    }
}

impl ShowRedundancy {
    fn run(&self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        session.connect_with(&self.connection);
        let VolumePath { volume: address, path } = &self.path;
        let volume = session.open(address)?;
        let failed = |error| CommandFailure::inside(address, error);
        let own = volume.metadata(path).map_err(failed)?.redundancy;
        let list = volume.disks().map_err(failed)?;
        let report = RedundancyReport {
            path: lossy(path),
            redundancy: own.map_or_else(|| list.redundancy.clone(), |class| class.to_string()),
            is_default: own.is_none(),
            volume_redundancy: list.redundancy,
            others: list.classes,
            waiting_pieces: list.waiting_pieces,
            silent_nodes: list.silent_nodes,
        };
        if self.json {
            return session.print_json(&report);
        }
        session.print(describe(&report))
    }
}

fn is_allowed(list: &DiskList, class: &str) -> bool {
    list.redundancy == class || list.classes.iter().any(|allowed| allowed == class)
}

fn describe(report: &RedundancyReport) -> String {
    let RedundancyReport { path, redundancy, volume_redundancy, others, .. } = report;
    let source = if report.is_default { "the volume's" } else { "its own" };
    let others = if others.is_empty() {
        "no other is used".to_owned()
    } else {
        format!("also used: {}", others.join(", "))
    };
    let mut waiting = match report.waiting_pieces {
        0 => String::new(),
        count => format!("{count} pieces of files wait to be stored as they shall be\n"),
    };
    if report.silent_nodes > 0 {
        waiting += "some nodes do not answer: what waits there is not counted\n";
    }
    format!(
        "{path}: redundancy {redundancy}, {source}\n\
         volume: redundancy {volume_redundancy}; {others}\n{waiting}"
    )
}
