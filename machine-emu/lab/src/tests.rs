//! The commands, from the command line to what is printed.

use std::cell::RefCell;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::rc::Rc;

use clap::{CommandFactory as _, Parser as _};
use mdfs_cli::Commands as _;
use mdfs_cli::session::CommandSession;

use crate::LabProgram;

/// The program, with a directory for its files.
struct Lab {
    directory: tempfile::TempDir,
}

#[derive(Clone, Default)]
struct LabOutput(Rc<RefCell<Vec<u8>>>);

impl Write for LabOutput {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.borrow_mut().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Lab {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    /// A path on this computer.
    fn local(&self, name: &str) -> String {
        self.directory.path().join(name).to_str().unwrap().to_owned()
    }

    /// Runs the command and returns what it prints, or the text of its failure.
    #[allow(clippy::unused_self, reason = "a command of a lab")]
    fn run(&self, arguments: &[&str]) -> Result<String, String> {
        let screen = LabOutput::default();
        let open = |_: &client::VolumeAddress| panic!("no command opens a volume");
        let mut session = CommandSession::new(open, screen.clone());
        let arguments = ["mdfs-lab"].iter().chain(arguments);
        let program = LabProgram::try_parse_from(arguments).map_err(|error| error.to_string())?;
        program.run(&mut session).map_err(|failure| failure.to_string())?;
        let printed = screen.0.borrow().clone();
        Ok(String::from_utf8_lossy(&printed).into_owned())
    }

    fn ok(&self, arguments: &[&str]) -> String {
        self.run(arguments).unwrap_or_else(|failure| panic!("{arguments:?}: {failure}"))
    }
}

#[test]
fn the_arguments_and_every_help_are_consistent_and_give_examples() {
    let program = LabProgram::command();
    program.clone().debug_assert();
    for command in program.get_subcommands() {
        let help = command.clone().render_long_help().to_string();
        assert!(help.contains("Examples:\n  mdfs-lab"), "{help}");
    }
}

#[test]
fn text_goes_to_the_machine_and_back_and_what_is_no_text_leaves_nothing() {
    let lab = Lab::new();
    let path = |name| lab.local(name);
    fs::write(path("text"), "one\ntwo\n").unwrap();
    lab.ok(&["convert", "--to", "machine", &path("text"), &path("words")]);
    let words = fs::read(path("words")).unwrap();
    assert_eq!((words.len(), &words[..8]), (32, &[0, 0, 0, b'o', 0, 0, 0, b'n'][..]));
    assert_eq!(lab.ok(&["convert", "--to", "host", &path("words")]), "one\ntwo\n");

    let refused = lab.run(&["convert", "--to", "host", &path("text"), &path("out")]).unwrap_err();
    assert!(refused.contains("byte 0: the word 6f6e650a is no character"), "{refused}");
    let order = ["convert", "--to", "host", "--order", "little", &path("words")];
    assert!(lab.run(&order).unwrap_err().contains("in the byte order"));
    let left: Vec<_> = ["out", "out.unfinished"]
        .into_iter()
        .filter(|name| Path::new(&path(name)).exists())
        .collect();
    assert_eq!(left, [""; 0]);
}

#[test]
fn a_figure_is_printed_and_put_into_files_and_a_bad_profile_is_told() {
    let lab = Lab::new();
    let out = lab.local("figures");
    let output = lab.ok(&["emulate", "--figure", "4.3", "--out", &out]);
    assert!(
        output.starts_with("Figure 4.3: ") && output.contains("Fitted to this figure: "),
        "{output}"
    );
    let file = |ending| fs::read_to_string(format!("{out}/figure-4.3.{ending}")).unwrap();
    assert!(
        file("svg").starts_with("<svg") && file("csv").starts_with("figure,series,curve,x,y\n")
    );
    let json: serde_json::Value = serde_json::from_str(&file("json")).unwrap();
    assert_eq!(json["figure"], "4.3");
    assert!(lab.ok(&["emulate", "--explain", "--profile", "ideal"]).contains("\n0 of "));

    fs::write(lab.local("mine.toml"), "based_on = \"ideal\"\n[node.clok]\n").unwrap();
    let profile = lab.local("mine.toml");
    let refused = lab.run(&["emulate", "--explain", "--profile", &profile]).unwrap_err();
    assert!(refused.contains("mine.toml, line 2: unknown field `clok`"), "{refused}");
    let both = lab.run(&["emulate", "--figure", "4.3", "--movie", &out]).unwrap_err();
    assert!(both.contains("cannot be used with"), "{both}");
}

#[test]
fn a_checkpoint_on_the_emulated_mesh_is_read_back_and_played_on_a_page() {
    let lab = Lab::new();
    let page = lab.local("load.html");
    let small = ["--machine", "8x8x8 disks=1", "--profile", "none", "--fs-nodes", "4"];
    let small = [&small[..], &["--writers", "1", "--size", "64KiB"]].concat();
    let output = lab.ok(&[&["emulate", "--movie", &page][..], &small].concat());
    assert!(output.contains("all files are as they were written"), "{output}");
    assert!(fs::read_to_string(page).unwrap().starts_with("<!doctype html>"));
}

/// Chapter 4 of Ohtsuji's thesis, within the bounds that were set for it.
#[test]
fn clients_over_links_with_delay_reach_the_figures_of_the_thesis() {
    let printed = Lab::new().ok(&["wide", "--json"]);
    let rows: Vec<serde_json::Value> = serde_json::from_str(&printed).unwrap();
    assert_eq!(rows.len(), 18);
    for row in &rows {
        let number =
            |names: &[&str]| names.iter().fold(row, |value, name| &value[name]).as_u64().unwrap();
        // Sizes within one doubling.
        let (theirs, ours) = (number(&["thesis_size"]), number(&["size"]));
        assert!(ours * 2 >= theirs && ours <= theirs * 2, "{row}");
        for link in ["plain", "linux", "restarting"] {
            assert!(number(&[link, "default"]) >= number(&[link, "thesis"]), "{row}");
        }
        if number(&["delay_ms"]) == 50 && row["table"] == "4.2" {
            assert!(number(&["plain", "default"]) >= 112_500_000, "{row}");
        }
        if number(&["delay_ms"]) == 100 && row["table"] != "4.2" {
            let gain = |link, client| number(&[link, client]) / number(&[link, "fixed"]);
            assert!(gain("plain", "thesis") >= 4 && gain("plain", "default") >= 16, "{row}");
            assert!(gain("linux", "default") >= 16, "{row}");
            assert!(gain("restarting", "thesis") >= 16, "{row}");
        }
    }
    let table = Lab::new().ok(&["wide"]);
    assert!(table.contains("Table 4.3: read 512 KB, seek 3.5 MB"), "{table}");
}

#[test]
fn a_planted_fault_of_makers_of_parity_fails_the_command() {
    let failure = Lab::new().run(&["parity", "--plant", "dropped-tail"]).unwrap_err();
    assert!(failure.starts_with("the planted fault shows: "), "{failure}");
}
