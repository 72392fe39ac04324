//! C programs, built with the system's compiler against the header and the shared library, on real
//! volumes: `against_stdio.c` compares every stdio function with the C library's, `posix.c` tries
//! the rest.

#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use client::OpenOptions;
use fileio::stack::{self, FormatOptions};
use tempfile::TempDir;

/// Steps of each seed; `MDFS_STDIO_STEPS` asks for others.
const STEPS: &str = "20000";
const SEEDS: [&str; 3] = ["1", "2", "3"];

/// Where the shared library of this build is.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().join("libmdfs.so")
}

/// Builds the C program `source` of this crate in `directory`.
fn build(source: &str, directory: &Path) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    // The name that programs look for; installed, it is such a link, too.
    let link = directory.join("libmdfs.so.0");
    if !link.exists() {
        symlink(library(), &link).unwrap();
    }
    let program = directory.join("program");
    let built = Command::new("cc")
        .args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"])
        .arg(format!("-I{}", here.join("include").display()))
        .arg(here.join(source))
        .arg(&link)
        .arg(format!("-Wl,-rpath,{}", directory.display()))
        .arg("-o")
        .arg(&program)
        .status()
        .unwrap();
    assert!(built.success(), "cc cannot build {source}");
    program
}

/// A new volume of two disks, which nobody serves: each program opens it itself.
fn volume(directory: &Path) -> PathBuf {
    let path = directory.join("volume");
    let options = FormatOptions {
        disk_nodes: 2,
        disks_per_node: 1,
        disk_bytes: 256 << 20,
        disks: Vec::new(),
        fs_nodes: 8,
        stripe_size: 64 << 10,
    };
    stack::format(&path, &options).unwrap();
    path
}

/// Runs a program to its good end.
fn run(program: &Path, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{} {arguments:?}: {text}", program.display());
}

#[test]
fn streams_do_what_the_c_library_does() {
    let directory = TempDir::new().unwrap();
    let program = build("tests/c/against_stdio.c", directory.path());
    let volume = volume(directory.path());
    let steps = std::env::var("MDFS_STDIO_STEPS").unwrap_or_else(|_| STEPS.into());
    for seed in SEEDS {
        let arguments = [volume.as_path(), directory.path()].map(|path| path.to_str().unwrap());
        run(&program, &[arguments[0], arguments[1], seed, &steps]);
    }
}

#[test]
fn everything_else_does_what_posix_says() {
    let directory = TempDir::new().unwrap();
    let program = build("tests/c/posix.c", directory.path());
    let volume = volume(directory.path());
    run(&program, &[volume.to_str().unwrap()]);

    // What the program left open was written out when it ended.
    let volume = client::volume::open(&volume).unwrap();
    let file = volume.open("/left-open", OpenOptions::new().read(true)).unwrap();
    assert_eq!(file.read_bytes_at(0, 100).unwrap().concat(), b"flushed at exit");
}

#[test]
fn ranks_write_their_tiles_of_one_matrix() {
    let directory = TempDir::new().unwrap();
    let program = build("examples/tile.c", directory.path());
    let volume = volume(directory.path());
    for rank in ["2", "0", "3", "1", "check"] {
        run(&program, &[volume.to_str().unwrap(), "/matrix", rank, "2"]);
    }
}

/// How often the solver is killed.
const KILLS: u64 = 20;

#[test]
#[allow(clippy::disallowed_methods, reason = "a real program is killed in real time")]
fn a_solver_that_is_killed_again_and_again_ends_with_the_same_bits() {
    let directory = TempDir::new().unwrap();
    let program = build("examples/heat.c", directory.path());
    let volume = volume(directory.path());
    let result = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    // Long enough that it is never done before the last kill.
    let solve = |folder: &str, file: &str, steps: &str| {
        let mut command = Command::new(&program);
        command.arg(&volume).args([folder, "200", steps, "20"]).arg(result(file));
        command
    };
    let mut killed_at_work = 0;
    for round in 0..KILLS {
        let mut solver = solve("/killed", "unused", "100000000").spawn().unwrap();
        // From before the volume is open to amid any checkpoint.
        std::thread::sleep(Duration::from_millis(20 + round * 37 % 400));
        solver.kill().unwrap();
        killed_at_work += u64::from(!solver.wait().unwrap().success());
    }
    assert_eq!(killed_at_work, KILLS);
    // How far it got: both runs end there, one straight, one from the last whole checkpoint on.
    let reached = client::volume::open(&volume).unwrap();
    let file = reached.open("/killed/checkpoint", OpenOptions::new().read(true)).unwrap();
    let header = file.read_bytes_at(0, 24).unwrap().concat();
    let step = i64::from_le_bytes(header[16..24].try_into().unwrap());
    assert!(step > 0, "no checkpoint in {KILLS} rounds");
    reached.finish().unwrap();
    drop((file, reached));
    let steps = (step + 50).to_string();
    assert!(solve("/killed", "killed.dat", &steps).status().unwrap().success());
    assert!(solve("/straight", "straight.dat", &steps).status().unwrap().success());
    let bytes = |name| std::fs::read(result(name)).unwrap();
    assert!(bytes("killed.dat") == bytes("straight.dat"), "after {steps} steps");
}
