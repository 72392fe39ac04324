//! Rules about the text of single files.

use super::breach::Breach;
use super::code::has_word;
use super::tree::{SourceTree, TextFile};

/// Lines of one Rust file, at most.
const LINES_MAX: usize = 800;

/// Where `unsafe` may stand, each with its reason: files, and folders that end in `/`.
const UNSAFE_IN: &[(&str, &str)] = &[
    ("runtime/src/buffer/", "maps memory and views its pages as bytes"),
    ("runtime/src/embedded/disk/ring.rs", "the kernel works on buffers that the ring keeps"),
    ("runtime/src/embedded/peer.rs", "no safe wrapper asks for the groups of a peer"),
    ("runtime/transport/fabric/src/sys/", "the binding to libfabric"),
    ("runtime/transport/fabric/src/link/", "libfabric works on memory that the wrapper keeps"),
    ("benches/operations.rs", "an allocator that counts"),
    ("client/c/src/", "C hands over bare pointers"),
    ("client/tests/c_file/mod.rs", "the oracle of the stream's test is the C library"),
];

/// Kinds of files that people write.
const WRITTEN: &[&str] = &["rs", "md", "toml"];

/// A file of code fits into one head.
pub(super) fn files_are_short(tree: &SourceTree) -> Vec<Breach> {
    let long = tree.of_kind(&["rs"]).filter(|file| file.text.lines().count() > LINES_MAX);
    let message = |file: &TextFile| {
        format!(
            "{} lines, at most {LINES_MAX} are allowed: make it a folder of smaller files",
            file.text.lines().count()
        )
    };
    long.map(|file| Breach::new(&file.path, LINES_MAX + 1, message(file))).collect()
}

/// `unsafe` stands in the files of [`UNSAFE_IN`] only.
pub(super) fn unsafe_stays_in_its_place(tree: &SourceTree) -> Vec<Breach> {
    let places: Vec<&str> = UNSAFE_IN.iter().map(|(path, _)| *path).collect();
    let message = format!(
        "`unsafe` is allowed in {} only: find a safe way, or give the file a row with its reason \
         in UNSAFE_IN of xtask/src/tidy/text.rs",
        places.join(", ")
    );
    let fenced =
        tree.of_kind(&["rs"]).filter(|file| !places.iter().any(|place| is_in(&file.path, place)));
    fenced.flat_map(|file| lines_of_code_with(file, &["unsafe"], &message)).collect()
}

/// Code says what it does or does not exist; notes to oneself belong into an issue.
pub(super) fn nothing_is_left_over(tree: &SourceTree) -> Vec<Breach> {
    let in_code = tree.of_kind(&["rs"]).flat_map(|file| {
        let message = "left over: write it, or answer with an error that says what to do";
        lines_of_code_with(file, &["todo!", "unimplemented!", "dbg!"], message)
    });
    let notes = [concat!("FIX", "ME"), concat!("XX", "X")];
    let in_text = tree.files().iter().filter(|file| file.path != "Cargo.lock").flat_map(|file| {
        let marked = file.lines().filter(|(_, text)| notes.iter().any(|note| has_word(text, note)));
        let message = "a note to oneself: do it now, or open an issue and remove the mark";
        marked.map(|(line, _)| Breach::new(&file.path, line, message)).collect::<Vec<_>>()
    });
    in_code.chain(in_text).collect()
}

/// Is `path` this file, or below this folder?
fn is_in(path: &str, place: &str) -> bool {
    if place.ends_with('/') { path.starts_with(place) } else { path == place }
}

/// The lines of `file` whose code contains one of `words`.
fn lines_of_code_with(file: &TextFile, words: &[&str], message: &str) -> Vec<Breach> {
    let code = file.code();
    let lines = (1..).zip(code.lines());
    let found = lines.filter(|(_, text)| words.iter().any(|word| has_word(text, word)));
    found.map(|(line, _)| Breach::new(&file.path, line, message)).collect()
}

/// Parts of the names of package registries and their mirrors.
const REGISTRIES: &[&str] = &[
    concat!("crates", ".io"),
    concat!("py", "pi."),
    concat!("python", "hosted.org"),
    concat!("npm", "js."),
    concat!("golang", ".org"),
    concat!("ruby", "gems."),
];

/// The one source that a lock file may name: what cargo itself writes without any configuration.
const LOCK_SOURCE: &str =
    concat!("source = \"registry+https://github.com/rust-lang/crates", ".io-index\"");

