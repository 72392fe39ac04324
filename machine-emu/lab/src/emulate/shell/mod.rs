//! A volume on the emulated machine to try by hand, or by a script: each command prints its cost.
//!
//! | file | holds |
//! | --- | --- |
//! | `words.rs` | a line as words |
//! | `perform.rs` | what the commands do |

mod perform;
mod words;

use std::io::{self, BufRead, IsTerminal as _, Read as _};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser as _, Subcommand};
use sim::emulated::Emulation;

use self::perform::Shell;
use mdfs_cli::exit::CommandFailure;
use mdfs_cli::session::CommandSession;

/// Bytes of a line, at most.
const LINE_BYTES_MAX: u64 = 64 << 10;
const PROMPT: &str = "mdfs> ";
/// A command that does nothing takes nothing.
const COMMENT: char = '#';

/// One line of the shell.
#[derive(Debug, clap::Parser)]
#[command(multicall = true, disable_version_flag = true, help_template = "{subcommands}")]
struct ShellLine {
    #[command(subcommand)]
    command: ShellCommand,
}

/// What a line may say. Paths begin at the root of the volume, with or without a slash.
#[derive(Debug, Subcommand)]
#[command(subcommand_value_name = "COMMAND", disable_help_flag = true)]
enum ShellCommand {
    /// List a directory, or show a file
    Ls {
        /// With all attributes
        #[arg(short)]
        long: bool,
        #[arg(value_name = "PATH", default_value = "/")]
        path: String,
    },
    /// Show the attributes of a file
    Stat {
        #[arg(value_name = "PATH")]
        path: String,
    },
    /// Make a directory
    Mkdir {
        #[arg(value_name = "PATH")]
        path: String,
    },
    /// Copy a file of this computer into the volume, and make it durable
    Put {
        #[arg(value_name = "FILE")]
        local: PathBuf,
        #[arg(value_name = "PATH")]
        path: String,
    },
    /// Copy a file of the volume to this computer
    Get {
        #[arg(value_name = "PATH")]
        path: String,
        #[arg(value_name = "FILE")]
        local: PathBuf,
    },
    /// Print a file
    Cat {
        #[arg(value_name = "PATH")]
        path: String,
    },
    /// Remove a file, or with -r all that is below
    Rm {
        #[arg(short)]
        recursive: bool,
        #[arg(value_name = "PATH")]
        path: String,
    },
    /// Give a file another name
    Mv {
        #[arg(value_name = "FROM")]
        from: String,
        #[arg(value_name = "TO")]
        to: String,
    },
    /// Show the space of the volume
    Df,
    /// Make everything durable
    Sync,
    /// Stop all nodes and start them again from the disks
    Restart,
    /// Let virtual time pass, for what works in the background
    Wait {
        #[arg(value_name = "SECONDS", value_parser = seconds)]
        seconds: Duration,
    },
    /// Print the cost of everything so far
    Cost,
    /// End
    #[command(alias = "exit")]
    Quit,
}

/// No command waits for longer, in seconds.
const WAIT_MAX: f64 = 600.0;

fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.parse::<f64>().ok().filter(|number| (0.0..=WAIT_MAX).contains(number));
    let number = number.ok_or_else(|| format!("write a number from 0 to {WAIT_MAX}"))?;
    Ok(Duration::from_secs_f64(number))
}

/// Reads lines from standard input until they end.
pub(crate) fn run(machine: &Emulation, session: &mut CommandSession) -> Result<(), CommandFailure> {
    let input = io::stdin();
    let asks = input.is_terminal();
    if asks {
        session.print("'help' lists the commands, 'quit' ends; the cost follows each\n")?;
    }
    read(machine, &mut input.lock(), asks, session)
}

/// Of a person the next line is asked for after an error; a script ends there.
fn read(
    machine: &Emulation,
    input: &mut impl BufRead,
    asks: bool,
    session: &mut CommandSession,
) -> Result<(), CommandFailure> {
    let shell = Shell::new(machine);
    for number in 1.. {
        if asks {
            session.print(PROMPT)?;
        }
        session.flush()?;
        let at_line =
            |what: &dyn std::fmt::Display| CommandFailure::Wrong(format!("line {number}: {what}"));
        let mut line = Vec::new();
        let read = input.take(LINE_BYTES_MAX).read_until(b'\n', &mut line);
        let read = read.map_err(|error| at_line(&error))?;
        if read == 0 {
            break;
        }
        if read as u64 == LINE_BYTES_MAX {
            return Err(at_line(&format!("it is longer than {LINE_BYTES_MAX} bytes")));
        }
        match obey(&shell, &String::from_utf8_lossy(&line), session) {
            Ok(true) => {}
            Ok(false) => break,
            Err(failure) if asks => eprintln!("{failure}"),
            Err(failure) => return Err(at_line(&failure)),
        }
    }
    Ok(())
}

/// Does what a line says; false if it says to end.
fn obey(
    shell: &Shell<'_>,
    line: &str,
    session: &mut CommandSession,
) -> Result<bool, CommandFailure> {
    let line = line.trim();
    if line.is_empty() || line.starts_with(COMMENT) {
        return Ok(true);
    }
    let words = words::split(line).map_err(|error| CommandFailure::Usage(error.to_owned()))?;
    let command = match ShellLine::try_parse_from(words) {
        Ok(line) => line.command,
        Err(error) if error.use_stderr() => {
            let text = error.to_string();
            let text = text.trim_start_matches("error: ").trim_end();
            return Err(CommandFailure::Usage(format!("{text}\n'help' lists the commands")));
        }
        Err(help) => {
            session.print(help.to_string())?;
            return Ok(true);
        }
    };
    if matches!(command, ShellCommand::Quit) {
        return Ok(false);
    }
    shell.perform(command, session)?;
    Ok(true)
}
