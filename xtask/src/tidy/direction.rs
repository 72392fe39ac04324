//! Dependencies between crates: layers call downwards only, and the code above a message table does
//! not see the inside of its layer.

use super::breach::Breach;
use super::code::has_word;
use super::tree::{SourceTree, TextFile};

/// A crate by its folder, and the ones of ours that it may depend on.
const MAY_USE: &[(&str, &[&str])] = &[
    ("runtime", &[]),
    ("runtime/transport/fabric", &[]),
    ("runtime/transport", &["runtime", "fabric"]),
    ("runtime/cluster", &["runtime"]),
    ("layers/blockio", &["runtime"]),
    ("layers/cache", &["runtime", "blockio"]),
    ("layers/meta", &["runtime", "blockio", "cache"]),
    ("layers/fileio", &["runtime", "blockio", "cache", "meta"]),
    ("volume", &["runtime", "transport", "cluster", "blockio", "cache", "meta", "fileio"]),
    ("client", &["runtime", "transport", "fileio", "volume"]),
    ("client/python", &["client"]),
    ("client/c", &["runtime", "client", "fileio", "volume"]),
    ("nfs-gateway", &["runtime", "client", "fileio"]),
    ("fuse-mount", &["runtime", "client"]),
    ("machine-emu", &["runtime", "cluster"]),
    (
        "cli",
        &[
            "runtime",
            "transport",
            "cluster",
            "fileio",
            "volume",
            "client",
            "nfs-gateway",
            "fuse-mount",
        ],
    ),
];

/// Crates that may use all others, and that no other may use.
const FREE: &[&str] =
    &["machine-emu/figures", "machine-emu/sim", "machine-emu/lab", "tests", "benches", "xtask"];

/// Tests of every crate may run on the emulated machine.
const MAY_TEST_WITH: &[&str] = &["machine-emu"];

/// Where a `protocol.rs` may take its words from, besides the modules of [`VOCABULARY`].
const TABLE_IMPORTS: &[&str] = &["runtime", "std", "bytes", "thiserror"];

/// The modules of a layer that hold nothing but words.
const VOCABULARY: &[&str] = &[
    "protocol",
    "attributes",
    "operations",
    "lock_types",
    "chunk_types",
    "disk_types",
    "partition_types",
    "reply_types",
    "marks",
    "geometry",
    "regions",
];

/// A crate depends on nothing but its row of [`MAY_USE`].
pub(super) fn crates_use_only_what_is_below(tree: &SourceTree) -> Vec<Breach> {
    let mut breaches = Vec::new();
    for (folder, manifest) in tree.crates() {
        if FREE.contains(&folder) {
            continue;
        }
        let Some((_, allowed)) = MAY_USE.iter().find(|(path, _)| *path == folder) else {
            let message = "this crate has no row: add it to MAY_USE in xtask/src/tidy/direction.rs";
            breaches.push(Breach::new(&manifest.path, 1, message));
            continue;
        };
        breaches.extend(dependencies(manifest).filter_map(|dependency| {
            let name = dependency.name;
            let allowed = allowed.contains(&name)
                || (dependency.only_for_tests && MAY_TEST_WITH.contains(&name));
            let message = || {
                format!(
                    "may not use {name}: ask through the layer between (MAY_USE in \
                     xtask/src/tidy/direction.rs says who may use whom)"
                )
            };
            (is_ours(name) && !allowed)
                .then(|| Breach::new(&manifest.path, dependency.line, message()))
        }));
    }
    breaches
}

/// A crate's name is that of its folder, but for what users install.
fn package_of(folder: &str) -> &str {
    match folder {
        "cli" => "mdfs",
        "machine-emu/lab" => "mdfs-lab",
        "client/c" => "mdfs-c",
        "client/python" => "mdfs-python",
        _ => folder.rsplit('/').next().unwrap_or(folder),
    }
}

fn is_ours(name: &str) -> bool {
    let layered = MAY_USE.iter().map(|(folder, _)| *folder);
    layered.chain(FREE.iter().copied()).any(|folder| package_of(folder) == name)
}

/// One line of a manifest that names another crate.
pub(super) struct Dependency<'a> {
    pub(super) line: usize,
    /// The crate's own name.
    pub(super) name: &'a str,
    pub(super) only_for_tests: bool,
}

/// All of a manifest.
pub(super) fn dependencies(manifest: &TextFile) -> impl Iterator<Item = Dependency<'_>> {
    let mut section = "";
    manifest
        .lines()
        .filter_map(move |(line, text)| {
            let text = text.trim();
            if let Some(header) = text.strip_prefix('[') {
                section = header.trim_end_matches(']');
                let (before, name) = section.rsplit_once('.')?;
                return before.ends_with("dependencies").then_some((line, name, section));
            }
            let key = text.split(['.', ' ', '=', '#']).next().filter(|key| !key.is_empty())?;
            let renamed =
                text.split_once("package = \"").and_then(|(_, name)| name.split('"').next());
            let in_table = section.ends_with("dependencies") || renamed.is_some();
            in_table.then_some((line, renamed.unwrap_or(key), section))
        })
        .map(|(line, name, section)| Dependency {
            line,
            name,
            only_for_tests: section.starts_with("dev-") || section.contains(".dev-"),
        })
}

