//! The project's one tool: everything a developer or the CI does, as one command each.
//!
//! | file | holds |
//! | --- | --- |
//! | `demo.rs`, `install.rs`, `python.rs`, `test.rs`, `sim.rs`, `bench.rs`, `deny.rs`, `tidy/`, `planted/` | one command each |
//! | `steps.rs` | running a program as a named, timed step |
//! | `needs.rs` | programs that must be on the machine, and how they get there |
//!
//! It depends on the standard library only, so that it is built in seconds on a new machine.

mod bench;
mod demo;
mod deny;
mod install;
mod needs;
mod planted;
mod python;
mod sim;
mod sizes;
mod steps;
mod test;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use steps::USAGE;

/// One command of the tool.
struct XtaskCommand {
    name: &'static str,
    summary: &'static str,
    run: fn(&[String]) -> ExitCode,
}

const COMMANDS: &[XtaskCommand] = &[
    XtaskCommand {
        name: "demo",
        summary: "build mdfs, install the NFS test client, and show the main job",
        run: demo::run,
    },
    XtaskCommand {
        name: "test",
        summary: "everything that CI checks, with all tests",
        run: test::run,
    },
    XtaskCommand { name: "ci", summary: "the same as test", run: test::run },
    XtaskCommand {
        name: "check",
        summary: "the quick checks, without root: format, tidy, deny, lints, unit tests",
        run: test::run_quick,
    },
    XtaskCommand {
        name: "deny",
        summary: "licences and versions of the crates we use, against deny.toml",
        run: deny::run,
    },
    XtaskCommand {
        name: "tools",
        summary: "install what the tests need, and do nothing else",
        run: test::install_tools,
    },
    XtaskCommand {
        name: "tidy",
        summary: "what the compiler does not check; --write renews docs/protocol.md and lowers the ratchet",
        run: tidy::run,
    },
    XtaskCommand {
        name: "install",
        summary: "build mdfs and libmdfs and install them; --prefix DIR (/usr/local), --lab",
        run: install::run,
    },
    XtaskCommand {
        name: "python",
        summary: "build the Python package as a wheel, install and test it; arguments go to pytest",
        run: python::run,
    },
    XtaskCommand {
        name: "sim",
        summary: "run whole clusters under seeds, in release; arguments as of mdfs-lab sim",
        run: sim::run,
    },
    XtaskCommand {
        name: "bench",
        summary: "run the benchmarks in release; further arguments go to them",
        run: bench::run,
    },
    XtaskCommand {
        name: "planted",
        summary: "put bugs into a copy of the code and see which the simulator finds",
        run: planted::run,
    },
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some((name, rest)) = arguments.split_first() else {
        print!("{}", help());
        return ExitCode::from(USAGE);
    };
    if matches!(name.as_str(), "help" | "-h" | "--help") {
        print!("{}", help());
        return ExitCode::SUCCESS;
    }
    let Some(command) = COMMANDS.iter().find(|command| command.name == name) else {
        eprintln!("xtask: there is no command `{name}`\n");
        eprint!("{}", help());
        return ExitCode::from(USAGE);
    };
    if let Err(error) = std::env::set_current_dir(root()) {
        eprintln!("xtask: cannot enter {}: {error}", root().display());
        return ExitCode::FAILURE;
    }
    (command.run)(rest)
}

/// The top of the tree. Cargo says where the crate is now; it may have moved since it was built.
fn root() -> PathBuf {
    let built_at = env!("CARGO_MANIFEST_DIR").to_owned();
    let here = std::env::var("CARGO_MANIFEST_DIR").unwrap_or(built_at);
    Path::new(&here).join("..")
}

fn help() -> String {
    let row = |command: &XtaskCommand| format!("  {:<7} {}\n", command.name, command.summary);
    let rows: String = COMMANDS.iter().map(row).collect();
    format!(
        "usage: cargo xtask COMMAND\n\n{rows}\n\
         README.md says what the two main ones, demo and test, need and show.\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_names_every_command() {
        let help = help();
        for command in COMMANDS {
            assert!(help.contains(&format!("\n  {:<7} {}", command.name, command.summary)));
        }
    }

    #[test]
    fn the_root_is_the_folder_of_the_workspace() {
        let manifest = std::fs::read_to_string(root().join("Cargo.toml")).unwrap();
        assert!(manifest.contains("[workspace]"));
    }
}
