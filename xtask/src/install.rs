//! `cargo xtask install`: the program, the C library and what belongs to it, in their places.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::needs;
use crate::steps::{Call, Failed, Steps};

const BUILD: &str = "cargo build --release --locked --package mdfs --package mdfs-c";
/// Where things go, unless said otherwise.
const PREFIX: &str = "/usr/local";
const VERSION: &str = env!("CARGO_PKG_VERSION");

const PROGRAM: &str = "target/release/mdfs";

/// Where each shell looks for completions.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "share/bash-completion/completions/mdfs"),
    ("zsh", "share/zsh/site-functions/_mdfs"),
    ("fish", "share/fish/vendor_completions.d/mdfs.fish"),
];

/// Builds in release and installs below the folder after `--prefix`. The exit code is that of the
/// first step that fails, 2 if the arguments make no sense.
pub(crate) fn run(arguments: &[String]) -> ExitCode {
    let prefix = match arguments {
        [] => PREFIX,
        [option, prefix] if option == "--prefix" && Path::new(prefix).is_absolute() => prefix,
        _ => {
            eprintln!("usage: cargo xtask install [--prefix ABSOLUTE-PATH]");
            return ExitCode::from(2);
        }
    };
    match install(Path::new(prefix)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failed { code }) => ExitCode::from(code),
    }
}

fn install(prefix: &Path) -> Result<(), Failed> {
    let mut steps = Steps::default();
    let line = format!("cargo xtask install --prefix {}", prefix.display());
    steps.step("prerequisites", &line, || needs::meet(&[needs::C_COMPILER]))?;
    steps.call("build", &Call::new(BUILD))?;
    steps.step("install", &line, || match put_all(prefix) {
        Ok(()) => 0,
        Err(error) => {
            eprintln!(
                "xtask: cannot install below {}: {error}; may you write there?",
                prefix.display()
            );
            1
        }
    })
}

fn put_all(prefix: &Path) -> io::Result<()> {
    let library = prefix.join("lib");
    let shared = format!("libmdfs.so.{VERSION}");
    put(PROGRAM, &prefix.join("bin/mdfs"))?;
    put("target/release/libmdfs.so", &library.join(&shared))?;
    for link in ["libmdfs.so.0", "libmdfs.so"] {
        let link = library.join(link);
        match fs::remove_file(&link) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => symlink(&shared, &link)?,
        }
    }
    put("target/release/libmdfs.a", &library.join("libmdfs.a"))?;
    put("client/c/include/mdfs.h", &prefix.join("include/mdfs.h"))?;
    put("client/c/man/libmdfs.3", &prefix.join("share/man/man3/libmdfs.3"))?;
    for (shell, place) in COMPLETIONS {
        let script = told(&["completion", shell])?;
        let place = folder_of(prefix.join(place))?;
        fs::write(&place, script)?;
        println!("  {}", place.display());
    }
    let pages = prefix.join("share/man/man1");
    fs::create_dir_all(&pages)?;
    told(&["man", "--out", &pages.to_string_lossy()])?;
    println!("  {}/mdfs*.1", pages.display());
    let described = fs::read_to_string("client/c/pkgconfig/mdfs.pc.in")?
        .replace("@PREFIX@", &prefix.to_string_lossy())
        .replace("@VERSION@", VERSION);
    let description = folder_of(library.join("pkgconfig/mdfs.pc"))?;
    fs::write(&description, described)?;
    println!("  {}", description.display());
    Ok(())
}

/// What the program that was built prints.
fn told(arguments: &[&str]) -> io::Result<String> {
    let words: Vec<String> = arguments.iter().map(|word| (*word).to_owned()).collect();
    let call = Call::new(PROGRAM).with(&words);
    call.output().ok_or_else(|| io::Error::other(format!("{} has failed", call.line())))
}

/// Copies a file and its mode, under a new inode: a program that runs keeps its old one.
fn put(from: &str, to: &Path) -> io::Result<()> {
    let to = folder_of(to.to_owned())?;
    let fresh = to.with_extension("new");
    fs::copy(from, &fresh)?;
    fs::rename(&fresh, &to)?;
    println!("  {}", to.display());
    Ok(())
}

/// Makes the folder of `path`.
fn folder_of(path: PathBuf) -> io::Result<PathBuf> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    Ok(path)
}
