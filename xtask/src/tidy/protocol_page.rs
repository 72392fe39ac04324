//! docs/protocol.md describes every message, and nothing that is gone; the changelog gives the wire
//! version of every layer.

use super::Breach;
use super::tables::{self, Tables};
use super::tree::{File, Tree, has_word};

const PAGE: &str = "docs/protocol.md";
const CHANGELOG: &str = "CHANGELOG.md";

/// The files whose tables are parts of messages.
fn is_described(path: &str) -> bool {
    let of_layer = path.starts_with("layers/");
    path == "runtime/src/protocol.rs"
        || (of_layer
            && (path.ends_with("/src/protocol.rs") || path.ends_with("/src/attributes.rs")))
}

/// The files with tables, and those that cannot be read.
fn described(tree: &Tree) -> impl Iterator<Item = (&File, Result<Tables, usize>)> {
    let files = tree.files().iter().filter(|file| is_described(&file.path));
    files.map(|file| (file, tables::read(&file.text)))
}

/// The page has a section for each file with tables, and in it a line for each row; no line is left
/// from a row that is gone.
pub(super) fn has_every_row(tree: &Tree) -> Vec<Breach> {
    let page = tree.file(PAGE).map(|file| file.text.as_str()).unwrap_or_default();
    let mut breaches = Vec::new();
    for (file, tables) in described(tree) {
        match tables {
            Ok(tables) => breaches.extend(differences(file, &tables, page)),
            Err(line) => {
                let message = "this table cannot be read: write it as the others, or teach \
                               xtask/src/tidy/tables.rs its form";
                breaches.push(Breach::new(&file.path, line, message));
            }
        }
    }
    breaches
}

fn differences(file: &File, tables: &Tables, page: &str) -> Vec<Breach> {
    let Some(section) = section(page, &file.path) else {
        let message = format!("{PAGE} needs a section `## ... (`{}`)`", file.path);
        return vec![Breach::new(&file.path, 1, message)];
    };
    let mut breaches = Vec::new();
    if let Some(layer) = &tables.layer {
        let version = format!("`{}`, id {}, version {}.", layer.name, layer.id, layer.version);
        if !section.iter().any(|(_, text)| text.contains(&version)) {
            let message = format!("the section of `{}` must say: {version}", file.path);
            breaches.push(Breach::new(PAGE, section[0].0, message));
        }
    }
    for row in &tables.rows {
        if !section.iter().any(|(_, text)| text.starts_with(&row.text)) {
            let message = format!("{PAGE} has no line for this row; add: {}", row.text);
            breaches.push(Breach::new(&file.path, row.line, message));
        }
    }
    for (line, text) in rows_of(&section) {
        if !tables.rows.iter().any(|row| text.starts_with(&row.text)) {
            let message = format!("no row of {} is like this one: correct or remove it", file.path);
            breaches.push(Breach::new(PAGE, line, message));
        }
    }
    breaches
}

/// The lines of the section whose heading names `path`, with their numbers.
fn section<'a>(page: &'a str, path: &str) -> Option<Vec<(usize, &'a str)>> {
    let named = format!("`{path}`");
    let is_heading = |text: &str| text.starts_with("## ");
    let lines = (1..).zip(page.lines());
    let mut rest = lines.skip_while(|(_, text)| !(is_heading(text) && text.contains(&named)));
    let heading = rest.next()?;
    let body = rest.take_while(|(_, text)| !is_heading(text));
    Some(std::iter::once(heading).chain(body).collect())
}

/// The lines of tables below their headings.
fn rows_of<'a>(section: &[(usize, &'a str)]) -> Vec<(usize, &'a str)> {
    let is_rule = |text: &str| text.starts_with("| -");
    let mut rows = Vec::new();
    let mut below_rule = false;
    for (line, text) in section {
        below_rule = is_rule(text) || (below_rule && text.starts_with('|'));
        if below_rule && !is_rule(text) {
            rows.push((*line, *text));
        }
    }
    rows
}

/// The newest entry of the changelog gives the wire version of each layer.
pub(super) fn changelog_has_every_version(tree: &Tree) -> Vec<Breach> {
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

    const TABLE: (&str, &str) = (
        "layers/ping/src/protocol.rs",
        "runtime::protocol! {\n    Ping id 3 version 2;\n    1 Bulk Read { at: u64 } -> Bytes;\n}\n",
    );
    const SECTION: &str = "# Page\n\n## Ping (`layers/ping/src/protocol.rs`)\n\n`Ping`, id 3, \
        version 2.\n\n| tag | class |\n| --- | --- |\n\
        | 1 | Bulk | `Read` | `at: u64` | `Bytes` | Read. |\n\n## Other\n\n| 2 |\n";

    fn breaches(page: &str) -> Vec<(String, usize)> {
        let tree = Tree::of(&[TABLE, (PAGE, page)]);
        has_every_row(&tree).into_iter().map(|breach| (breach.file, breach.line)).collect()
    }

    #[test]
    fn a_page_with_every_row_is_complete() {
        assert_eq!(breaches(SECTION), []);
    }

    #[test]
    fn a_row_that_is_missing_or_changed_is_told_on_both_sides() {
        let table = TABLE.0.to_owned();
        assert_eq!(breaches("# Page\n"), [(table.clone(), 1)]);
        let changed = SECTION.replace("at: u64", "at: u32");
        assert_eq!(breaches(&changed), [(table.clone(), 3), (PAGE.into(), 9)]);
        let other_tag = SECTION.replace("| 1 | Bulk", "| 2 | Bulk");
        assert_eq!(breaches(&other_tag), [(table, 3), (PAGE.into(), 9)]);
        assert_eq!(breaches(&SECTION.replace("version 2", "version 1")), [(PAGE.into(), 3)]);
    }

    #[test]
    fn a_version_that_the_changelog_does_not_give_is_told() {
        let changelog = "# Changes\n\n## 0.2\n\nWire: Ping 1.\n\n## 0.1\n\nWire: Ping 2.\n";
        let tree = Tree::of(&[TABLE, (CHANGELOG, changelog)]);
        assert_eq!(changelog_has_every_version(&tree).len(), 1);
        let told = changelog.replace("Ping 1", "Ping 2");
        let tree = Tree::of(&[TABLE, (CHANGELOG, &told)]);
        assert_eq!(changelog_has_every_version(&tree), []);
    }
}
