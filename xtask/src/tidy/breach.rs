//! What a rule finds: a breach, or a count to be compared with the table of the ratchet.

use super::tree::SourceTree;

/// One place that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Breach {
    /// The file, from the top of the tree.
    pub(super) file: String,
    /// The line, counted from 1.
    pub(super) line: usize,
    /// What is wrong and what to do about it.
    pub(super) message: String,
}

impl Breach {
    pub(super) fn new(file: &str, line: usize, message: impl Into<String>) -> Self {
        Self { file: file.to_owned(), line, message: message.into() }
    }
}

/// The table: lines of kind, key and count, separated by tabs.
pub(super) const TABLE: &str = "xtask/src/tidy/ratchet.tsv";

/// What a rule has counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Measure {
    /// What was counted, as in the table.
    pub(super) key: String,
    /// How much of it there is.
    pub(super) count: usize,
    /// Some of the places: file and line.
    pub(super) places: Vec<(String, usize)>,
}

impl Measure {
    /// Places that are counted one by one.
    pub(super) fn of_places(key: impl Into<String>, places: Vec<(String, usize)>) -> Self {
        Self { key: key.into(), count: places.len(), places }
    }
}

/// The keys of one kind.
pub(super) fn keys<'a>(tree: &'a SourceTree, kind: &'a str) -> impl Iterator<Item = &'a str> {
    let text = tree.file(TABLE).map(|file| file.text.as_str()).unwrap_or_default();
    text.lines().filter_map(row).filter(move |row| row.0 == kind).map(|row| row.1)
}

/// Kind, key and count of a line of the table.
pub(super) fn row(line: &str) -> Option<(&str, &str, usize)> {
    let mut cells = line.split('\t');
    let (kind, key, count) = (cells.next()?, cells.next()?, cells.next()?);
    (!kind.starts_with('#')).then_some((kind, key, count.parse().ok()?))
}
