//! `mdfs-lab wide`: reading over links with delay, as in chapter 4 of Ohtsuji's thesis.

mod model;

use std::fmt::Write as _;
use std::time::Duration;

use mdfs_cli::exit::CommandFailure;
use mdfs_cli::session::CommandSession;

use self::model::{ClientKind, LinkKind, StridedReads, run};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// The size of the thesis's file.
const FILE_SIZE: u64 = 6 << 30;

/// Delays of one direction.
const DELAYS_MS: [u64; 6] = [0, 10, 25, 50, 75, 100];

/// Compare clients over links with delay, as chapter 4 of Ohtsuji's thesis does.
///
/// Three clients read a file of 6 GB over a gigabit per second in virtual time: fixed transfers of
/// 1 MB, the thesis's controller, and the default mode of MDFS with several transfers under way.
/// Sizes stand beside those of the thesis. Rates are what the program gets, in MB/s: on a plain
/// link, with the window of TCP as Linux has it, and with a window that closes after each wait.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mdfs-lab wide          the tables
  mdfs-lab wide --json   for programs")]
pub(crate) struct Wide {
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// A table of the thesis.
struct ThesisTable {
    number: &'static str,
    title: &'static str,
    read: u64,
    skip: u64,
    /// Its adaptive column.
    sizes: [u64; 6],
}

const TABLES: [ThesisTable; 3] = [
    ThesisTable { number: "4.2", title: "sequential", read: MIB, skip: 0, sizes: [512 * MIB; 6] },
    ThesisTable {
        number: "4.3",
        title: "read 512 KB, seek 3.5 MB",
        read: 512 * KIB,
        skip: 3584 * KIB,
        sizes: [512 * KIB, 4 * MIB, 512 * MIB, 512 * MIB, 512 * MIB, 512 * MIB],
    },
    ThesisTable {
        number: "4.4",
        title: "read 3 MB, seek 6 MB",
        read: 3 * MIB,
        skip: 6 * MIB,
        sizes: [MIB, 4 * MIB, 4 * MIB, 512 * MIB, 512 * MIB, 512 * MIB],
    },
];

/// Rates of the three clients, in bytes per second.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub(crate) struct Rates {
    pub(crate) fixed: u64,
    pub(crate) thesis: u64,
    pub(crate) default: u64,
}

/// One line of a table.
#[derive(Clone, Debug, serde::Serialize)]
pub(crate) struct WideRow {
    pub(crate) table: &'static str,
    pub(crate) delay_ms: u64,
    /// The adaptive column of the thesis.
    pub(crate) thesis_size: u64,
    /// What the same controller chooses here.
    pub(crate) size: u64,
    pub(crate) plain: Rates,
    pub(crate) linux: Rates,
    pub(crate) restarting: Rates,
}

impl Wide {
    pub(crate) fn run(&self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        let rows: Vec<_> = TABLES.iter().map(rows).collect();
        if self.json {
            return session.print_json(&rows.concat());
        }
        let mut text = String::new();
        for (table, rows) in TABLES.iter().zip(&rows) {
            print(&mut text, table, rows);
        }
        session.print(text)
    }
}

fn rows(table: &ThesisTable) -> Vec<WideRow> {
    let workload = StridedReads { read: table.read, skip: table.skip, size: FILE_SIZE };
    let row = |(delay_ms, thesis_size): (u64, u64)| {
        let delay = Duration::from_millis(delay_ms);
        let rates = |link| {
            let rate = |client| run(client, link, delay, workload).bytes_per_second;
            Rates {
                fixed: rate(ClientKind::Fixed),
                thesis: rate(ClientKind::Thesis),
                default: rate(ClientKind::Default),
            }
        };
        WideRow {
            table: table.number,
            delay_ms,
            thesis_size,
            size: run(ClientKind::Thesis, LinkKind::Plain, delay, workload).size,
            plain: rates(LinkKind::Plain),
            linux: rates(LinkKind::Linux),
            restarting: rates(LinkKind::Restarting),
        }
    };
    DELAYS_MS.into_iter().zip(table.sizes).map(row).collect()
}

fn print(text: &mut String, table: &ThesisTable, rows: &[WideRow]) {
    let mib = |bytes: u64| match bytes / MIB {
        0 => format!("{} KB", bytes / KIB),
        mib => format!("{mib} MB"),
    };
    // Writing to a string does not fail.
    let _ = writeln!(
        text,
        "Table {}: {}\n          size            plain                  TCP of Linux           \
         TCP, closing\n\
         delay     thesis  here    fixed thesis default   fixed thesis default   fixed thesis \
         default",
        table.number, table.title
    );
    for row in rows {
        let _ = write!(
            text,
            "{:<9} {:<7} {:<7}",
            format!("{} ms", row.delay_ms),
            mib(row.thesis_size),
            mib(row.size)
        );
        for Rates { fixed, thesis, default } in [row.plain, row.linux, row.restarting] {
            let rate = |bytes: u64| format!("{}.{}", bytes / 1_000_000, bytes / 100_000 % 10);
            let _ = write!(text, "{:>6} {:>6} {:>7}  ", rate(fixed), rate(thesis), rate(default));
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text.push('\n');
}
