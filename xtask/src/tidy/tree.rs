//! The files of the tree.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::OnceLock;

use super::code;

/// Folders of these names are no part of the tree.
const SKIPPED: &[&str] = &["target", ".git"];

/// Longer files are not read.
const FILE_SIZE_MAX: u64 = 4 << 20;

/// One text file.
#[derive(Clone, Debug)]
pub(crate) struct TextFile {
    /// Its path from the top of the tree.
    pub(crate) path: String,
    /// Its content.
    pub(crate) text: String,
    code: OnceLock<String>,
}

impl TextFile {
    fn new(path: String, text: String) -> Self {
        Self { path, text, code: OnceLock::new() }
    }

    /// Its content without comments and literals; what is left stays in its place.
    pub(crate) fn code(&self) -> &str {
        self.code.get_or_init(|| code::code_of(&self.text))
    }

    /// True if the name ends in one of `extensions`.
    pub(crate) fn is_of(&self, extensions: &[&str]) -> bool {
        let (_, extension) = self.path.rsplit_once('.').unwrap_or_default();
        extensions.contains(&extension)
    }

    /// Its lines with their numbers.
    pub(super) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        (1..).zip(self.text.lines())
    }
}

/// All files.
#[derive(Clone, Debug, Default)]
pub(crate) struct SourceTree {
    files: Vec<TextFile>,
    /// Paths that are no text: pictures and the like.
    others: Vec<String>,
}

impl SourceTree {
    /// Reads everything below `top`.
    pub(crate) fn read(top: &Path) -> io::Result<Self> {
        let mut tree = Self::default();
        tree.read_folder(top, "")?;
        tree.files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(tree)
    }

    fn read_folder(&mut self, folder: &Path, prefix: &str) -> io::Result<()> {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = format!("{prefix}{name}");
            if SKIPPED.contains(&name.as_str()) {
                continue;
            }
            if entry.file_type()?.is_dir() {
                self.read_folder(&entry.path(), &format!("{path}/"))?;
                continue;
            }
            match read_text(&entry)? {
                Some(text) => self.files.push(TextFile::new(path, text)),
                None => self.others.push(path),
            }
        }
        Ok(())
    }

    /// A tree of these files, for tests.
    #[cfg(test)]
    pub(super) fn of(files: &[(&str, &str)]) -> Self {
        let file = |&(path, text): &(&str, &str)| TextFile::new(path.into(), text.into());
        Self { files: files.iter().map(file).collect(), others: Vec::new() }
    }

    /// The text files, in the order of their paths.
    pub(crate) fn files(&self) -> &[TextFile] {
        &self.files
    }

    /// The text files whose names end in one of `extensions`.
    pub(crate) fn of_kind(&self, extensions: &[&str]) -> impl Iterator<Item = &TextFile> {
        self.files.iter().filter(move |file| file.is_of(extensions))
    }

    /// One text file.
    pub(crate) fn file(&self, path: &str) -> Option<&TextFile> {
        self.files.iter().find(|file| file.path == path)
    }

    /// True if `path` is a file or a folder of the tree.
    pub(super) fn contains(&self, path: &str) -> bool {
        let folder = format!("{path}/");
        let paths = self.files.iter().map(|file| &file.path).chain(&self.others);
        path.is_empty() || paths.into_iter().any(|p| p == path || p.starts_with(&folder))
    }

    /// True if the path of some text file ends in `ending`.
    pub(super) fn has_ending(&self, ending: &str) -> bool {
        self.files.iter().any(|file| file.path.ends_with(ending))
    }

    /// The folders that hold a crate, and their manifests.
    pub(super) fn crates(&self) -> impl Iterator<Item = (&str, &TextFile)> {
        self.files.iter().filter_map(|file| Some((file.path.strip_suffix("/Cargo.toml")?, file)))
    }

    /// The folders at the top, but for those that begin with a dot.
    pub(super) fn top_folders(&self) -> Vec<&str> {
        let paths = self.files.iter().map(|file| &file.path).chain(&self.others);
        let folders = paths.filter_map(|path| path.split_once('/')).map(|(folder, _)| folder);
        let mut folders: Vec<&str> = folders.filter(|folder| !folder.starts_with('.')).collect();
        folders.sort_unstable();
        folders.dedup();
        folders
    }
}

/// The content of a file, if it is text and short enough to be a part of this project: there may be
/// a volume beside the code.
fn read_text(entry: &fs::DirEntry) -> io::Result<Option<String>> {
    if !entry.file_type()?.is_file() || entry.metadata()?.len() > FILE_SIZE_MAX {
        return Ok(None);
    }
    Ok(String::from_utf8(fs::read(entry.path())?).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_knows_its_folders() {
        let tree = SourceTree::of(&[(".ci/run", ""), ("a/b/Cargo.toml", ""), ("a/c.rs", "")]);
        assert_eq!(tree.top_folders(), ["a"]);
        assert!(tree.contains("a/b") && tree.contains("a/c.rs") && !tree.contains("a/c"));
        assert_eq!(tree.crates().map(|(folder, _)| folder).collect::<Vec<_>>(), ["a/b"]);
    }
}
