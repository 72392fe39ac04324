//! Path resolution.

use std::collections::VecDeque;

use fileio::protocol::{
    Attributes, Error as FileIoError, GetAttributes, Handle, Kind, Lookup, Name, Open, OpenedFile,
    Parent, ReadLink, handle_of,
};
use runtime::Spawn;

use crate::error::Cause;
use crate::leases::LeaseReply;
use crate::session::ClientSession;

/// Symbolic links on the way of one path, at most.
pub const SYMLINKS_MAX: u32 = 40;

/// What happens to a symbolic link at the end of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FinalSymlink {
    /// Go where it points.
    Follow,
    /// The link itself is meant.
    Keep,
    /// Go where it points, and hold what is there.
    Open,
}

/// Where a path ends.
#[derive(Clone, Debug)]
pub(crate) struct PathTarget {
    /// The directory that has, or would have, the last name.
    pub(crate) directory: Handle,
    /// The last name; none for the root, `.` and `..`.
    pub(crate) name: Option<Name>,
    /// What is there.
    pub(crate) found: Option<Attributes>,
    /// That it is held, if that was asked for.
    pub(crate) lease: Option<LeaseReply>,
    /// The path ends in a `/`.
    pub(crate) directory_meant: bool,
}

impl PathTarget {
    /// What is there, or the error that nothing is.
    pub(crate) fn existing(self) -> Result<Attributes, Cause> {
        Ok(self.found.ok_or(FileIoError::NotFound {})?)
    }

    /// Directory and name, for what makes, renames or removes.
    pub(crate) fn named(self) -> Result<(Handle, Name), Cause> {
        let name = self.name.ok_or(Cause::NoLastName)?;
        Ok((self.directory, name))
    }
}

/// The parts of a path that are still to be walked.
struct PathWalk {
    parts: VecDeque<Vec<u8>>,
    directory_meant: bool,
    links: u32,
}

impl PathWalk {
    fn new(path: &[u8]) -> Self {
        Self { parts: parts_of(path).collect(), directory_meant: path.ends_with(b"/"), links: 0 }
    }

    /// Puts the target of a link before the rest.
    fn follow(&mut self, target: &[u8]) -> Result<(), Cause> {
        self.links += 1;
        if self.links > SYMLINKS_MAX {
            return Err(Cause::SymlinkLoop);
        }
        if self.parts.is_empty() && target.ends_with(b"/") {
            self.directory_meant = true;
        }
        for part in parts_of(target).collect::<Vec<_>>().into_iter().rev() {
            self.parts.push_front(part);
        }
        Ok(())
    }
}

/// What stands before the last name of a path, and that name; `None` if the path ends in `/`, `.`
/// or `..`.
fn split_last(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let start = path.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
    let (above, last) = path.split_at(start);
    (!matches!(last, b"" | b"." | b"..")).then_some((above, last))
}

fn parts_of(path: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    path.split(|&byte| byte == b'/').filter(|part| !part.is_empty()).map(<[u8]>::to_vec)
}

impl<S: Spawn> ClientSession<S> {
    /// What `path` names; symbolic links on the way are followed, one at the end as `last` says.
    pub(crate) async fn find(&self, path: &[u8], last: FinalSymlink) -> Result<Attributes, Cause> {
        self.walk(path, last).await?.existing()
    }

    /// The directory and the last name of a path, for what need not know what is there: a request
    /// less. `None` if only a [walk](Self::walk) can resolve the path.
    pub(crate) async fn place_of(&self, path: &[u8]) -> Result<Option<(Handle, Name)>, Cause> {
        let Some((above, last)) = split_last(path) else { return Ok(None) };
        let name = Name::new(last.to_vec())?;
        if parts_of(above).next().is_none() {
            return Ok(Some((self.root(), name)));
        }
        let above = self.find(above, FinalSymlink::Follow).await?;
        match above.kind {
            Kind::Directory {} => Ok(Some((handle_of(&above), name))),
            _ => Err(FileIoError::NotDirectory {}.into()),
        }
    }

    /// Where `path` ends, whether something is there or not.
    pub(crate) async fn walk(&self, path: &[u8], last: FinalSymlink) -> Result<PathTarget, Cause> {
        if path.is_empty() {
            return Err(Cause::EmptyPath);
        }
        let mut path_walk = PathWalk::new(path);
        let mut here = self.root();
        while let Some(part) = path_walk.parts.pop_front() {
            let at_end = path_walk.parts.is_empty();
            let found = match &part[..] {
                b"." if !at_end => continue,
                b"." => return self.nameless(here).await,
                b".." => {
                    let who = self.who();
                    let above = self.ask(Parent { who, directory: here }).await?;
                    if at_end {
                        return self.nameless(handle_of(&above)).await;
                    }
                    here = handle_of(&above);
                    continue;
                }
                _ => {
                    let name = Name::new(part)?;
                    let (found, lease) =
                        if at_end && last == FinalSymlink::Open && !path_walk.directory_meant {
                            self.open_name(here, &name).await?
                        } else {
                            (self.lookup(here, &name).await?, None)
                        };
                    let is_link = found.is_some_and(|found| found.kind == Kind::Symlink {});
                    let stops =
                        !is_link || (last == FinalSymlink::Keep && !path_walk.directory_meant);
                    if at_end && stops {
                        let place = ended(here, name, found, path_walk.directory_meant)?;
                        return Ok(PathTarget { lease, ..place });
                    }
                    found.ok_or(FileIoError::NotFound {})?
                }
            };
            match found.kind {
                Kind::Directory {} => here = handle_of(&found),
                Kind::Symlink {} => {
                    let target = self.ask(ReadLink { file: handle_of(&found) }).await?;
                    path_walk.follow(&target)?;
                    if target.starts_with(b"/") {
                        here = self.root();
                    }
                }
                _ => return Err(FileIoError::NotDirectory {}.into()),
            }
        }
        self.nameless(here).await
    }

    async fn lookup(&self, directory: Handle, name: &Name) -> Result<Option<Attributes>, Cause> {
        let lookup = Lookup { who: self.who(), directory, name: name.clone() };
        match self.ask(lookup).await {
            Ok(found) => Ok(Some(found)),
            Err(Cause::FileIo(FileIoError::NotFound {})) => Ok(None),
            Err(cause) => Err(cause),
        }
    }

    /// Looks a name up, and holds what it names.
    async fn open_name(
        &self,
        directory: Handle,
        name: &Name,
    ) -> Result<(Option<Attributes>, Option<LeaseReply>), Cause> {
        let (who, call) = (self.who(), self.call());
        match self.ask(Open { who, call, directory, name: name.clone() }).await {
            Ok(OpenedFile { attributes, lease }) => {
                let answered = (lease != 0).then_some(LeaseReply { call, lease });
                Ok((Some(attributes), answered))
            }
            Err(Cause::FileIo(FileIoError::NotFound {})) => Ok((None, None)),
            Err(cause) => Err(cause),
        }
    }

    async fn nameless(&self, directory: Handle) -> Result<PathTarget, Cause> {
        let found = Some(self.ask(GetAttributes { file: directory }).await?);
        Ok(PathTarget { directory, name: None, found, lease: None, directory_meant: true })
    }
}

fn ended(
    directory: Handle,
    name: Name,
    found: Option<Attributes>,
    directory_meant: bool,
) -> Result<PathTarget, Cause> {
    if directory_meant && found.is_some_and(|found| found.kind != Kind::Directory {}) {
        return Err(FileIoError::NotDirectory {}.into());
    }
    Ok(PathTarget { directory, name: Some(name), found, lease: None, directory_meant })
}
