//! The code of the product: Rust files without comments, literals and tests.

use std::collections::BTreeSet;

use super::tree::{SourceTree, TextFile};

/// One file.
pub(super) struct ProductFile<'a> {
    pub(super) file: &'a TextFile,
    /// The folder of its crate.
    pub(super) package: &'a str,
    /// Its code; what belongs to tests is blank.
    pub(super) code: String,
}

/// All files but those of tests: of folders `tests/`, of name `tests.rs`, or declared as
/// `#[cfg(test)] mod name;`.
pub(super) fn sources(tree: &SourceTree) -> Vec<ProductFile<'_>> {
    let crates: Vec<&str> = tree.crates().map(|(folder, _)| folder).collect();
    let is_test = |path: &str| {
        path.starts_with("tests/") || path.contains("/tests/") || path.ends_with("tests.rs")
    };
    let files = tree.of_kind(&["rs"]).filter(|file| !is_test(&file.path));
    let mut test_modules = BTreeSet::new();
    let mut sources: Vec<ProductFile<'_>> = files
        .map(|file| {
            let within = |folder: &&&str| {
                file.path.strip_prefix(**folder).is_some_and(|rest| rest.starts_with('/'))
            };
            let package = crates.iter().filter(within).max_by_key(|folder| folder.len());
            let (code, modules) = without_tests(file.code());
            let children = folder_of_children(&file.path);
            test_modules.extend(modules.iter().map(|name| format!("{children}{name}")));
            ProductFile { file, package: package.copied().unwrap_or_default(), code }
        })
        .collect();
    sources.retain(|source| {
        let path = source.file.path.trim_end_matches(".rs");
        !test_modules.iter().any(|module| {
            path.strip_prefix(module.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    });
    sources
}

/// The folder, with its slash, that holds the child modules of the file.
pub(super) fn folder_of_children(path: &str) -> String {
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    match name {
        "mod.rs" | "lib.rs" | "main.rs" => format!("{folder}/"),
        _ => format!("{}/", path.trim_end_matches(".rs")),
    }
}

/// `code` with the items under `#[cfg(test)]` blanked out, and the names of modules among them that
/// are files.
fn without_tests(code: &str) -> (String, Vec<String>) {
    const MARK: &str = "#[cfg(test)]";
    let mut left = String::with_capacity(code.len());
    let mut modules = Vec::new();
    let mut rest = code;
    while let Some(at) = rest.find(MARK) {
        let item = &rest[at..];
        let end = item_length(item);
        let words: Vec<&str> = item[MARK.len()..end].split([' ', '\n', ';']).collect();
        if let Some(module) = words.iter().position(|word| *word == "mod")
            && item[..end].ends_with(';')
        {
            modules.extend(words.get(module + 1).map(|name| (*name).to_owned()));
        }
        left.push_str(&rest[..at]);
        left.extend(item[..end].chars().map(|c| if c == '\n' { c } else { ' ' }));
        rest = &item[end..];
    }
    left.push_str(rest);
    (left, modules)
}

/// The length of the item at the start of `code`: to its semicolon or its last brace.
fn item_length(code: &str) -> usize {
    let mut depth = 0_usize;
    for (at, c) in code.char_indices() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => {
                depth = depth.saturating_sub(1);
                let goes_on = || code[at + 1..].trim_start().starts_with(';');
                if depth == 0 && c == '}' && !goes_on() {
                    return at + 1;
                }
            }
            ';' | ',' if depth == 0 => return at + 1,
            _ => {}
        }
    }
    code.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_no_product() {
        let tree = SourceTree::of(&[
            ("a/Cargo.toml", ""),
            ("a/b/Cargo.toml", ""),
            (
                "a/src/lib.rs",
                "struct A;\n#[cfg(test)]\nmod model;\n#[cfg(test)]\nuse x::{Y};\nfn f() {}\n",
            ),
            ("a/src/model.rs", "struct B;\n"),
            ("a/src/model/more.rs", "struct C;\n"),
            ("a/src/tests.rs", "struct D;\n"),
            ("a/tests/e.rs", "struct E;\n"),
            (
                "a/b/src/f.rs",
                "struct F; // F\n#[cfg(test)]\n#[x]\nmod tests {\n    struct G {}\n}\nfn g() {}\n",
            ),
        ]);
        let sources = sources(&tree);
        let found: Vec<_> = sources
            .iter()
            .map(|source| {
                (source.package, source.code.split_whitespace().collect::<Vec<_>>().join(" "))
            })
            .collect();
        let wanted = [("a", "struct A; fn f() {}"), ("a/b", "struct F; fn g() {}")];
        assert_eq!(found, wanted.map(|(package, code)| (package, code.to_owned())));
        assert_eq!(sources[1].code.lines().count(), 7, "lines stay in their places");
    }
}
