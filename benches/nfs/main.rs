//! The NFS gateway beside other NFS servers: one client for all of them, in turn in each round, as
//! ratios; and the processor time that each server takes for one request, the steadiest figure on a
//! machine where other things run.
//!
//! Method: the client here (`load.rs`) speaks NFS version 3 over as many connections and with as
//! many requests under way as a row says. The servers are processes of their own (`sides.rs`), all
//! up at the same time, of which one at a time has something to do. In earnest and as root all runs
//! in a network and a `/run` of its own, because nfs-ganesha insists on rpcbind. A server that is
//! not installed is left out, and told so. Reads are of what was written just before: from memory
//! on all sides.
//!
//! `cargo bench -p benches --bench nfs` runs all; `-- getattr` the rows of that name; `cargo test`
//! runs it small, with our own server.

#![allow(clippy::disallowed_methods, reason = "a benchmark uses the host and its clock")]

mod load;
mod nfsserve;
mod ours;
mod sides;
mod stream;
mod table;
mod wire;

use std::process::{Command, ExitCode};
use std::time::Duration;

use benches::{in_earnest, sized};

use load::{NfsBenchRow, ROWS};
use sides::NfsServerSide;
use table::NfsBenchCell;

/// As the program has it (ADR 44). For `nfsserve` too, which is this program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    match arguments.next().as_deref() {
        Some(ours::SERVE) => {
            ours::serve(arguments);
            return ExitCode::SUCCESS;
        }
        Some(nfsserve::SERVE) => {
            nfsserve::serve();
            return ExitCode::SUCCESS;
        }
        _ => {}
    }
    if in_earnest() && sides::needs_rpcbind() && std::env::var_os(sides::APART).is_none() {
        return apart();
    }
    let wanted: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    // Other benchmarks may be meant: `cargo xtask bench nfs` asks all of them.
    let is_named = |row: &NfsBenchRow, part: &String| format!("nfs {}", row.name()).contains(part);
    let is_wanted =
        |row: &&NfsBenchRow| wanted.is_empty() || wanted.iter().any(|part| is_named(row, part));
    // Small, there is one row of each kind of work.
    let is_of_test = |row: &&NfsBenchRow| in_earnest() || row.connections == 1;
    let rows: Vec<&NfsBenchRow> = ROWS.iter().filter(is_of_test).filter(is_wanted).collect();
    if !rows.is_empty() {
        measure(&rows);
    }
    ExitCode::SUCCESS
}

/// The same again in a network of its own.
fn apart() -> ExitCode {
    let program = std::env::current_exe().expect("a program knows its file");
    let script = "ip link set lo up && mount -t tmpfs tmpfs /run && exec \"$0\" \"$@\"";
    let status = Command::new("unshare")
        .args(["--net", "--mount", "sh", "-c", script])
        .arg(program)
        .args(std::env::args_os().skip(1))
        .env(sides::APART, "1")
        .status();
    match status {
        Ok(status) => {
            let code = status.code().and_then(|code| u8::try_from(code).ok());
            ExitCode::from(code.unwrap_or(1))
        }
        Err(error) => {
            eprintln!("no network of its own: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(rows: &[&NfsBenchRow]) {
    let (rounds, duration) = sized((5, Duration::from_millis(400)), (1, Duration::from_millis(20)));
    let sides: Vec<NfsServerSide> = sides::start();
    let mut cells: Vec<Vec<NfsBenchCell>> = Vec::new();
    cells.resize_with(rows.len(), || sides.iter().map(|_| NfsBenchCell::default()).collect());
    let mut streams = Vec::new();
    for round in 0..rounds {
        streams.push(stream::bytes_per_second(sized(1 << 30, 1 << 24)));
        for (row, cells) in rows.iter().zip(&mut cells) {
            // Another one is first in each round.
            for turn in 0..sides.len() {
                let index = (round + turn) % sides.len();
                let cell = &mut cells[index];
                match row.run(&sides[index], round, duration) {
                    Ok(outcome) => cell.outcomes.push(outcome),
                    Err(error) => cell.failure = Some(error.to_string()),
                }
            }
        }
        eprintln!("round {} of {rounds}", round + 1);
    }
    table::print(rows, &sides, &cells, &streams);
    let failed = cells.iter().find_map(|cells| cells[0].failure.as_ref());
    assert_eq!(failed, None, "our own server fails");
}
