//! `include/mdfs.h` says what the library has. `MDFS_WRITE_HEADER=1` makes it anew.

#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

use std::path::Path;

/// The comment at the top.
const TOP: &str = include_str!("../header/top.txt");

/// What C programs need that is no function of the library.
const BOTTOM: &str = include_str!("../header/bottom.txt");

#[test]
fn the_header_is_made_from_the_source() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(here.join("cbindgen.toml")).unwrap();
    let mut made = Vec::new();
    let builder = cbindgen::Builder::new().with_config(config).with_header(TOP.trim_end());
    builder.with_crate(here).generate().unwrap().write(&mut made);
    let made = String::from_utf8(made).unwrap();
    // Inline functions belong into the guard, after all declarations.
    let (body, _) = made.trim_end().rsplit_once("#endif").unwrap();
    let made = format!("{}\n\n{BOTTOM}", body.trim_end());

    let path = here.join("include/mdfs.h");
    if std::env::var_os("MDFS_WRITE_HEADER").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    let stored = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        stored == made,
        "client/c/include/mdfs.h does not fit client/c/src: make it anew with \
         MDFS_WRITE_HEADER=1 cargo test -p mdfs-c --test header"
    );
}
