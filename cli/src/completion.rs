//! `completion` and `man` of both programs: scripts for shells and pages for `man`, from the same
//! description as the help.

use std::path::{Path, PathBuf};

use clap_complete::Shell;

use crate::Commands;
use crate::exit::CommandFailure;
use crate::session::CommandSession;

/// Print a script that completes command lines in a shell.
#[derive(Debug, clap::Args)]
pub struct CompletionCommand {
    /// The shell.
    shell: Shell,
}

impl CompletionCommand {
    /// Prints the script for the program `P`.
    pub fn run<P: Commands>(&self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut P::command(), P::NAME, &mut script);
        session.print(script)
    }
}

/// Print the manual page of this program, or write it and a page for each command.
#[derive(Debug, clap::Args)]
pub struct ManCommand {
    /// The directory for the pages.
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    out: Option<PathBuf>,
}

impl ManCommand {
    /// Prints or writes the pages of the program `P`.
    pub fn run<P: Commands>(&self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        let program = P::command();
        if let Some(directory) = &self.out {
            let made = clap_mangen::generate_to(program, directory);
            return made
                .map_err(|error| CommandFailure::local("write pages into", directory, error));
        }
        let mut page = Vec::new();
        let rendered = clap_mangen::Man::new(program).render(&mut page);
        rendered.map_err(|error| CommandFailure::local("write", Path::new("the page"), error))?;
        session.print(page)
    }
}
