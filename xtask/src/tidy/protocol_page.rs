//! docs/protocol.md shows every table of messages as it is in the code, and the changelog gives the
//! wire version of every layer.
//!
//! The prose of the page is written by hand; its tables stand between two marks each and are
//! rewritten from the code by `cargo xtask tidy --write`.

use std::fs;
use std::io;
use std::path::Path;

use super::breach::Breach;
use super::code::has_word;
use super::tables::{self, Tables};
use super::tree::{SourceTree, TextFile};

const PAGE: &str = "docs/protocol.md";
const CHANGELOG: &str = "CHANGELOG.md";
const END: &str = "<!-- end of tables -->\n";

/// The mark before the tables of the file `path`.
fn mark(path: &str) -> String {
    format!("<!-- tables of {path}: cargo xtask tidy --write -->\n")
}

/// The runtime's part of every message.
const OF_RUNTIME: &[&str] = &["runtime/src/protocol.rs", "runtime/transport/src/frame.rs"];

/// Files of a layer with such tables.
const TABLES: &[&str] = &[
    "/src/protocol.rs",
    "/src/attributes.rs",
    "/src/operations.rs",
    "/src/lock_types.rs",
    "/src/chunk_types.rs",
    "/src/regions/mod.rs",
];

/// The files whose tables are parts of messages.
fn is_described(path: &str) -> bool {
    let in_layer = path.starts_with("layers/");
    let is_table = TABLES.iter().any(|name| path.ends_with(name));
    OF_RUNTIME.contains(&path) || (in_layer && is_table)
}

fn described(tree: &SourceTree) -> impl Iterator<Item = (&TextFile, Result<Tables, usize>)> {
    let files = tree.files().iter().filter(|file| is_described(&file.path));
    files.map(|file| (file, tables::read(&file.text)))
}

/// The tables of the page are those of the code.
pub(super) fn has_every_row(tree: &SourceTree) -> Vec<Breach> {
    let page = tree.file(PAGE).map(|file| file.text.as_str()).unwrap_or_default();
    let check = |(file, tables): (&TextFile, Result<Tables, usize>)| match tables {
        Ok(tables) => difference(&file.path, &shown(&tables), page),
        Err(line) => {
            let message = "this table cannot be read: write it as the others, or teach \
                           xtask/src/tidy/tables.rs its form";
            Some(Breach::new(&file.path, line, message))
        }
    };
    described(tree).filter_map(check).collect()
}

/// Where `page` first differs from what it should show of `path`.
fn difference(path: &str, wanted: &str, page: &str) -> Option<Breach> {
    let Some((before, found, _)) = between_marks(page, path) else {
        let message = format!("the tables of {path} are missing: add a section with the lines\n");
        return Some(Breach::new(PAGE, 1, message + &mark(path) + END.trim_end()));
    };
    let first = before.lines().count() + 1;
    let (found, wanted): (Vec<_>, Vec<_>) = (found.lines().collect(), wanted.lines().collect());
    let same = found.iter().zip(&wanted).take_while(|(found, wanted)| found == wanted).count();
    (found != wanted).then(|| {
        let is = found.get(same).unwrap_or(&"(nothing)");
        let should = wanted.get(same).unwrap_or(&"(nothing)");
        let message = format!(
            "not as in {path}: run `cargo xtask tidy --write`\n  page: {is}\n  code: {should}"
        );
        Breach::new(PAGE, first + same, message)
    })
}

/// The page up to and with the mark of `path`, its tables, and the rest.
fn between_marks<'a>(page: &'a str, path: &str) -> Option<(&'a str, &'a str, &'a str)> {
    let mark = mark(path);
    let start = page.find(&mark)? + mark.len();
    let length = page[start..].find(END)?;
    Some((&page[..start], &page[start..start + length], &page[start + length..]))
}

/// The tables of one file as the page shows them.
fn shown(tables: &Tables) -> String {
    let layer = tables
        .layer
        .as_ref()
        .map(|layer| format!("\n`{}`, id {}, version {}.\n", layer.name, layer.id, layer.version));
    let requests = [
        "tag", "class", "request", "fields", "reply", "by", "retry", "from", "recovery", "meaning",
    ];
    let parts = [
        layer.unwrap_or_default(),
        table(&requests, &tables.requests),
        table(&["record", "fields", "meaning"], &tables.records),
        table(&["choice", "tag", "variant", "fields", "meaning"], &tables.variants),
    ];
    parts.concat() + "\n"
}

