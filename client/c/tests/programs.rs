//! C programs, built with the system's compiler against the header and the shared library, on real
//! volumes: `against_stdio.c` compares every stdio function with the C library's, `posix.c` tries
//! the rest.

#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use client::OpenOptions;
use tempfile::TempDir;
use volume::FormatOptions;

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
    build_by("cc", source, directory)
}

/// The same by the compiler `compiler`.
fn build_by(compiler: &str, source: &str, directory: &Path) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    // The name that programs look for; installed, it is such a link, too.
    let link = directory.join("libmdfs.so.0");
    if !link.exists() {
        symlink(library(), &link).unwrap();
    }
    let program = directory.join("program");
    let built = Command::new(compiler)
        .args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"])
        .arg(format!("-I{}", here.join("include").display()))
        .arg(here.join(source))
        .arg(&link)
        .arg(format!("-Wl,-rpath,{}", directory.display()))
        .arg("-o")
        .arg(&program)
        .status()
        .unwrap();
    assert!(built.success(), "{compiler} cannot build {source}");
    program
}

/// A new volume of two disks, which is not served: each program opens it itself.
fn volume(directory: &Path) -> PathBuf {
    let path = directory.join("volume");
    let options = FormatOptions {
        disk_nodes: 2,
        disks_per_node: 1,
        disk_bytes: 256 << 20,
        fs_nodes: 8,
        stripe_size: 64 << 10,
        ..FormatOptions::default()
    };
    volume::format(&path, &options).unwrap();
    path
}

/// Runs a program to its good end.
fn run(program: &Path, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{} {arguments:?}: {text}", program.display());
}

#[test]
fn the_library_exports_its_own_functions_only() {
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(library()).output().unwrap();
    let listed = String::from_utf8(output.stdout).unwrap();
    let symbols: Vec<&str> = listed.lines().filter_map(|line| line.split(' ').nth(2)).collect();
    assert!(symbols.contains(&"mdfs_mount"), "{listed}");
    let foreign: Vec<_> = symbols.iter().filter(|name| !name.starts_with("mdfs_")).collect();
    assert!(foreign.is_empty(), "{foreign:?}");
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

/// Ends every process that runs `program`, which this test alone has started; how many.
fn kill_all(program: &Path) -> usize {
    let mut killed = 0;
    for entry in std::fs::read_dir("/proc").unwrap().filter_map(Result::ok) {
        // What has ended meanwhile, or is no process, has none.
        if std::fs::read_link(entry.path().join("exe")).is_ok_and(|exe| exe == program) {
            let id = entry.file_name();
            let stderr = Command::new("kill").arg("-KILL").arg(&id).status().unwrap();
            killed += usize::from(stderr.success());
        }
    }
    killed
}

/// How often the job is killed.
const JOB_KILLS: u64 = 3;

/// Four ranks on one volume that this process serves. What CI must run is left out only where there
/// is no MPI, and not in silence.
#[allow(clippy::disallowed_methods, reason = "a real program is killed in real time")]
fn a_job_of_four_is_killed_and_ends_with_the_same_bits(mode: &str) {
    if Command::new("mpicc").arg("-show").output().is_err() {
        assert!(std::env::var_os("CI").is_none(), "mpicc is not there: cargo xtask tools");
        eprintln!(
            "SKIPPED: no mpicc, the MPI example was NOT tested; `cargo xtask tools` brings it"
        );
        return;
    }
    let directory = TempDir::new().unwrap();
    let program = build_by("mpicc", "examples/heat_mpi.c", directory.path());
    let volume = volume(directory.path());
    let running = volume::open(&volume, &volume::RunOptions::default()).unwrap();
    running.answer_socket().unwrap();
    let result = |name: &str| directory.path().join(name);
    let solve = |ranks: &str, folder: &str, file: &str, steps: &str| {
        let mut command = Command::new("mpiexec");
        command.args(["-n", ranks]).arg(&program).arg(mode).arg(&volume);
        command.args([folder, "64", steps, "2"]).arg(result(file));
        command
    };
    let reached = || {
        let opened = client::volume::open(&volume).unwrap();
        let file = opened.open("/killed/checkpoint", OpenOptions::new().read(true)).ok()?;
        let header = file.read_bytes_at(0, 24).unwrap().concat();
        Some(i64::from_le_bytes(header[16..24].try_into().unwrap()))
    };
    let mut step = 0;
    for round in 0..JOB_KILLS {
        // Long enough that it is never done before it is killed.
        let mut job = solve("4", "/killed", "unused", "100000000").spawn().unwrap();
        let patience = std::time::Instant::now();
        while reached().is_none_or(|now| now <= step) {
            assert!(patience.elapsed() < Duration::from_mins(2), "no checkpoint in round {round}");
            std::thread::sleep(Duration::from_millis(20));
        }
        // Amid any checkpoint.
        std::thread::sleep(Duration::from_millis(round * 37 % 100));
        assert!(kill_all(&program) > 0, "the job is gone before it was killed");
        assert!(!job.wait().unwrap().success());
        kill_all(&program);
        step = reached().unwrap();
    }
    let steps = (step + 3).to_string();
    assert!(solve("4", "/killed", "killed.dat", &steps).status().unwrap().success());
    // One process alone computes the same, too.
    assert!(solve("1", "/straight", "straight.dat", &steps).status().unwrap().success());
    let bytes = |name| std::fs::read(result(name)).unwrap();
    assert!(bytes("killed.dat") == bytes("straight.dat"), "{mode}: after {steps} steps");
    running.stop().unwrap();
}

#[test]
fn ranks_with_a_file_each_are_killed_and_end_with_the_same_bits() {
    a_job_of_four_is_killed_and_ends_with_the_same_bits("own");
}

#[test]
fn ranks_that_share_a_file_are_killed_and_end_with_the_same_bits() {
    a_job_of_four_is_killed_and_ends_with_the_same_bits("shared");
}
