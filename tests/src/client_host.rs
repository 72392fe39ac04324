//! A host without a server: what runs there reaches the volume by its address only.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests of whole processes use the host, and panic where they fail"
)]

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use client::VolumeAddress;
use client::blocking::Volume;
use client::volume::ConnectOptions;

use crate::cluster::hosts::Host;
use crate::site::{program, without_waits};

/// A mount ends within this time when it is unmounted.
const SOON: Duration = Duration::from_secs(20);

/// The file with the token of the clients, in the folder of the test.
pub const TOKEN: &str = "token";

/// A host of clients, and the address of the volume that they use. Programs run there in the folder
/// of the test, with the token there and the mounts of this host.
#[derive(Clone, Debug)]
pub struct ClientHost {
    /// The folder of the test.
    pub folder: PathBuf,
    /// The host.
    pub host: Host,
    /// `mdfs://...` of the volume.
    pub address: String,
}

impl ClientHost {
    /// The address of a path of the volume.
    pub fn at(&self, path: &str) -> String {
        format!("{}:{path}", self.address)
    }

    /// Opens the volume from there: the connections of the client are made at the host.
    pub fn open(&self) -> Result<Volume, client::volume::OpenError> {
        let open = || {
            let mut options = ConnectOptions::of_this_process().unwrap();
            options.token = Some(self.folder.join(TOKEN));
            let address = VolumeAddress::parse(OsStr::new(&self.address)).unwrap();
            client::volume::connect(&address, &options)
        };
        self.host.run(open)
    }

    /// Any program at the host.
    pub fn any(&self, program: impl AsRef<OsStr>) -> Command {
        let words = self.host.words_with_mounts();
        let mut command = Command::new(&words[0]);
        command.arg(&words[1]).arg(program.as_ref()).current_dir(&self.folder);
        command.env("MDFS_TOKEN", self.folder.join(TOKEN)).stdin(Stdio::null());
        command
    }

    /// `mdfs` at the host.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.any(program());
        command.args(arguments);
        command
    }

    /// Runs `mdfs` there, which shall do what it is told without a word on standard error, unless
    /// that it has waited, and returns what it prints.
    #[track_caller]
    pub fn ok(&self, arguments: &[&str]) -> String {
        let Output { status, stdout, stderr } = self.command(arguments).output().unwrap();
        let told = without_waits(&stderr);
        assert!(status.success() && told.is_empty(), "mdfs {arguments:?}: {told}");
        String::from_utf8(stdout).unwrap()
    }

    /// Mounts the volume at `name` in the folder of the test, with further arguments.
    pub fn mount(&self, name: &str, more: &[&str]) -> RemoteMount {
        self.mount_with(name, |command| command.args(more))
    }

    /// The same for all users, by the certificate of the host in `key`.
    pub fn mount_by_certificate(&self, name: &str, key: &Path) -> RemoteMount {
        let home = self.folder.join(format!("{name}.home"));
        fs::create_dir_all(home.join(".config/mdfs")).unwrap();
        fs::copy(key, home.join(".config/mdfs/client.pem")).unwrap();
        self.mount_with(name, |command| {
            command.args(["--cache-ms", "0", "--allow-other"]).env("HOME", home);
            command.env_remove("XDG_CONFIG_HOME").env_remove("MDFS_TOKEN")
        })
    }

    fn mount_with(
        &self,
        name: &str,
        change: impl FnOnce(&mut Command) -> &mut Command,
    ) -> RemoteMount {
        let point = self.folder.join(name);
        fs::create_dir(&point).unwrap();
        let log = self.folder.join(format!("{name}.log"));
        let mut command = self.command(&["mount", &self.address, name]);
        change(&mut command).stdout(Stdio::piped()).stderr(File::create(&log).unwrap());
        if let Some(level) = std::env::var_os("MDFS_MOUNT_LOG") {
            command.env("MDFS_LOG", level);
        }
        let mut process = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let mounted = RemoteMount { process, point, log };
        assert!(line.starts_with("mounted: mdfs://"), "{line}{}", mounted.log());
        mounted
    }
}

/// A mount of the volume at a host without a server. It is gone when dropped.
#[derive(Debug)]
pub struct RemoteMount {
    process: Child,
    point: PathBuf,
    log: PathBuf,
}

impl RemoteMount {
    /// A path in the mounted volume.
    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.point.join(name)
    }

    /// What a shell prints as a user, and whether it succeeds; `$M` is the mount.
    pub fn shell(&self, user: u32, script: &str) -> (bool, String) {
        let output = self.shell_of(user, script).output().unwrap();
        let told = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(told).unwrap())
    }

    /// A shell of a user; `$M` is the mount.
    pub fn shell_of(&self, user: u32, script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]).current_dir("/").env("M", &self.point).uid(user).gid(user);
        command
    }

    /// What it has said on standard error.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Unmounts it, and waits until its process has ended, cleanly.
    pub fn unmount(mut self) {
        assert!(Command::new("umount").arg(&self.point).status().unwrap().success());
        let start = Instant::now();
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                return assert!(status.success(), "the mount ends with {status}: {}", self.log());
            }
            assert!(start.elapsed() < SOON, "the mount does not end: {}", self.log());
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for RemoteMount {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = Command::new("umount").args(["-q", "-l"]).arg(&self.point).status();
        let log = self.log();
        if thread::panicking() {
            eprintln!("the mount said: {log}");
        } else {
            assert!(!log.contains("panicked"), "{log}");
        }
    }
}
