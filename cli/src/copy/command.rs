//! Copies as the command line asks for them.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use super::{Copy, Tally, Wish};
use crate::exit::{Failure, STOPPED};
use crate::progress::Progress;
use crate::session::Session;
use crate::signals::EndSignals;
use crate::tree::{Host, Inside, Node, Tree, into, last_name, resolve};
use crate::volume_path::VolumePath;

/// One end of a copy.
#[derive(Clone, Debug)]
pub(crate) enum End {
    /// On this computer.
    Host(PathBuf),
    /// In a volume.
    Inside(VolumePath),
}

impl End {
    /// `VOL:/path` is in a volume, all else on this computer.
    pub(crate) fn parse(text: &OsStr) -> Self {
        match VolumePath::parse(text) {
            Ok(path) => Self::Inside(path),
            Err(_) => Self::Host(text.into()),
        }
    }

    fn volume(&self) -> Option<&Path> {
        match self {
            Self::Host(_) => None,
            Self::Inside(path) => Some(&path.volume),
        }
    }

    fn path(&self) -> Vec<u8> {
        match self {
            Self::Host(path) => path.as_os_str().as_bytes().to_vec(),
            Self::Inside(path) => path.path.clone(),
        }
    }

    fn tree(&self, session: &mut Session) -> Result<Box<dyn Tree>, Failure> {
        Ok(match self {
            Self::Host(_) => Box::new(Host),
            Self::Inside(VolumePath { volume: directory, .. }) => {
                let volume = session.open(directory)?;
                Box::new(Inside { volume, directory: directory.clone() })
            }
        })
    }

    /// The name that a copy in a directory gets.
    fn name(&self) -> Result<Vec<u8>, Failure> {
        let path = self.path();
        if let Some(name) = last_name(&path) {
            return Ok(name.to_vec());
        }
        let resolved = match self {
            // `.` and `..` have no name of their own.
            Self::Host(path) => path.canonicalize().ok(),
            Self::Inside(_) => None,
        };
        let name = resolved.as_deref().and_then(Path::file_name).map(OsStr::to_owned);
        let nameless = || {
            let path = String::from_utf8_lossy(&path);
            Failure::Usage(format!("{path} has no name to copy it under; name the copy"))
        };
        Ok(name.ok_or_else(nameless)?.as_bytes().to_vec())
    }
}

/// Copies all of `sources` to `destination`, or into it if it is a directory. A signal stops it where the
/// same command can go on. Returns what was done, in words.
pub(crate) fn run(
    session: &mut Session,
    sources: &[End],
    destination: &End,
    wish: Wish,
) -> Result<String, Failure> {
    let to = destination.tree(session)?;
    let (to_path, there) = resolve(&*to, destination.path())?;
    let into_it = !wish.exact && there.is_some_and(|node| node.is_directory());
    if sources.len() > 1 && !into_it {
        let text = "several files are copied into a directory, and the destination is none";
        return Err(Failure::Usage(text.into()));
    }
    let mut begun = Vec::new();
    for source in sources {
        let from = source.tree(session)?;
        let (path, node) = begin(&*from, source, wish)?;
        let to = if into_it { into(&to_path, &source.name()?) } else { to_path.clone() };
        begun.push((source.volume() == destination.volume(), from, path, node, to));
    }
    // The same command would copy into what it has made.
    let other_again =
        !into_it && !wish.exact && begun.iter().any(|(.., node, _)| node.is_directory());
    let (progress, tally) = (Progress::of_transfer(), Tally::default());
    let stopped = until_signal(|stop| {
        for (one_tree, from, path, node, to_path) in begun {
            let (from, to, progress, tally) = (&*from, &*to, &progress, &tally);
            Copy { from, to, one_tree, wish, progress, tally, stop }.run(path, node, to_path);
        }
    });
    progress.finish();
    let told = tally.summary();
    if stopped? {
        let again =
            if other_again { "`mdfs cp -rT` with the same names" } else { "the same command" };
        return Err(Failure::Stopped { again });
    }
    tally.outcome()?;
    Ok(told)
}

/// What is to be copied: its path without links, and what is there.
fn begin(from: &dyn Tree, source: &End, wish: Wish) -> Result<(Vec<u8>, Node), Failure> {
    let (path, found) = resolve(from, source.path())?;
    let Some(node) = found else {
        let missing = from.open(&path).err();
        return Err(missing.unwrap_or_else(|| from.refuse("copy", &path, "it has just come")));
    };
    if node.is_directory() && !wish.recursive {
        let shown = String::from_utf8_lossy(&path).into_owned();
        return Err(Failure::Usage(format!("{shown} is a directory; copy it with -r")));
    }
    Ok((path, node))
}

/// Does `work`, which is told by its argument when SIGINT or SIGTERM wants it to end; whether one did. A
/// second one ends the program at once.
#[allow(clippy::disallowed_methods, reason = "the program waits for signals beside its work")]
fn until_signal(work: impl FnOnce(&AtomicBool)) -> Result<bool, Failure> {
    let failed = |error| Failure::local("receive", Path::new("signals"), error);
    let mut signals = EndSignals::receive().map_err(failed)?;
    let stop = AtomicBool::new(false);
    let (done, mut is_done) = tokio::sync::oneshot::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            if signals.wait_or(&mut is_done) {
                stop.store(true, Ordering::Relaxed);
                if signals.wait_or(&mut is_done) {
                    std::process::exit(STOPPED.into());
                }
            }
        });
        work(&stop);
        drop(done);
    });
    Ok(stop.into_inner())
}
