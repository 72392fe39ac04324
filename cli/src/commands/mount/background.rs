//! `mdfs mount --background`: a process that goes on when the volume is mounted.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader};
use std::path::{Path, absolute};
use std::process::{Command, Stdio};

use client::VolumeAddress;

use super::MountCommand;
use crate::exit::CommandFailure;

/// Starts a process that mounts the volume; returns when it is mounted.
pub(crate) fn start(mount: &MountCommand) -> Result<(), CommandFailure> {
    let failed = |error: io::Error| mount.failed("mount", error.into());
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    command.args(["mount", "--detach", "--cache-ms", &mount.cache_ms.to_string()]);
    command.args(mount.read_only.then_some("--read-only"));
    command.args(mount.allow_other.then_some("--allow-other"));
    command.args(mount.write_behind.then_some("--write-behind"));
    if let Some(log) = &mount.log {
        command.arg("--log").arg(absolute(log).map_err(failed)?);
    }
    if let Some(token) = &mount.connection.token {
        command.arg("--token").arg(absolute(token).map_err(failed)?);
    }
    if let Some(timeout) = mount.connection.timeout {
        command.args(["--timeout", &timeout.to_string()]);
    }
    // The process leaves the current directory.
    match &mount.volume {
        VolumeAddress::Directory(directory) => {
            command.arg(absolute(directory).map_err(failed)?);
        }
        remote @ VolumeAddress::Remote { .. } => {
            command.arg(remote.to_string());
        }
    }
    command.arg(absolute(&mount.point).map_err(failed)?);
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    let mut child = child.map_err(failed)?;
    let mut line = String::new();
    if let Some(output) = child.stdout.take() {
        BufReader::new(output).read_line(&mut line).map_err(failed)?;
    }
    if line.is_empty() {
        let status = child.wait().map_err(failed)?;
        let code = status.code().and_then(|code| u8::try_from(code).ok());
        return Err(CommandFailure::Reported { code });
    }
    Ok(())
}

/// Leaves the terminal, the current directory and the standard output of the process that started
/// this one; from now on standard error goes to `log`, or nowhere.
pub(super) fn detach(log: Option<&Path>) -> io::Result<()> {
    let mut options = File::options();
    let sink = match log {
        Some(log) => options.append(true).create(true).open(log)?,
        None => options.write(true).open("/dev/null")?,
    };
    // Fails if this process leads a group already, which changes nothing.
    let _ = rustix::process::setsid();
    std::env::set_current_dir("/")?;
    rustix::stdio::dup2_stderr(&sink)?;
    rustix::stdio::dup2_stdout(&sink)?;
    Ok(())
}
