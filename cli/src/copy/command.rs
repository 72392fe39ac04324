//! Copies as the command line asks for them.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use clap::builder::{OsStringValueParser, TypedValueParser, ValueParser};
use client::VolumeAddress;

use super::{CopyOptions, CopyTotals, TreeCopy};
use crate::exit::{CommandFailure, STOPPED};
use crate::progress::Progress;
use crate::session::CommandSession;
use crate::signals::EndSignals;
use crate::tree::{FileInfo, FileTree, HostTree, VolumeFileTree, into, last_name, resolve};
use crate::volume_path::{BadVolumePath, VolumePath, is_address};

/// One end of a copy.
#[derive(Clone, Debug)]
pub(crate) enum CopyEnd {
    /// On this computer.
    HostTree(PathBuf),
    /// In a volume.
    VolumeFileTree(VolumePath),
}

impl CopyEnd {
    /// `VOL:/path` is in a volume, all else on this computer.
    pub(crate) fn parse(text: &OsStr) -> Result<Self, BadVolumePath> {
        match VolumePath::parse(text) {
            Ok(path) => Ok(Self::VolumeFileTree(path)),
            Err(bad) if is_address(text) => Err(bad),
            Err(_) => Ok(Self::HostTree(text.into())),
        }
    }

    /// For the argument parser.
    pub(crate) fn parser() -> ValueParser {
        ValueParser::new(OsStringValueParser::new().try_map(|text| Self::parse(&text)))
    }

    fn volume(&self) -> Option<&VolumeAddress> {
        match self {
            Self::HostTree(_) => None,
            Self::VolumeFileTree(path) => Some(&path.volume),
        }
    }

    fn path(&self) -> Vec<u8> {
        match self {
            Self::HostTree(path) => path.as_os_str().as_bytes().to_vec(),
            Self::VolumeFileTree(path) => path.path.clone(),
        }
    }

    fn tree(&self, session: &mut CommandSession) -> Result<Box<dyn FileTree>, CommandFailure> {
        Ok(match self {
            Self::HostTree(path) => {
                if let Some(meant) = meant_in_volume(path) {
                    let path = path.display();
                    return Err(CommandFailure::Usage(format!(
                        "{path} is not in the volume but among the volume's own files; for the volume \
                         write {meant}"
                    )));
                }
                Box::new(HostTree)
            }
            Self::VolumeFileTree(VolumePath { volume: address, .. }) => {
                let volume = session.open(address)?;
                Box::new(VolumeFileTree { volume, address: address.clone() })
            }
        })
    }

    /// The name that a copy in a directory gets.
    fn name(&self) -> Result<Vec<u8>, CommandFailure> {
        let path = self.path();
        if let Some(name) = last_name(&path) {
            return Ok(name.to_vec());
        }
        let resolved = match self {
            // `.` and `..` have no name of their own.
            Self::HostTree(path) => path.canonicalize().ok(),
            Self::VolumeFileTree(_) => None,
        };
        let name = resolved.as_deref().and_then(Path::file_name).map(OsStr::to_owned);
        let nameless = || {
            let path = String::from_utf8_lossy(&path);
            CommandFailure::Usage(format!("{path} has no name to copy it under; name the copy"))
        };
        Ok(name.ok_or_else(nameless)?.as_bytes().to_vec())
    }
}

/// What is probably meant by a path of this computer that leads into the directory of a volume, or
/// that has a colon behind one: the colon and the slash were forgotten.
fn meant_in_volume(path: &Path) -> Option<String> {
    let shown = |volume: &Path, rest: &str| format!("{}:/{rest}", volume.display());
    if let Some((volume, rest)) = volume::own_directory(path) {
        return Some(shown(&volume, &rest.display().to_string()));
    }
    let text = path.as_os_str().as_bytes();
    let colon = text.iter().position(|&byte| byte == b':').filter(|colon| *colon > 0)?;
    let before = Path::new(OsStr::from_bytes(&text[..colon]));
    let (volume, rest) = volume::own_directory(before)?;
    rest.as_os_str()
        .is_empty()
        .then(|| shown(&volume, &String::from_utf8_lossy(&text[colon + 1..])))
}

/// Copies all of `sources` to `destination`, or into it if it is a directory. A signal stops it
/// where the same command can go on. Returns what was done, in words.
pub(crate) fn run(
    session: &mut CommandSession,
    sources: &[CopyEnd],
    destination: &CopyEnd,
    options: CopyOptions,
) -> Result<String, CommandFailure> {
    let to = destination.tree(session)?;
    let (to_path, there) = resolve(&*to, destination.path())?;
    let into_it = !options.exact && there.is_some_and(|node| node.is_directory());
    if sources.len() > 1 && !into_it {
        let text = "several files are copied into a directory, and the destination is none";
        return Err(CommandFailure::Usage(text.into()));
    }
    let mut begun = Vec::new();
    for source in sources {
        let from = source.tree(session)?;
        let (path, node) = begin(&*from, source, options)?;
        let to = if into_it { into(&to_path, &source.name()?) } else { to_path.clone() };
        begun.push((source.volume() == destination.volume(), from, path, node, to));
    }
    // The same command would copy into what it has made.
    let other_again =
        !into_it && !options.exact && begun.iter().any(|(.., node, _)| node.is_directory());
    let (progress, totals) = (Progress::of_transfer(), CopyTotals::default());
    let stopped = until_signal(|stop| {
        for (one_tree, from, path, node, to_path) in begun {
            let (from, to, progress, totals) = (&*from, &*to, &progress, &totals);
            TreeCopy { from, to, one_tree, options, progress, totals, stop }
                .run(path, node, to_path);
        }
    });
    progress.finish();
    let summary = totals.summary();
    if stopped? {
        let again =
            if other_again { "`mdfs cp -rT` with the same names" } else { "the same command" };
        return Err(CommandFailure::Stopped { again });
    }
    totals.outcome()?;
    Ok(summary)
}

/// What is to be copied: its path without links, and what is there.
fn begin(
    from: &dyn FileTree,
    source: &CopyEnd,
    options: CopyOptions,
) -> Result<(Vec<u8>, FileInfo), CommandFailure> {
    let (path, found) = resolve(from, source.path())?;
    let Some(node) = found else {
        let missing = from.open(&path).err();
        return Err(missing.unwrap_or_else(|| from.refuse("copy", &path, "it has just come")));
    };
    if node.is_directory() && !options.recursive {
        let shown = String::from_utf8_lossy(&path).into_owned();
        return Err(CommandFailure::Usage(format!("{shown} is a directory; copy it with -r")));
    }
    Ok((path, node))
}

/// Runs `work`; its argument is set on SIGINT or SIGTERM. Returns whether one came. A
/// second one ends the program at once.
#[allow(clippy::disallowed_methods, reason = "the program waits for signals beside its work")]
fn until_signal(work: impl FnOnce(&AtomicBool)) -> Result<bool, CommandFailure> {
    let failed = |error| CommandFailure::local("receive", Path::new("signals"), error);
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
