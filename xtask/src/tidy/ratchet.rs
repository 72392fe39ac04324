//! Counts that may only fall. [`TABLE`] holds the counts that are allowed. A count above its row is
//! a breach. Below it, `cargo xtask tidy --write` lowers the row.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use super::breach::{Breach, Measure, TABLE, row};
use super::tree::SourceTree;
use super::{cycles, documents, types, vocabulary};

/// Places that are printed for one breach, at most.
const PLACES_MAX: usize = 12;

/// A rule that counts.
struct Ratchet {
    /// Its name in the table.
    kind: &'static str,
    count: fn(&SourceTree) -> Vec<Measure>,
    /// Rows never fall below this; what has no row may be this much.
    floor: usize,
    /// Rows stay when their count is zero: the rule reads its keys from the table.
    keeps_rows: bool,
    /// What to do instead.
    advice: &'static str,
}

const RATCHETS: &[Ratchet] = &[
    Ratchet {
        kind: "phrase",
        count: vocabulary::phrases,
        floor: 0,
        keeps_rows: true,
        advice: "write plain English: name who acts, and what happens",
    },
    Ratchet {
        kind: "identifier",
        count: vocabulary::identifiers,
        floor: 0,
        keeps_rows: true,
        advice: "use the standard term (GLOSSARY.md)",
    },
    Ratchet {
        kind: "type name",
        count: types::names_defined_twice,
        floor: 0,
        keeps_rows: false,
        advice: "one name, one type: say what it is about (`MetricRow`, not `Row`)",
    },
    Ratchet {
        kind: "methods",
        count: types::methods,
        floor: types::METHODS_MAX,
        keeps_rows: false,
        advice: "split the type into components that own their state",
    },
    Ratchet {
        kind: "cycle",
        count: cycles::files_in_cycles,
        floor: 0,
        keeps_rows: false,
        advice: "these files import one another in a circle: move what they share below them",
    },
    Ratchet {
        kind: "missing path",
        count: documents::missing_paths,
        floor: 0,
        keeps_rows: false,
        advice: "a document names a file that does not exist: correct the path",
    },
    Ratchet {
        kind: "unknown command",
        count: documents::unknown_commands,
        floor: 0,
        keeps_rows: false,
        advice: "a document names a command or an option that the program does not have",
    },
    Ratchet {
        kind: "words",
        count: documents::words,
        floor: documents::WORDS_MAX,
        keeps_rows: true,
        advice: "shorten, merge or remove pages",
    },
    Ratchet {
        kind: "wide lines",
        count: documents::wide_lines,
        floor: 0,
        keeps_rows: false,
        advice: "break comments and prose at 100 columns",
    },
];

/// The rows of the table by kind and key.
type Rows = BTreeMap<(String, String), usize>;

fn rows(tree: &SourceTree) -> Rows {
    let text = tree.file(TABLE).map(|file| file.text.as_str()).unwrap_or_default();
    let rows = text.lines().filter_map(row);
    rows.map(|(kind, key, count)| ((kind.to_owned(), key.to_owned()), count)).collect()
}

/// No count has risen above its row.
pub(super) fn no_count_rises(tree: &SourceTree) -> Vec<Breach> {
    compare(RATCHETS, tree).0
}

/// The counts that have fallen, one line each.
pub(super) fn fallen(tree: &SourceTree) -> Vec<String> {
    compare(RATCHETS, tree).1
}

/// The breaches, and the rows that are too high.
fn compare(ratchets: &[Ratchet], tree: &SourceTree) -> (Vec<Breach>, Vec<String>) {
    let mut rows = rows(tree);
    let mut breaches = Vec::new();
    let mut fallen = Vec::new();
    for ratchet in ratchets {
        for found in (ratchet.count)(tree) {
            let row = rows.remove(&(ratchet.kind.to_owned(), found.key.clone()));
            let allowed = row.unwrap_or(0).max(ratchet.floor);
            if found.count > allowed {
                breaches.push(breach(ratchet, &found, allowed));
            } else if row.is_some_and(|row| found.count.max(ratchet.floor) < row) {
                fallen.push(format!("{} `{}`: {}", ratchet.kind, found.key, found.count));
            }
        }
    }
    let left = rows.iter().filter(|(_, count)| **count > 0);
    fallen.extend(left.map(|((kind, key), _)| format!("{kind} `{key}`: 0")));
    (breaches, fallen)
}

