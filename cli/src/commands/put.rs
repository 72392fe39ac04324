//! `mdfs put`: copies into a volume.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use client::{Attributes, Kind};
use futures::executor::block_on;

use crate::copy::{self, Copy};
use crate::exit::Failure;
use crate::local::{self, Found};
use crate::progress::Progress;
use crate::session::Session;
use crate::volume_path::{VolumePath, join};

/// Copy a file, or a tree of files, into a volume.
///
/// Permissions and the time of the last change are kept, symbolic links stay links, holes stay holes.
/// If the destination is a directory, the copy goes into it under its own name.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mdfs put results.h5 scratch:/run1/results.h5    one file
  mdfs put -r run2 scratch:/                      a tree, as scratch:/run2
  tar c run3 | mdfs put - scratch:/run3.tar       what another program writes")]
pub(crate) struct Put {
    /// Copy directories with all that is in them.
    #[arg(short, long)]
    recursive: bool,
    /// A file or directory of this computer; - for standard input.
    #[arg(value_name = "LOCAL")]
    from: PathBuf,
    /// Where to put it.
    #[arg(value_name = "VOL:/PATH", value_parser = VolumePath::parser())]
    to: VolumePath,
}

/// Permission bits of a file from standard input.
const STDIN_MODE: u32 = 0o644;

/// While a tree is copied its directories can be written, whatever their own bits say.
const OWNER_BITS: u32 = 0o700;

/// One thing to copy.
struct Step {
    from: Found,
    to: Vec<u8>,
}

impl Put {
    pub(super) fn run(&self, session: &mut Session) -> Result<(), Failure> {
        let volume = session.open(&self.to.volume)?;
        let progress = Progress::new(0, 0);
        let file_system = volume.file_system();
        let copy = Copy { file_system, volume: &self.to.volume, progress };
        if self.from == Path::new("-") {
            let source = (Path::new("standard input"), io::stdin().lock());
            return block_on(copy.put(source, &self.to.path, STDIN_MODE)).map(drop);
        }
        let metadata = std::fs::metadata(&self.from)
            .map_err(|error| Failure::local("read", &self.from, error))?;
        if metadata.is_dir() && !self.recursive {
            let text = format!("{} is a directory; copy it with -r", self.from.display());
            return Err(Failure::Usage(text));
        }
        let to = block_on(self.destination(&copy))?;
        let root = Step { from: Found { path: self.from.clone(), metadata }, to };
        let (directories, others) = plan(root)?;
        let bytes = others.iter().map(|step| step.from.metadata.len()).sum();
        let copy = Copy { progress: Progress::new(bytes, others.len() as u64), ..copy };
        block_on(copy.all(directories, others))
    }

    /// Into an existing directory the copy goes under its own name.
    async fn destination(&self, copy: &Copy<'_>) -> Result<Vec<u8>, Failure> {
        if !copy.is_directory(&self.to.path).await? {
            return Ok(self.to.path.clone());
        }
        // `.` and `..` have no name of their own.
        let name = self.from.file_name().map(OsStr::to_owned).or_else(|| {
            let resolved = self.from.canonicalize().ok()?;
            resolved.file_name().map(OsStr::to_owned)
        });
        let nameless = || {
            Failure::Usage(format!(
                "{} has no name to copy it under; name the copy",
                self.from.display()
            ))
        };
        Ok(join(&self.to.path, name.ok_or_else(nameless)?.as_bytes()))
    }
}

/// The directories, those above first, and everything else.
fn plan(root: Step) -> Result<(Vec<Step>, Vec<Step>), Failure> {
    let (mut directories, mut others) = (Vec::new(), Vec::new());
    let mut open = vec![root];
    while let Some(step) = open.pop() {
        if !step.from.metadata.is_dir() {
            others.push(step);
            continue;
        }
        for found in local::list(&step.from.path)? {
            let name = found.path.file_name().unwrap_or_default();
            let to = join(&step.to, name.as_bytes());
            open.push(Step { from: found, to });
        }
        directories.push(step);
    }
    Ok((directories, others))
}

impl copy::Step for Step {
    async fn make_directory(&self, copy: &Copy<'_>) -> Result<(), Failure> {
        let made = match copy.file_system.mkdir(&self.to).await {
            Err(error) if error.cause.is_exists() => {
                let found = copy.file_system.metadata(&self.to).await;
                match found {
                    Ok(found) if found.kind == Kind::Directory {} => Ok(found),
                    _ => Err(error),
                }
            }
            made => made,
        };
        let made = made.map_err(|error| copy.inside(error))?;
        if made.mode & OWNER_BITS == OWNER_BITS {
            return Ok(());
        }
        let opened = copy.file_system.set_mode(&self.to, made.mode | OWNER_BITS).await;
        opened.map(drop).map_err(|error| copy.inside(error))
    }

    async fn copy(self, copy: &Copy<'_>) -> Result<(), Failure> {
        let Step { from: Found { path, metadata }, to } = self;
        if metadata.is_symlink() {
            let target = std::fs::read_link(&path)
                .map_err(|error| Failure::local("read symbolic link", &path, error))?;
            let target = target.as_os_str().as_bytes();
            let made = match copy.file_system.symlink(target, &to).await {
                Err(error) if error.cause.is_exists() => replace_link(copy, target, &to).await,
                made => made,
            };
            return made.map(drop).map_err(|error| copy.inside(error));
        }
        if !metadata.is_file() {
            let error = io::Error::new(io::ErrorKind::Unsupported, "not a file, directory or link");
            return Err(Failure::local("copy", &path, error));
        }
        let kept = local::kept(&metadata);
        let source = (path.as_path(), local::open(&path)?);
        let file = copy.put(source, &to, kept.mode.unwrap_or(STDIN_MODE)).await?;
        file.set_attributes(kept).await.map(drop).map_err(|error| copy.inside(error))
    }

    async fn keep(self, copy: &Copy<'_>) -> Result<(), Failure> {
        let kept = local::kept(&self.from.metadata);
        let changed = copy.file_system.set_attributes(&self.to, kept).await;
        changed.map(drop).map_err(|error| copy.inside(error))
    }
}

/// A link that is there already is replaced, as a file would be; anything else stays.
async fn replace_link(
    copy: &Copy<'_>,
    target: &[u8],
    to: &[u8],
) -> Result<Attributes, client::Error> {
    if copy.file_system.symlink_metadata(to).await?.kind == (Kind::Symlink {}) {
        copy.file_system.remove_file(to).await?;
    }
    copy.file_system.symlink(target, to).await
}
