//! A server as a process of its own.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::exit::CommandFailure;

/// A running `mdfs serve`.
pub(super) struct Server {
    process: Child,
    nfs_port: u16,
}

impl Server {
    /// Starts it and waits until it is ready.
    pub(super) fn start(volume: &Path) -> Result<Self, CommandFailure> {
        let program = std::env::current_exe()
            .map_err(|error| CommandFailure::local("find", Path::new("this program"), error))?;
        let mut process = Command::new(&program)
            .arg("serve")
            .arg(volume)
            .args(["--nfs", "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| CommandFailure::local("start", &program, error))?;
        let mut line = String::new();
        if let Some(output) = process.stdout.take() {
            BufReader::new(output)
                .read_line(&mut line)
                .map_err(|error| CommandFailure::local("read the output of", &program, error))?;
        }
        let mut server = Self { process, nfs_port: 0 };
        let port = line.trim().rsplit(':').next().and_then(|port| port.parse().ok());
        match port {
            Some(port) if line.starts_with("ready:") => server.nfs_port = port,
            _ => {
                return Err(CommandFailure::Wrong(format!(
                    "the server did not start, it said {line:?}"
                )));
            }
        }
        Ok(server)
    }

    /// Where its gateway listens.
    pub(super) fn nfs_port(&self) -> u16 {
        self.nfs_port
    }

    /// Asks it to stop, and waits for the clean end.
    pub(super) fn stop(mut self) -> Result<(), CommandFailure> {
        let failed = |error: std::io::Error| {
            CommandFailure::local("stop", Path::new("the server of the demo"), error)
        };
        let process = Pid::from_child(&self.process);
        kill_process(process, Signal::TERM).map_err(|error| failed(error.into()))?;
        let status = self.process.wait().map_err(failed)?;
        if status.success() {
            Ok(())
        } else {
            Err(CommandFailure::Wrong(format!("the server ended with {status}")))
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Has ended already, if it was stopped.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
