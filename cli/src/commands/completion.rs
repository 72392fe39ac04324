//! `mdfs completion` and `mdfs man`: what shells and `man` want to know of this program, made from the same
//! description as the help.

use std::path::{Path, PathBuf};

use clap::CommandFactory as _;
use clap_complete::Shell;

use super::Program;
use crate::exit::Failure;
use crate::session::Session;

/// The name by which the program is called.
const NAME: &str = "mdfs";

/// Print a script that completes command lines in a shell.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mdfs completion bash > ~/.local/share/bash-completion/completions/mdfs
  mdfs completion zsh > ~/.zfunc/_mdfs              with ~/.zfunc in fpath, before compinit
  mdfs completion fish > ~/.config/fish/completions/mdfs.fish
  . <(mdfs completion bash)                         in this shell only")]
pub(crate) struct Completion {
    /// The shell.
    shell: Shell,
}

impl Completion {
    pub(super) fn run(&self, session: &mut Session) -> Result<(), Failure> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Program::command(), NAME, &mut script);
        session.print(script)
    }
}

/// Print the page of `man mdfs`, or make it and a page for each command.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mdfs man | man -l -                     read it
  mdfs man --out ~/.local/share/man/man1  make it and mdfs-cp(1), mdfs-serve(1), ...")]
pub(crate) struct Man {
    /// The directory for all pages.
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    out: Option<PathBuf>,
}

impl Man {
    pub(super) fn run(&self, session: &mut Session) -> Result<(), Failure> {
        let program = Program::command();
        if let Some(directory) = &self.out {
            let made = clap_mangen::generate_to(program, directory);
            return made.map_err(|error| Failure::local("write pages into", directory, error));
        }
        let mut page = Vec::new();
        let rendered = clap_mangen::Man::new(program).render(&mut page);
        rendered.map_err(|error| Failure::local("write", Path::new("the page"), error))?;
        session.print(page)
    }
}
