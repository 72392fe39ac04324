//! The patterns on the model and in a directory of this computer.

use std::fs;

use crate::tests::TestProgram;

/// The rows as JSON.
fn rows(mdfs: &TestProgram, arguments: &[&str]) -> Vec<serde_json::Value> {
    let on = mdfs.directory.path().to_str().unwrap();
    let text = mdfs.ok(&[&["bench"], arguments, &["--json", "--on", on, "VOL:/"]].concat());
    let rows: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
    assert_eq!(mdfs.ok(&["ls", "VOL:/"]), "", "what was made is removed");
    assert_eq!(fs::read_dir(mdfs.directory.path()).unwrap().count(), 0);
    rows
}

#[test]
fn each_pattern_of_ior_moves_its_bytes_on_both_sides_and_leaves_nothing() {
    let mdfs = TestProgram::new();
    let patterns: [&[&str]; 5] =
        [&[], &["-F", "-e"], &["-z", "-C"], &["-F", "-C", "-z", "-e"], &["-N", "1", "-s", "1"]];
    for pattern in patterns {
        let shape: &[&str] = if pattern.contains(&"-N") { &[] } else { &["-N", "3", "-s", "2"] };
        let shape = [&["ior", "-b", "64KiB", "-t", "16KiB", "-i", "2"], shape, pattern].concat();
        let rows = rows(&mdfs, &shape);
        let operation_and_bytes = |row: &serde_json::Value| {
            (row["operation"].as_str().unwrap().to_owned(), row["bytes"].as_u64().unwrap())
        };
        let bytes = if pattern.contains(&"-N") { 64 << 10 } else { (3 * 2 * 64) << 10 };
        let each = |operation: &str| (operation.to_owned(), bytes);
        let expected = [each("write"), each("read"), each("write"), each("read")];
        assert_eq!(
            rows.iter().map(operation_and_bytes).collect::<Vec<_>>(),
            expected,
            "{pattern:?}"
        );
        assert!(rows.iter().all(|row| row["seconds"].as_array().unwrap().len() == 2));
        assert_eq!(rows[0]["operations"], bytes / (16 << 10));
    }
    let read = rows(&mdfs, &["ior", "-r"]);
    assert_eq!(read.len(), 2, "writing did not count: {read:?}");
    assert!(mdfs.run(&["bench", "ior", "-b", "10KiB", "-t", "4KiB", "VOL:/"]).is_err());
}

#[test]
fn each_step_of_mdtest_counts_its_names_and_leaves_nothing() {
    let mdfs = TestProgram::new();
    let tree = ["mdtest", "-N", "2", "-n", "15", "-z", "2", "-b", "2", "-w", "100"];
    for more in [&["-u"][..], &[], &["-y", "-F"]] {
        let rows = rows(&mdfs, &[&tree[..], more].concat());
        let steps = if more.contains(&"-F") { 4 } else { 7 };
        assert_eq!(rows.len(), 2 * steps, "{rows:?}");
        for row in &rows {
            // 15 names of 2 ranks, evenly over the 7 directories of the tree: 14.
            assert_eq!(row["operations"], 28, "{row}");
            let moves = ["file create", "file read"].contains(&row["operation"].as_str().unwrap());
            assert_eq!(row["bytes"], if moves { 2800 } else { 0 });
        }
    }
    let few = mdfs.run(&["bench", "mdtest", "-n", "2", "-z", "2", "-b", "2", "VOL:/"]).unwrap_err();
    assert!(few.contains("needs a name (-n)"), "{few}");
    let text = mdfs.ok(&["bench", "mdtest", "-n", "3", "-D", "VOL:/"]);
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[1].starts_with("directory create VOL:") && lines.len() == 6, "{text}");
}
