//! A real NFS client: the programs of libnfs.

use std::io;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::exit::CommandFailure;

/// The programs, all in Debian's libnfs-utils.
const TOOLS: [&str; 3] = ["nfs-ls", "nfs-cat", "nfs-cp"];

/// Are they installed?
pub(super) fn check_tools() -> Result<(), CommandFailure> {
    for tool in TOOLS {
        let found = Command::new(tool).stdout(Stdio::null()).stderr(Stdio::null()).status();
        if let Err(error) = found
            && error.kind() == io::ErrorKind::NotFound
        {
            let text =
                format!("the demo needs {tool}; install it by: apt-get install libnfs-utils");
            return Err(CommandFailure::Wrong(text));
        }
    }
    Ok(())
}

/// The address of a file. The two slashes make the client mount the root of the volume.
fn url(port: u16, path: &str) -> String {
    format!("nfs://127.0.0.1/{path}?nfsport={port}&mountport={port}")
}

fn run(tool: &str, arguments: &[&str]) -> Result<Output, CommandFailure> {
    let output = Command::new(tool).args(arguments).output();
    let output = output.map_err(|error| CommandFailure::local("run", Path::new(tool), error))?;
    if output.status.success() {
        return Ok(output);
    }
    let reason = String::from_utf8_lossy(&output.stderr);
    Err(CommandFailure::Wrong(format!("{tool} {} failed: {}", arguments.join(" "), reason.trim())))
}

/// The lines of `nfs-ls`.
pub(super) fn list(port: u16, directory: &str) -> Result<String, CommandFailure> {
    let output = run("nfs-ls", &[&url(port, directory)])?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Copies a file of the volume to this computer.
pub(super) fn copy_out(port: u16, path: &str, to: &Path) -> Result<(), CommandFailure> {
    run("nfs-cp", &[&url(port, path), &to.to_string_lossy()]).map(|_| ())
}

/// Copies a file of this computer into the volume.
pub(super) fn copy_in(port: u16, from: &Path, path: &str) -> Result<(), CommandFailure> {
    run("nfs-cp", &[&from.to_string_lossy(), &url(port, path)]).map(|_| ())
}

/// The content of a file of the volume.
pub(super) fn show(port: u16, path: &str) -> Result<Vec<u8>, CommandFailure> {
    Ok(run("nfs-cat", &[&url(port, path)])?.stdout)
}