/// Where packages come from is the business of the machine that builds: a registry or a mirror
/// named here would break the build elsewhere.
pub(super) fn no_registry_is_named(tree: &SourceTree) -> Vec<Breach> {
    let named = |file: &TextFile, text: &str| {
        let text = text.to_ascii_lowercase();
        if file.path == "Cargo.lock" {
            return text.starts_with("source = ") && text != LOCK_SOURCE;
        }
        REGISTRIES.iter().any(|host| text.contains(host))
    };
    let in_file = |file: &TextFile| {
        let lines = file.lines().filter(|(_, text)| named(file, text));
        let message = "names a package registry: leave that to the configuration of the machine";
        lines.map(|(line, _)| Breach::new(&file.path, line, message)).collect::<Vec<_>>()
    };
    tree.files().iter().flat_map(in_file).collect()
}

/// No tabs, no blanks at the end of a line, one newline at the end of a file.
pub(super) fn lines_end_cleanly(tree: &SourceTree) -> Vec<Breach> {
    let mut breaches = Vec::new();
    for file in tree.files() {
        let last = file.text.lines().count();
        if !file.text.is_empty() && !file.text.ends_with('\n') {
            breaches.push(Breach::new(&file.path, last, "the last line has no newline: add it"));
        }
        if file.text.ends_with("\n\n") {
            breaches.push(Breach::new(&file.path, last, "empty lines at the end: remove them"));
        }
        if file.is_of(WRITTEN) {
            breaches.extend(unclean_lines(file));
        }
    }
    breaches
}

fn unclean_lines(file: &TextFile) -> impl Iterator<Item = Breach> {
    // `lines` would hide a carriage return.
    let lines = (1..).zip(file.text.split('\n'));
    lines.filter_map(|(line, text)| {
        let message = if text.contains('\t') {
            "a tab: use blanks"
        } else if text.ends_with(char::is_whitespace) {
            "blanks at the end of the line: remove them"
        } else {
            return None;
        };
        Some(Breach::new(&file.path, line, message))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(rule: fn(&SourceTree) -> Vec<Breach>, path: &str, text: &str) -> Vec<usize> {
        rule(&SourceTree::of(&[(path, text)])).iter().map(|breach| breach.line).collect()
    }

    #[test]
    fn a_long_file_is_told() {
        assert_eq!(lines(files_are_short, "a.rs", &"\n".repeat(LINES_MAX)), []);
        assert_eq!(lines(files_are_short, "a.rs", &"\n".repeat(LINES_MAX + 1)), [LINES_MAX + 1]);
    }

    #[test]
    fn unsafe_elsewhere_is_told() {
        let planted = "// unsafe\n#![deny(unsafe_code)]\nlet x = unsafe { y };\n\"unsafe\";\n";
        assert_eq!(lines(unsafe_stays_in_its_place, "client/src/lib.rs", planted), [3]);
        assert_eq!(lines(unsafe_stays_in_its_place, "runtime/src/buffer/slabs.rs", planted), []);
    }

    #[test]
    fn left_overs_are_told() {
        let planted = concat!("todo!();\n// todo!\n// FIX", "ME: later\nlet x = dbg!(1);\n");
        assert_eq!(lines(nothing_is_left_over, "a.rs", planted), [1, 4, 3]);
        assert_eq!(lines(nothing_is_left_over, "README.md", concat!("a\nXX", "X\n")), [2]);
    }

    #[test]
    fn registries_are_told() {
        let planted = concat!("a\nhttps://static.crates", ".io/x\n");
        assert_eq!(lines(no_registry_is_named, "docs/a.md", planted), [2]);
        let lock = format!("{LOCK_SOURCE}\nsource = \"registry+https://mirror.example/index\"\n");
        assert_eq!(lines(no_registry_is_named, "Cargo.lock", &lock), [2]);
    }

    #[test]
    fn unclean_ends_are_told() {
        assert_eq!(lines(lines_end_cleanly, "a.rs", "a \nb\n\tc\nd\r\n"), [1, 3, 4]);
        assert_eq!(lines(lines_end_cleanly, ".ci/run", "a\nb"), [2]);
        assert_eq!(lines(lines_end_cleanly, ".ci/run", "a\n\n"), [2]);
        assert_eq!(lines(lines_end_cleanly, "a.rs", "a\n"), []);
    }
}
