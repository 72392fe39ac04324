//! The commands, from the command line to what is printed. Method: the program's own parser and
//! commands on the model.

use std::cell::RefCell;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, UNIX_EPOCH};

use clap::{CommandFactory as _, Parser as _};
use client::blocking::Volume;
use client::{Change, Credentials, VolumeAddress};
use fileio::model::machine;
use runtime::seed::Rng;

use crate::Commands as _;
use crate::commands::MdfsProgram;
use crate::session::CommandSession;

/// The program with one volume, called `VOL`.
pub(crate) struct TestProgram {
    pub(crate) volume: Volume,
    pub(crate) directory: tempfile::TempDir,
}

#[derive(Clone, Default)]
struct CapturedOutput(Rc<RefCell<Vec<u8>>>);

impl Write for CapturedOutput {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.borrow_mut().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl TestProgram {
    pub(crate) fn new() -> Self {
        let machine = machine::start().unwrap();
        let volume = Volume::holding(machine.client_handle(), Credentials::root(), machine);
        Self { volume, directory: tempfile::tempdir().unwrap() }
    }

    /// A path on this computer.
    pub(crate) fn local(&self, name: &str) -> String {
        self.directory.path().join(name).to_str().unwrap().to_owned()
    }

    /// Runs the command and returns what it prints, or the text of its failure.
    pub(crate) fn run(&self, arguments: &[&str]) -> Result<String, String> {
        let screen = CapturedOutput::default();
        let volume = self.volume.clone();
        let open = move |address: &VolumeAddress| {
            assert_eq!(address, &VolumeAddress::from(Path::new("VOL")));
            Ok(volume.clone())
        };
        let mut session = CommandSession::new(open, screen.clone());
        let arguments = ["mdfs"].iter().chain(arguments);
        let program = MdfsProgram::try_parse_from(arguments).map_err(|error| error.to_string())?;
        program.run(&mut session).map_err(|failure| failure.to_string())?;
        let printed = screen.0.borrow().clone();
        Ok(String::from_utf8_lossy(&printed).into_owned())
    }

