//! A folder with volumes in it, and the program run there.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests of whole processes use the host, and panic where they fail"
)]

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use client::blocking::Volume;
use tempfile::TempDir;

use crate::cluster::hosts::Host;
use crate::served::Served;

/// The programs by their users' names, as they are built with these tests.
const PROGRAM: [&str; 2] = ["mdfs", "mdfs-under-test"];
const LAB: [&str; 2] = ["mdfs-lab", "mdfs-lab-under-test"];
/// The commands of [`LAB`]; all others are of [`PROGRAM`].
const LAB_COMMANDS: [&str; 2] = ["sim", "emulate"];

/// The volume that most tests use.
pub const VOLUME: &str = "VOL";

/// A folder of one test's own, gone when dropped.
#[derive(Debug)]
pub struct Site {
    folder: TempDir,
}

/// How the program refused.
#[derive(Debug)]
pub struct Refusal {
    /// Its exit code.
    pub code: i32,
    /// What it said on standard error.
    pub text: String,
}

impl Site {
    /// An empty folder.
    #[allow(clippy::new_without_default, reason = "a folder is made")]
    pub fn new() -> Self {
        let folders = target().join("system-tests");
        std::fs::create_dir_all(&folders).unwrap();
        Self { folder: TempDir::with_prefix_in("site-", folders).unwrap() }
    }

    /// With a volume: 2 disk nodes of 2 disks, together `disks_mib` MiB (of the host's disk it
    /// takes what is written only), and `nodes` nodes.
    pub fn formatted(disks_mib: u64, nodes: u32) -> Self {
        let site = Self::new();
        site.format(VOLUME, disks_mib, nodes);
        site
    }

    /// Makes one more volume of the same shape.
    pub fn format(&self, volume: &str, disks_mib: u64, nodes: u32) {
        let (size, nodes) = (format!("{}MiB", disks_mib / 4), nodes.to_string());
        let shape = ["--disk-nodes", "2", "--disks-per-node", "2"];
        let sizes = ["--disk-size", &size, "--nodes", &nodes];
        self.ok(&[&["format", volume], &shape[..], &sizes[..]].concat());
    }

    /// A path in the folder.
    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The program, to be run in the folder.
    pub fn command(&self, arguments: &[&str]) -> Command {
        self.command_at(None, arguments)
    }

    /// The program, to be run in the folder at another host.
    pub fn command_at(&self, host: Option<&Host>, arguments: &[&str]) -> Command {
        let is_lab = arguments.first().is_some_and(|command| LAB_COMMANDS.contains(command));
        let [name, file] = if is_lab { LAB } else { PROGRAM };
        let program = target().join(file);
        let mut command = if let Some(host) = host {
            let [first, second] = host.words_with_mounts();
            let mut command = Command::new(first);
            command.arg(second).arg(program);
            command
        } else {
            let mut command = Command::new(program);
            // Its help shall name it as its users know it.
            command.arg0(name);
            command
        };
        command.args(arguments).current_dir(self.folder.path());
        command
    }

    /// Runs the program to its end.
    pub fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Runs the program, which shall do what it is told without a word on standard error, unless
    /// that it has waited, and returns what it prints.
    #[track_caller]
    pub fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let told = without_waits(&output.stderr);
        assert!(output.status.success() && told.is_empty(), "mdfs {arguments:?}: {told}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The one document that it prints, which [`ok`](Self::ok) runs.
    #[track_caller]
    pub fn json(&self, arguments: &[&str]) -> serde_json::Value {
        let printed = self.ok(arguments);
        serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{error}: {printed}"))
    }

    /// Runs the program, which shall refuse: with one of its exit codes, and in words.
    #[track_caller]
    pub fn refused(&self, arguments: &[&str]) -> Refusal {
        let output = self.run(arguments);
        let text = String::from_utf8(output.stderr).unwrap();
        let code = output.status.code().unwrap_or_else(|| panic!("mdfs {arguments:?}: {text}"));
        assert!((1..=3).contains(&code), "mdfs {arguments:?} ends with {code}: {text}");
        assert!(!text.contains("panicked"), "mdfs {arguments:?}: {text}");
        Refusal { code, text }
    }

    /// Serves the volume, over NFS too.
    pub fn serve(&self) -> Served {
        Served::start(self, VOLUME)
    }

    /// Serves the volume again at the port of a server that was killed.
    pub fn serve_at(&self, port: u16) -> Served {
        Served::start_at(self, VOLUME, port)
    }

    /// Opens the volume as programs do: through its server, or alone.
    pub fn open(&self) -> Volume {
        client::volume::open(&self.path(VOLUME)).unwrap()
    }

    /// The same, for a program that gives up soon when the server is gone.
    pub fn open_impatiently(&self) -> Volume {
        let mut options = client::volume::ConnectOptions::of_this_process().unwrap();
        options.timeout = Some(std::time::Duration::from_millis(500));
        client::volume::connect(&self.path(VOLUME).as_path().into(), &options).unwrap()
    }

    /// Bytes in use, as `mdfs df` tells.
    pub fn used_bytes(&self) -> u64 {
        let report = self.ok(&["df", "--json", VOLUME]);
        let report: serde_json::Value = serde_json::from_str(&report).unwrap();
        report["used_bytes"].as_u64().unwrap()
    }
}

impl Refusal {
    /// It has this exit code, and its words name the thing, the cause and the next step.
    #[track_caller]
    pub fn says(&self, code: i32, words: &[&str]) {
        let Self { code: told, text } = self;
        assert_eq!(*told, code, "{text}");
        for word in words {
            assert!(text.contains(word), "'{word}' is not in: {text}");
        }
    }
}

/// What a command has said on standard error, without the lines that say that it waits: on a busy
/// host a server may be silent for a while.
pub(crate) fn without_waits(stderr: &[u8]) -> String {
    let told = String::from_utf8_lossy(stderr);
    let says_more = |line: &&str| {
        !["mdfs: waiting for ", "mdfs: the wait is over for "].iter().any(|it| line.starts_with(it))
    };
    told.lines().filter(says_more).collect::<Vec<_>>().join("\n")
}

/// The program.
pub(crate) fn program() -> PathBuf {
    target().join(PROGRAM[1])
}

/// Where this build's programs are: tests run in the folder `deps` there.
fn target() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.ancestors().nth(2).unwrap().to_owned()
}
