//! Solvers on hosts without a server: in C, as an MPI job on two hosts, and in Python with zarr.
//! They have only the library or the package of a release build, which contain no server. Each is
//! killed, goes on from its last checkpoint, and ends with the same bits.
//!
//! `cargo xtask test` builds these and runs the tests; `MDFS_LIBRARY` is `libmdfs.so`,
//! `MDFS_PYTHON` a Python that has the package, both from the root of the repository.

use std::env;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use client::OpenOptions;
use tests::Site;
use tests::client_host::ClientHost;
use tests::mounted::may_mount;

use super::RemoteSite;

/// A job has written a checkpoint within this time.
const CHECKPOINT_WITHIN: Duration = Duration::from_secs(30);
/// Steps of a job that never ends before it is killed.
const ENDLESS: &str = "100000000";
/// Where the step is in a checkpoint of the solvers in C.
const STEP_AT: usize = 16;

/// A file that `cargo xtask test` has built.
fn built(variable: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let path = env::var_os(variable).unwrap_or_else(|| {
        panic!("{variable} is not set: it names what `cargo xtask test` builds for this test")
    });
    let path = root.join(path);
    assert!(path.exists(), "{variable}: there is no {}", path.display());
    path
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join(name)
}

impl RemoteSite {
    /// Builds an example in C by `compiler` against the library.
    fn compile(&self, compiler: &str, example: &str) -> PathBuf {
        let (link, program) = (self.site.path("libmdfs.so.0"), self.site.path("solver"));
        symlink(built("MDFS_LIBRARY"), &link).unwrap();
        let built = Command::new(compiler)
            .args(["-std=gnu11", "-O2"])
            .arg(format!("-I{}", source("client/c/include").display()))
            .arg(source("client/c/examples").join(example))
            .arg(&link)
            .arg(format!("-Wl,-rpath,{}", self.site.path("").display()))
            .arg("-o")
            .arg(&program)
            .status();
        assert!(built.unwrap().success(), "{compiler} cannot build {example}");
        program
    }
}

/// A solver that runs; ended when dropped.
struct RunningSolver(Child);

impl RunningSolver {
    fn start(mut command: Command) -> Self {
        Self(command.stdout(Stdio::null()).spawn().unwrap())
    }