fn breach(ratchet: &Ratchet, found: &Measure, allowed: usize) -> Breach {
    let Ratchet { kind, advice, .. } = ratchet;
    let Measure { key, count, places } = found;
    let (file, line) = places.first().map_or((TABLE, 1), |(file, line)| (file.as_str(), *line));
    let mut message = format!("{kind} `{key}`: {count}, allowed are {allowed}: {advice}");
    let shown = places.iter().take(PLACES_MAX).map(|(file, line)| format!("\n    {file}:{line}"));
    message.extend(shown);
    if places.len() > PLACES_MAX {
        message.extend([format!("\n    and {} more", places.len() - PLACES_MAX)]);
    }
    Breach::new(file, line, message)
}

/// Lowers the rows of the table in the folder `top` to the counts of `tree`.
pub(super) fn write(top: &Path, tree: &SourceTree) -> io::Result<()> {
    let Some(table) = tree.file(TABLE) else { return Ok(()) };
    let lowered = lowered(RATCHETS, tree);
    if lowered == table.text { Ok(()) } else { fs::write(top.join(TABLE), lowered) }
}

/// The table with each row at its count, if that is lower.
fn lowered(ratchets: &[Ratchet], tree: &SourceTree) -> String {
    let old = rows(tree);
    let table = tree.file(TABLE).map(|file| file.text.as_str()).unwrap_or_default();
    let comments = table.lines().filter(|line| line.starts_with('#'));
    let mut lines: Vec<String> = comments.map(str::to_owned).collect();
    for ratchet in ratchets {
        let counts: BTreeMap<String, usize> =
            (ratchet.count)(tree).into_iter().map(|found| (found.key, found.count)).collect();
        for ((_, key), row) in old.iter().filter(|((kind, _), _)| kind == ratchet.kind) {
            let count = counts.get(key).copied().unwrap_or(0).max(ratchet.floor).min(*row);
            if count > ratchet.floor || ratchet.keeps_rows {
                lines.push(format!("{}\t{key}\t{count}", ratchet.kind));
            }
        }
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratchet(kind: &'static str, keeps_rows: bool) -> Ratchet {
        let count = |tree: &SourceTree| {
            let text = tree.file("a.rs").map(|file| file.text.as_str()).unwrap_or_default();
            let places = |word| text.matches(word).map(|_| ("a.rs".to_owned(), 1)).collect();
            vec![Measure::of_places("x", places("x")), Measure::of_places("y", places("y"))]
        };
        Ratchet { kind, count, floor: 1, keeps_rows, advice: "do not" }
    }

    #[test]
    fn a_count_that_rises_is_a_breach_and_one_that_falls_is_a_hint() {
        let table = "# Counts.\nletter\tx\t3\nletter\tz\t2\n";
        let compared = |code| {
            let tree = SourceTree::of(&[("a.rs", code), (TABLE, table)]);
            let (breaches, fallen) = compare(&[ratchet("letter", false)], &tree);
            (breaches.into_iter().map(|b| b.message).collect::<Vec<_>>(), fallen)
        };
        let (breaches, fallen) = compared("xxx y");
        assert_eq!((breaches.len(), fallen), (0, vec!["letter `z`: 0".to_owned()]));
        let (breaches, _) = compared("xxxx yy");
        assert!(breaches[0].contains("`x`: 4, allowed are 3: do not\n    a.rs:1"), "{breaches:?}");
        assert!(breaches[1].contains("`y`: 2, allowed are 1"), "{breaches:?}");
        assert_eq!(compared("xx").1, ["letter `x`: 2", "letter `z`: 0"]);
    }

    #[test]
    fn rows_are_lowered_and_never_raised() {
        let table = "# Counts.\nletter\tx\t3\nletter\ty\t2\nletter\tz\t2\n";
        let lowered = |code, keeps_rows| {
            let tree = SourceTree::of(&[("a.rs", code), (TABLE, table)]);
            lowered(&[ratchet("letter", keeps_rows)], &tree)
        };
        assert_eq!(lowered("xx yyy", false), "# Counts.\nletter\tx\t2\nletter\ty\t2\n");
        assert_eq!(lowered("xxxx", true), "# Counts.\nletter\tx\t3\nletter\ty\t1\nletter\tz\t1\n");
    }
}