    pub(crate) fn ok(&self, arguments: &[&str]) -> String {
        self.run(arguments).unwrap_or_else(|failure| panic!("{arguments:?}: {failure}"))
    }
}

#[test]
fn the_arguments_and_every_help_are_consistent_and_give_examples() {
    let program = MdfsProgram::command();
    program.clone().debug_assert();
    for command in program.get_subcommands() {
        let help = command.clone().render_long_help().to_string();
        assert!(help.contains("Examples:\n  mdfs"), "{help}");
    }
}

#[test]
fn files_go_in_and_come_out_byte_for_byte_with_mode_and_time() {
    let mdfs = TestProgram::new();
    let mut content = vec![0; 9 << 20];
    Rng::new(3).fill(&mut content);
    fs::write(mdfs.local("in"), &content).unwrap();
    fs::set_permissions(mdfs.local("in"), fs::Permissions::from_mode(0o6751)).unwrap();
    let time = UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    let file = fs::File::options().write(true).open(mdfs.local("in")).unwrap();
    file.set_modified(time).unwrap();

    mdfs.ok(&["put", &mdfs.local("in"), "VOL:/stored"]);
    mdfs.ok(&["mkdir", "VOL:/d"]);
    mdfs.ok(&["put", &mdfs.local("in"), "VOL:/d"]);
    mdfs.ok(&["get", "VOL:/d/in", &mdfs.local("out")]);
    assert!(fs::read(mdfs.local("out")).unwrap() == content);
    let out = fs::metadata(mdfs.local("out")).unwrap();
    assert_eq!((out.mode() & 0o7777, out.modified().unwrap()), (0o6751, time));
    assert_eq!(mdfs.volume.metadata("/stored").unwrap().size, 9 << 20);

    fs::write(mdfs.local("in"), "short now").unwrap();
    mdfs.ok(&["put", &mdfs.local("in"), "VOL:/stored"]);
    assert_eq!(mdfs.ok(&["cat", "VOL:/stored", "VOL:/stored"]), "short nowshort now");
    assert_eq!(mdfs.ok(&["get", "VOL:/stored", "-"]), "short now");
    fs::create_dir(mdfs.local("into")).unwrap();
    mdfs.ok(&["get", "VOL:/stored", &mdfs.local("into")]);
    assert_eq!(fs::read_to_string(mdfs.local("into/stored")).unwrap(), "short now");
}

#[test]
fn holes_stay_holes_in_both_directions() {
    let mdfs = TestProgram::new();
    let file = fs::File::create(mdfs.local("sparse")).unwrap();
    file.set_len(1 << 30).unwrap();
    mdfs.ok(&["put", &mdfs.local("sparse"), "VOL:/sparse"]);
    let stored = mdfs.volume.metadata("/sparse").unwrap();
    assert_eq!((stored.size, stored.used_bytes), (1 << 30, 0));
    mdfs.volume
        .open("/sparse", client::OpenOptions::new().write(true))
        .unwrap()
        .write_at(500 << 20, "data")
        .unwrap();
    mdfs.ok(&["get", "VOL:/sparse", &mdfs.local("back")]);
    let back = fs::metadata(mdfs.local("back")).unwrap();
    assert_eq!(back.len(), 1 << 30);
    assert!(back.blocks() * 512 <= 8 << 20, "{} blocks", back.blocks());
}

#[test]
fn trees_go_in_and_come_out_whole() {
    let mdfs = TestProgram::new();
    let tree = mdfs.directory.path().join("tree");
    fs::create_dir_all(tree.join("sub/deep")).unwrap();
    for number in 0..1000 {
        let place = ["", "sub", "sub/deep"][number % 3];
        fs::write(tree.join(place).join(format!("f{number}")), format!("{number}")).unwrap();
    }
    symlink("sub/f1", tree.join("link")).unwrap();
    fs::set_permissions(tree.join("sub"), fs::Permissions::from_mode(0o500)).unwrap();
    let text = mdfs.run(&["put", &mdfs.local("tree"), "VOL:/"]).unwrap_err();
    assert!(text.ends_with("is a directory; copy it with -r"), "{text}");
    mdfs.ok(&["put", "-r", &mdfs.local("tree"), "VOL:/"]);
    mdfs.ok(&["put", "-r", &mdfs.local("tree"), "VOL:/copy"]);
    mdfs.ok(&["put", "-r", &mdfs.local("tree"), "VOL:/"]);
    assert_eq!(mdfs.volume.metadata("/tree/sub").unwrap().mode, 0o500);
    assert_eq!(mdfs.volume.read_link("/copy/link").unwrap(), b"sub/f1");

    mdfs.ok(&["get", "-r", "VOL:/copy", &mdfs.local("back")]);
    mdfs.ok(&["get", "-r", "VOL:/copy", &mdfs.local("back")]);
    for number in 0..1000 {
        let place = ["", "sub", "sub/deep"][number % 3];
        let path = mdfs.directory.path().join("back").join(place).join(format!("f{number}"));
        assert_eq!(fs::read_to_string(path).unwrap(), format!("{number}"));
    }
    let back = mdfs.directory.path().join("back");
    assert_eq!(fs::read_link(back.join("link")).unwrap(), Path::new("sub/f1"));
    assert_eq!(fs::metadata(back.join("sub")).unwrap().mode() & 0o777, 0o500);
    assert_eq!(
        fs::metadata(back.join("sub")).unwrap().modified().unwrap(),
        fs::metadata(tree.join("sub")).unwrap().modified().unwrap()
    );
    fs::set_permissions(tree.join("sub"), fs::Permissions::from_mode(0o700)).unwrap();
    fs::set_permissions(back.join("sub"), fs::Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn one_failure_in_a_tree_does_not_stop_the_rest() {
    let mdfs = TestProgram::new();
    fs::create_dir(mdfs.local("tree")).unwrap();
    for name in ["a", "b", "c"] {
        fs::write(mdfs.local("tree").clone() + "/" + name, name).unwrap();
    }
    mdfs.ok(&["mkdir", "-p", "VOL:/tree/b"]);
    let text = mdfs.run(&["put", "-r", &mdfs.local("tree"), "VOL:/"]).unwrap_err();
    assert_eq!(text, "1 of 4 were not done; see the messages above");
    assert_eq!(mdfs.ok(&["ls", "VOL:/tree"]), "a\nb\nc\n");
    assert_eq!(mdfs.ok(&["cat", "VOL:/tree/c"]), "c");
}

#[test]
fn listings_are_aligned_sorted_and_readable_by_programs() {
    let mdfs = TestProgram::new();
    mdfs.ok(&["mkdir", "VOL:/d", "VOL:/d/sub"]);
    for (name, length) in [("small", 5), ("big", 1 << 20)] {
        fs::write(mdfs.local(name), vec![b'x'; length]).unwrap();
        mdfs.ok(&["put", &mdfs.local(name), &format!("VOL:/d/{name}")]);
        let time = client::SetTime::To { time: client::Time::default() };
        let change = Change { mtime: Some(time), mode: Some(0o4640), ..Change::default() };
        mdfs.volume.set_attributes(format!("/d/{name}"), change).unwrap();
    }
    let time = client::SetTime::To { time: client::Time { seconds: 86_400, nanos: 0 } };
    let change = Change { mtime: Some(time), ..Change::default() };
    mdfs.volume.set_attributes("/d/sub", change).unwrap();
    mdfs.volume.symlink("small", "/d/link").unwrap();
    assert_eq!(mdfs.ok(&["ls", "VOL:/d"]), "big\nlink\nsmall\nsub\n");
    assert_eq!(mdfs.ok(&["ls", "VOL:/d/small"]), "/d/small\n");
    let long = mdfs.ok(&["ls", "-l", "VOL:/d"]);
    let lines: Vec<&str> = long.lines().collect();
    assert_eq!(lines[0], "-rwSr----- 1 0 0 1048576 1970-01-01 00:00:00 big");
    assert!(lines[1].starts_with("lrwxrwxrwx 1 0 0       5 "), "{}", lines[1]);
    assert!(lines[1].ends_with(" link -> small"), "{}", lines[1]);
    assert_eq!(lines[2], "-rwSr----- 1 0 0       5 1970-01-01 00:00:00 small");
    assert_eq!(lines[3], "drwxr-xr-x 2 0 0    4096 1970-01-02 00:00:00 sub");
    assert!(mdfs.ok(&["ls", "-lH", "VOL:/d/big"]).contains(" 1 MiB "));

    let json: serde_json::Value =
        serde_json::from_str(&mdfs.ok(&["ls", "--json", "VOL:/d"])).unwrap();
    assert_eq!(json[0]["name"], "big");
    assert_eq!(json[0]["size_bytes"], 1 << 20);
    assert_eq!(json[0]["mode"], "4640");
    assert_eq!(json[1]["target"], "small");
    assert_eq!(json[3]["modified"], "1970-01-02T00:00:00.000000000Z");
}

#[test]
fn stat_and_df_tell_people_and_programs() {
    let mdfs = TestProgram::new();
    fs::write(mdfs.local("f"), vec![1; 10_000]).unwrap();
    mdfs.ok(&["put", &mdfs.local("f"), "VOL:/f"]);
    let text = mdfs.ok(&["stat", "VOL:/f"]);
    assert!(text.contains("    size  10000 bytes (9.8 KiB), 12 KiB on disk\n"), "{text}");
    let json: serde_json::Value =
        serde_json::from_str(&mdfs.ok(&["stat", "--json", "VOL:/f"])).unwrap();
    assert_eq!((&json["kind"], &json["used_bytes"]), (&"file".into(), &12_288.into()));
    let text = mdfs.ok(&["df", "VOL"]);
    assert_eq!(
        text,
        "Volume  Size   Used Avail Use% Files\nVOL    1 TiB 12 KiB 1 TiB   1%     2\n"
    );
    let json: serde_json::Value = serde_json::from_str(&mdfs.ok(&["df", "--json", "VOL"])).unwrap();
    assert_eq!((&json["used_bytes"], &json["inodes"]), (&12_288.into(), &2.into()));
    let raw = ["raw_total_bytes", "raw_used_bytes", "raw_free_bytes"].map(|key| json[key].as_u64());
    assert_eq!(raw, [1 << 40, 12_288, (1 << 40) - 12_288].map(Some));
}

#[test]
fn du_adds_up_the_files_of_a_tree() {
    let mdfs = TestProgram::new();
    mdfs.ok(&["mkdir", "-p", "VOL:/a/b/c", "VOL:/d"]);
    fs::write(mdfs.local("f"), vec![1; 10_000]).unwrap();
    for path in ["/a/1", "/a/b/2", "/a/b/c/3", "/d/4", "/5"] {
        mdfs.ok(&["put", &mdfs.local("f"), &format!("VOL:{path}")]);
    }
    // Further names of a file, and symbolic links, take nothing.
    mdfs.volume.hard_link("/a/1", "/a/b/again").unwrap();
    mdfs.volume.symlink("/a/1", "/a/link").unwrap();
    let text = mdfs.ok(&["du", "VOL:/"]);
    assert_eq!(text, "  Size Stored Raw Files Path\n49 KiB 60 KiB   -     5 /\n");
    let json: serde_json::Value =
        serde_json::from_str(&mdfs.ok(&["du", "-d", "2", "--json", "VOL:/a", "VOL:/5"])).unwrap();
    let entries = json["entries"].as_array().unwrap().iter();
    let rows: Vec<_> = entries
        .map(|it| (it["path"].as_str().unwrap(), it["files"].clone(), it["size_bytes"].clone()))
        .collect();
    // The file with two names is counted where it is found first.
    let row = |path: &'static str, files: u64| (path, files.into(), (files * 10_000).into());
    assert_eq!(rows, [row("/a/b/c", 1), row("/a/b", 2), row("/a", 3), row("/5", 1)]);
    assert!(mdfs.run(&["du", "VOL:/none"]).unwrap_err().contains("no such file"));
}

#[test]
fn names_are_moved_and_removed() {
    let mdfs = TestProgram::new();
    mdfs.ok(&["mkdir", "-p", "VOL:/a/b", "VOL:/c"]);
    fs::write(mdfs.local("f"), "x").unwrap();
    mdfs.ok(&["put", &mdfs.local("f"), "VOL:/a/f"]);
    mdfs.ok(&["mv", "VOL:/a/f", "VOL:/g"]);
    mdfs.ok(&["mv", "VOL:/g", "VOL:/c"]);
    mdfs.ok(&["mv", "VOL:/a", "VOL:/c"]);
    assert_eq!(mdfs.ok(&["ls", "VOL:/c"]), "a\ng\n");
    let text = mdfs.run(&["rm", "VOL:/c"]).unwrap_err();
    assert_eq!(text, "cannot remove VOL:/c: is a directory; remove it with -r");
    mdfs.ok(&["rm", "VOL:/c/g"]);
    assert!(mdfs.run(&["rm", "VOL:/c/g"]).is_err());
    mdfs.ok(&["rm", "-f", "VOL:/c/g"]);
    mdfs.ok(&["rm", "-r", "VOL:/c"]);
    assert_eq!(mdfs.ok(&["ls", "VOL:"]), "");
}

#[test]
fn a_failure_names_the_thing_the_cause_and_the_next_step() {
    let mdfs = TestProgram::new();
    let text = |arguments: &[&str]| mdfs.run(arguments).unwrap_err();
    assert_eq!(
        text(&["cat", "VOL:/no/such"]),
        "cannot open VOL:/no/such: no such file or directory; check the spelling, or make it first"
    );
    let missing = mdfs.local("missing");
    assert!(
        text(&["put", &missing, "VOL:/f"]).starts_with(&format!("cannot read {missing}: No such"))
    );
    assert!(text(&["mkdir", "VOL:/x/y"]).contains("no such file or directory"));
    let long = format!("VOL:/{}", "x".repeat(256));
    assert!(text(&["mkdir", &long]).contains("a name has at most 255 bytes; correct the path"));
    assert!(text(&["mv", "VOL:/a", "other:/a"]).contains("use `mdfs cp`"));
    assert!(
        text(&["ls", "VOL"])
            .contains("write the volume's directory or address, a colon and a path")
    );
    assert!(text(&["frobnicate"]).contains("unrecognized subcommand"));
    assert!(text(&["get", "VOL:/", &mdfs.local("x")]).contains("copy it with -r"));
}

#[test]
fn an_address_of_servers_is_understood_wherever_a_volume_is() {
    let mdfs = TestProgram::new();
    let directory_only = "this command works on the files of the volume";
    for command in ["serve", "format"] {
        let error = mdfs.run(&[command, "mdfs://h/v"]).unwrap_err();
        assert!(error.contains(directory_only), "{command}: {error}");
    }
    let wrong = "write mdfs://HOST[:PORT]";
    for arguments in [
        &["cp", "mdfs://h:/f", "out"][..],
        &["cp", "in", "mdfs://h/v:0/:/f"],
        &["ls", "mdfs://h:x/v:/"],
        &["cat", "mdfs://[::/v:/f"],
        &["df", "mdfs://h"],
        &["check", "mdfs://h"],
        &["mount", "mdfs://h", "/mnt"],
    ] {
        let error = mdfs.run(arguments).unwrap_err();
        assert!(error.contains(wrong), "{arguments:?}: {error}");
    }
    assert!(MdfsProgram::try_parse_from(["mdfs", "mount", "mdfs://h,[::1]:9/v", "/mnt"]).is_ok());
    let options = ["mdfs", "cp", "--token", "t", "--timeout", "forever", "mdfs://h/v:/f", "out"];
    assert!(MdfsProgram::try_parse_from(options).is_ok());
}
