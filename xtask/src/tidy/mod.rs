//! `cargo xtask tidy`: properties of the tree that the compiler does not check.
//!
//! | file | holds |
//! | --- | --- |
//! | `breach.rs` | what rules find |
//! | `tree.rs` | the files of the tree |
//! | `code.rs` | Rust code without its comments and literals, and its tokens |
//! | `direction.rs` | who may use whom |
//! | `fence.rs` | what the simulator runs asks the world for nothing |
//! | `tables.rs`, `protocol_page.rs` | reading the message tables; docs/protocol.md shows them |
//! | `map.rs` | README.md names every folder, links lead somewhere, crates share the lints |
//! | `planted.rs` | the planted bugs of the simulator still have their places |
//! | `ratchet.rs` | counts that may only fall, with their table `ratchet.tsv` |
//! | `vocabulary.rs` | phrases and names that were given up |
//! | `product.rs`, `types.rs`, `cycles.rs` | type names, methods of a type, files that import one another |
//! | `documents.rs` | paths and commands in documents, their words, wide lines |
//! | `text.rs` | file lengths, left-overs, blanks, hosts |
//!
//! A rule is a function from the tree to its breaches, or to counts. A new one gets a row in
//! [`RULES`] or in `RATCHETS`, and a test against a planted breach.

mod breach;
pub(crate) mod code;
mod cycles;
mod direction;
mod documents;
mod fence;
mod map;
mod planted;
mod product;
mod protocol_page;
mod ratchet;
mod tables;
mod text;
pub(crate) mod tree;
mod types;
mod vocabulary;

use std::io;
use std::path::Path;
use std::process::ExitCode;

use crate::steps::USAGE;
use breach::Breach;
use tree::SourceTree;

/// A rule by its name.
type TidyRule = (&'static str, fn(&SourceTree) -> Vec<Breach>);

const RULES: &[TidyRule] = &[
    ("direction", direction::crates_use_only_what_is_below),
    ("vocabulary", direction::tables_import_only_vocabulary),
    ("fence", fence::layers_ask_the_context),
    ("imports", fence::layers_import_what_is_known),
    ("fence lints", fence::lints_are_on),
    ("protocol page", protocol_page::has_every_row),
    ("wire versions", protocol_page::changelog_has_every_version),
    ("map", map::readme_names_every_folder),
    ("links", map::links_lead_to_files),
    ("lints", map::crates_share_the_lints),
    ("planted", planted::bugs_have_their_places),
    ("ratchet", ratchet::no_count_rises),
    ("length", text::files_are_short),
    ("unsafe", text::unsafe_stays_in_its_place),
    ("left-over", text::nothing_is_left_over),
    ("host", text::no_registry_is_named),
    ("blanks", text::lines_end_cleanly),
];

/// The command; with `--write` it first writes what is made from the code.
pub(crate) fn run(arguments: &[String]) -> ExitCode {
    match arguments {
        [] => ExitCode::from(check()),
        [only] if only == "--write" => match write() {
            Ok(()) => ExitCode::from(check()),
            Err(error) => unreadable(&error).into(),
        },
        _ => {
            eprintln!("usage: cargo xtask tidy [--write]");
            ExitCode::from(USAGE)
        }
    }
}

fn write() -> io::Result<()> {
    let top = Path::new(".");
    let tree = SourceTree::read(top)?;
    protocol_page::write(top, &tree)?;
    ratchet::write(top, &tree)
}

/// Prints every breach of the tree in the current folder; the result is an exit code.
pub(crate) fn check() -> u8 {
    let tree = match SourceTree::read(Path::new(".")) {
        Ok(tree) => tree,
        Err(error) => return unreadable(&error),
    };
    let mut count = 0;
    for (name, rule) in RULES {
        for breach in rule(&tree) {
            println!("{}:{}: [{name}] {}", breach.file, breach.line, breach.message);
            count += 1;
        }
    }
    let fallen = ratchet::fallen(&tree);
    if !fallen.is_empty() {
        println!(
            "tidy: counts that have fallen: {}; `cargo xtask tidy --write` lowers them in {}",
            fallen.join(", "),
            breach::TABLE
        );
    }
    println!("tidy: {} files, {} rules, {count} breaches", tree.files().len(), RULES.len());
    u8::from(count > 0)
}

fn unreadable(error: &io::Error) -> u8 {
    eprintln!("xtask: cannot read or write the tree: {error}");
    1
}
