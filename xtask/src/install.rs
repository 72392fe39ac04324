//! `cargo xtask install`: installs the programs, the C library and their documentation.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::needs;
use crate::steps::{ProgramCall, StepFailed, Steps};

const BUILD: &str = "cargo build --profile release-debug --locked --package mdfs";
/// Apart, so that the library has no more features of its dependencies than it needs.
const BUILD_LIBRARY: &str = "cargo build --profile release-debug --locked --package mdfs-c";
const LAB: &str = "mdfs-lab";
const BUILT: &str = "target/release-debug";
/// Where things go without `--prefix`.
const PREFIX: &str = "/usr/local";
const VERSION: &str = env!("CARGO_PKG_VERSION");
const USAGE_TEXT: &str = "usage: cargo xtask install [--lab] [--prefix ABSOLUTE-PATH]";

/// Where each shell looks for completions.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "share/bash-completion/completions/NAME"),
    ("zsh", "share/zsh/site-functions/_NAME"),
    ("fish", "share/fish/vendor_completions.d/NAME.fish"),
];

/// The names by which `mount(8)` calls `mdfs`, in the only folder where it looks.
const MOUNT_HELPERS: [&str; 2] = ["/sbin/mount.mdfs", "/sbin/mount.fuse.mdfs"];
/// The prefixes of a whole system.
const SYSTEM_PREFIXES: [&str; 2] = ["/usr", "/usr/local"];

/// Builds in release and installs below the folder after `--prefix`; with `--lab` also `mdfs-lab`.
/// The exit code is that of the first step that fails, 2 if the arguments make no sense.
pub(crate) fn run(arguments: &[String]) -> ExitCode {
    let (mut prefix, mut lab) = (PREFIX, false);
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match (argument.as_str(), arguments.as_slice()) {
            ("--lab", _) => lab = true,
            ("--prefix", [path, ..]) if Path::new(path).is_absolute() => {
                prefix = path;
                arguments.next();
            }
            _ => {
                eprintln!("{USAGE_TEXT}");
                return ExitCode::from(2);
            }
        }
    }
    match install(Path::new(prefix), lab) {
        Ok(()) => ExitCode::SUCCESS,
        Err(StepFailed { code }) => ExitCode::from(code),
    }
}

fn install(prefix: &Path, lab: bool) -> Result<(), StepFailed> {
    let mut steps = Steps::default();
    let option = if lab { " --lab" } else { "" };
    let line = format!("cargo xtask install{option} --prefix {}", prefix.display());
    steps.step("prerequisites", &line, || needs::meet(&[needs::C_COMPILER]))?;
    let more = if lab { vec!["--package".to_owned(), LAB.to_owned()] } else { Vec::new() };
    steps.call("build", &ProgramCall::new(BUILD).with(&more))?;
    steps.call("build of the library", &ProgramCall::new(BUILD_LIBRARY))?;
    steps.step("install", &line, || match put_all(prefix, lab) {
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

fn put_all(prefix: &Path, lab: bool) -> io::Result<()> {
    put_program("mdfs", prefix)?;
    if lab {
        put_program(LAB, prefix)?;
    }
    let library = prefix.join("lib");
    let shared = format!("libmdfs.so.{VERSION}");
    put_stripped(&format!("{BUILT}/libmdfs.so"), &library.join(&shared))?;
    for link in ["libmdfs.so.0", "libmdfs.so"] {
        put_link(shared.as_ref(), &library.join(link))?;
    }
    let archive = library.join("libmdfs.a");
    put(&format!("{BUILT}/libmdfs.a"), &archive)?;
    objcopy(&["--strip-debug".into(), archive])?;
    put("client/c/include/mdfs.h", &prefix.join("include/mdfs.h"))?;
    put("client/c/man/libmdfs.3", &prefix.join("share/man/man3/libmdfs.3"))?;
    let described = fs::read_to_string("client/c/pkgconfig/mdfs.pc.in")?
        .replace("@PREFIX@", &prefix.to_string_lossy())
        .replace("@VERSION@", VERSION);
    let description = folder_of(library.join("pkgconfig/mdfs.pc"))?;
    fs::write(&description, described)?;
    println!("  {}", description.display());
    if SYSTEM_PREFIXES.iter().any(|system| prefix == Path::new(system)) {
        for helper in MOUNT_HELPERS {
            put_link(&prefix.join("bin/mdfs"), helper.as_ref())?;
        }
    } else {
        println!("for mount(8): ln -s {}/bin/mdfs {}", prefix.display(), MOUNT_HELPERS.join(" "));
    }
    Ok(())
}

/// A program with its completions and pages.
fn put_program(name: &str, prefix: &Path) -> io::Result<()> {
    let program = format!("{BUILT}/{name}");
    put_stripped(&program, &prefix.join("bin").join(name))?;
    for (shell, place) in COMPLETIONS {
        let script = output_of(&program, &["completion", shell])?;
        let place = folder_of(prefix.join(place.replace("NAME", name)))?;
        fs::write(&place, script)?;
        println!("  {}", place.display());
    }
    let pages = prefix.join("share/man/man1");
    fs::create_dir_all(&pages)?;
    output_of(&program, &["man", "--out", &pages.to_string_lossy()])?;
    println!("  {}/{name}*.1", pages.display());
    Ok(())
}

/// Copies a program or library without its debug symbols, and these into `.debug/` beside it, where
/// debuggers and backtraces look for them.
fn put_stripped(from: &str, to: &Path) -> io::Result<()> {
    put(from, to)?;
    let name = to.file_name().unwrap_or_default().to_string_lossy();
    let symbols = folder_of(to.with_file_name(format!(".debug/{name}.debug")))?;
    objcopy(&["--only-keep-debug".into(), from.into(), symbols.clone()])?;
    let mut link = std::ffi::OsString::from("--add-gnu-debuglink=");
    link.push(&symbols);
    objcopy(&["--strip-unneeded".into(), link.into(), to.to_owned()])?;
    println!("  {}", symbols.display());
    Ok(())
}

fn objcopy(arguments: &[PathBuf]) -> io::Result<()> {
    let status = Command::new("objcopy").args(arguments).status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other("objcopy has failed")) }
}

/// Makes or replaces a symbolic link.
fn put_link(target: &Path, link: &Path) -> io::Result<()> {
    match fs::remove_file(link) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => {
            symlink(target, link)?;
            println!("  {}", link.display());
            Ok(())
        }
    }
}

/// What a program prints.
fn output_of(program: &str, arguments: &[&str]) -> io::Result<String> {
    let words: Vec<String> = arguments.iter().map(|word| (*word).to_owned()).collect();
    let call = ProgramCall::new(program).with(&words);
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