/// A table of messages is made of the machine's words and of those of the layer below; it knows
/// neither servers nor transports.
pub(super) fn tables_import_only_vocabulary(tree: &SourceTree) -> Vec<Breach> {
    let tables = tree
        .files()
        .iter()
        .filter(|file| file.path.starts_with("layers/") && file.path.ends_with("/src/protocol.rs"));
    tables.flat_map(foreign_words).collect()
}

fn foreign_words(table: &TextFile) -> Vec<Breach> {
    let code = table.code();
    let mut breaches = Vec::new();
    for (line, text) in (1..).zip(code.lines()) {
        let import = text.trim().trim_start_matches("pub ").strip_prefix("use ");
        if let Some(path) = import.filter(|path| !is_vocabulary(path)) {
            let path = path.trim_end_matches([';', '{', ' ']);
            let message = format!(
                "a table of messages may not import {path}: take words from {}, or a module {} of \
                 a layer",
                TABLE_IMPORTS.join(", "),
                VOCABULARY.join(", "),
            );
            breaches.push(Breach::new(&table.path, line, message));
            continue;
        }
        let layers = MAY_USE.iter().map(|(folder, _)| package_of(folder));
        for layer in layers.filter(|layer| !TABLE_IMPORTS.contains(layer) && has_word(text, layer))
        {
            let path = format!("{layer}::");
            let Some(at) = text.find(&path) else { continue };
            if !is_vocabulary(&text[at..]) {
                let message = format!("a table of messages may not name the insides of {layer}");
                breaches.push(Breach::new(&table.path, line, message));
            }
        }
    }
    breaches
}

/// True for `runtime::...` and the like, `blockio::protocol::...` and `crate::attributes::...`.
fn is_vocabulary(path: &str) -> bool {
    let mut parts = path.split([':', ';', ' ', '{', ',']).filter(|part| !part.is_empty());
    let first = parts.next().unwrap_or_default();
    TABLE_IMPORTS.contains(&first) || parts.next().is_some_and(|part| VOCABULARY.contains(&part))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn direction(manifest: &str) -> Vec<usize> {
        let tree = SourceTree::of(&[("layers/cache/Cargo.toml", manifest)]);
        crates_use_only_what_is_below(&tree).iter().map(|breach| breach.line).collect()
    }

    #[test]
    fn a_layer_may_not_use_one_above() {
        let planted = "[package]\nname = \"cache\"\n\n[dependencies]\nruntime.workspace = true\n\
            blockio = { workspace = true }\nbytes = \"1\"\nmeta.workspace = true\n";
        assert_eq!(direction(planted), [8]);
        assert_eq!(direction(&planted.replace("meta", "serde")), []);
    }

    #[test]
    fn no_form_of_a_dependency_escapes() {
        for planted in [
            "[dependencies.meta]\nworkspace = true\n",
            "[target.'cfg(unix)'.dependencies.meta]\npath = \"../meta\"\n",
            "[build-dependencies]\nmeta.workspace = true\n",
            "[dev-dependencies]\nmeta.workspace = true\n",
            "[dependencies]\nother = { package = \"meta\", path = \"../meta\" }\n",
            "[dependencies.other]\npackage = \"meta\"\n",
        ] {
            assert_eq!(direction(planted).len(), 1, "{planted}");
        }
    }

    #[test]
    fn tests_may_use_the_emulated_machine_and_the_rest_may_not() {
        assert_eq!(direction("[dev-dependencies]\nmachine-emu.workspace = true\n"), []);
        assert_eq!(direction("[dependencies]\nmachine-emu.workspace = true\n"), [2]);
        assert_eq!(direction("[dependencies]\nmdfs.workspace = true\n"), [2]);
    }

    #[test]
    fn a_crate_without_a_row_is_told() {
        let tree = SourceTree::of(&[("layers/new/Cargo.toml", "[package]\n")]);
        let breaches = crates_use_only_what_is_below(&tree);
        assert!(breaches[0].message.contains("MAY_USE"), "{breaches:?}");
    }

    #[test]
    fn a_table_may_not_know_servers_or_transports() {
        let planted = "use std::fmt;\nuse tokio::net::TcpStream;\n// use actix\n\
            pub use blockio::protocol::Error;\nuse blockio::server::Server;\n\
            use crate::attributes::{Name};\nuse crate::server;\ntype X = cache::lru::Line;\n\
            type Y = cache::protocol::CacheStatus;\n";
        let tree = SourceTree::of(&[("layers/meta/src/protocol.rs", planted)]);
        let lines: Vec<_> =
            tables_import_only_vocabulary(&tree).iter().map(|breach| breach.line).collect();
        assert_eq!(lines, [2, 5, 7, 8]);
    }
}
