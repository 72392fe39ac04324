//! The end of a process that has used libfabric.
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(clippy::disallowed_methods, reason = "the test starts a process and takes its time")]

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use fabric::ExitGate;

const CHILD: &str = "MDFS_TEST_EXIT";

#[test]
fn the_end_of_a_process_waits_for_no_thread_that_is_out() {
    if std::env::var_os(CHILD).is_some() {
        let gates = [ExitGate::default(), ExitGate::default()];
        drop(gates.each_ref().map(ExitGate::enter));
        // For as long as the process lives.
        std::mem::forget(gates);
        return;
    }
    let run = || {
        let begin = Instant::now();
        let mut child = Command::new(std::env::current_exe().unwrap());
        let ended = child.env(CHILD, "1").stdout(Stdio::null()).status().unwrap();
        assert!(ended.success());
        begin.elapsed()
    };
    let fastest = (0..3).map(|_| run()).min().unwrap();
    assert!(fastest < Duration::from_millis(400), "{fastest:?}");
}
