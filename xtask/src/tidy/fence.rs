//! The determinism fence: product code reaches clocks, threads, sockets, files and random numbers
//! through the node context only, so that the simulator decides all of them.
//!
//! The lints of `.config/clippy.toml` refuse calls, whatever name they go by. These rules check
//! that the lints are on, that no `allow` opens the fence, and that no dependency brings in what
//! the lints do not know. `tests/fence.rs` plants a call of each kind and builds it.

use super::breach::Breach;
use super::code::has_word;
use super::direction::dependencies;
use super::tree::{SourceTree, TextFile};

/// Folders of what runs in the simulator.
const FENCED: &[&str] = &["layers/", "client/", "nfs-gateway/"];

/// Among them, what ordinary programs load: it lives outside of any node.
const OUTSIDE: &[&str] = &["client/c/", "client/python/"];

/// Words that reach past the context.
const WORDS: &[&str] = &[
    "Instant",
    "SystemTime",
    "RandomState",
    "fresh_seed",
    "HashMap",
    "HashSet",
    "TcpListener",
    "TcpStream",
    "UdpSocket",
    "UnixListener",
    "UnixStream",
    "ToSocketAddrs",
    "std::thread",
    "std::fs",
    "std::env",
    "std::process",
    "thread_local",
    // These would hide the ones above.
    "std::{",
    "std as",
    "std::*",
];

/// Words that open the fence.
const OPENINGS: &[&str] =
    &["disallowed_methods", "disallowed_types", "clippy::all", "clippy::style"];

/// Gates in the fence: a file, what may stand in it, and why.
const GATES: &[(&str, &[&str], &str)] = &[
    ("client/src/blocking.rs", &["fresh_seed"], "an ordinary thread has no context to draw from"),
    (
        "client/src/process.rs",
        &["std::fs", "std::process"],
        "who runs this process is read from the host",
    ),
    ("client/src/volume.rs", &["std::env"], "the user's environment names tokens"),
    (
        "layers/fileio/src/model/machine.rs",
        &["thread_local"],
        "tests of what is above share one model in a thread",
    ),
    ("layers/fileio/src/model/tests.rs", &["thread_local"], "a test numbers its calls"),
    ("volume/src/volume.rs", &["std::thread"], "counts the cores before there is a machine"),
];

/// Crates of others that fenced crates may use: none of them reaches outside by itself.
const MAY_IMPORT: &[&str] = &[
    "bytes",
    "futures",
    "thiserror",
    "tracing",
    "libc",
    "nom",
    "nfs3_types",
    "blake3",
    "constant_time_eq",
    "rusty_erasure",
    "serde",
    "toml",
];

/// What the workspace must say, for the lints to be on.
const SWITCHES: &[(&str, &[&str])] = &[
    ("Cargo.toml", &["disallowed_methods = \"deny\"", "disallowed_types = \"deny\""]),
    (".cargo/config.toml", &["CLIPPY_CONF_DIR = { value = \".config\", relative = true }"]),
    (".config/clippy.toml", &["disallowed-methods = [", "disallowed-types = ["]),
];

fn is_fenced(path: &str) -> bool {
    let within = |folders: &[&str]| folders.iter().any(|folder| path.starts_with(folder));
    within(FENCED) && !within(OUTSIDE)
}

/// The code of fenced crates names nothing of the world, and does not open the fence.
pub(super) fn layers_ask_the_context(tree: &SourceTree) -> Vec<Breach> {
    let product = |file: &&TextFile| is_fenced(&file.path) && file.path.contains("/src/");
    tree.of_kind(&["rs"]).filter(product).flat_map(breaches_of).collect()
}

fn breaches_of(file: &TextFile) -> Vec<Breach> {
    let code = file.code();
    let gate = GATES.iter().find(|(path, ..)| *path == file.path);
    let passes = |word: &str| gate.is_some_and(|(_, words, _)| words.contains(&word));
    let mut breaches = Vec::new();
    for (line, text) in (1..).zip(code.lines()) {
        let words = WORDS.iter().filter(|word| has(text, word) && !passes(word));
        breaches.extend(words.map(|word| {
            let message = format!(
                "`{word}` reaches past the node context: ask the context for clocks, tasks, \
                 streams, files and random numbers, import from std by plain paths, or give the \
                 file a row with its reason in GATES of xtask/src/tidy/fence.rs"
            );
            Breach::new(&file.path, line, message)
        }));
        let openings = OPENINGS.iter().filter(|word| has(text, word) && !passes(word));
        breaches.extend(openings.map(|word| {
            let message = format!("`{word}` opens the determinism fence: ask the node context");
            Breach::new(&file.path, line, message)
        }));
    }
    breaches
}

/// As [`has_word`], for what ends in no letter, too.
fn has(text: &str, word: &str) -> bool {
    if word.ends_with(char::is_alphanumeric) { has_word(text, word) } else { text.contains(word) }
}

/// Fenced crates use only reviewed crates: others could call the operating system themselves.
pub(super) fn layers_import_what_is_known(tree: &SourceTree) -> Vec<Breach> {
    let ours: Vec<&str> =
        tree.crates().map(|(folder, _)| folder.rsplit('/').next().unwrap_or(folder)).collect();
    let fenced = tree.crates().filter(|(folder, _)| is_fenced(&format!("{folder}/")));
    let mut breaches = Vec::new();
    for (_, manifest) in fenced {
        let unknown = dependencies(manifest).filter(|dependency| {
            let known = MAY_IMPORT.contains(&dependency.name) || ours.contains(&dependency.name);
            !known && !dependency.only_for_tests
        });
        breaches.extend(unknown.map(|dependency| {
            let message = format!(
                "{} is new to code that the simulator runs: if it needs no clock, thread, socket, \
                 file or random number of its own, add it to MAY_IMPORT in xtask/src/tidy/fence.rs",
                dependency.name
            );
            Breach::new(&manifest.path, dependency.line, message)
        }));
    }
    breaches
}

