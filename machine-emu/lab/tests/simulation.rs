//! `mdfs-lab sim`, the program itself: what it finds it tells in a way that can be repeated.

#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn mdfs_lab(directory: &Path, line: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mdfs-lab"));
    command.args(line.split(' ')).current_dir(directory).output().unwrap()
}

fn ok(directory: &Path, line: &str) -> String {
    let output = mdfs_lab(directory, line);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "mdfs-lab {line}: {errors}");
    assert_eq!(errors, "", "mdfs-lab {line}");
    String::from_utf8(output.stdout).unwrap()
}

/// What is printed, and what is said about the failure, which has this exit code.
fn fails(directory: &Path, line: &str, code: i32) -> (String, String) {
    let output = mdfs_lab(directory, line);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "mdfs-lab {line}: {errors}");
    (String::from_utf8(output.stdout).unwrap(), errors)
}

#[test]
fn what_is_found_does_not_depend_on_the_number_of_threads() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    let hashes = |threads| {
        let line = "sim --workload cache,disks --seed 1 --seeds 6 --print-hashes --threads";
        ok(here, &format!("{line} {threads}"))
    };
    let alone = hashes(1);
    assert_eq!(alone.lines().count(), 6);
    assert!(alone.starts_with("cache 1 ") && alone.contains("\ndisks 2 "), "{alone}");
    assert_eq!(alone, hashes(3));

    let first_failure = |threads| {
        let line = "sim --workload cache --seed 20 --seeds 30 --twice-in 0 --plant lying-disks";
        fails(here, &format!("{line} --no-shrink --threads {threads}"), 1).1
    };
    assert_eq!(first_failure(1), first_failure(3));
}

#[test]
fn a_failure_is_shortened_to_a_file_that_the_printed_command_replays() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    let line = "sim --workload cache --seed 2 --seeds 30 --plant lying-disks";
    let (table, output) = fails(here, line, 1);
    assert!(table.contains("\ncache ") && table.contains("\nruns: "), "{table}");
    let command =
        output.lines().find_map(|line| line.trim().strip_prefix("to repeat it: mdfs-lab "));
    let command = command.unwrap_or_else(|| panic!("no command: {output}"));
    let file = command.rsplit(' ').next().unwrap();
    assert!(file.starts_with("sim-cache-") && file.ends_with(".schedule"), "{command}");
    let text = fs::read_to_string(here.join(file)).unwrap();
    assert!(text.contains(command) && text.contains(": power-cut\n"), "{text}");

    // What failed at first is told at once; what is left after shrinking may fail in another way.
    let is_last = |line: &&str| line.starts_with("cache ") && !line.contains(" failed: ");
    let message = output.lines().find(is_last).unwrap();
    let (_, again) = fails(here, command, 1);
    assert!(again.contains(message), "{message}\n{again}");
    assert_eq!(fs::read_to_string(here.join(file)).unwrap(), text, "a replay changes no file");
}

#[test]
fn the_faults_of_a_run_can_be_printed_and_given_back() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    let line = "sim --workload cache --seed 3";
    let schedule = ok(here, &format!("{line} --print-schedule"));
    fs::write(here.join("faults"), &schedule).unwrap();
    assert_eq!(ok(here, &format!("{line} --schedule faults --print-schedule")), schedule);
    let drawn = ok(here, &format!("{line} --seeds 1 --print-hashes"));
    assert_eq!(ok(here, &format!("{line} --schedule faults --print-hashes")), drawn);

    let only = ok(here, &format!("{line} --faults freeze,power-cut --print-schedule"));
    let words: Vec<_> = only.lines().skip(1).map(|line| line.split(": ").nth(1).unwrap()).collect();
    let allowed = ["freeze ", "power-cut", "end", "unclog ", "heal"];
    assert!(words.iter().all(|word| allowed.iter().any(|start| word.starts_with(start))), "{only}");
}

#[test]
fn the_sums_are_there_for_programs_too() {
    let directory = tempfile::tempdir().unwrap();
    let text = ok(directory.path(), "sim --workload cache,disks --seed 5 --seeds 4 --json");
    let found: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&found["seed"], &found["runs"]), (&5.into(), &4.into()));
    assert_eq!(found["workloads"].as_array().unwrap().len(), 2);
    assert_eq!(found["workloads"][0]["runs"], 2);
    let faults = found["faults"].as_array().unwrap();
    let named = |name: &str| faults.iter().find(|fault| fault["fault"] == name).unwrap();
    assert_eq!(named("disk sync ignored")["hits"], 0);
    assert!(faults.iter().any(|fault| fault["hits"].as_u64().unwrap() > 0), "{text}");
}

#[test]
fn a_command_line_that_means_nothing_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    let usage = |line: &str| fails(here, &format!("sim {line}"), 2).1;
    assert!(usage("--workload flies").contains("possible values: disks, "));
    assert!(usage("--faults melt").contains("fail-flush"));
    assert!(usage("--print-schedule").contains("name one --workload"));
    assert!(usage("--workload files --seed 1 --seeds 2 --print-schedule").contains("--seeds"));
    assert!(usage("--schedule faults").contains("--seed"));
    assert!(usage("--time 5").contains("it is no length of time"));
    assert!(usage("--regressions --seed 1").contains("cannot be used with"));
    let (_, text) = fails(here, "sim --workload files --seed 1 --schedule missing", 1);
    assert!(text.contains("cannot read schedule missing"), "{text}");
    fs::write(here.join("bad"), "round 1 at 5 us: melt\n").unwrap();
    let (_, text) = fails(here, "sim --workload files --seed 1 --schedule bad", 1);
    assert!(text.contains("line 1 of the schedule: there is no fault `melt`"), "{text}");
}
