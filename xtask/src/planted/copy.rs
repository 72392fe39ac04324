//! A copy of the tree with all planted bugs in it, and its program.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::list::{self, Bug};
use crate::steps::ProgramCall;
use crate::tidy::tree::SourceTree;

/// The copy.
const COPY: &str = "target/planted/tree";
/// What cargo makes of it.
const BUILD: &str = "target/planted/build";
/// What the hunts say.
pub(super) const LOGS: &str = "target/planted/logs";

/// The switch, a module of `runtime` that exists in the copy only. It is set once, at the start.
const SWITCH_MODULE: &str = r#"//! Which planted bug is switched on.

use std::sync::LazyLock;

static ON: LazyLock<String> = LazyLock::new(|| std::env::var("PLANTED").unwrap_or_default());

/// True if this is the bug of this process.
pub fn is_on(id: &str) -> bool {
    *ON == id
}
"#;

/// The bugs of the list, and the texts of all files that they change.
pub(super) fn with_all_bugs(
    tree: &SourceTree,
) -> Result<(Vec<Bug>, BTreeMap<String, String>), String> {
    let printed = |flaw: &list::ListFlaw| format!("{}:{}: {}", flaw.file, flaw.line, flaw.message);
    let mut bugs = Vec::new();
    for file in tree.of_kind(&["toml"]).filter(|file| file.path.starts_with(list::FOLDER)) {
        bugs.extend(list::parse(&file.path, &file.text).map_err(|flaw| printed(&flaw))?);
    }
    let text_of = |path: &str| tree.file(path).map(|file| file.text.as_str());
    let (mut texts, flaws) = list::apply(&bugs, text_of);
    if !flaws.is_empty() {
        return Err(flaws.iter().map(printed).collect::<Vec<_>>().join("\n"));
    }
    let runtime = "runtime/src/lib.rs";
    let root = text_of(runtime).ok_or(format!("{runtime} is missing"))?;
    let root = texts.get(runtime).map_or(root, String::as_str);
    texts.insert(runtime.to_owned(), format!("{root}\n#[allow(missing_docs)]\npub mod planted;\n"));
    texts.insert("runtime/src/planted.rs".to_owned(), SWITCH_MODULE.to_owned());
    Ok((bugs, texts))
}

/// Writes the copy, with `texts` in place of what the tree has, and builds it; the hunting program.
pub(super) fn build(
    tree: &SourceTree,
    texts: &BTreeMap<String, String>,
) -> Result<PathBuf, String> {
    let written = write(tree, texts);
    written.map_err(|error| format!("cannot write the copy in {COPY}: {error}"))?;
    let line = format!(
        "cargo build --release --locked --package sim --example hunt \
         --manifest-path {COPY}/Cargo.toml --target-dir {BUILD}"
    );
    println!("{line}");
    if ProgramCall::new(&line).run() == 0 {
        Ok(Path::new(BUILD).join("release/examples/hunt"))
    } else {
        Err("the copy with the bugs cannot be built: correct the new texts in the list".to_owned())
    }
}

/// The layers' own tests on the emulated machine, part of what the test command simulates, and
/// those of what the simulator cannot see.
const LAYERS: &str = "--test restarts --test crash --test store --test promises --test memory --test shared_attrs --test subtrees \
    --package volume --package meta --package cache --package blockio";

/// Builds the layers' tests in the copy that was written; the programs.
pub(super) fn build_layer_tests() -> Result<Vec<PathBuf>, String> {
    let line = format!(
        "cargo test --no-run --message-format json --release --locked \
         --manifest-path {COPY}/Cargo.toml --target-dir {BUILD} {LAYERS}"
    );
    println!("{line}");
    let printed = ProgramCall::new(&line).output();
    let printed = printed.ok_or("the layers' tests cannot be built in the copy with the bugs")?;
    let programs = executables(&printed);
    if programs.is_empty() { Err("cargo names no test program".to_owned()) } else { Ok(programs) }
}

/// The programs that cargo says it built.
fn executables(printed: &str) -> Vec<PathBuf> {
    let after = printed.lines().filter_map(|line| line.split_once("\"executable\":\""));
    after.filter_map(|(_, rest)| rest.split('"').next()).map(PathBuf::from).collect()
}

/// What has not changed is not written, so that it is not built again.
fn write(tree: &SourceTree, texts: &BTreeMap<String, String>) -> io::Result<()> {
    let files = tree.files().iter().map(|file| (&file.path, &file.text));
    let files: BTreeMap<&String, &String> = files.chain(texts).collect();
    for (path, text) in &files {
        let path = Path::new(COPY).join(path);
        if fs::read_to_string(&path).is_ok_and(|present| present == **text) {
            continue;
        }
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(path, text)?;
    }
    let paths: BTreeSet<PathBuf> = files.keys().map(|path| Path::new(COPY).join(path)).collect();
    remove_others(COPY.as_ref(), &paths)?;
    fs::create_dir_all(LOGS)
}

/// Removes what the tree has no more.
fn remove_others(folder: &Path, wanted: &BTreeSet<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_others(&entry.path(), wanted)?;
        } else if !wanted.contains(&entry.path()) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_programs_are_found_in_what_cargo_says() {
        let printed = "{\"reason\":\"compiler-artifact\",\"executable\":null}\n\
            {\"reason\":\"compiler-artifact\",\"executable\":\"/a/lives-1\",\"fresh\":true}\n";
        assert_eq!(executables(printed), [PathBuf::from("/a/lives-1")]);
    }
}