/// The lints of the fence are on for the whole workspace.
pub(super) fn lints_are_on(tree: &SourceTree) -> Vec<Breach> {
    let mut breaches = Vec::new();
    for (path, lines) in SWITCHES {
        let text = tree.file(path).map(|file| file.text.as_str()).unwrap_or_default();
        let off = lines.iter().filter(|wanted| !text.lines().any(|line| line.trim() == **wanted));
        breaches.extend(off.map(|wanted| {
            Breach::new(path, 1, format!("the determinism fence needs the line `{wanted}`"))
        }));
    }
    breaches
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const LAYER: &str = "layers/cache/src/server.rs";

    /// The lines of the breaches in `text`, if it is the file `path`.
    fn breach_lines(path: &str, text: &str) -> Vec<usize> {
        let tree = SourceTree::of(&[(path, text)]);
        layers_ask_the_context(&tree).iter().map(|breach| breach.line).collect()
    }

    #[test]
    fn a_layer_that_asks_the_world_is_told() {
        for planted in [
            "let start = std::time::Instant::now();",
            "use std::time::{Duration, Instant};",
            "let now = std::time::SystemTime::now();",
            "std::thread::spawn(|| work());",
            "use std::thread;",
            "use std::{fs, thread};",
            "use std as world;",
            "let file = std::fs::File::open(path);",
            "let random = std::collections::hash_map::RandomState::new();",
            "let map: HashMap<u8, u8> = HashMap::default();",
            "let stream = std::net::TcpStream::connect(at);",
            "let seed = std::env::var(name);",
        ] {
            let text = format!("//! Doc.\n{planted}\n");
            assert_eq!(breach_lines(LAYER, &text), [2], "{planted}");
            assert_eq!(breach_lines("client/src/stream/mod.rs", &text), [2], "{planted}");
            assert_eq!(breach_lines("runtime/src/embedded/thread.rs", &text), [], "{planted}");
        }
    }

    #[test]
    fn what_is_no_product_code_may_ask_the_world() {
        let planted = "use std::thread;\n";
        assert_eq!(breach_lines("layers/cache/tests/stress.rs", planted), []);
        assert_eq!(breach_lines("layers/cache/benches/cached.rs", planted), []);
        assert_eq!(breach_lines(LAYER, "// std::thread\nlet x = \"Instant\"; // Instant\n"), []);
        assert_eq!(breach_lines(LAYER, "use std::time::Duration;\nlet instants = Instants;\n"), []);
    }

    #[test]
    fn a_layer_that_opens_the_fence_is_told() {
        for planted in [
            "#[allow(clippy::disallowed_methods, reason = \"just once\")]",
            "#![expect(clippy::disallowed_types)]",
            "#![cfg_attr(not(test), allow(clippy::disallowed_methods))]",
            "#![allow(clippy::all)]",
            "#[allow(\n    clippy::style,\n)]",
        ] {
            assert_eq!(breach_lines(LAYER, planted).len(), 1, "{planted}");
        }
    }

    #[test]
    fn a_gate_lets_through_only_what_it_names() {
        let (path, words, _) = GATES[0];
        let planted = words.join("\n");
        assert_eq!(breach_lines(path, &planted), []);
        assert_eq!(breach_lines(path, "Instant\n"), [1]);
    }

    #[test]
    fn a_crate_that_is_not_reviewed_is_a_breach() {
        let lines = |manifest: &str| {
            let tree = SourceTree::of(&[
                ("layers/cache/Cargo.toml", manifest),
                ("runtime/Cargo.toml", ""),
            ]);
            let breaches = layers_import_what_is_known(&tree);
            breaches.iter().map(|breach| breach.line).collect::<Vec<_>>()
        };
        let planted = "[dependencies]\nruntime.workspace = true\nrand = \"0.9\"\n\
            tokio.workspace = true\nbytes.workspace = true\n";
        assert_eq!(lines(planted), [3, 4]);
        assert_eq!(lines("[dependencies.fastrand]\nversion = \"2\"\n"), [1]);
        assert_eq!(lines("[dev-dependencies]\nproptest.workspace = true\n"), []);
    }

    #[test]
    fn lints_that_are_off_are_told_and_those_of_this_tree_are_on() {
        let tree = SourceTree::read(Path::new("..")).unwrap();
        assert_eq!(lints_are_on(&tree), []);
        let files: Vec<_> = tree.files().iter().map(|file| (&*file.path, &*file.text)).collect();
        for (path, lines) in SWITCHES {
            for line in *lines {
                let without = |&(name, text): &(&str, &str)| {
                    let text = if name == *path { text.replace(line, "") } else { text.to_owned() };
                    (name.to_owned(), text)
                };
                let planted: Vec<_> = files.iter().map(without).collect();
                let planted: Vec<_> =
                    planted.iter().map(|(name, text)| (&**name, &**text)).collect();
                assert_eq!(lints_are_on(&SourceTree::of(&planted)).len(), 1, "without {line}");
            }
        }
    }
}
