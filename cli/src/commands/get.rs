//! `mdfs get`: copies out of a volume.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use client::{Attributes, Kind};
use futures::TryStreamExt as _;
use futures::executor::block_on;

use crate::copy::{self, Copy};
use crate::exit::Failure;
use crate::local;
use crate::progress::Progress;
use crate::session::Session;
use crate::volume_path::{VolumePath, join};

/// Copy a file, or a tree of files, out of a volume.
///
/// Permissions and the time of the last change are kept, symbolic links stay links, holes stay holes.
/// If the destination is a directory, the copy goes into it under its own name.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mdfs get scratch:/run1/results.h5 .           one file, as ./results.h5
  mdfs get -r scratch:/run2 backup              a tree
  mdfs get scratch:/run3.tar - | tar x          for another program")]
pub(crate) struct Get {
    /// Copy directories with all that is in them.
    #[arg(short, long)]
    recursive: bool,
    /// What to copy.
    #[arg(value_name = "VOL:/PATH", value_parser = VolumePath::parser())]
    from: VolumePath,
    /// Where to put it on this computer; - for standard output.
    #[arg(value_name = "LOCAL")]
    to: PathBuf,
}

/// One thing to copy.
struct Step {
    from: Vec<u8>,
    attributes: Attributes,
    to: PathBuf,
}

impl Get {
    pub(super) fn run(&self, session: &mut Session) -> Result<(), Failure> {
        let volume = session.open(&self.from.volume)?;
        let progress = Progress::new(0, 0);
        let file_system = volume.file_system();
        let copy = Copy { file_system, volume: &self.from.volume, progress };
        if self.to == Path::new("-") {
            return super::cat::print(&copy, &self.from.path, session);
        }
        let found = block_on(file_system.metadata(&self.from.path));
        let attributes = found.map_err(|error| copy.inside(error))?;
        if attributes.kind == (Kind::Directory {}) && !self.recursive {
            return Err(Failure::Usage("it is a directory; copy it with -r".into()));
        }
        let root = Step { from: self.from.path.clone(), attributes, to: self.destination()? };
        let (directories, others) = block_on(plan(&copy, root))?;
        let bytes = others.iter().map(|step| step.attributes.size).sum();
        let copy = Copy { progress: Progress::new(bytes, others.len() as u64), ..copy };
        block_on(copy.all(directories, others))
    }

    /// Into an existing directory the copy goes under its own name.
    fn destination(&self) -> Result<PathBuf, Failure> {
        match self.from.last_name() {
            Some(name) if self.to.is_dir() => Ok(self.to.join(OsStr::from_bytes(name))),
            None if self.to.is_dir() => {
                let text = "the root has no name to copy it under; name the copy";
                Err(Failure::Usage(text.into()))
            }
            _ => Ok(self.to.clone()),
        }
    }
}

/// The directories, those above first, and everything else.
async fn plan(copy: &Copy<'_>, root: Step) -> Result<(Vec<Step>, Vec<Step>), Failure> {
    let (mut directories, mut others) = (Vec::new(), Vec::new());
    let mut open = vec![root];
    while let Some(step) = open.pop() {
        if step.attributes.kind != (Kind::Directory {}) {
            others.push(step);
            continue;
        }
        let inside = |error| copy.inside(error);
        let mut pages =
            copy.file_system.read_dir(&step.from).await.map_err(inside)?.with_attributes();
        while let Some(page) = pages.next_page().await.map_err(inside)? {
            // What was removed meanwhile has no attributes any more.
            for (entry, attributes) in
                page.into_iter().filter_map(|entry| Some((entry.name, *entry.attributes?)))
            {
                let from = join(&step.from, entry.as_bytes());
                let to = step.to.join(OsStr::from_bytes(entry.as_bytes()));
                open.push(Step { from, attributes, to });
            }
        }
        directories.push(step);
    }
    Ok((directories, others))
}

impl copy::Step for Step {
    async fn make_directory(&self, _: &Copy<'_>) -> Result<(), Failure> {
        local::make_directory(&self.to)
    }

    async fn copy(self, copy: &Copy<'_>) -> Result<(), Failure> {
        let Step { from, attributes, to } = self;
        match attributes.kind {
            Kind::File {} => {
                let file = copy.open(&from).await?;
                let target = local::Target::create(&to)?;
                let mut size = 0;
                let mut chunks = std::pin::pin!(copy.read(&file).await?);
                while let Some((offset, parts)) = chunks.try_next().await? {
                    target.write(offset, &parts)?;
                    size = offset + parts.iter().map(|part| part.len() as u64).sum::<u64>();
                }
                target.finish(size)?;
                local::keep(&to, &attributes)
            }
            Kind::Symlink {} => {
                let target = copy.file_system.read_link(&from).await;
                let target = target.map_err(|error| copy.inside(error))?;
                local::make_symlink(Path::new(OsStr::from_bytes(&target)), &to)
            }
            _ => {
                let error =
                    io::Error::new(io::ErrorKind::Unsupported, "not a file, directory or link");
                Err(Failure::local("copy", &to, error))
            }
        }
    }

    async fn keep(self, _: &Copy<'_>) -> Result<(), Failure> {
        local::keep(&self.to, &self.attributes)
    }
}
