//! Files of one crate that import one another in a circle.
//!
//! A file uses another one if it names something of it by a path that starts with `crate`, `self`,
//! `super` or a child module, in a `use` or in the code. The name is followed through re-exports to
//! the file that defines it, so that a parent that only re-exports its children is used by no file
//! and uses none.

use std::collections::{BTreeMap, BTreeSet};

use super::breach::Measure;
use super::code::{is_word, tokens};
use super::product::{ProductFile, sources};
use super::tree::SourceTree;

/// Files that may form a circle.
const CYCLE_MAX: usize = 3;

/// Re-exports that are followed for one name.
const STEPS_MAX: usize = 8;

/// For each crate the files in circles of more than [`CYCLE_MAX`].
pub(super) fn files_in_cycles(tree: &SourceTree) -> Vec<Measure> {
    let sources = sources(tree);
    let mut crates: BTreeMap<&str, Vec<&ProductFile<'_>>> = BTreeMap::new();
    for source in &sources {
        crates.entry(source.package).or_default().push(source);
    }
    let mut counts = Vec::new();
    for (package, sources) in crates {
        let modules = Modules::new(&sources);
        let edges: Vec<BTreeSet<usize>> =
            (0..modules.files.len()).map(|file| modules.used_by(file)).collect();
        let mut places = Vec::new();
        for cycle in cycles(&edges).iter().filter(|cycle| cycle.len() > CYCLE_MAX) {
            places.extend(cycle.iter().map(|&file| (modules.files[file].path.to_owned(), 1)));
        }
        if !places.is_empty() {
            counts.push(Measure::of_places(package, places));
        }
    }
    counts
}

/// The files of a crate.
struct Modules<'a> {
    files: Vec<Module<'a>>,
    /// Files by folder of the root and path of the module.
    by_path: BTreeMap<Vec<&'a str>, usize>,
}

struct Module<'a> {
    path: &'a str,
    /// The folder of the crate root, then the names of the modules.
    names: Vec<&'a str>,
    imports: Vec<Import<'a>>,
    /// Words after which a name is defined, and the name.
    defined: BTreeSet<&'a str>,
    /// Paths in the code.
    paths: Vec<Vec<&'a str>>,
}

/// One name of a `use`.
struct Import<'a> {
    path: Vec<&'a str>,
    /// What it is called here; `*` for all names.
    name: &'a str,
    is_public: bool,
}

impl<'a> Modules<'a> {
    fn new(sources: &[&'a ProductFile<'_>]) -> Self {
        let folder = |path: &'a str| path.rsplit_once('/').map_or("", |(folder, _)| folder);
        let is_root = |path: &str| path.ends_with("/lib.rs") || path.ends_with("/main.rs");
        let paths = sources.iter().map(|source| source.file.path.as_str());
        let roots: BTreeSet<&str> = paths.filter(|path| is_root(path)).map(folder).collect();
        let mut modules = Self { files: Vec::new(), by_path: BTreeMap::new() };
        for source in sources {
            let path = source.file.path.as_str();
            let root = roots.iter().rev().find(|root| folder(path).starts_with(**root));
            let Some(root) = root.copied() else { continue };
            let inner = path[root.len() + 1..].trim_end_matches(".rs");
            let mut module = vec![root];
            module.extend(inner.split('/').filter(|name| !matches!(*name, "mod" | "lib" | "main")));
            modules.by_path.entry(module.clone()).or_insert(modules.files.len());
            modules.files.push(read(path, module, &source.code));
        }
        modules
    }

    /// The files that `file` uses.
    fn used_by(&self, file: usize) -> BTreeSet<usize> {
        let module = &self.files[file];
        let imports = module.imports.iter().filter_map(|import| {
            let target = self.target(file, &import.path)?;
            let re_exports =
                import.is_public && self.files[target].names.starts_with(&module.names);
            (!re_exports).then_some(target)
        });
        let paths = module.paths.iter().filter_map(|path| self.target(file, path));
        imports.chain(paths).filter(|&target| target != file).collect()
    }

    /// The file that defines what `path` means in the file `from`.
    fn target(&self, from: usize, path: &[&'a str]) -> Option<usize> {
        let (mut from, mut path) = (from, path);
        for _ in 0..STEPS_MAX {
            let (found, rest) = self.deepest(from, path)?;
            let Some(name) = rest.first().filter(|name| **name != "*") else { return Some(found) };
            let module = &self.files[found];
            if module.defined.contains(name) {
                return Some(found);
            }
            let named = module.imports.iter().find(|import| import.name == *name);
            let from_glob = || {
                module.imports.iter().find(|import| {
                    import.name == "*"
                        && self
                            .deepest(found, &import.path)
                            .is_some_and(|(file, _)| self.files[file].defined.contains(name))
                })
            };
            let Some(import) = named.or_else(from_glob) else { return Some(found) };
            if import.name == "*" {
                return self.deepest(found, &import.path).map(|(file, _)| file);
            }
            // What the file imports from elsewhere is not of this crate.
            (from, path) = (found, import.path.as_slice());
        }
        None
    }

    /// The file of the longest part of `path` that is a module, and the rest of the path.
    fn deepest<'b>(&self, from: usize, path: &'b [&'a str]) -> Option<(usize, &'b [&'a str])> {
        let here = &self.files[from].names;
        let mut module = here.clone();
        let mut rest = path;
        match *path.first()? {
            "crate" => module.truncate(1),
            "self" | "super" => {}
            first => {
                module.push(first);
                self.by_path.get(&module)?;
                module.pop();
            }
        }
        while let Some((first, after)) = rest.split_first() {
            match *first {
                "crate" | "self" => {}
                "super" if module.len() > 1 => {
                    module.pop();
                }
                name => {
                    module.push(name);
                    if !self.by_path.contains_key(&module) {
                        module.pop();
                        break;
                    }
                }
            }
            rest = after;
        }
        self.by_path.get(&module).map(|&file| (file, rest))
    }
}

/// Reads imports, definitions and paths of a file.
fn read<'a>(path: &'a str, names: Vec<&'a str>, code: &'a str) -> Module<'a> {
    let words: Vec<&str> = tokens(code).into_iter().map(|at| &code[at]).collect();
    let mut read =
        Module { path, names, imports: Vec::new(), defined: BTreeSet::new(), paths: Vec::new() };
    let mut at = 0;
    while at < words.len() {
        let before = at.checked_sub(1).map_or(";", |before| words[before]);
        match words[at] {
            "use" if matches!(before, ";" | "{" | "}" | "]" | ")" | "pub") => {
                at += 1;
                expand(&words, &mut at, &[], matches!(before, ")" | "pub"), &mut read.imports);
            }
            "struct" | "enum" | "union" | "trait" | "type" | "fn" | "const" | "static" | "mod"
            | "macro_rules" => {
                let name = words[at + 1..].iter().find(|word| **word != "!" && **word != "mut");
                read.defined.extend(name.copied());
                at += 1;
            }
            word if word.starts_with(is_word) && !words[..at].ends_with(&[":", ":"]) => {
                let mut path = vec![word];
                while words[at + 1..].starts_with(&[":", ":"])
                    && words.get(at + 3).is_some_and(|word| word.starts_with(is_word))
                {
                    at += 3;
                    path.push(words[at]);
                }
                if path.len() > 1 {
                    read.paths.push(path);
                }
                at += 1;
            }
            _ => at += 1,
        }
    }
    read
}

