//! The files of the tree, and Rust code without its comments and literals.

use std::fs;
use std::io;
use std::path::Path;

/// Folders of these names are no part of the tree.
const SKIPPED: &[&str] = &["target", ".git"];

/// Longer files are not read.
const FILE_SIZE_MAX: u64 = 4 << 20;

/// One text file.
#[derive(Clone, Debug)]
pub(crate) struct File {
    /// Its path from the top of the tree.
    pub(crate) path: String,
    /// Its content.
    pub(crate) text: String,
}

impl File {
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
pub(crate) struct Tree {
    files: Vec<File>,
    /// Paths that are no text: pictures and the like.
    others: Vec<String>,
}

impl Tree {
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
                Some(text) => self.files.push(File { path, text }),
                None => self.others.push(path),
            }
        }
        Ok(())
    }

    /// A tree of these files, for tests.
    #[cfg(test)]
    pub(super) fn of(files: &[(&str, &str)]) -> Self {
        let file = |&(path, text): &(&str, &str)| File { path: path.into(), text: text.into() };
        Self { files: files.iter().map(file).collect(), others: Vec::new() }
    }

    /// The text files, in the order of their paths.
    pub(crate) fn files(&self) -> &[File] {
        &self.files
    }

    /// The text files whose names end in one of `extensions`.
    pub(crate) fn of_kind(&self, extensions: &[&str]) -> impl Iterator<Item = &File> {
        self.files.iter().filter(move |file| file.is_of(extensions))
    }

    /// One text file.
    pub(crate) fn file(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }

    /// True if `path` is a file or a folder of the tree.
    pub(super) fn contains(&self, path: &str) -> bool {
        let folder = format!("{path}/");
        let paths = self.files.iter().map(|file| &file.path).chain(&self.others);
        path.is_empty() || paths.into_iter().any(|p| p == path || p.starts_with(&folder))
    }

    /// The folders that hold a crate, and their manifests.
    pub(super) fn crates(&self) -> impl Iterator<Item = (&str, &File)> {
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

/// The content of a file, if it is text and short enough to be a part of this project: somebody may
/// keep a volume beside the code.
fn read_text(entry: &fs::DirEntry) -> io::Result<Option<String>> {
    if !entry.file_type()?.is_file() || entry.metadata()?.len() > FILE_SIZE_MAX {
        return Ok(None);
    }
    Ok(String::from_utf8(fs::read(entry.path())?).ok())
}

/// `text` with comments, strings and characters blanked out; what is left stays in its place.
pub(super) fn code_of(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let in_word = code.chars().next_back().is_some_and(is_word);
        if let Some(length) = blank_length(rest, in_word) {
            let (token, after) = rest.split_at(length);
            code.extend(token.chars().map(|c| if c == '\n' { c } else { ' ' }));
            rest = after;
        } else {
            code.push(first);
            rest = &rest[first.len_utf8()..];
        }
    }
    code
}

/// The length of the comment or literal that `rest` begins with.
fn blank_length(rest: &str, in_word: bool) -> Option<usize> {
    if rest.starts_with("//") {
        return Some(rest.find('\n').unwrap_or(rest.len()));
    }
    if rest.starts_with("/*") {
        return Some(comment_length(rest));
    }
    if rest.starts_with('"') {
        return Some(string_length(rest));
    }
    let raw = rest.strip_prefix('b').unwrap_or(rest);
    if raw.starts_with('r') && !in_word {
        return raw_length(raw).map(|length| length + rest.len() - raw.len());
    }
    char_length(rest)
}

/// Block comments nest.
fn comment_length(rest: &str) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < rest.len() {
        let here = &rest[at..];
        if here.starts_with("/*") {
            depth += 1;
            at += 2;
        } else if here.starts_with("*/") {
            depth -= 1;
            at += 2;
        } else {
            at += here.chars().next().map_or(1, char::len_utf8);
        }
        if depth == 0 {
            return at;
        }
    }
    rest.len()
}

fn string_length(rest: &str) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

/// `r"..."`, `r#"..."#` and so on.
fn raw_length(rest: &str) -> Option<usize> {
    let hashes = rest[1..].chars().take_while(|c| *c == '#').count();
    let start = 1 + hashes;
    if !rest[start..].starts_with('"') {
        return None;
    }
    let end = format!("\"{}", "#".repeat(hashes));
    let content = &rest[start + 1..];
    Some(content.find(&end).map_or(rest.len(), |at| start + 1 + at + end.len()))
}

/// `'x'` and `'\n'`, but not the lifetime `'x`.
fn char_length(rest: &str) -> Option<usize> {
    let content = rest.strip_prefix('\'')?;
    if let Some(escape) = content.strip_prefix('\\') {
        let first = escape.chars().next()?.len_utf8();
        return escape[first..].find('\'').map(|at| 2 + first + at + 1);
    }
    let first = content.chars().next()?.len_utf8();
    content[first..].starts_with('\'').then_some(1 + first + 1)
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// True if `line` contains `word`, not as a part of a longer word.
pub(super) fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        !before.is_some_and(is_word) && !after.is_some_and(is_word)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_what_is_no_comment_and_no_literal() {
        let cases = [
            ("a // b\nc", "a     \nc"),
            ("a /* b /* c */\n d */ e", "a             \n      e"),
            (r#"f("a\"b", c)"#, "f(      , c)"),
            ("r\"a\\\" b", "      b"),
            ("r#\"a\"b\"# c", "         c"),
            ("br\"a\\\" b", "       b"),
            ("for\"x\"", "for   "),
            (r"x: &'a u8 = '\'' 'b' '\u{41}'", "x: &'a u8 =                  "),
        ];
        for (text, code) in cases {
            assert_eq!(code_of(text).trim_end(), code.trim_end(), "{text}");
            assert_eq!(code_of(text).len(), text.len(), "{text}");
        }
    }

    #[test]
    fn a_word_is_no_part_of_a_longer_word() {
        assert!(has_word("an unsafe block", "unsafe"));
        assert!(!has_word("deny(unsafe_code)", "unsafe"));
    }

    #[test]
    fn a_tree_knows_its_folders() {
        let tree = Tree::of(&[(".ci/run", ""), ("a/b/Cargo.toml", ""), ("a/c.rs", "")]);
        assert_eq!(tree.top_folders(), ["a"]);
        assert!(tree.contains("a/b") && tree.contains("a/c.rs") && !tree.contains("a/c"));
        assert_eq!(tree.crates().map(|(folder, _)| folder).collect::<Vec<_>>(), ["a/b"]);
    }
}