    /// Waits until `step` gives a later step than `last`; returns it.
    fn reaches(&mut self, last: i64, mut step: impl FnMut() -> Option<i64>) -> i64 {
        let start = Instant::now();
        loop {
            if let Some(now) = step().filter(|now| *now > last) {
                return now;
            }
            assert!(start.elapsed() < CHECKPOINT_WITHIN, "no checkpoint after step {last}");
            assert!(self.0.try_wait().unwrap().is_none(), "the solver has ended");
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for RunningSolver {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a solver to its good end.
#[track_caller]
fn finish(mut command: Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The step of the last checkpoint of a solver in C.
fn step_of(client: &ClientHost, path: &str) -> Option<i64> {
    let volume = client.open().unwrap();
    let file = volume.open(path, OpenOptions::new().read(true)).ok()?;
    let header = file.read_bytes_at(0, STEP_AT + 8).unwrap().concat();
    Some(i64::from_le_bytes(header[STEP_AT..].try_into().unwrap()))
}

#[track_caller]
fn same_result(site: &Site, names: [&str; 2]) {
    let [one, other] = names.map(|name| fs::read(site.path(name)).unwrap());
    assert!(!one.is_empty() && one == other, "the results {names:?} differ");
}

#[test]
#[ignore = "needs the library without a server: cargo xtask test"]
fn a_solver_in_c_goes_on_after_its_kill() {
    if !may_mount() {
        return;
    }
    let remote = RemoteSite::start();
    let client = remote.client();
    let program = remote.compile("cc", "heat.c");
    let solve = |address: &str, folder: &str, steps: &str, result: &str| {
        let mut command = client.any(&program);
        command.args([address, folder, "100", steps, "10", result]);
        command
    };
    let step = || step_of(&client, "/killed/checkpoint");
    let mut solver = RunningSolver::start(solve(&client.address, "/killed", ENDLESS, "unused"));
    let reached = solver.reaches(0, step);
    drop(solver);
    assert!(step() >= Some(reached), "a checkpoint is gone");
    let steps = (step().unwrap() + 20).to_string();
    finish(solve(&client.address, "/killed", &steps, "killed"));
    finish(solve(&client.address, "/straight", &steps, "straight"));
    same_result(&remote.site, ["killed", "straight"]);

    // There is no server in the library.
    remote.site.format("UNSERVED", 64, 4);
    let output = solve("UNSERVED", "/heat", "1", "unused").output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && told.contains("it is not served"), "{told}");
}

/// Starts the ranks of an MPI job on hosts, as `ssh` would.
fn launcher(site: &Site, hosts: &[&ClientHost]) -> PathBuf {
    let case = |host: &&ClientHost| {
        let [enter, namespace] = host.host.words_with_mounts();
        format!("{}) set -- '{enter}' '{namespace}' \"$@\";;\n", host.host.address)
    };
    let cases: String = hosts.iter().map(case).collect();
    // Hydra's command is a line for a shell there.
    let script = format!(
        "#!/bin/sh\nwhile [ \"${{1#-}}\" != \"$1\" ]; do shift; done\ncase $1 in\n{cases}\
         *) echo \"there is no host $1\" >&2; exit 1;;\nesac\n\
         enter=$1; namespace=$2; shift 3; exec \"$enter\" \"$namespace\" sh -c \"$*\"\n"
    );
    let path = site.path("launcher");
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[test]
#[ignore = "needs the library without a server: cargo xtask test"]
fn an_mpi_job_on_two_hosts_goes_on_after_its_kill() {
    if !may_mount() {
        return;
    }
    let remote = RemoteSite::start_with_clients(2);
    let [first, second] = [remote.client_at(1), remote.client_at(2)];
    let program = remote.compile("mpicc", "heat_mpi.c");
    let launcher = launcher(&remote.site, &[&first, &second]);
    let [here, there] = [&first, &second].map(|client| client.host.address.to_string());
    let hosts = format!("{here},{there}");
    let solve = |ranks: &str, each: &str, folder: &str, steps: &str, result: &str| {
        let mut command = first.any("mpiexec");
        command.args(["-launcher", "ssh", "-launcher-exec"]).arg(&launcher);
        command.args(["-localhost", &here, "-iface", "eth0", "-hosts", &hosts]);
        command.args(["-n", ranks, "-ppn", each]).arg(&program);
        command.args(["shared", &first.address, folder, "64", steps, "5"]);
        command.arg(remote.site.path(result));
        command
    };
    let mut job = RunningSolver::start(solve("4", "2", "/killed", ENDLESS, "unused"));
    let step = || step_of(&second, "/killed/checkpoint");
    let before = job.reaches(0, step);
    assert_eq!(ranks_at(&program, &first), 2, "two ranks on each host");
    assert_eq!(ranks_at(&program, &second), 2, "two ranks on each host");
    drop(job);
    wait_for_ranks(&program);
    let steps = (step().unwrap().max(before) + 20).to_string();
    finish(solve("4", "2", "/killed", &steps, "killed"));
    let mut straight = first.any(&program);
    straight.args(["shared", &first.address, "/straight", "64", &steps, "5", "straight"]);
    finish(straight);
    same_result(&remote.site, ["killed", "straight"]);
}

/// The processes of `program`, with the name of their network.
fn ranks(program: &Path) -> Vec<PathBuf> {
    let processes = fs::read_dir("/proc").unwrap().filter_map(Result::ok).map(|entry| entry.path());
    let of_program = processes
        .filter(|process| fs::read_link(process.join("exe")).is_ok_and(|exe| exe == program));
    of_program.filter_map(|process| fs::read_link(process.join("ns/net")).ok()).collect()
}

fn ranks_at(program: &Path, client: &ClientHost) -> usize {
    let network = client.host.run(|| fs::read_link("/proc/thread-self/ns/net").unwrap());
    ranks(program).iter().filter(|other| **other == network).count()
}

/// The ranks of a job whose `mpiexec` was killed end by themselves.
fn wait_for_ranks(program: &Path) {
    let start = Instant::now();
    while !ranks(program).is_empty() {
        assert!(start.elapsed() < CHECKPOINT_WITHIN, "ranks live on");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
#[ignore = "needs the Python package without a server: cargo xtask test"]
fn a_solver_with_zarr_goes_on_after_its_kill() {
    if !may_mount() {
        return;
    }
    let remote = RemoteSite::start();
    let client = remote.client();
    let python = built("MDFS_PYTHON");
    let solve = |folder: &str, steps: &str, result: &str| {
        let mut command = client.any(&python);
        command.arg(source("client/python/examples/heat_zarr.py"));
        command.args([&client.address, folder, "64", steps, "3", result]);
        command
    };
    let step = || {
        let volume = client.open().unwrap();
        let file = volume.open("/killed/checkpoint", OpenOptions::new().read(true)).ok()?;
        let text = file.read_bytes_at(0, 4096).unwrap().concat();
        serde_json::from_slice::<serde_json::Value>(&text).unwrap()["step"].as_i64()
    };
    let mut solver = RunningSolver::start(solve("/killed", ENDLESS, "unused"));
    solver.reaches(0, step);
    drop(solver);
    let steps = (step().unwrap() + 6).to_string();
    finish(solve("/killed", &steps, "killed.npy"));
    finish(solve("/straight", &steps, "straight.npy"));
    same_result(&remote.site, ["killed.npy", "straight.npy"]);
}