fn table(columns: &[&str], rows: &[String]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let head = format!("| {} |", columns.join(" | "));
    let rule = "| --- ".repeat(columns.len()) + "|";
    format!("\n{head}\n{rule}\n{}\n", rows.join("\n"))
}

/// Rewrites the tables of the page below `top` from the code.
pub(super) fn write(top: &Path, tree: &SourceTree) -> io::Result<()> {
    let Some(file) = tree.file(PAGE) else { return Ok(()) };
    let page = rewritten(&file.text, tree);
    if page != file.text {
        fs::write(top.join(PAGE), page)?;
        println!("{PAGE}: tables written");
    }
    Ok(())
}

fn rewritten(page: &str, tree: &SourceTree) -> String {
    let mut page = page.to_owned();
    for (file, tables) in described(tree) {
        if let (Ok(tables), Some((before, _, after))) = (tables, between_marks(&page, &file.path)) {
            page = [before, &shown(&tables), after].concat();
        }
    }
    page
}

/// The newest entry of the changelog gives the wire version of each layer.
pub(super) fn changelog_has_every_version(tree: &SourceTree) -> Vec<Breach> {
    let changelog = tree.file(CHANGELOG).map(|file| file.text.as_str()).unwrap_or_default();
    let newest = changelog.split("\n## ").nth(1).unwrap_or_default();
    let layers = described(tree).filter_map(|(_, tables)| tables.ok()?.layer);
    let versions = layers.map(|layer| format!("{} {}", layer.name, layer.version));
    let missing = versions.filter(|version| !has_word(newest, version));
    let message = |version| format!("the newest entry must give the wire version: {version}");
    missing.map(|version| Breach::new(CHANGELOG, 1, message(version))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: &str = "layers/ping/src/protocol.rs";
    const CODE: &str = "runtime::protocol! {\n    Ping id 3 version 2;\n    /// Read.\n    \
        1 Bulk Read { at: u64 } -> Bytes,\n        by inode(at), retry idempotent, from any, after recovery;\n}\n";

    fn tree(page: &str) -> SourceTree {
        SourceTree::of(&[(PATH, CODE), (PAGE, page)])
    }

    fn written() -> String {
        rewritten(&format!("# Page\n\n{}{END}\nEnd.\n", mark(PATH)), &tree(""))
    }

    #[test]
    fn a_written_page_shows_the_code() {
        let page = written();
        let row = "| 1 | Bulk | `Read` | `at: u64` | `Bytes` | inode(at) | idempotent | any | after | Read. |\n";
        assert!(page.contains(row), "{page}");
        assert!(page.contains("\n`Ping`, id 3, version 2.\n"), "{page}");
        assert!(page.ends_with("\nEnd.\n"), "{page}");
        assert_eq!(has_every_row(&tree(&page)), []);
        assert_eq!(rewritten(&page, &tree(&page)), page, "written twice is written once");
    }

    #[test]
    fn a_page_that_differs_from_the_code_is_told() {
        assert_eq!(has_every_row(&tree("# Page\n")).len(), 1);
        let page = written();
        for (from, to) in [("at: u64", "at: u32"), ("version 2", "version 1"), ("| Read. |\n", "")]
        {
            let changed = page.replace(from, to);
            let breaches = has_every_row(&tree(&changed));
            assert_eq!(breaches.len(), 1, "{from}: {breaches:?}");
            let told = changed.lines().nth(breaches[0].line - 1);
            assert_ne!(
                told,
                page.lines().nth(breaches[0].line - 1),
                "{from}: the line that differs"
            );
        }
    }

    #[test]
    fn a_version_that_the_changelog_does_not_give_is_told() {
        let changelog = "# Changes\n\n## 0.2\n\nWire: Ping 1.\n\n## 0.1\n\nWire: Ping 2.\n";
        let tree = SourceTree::of(&[(PATH, CODE), (CHANGELOG, changelog)]);
        assert_eq!(changelog_has_every_version(&tree).len(), 1);
        let told = changelog.replace("Ping 1", "Ping 2");
        let tree = SourceTree::of(&[(PATH, CODE), (CHANGELOG, &told)]);
        assert_eq!(changelog_has_every_version(&tree), []);
    }
}
