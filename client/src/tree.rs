//! Whole trees: made and removed.

use fileio::protocol::{DirectoryEntry, Error as FileIoError, Handle, Name, handle_of};
use futures::{StreamExt as _, stream};
use runtime::Spawn;

use crate::error::{Cause, Error};
use crate::file_system::FileSystem;
use crate::walk::FinalSymlink;
use crate::{Attributes, Kind};

/// Names that are removed at once, at most.
const REMOVING_MAX: usize = 32;

impl<S: Spawn> FileSystem<S> {
    /// Makes a directory, and those above it that do not exist yet.
    pub async fn mkdir_all(&self, path: impl AsRef<[u8]>) -> Result<Attributes, Error> {
        let path = path.as_ref();
        // From the whole path upwards to what exists, then down again.
        let mut end = path.len();
        let mut missing = Vec::new();
        let mut made = loop {
            match self.metadata(if end == 0 { b"/" } else { &path[..end] }).await {
                Ok(found) if found.kind == (Kind::Directory {}) => break found,
                Ok(_) => {
                    let not_directory = Error::of("make directory", path);
                    return Err(not_directory(FileIoError::NotDirectory {}));
                }
                Err(error) if error.cause.is_not_found() && end > 0 => {
                    missing.push(end);
                    end = parent_end(&path[..end]);
                }
                Err(error) => return Err(Error { operation: "make directory", ..error }),
            }
        };
        for end in missing.into_iter().rev() {
            made = match self.mkdir(&path[..end]).await {
                // Made by another client meanwhile, or the part was `.`.
                Err(error) if error.cause.is_exists() => self.metadata(&path[..end]).await?,
                other => other?,
            };
        }
        Ok(made)
    }

    /// Removes a file, or a directory with all that is in it. Symbolic links are removed, not
    /// followed.
    pub async fn remove_all(&self, path: impl AsRef<[u8]>) -> Result<(), Error> {
        let path = path.as_ref();
        self.remove_tree(path).await.map_err(Error::of("remove", path))
    }

    async fn remove_tree(&self, path: &[u8]) -> Result<(), Cause> {
        let place = self.session.walk(path, FinalSymlink::Keep).await?;
        let found = place.found.ok_or(FileIoError::NotFound {})?;
        let (directory, name) = place.named()?;
        if found.kind != (Kind::Directory {}) {
            return self.remove_name(directory, name).await;
        }
        // A directory leaves this list once it is empty, so the deepest come first.
        let mut open: Vec<(Handle, Name, Handle)> = vec![(directory, name, handle_of(&found))];
        while let Some((above, name, directory)) = open.last().cloned() {
            let page = self.session.read_page(directory, 0, false).await?;
            if page.entries.is_empty() {
                gone_already(self.remove_directory_name(above, name).await)?;
                open.pop();
                continue;
            }
            let is_directory = |entry: &DirectoryEntry| entry.kind == (Kind::Directory {});
            let (directories, files): (Vec<_>, Vec<_>) =
                page.entries.into_iter().partition(is_directory);
            self.remove_names(directory, files).await?;
            open.extend(directories.into_iter().map(|entry| (directory, entry.name, entry.handle)));
        }
        Ok(())
    }

    async fn remove_names(
        &self,
        directory: Handle,
        files: Vec<DirectoryEntry>,
    ) -> Result<(), Cause> {
        let removed = stream::iter(files)
            .map(|entry| self.remove_name(directory, entry.name))
            .buffer_unordered(REMOVING_MAX);
        let results: Vec<Result<(), Cause>> = removed.collect().await;
        results.into_iter().try_for_each(gone_already)
    }
}

/// What another client has removed counts as removed.
fn gone_already(removed: Result<(), Cause>) -> Result<(), Cause> {
    removed.or_else(|cause| if cause.is_not_found() { Ok(()) } else { Err(cause) })
}

/// Where the path above ends; 0 for the root.
fn parent_end(path: &[u8]) -> usize {
    let trimmed = path.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
    let slash = path[..trimmed].iter().rposition(|&byte| byte == b'/').unwrap_or(0);
    path[..slash].iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1)
}

#[cfg(test)]
mod tests {
    use super::parent_end;

    #[test]
    fn the_path_above_ends_before_the_last_name() {
        let above = |path: &'static [u8]| &path[..parent_end(path)];
        assert_eq!(above(b"/a/b"), b"/a");
        assert_eq!(above(b"/a//b//"), b"/a");
        assert_eq!(above(b"a"), b"");
        assert_eq!(above(b"/a/"), b"");
        assert_eq!(above(b"//"), b"");
    }
}
