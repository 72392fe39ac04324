//! Types: one name for one type, and none with too many methods.

use std::collections::BTreeMap;

use super::breach::Measure;
use super::code::is_word;
use super::product::{ProductFile, sources};
use super::tree::SourceTree;

/// Methods of one type, at most; those that macros make do not count.
pub(super) const METHODS_MAX: usize = 40;

/// Names that say what a type is by the module they are in.
const CONVENTIONAL: &[&str] =
    &["Error", "Config", "Server", "Client", "Request", "Reply", "Status", "Limits", "Builder"];

type Places = BTreeMap<String, Vec<(String, usize)>>;

/// Names of structs, enums, unions, traits and type aliases that are defined more than once outside
/// tests: how many definitions too many. Types that macros define are not seen.
pub(super) fn names_defined_twice(tree: &SourceTree) -> Vec<Measure> {
    let mut places = Places::new();
    for source in sources(tree) {
        for (line, text) in (1..).zip(source.code.lines()) {
            if let Some(name) = defined(text).filter(|name| !CONVENTIONAL.contains(name)) {
                places.entry(name.to_owned()).or_default().push((source.file.path.clone(), line));
            }
        }
    }
    let twice = places.into_iter().filter(|(_, places)| places.len() > 1);
    twice.map(|(key, places)| Measure { key, count: places.len() - 1, places }).collect()
}

/// The type that `line` defines. An indented alias is an associated type.
fn defined(line: &str) -> Option<&str> {
    let item = item(line);
    let (keyword, name) = item.split_once(' ')?;
    let is_type = match keyword {
        "struct" | "enum" | "union" | "trait" => true,
        "type" => !line.starts_with(' '),
        _ => false,
    };
    let name = name.split(|c| !is_word(c)).next()?;
    (is_type && name.starts_with(char::is_uppercase)).then_some(name)
}

/// `line` without its indentation and the qualifiers before the keyword.
fn item(line: &str) -> &str {
    let mut item = line.trim_start();
    if let Some(rest) = item.strip_prefix("pub") {
        let rest = rest
            .strip_prefix('(')
            .and_then(|rest| rest.split_once(')'))
            .map_or(rest, |(_, rest)| rest);
        item = rest.trim_start();
    }
    for qualifier in ["default ", "const ", "async ", "unsafe ", "extern "] {
        item = item.strip_prefix(qualifier).unwrap_or(item).trim_start();
    }
    item
}

/// Methods of the types of each crate that have more than [`METHODS_MAX`] in all `impl` blocks of
/// their own. Relies on the layout of rustfmt.
pub(super) fn methods(tree: &SourceTree) -> Vec<Measure> {
    let mut places = Places::new();
    for source in sources(tree) {
        for (name, line) in methods_of(&source) {
            let key = format!("{} {name}", source.package);
            places.entry(key).or_default().push((source.file.path.clone(), line));
        }
    }
    let large = places.into_iter().filter(|(_, places)| places.len() > METHODS_MAX);
    large.map(|(key, places)| Measure::of_places(key, places)).collect()
}

/// The type and line of every method of a file.
fn methods_of(source: &ProductFile<'_>) -> Vec<(String, usize)> {
    let mut methods = Vec::new();
    let mut lines = (1..).zip(source.code.lines());
    while let Some((_, text)) = lines.next() {
        let start = text.trim_start();
        let indentation = &text[..text.len() - start.len()];
        if !item(text).starts_with("impl") || !start.starts_with(['i', 'u']) {
            continue;
        }
        let mut header = text.to_owned();
        while !header.trim_end().ends_with(['{', '}', ';']) {
            let Some((_, more)) = lines.next() else { break };
            header.push(' ');
            header.push_str(more.trim());
        }
        let Some(name) = own_type(item(&header)).filter(|_| header.trim_end().ends_with('{'))
        else {
            continue;
        };
        let end = format!("{indentation}}}");
        let inside = format!("{indentation}    ");
        for (line, text) in lines.by_ref().take_while(|(_, text)| text.trim_end() != end) {
            let direct = text.strip_prefix(&inside).filter(|rest| !rest.starts_with(' '));
            if direct.is_some_and(|rest| item(rest).starts_with("fn ")) {
                methods.push((name.to_owned(), line));
            }
        }
    }
    methods
}

/// The type of an `impl` without a trait.
fn own_type(header: &str) -> Option<&str> {
    let mut rest = header.strip_prefix("impl")?;
    if rest.starts_with('<') {
        let mut depth = 0;
        let end = rest.char_indices().find(|&(at, c)| {
            depth += i32::from(c == '<') - i32::from(c == '>' && !rest[..at].ends_with('-'));
            depth == 0
        });
        rest = &rest[end?.0 + 1..];
    }
    let head = rest.split(" where ").next()?;
    if head.contains(" for ") {
        return None;
    }
    let path = head.trim().split(['<', ' ', '{']).next()?;
    path.rsplit(':').next().filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(
        count: fn(&SourceTree) -> Vec<Measure>,
        files: &[(&str, &str)],
    ) -> Vec<(String, usize)> {
        let counts = count(&SourceTree::of(files));
        counts.into_iter().map(|count| (count.key, count.count)).collect()
    }

    #[test]
    fn a_name_for_two_types_is_counted() {
        let a = "pub(crate) struct Row;\nenum Error {}\ntype Alias = u8;\nunsafe trait Only {}\n";
        let b = "struct Row<T>(T);\npub type Alias = u8;\nimpl X for Y {\n    type Alias = u8;\n}\n\
            pub enum Error {}\n// struct Only\n#[cfg(test)]\nmod tests {\n    struct Only;\n}\n";
        let files = [
            ("a/Cargo.toml", ""),
            ("a/src/a.rs", a),
            ("b/src/b.rs", b),
            ("b/src/c.rs", "trait Row {}"),
        ];
        assert_eq!(counts(names_defined_twice, &files), [("Alias".into(), 1), ("Row".into(), 2)]);
    }

    #[test]
    fn a_type_with_many_methods_is_counted() {
        let fns = |count: usize| {
            "    pub(crate) async fn f() {\n        fn inner() {}\n    }\n".repeat(count)
        };
        let a = format!("impl<T: Fn() -> u8> Large<T>\nwhere\n    T: X,\n{{\n{}}}\n", fns(30));
        let b = format!(
            "impl super::Large<u8> {{\n{}}}\nimpl Trait for Large<u8> {{\n{}}}\nimpl Small {{\n{}}}\n",
            fns(11),
            fns(50),
            fns(40)
        );
        let files = [("a/Cargo.toml", ""), ("a/src/a.rs", a.as_str()), ("a/src/b.rs", b.as_str())];
        assert_eq!(counts(methods, &files), [("a Large".into(), 41)]);
    }
}