/// Reads the tree of a `use` from `at` to its end.
fn expand<'a>(
    words: &[&'a str],
    at: &mut usize,
    prefix: &[&'a str],
    is_public: bool,
    imports: &mut Vec<Import<'a>>,
) {
    let mut path = prefix.to_vec();
    let mut name = None;
    while let Some(&word) = words.get(*at) {
        match word {
            ":" => {}
            "{" => {
                *at += 1;
                while words.get(*at).is_some_and(|word| *word != "}") {
                    expand(words, at, &path, is_public, imports);
                    if words.get(*at) == Some(&",") {
                        *at += 1;
                    }
                }
                *at += 1;
                return;
            }
            "as" => {
                *at += 1;
                name = words.get(*at).copied();
            }
            "," | "}" | ";" => break,
            word => path.push(word),
        }
        *at += 1;
    }
    let is_self = path.last() == Some(&"self") && path.len() > 1;
    if is_self {
        path.pop();
    }
    let name = name.or(path.last().copied()).unwrap_or_default();
    imports.push(Import { path, name, is_public });
}

/// The sets of files that reach one another.
fn cycles(edges: &[BTreeSet<usize>]) -> Vec<Vec<usize>> {
    let reached: Vec<BTreeSet<usize>> = (0..edges.len())
        .map(|start| {
            let mut reached = BTreeSet::new();
            let mut open: Vec<usize> = edges[start].iter().copied().collect();
            while let Some(file) = open.pop() {
                if reached.insert(file) {
                    open.extend(&edges[file]);
                }
            }
            reached
        })
        .collect();
    let mut cycles: Vec<Vec<usize>> = Vec::new();
    for (file, of_file) in
        reached.iter().enumerate().filter(|(file, reached)| reached.contains(file))
    {
        let known = cycles.iter().any(|cycle| cycle.contains(&file));
        if !known {
            cycles.push(
                of_file.iter().copied().filter(|&other| reached[other].contains(&file)).collect(),
            );
        }
    }
    cycles
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_cycles(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<_> = files.iter().copied().chain([("a/Cargo.toml", "")]).collect();
        let counts = files_in_cycles(&SourceTree::of(&files));
        counts.into_iter().flat_map(|count| count.places).map(|(file, _)| file).collect()
    }

    #[test]
    fn a_planted_circle_is_counted() {
        let mut files = [
            ("a/src/lib.rs", "mod b;\nmod c;\nmod d;\n"),
            ("a/src/b.rs", "use crate::{c::C as X, d};\npub struct B;\n"),
            ("a/src/c/mod.rs", "mod inner;\npub(crate) use inner::C;\n"),
            ("a/src/c/inner.rs", "pub struct C;\nfn f() -> super::super::d::D { x }\n"),
            ("a/src/d.rs", "use super::e::*;\npub struct D;\n"),
            ("a/src/e.rs", "fn f(b: crate::b::B) {}\n"),
        ];
        let circle = ["a/src/b.rs", "a/src/c/inner.rs", "a/src/d.rs", "a/src/e.rs"];
        assert_eq!(in_cycles(&files), circle, "the parent that re-exports is none of them");
        files[5].1 = "#[cfg(test)]\nmod x {\n    use crate::b::B;\n}\n// crate::b::B\n";
        assert_eq!(in_cycles(&files), [""; 0]);
    }

    #[test]
    fn a_parent_that_defines_what_its_children_use_is_in_the_circle() {
        let parent = "mod x;\nmod y;\nmod z;\nuse x::X;\npub struct P { y: y::Y, z: self::z::Z }\n";
        let child = "use super::P;\npub struct ";
        let files = [
            ("a/src/lib.rs", parent),
            ("a/src/x.rs", &format!("{child}X;\n")),
            ("a/src/y.rs", &format!("{child}Y;\n")),
            ("a/src/z.rs", &format!("{child}Z;\n")),
        ];
        assert_eq!(in_cycles(&files).len(), 4);
        assert_eq!(in_cycles(&files[..3]).len(), 0, "three files may");
    }
}
